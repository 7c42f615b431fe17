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

use crate::ask_again::UndecidedEvents;
use crate::flow::Flow;
use crate::grant_calls::GrantCall;
use crate::health::CallAnswer;
use crate::in_flight::{InFlightRecord, Key, Place};
use crate::outbox::RetryMetadata;
use crate::stats::Cause;
use crate::units::NS_PER_MS;
use std::collections::HashSet;
use std::sync::Arc;

/// The facts that hold for all records of one look.
struct Scene {
    /// Records that wait for the answer to a call which is older than the deadline.
    unanswered: HashSet<Key>,
    /// Partitions whose windows take no more.
    full_windows: Vec<u32>,
    is_table_full: bool,
    /// What flows has done so since then at least.
    flows_ns: u64,
}

/// A call that was given up still holds its order numbers for a moment: asked at once, its own repeat would find them busy.
const UNDECIDED_REST_NS: u64 = 50 * NS_PER_MS;

impl Flow {
    /// Looks at the records and calls whose deadline is over.
    pub fn look_at_heads(&mut self, now_ns: u64) {
        let deadline_ns = self.rules.pacing.deadline_ms.saturating_mul(NS_PER_MS);
        let Some(before_ns) = now_ns.checked_sub(deadline_ns) else { return };
        let overdue = self.partitions.take_older(&self.table, before_ns);
        if !overdue.is_empty() {
            let scene = Scene {
                unanswered: self.grants.unanswered(before_ns),
                full_windows: self.partitions.full_windows(),
                is_table_full: self.is_table_full(),
                flows_ns: now_ns - deadline_ns / 2,
            };
            let (go, stay): (Vec<_>, Vec<_>) =
                overdue.into_iter().partition(|&key| self.is_in_the_way(key, &scene, now_ns));
            stay.into_iter().for_each(|key| self.hold_on(key, now_ns));
            self.send_records_back(go, Cause::Deadline, now_ns);
        }
        for call in self.grants.give_up_unanswered(before_ns) {
            self.ask_again_for(&call, now_ns);
        }
    }

    /// Writes back all that is in flight, because the consumer closes.
    pub fn send_all_back(&mut self, now_ns: u64) {
        self.send_delayed_back(Cause::Drain);
        let all = self.partitions.take_older(&self.table, u64::MAX);
        self.send_records_back(all, Cause::Drain, now_ns);
    }

    /// Records that are not due pin the window of their partition until it takes no more: then they go back with their
    /// due time, if a type could flow.
    pub fn unpin_full_windows(&mut self, now_ns: u64) {
        for partition in self.partitions.full_windows() {
            if !self.lanes.can_any_flow(now_ns) {
                return;
            }
            for key in self.table.keys_of(partition) {
                if self.table.get(key).is_some_and(|record| record.place == Place::DelayQueue) {
                    self.pace.churned(now_ns);
                    self.send_back(key, Cause::NotDue);
                }
            }
        }
    }

    /// Whether a record that is past its deadline holds up what could flow, or has flowed.
    fn is_in_the_way(&self, key: Key, scene: &Scene, now_ns: u64) -> bool {
        let Some(record) = self.table.get(key) else { return false };
        let is_full = scene.is_table_full || scene.full_windows.contains(&record.position.partition);
        if is_full && self.lanes.can_any_flow(now_ns) {
            return true;
        }
        // A record without a lane is being archived; every type counts as another one.
        let at = record.lane.unwrap_or(usize::MAX);
        let own = record.lane.is_some_and(|at| {
            let health = &self.lanes[at].health;
            health.has_decided_since(record.since_ns) && health.flows_since(scene.flows_ns)
        });
        // It was asked for then and lately. What waits for its turn to be asked for again does not fail.
        let is_undecided = record.undecided_since_ns.is_some_and(|since_ns| since_ns <= scene.flows_ns)
            && record.undecided_at_ns > scene.flows_ns;
        match own {
            true => is_undecided || scene.unanswered.contains(&key),
            false => self.lanes.does_another_flow(at, record.since_ns, scene.flows_ns, now_ns),
        }
    }

    /// Lets the record wait on, for another deadline.
    fn hold_on(&mut self, key: Key, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        record.held_since_ns = now_ns;
        self.partitions.work_begins(record.position.partition, key);
    }

    /// Requeues all events of these records that are not settled: those not asked for yet, those that wait to be asked
    /// for again, and those in calls. The order number makes a second grant harmless (I1).
    fn send_records_back(&mut self, keys: Vec<Key>, cause: Cause, now_ns: u64) {
        if keys.is_empty() {
            return;
        }
        for key in keys {
            if let Some(record) = self.table.get_mut(key) {
                record.is_overdue = true;
                self.send_back(key, cause);
            }
        }
        for at in 0..self.lanes.len() {
            let table = &self.table;
            let is_overdue = |key| table.get(key).is_some_and(|record: &InFlightRecord| record.is_overdue);
            for undecided in self.lanes[at].take_undecided(is_overdue) {
                self.send_asked_back(at, undecided, cause);
            }
        }
        let (overdue, ended) = self.grants.give_up_overdue(&self.table);
        for part in overdue {
            let (key, failures, events) = (part.key, part.failures, part.events);
            self.send_asked_back(part.lane, UndecidedEvents { key, failures, events }, cause);
        }
        for call in ended {
            // No record waits for its answer, so it says nothing about the service that was to give it.
            self.lanes[call.lane].call_ended(call.events.len() as u64, call.is_probe, now_ns);
        }
    }

    /// Writes back events that were cut out of their record already.
    pub fn send_asked_back(&mut self, at: usize, asked: UndecidedEvents, cause: Cause) {
        let Some(record) = self.table.get(asked.key) else { return };
        let metadata = RetryMetadata {
            bonus_type: Arc::clone(&self.lanes[at].name),
            attempt: record.attempt,
            failures: asked.failures,
            origin: record.origin,
            not_before_ms: 0,
        };
        self.count_requeued(Some(at), cause, asked.events.len());
        asked.events.into_iter().for_each(|event| self.retries.push(&metadata, 0, asked.key, event));
    }

    /// Asks again for the events of a call that was not answered by the deadline.
    fn ask_again_for(&mut self, call: &GrantCall, now_ns: u64) {
        let lane = &mut self.lanes[call.lane];
        lane.call_ended(call.events.len() as u64, call.is_probe, now_ns);
        if !lane.health.has_decided_since(call.began_ns) {
            lane.answered(CallAnswer::ServiceAway, call.began_ns, now_ns);
        }
        for (segment, range) in call.segments() {
            let Some(record) = segment.key.and_then(|key| self.table.get_mut(key)) else { continue };
            record.undecided_since_ns.get_or_insert(now_ns);
            record.undecided_at_ns = now_ns;
            let Some(key) = segment.key else { continue };
            let events = call.events[range].to_vec();
            self.stats.undecided.add(events.len() as u64);
            self.stats.failed_grants.add(events.len() as u64);
            let undecided = UndecidedEvents { key, failures: segment.failures, events };
            lane.ask_all_again(undecided, now_ns + UNDECIDED_REST_NS);
        }
    }
}
