//! From the log into segments, and from small segments into large ones.

use crate::entry::Entry;
use crate::fail_points::FailPoint;
use crate::manifest::{Manifest, PutError};
use crate::merge::{MergedRows, Rows};
use crate::row::RowKey;
use crate::segment::{ReadError, Segment, SegmentRows, SegmentWriter};
use crate::state::Sealed;
use crate::tier::{FarTier, Inner, dead, log_failed, segment_name};
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStoreExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_contract::due::StoreError;

/// Segments of an hour from which on a merge takes them along.
const HOUR_SEGMENTS_MAX: usize = 4;
/// The bytes of a merged segment, from which on another one is begun.
const SEGMENT_BYTES: u64 = 256 << 20;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ERROR_PAUSE: Duration = Duration::from_secs(5);

impl FarTier {
    /// Writes what is in memory into segments, and merges them, for ever. Tasks are written while others are merged.
    pub(crate) async fn compact_always(&self) {
        let flushing = async {
            loop {
                self.paused(self.flush(self.0.options.flush_bytes).await).await;
            }
        };
        let merging = async {
            loop {
                self.paused(self.tidy().await).await;
            }
        };
        tokio::join!(flushing, merging);
    }

    async fn paused(&self, done: Result<(), StoreError>) {
        let pause = match done {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                self.0.counters.objects_failed();
                tracing::warn!(%error, "the far tier cannot write its segments; it tries again");
                ERROR_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }

    /// What is many is merged, what is over is deleted. One caller at a time.
    async fn tidy(&self) -> Result<(), StoreError> {
        self.merge().await?;
        self.drop_over_hours().await
    }

    /// One round of all.
    #[cfg(test)]
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        self.flush(self.0.options.flush_bytes).await?;
        self.tidy().await
    }

    /// Writes a segment where as many bytes are in memory.
    pub(crate) async fn flush(&self, from_bytes: usize) -> Result<(), StoreError> {
        let mut manifest = self.0.manifest.lock().await;
        let sealed = self.blocking(move |inner| inner.seal(from_bytes)).await??;
        let Some(Sealed { rows, end }) = sealed else { return Ok(()) };
        self.die_at(FailPoint::Sealed)?;
        let over_upto = self.0.state.lock().figures.over_upto;
        let mut writer = self.writer();
        for (key, row) in rows.rows().filter(|(key, _)| key.hour > over_upto) {
            writer.push(*key, row).await.map_err(objects_failed)?;
        }
        let segment = writer.finish().await.map_err(objects_failed)?;
        self.die_at(FailPoint::SegmentWritten)?;
        let mut next = manifest.clone();
        next.flushed = end;
        next.segments.extend(segment.iter().map(|segment| segment.meta.clone()));
        self.put(&mut next).await?;
        {
            let mut state = self.0.state.lock();
            let added = segment.into_iter().map(Arc::new);
            state.segments = Arc::new(state.segments.iter().cloned().chain(added).collect());
            state.sealed = None;
        }
        self.0.counters.flushed();
        *manifest = next;
        self.blocking(move |inner| inner.log.forget(end)).await?.map_err(log_failed)
    }

    /// Merges segments with tasks of many hours into segments of one hour each, and those of an hour into one. What is
    /// flushed meanwhile is newer than what this writes.
    pub(crate) async fn merge(&self) -> Result<(), StoreError> {
        let (known, segments, waiting_hours) = {
            // Under this lock the manifest and the list in memory say the same.
            let manifest = self.0.manifest.lock().await;
            let known: BTreeSet<String> = manifest.segments.iter().map(|meta| meta.name.clone()).collect();
            let state = self.0.state.lock();
            let hours: BTreeSet<u32> = state.figures.hours.keys().copied().collect();
            (known, Arc::clone(&state.segments), hours)
        };
        let (removed, by_hour) = self.plan(&segments, &waiting_hours);
        if removed.is_empty() {
            return Ok(());
        }
        let mut written = Vec::new();
        for (hour, sources) in by_hour {
            let rows = |segment| {
                let keys = RowKey::first_of(hour)..RowKey::first_of(hour.saturating_add(1));
                Rows::Segment(SegmentRows::new(segment, keys))
            };
            let sources = sources.into_iter().map(rows).collect();
            let merged = MergedRows::new(Arc::clone(&self.0.objects), Arc::clone(&self.0.counters), sources);
            written.extend(self.write_merged(merged).await?);
        }
        self.die_at(FailPoint::Merged)?;
        let mut manifest = self.0.manifest.lock().await;
        let mut next = manifest.clone();
        let (earlier, later): (Vec<_>, Vec<_>) =
            next.segments.into_iter().partition(|meta| known.contains(&meta.name));
        let stay = earlier.into_iter().filter(|meta| !removed.contains(&meta.name));
        next.segments = stay.chain(written.iter().map(|segment| segment.meta.clone())).chain(later).collect();
        let damaged = damaged(&segments, |segment| removed.contains(&segment.meta.name));
        next.kept.extend(damaged.iter().cloned());
        self.put(&mut next).await?;
        {
            let mut state = self.0.state.lock();
            let (earlier, later): (Vec<_>, Vec<_>) =
                state.segments.iter().cloned().partition(|segment| known.contains(&segment.meta.name));
            let stay = earlier.into_iter().filter(|segment| !removed.contains(&segment.meta.name));
            let all = stay.chain(written.into_iter().map(Arc::new)).chain(later);
            state.segments = Arc::new(all.collect());
        }
        self.0.counters.merged();
        *manifest = next;
        self.delete(removed.into_iter().filter(|name| !damaged.contains(name))).await
    }

    /// Deletes the segments of hours that are over.
    pub(crate) async fn drop_over_hours(&self) -> Result<(), StoreError> {
        let mut manifest = self.0.manifest.lock().await;
        let over_upto = self.0.state.lock().figures.over_upto;
        let is_over = |last_hour: u32| last_hour <= over_upto;
        let over = manifest.segments.iter().filter(|meta| is_over(meta.last_hour));
        let over: Vec<String> = over.map(|meta| meta.name.clone()).collect();
        if over.is_empty() {
            return Ok(());
        }
        let mut next = manifest.clone();
        next.segments.retain(|meta| !is_over(meta.last_hour));
        let segments = Arc::clone(&self.0.state.lock().segments);
        let damaged = damaged(&segments, |segment| is_over(segment.meta.last_hour));
        next.kept.extend(damaged.iter().cloned());
        self.put(&mut next).await?;
        {
            let mut state = self.0.state.lock();
            let kept = state.segments.iter().filter(|segment| !is_over(segment.meta.last_hour)).cloned();
            state.segments = Arc::new(kept.collect());
        }
        *manifest = next;
        self.delete(over.into_iter().filter(|name| !damaged.contains(name))).await
    }

    /// What a merge removes, and what it reads for each hour, the oldest first. What it writes counts as newer than
    /// all that stays: so an hour's segments that stay are older than all that are merged.
    fn plan(&self, segments: &[Arc<Segment>], waiting_hours: &BTreeSet<u32>) -> Plan {
        let mixed = segments.iter().filter(|segment| !segment.meta.is_of_one_hour());
        let is_full_merge = mixed.count() >= self.0.options.merge_segments;
        let first_mixed = segments.iter().position(|segment| !segment.meta.is_of_one_hour());
        let mut own: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.meta.is_of_one_hour())
        {
            own.entry(segment.meta.first_hour).or_default().push(at);
        }
        let mut plan = Plan::default();
        for &hour in waiting_hours {
            let own = own.remove(&hour).unwrap_or_default();
            let is_behind_mixed = |at: &usize| first_mixed.is_some_and(|mixed| *at > mixed);
            let takes_own = match is_full_merge {
                true => own.len() >= HOUR_SEGMENTS_MAX || own.iter().any(is_behind_mixed),
                false => own.len() >= 2 * HOUR_SEGMENTS_MAX,
            };
            if !is_full_merge && !takes_own {
                continue;
            }
            let covers = |at: &usize| {
                let meta = &segments[*at].meta;
                let is_mixed = !meta.is_of_one_hour() && (meta.first_hour..=meta.last_hour).contains(&hour);
                is_mixed || takes_own && own.contains(at)
            };
            let sources: Vec<_> =
                (0..segments.len()).filter(covers).map(|at| Arc::clone(&segments[at])).collect();
            if takes_own {
                plan.0.extend(own.iter().map(|at| segments[*at].meta.name.clone()));
            }
            if !sources.is_empty() {
                plan.1.insert(hour, sources);
            }
        }
        if is_full_merge {
            let mixed = segments.iter().filter(|segment| !segment.meta.is_of_one_hour());
            plan.0.extend(mixed.map(|segment| segment.meta.name.clone()));
        }
        plan
    }

    async fn write_merged(&self, mut merged: MergedRows) -> Result<Vec<Segment>, StoreError> {
        let mut written = Vec::new();
        let mut writer = self.writer();
        while let Some((key, row)) = merged.next().await.map_err(read_failed)? {
            if writer.bytes() >= SEGMENT_BYTES {
                let full = std::mem::replace(&mut writer, self.writer());
                written.extend(full.finish().await.map_err(objects_failed)?);
            }
            writer.push(key, &row).await.map_err(objects_failed)?;
        }
        written.extend(writer.finish().await.map_err(objects_failed)?);
        Ok(written)
    }

    fn writer(&self) -> SegmentWriter {
        let number = self.0.next_segment.fetch_add(1, Ordering::Relaxed);
        SegmentWriter::new(Arc::clone(&self.0.objects), segment_name(number))
    }

    async fn put(&self, manifest: &mut Manifest) -> Result<(), StoreError> {
        let put = manifest.put(&*self.0.objects).await;
        manifest.number = put.map_err(|error| match error {
            PutError::Store(error) => objects_failed(error),
            foreign @ PutError::Foreign(_) => StoreError::Unusable(foreign.to_string()),
        })?;
        self.die_at(FailPoint::ManifestWritten)?;
        Manifest::forget_before(&*self.0.objects, manifest.number).await.map_err(objects_failed)
    }

    /// Deletes objects that no manifest names any more. What stays is deleted at the next start.
    async fn delete(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        for name in names {
            match self.0.objects.delete(&Path::from(name.as_str())).await {
                Ok(()) | Err(ObjectError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(%name, %error, "a segment that is over could not be deleted; the next start deletes it")
                }
            }
        }
        Ok(())
    }

    pub(crate) fn die_at(&self, point: FailPoint) -> Result<(), StoreError> {
        if self.0.fail_points.is_dead_at(point) { Err(dead()) } else { Ok(()) }
    }
}

/// The names of the segments that go, and by hour what is read.
type Plan = (BTreeSet<String>, BTreeMap<u32, Vec<Arc<Segment>>>);

impl Inner {
    /// Puts the rows in memory aside, where there are as many bytes of them, and none are aside yet.
    fn seal(&self, from_bytes: usize) -> Result<Option<Sealed>, StoreError> {
        let mut state = self.state.lock();
        if state.sealed.is_none() && !state.active.is_empty() && state.active.bytes() >= from_bytes {
            let end = self.log.begin_part().map_err(log_failed)?;
            // The manifest will say that all before the part is elsewhere: so the part begins with the rest.
            let checkpoint = Entry::Checkpoint(state.figures.clone());
            let written = self.append(&mut state, vec![checkpoint])?;
            self.log.sync(written).map_err(log_failed)?;
            let rows = Arc::new(std::mem::take(&mut state.active));
            state.sealed = Some(Sealed { rows, end });
        }
        Ok(state.sealed.clone())
    }
}

/// The names of those that go and are kept for people.
fn damaged(segments: &[Arc<Segment>], goes: impl Fn(&Segment) -> bool) -> BTreeSet<String> {
    let damaged = segments.iter().filter(|segment| segment.is_damaged() && goes(segment));
    damaged.map(|segment| segment.meta.name.clone()).collect()
}

pub(crate) fn read_failed(error: ReadError) -> StoreError {
    StoreError::Unavailable(format!("a segment of the far tier cannot be read: {error}"))
}

fn objects_failed(error: ObjectError) -> StoreError {
    StoreError::Unavailable(format!("the object store of the far tier: {error}"))
}
