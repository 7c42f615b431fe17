//! From the log into segments, and from small segments into large ones.

use crate::add::LOG_BYTES_FACTOR;
use crate::entry::Entry;
use crate::fail_points::FailPoint;
use crate::manifest::{Manifest, PutError, list};
use crate::merge::{MergedRows, Rows};
use crate::replay::log_failed;
use crate::row::{RowKey, hour_of};
use crate::segment::{ReadError, Segment, SegmentRows, SegmentWriter};
use crate::state::{Sealed, State};
use crate::tier::{FarTier, Inner, SEGMENTS, dead, segment_name};
use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStoreExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_contract::due::{SlotMinute, StoreError};

/// Segments of an hour from which on a merge takes them along.
const HOUR_SEGMENTS: usize = 4;
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
                self.0.has_orphans.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "the far tier cannot write its segments; it tries again");
                ERROR_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }

    /// What is many is merged, what is over is deleted. One caller at a time.
    async fn tidy(&self) -> Result<(), StoreError> {
        // First: where the object store is away, the rest fails.
        self.0.forget_hours(&mut self.0.state.lock());
        self.merge().await?;
        self.drop_over_hours().await?;
        self.drop_orphans().await
    }

    /// One round of all.
    #[cfg(test)]
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        self.flush(self.0.options.flush_bytes).await?;
        self.tidy().await
    }

    /// Writes a segment where as many bytes are in memory.
    pub(crate) async fn flush(&self, from_bytes: usize) -> Result<(), StoreError> {
        // No part is begun for which no segment can be written.
        self.objects()?;
        self.0.check_refused()?;
        if self.0.log.has_failed() {
            // No part is begun behind a failed write while no manifest can follow: until then both count.
            self.check_is_last().await?;
        }
        let mut manifest = self.0.manifest.lock().await;
        let sealed = self.blocking(move |inner| inner.seal(from_bytes)).await??;
        let Some(Sealed { rows, end, is_anew }) = sealed else { return Ok(()) };
        self.die_at(FailPoint::Sealed)?;
        let dropped_upto = self.0.state.lock().dropped_upto();
        let mut writer = self.writer()?;
        for (key, row) in rows.rows().filter(|(key, _)| key.hour > dropped_upto) {
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
        if is_anew {
            self.0.log.go_on_from(end);
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
            let mut hours: BTreeSet<u32> = state.figures.hours.keys().copied().collect();
            hours.extend(state.kept_hours());
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
            let merged = MergedRows::new(Arc::clone(self.objects()?), Arc::clone(&self.0.counters), sources);
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

    /// Deletes the segments of hours that are over, when they have been kept for long enough.
    pub(crate) async fn drop_over_hours(&self) -> Result<(), StoreError> {
        let mut manifest = self.0.manifest.lock().await;
        let gone_upto = self.0.forget_hours(&mut self.0.state.lock());
        let is_over = |last_hour: u32| last_hour <= gone_upto;
        let over = manifest.segments.iter().filter(|meta| is_over(meta.last_hour));
        let over: Vec<String> = over.map(|meta| meta.name.clone()).collect();
        if over.is_empty() {
            return Ok(());
        }
        let mut next = manifest.clone();
        next.segments.retain(|meta| !is_over(meta.last_hour));
        let segments = Arc::clone(&self.0.state.lock().segments);
        let mut damaged = damaged(&segments, |segment| is_over(segment.meta.last_hour));
        // What could not be opened may have tasks all the same.
        let is_open = |name: &String| segments.iter().any(|segment| segment.meta.name == *name);
        damaged.extend(over.iter().filter(|name| !is_open(name)).cloned());
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

    /// Deletes segments that no manifest names: those of a crash, and of attempts that failed. Not beside a merge.
    pub(crate) async fn drop_orphans(&self) -> Result<(), StoreError> {
        // Under this lock nothing is flushed.
        let manifest = self.0.manifest.lock().await;
        // A manifest that may be there may name more than the one that is known to be there.
        let may_be_named = self.0.is_in_doubt.load(Ordering::Relaxed);
        if may_be_named || !self.0.has_orphans.load(Ordering::Relaxed) {
            return Ok(());
        }
        let metas = manifest.segments.iter().map(|meta| &*meta.name);
        let named: BTreeSet<&str> = metas.chain(manifest.kept.iter().map(|name| &**name)).collect();
        let objects = self.objects()?;
        let all = list(&**objects, SEGMENTS).await.map_err(objects_failed)?;
        for path in all.iter().filter(|path| path.as_ref().ends_with(".far")) {
            if !named.contains(path.as_ref()) {
                objects.delete(path).await.map_err(objects_failed)?;
            }
        }
        self.0.has_orphans.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// What a merge removes, and what it reads for each hour, the oldest first. What it writes counts as newer than
    /// all that stays: so nothing that it reads is older than a segment of the same hour that stays.
    fn plan(&self, segments: &[Arc<Segment>], waiting_hours: &BTreeSet<u32>) -> Plan {
        let is_mixed = |at: &usize| !segments[*at].meta.is_of_one_hour();
        let mixed: Vec<usize> = (0..segments.len()).filter(is_mixed).collect();
        let is_full_merge = mixed.len() >= self.0.options.merge_segments;
        let mut own: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for at in (0..segments.len()).filter(|at| !is_mixed(at)) {
            own.entry(segments[at].meta.first_hour).or_default().push(at);
        }
        let sizes = |own: &[usize]| own.iter().map(|at| segments[*at].meta.bytes).collect::<Vec<_>>();
        let mut plan = Plan::default();
        for &hour in waiting_hours {
            let own = own.remove(&hour).unwrap_or_default();
            let mut sources = match (is_full_merge, mixed.first(), mixed.last()) {
                (true, Some(first), _) => {
                    let behind_mixed = own.partition_point(|at| at < first);
                    own[small_from(&sizes(&own), HOUR_SEGMENTS).min(behind_mixed)..].to_vec()
                }
                // Tasks of many hours are left alone, so only what is newer than all of them may be taken.
                (_, _, last) => {
                    let own = &own[last.map_or(0, |last| own.partition_point(|at| at < last))..];
                    own[small_from(&sizes(own), 2 * HOUR_SEGMENTS)..].to_vec()
                }
            };
            plan.0.extend(sources.iter().map(|at| segments[*at].meta.name.clone()));
            if is_full_merge {
                let covers = |at: &&usize| {
                    let meta = &segments[**at].meta;
                    (meta.first_hour..=meta.last_hour).contains(&hour)
                };
                sources.extend(mixed.iter().filter(covers));
                sources.sort_unstable();
            }
            if !sources.is_empty() {
                plan.1.insert(hour, sources.into_iter().map(|at| Arc::clone(&segments[at])).collect());
            }
        }
        if is_full_merge {
            plan.0.extend(mixed.iter().map(|at| segments[*at].meta.name.clone()));
        }
        plan
    }

    async fn write_merged(&self, mut merged: MergedRows) -> Result<Vec<Segment>, StoreError> {
        let mut written = Vec::new();
        let mut writer = self.writer()?;
        loop {
            let next = match merged.next().await {
                Ok(next) => next,
                Err(error) => {
                    writer.abort().await;
                    return Err(read_failed(error));
                }
            };
            let Some((key, row)) = next else { break };
            if writer.bytes() >= SEGMENT_BYTES {
                let full = std::mem::replace(&mut writer, self.writer()?);
                written.extend(full.finish().await.map_err(objects_failed)?);
            }
            writer.push(key, &row).await.map_err(objects_failed)?;
        }
        written.extend(writer.finish().await.map_err(objects_failed)?);
        Ok(written)
    }

    fn writer(&self) -> Result<SegmentWriter, StoreError> {
        let number = self.0.next_segment.fetch_add(1, Ordering::Relaxed);
        Ok(SegmentWriter::new(Arc::clone(self.objects()?), segment_name(self.0.run, number)))
    }

    async fn put(&self, manifest: &mut Manifest) -> Result<(), StoreError> {
        let objects = self.objects()?;
        // What is left of hours that are not kept may be without its cancels from now on.
        manifest.gone_upto = manifest.gone_upto.max(Some(self.0.state.lock().gone_upto));
        self.0.is_in_doubt.store(true, Ordering::Relaxed);
        let put = manifest.put(&**objects).await;
        manifest.number = put.map_err(|error| match error {
            PutError::Store(error) => objects_failed(error),
            foreign @ PutError::Foreign(_) => {
                self.0.refuse(foreign.to_string());
                StoreError::Unusable(foreign.to_string())
            }
        })?;
        self.0.is_in_doubt.store(false, Ordering::Relaxed);
        {
            let mut state = self.0.state.lock();
            state.gone_for_good_upto = state.gone_for_good_upto.max(manifest.gone_upto.unwrap_or_default());
        }
        self.die_at(FailPoint::ManifestWritten)?;
        // The manifest counts whatever becomes of those before it: a caller that took this for a failure would go on with
        // an older one, and delete what the durable one names.
        if let Err(error) = Manifest::forget_before(&**objects, manifest.number).await {
            tracing::warn!(%error, "earlier manifests of the far tier could not be deleted; the next one deletes them");
        }
        Ok(())
    }

    /// Deletes objects that no manifest names any more. What stays is deleted at the next start.
    async fn delete(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        let objects = self.objects()?;
        for name in names {
            match objects.delete(&Path::from(name.as_str())).await {
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
    /// The last hour whose rows need not be kept any more, where those up to `over_upto` are near.
    pub(crate) fn hours_to_forget(&self, over_upto: u32) -> u32 {
        if self.options.keep_ms == 0 {
            return over_upto;
        }
        let kept_from_ms = self.clock.unix_ms().saturating_sub(self.options.keep_ms);
        hour_of(SlotMinute::of(kept_from_ms)).saturating_sub(1).min(over_upto)
    }

    /// Lets go of the rows that need not be kept any more, and says of which hours; among them may be hours of which
    /// nothing was kept by earlier options.
    pub(crate) fn forget_hours(&self, state: &mut State) -> u32 {
        state.forget_upto(self.hours_to_forget(state.figures.over_upto));
        state.dropped_upto()
    }

    /// Puts the rows in memory aside, where there are as many bytes of them, or the log is long, and none are aside yet.
    fn seal(&self, from_bytes: usize) -> Result<Option<Sealed>, StoreError> {
        let mut state = self.state.lock();
        let is_full = !state.active.is_empty() && state.active.bytes() >= from_bytes;
        let flush_bytes = u64::try_from(self.options.flush_bytes).unwrap_or(u64::MAX);
        let is_long = self.log.part_bytes() >= flush_bytes.saturating_mul(LOG_BYTES_FACTOR);
        if state.sealed.is_none() && self.log.has_failed() {
            // What is in memory is all that was taken, acknowledged or not.
            let frames: Vec<Bytes> = state.checkpoint().iter().map(frame_of).collect();
            let end = self.log.begin_anew(&frames).map_err(log_failed)?;
            let rows = Arc::new(std::mem::take(&mut state.active));
            state.sealed = Some(Sealed { rows, end, is_anew: true });
        } else if state.sealed.is_none() && (is_full || is_long) {
            let end = self.log.begin_part().map_err(log_failed)?;
            // The manifest will say that all before the part is elsewhere: so the part begins with the rest.
            for entry in state.checkpoint() {
                let written = self.append_always(&mut state, vec![entry])?;
                self.log.sync(written).map_err(log_failed)?;
            }
            let rows = Arc::new(std::mem::take(&mut state.active));
            state.sealed = Some(Sealed { rows, end, is_anew: false });
        }
        Ok(state.sealed.clone())
    }
}

fn frame_of(entry: &Entry) -> Bytes {
    let mut frame = BytesMut::new();
    entry.encode(&mut frame);
    frame.freeze()
}

/// From where on the segments of an hour are merged into one: the last ones, from so many on, as far as none is larger
/// than all behind it. So a row is written again as often as its hour doubles, and what is large stays.
fn small_from(sizes: &[u64], count: usize) -> usize {
    let (mut from, mut behind) = (sizes.len(), 0);
    for (place, bytes) in sizes.iter().enumerate().rev() {
        if *bytes >= SEGMENT_BYTES / 2 {
            break;
        }
        if sizes.len() - place >= count && *bytes <= behind {
            from = place;
        }
        behind += bytes;
    }
    from
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour of any size has few segments that are not full, and none of its bytes is written again and again.
    #[test]
    fn an_hour_that_grows_is_written_again_as_often_as_it_doubles() {
        for (piece, merges) in [(75_000_u64, 10_000_u64), (16 << 20, 1_000)] {
            let (mut sizes, mut written) = (Vec::new(), 0);
            for merge in 1..=merges {
                let from = small_from(&sizes, HOUR_SEGMENTS);
                let mut bytes: u64 = piece + sizes.drain(from..).sum::<u64>();
                written += bytes;
                while bytes > SEGMENT_BYTES {
                    sizes.push(SEGMENT_BYTES);
                    bytes -= SEGMENT_BYTES;
                }
                sizes.push(bytes);
                let small = sizes.iter().filter(|bytes| **bytes < SEGMENT_BYTES / 2).count();
                assert!(small <= 7 + usize::try_from(merge.ilog2()).unwrap(), "{merge}: {sizes:?}");
            }
            assert!(written <= 10 * piece * merges, "{} times", written / (piece * merges));
            let full = sizes.iter().filter(|bytes| **bytes >= SEGMENT_BYTES / 2).count();
            assert!(full as u64 <= 1 + 2 * piece * merges / SEGMENT_BYTES, "{full} are full");
        }
    }
}
