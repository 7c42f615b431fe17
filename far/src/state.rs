//! What of the far tier is in memory: rows that are in no segment yet, and a few figures for each hour.

use crate::entry::{BatchOf, Checkpoint, Entry, Hour, Named};
use crate::row::{Row, RowKey};
use crate::segment::Segment;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::due::FAR_INDEX;

/// About what a row takes in memory beside its payload.
const ROW_BYTES: usize = 112;

/// The names in one entry; each has two of 64 bytes at most.
const NAMES_MAX: usize = 5_000;

/// Rows that are in no segment yet.
#[derive(Default)]
pub(crate) struct Memtable {
    rows: BTreeMap<RowKey, Row>,
    bytes: usize,
}

/// Rows that are on their way into a segment.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub rows: Arc<Memtable>,
    /// The position of the log behind them, at which a part begins.
    pub end: u64,
    /// Whether a write had failed in the part before it, and the log waits until these rows are safe.
    pub is_anew: bool,
}

#[derive(Default)]
pub(crate) struct State {
    pub figures: Checkpoint,
    /// What the numbers of routes in the log and in segments stand for: a slot store that was replaced may give them to
    /// others.
    pub names: BTreeMap<(u16, u16), (String, String)>,
    /// Hours of a checkpoint that is read at the moment.
    pub hours: BTreeMap<u32, Hour>,
    pub active: Memtable,
    pub sealed: Option<Sealed>,
    /// The oldest first.
    pub segments: Arc<Vec<Arc<Segment>>>,
    /// The rows of hours up to this one are not kept for a backfill any more, or will not be when they are over. Those
    /// behind it are all there, with all that was changed near.
    pub gone_upto: u32,
    /// As far as the manifest or the log says so. Until then another process may find them in the log again, so it must
    /// find there what was changed near, too.
    pub gone_for_good_upto: u32,
}

impl Memtable {
    pub fn get(&self, key: RowKey) -> Option<&Row> {
        self.rows.get(&key)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> impl Iterator<Item = (&RowKey, &Row)> {
        self.rows.iter()
    }

    /// Copies of the first rows of these keys. Their payloads are shared.
    pub fn range(&self, keys: std::ops::Range<RowKey>, max: usize) -> Vec<(RowKey, Row)> {
        self.rows.range(keys).take(max).map(|(key, row)| (*key, row.clone())).collect()
    }

    fn insert(&mut self, key: RowKey, row: Row) {
        self.bytes += ROW_BYTES + row.payload_bytes();
        if let Some(before) = self.rows.insert(key, row) {
            self.bytes -= ROW_BYTES + before.payload_bytes();
        }
    }

    fn drop_upto(&mut self, hour: u32) {
        if self.rows.first_key_value().is_none_or(|(first, _)| first.hour > hour) {
            return;
        }
        let kept = self.rows.split_off(&RowKey::first_of(hour.saturating_add(1)));
        let dropped = std::mem::replace(&mut self.rows, kept);
        self.bytes -= dropped.values().map(|row| ROW_BYTES + row.payload_bytes()).sum::<usize>();
    }
}

impl State {
    pub fn memory_bytes(&self) -> usize {
        self.active.bytes + self.sealed.as_ref().map_or(0, |sealed| sealed.rows.bytes)
    }

    /// The row as it is in memory, where it is.
    pub fn in_memory(&self, key: RowKey) -> Option<&Row> {
        let sealed = || self.sealed.as_ref().and_then(|sealed| sealed.rows.get(key));
        self.active.get(key).or_else(sealed)
    }

    /// Whether the slot store has the task, if there is one: asking it is all that can be done.
    pub fn is_near(&self, key: RowKey) -> bool {
        let figures = &self.figures;
        let is_loaded = || {
            figures.loaded_upto.is_some_and(|loaded| key <= loaded) || !figures.hours.contains_key(&key.hour)
        };
        key.hour <= figures.over_upto || self.is_closed(key.hour) && is_loaded()
    }

    /// Whether the slot store has the task, or gets it at this moment.
    pub fn may_be_near(&self, key: RowKey) -> bool {
        let is_sent = |what| match what {
            BatchOf::Hour { after, to } => {
                key.hour == to.hour && key <= to && after.is_none_or(|after| key > after)
            }
            BatchOf::Push(of) => key == of,
        };
        self.is_near(key) || self.figures.batch.is_some_and(|batch| is_sent(batch.what))
    }

    /// The first hour that has tasks which are not near, or may get some.
    pub fn first_not_over(&self) -> u32 {
        let open = self.figures.closed_upto.saturating_add(1);
        self.figures.hours.keys().next().map_or(open, |hour| open.min(*hour))
    }

    /// Whether it is near, and nothing of it is on its way there.
    pub fn is_near_for_good(&self, key: RowKey) -> bool {
        self.is_near(key) && !self.is_on_its_way(key)
    }

    /// The hours whose tasks are near as a whole, and whose rows are kept.
    pub fn kept_hours(&self) -> std::ops::RangeInclusive<u32> {
        let first = self.segments.iter().map(|segment| segment.meta.first_hour).min().unwrap_or(u32::MAX);
        first.max(self.gone_upto.saturating_add(1))..=self.figures.over_upto
    }

    /// Whether tasks of this hour change no more.
    pub fn is_closed(&self, hour: u32) -> bool {
        hour <= self.figures.closed_upto
    }

    /// Lets go of the rows of these hours, as far as they are over.
    pub fn forget_upto(&mut self, hour: u32) {
        self.gone_upto = self.gone_upto.max(hour);
        self.active.drop_upto(self.dropped_upto());
    }

    /// The rows of hours up to this one need not be anywhere. Those of an hour that is not over are still to be loaded,
    /// whether a backfill may have them later or not.
    pub fn dropped_upto(&self) -> u32 {
        self.gone_upto.min(self.figures.over_upto)
    }

    pub fn is_on_its_way(&self, key: RowKey) -> bool {
        self.figures.pushes.iter().any(|(of, _)| *of == key)
    }

    /// Whether what such a batch has is not near yet, and nothing before it is left out.
    pub fn is_next(&self, what: BatchOf) -> bool {
        match what {
            BatchOf::Hour { after, to } => {
                let loaded = self.figures.loaded_upto.filter(|loaded| loaded.hour == to.hour);
                loaded == after && to.hour > self.figures.over_upto
            }
            BatchOf::Push(key) => self.is_on_its_way(key),
        }
    }

    /// The hour whose tasks are to be loaded next.
    pub fn hour_to_load(&self) -> Option<u32> {
        let first = self.figures.hours.keys().next().copied();
        first.filter(|hour| self.is_closed(*hour))
    }

    /// The number of the next task of an hour; `None` where all are taken.
    pub fn next_number(&self, hour: u32) -> Option<u32> {
        let next = self.figures.hours.get(&hour).map_or(0, |hour| hour.next);
        (next < FAR_INDEX).then_some(next)
    }

    /// All that is neither in rows nor in segments, as entries each of which has room in a frame.
    pub fn checkpoint(&self) -> Vec<Entry> {
        let names: Vec<Named> = self
            .names
            .iter()
            .map(|((tenant, target), names)| Named { tenant: *tenant, target: *target, names: names.clone() })
            .collect();
        let names = names.chunks(NAMES_MAX).map(|part| Entry::Names(part.to_vec()));
        names.chain(self.figures.entries()).collect()
    }

    /// Takes in what the log has.
    pub fn apply(&mut self, entry: Entry) {
        // A crash may have torn a checkpoint off behind some of its hours.
        if !matches!(entry, Entry::Hours(_) | Entry::Checkpoint(_)) {
            self.hours.clear();
        }
        match entry {
            Entry::Add(key, row) => {
                let hour = self.figures.hours.entry(key.hour).or_default();
                hour.next = hour.next.max(key.number + 1);
                *hour.waiting.entry(row.tenant()).or_default() += 1;
                self.active.insert(key, row);
            }
            Entry::Change(key, row) => {
                if !matches!(row, Row::Task(_)) {
                    self.count_out(key, row.tenant());
                }
                self.active.insert(key, row);
            }
            Entry::Push(key, push) => {
                self.count_out(key, push.tenant);
                self.active.insert(key, Row::Moved(push.tenant));
                self.figures.pushes.push((key, push));
            }
            Entry::Close(hour) => self.figures.closed_upto = self.figures.closed_upto.max(hour),
            Entry::Begin(batch) => {
                self.figures.sequence = batch.sequence;
                self.figures.batch = Some(batch);
            }
            Entry::End(sequence) => {
                if let Some(batch) = self.figures.batch.take_if(|batch| batch.sequence == sequence) {
                    match batch.what {
                        BatchOf::Hour { to, .. } => self.figures.loaded_upto = Some(to),
                        BatchOf::Push(key) => self.figures.pushes.retain(|(of, _)| *of != key),
                    }
                }
            }
            Entry::HourOver(hour) => self.end_hour(hour),
            Entry::HourGone(hour) => {
                self.end_hour(hour);
                self.gone_for_good_upto = self.gone_for_good_upto.max(hour);
                self.forget_upto(hour);
            }
            Entry::Names(names) => {
                self.names.extend(names.into_iter().map(|named| ((named.tenant, named.target), named.names)));
            }
            Entry::Hours(hours) => self.hours.extend(hours),
            Entry::Checkpoint(figures) => {
                // A failed write may have taken along the rows that say so, and then they would be loaded twice.
                for (key, push) in &figures.pushes {
                    self.active.insert(*key, Row::Moved(push.tenant));
                }
                self.figures = Checkpoint { hours: std::mem::take(&mut self.hours), ..figures };
            }
        }
    }

    fn end_hour(&mut self, hour: u32) {
        self.figures.over_upto = self.figures.over_upto.max(hour);
        self.figures.hours.retain(|other, _| *other > hour);
    }

    fn count_out(&mut self, key: RowKey, tenant: u16) {
        // It may be changed there again and again. Its hour counts as a whole until it is over.
        if self.is_near(key) {
            return;
        }
        let hour = self.figures.hours.get_mut(&key.hour);
        if let Some(waiting) = hour.and_then(|hour| hour.waiting.get_mut(&tenant)) {
            *waiting = waiting.saturating_sub(1);
        }
    }
}
