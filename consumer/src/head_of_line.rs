//! Head-of-line blocking: decides which records are requeued at their deadline because they hold up others, and which
//! wait on.
//!
//! A record that waits is not copied for its age. It goes back only where something else flows meanwhile, so that it
//! holds up the commits of work that is done: while its type is granted nothing and another type is, or while its own
//! grant is asked for and not decided, and others of its type are. A record that waits for its turn at the limit of a
//! type that flows, or at a downstream without room, stays. In an outage nothing flows, so all of it stays, and a call
//! that is not answered is given up and repeated in place.
//!
//! A window that can take no more would stop all types of its partition: then the oldest records go back, whatever they
//! wait for, if any type could flow.

use crate::in_flight::{InFlightTable, Key};
use crate::lanes::Lanes;
use std::collections::HashSet;

/// The facts that hold for all records of one look.
pub(crate) struct Scene<'a> {
    pub table: &'a InFlightTable,
    pub lanes: &'a Lanes,
    /// Records that wait for the answer to a call which is older than the deadline.
    pub unanswered: HashSet<Key>,
    /// Partitions whose windows take no more.
    pub full_windows: Vec<u32>,
    pub is_table_full: bool,
    /// What flows has done so since then at least.
    pub flows_ns: u64,
    pub now_ns: u64,
}

impl Scene<'_> {
    /// Splits the records that are past their deadline into those that go back and those that wait on.
    pub fn split(&self, overdue: Vec<Key>) -> (Vec<Key>, Vec<Key>) {
        overdue.into_iter().partition(|&key| self.is_in_the_way(key))
    }

    /// Whether a record that is past its deadline holds up what could flow, or has flowed.
    fn is_in_the_way(&self, key: Key) -> bool {
        let Some(record) = self.table.get(key) else { return false };
        let is_full = self.is_table_full || self.full_windows.contains(&record.position.partition);
        if is_full && self.lanes.can_any_flow(self.now_ns) {
            return true;
        }
        // A record without a lane is being archived; every type counts as another one.
        let at = record.lane.unwrap_or(usize::MAX);
        let own = record.lane.is_some_and(|at| {
            let health = self.lanes[at].health();
            health.has_decided_since(record.since_ns()) && health.flows_since(self.flows_ns)
        });
        match own {
            // It was asked for then and lately. What waits for its turn to be asked for again does not fail.
            true => record.is_undecided_since(self.flows_ns) || self.unanswered.contains(&key),
            false => self.lanes.does_another_flow(at, record.since_ns(), self.flows_ns, self.now_ns),
        }
    }
}
