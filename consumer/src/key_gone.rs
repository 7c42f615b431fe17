//! Records that came in by a key that is destroyed since. What of them is in no grant call is granted no more: it goes to the
//! archive, as a record does that comes after that. // I12

use crate::archive::ArchiveItem;
use crate::flow::Flow;
use crate::in_flight::Key;
use std::collections::BTreeMap;
use windfall_contract::rewards::Rejection;
use windfall_signing::Refused;

/// The records in flight whose key is destroyed.
#[derive(Debug, Default)]
pub(crate) struct KeyGone(BTreeMap<Key, Found>);

#[derive(Debug)]
struct Found {
    refused: Refused,
    /// Whether it was sent to the archive. It goes there once, whole.
    is_archived: bool,
}

impl Flow {
    /// Finds the records in flight that the ring refuses by now. Each is verified again, once for each other ring.
    pub fn find_destroyed(&mut self) {
        for (key, refused) in self.table.admitted(|payload| self.entrance.destroyed(payload)) {
            self.key_gone.0.entry(key).or_insert(Found { refused, is_archived: false });
        }
    }

    /// Takes what is to be granted no more out of the lanes and the delay queue. The answers of calls that have begun are
    /// waited for: what they do not decide is taken out at the next look.
    pub fn refuse_destroyed(&mut self) {
        self.key_gone.0.retain(|key, _| self.table.get(*key).is_some());
        if self.key_gone.0.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.key_gone.0);
        let mut left: BTreeMap<Key, usize> = BTreeMap::new();
        for at in 0..self.lanes.len() {
            for undecided in self.lanes[at].take_undecided(|key| found.contains_key(&key)) {
                *left.entry(undecided.key).or_default() += undecided.events.len();
            }
        }
        for (&key, own) in &mut found {
            let uncut = self.cut_rest(key).map_or(0, |events| events.len());
            let events = left.remove(&key).unwrap_or(0) + uncut;
            if events > 0 {
                self.archive_destroyed(key, own, events);
            }
        }
        self.key_gone.0 = found;
    }

    /// The record goes to the archive as it came. I3: one of its events stays open until that has stored it.
    fn archive_destroyed(&mut self, key: Key, found: &mut Found, events: usize) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        if found.is_archived {
            self.table.settle(key, events);
            return;
        }
        let Some(record) = self.table.get(key) else { return };
        let (position, payload) = (record.position, record.payload.clone());
        let detail = format!(
            "record {}/{}/{}: {}; it waited here when that happened, and some of its events may be granted",
            self.topic, position.partition, position.offset, found.refused
        );
        self.stats.count_refused(&found.refused);
        self.archive.push(ArchiveItem::whole(key, payload, Rejection::Unverified, detail));
        found.is_archived = true;
        self.table.settle(key, events - 1);
    }
}
