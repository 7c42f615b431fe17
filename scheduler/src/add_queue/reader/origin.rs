//! Whose adds are taken: each is verified when it is read, and anew when the keys change. // I12
//!
//! A record whose key may become known waits, within bounds, while the keys are read again. What is behind it goes on.

use super::Reader;
use crate::add_queue::lane::{Place, Waiting};
use crate::add_queue::options::{AddQueueOptions, KEY_WAIT, KEY_WAIT_SHARE};
use crate::add_queue::record::signed_parts;
use crate::add_queue::set_aside::Reason;
use crate::add_queue::signatures;
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::Instant;

/// A record that waits for its key.
struct WaitingForKey {
    at: Place,
    record: Bytes,
    /// When it is set aside.
    until: Instant,
}

/// The records of a topic that wait for their keys.
#[derive(Default)]
pub(super) struct WaitingForKeys {
    records: Vec<WaitingForKey>,
    bytes: usize,
}

impl WaitingForKeys {
    fn has_room(&self, bytes: usize, options: &AddQueueOptions) -> bool {
        self.records.len() < options.held_records_max / KEY_WAIT_SHARE
            && self.bytes.saturating_add(bytes) <= options.held_bytes_max / KEY_WAIT_SHARE
    }

    fn push(&mut self, waiting: WaitingForKey) {
        self.bytes += waiting.record.len();
        self.records.push(waiting);
    }

    fn take_where(&mut self, is_taken: impl Fn(&WaitingForKey) -> bool) -> Vec<WaitingForKey> {
        let (taken, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.records).into_iter().partition(is_taken);
        self.records = stay;
        self.bytes -= taken.iter().map(|waiting| waiting.record.len()).sum::<usize>();
        taken
    }

    /// Forgets the records of a partition that belongs to somebody else now; returns their bytes.
    pub fn forget(&mut self, partition: u32) -> usize {
        let gone = self.take_where(|waiting| waiting.at.partition == partition);
        gone.iter().map(|waiting| waiting.record.len()).sum()
    }
}

impl Reader {
    /// Why a record may not come in for want of a signature.
    pub(super) fn check_origin(&self, record: &[u8]) -> Result<(), Reason> {
        signatures::check(self.inner.signatures.as_ref(), &self.topic.name, signed_parts(record))
    }

    /// Lets a record in, lets it wait for its key, or sets it aside. `until` is the end of the time for which it may wait, if
    /// that has begun.
    pub(super) fn sort(&mut self, at: Place, record: Bytes, now: Instant, until: Option<Instant>) {
        match self.judge(&record) {
            Ok((shard, once)) => {
                if self.inner.signatures.is_some() && signed_parts(&record).is_none() {
                    self.inner.stats.unsigned_taken.add(1);
                }
                let waiting = Waiting { at, once, record, refusals: 0, refused_at: None };
                self.lanes.entry(shard).or_default().push(waiting);
            }
            Err(reason) => {
                let until = until.unwrap_or(now + KEY_WAIT);
                let may_wait = matches!(reason, Reason::Unverified { may_become_known: true, .. });
                if may_wait && now < until && self.late.has_room(record.len(), &self.inner.options) {
                    self.late.push(WaitingForKey { at, record, until });
                } else {
                    self.set_aside(at, reason, &record);
                }
            }
        }
    }

    /// Judges anew what waits, when the keys have changed: its key may be there now, or be destroyed. Sets aside what has waited
    /// for its key in vain.
    pub(super) fn look_at_keys(&mut self, now: Instant) {
        let changes = self.inner.signatures.as_ref().map_or(0, |own| own.changes());
        let have_changed = std::mem::replace(&mut self.key_changes, changes) != changes;
        if have_changed {
            self.verify_lanes(now);
        }
        for late in self.late.take_where(|late| have_changed || late.until <= now) {
            self.sort(late.at, late.record, now, Some(late.until));
        }
    }

    /// Records that wait for their shard. Those that are in a call are verified when the call has failed.
    fn verify_lanes(&mut self, now: Instant) {
        let (inner, topic) = (Arc::clone(&self.inner), Arc::clone(&self.topic));
        let is_refused = |waiting: &Waiting| {
            let signed = signed_parts(&waiting.record);
            signatures::check(inner.signatures.as_ref(), &topic.name, signed).is_err()
        };
        let mut refused = Vec::new();
        for lane in self.lanes.values_mut() {
            refused.extend(lane.take_where(is_refused));
        }
        for waiting in refused {
            self.sort(waiting.at, waiting.record, now, None);
        }
    }
}
