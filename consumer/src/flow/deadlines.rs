//! Deadlines: what holds up others goes back, and calls that are not answered are given up.

use super::Flow;
use crate::ask_again::UndecidedEvents;
use crate::grant_calls::GrantCall;
use crate::head_of_line::Scene;
use crate::health::CallAnswer;
use crate::in_flight::{InFlightRecord, Key, Place};
use crate::stats::Cause;
use crate::units::NS_PER_MS;

/// A call that was given up still holds its order numbers for a moment: asked at once, its own repeat would find them busy.
const UNDECIDED_REST_NS: u64 = 50 * NS_PER_MS;

impl Flow {
    /// Looks at the records and calls whose deadline is over.
    pub fn look_at_heads(&mut self, now_ns: u64) {
        let deadline_ns = self.rules.pacing.deadline_ms.saturating_mul(NS_PER_MS);
        let Some(before_ns) = now_ns.checked_sub(deadline_ns) else { return };
        let overdue = self.partitions.take_older(&self.table, before_ns);
        if !overdue.is_empty() {
            let full_windows = self.partitions.full_windows();
            let (go, stay) = Scene {
                table: &self.table,
                lanes: &self.lanes,
                unanswered: self.grants.unanswered(before_ns),
                full_windows,
                is_table_full: self.is_table_full(),
                flows_ns: now_ns - deadline_ns / 2,
                now_ns,
            }
            .split(overdue);
            stay.into_iter().for_each(|key| self.hold_on(key, now_ns));
            self.send_records_back(go, Cause::Deadline, now_ns);
        }
        for call in self.grants.give_up_unanswered(before_ns) {
            self.ask_again_for(&call, now_ns);
        }
    }

    /// Writes back all that is in flight, because the consumer closes.
    pub fn send_all_back(&mut self, now_ns: u64) {
        for key in self.delay_queue.take_all(&self.table) {
            self.send_back(key, Cause::Drain);
        }
        let all = self.partitions.take_older(&self.table, u64::MAX);
        self.send_records_back(all, Cause::Drain, now_ns);
    }

    /// Records that are not due pin the window of their partition until it takes no more: then they go back with their
    /// due time, if a type could flow.
    pub(super) fn unpin_full_windows(&mut self, now_ns: u64) {
        for partition in self.partitions.full_windows() {
            if !self.lanes.can_any_flow(now_ns) {
                return;
            }
            for key in self.table.keys_of(partition) {
                if self.table.get(key).is_some_and(|record| record.place() == Place::DelayQueue) {
                    self.pace.churned(now_ns);
                    self.send_back(key, Cause::NotDue);
                }
            }
        }
    }

    /// Lets the record wait on, for another deadline.
    fn hold_on(&mut self, key: Key, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        record.holds_on(now_ns);
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
                record.becomes_overdue();
                self.send_back(key, cause);
            }
        }
        for at in 0..self.lanes.len() {
            let table = &self.table;
            let is_overdue = |key| table.get(key).is_some_and(InFlightRecord::is_overdue);
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

    /// Asks again for the events of a call that was not answered by the deadline.
    fn ask_again_for(&mut self, call: &GrantCall, now_ns: u64) {
        let lane = &mut self.lanes[call.lane];
        lane.call_ended(call.events.len() as u64, call.is_probe, now_ns);
        if !lane.health().has_decided_since(call.began_ns) {
            lane.answered(CallAnswer::ServiceAway, call.began_ns, now_ns);
        }
        for (segment, range) in call.segments() {
            let Some(key) = segment.key else { continue };
            let Some(record) = self.table.get_mut(key) else { continue };
            record.was_not_decided(false, now_ns);
            let events = call.events[range].to_vec();
            self.stats.undecided.add(events.len() as u64);
            self.stats.failed_grants.add(events.len() as u64);
            let undecided = UndecidedEvents { key, failures: segment.failures, events };
            lane.ask_all_again(undecided, now_ns + UNDECIDED_REST_NS);
        }
    }
}
