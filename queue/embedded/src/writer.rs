//! The one thread that writes: it gathers what all producers took and what all groups committed into one batch.

use super::cleanup;
use super::ends::EndsFile;
use super::options::EmbeddedOptions;
use super::producer::{ProducerShared, Taken};
use super::storage::ChunkKey;
use super::topic::{Inner, Topic};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use windfall_contract::broker::Delivery;

/// So many waiting bytes are written without lingering.
const HURRY_BYTES: usize = 256 << 10;
/// How often the writer looks whether an earlier memtable has reached its file.
const ROTATE_RETRY: Duration = Duration::from_millis(1);

const QUIET: u8 = 0;
const SOMETHING: u8 = 1;
const HURRY: u8 = 2;

/// How producers, consumers and the broker talk to the writer.
pub(super) struct Signals {
    level: AtomicU8,
    bytes: AtomicUsize,
    records: AtomicUsize,
    desk: Mutex<Desk>,
    wake: Condvar,
    commits_done: watch::Sender<u64>,
    failure: OnceLock<String>,
}

#[derive(Default)]
struct Desk {
    stopping: bool,
    producers: Vec<Arc<ProducerShared>>,
    /// Commits not yet written: topic, group, partition → offset. One entry a partition, so it is bounded.
    commits: BTreeMap<(u32, Arc<str>, u32), u64>,
    commits_asked: u64,
}

/// What one pass writes.
#[derive(Default)]
struct Work {
    taken: Vec<(Arc<ProducerShared>, Taken)>,
    commits: BTreeMap<(u32, Arc<str>, u32), u64>,
    commits_asked: u64,
    stopping: bool,
}

impl Signals {
    pub(super) fn new() -> Self {
        Self {
            level: AtomicU8::new(QUIET),
            bytes: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            desk: Mutex::default(),
            wake: Condvar::new(),
            commits_done: watch::Sender::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Why the broker writes no more, if so.
    pub(super) fn failed(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    pub(super) fn register(&self, producer: Arc<ProducerShared>) {
        self.desk.lock().producers.push(producer);
    }

    /// Reserves room for a record; false where either limit is reached (I9).
    pub(super) fn admit(&self, bytes: usize, options: &EmbeddedOptions) -> bool {
        if self.records.fetch_add(1, Ordering::Relaxed) >= options.max_unreported_records {
            self.records.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > options.max_unreported_bytes {
            self.release(1, bytes);
            return false;
        }
        true
    }

    pub(super) fn release(&self, records: usize, bytes: usize) {
        self.records.fetch_sub(records, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// There is something to write.
    pub(super) fn nudge(&self) {
        self.raise(if self.bytes.load(Ordering::Relaxed) >= HURRY_BYTES { HURRY } else { SOMETHING });
    }

    /// There is something to write, now.
    pub(super) fn hurry(&self) {
        self.raise(HURRY);
    }

    fn raise(&self, level: u8) {
        // Pairs with the fence in `next`: either this sees the writer's reset, or the writer sees the record.
        fence(Ordering::SeqCst);
        if self.level.load(Ordering::SeqCst) < level && self.level.fetch_max(level, Ordering::SeqCst) < level
        {
            drop(self.desk.lock());
            self.wake.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        self.desk.lock().stopping = true;
        self.hurry();
        self.wake.notify_one();
    }

    /// Has commits written, and waits until they are.
    pub(super) async fn commit(&self, topic: u32, group: &str, moved: &[(u32, u64)]) -> Result<(), String> {
        let mut done = self.commits_done.subscribe();
        let asked = {
            let mut desk = self.desk.lock();
            let group: Arc<str> = group.into();
            for (partition, offset) in moved {
                let kept = desk.commits.entry((topic, group.clone(), *partition)).or_insert(*offset);
                *kept = (*kept).max(*offset);
            }
            // Nothing new may still mean that an earlier, cancelled commit of the same is on its way.
            if !moved.is_empty() {
                desk.commits_asked += 1;
            }
            desk.commits_asked
        };
        if !moved.is_empty() {
            self.nudge();
        }
        // The sender lives in `self`, so the wait cannot find it gone.
        if done.wait_for(|done| *done >= asked).await.is_err() {
            return Err("the broker is gone".into());
        }
        self.failed().map_or(Ok(()), Err)
    }

    /// Waits for work, lingers for more, takes it.
    fn next(&self, linger: Duration) -> Work {
        let mut desk = self.desk.lock();
        while self.level.load(Ordering::SeqCst) == QUIET && !desk.stopping {
            self.wake.wait(&mut desk);
        }
        if self.level.load(Ordering::SeqCst) < HURRY && !desk.stopping && !linger.is_zero() {
            self.wake.wait_for(&mut desk, linger);
        }
        self.level.store(QUIET, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (over, producers) =
            std::mem::take(&mut desk.producers).into_iter().partition(|producer| producer.is_over());
        desk.producers = producers;
        let producers = desk.producers.clone();
        let mut work = Work {
            commits: std::mem::take(&mut desk.commits),
            commits_asked: desk.commits_asked,
            stopping: desk.stopping,
            taken: Vec::new(),
        };
        drop(desk);
        // The last owner of a sink may own handles whose drop comes back here for the desk.
        drop::<Vec<_>>(over);
        for producer in producers {
            if let Some(taken) = producer.take() {
                work.taken.push((producer, taken));
            }
        }
        work
    }
}

/// The writer thread's own state.
pub(super) struct Writer {
    inner: Arc<Inner>,
    ends: EndsFile,
    /// Written to memory since the last rotation.
    memtable_bytes: u64,
    /// The last clean-up left something that may go.
    unclean: bool,
}

impl Writer {
    pub(super) fn new(inner: Arc<Inner>, ends: EndsFile) -> Self {
        Self { inner, ends, memtable_bytes: 0, unclean: true }
    }

    /// Writes until the broker stops and everything taken is written.
    pub(super) fn run(mut self) {
        loop {
            let work = self.inner.signals.next(self.inner.options.linger);
            let idle = work.taken.is_empty() && work.commits.is_empty();
            if work.stopping && idle {
                return;
            }
            let stored = self.inner.signals.failed().map_or_else(
                || {
                    // The thread must live on to answer everybody, even where fjall asserts.
                    catch_unwind(AssertUnwindSafe(|| self.write(&work)))
                        .unwrap_or_else(|_| Err("the write stopped at an impossible value".into()))
                },
                Err,
            );
            if let Err(what) = &stored {
                tracing::error!(place = %self.inner.place, what, "the broker cannot write any more");
                // Set once: the first failure is the one to report.
                self.inner.signals.failure.get_or_init(|| what.clone());
            }
            let committed = !work.commits.is_empty();
            self.report(work, &stored);
            if stored.is_ok() && (committed || self.unclean) {
                self.clean();
            }
        }
    }

    fn write(&mut self, work: &Work) -> Result<(), String> {
        let storage = &self.inner.storage;
        let chunks = work.taken.iter().map(|(_, taken)| taken.chunks.len()).sum::<usize>();
        let mut batch = storage.batch(chunks + work.commits.len());
        let mut ends: BTreeMap<(u32, u32), (u64, &Arc<Topic>)> = BTreeMap::new();
        let mut bytes = 0u64;
        for (producer, taken) in &work.taken {
            let topic = &producer.topic;
            for (partition, count, chunk) in &taken.chunks {
                let (end, _) =
                    ends.entry((topic.id, *partition)).or_insert_with(|| (topic.end(*partition), topic));
                let at = ChunkKey { topic: topic.id, partition: *partition, base: *end };
                storage.put_chunk(&mut batch, at, chunk.clone());
                *end += u64::from(*count);
                bytes += chunk.len() as u64;
            }
        }
        for ((topic, group, partition), offset) in &work.commits {
            storage.put_commit(&mut batch, *topic, group, (*partition, *offset));
        }
        batch.commit().map_err(|error| error.to_string())?;
        if !ends.is_empty() {
            let written = ends.iter().map(|(place, (end, _))| (*place, *end));
            self.ends.raise(written).map_err(|error| format!("the file of ends: {error}"))?;
        }
        for ((_, partition), (end, topic)) in &ends {
            if let Some(partition) = topic.partition(*partition) {
                partition.end.store(*end, Ordering::Release);
            }
        }
        self.rotate(bytes)
    }

    /// Keeps what is in memory within bounds, by waiting for the disk if need be.
    fn rotate(&mut self, bytes: u64) -> Result<(), String> {
        self.memtable_bytes += bytes;
        if self.memtable_bytes < self.inner.options.memtable_bytes {
            return Ok(());
        }
        while !self.inner.storage.rotate().map_err(|error| error.to_string())? {
            std::thread::sleep(ROTATE_RETRY);
        }
        self.memtable_bytes = 0;
        Ok(())
    }

    fn report(&self, work: Work, stored: &Result<(), String>) {
        let signals = &self.inner.signals;
        // After a failed write the journal may or may not hold the batch.
        let delivery = stored.clone().map_or_else(Delivery::Unknown, |()| Delivery::Stored);
        let mut topics: BTreeMap<u32, Arc<Topic>> = BTreeMap::new();
        for (producer, taken) in work.taken {
            topics.entry(producer.topic.id).or_insert_with(|| producer.topic.clone());
            signals.release(taken.records, taken.bytes);
            producer.report(&delivery);
        }
        for topic in topics.values() {
            topic.wake_readers();
        }
        signals.commits_done.send_replace(work.commits_asked);
    }

    /// Deletes a bounded part of what every group is done with.
    fn clean(&mut self) {
        match cleanup::step(&self.inner) {
            Ok(step) => {
                self.unclean = step == cleanup::Step::More;
                if self.unclean {
                    self.inner.signals.nudge();
                }
            }
            Err(error) => {
                tracing::warn!(place = %self.inner.place, %error, "finished records could not be deleted")
            }
        }
    }
}
