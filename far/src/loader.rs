//! From the far tier into the slot store, ahead of time.

use crate::compactor::read_failed;
use crate::entry::{Batch, BatchOf, Entry, Push};
use crate::fail_points::FailPoint;
use crate::merge::{MergedRows, Rows};
use crate::replay::log_failed;
use crate::row::{FarTask, Row, RowKey, hour_of};
use crate::segment::SegmentRows;
use crate::tier::{FarTier, due_ms};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::due::{FarRecord, LoadBatch, Loaded, Route, SlotMinute, SlotStore, StoreError};

/// The tasks of a batch at most, and the bytes of their payloads from which on it is full.
const BATCH_TASKS_MAX: usize = 1_000;
const BATCH_BYTES: usize = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// Where the loader stands in an hour.
pub(crate) struct Reading {
    hour: u32,
    rows: MergedRows,
    /// A row that was read and belongs to the next batch.
    ahead: Option<(RowKey, Row)>,
}

/// What a batch is, its shard, and its tasks.
type NextBatch = (BatchOf, u16, Vec<FarRecord>);

impl FarTier {
    /// Loads tasks ahead of their time, and writes and merges segments, for ever, from the moment on that these are open. One caller at a time; dropped at any
    /// moment, it goes on where it stood when it is called again.
    pub async fn run(&self, near: Arc<dyn SlotStore>) {
        self.until_open().await;
        tokio::join!(self.compact_always(), self.load_always(&*near));
    }

    async fn load_always(&self, near: &dyn SlotStore) {
        let mut reading = None;
        loop {
            match self.load_turn(near, &mut reading).await {
                Ok(0) => {
                    tokio::select! {
                        () = self.0.wake.notified() => {}
                        () = tokio::time::sleep(LOOK_EVERY) => {}
                    }
                }
                Ok(tasks) => {
                    let tasks = u64::try_from(tasks).unwrap_or(u64::MAX);
                    let pause_us = tasks.saturating_mul(1_000_000) / self.0.options.load_per_s;
                    tokio::time::sleep(Duration::from_micros(pause_us)).await;
                }
                Err(error) => {
                    reading = None;
                    tracing::warn!(%error, "the far tier cannot load tasks; it tries again");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// One step. Returns how much of the rate it took: 0 where nothing is left to do for now.
    pub(crate) async fn load_turn(
        &self,
        near: &dyn SlotStore,
        reading: &mut Option<Reading>,
    ) -> Result<usize, StoreError> {
        let in_doubt = self.0.state.lock().figures.batch;
        if let Some(batch) = in_doubt {
            // That it was begun may not be on the disk yet: the sync has failed, or the process died before it.
            self.blocking(|inner| inner.log.sync(inner.log.end())).await?.map_err(log_failed)?;
            let records = self.records_of(&batch).await?;
            return self.send(near, batch, records).await;
        }
        let pushed = self.0.state.lock().figures.pushes.first().cloned();
        if let Some((key, push)) = pushed {
            let batch = self.begin(key.shard, BatchOf::Push(key)).await?;
            return self.send(near, batch, vec![push_record(key, push)]).await;
        }
        self.close_hours().await?;
        let hour = self.0.state.lock().hour_to_load();
        let Some(hour) = hour else { return Ok(0) };
        // Where this is dropped or fails, nothing is taken for read.
        let (next, read_on) = self.next_batch(hour, reading.take()).await?;
        match next {
            Some((what, shard, records)) => {
                let batch = self.begin(shard, what).await?;
                let sent = self.send(near, batch, records).await?;
                *reading = Some(read_on);
                Ok(sent)
            }
            None => {
                self.end_hour(hour).await?;
                self.die_at(FailPoint::HourOver)?;
                Ok(1)
            }
        }
    }

    /// Closes the hours whose time to be loaded has come.
    async fn close_hours(&self) -> Result<(), StoreError> {
        let ahead_ms = self.0.clock.unix_ms().saturating_add(self.0.options.horizon_ms / 2);
        let hour = hour_of(SlotMinute::of(ahead_ms));
        if self.0.state.lock().is_closed(hour) {
            return Ok(());
        }
        self.note(Entry::Close(hour)).await?;
        self.die_at(FailPoint::Closed)
    }

    /// Notes that a batch is about to be sent: synced, because the slot store may outlive this machine, and would pass
    /// over another batch of the same number.
    async fn begin(&self, shard: u16, what: BatchOf) -> Result<Batch, StoreError> {
        let begun = self.blocking(move |inner| {
            let (batch, end) = {
                let mut state = inner.state.lock();
                // A turn that was dropped may still run to here, behind the next turn.
                if state.figures.batch.is_some() || !state.is_next(what) {
                    return Err(StoreError::Unavailable("another batch has been begun meanwhile".into()));
                }
                let batch = Batch { sequence: state.figures.sequence + 1, shard, what };
                let end = inner.append(&mut state, vec![Entry::Begin(batch)])?;
                (batch, end)
            };
            inner.log.sync(end).map_err(log_failed)?;
            Ok(batch)
        });
        let batch = begun.await??;
        self.die_at(FailPoint::Begun)?;
        Ok(batch)
    }

    /// Notes that an hour is over: synced before its segments may be deleted. A machine that dies, and has it not, would
    /// find some of them, and perhaps a task without its cancel. Where nothing is kept, it is noted that this hour is not:
    /// the next start may keep what is over, and must not show this hour without what was cancelled near.
    async fn end_hour(&self, hour: u32) -> Result<(), StoreError> {
        let ended = self.blocking(move |inner| {
            let mut state = inner.state.lock();
            let is_kept = inner.options.keep_ms > 0;
            let over = if is_kept { Entry::HourOver(hour) } else { Entry::HourGone(hour) };
            let mut frame = BytesMut::new();
            over.encode(&mut frame);
            inner.check_refused()?;
            let end = inner.log.append(&frame).map_err(log_failed)?;
            inner.log.sync(end).map_err(log_failed)?;
            state.apply(over);
            inner.forget_hours(&mut state);
            Ok(())
        });
        ended.await?
    }

    async fn send(
        &self,
        near: &dyn SlotStore,
        batch: Batch,
        records: Vec<FarRecord>,
    ) -> Result<usize, StoreError> {
        let count = records.len();
        if count > 0 {
            self.check_names(near, &records).await?;
            self.0.check_refused()?;
            let load = LoadBatch { log: self.0.log.id(), sequence: batch.sequence, follows: None, records };
            let loaded = match near.load(batch.shard(), &load).await {
                Ok(Loaded::Other(last)) => Err(went_back(&batch, load.log, last)),
                loaded => loaded,
            };
            if let Err(error) = loaded {
                self.0.counters.load_failed();
                return Err(error);
            }
        }
        self.die_at(FailPoint::Loaded)?;
        self.note(Entry::End(batch.sequence)).await?;
        self.die_at(FailPoint::Ended)?;
        self.0.counters.loaded(count);
        self.0.loaded.send_modify(|times| *times += 1);
        Ok(count.max(1))
    }

    /// Whether the slot store means the same tenants and targets by their numbers. One that was replaced may mean others,
    /// and what one tenant is owed must not go to another.
    async fn check_names(&self, near: &dyn SlotStore, records: &[FarRecord]) -> Result<(), StoreError> {
        let routes: BTreeSet<_> =
            records.iter().map(|record| (record.route.tenant, record.route.target)).collect();
        for (tenant, target) in routes {
            let known = self.0.state.lock().names.get(&(tenant, target)).cloned();
            let Some(known) = known else { continue };
            let there = near.names(Route { tenant, target }).await?;
            if there.as_ref() != Some(&known) {
                self.0.counters.load_failed();
                let what = format!(
                    "the far tier has tasks of {}/{}, and the slot store has {} under their numbers: it is not the one \
                     that these tasks were added beside; bring that one back",
                    known.0,
                    known.1,
                    there.map_or_else(|| "nobody".into(), |(tenant, target)| format!("{tenant}/{target}")),
                );
                return Err(StoreError::Unusable(what));
            }
        }
        Ok(())
    }

    async fn note(&self, entry: Entry) -> Result<(), StoreError> {
        let noted = self.blocking(move |inner| inner.append(&mut inner.state.lock(), vec![entry]));
        noted.await?.map(drop)
    }

    /// The tasks of a batch, again: those of a closed hour change no more.
    async fn records_of(&self, batch: &Batch) -> Result<Vec<FarRecord>, StoreError> {
        let (after, to) = match batch.what {
            BatchOf::Hour { after, to } => (after, to),
            BatchOf::Push(key) => {
                let state = self.0.state.lock();
                let pushed = state.figures.pushes.iter().find(|(of, _)| *of == key);
                return Ok(pushed.map(|(key, push)| push_record(*key, push.clone())).into_iter().collect());
            }
        };
        let mut rows = self.rows(to.hour, after)?;
        let mut records = Vec::new();
        while let Some((key, row)) = rows.next().await.map_err(read_failed)? {
            if key > to {
                break;
            }
            if let Row::Task(task) = row {
                records.push(record(key, task));
            }
        }
        Ok(records)
    }

    /// The next tasks of an hour that go into one shard; `None` where none are left.
    async fn next_batch(
        &self,
        hour: u32,
        reading: Option<Reading>,
    ) -> Result<(Option<NextBatch>, Reading), StoreError> {
        let after = self.0.state.lock().figures.loaded_upto.filter(|loaded| loaded.hour == hour);
        let mut from = match reading.filter(|reading| reading.hour == hour) {
            Some(reading) => reading,
            None => Reading { hour, rows: self.rows(hour, after)?, ahead: None },
        };
        let (mut records, mut bytes, mut last) = (Vec::new(), 0, None);
        loop {
            let next = match from.ahead.take() {
                Some(row) => Some(row),
                None => from.rows.next().await.map_err(read_failed)?,
            };
            let Some((key, row)) = next else { break };
            let Row::Task(task) = row else { continue };
            let is_other = last.is_some_and(|last: RowKey| last.shard != key.shard);
            if is_other || records.len() >= BATCH_TASKS_MAX || bytes >= BATCH_BYTES {
                from.ahead = Some((key, Row::Task(task)));
                break;
            }
            bytes += task.payload.len();
            last = Some(key);
            records.push(record(key, task));
        }
        Ok((last.map(|to| (BatchOf::Hour { after, to }, to.shard, records)), from))
    }

    /// The rows of a closed hour behind `after`; those that were loaded may have been changed near since.
    pub(crate) fn rows(&self, hour: u32, after: Option<RowKey>) -> Result<MergedRows, StoreError> {
        self.rows_upto(hour, after, usize::MAX)
    }

    /// The first rows of an hour behind `after`: `max` of them, or more.
    pub(crate) fn rows_upto(
        &self,
        hour: u32,
        after: Option<RowKey>,
        max: usize,
    ) -> Result<MergedRows, StoreError> {
        let objects = Arc::clone(self.objects()?);
        let start = match after {
            Some(after) => RowKey { number: after.number.saturating_add(1), ..after },
            None => RowKey::first_of(hour),
        };
        let keys = start..RowKey::first_of(hour.saturating_add(1));
        let state = self.0.state.lock();
        let covers = |first: u32, last: u32| (first..=last).contains(&hour);
        let segments =
            state.segments.iter().filter(|segment| covers(segment.meta.first_hour, segment.meta.last_hour));
        let mut sources: Vec<Rows> = segments
            .map(|segment| Rows::Segment(SegmentRows::new(Arc::clone(segment), keys.clone())))
            .collect();
        let sealed = state.sealed.iter().map(|sealed| &*sealed.rows);
        let in_memory = sealed.chain([&state.active]).map(|rows| rows.range(keys.clone(), max).into_iter());
        sources.extend(in_memory.map(Rows::Memory));
        Ok(MergedRows::new(objects, Arc::clone(&self.0.counters), sources))
    }
}

/// The log is older than what the slot store has of it.
fn went_back(batch: &Batch, log: u64, last: u64) -> StoreError {
    let Batch { sequence, shard, .. } = batch;
    StoreError::Unusable(format!(
        "shard {shard} has batch {last} of the far log {log:016x}, which now sends batch {sequence}: the log went back \
         in time"
    ))
}

fn record(key: RowKey, task: FarTask) -> FarRecord {
    let due_ms = due_ms(key.slot(), &task);
    FarRecord { id: key.id(), due_ms, route: task.route, payload: task.payload }
}

fn push_record(key: RowKey, push: Push) -> FarRecord {
    let route = push.route();
    FarRecord { id: key.id(), due_ms: push.due_ms, route, payload: Bytes::from(push.payload) }
}
