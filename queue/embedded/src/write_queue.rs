//! The queue in front of the writer: records that producers took and positions that groups committed wait here, within
//! the broker's limits, until the writer takes them.

use super::group::Group;
use super::options::EmbeddedOptions;
use super::pending::{PendingRecords, Taken};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// The number of waiting bytes that are written without lingering.
const HURRY_BYTES: usize = 256 << 10;
/// The commits that wait: topic, name of the group and partition → the group, which tells its position at the time of
/// writing. There is one entry per partition, so the map is bounded.
pub(super) type Commits = BTreeMap<(u32, Box<str>, u32), Arc<Group>>;

const QUIET: u8 = 0;
const SOMETHING: u8 = 1;
const HURRY: u8 = 2;

/// How producers, consumers and the broker hand work to the writer.
pub(super) struct WriteQueue {
    level: AtomicU8,
    bytes: AtomicUsize,
    records: AtomicUsize,
    waiting: Mutex<Waiting>,
    wake: Condvar,
    commits_done: watch::Sender<u64>,
    failure: OnceLock<String>,
}

/// The work that waits for the writer.
#[derive(Default)]
struct Waiting {
    stopping: bool,
    producers: Vec<Arc<PendingRecords>>,
    commits: Commits,
    commits_asked: u64,
}

/// The work that one pass writes.
#[derive(Default)]
pub(super) struct Work {
    pub(super) taken: Vec<(Arc<PendingRecords>, Taken)>,
    pub(super) commits: Commits,
    pub(super) commits_asked: u64,
    pub(super) stopping: bool,
}

impl WriteQueue {
    pub(super) fn new() -> Self {
        Self {
            level: AtomicU8::new(QUIET),
            bytes: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            waiting: Mutex::default(),
            wake: Condvar::new(),
            commits_done: watch::Sender::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Why the broker writes no more; `None` while it does.
    pub(super) fn failed(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    pub(super) fn register(&self, producer: Arc<PendingRecords>) {
        self.waiting.lock().producers.push(producer);
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

    /// Notes that there is something to write, after the linger.
    pub(super) fn wake_soon(&self) {
        self.raise(if self.bytes.load(Ordering::Relaxed) >= HURRY_BYTES { HURRY } else { SOMETHING });
    }

    /// Notes that there is something to write at once.
    pub(super) fn wake_now(&self) {
        self.raise(HURRY);
    }

    fn raise(&self, level: u8) {
        // Pairs with the fence in `next`: either this sees the writer's reset, or the writer sees the record.
        fence(Ordering::SeqCst);
        if self.level.load(Ordering::SeqCst) < level && self.level.fetch_max(level, Ordering::SeqCst) < level
        {
            drop(self.waiting.lock());
            self.wake.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        self.waiting.lock().stopping = true;
        self.wake_now();
        self.wake.notify_one();
    }

    /// Has commits written, and waits until they are.
    pub(super) async fn commit(&self, topic: u32, group: &Arc<Group>, moved: &[u32]) -> Result<(), String> {
        let mut done = self.commits_done.subscribe();
        let asked = {
            let mut waiting = self.waiting.lock();
            for partition in moved {
                waiting.commits.insert((topic, group.name().into(), *partition), Arc::clone(group));
            }
            // Nothing new may still mean that an earlier, cancelled commit of the same is on its way.
            if !moved.is_empty() {
                waiting.commits_asked += 1;
            }
            waiting.commits_asked
        };
        if !moved.is_empty() {
            self.wake_soon();
        }
        // The sender lives in `self`, so the wait cannot find it gone.
        if done.wait_for(|done| *done >= asked).await.is_err() {
            return Err("the broker is gone".into());
        }
        self.failed().map_or(Ok(()), Err)
    }

    /// Waits for work, lingers for more, and takes it.
    pub(super) fn next(&self, linger: Duration) -> Work {
        let mut waiting = self.waiting.lock();
        while self.level.load(Ordering::SeqCst) == QUIET && !waiting.stopping {
            self.wake.wait(&mut waiting);
        }
        if self.level.load(Ordering::SeqCst) < HURRY && !waiting.stopping && !linger.is_zero() {
            self.wake.wait_for(&mut waiting, linger);
        }
        self.level.store(QUIET, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (over, producers) =
            std::mem::take(&mut waiting.producers).into_iter().partition(|producer| producer.is_over());
        waiting.producers = producers;
        let producers = waiting.producers.clone();
        let mut work = Work {
            commits: std::mem::take(&mut waiting.commits),
            commits_asked: waiting.commits_asked,
            stopping: waiting.stopping,
            taken: Vec::new(),
        };
        drop(waiting);
        // The last owner of a sink may own handles whose drop comes back here for the waiting.
        drop::<Vec<_>>(over);
        for producer in producers {
            if let Some(taken) = producer.take() {
                work.taken.push((producer, taken));
            }
        }
        work
    }

    /// Tells the callers of the first `asked` commits that these were tried; [`Self::failed`] says whether they failed.
    pub(super) fn tell_committed(&self, asked: u64) {
        self.commits_done.send_replace(asked);
    }

    /// Notes a failure, after which the broker writes no more. The first failure is the one that is reported.
    pub(super) fn fail(&self, what: &str) {
        self.failure.get_or_init(|| what.to_owned());
    }
}
