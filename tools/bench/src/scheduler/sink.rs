//! A target that notes when what came, and nothing else.

use async_trait::async_trait;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, Target};

/// What is later counts as so late.
const LATE_MAX_MS: u64 = 3_600_000;

/// The target.
pub struct Sink {
    clock: Clock,
    late_ms: Mutex<Histogram<u64>>,
    fired: AtomicU64,
    even: AtomicU64,
    early: AtomicU64,
    last_ms: AtomicU64,
}

impl Sink {
    /// One that has got nothing.
    pub fn new(clock: Clock) -> anyhow::Result<Self> {
        Ok(Self {
            clock,
            late_ms: Mutex::new(Histogram::new_with_bounds(1, LATE_MAX_MS, 3)?),
            fired: AtomicU64::new(0),
            even: AtomicU64::new(0),
            early: AtomicU64::new(0),
            last_ms: AtomicU64::new(0),
        })
    }

    /// How many tasks have come.
    pub fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    /// How many of them have an even number.
    pub fn even(&self) -> u64 {
        self.even.load(Relaxed)
    }

    /// How many of them came before they were due.
    pub fn early(&self) -> u64 {
        self.early.load(Relaxed)
    }

    /// When the last one came, in Unix milliseconds.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Relaxed)
    }

    /// How late they came.
    pub fn late_ms(&self) -> Histogram<u64> {
        self.late_ms.lock().clone()
    }
}

#[async_trait]
impl Target for Sink {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let now_ms = self.clock.unix_ms();
        let is_even = |task: &&Firing| task.payload.get(7).is_some_and(|byte| byte % 2 == 0);
        let count = |tasks: usize| u64::try_from(tasks).unwrap_or(u64::MAX);
        {
            let mut late_ms = self.late_ms.lock();
            for task in &batch {
                late_ms.saturating_record(now_ms.saturating_sub(task.due_ms));
            }
        }
        self.early.fetch_add(count(batch.iter().filter(|task| now_ms < task.due_ms).count()), Relaxed);
        self.even.fetch_add(count(batch.iter().filter(is_even).count()), Relaxed);
        self.last_ms.fetch_max(now_ms, Relaxed);
        self.fired.fetch_add(count(batch.len()), Relaxed);
        vec![Fired::Done; batch.len()]
    }
}
