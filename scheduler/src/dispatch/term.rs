//! One lease of one shard, as the shard's owner and the firing loop share it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;
use windfall_contract::Clock;
use windfall_contract::due::{DueRecord, Lease, Route, SlotMinute, TaskKey};

const NS_PER_MS: u64 = 1_000_000;

/// A task in memory.
#[derive(Debug)]
pub(super) struct HeldTask {
    pub slot: SlotMinute,
    pub index: u32,
    /// How often it was tried in vain.
    pub attempts: u32,
    /// The target's [`takings`](super::target_lane::TargetLane::takings) at its last try; `None` before the first one.
    pub tried_at: Option<u32>,
    /// What it takes of the memory.
    pub cost_bytes: usize,
    pub record: DueRecord,
}

/// What became of a task that was handed over.
#[derive(Debug)]
pub(super) struct Outcome {
    pub slot: SlotMinute,
    pub index: u32,
    pub what: What,
}

/// See [`Outcome`].
#[derive(Debug)]
pub(super) enum What {
    /// The task is over: its target has acknowledged it.
    Over { tenant: u16, key: Option<TaskKey> },
    /// It was tried in vain so often, and is tried again.
    Tried(u32),
    /// It is given up: what it was, how often it was tried, what its target said last.
    Dead(Box<(DueRecord, u32, String)>),
}

/// A task that was not handed over, and gave its room in memory to a newer one: it is read again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PutBack {
    pub slot: SlotMinute,
    pub index: u32,
    pub offset_ms: u16,
    pub route: Route,
    pub attempts: u32,
    pub cost_bytes: usize,
}

/// A lease while it lasts. What was read under it is fired under it, or not at all.
#[derive(Debug)]
pub(super) struct Term {
    pub lease: Lease,
    clock: Clock,
    /// How long after the beginning of its last renewal the lease surely lasts.
    safe_ms: u64,
    renewed_ns: AtomicU64,
    renewed_wall_ms: AtomicU64,
    is_open: AtomicBool,
    in_flight: AtomicU64,
    /// Bounded by the tasks in memory.
    outcomes: Mutex<Vec<Outcome>>,
    /// Bounded by the tasks in memory, too.
    put_back: Mutex<Vec<PutBack>>,
    watermark_ms: AtomicU64,
    watermark_ns: AtomicU64,
    /// Wakes the owner: outcomes are there that it waits for.
    pub wake: Notify,
}

/// A moment by both clocks: the monotonic one stands still while a machine sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub ns: u64,
    pub wall_ms: u64,
}

impl Moment {
    pub fn now(clock: &Clock) -> Self {
        Self { ns: clock.monotonic_ns(), wall_ms: clock.unix_ms() }
    }
}

impl Term {
    pub fn new(lease: Lease, clock: Clock, safe_ms: u64, began: Moment) -> Self {
        Self {
            lease,
            clock,
            safe_ms,
            renewed_ns: AtomicU64::new(began.ns),
            renewed_wall_ms: AtomicU64::new(began.wall_ms),
            is_open: AtomicBool::new(true),
            in_flight: AtomicU64::new(0),
            outcomes: Mutex::default(),
            put_back: Mutex::default(),
            watermark_ms: AtomicU64::new(0),
            watermark_ns: AtomicU64::new(began.ns),
            wake: Notify::new(),
        }
    }

    /// A renewal that began at this moment has succeeded.
    pub fn renewed(&self, began: Moment) {
        self.renewed_ns.store(began.ns, Ordering::SeqCst);
        self.renewed_wall_ms.store(began.wall_ms, Ordering::SeqCst);
    }

    pub fn ms_since_renewal(&self) -> u64 {
        self.clock.monotonic_ns().saturating_sub(self.renewed_ns.load(Ordering::SeqCst)) / NS_PER_MS
    }

    /// Whether the lease surely lasts, by either clock of this machine.
    pub fn is_safe(&self) -> bool {
        let now = Moment::now(&self.clock);
        let since_wall_ms = now.wall_ms.saturating_sub(self.renewed_wall_ms.load(Ordering::SeqCst));
        self.ms_since_renewal() < self.safe_ms && since_wall_ms < self.safe_ms
    }

    /// Nothing more is handed over under it.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Counts tasks as in flight, if they may be handed over now. Counting comes first: whoever closes the term and
    /// then finds nothing in flight can be sure that nothing goes out any more.
    pub fn begin_flight(&self, tasks: u64) -> bool {
        self.in_flight.fetch_add(tasks, Ordering::SeqCst);
        let may_go = self.is_open() && self.is_safe();
        if !may_go {
            self.end_flight(tasks);
        }
        may_go
    }

    pub fn end_flight(&self, tasks: u64) {
        let before = self.in_flight.fetch_sub(tasks, Ordering::SeqCst);
        if before == tasks && !self.is_open() {
            self.wake.notify_one();
        }
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Takes outcomes in; wakes the owner where there are at least `wake_at`.
    pub fn push_outcomes(&self, more: &mut Vec<Outcome>, wake_at: usize) {
        let count = {
            let mut outcomes = self.outcomes.lock();
            outcomes.append(more);
            outcomes.len()
        };
        if count >= wake_at {
            self.wake.notify_one();
        }
    }

    pub fn take_outcomes(&self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes.lock())
    }

    /// Hands tasks back to the owner.
    pub fn put_back(&self, tasks: impl Iterator<Item = PutBack>) {
        self.put_back.lock().extend(tasks);
    }

    pub fn take_put_back(&self) -> Vec<PutBack> {
        std::mem::take(&mut self.put_back.lock())
    }

    pub fn outcome_count(&self) -> usize {
        self.outcomes.lock().len()
    }

    /// The store's clock stood here a moment ago.
    pub fn saw_watermark(&self, watermark_ms: u64) {
        self.watermark_ns.store(self.clock.monotonic_ns(), Ordering::Relaxed);
        self.watermark_ms.store(watermark_ms, Ordering::Relaxed);
    }

    /// Where the store's clock stands now, about.
    pub fn store_now_ms(&self) -> u64 {
        let since_ns = self.clock.monotonic_ns().saturating_sub(self.watermark_ns.load(Ordering::Relaxed));
        self.watermark_ms.load(Ordering::Relaxed).saturating_add(since_ns / NS_PER_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use windfall_contract::due::Shard;

    fn term() -> (Term, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (ns, wall_ms) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(9)));
        let (read_ns, read_wall) = (Arc::clone(&ns), Arc::clone(&wall_ms));
        let clock = Clock::from_sources(
            move || read_ns.load(Ordering::Relaxed),
            move || read_wall.load(Ordering::Relaxed),
        );
        let began = Moment::now(&clock);
        let lease = Lease { shard: Shard(0), epoch: 1 };
        (Term::new(lease, clock, 2_000, began), ns, wall_ms)
    }

    #[test]
    fn nothing_is_handed_over_when_either_clock_says_that_the_lease_may_be_over() {
        let (term, ns, wall_ms) = term();
        ns.store(1_999 * NS_PER_MS, Ordering::Relaxed);
        assert!(term.begin_flight(1));
        ns.store(2_000 * NS_PER_MS, Ordering::Relaxed);
        assert!(!term.begin_flight(1));
        term.renewed(Moment { ns: 2_000 * NS_PER_MS, wall_ms: 9 });
        assert!(term.begin_flight(1));
        wall_ms.store(2_009, Ordering::Relaxed);
        assert!(!term.begin_flight(1), "the machine slept");
        assert_eq!(term.in_flight(), 2);
    }

    #[test]
    fn a_closed_term_hands_over_nothing() {
        let (term, _, _) = term();
        term.close();
        assert!(!term.begin_flight(3));
        assert_eq!(term.in_flight(), 0);
    }
}
