//! What leaves otherwise than by a grant: back to a queue, or into the archive.

use super::Flow;
use crate::archive::{ArchiveAnswer, ArchiveEnd, ArchiveItem};
use crate::ask_again::UndecidedEvents;
use crate::in_flight::{InFlightRecord, Key};
use crate::outbox::RetryMetadata;
use crate::retry_state::RetryAnswer;
use crate::stage::{Stage, handles};
use crate::stats::Cause;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::rewards::Rejection;

impl Flow {
    /// Requeues the events of a record that have not been cut yet.
    pub(super) fn send_back(&mut self, key: Key, cause: Cause) {
        let Some(events) = self.cut_rest(key) else { return };
        let Some(record) = self.table.get(key) else { return };
        let is_unknown = cause == Cause::UnknownType;
        let failures = record.failures.saturating_add(u32::from(is_unknown));
        if is_unknown && failures > self.rules.pacing.max_failures {
            return self.archive_events(key, events, Rejection::UnknownType);
        }
        let metadata = RetryMetadata::of(record, self.bonus_type(record), failures, record.not_before_ms());
        self.count_requeued(record.lane, cause, events.len());
        events.iter().for_each(|event| handles(Stage::WriteBack, event));
        events.into_iter().for_each(|event| self.retries.push(&metadata, 0, key, event));
    }

    /// Requeues all that waits in a lane.
    pub(super) fn send_lane_back(&mut self, at: usize, cause: Cause) {
        for key in self.lanes[at].waiting(&self.table) {
            self.send_back(key, cause);
        }
        for undecided in self.lanes[at].take_undecided(|_| true) {
            self.send_asked_back(at, undecided, cause);
        }
    }

    /// Writes back events that were cut out of their record already.
    pub(super) fn send_asked_back(&mut self, at: usize, asked: UndecidedEvents, cause: Cause) {
        let Some(record) = self.table.get(asked.key) else { return };
        let metadata = RetryMetadata::of(record, Arc::clone(&self.lanes[at].name), asked.failures, 0);
        self.count_requeued(Some(at), cause, asked.events.len());
        asked.events.into_iter().for_each(|event| self.retries.push(&metadata, 0, asked.key, event));
    }

    /// Requeues what waits in lanes that are closed.
    pub(super) fn send_back_closed_lanes(&mut self) {
        for at in 0..self.lanes.len() {
            if let Some(cause) = self.lanes.why_closed(at) {
                self.send_lane_back(at, cause);
            }
        }
    }

    /// Takes in an answer about requeued events.
    pub(super) fn retried(&mut self, answer: RetryAnswer, now_ns: u64) {
        self.retries.take_in(answer, now_ns);
        self.settle_stored();
    }

    pub(super) fn settle_stored(&mut self) {
        for (key, events) in self.retries.take_stored() {
            self.table.settle(key, events);
        }
    }

    /// Takes in the archive's answer.
    pub(super) fn archived(&mut self, ended: ArchiveEnd, now_ns: u64) {
        match self.archive.take_in(ended, &self.table, now_ns) {
            ArchiveAnswer::Archived(items) => items.iter().for_each(|item| self.is_archived(item)),
            ArchiveAnswer::Overdue(items) => items.into_iter().for_each(|item| self.archive_later(item)),
        }
    }

    fn is_archived(&mut self, item: &ArchiveItem) {
        if let Some(lane) = self.table.get(item.key).and_then(|record| record.lane) {
            self.lanes[lane].stats.archived.add(1);
        }
        self.stats.archived.add(1);
        self.table.settle(item.key, 1);
    }

    /// Requeues an item that the archive did not take in time; it is archived when it is delivered again.
    fn archive_later(&mut self, item: ArchiveItem) {
        if item.failed.rejection == Rejection::Unverified {
            return self.archive.push(item);
        }
        let Some(record) = self.table.get(item.key) else { return };
        self.stats.count_requeued(Cause::Deadline, 1);
        if item.is_record {
            return self.retries.push_record(item.key, item.failed.payload);
        }
        let metadata = RetryMetadata::of(record, self.bonus_type(record), item.failures, 0);
        self.retries.push(&metadata, 0, item.key, item.failed.payload);
    }

    /// Archives the events of a record that have not been cut yet.
    pub(super) fn archive_rest(&mut self, key: Key, rejection: Rejection) {
        if let Some(events) = self.cut_rest(key) {
            self.archive_events(key, events, rejection);
        }
    }

    fn archive_events(&mut self, key: Key, events: Vec<Bytes>, rejection: Rejection) {
        let Some(record) = self.table.get(key) else { return };
        let detail = format!("{} failed grants", record.failures);
        for event in events {
            self.archive.push(ArchiveItem::event(key, record.failures, event, rejection, detail.clone()));
        }
    }

    /// Takes what came in by a destroyed key out of the lanes and the delay queue. The answers of calls that have begun are
    /// waited for: what they do not decide is taken out at the next look.
    pub(super) fn refuse_destroyed(&mut self) {
        let keys = self.key_gone.in_flight(&self.table);
        if keys.is_empty() {
            return;
        }
        let mut undecided: BTreeMap<Key, usize> = BTreeMap::new();
        for at in 0..self.lanes.len() {
            for taken in self.lanes[at].take_undecided(|key| self.key_gone.has(key)) {
                *undecided.entry(taken.key).or_default() += taken.events.len();
            }
        }
        for key in keys {
            let uncut = self.cut_rest(key).map_or(0, |events| events.len());
            let events = undecided.remove(&key).unwrap_or(0) + uncut;
            if events > 0 {
                self.archive_destroyed(key, events);
            }
        }
    }

    /// The record goes to the archive as it came. I3: one of its events stays open until that has stored it.
    fn archive_destroyed(&mut self, key: Key, events: usize) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let Some(record) = self.table.get(key) else { return };
        let Some(item) = self.key_gone.archive(key, record, &self.topic, &self.stats) else {
            self.table.settle(key, events);
            return;
        };
        self.archive.push(item);
        self.table.settle(key, events - 1);
    }

    /// Cuts the remaining events of a record, wherever it waits; `None` where none is left.
    fn cut_rest(&mut self, key: Key) -> Option<Vec<Bytes>> {
        self.leave_place(key);
        let record = self.table.get_mut(key).filter(|record| record.uncut() > 0)?;
        let mut events = Vec::with_capacity(record.uncut() as usize);
        // Every record was walked from end to end on arrival, so cutting does not fail.
        record.cut(u32::MAX, &mut events).ok()?;
        Some(events)
    }

    fn bonus_type(&self, record: &InFlightRecord) -> Arc<str> {
        match record.lane {
            Some(lane) => Arc::clone(&self.lanes[lane].name),
            None => record.bonus_type().unwrap_or_default().into(),
        }
    }

    pub(super) fn count_requeued(&self, lane: Option<usize>, cause: Cause, events: usize) {
        if let Some(lane) = lane {
            self.lanes[lane].stats.requeued.add(events as u64);
        }
        self.stats.count_requeued(cause, events as u64);
    }
}
