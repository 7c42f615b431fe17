//! Records that came in by a key that is destroyed since. What of them is in no grant call is granted no more: it goes to the
//! archive, as a record does that comes after that. // I12

use crate::archive::ArchiveItem;
use crate::in_flight::{InFlightRecord, InFlightTable, Key};
use crate::stats::ConsumerStats;
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

impl KeyGone {
    /// Notes the records in flight that the ring refuses by now.
    pub fn note(&mut self, refused: Vec<(Key, Refused)>) {
        for (key, refused) in refused {
            self.0.entry(key).or_insert(Found { refused, is_archived: false });
        }
    }

    /// Forgets the records that are not in flight any more, and returns the others.
    pub fn in_flight(&mut self, table: &InFlightTable) -> Vec<Key> {
        self.0.retain(|key, _| table.get(*key).is_some());
        self.0.keys().copied().collect()
    }

    /// Whether a record's key is destroyed.
    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// What goes to the archive because events of a record are granted no more: once, the record as it came.
    pub fn archive(
        &mut self,
        key: Key,
        record: &InFlightRecord,
        topic: &str,
        stats: &ConsumerStats,
    ) -> Option<ArchiveItem> {
        let found = self.0.get_mut(&key).filter(|found| !found.is_archived)?;
        let position = record.position;
        let detail = format!(
            "record {topic}/{}/{}: {}; it waited here when that happened, and some of its events may be granted",
            position.partition, position.offset, found.refused
        );
        stats.count_refused(&found.refused);
        found.is_archived = true;
        Some(ArchiveItem::whole(key, record.payload.clone(), Rejection::Unverified, detail))
    }
}
