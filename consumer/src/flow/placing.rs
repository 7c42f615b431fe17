//! Where a record waits: in its lane, in the delay queue until it is due, or nowhere, because it leaves.

use super::Flow;
use crate::hand_over::HandOverEnd;
use crate::in_flight::{Key, Place};
use crate::lanes::Entry;
use crate::record_head::RecordHead;
use crate::stats::Cause;
use windfall_contract::rewards::Rejection;

impl Flow {
    /// Decides where a record waits. Nothing is done with it before it is due: a record that was requeued with a delay
    /// must not spin through the queue.
    pub(super) fn place(&mut self, key: Key, head: &RecordHead<'_>, now_ns: u64, wall_ms: i64) {
        let Some(record) = self.table.get_mut(key) else { return };
        if head.failures > self.rules.pacing.max_failures {
            let is_known = record.lane.is_some();
            self.work_begins(key, now_ns);
            let rejection = if is_known { Rejection::MaxFailures } else { Rejection::UnknownType };
            return self.archive_rest(key, rejection);
        }
        let early_ms = u64::try_from(head.not_before_ms.saturating_sub(wall_ms)).unwrap_or(0);
        if early_ms == 0 {
            return self.is_due(key, now_ns);
        }
        let longest_ms = self.rules.pacing.not_before_ahead_max_ms();
        if early_ms > longest_ms && self.hand_over.takes(record) {
            return self.place_asked_for(key, early_ms, now_ns);
        }
        let early_ms = early_ms.min(longest_ms);
        let latest_ms = wall_ms.saturating_add(i64::try_from(longest_ms).unwrap_or(i64::MAX));
        if record.bring_forward_to(latest_ms) {
            // Only a clock that is ahead sets such a time.
            self.stats.not_before_clamped.add(1);
        }
        // A record that is not due is requeued once at most: a copy waits here, and the fetch waits with it.
        let has_room = self.delay_queue.has_room_for(record, early_ms, &self.rules.pacing);
        if has_room || head.attempt > 0 || !self.lanes.can_any_flow(now_ns) {
            return self.delay_queue.enter(key, record, early_ms, now_ns);
        }
        self.pace.churned(now_ns);
        self.send_back(key, Cause::NotDue);
    }

    /// Places a record whose sender wants it to be granted long after now: beside others that are not due, and to be
    /// handed over where it is due later than records wait here. One for which there is no room goes round through its
    /// queue however often, if a type could flow: while nobody takes it, it must not stop what is behind it.
    fn place_asked_for(&mut self, key: Key, early_ms: u64, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        let has_room = self.delay_queue.has_room_for(record, early_ms, &self.rules.pacing);
        if !has_room && self.lanes.can_any_flow(now_ns) {
            self.pace.churned(now_ns);
            return self.send_back(key, Cause::NotDue);
        }
        self.delay_queue.enter(key, record, early_ms, now_ns);
        if self.hand_over.is_long(early_ms) {
            self.hand_over.push(key);
        }
    }

    /// Takes in an answer about records that were handed over.
    pub(super) fn handed_over(&mut self, ended: HandOverEnd, now_ns: u64) {
        for key in self.hand_over.take_in(ended, now_ns) {
            // One that was due meanwhile, or was requeued, is finished by that: its order number credits once.
            let Some(record) = self.table.get(key).filter(|record| record.place() == Place::DelayQueue)
            else {
                continue;
            };
            let events = record.uncut();
            self.leave_place(key);
            self.stats.handed_over.add(events.into());
            // I3: each of its events is stored elsewhere.
            self.table.settle(key, events);
        }
    }

    /// Releases the records that are due.
    pub fn release_due(&mut self, now_ns: u64) {
        while let Some(key) = self.delay_queue.pop_due(&mut self.table, now_ns) {
            self.is_due(key, now_ns);
        }
    }

    /// Puts a record that is due into its lane, or back to a queue where its lane does not take it.
    fn is_due(&mut self, key: Key, now_ns: u64) {
        self.work_begins(key, now_ns);
        let Some(record) = self.table.get_mut(key) else { return };
        record.becomes_due();
        let (lane, events, attempt) = (record.lane, record.uncut(), record.attempt);
        let entry = self.lanes.enter(key, record, now_ns);
        if let (Some(lane), Entry::Waits | Entry::Full(_)) = (lane, entry) {
            self.pace.came(lane, events);
        }
        match entry {
            Entry::Waits if lane.is_some_and(|at| self.lanes.can_flow(at, now_ns)) => {
                self.pace.found_others()
            }
            Entry::Waits => {}
            Entry::Full(cause) => {
                if attempt > 0 {
                    self.pace.came_round(now_ns);
                }
                self.pace.churned(now_ns);
                self.send_back(key, cause);
            }
            Entry::Closed(cause) => self.send_back(key, cause),
        }
    }

    /// From now on the record's age counts towards the head-of-line deadline. A record that is not due has no work of
    /// its own yet, so it is not stuck, however long it waits.
    pub(super) fn work_begins(&mut self, key: Key, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        record.work_begins(now_ns);
        self.partitions.work_begins(record.position.partition, key);
    }

    /// Takes a record out of its lane or the delay queue, wherever it waits.
    pub(super) fn leave_place(&mut self, key: Key) {
        let Some(record) = self.table.get_mut(key) else { return };
        match (record.place(), record.lane) {
            (Place::Lane, Some(at)) => self.lanes[at].forget(record),
            (Place::DelayQueue, _) => self.delay_queue.forget(record),
            _ => {}
        }
        record.moves_to(Place::Gone);
    }
}
