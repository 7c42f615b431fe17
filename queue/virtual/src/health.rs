//! How a topic is doing: its breaker, what it has in flight, since when it has been silent.

use super::options::FanoutOptions;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::breaker::{Breaker, Pass};

/// Health of one topic. Counters are read without a lock and may be a moment old.
pub(super) struct Health {
    breaker: Mutex<Breaker>,
    hang_ns: u64,
    in_flight: AtomicU64,
    /// Monotonic ns of the last report, or of the first record after a pause.
    heard_ns: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Health {
    pub(super) fn new(options: &FanoutOptions) -> Self {
        Self {
            breaker: Mutex::new(Breaker::new(options.breaker_failures, options.breaker_probe_ms * 1_000_000)),
            hang_ns: options.hang_ms * 1_000_000,
            in_flight: AtomicU64::new(0),
            heard_ns: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Whether the next record may go here. A topic that holds records and says nothing is taken for hung long
    /// before their answers are overdue, so that new records do not queue up behind them.
    pub(super) fn ask(&self, now_ns: u64) -> Pass {
        let mut breaker = self.breaker.lock();
        let silent_ns = now_ns.saturating_sub(self.heard_ns.load(Relaxed));
        if self.in_flight.load(Relaxed) > 0 && silent_ns > self.hang_ns && !breaker.is_open() {
            breaker.trip(now_ns);
        }
        breaker.ask(now_ns)
    }

    /// A record is about to be sent here.
    pub(super) fn sending(&self, now_ns: u64) {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            self.heard_ns.store(now_ns, Relaxed);
        }
        self.sent.fetch_add(1, Relaxed);
    }

    /// It was not taken; `fault` says whether that speaks against the broker.
    pub(super) fn refused(&self, fault: bool, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.sent.fetch_sub(1, Relaxed);
        if fault {
            self.failed.fetch_add(1, Relaxed);
            self.breaker.lock().failed(now_ns);
        }
    }

    pub(super) fn stored(&self, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.heard_ns.store(now_ns, Relaxed);
        self.stored.fetch_add(1, Relaxed);
        self.breaker.lock().succeeded();
    }

    pub(super) fn failed(&self, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.heard_ns.store(now_ns, Relaxed);
        self.failed.fetch_add(1, Relaxed);
        self.breaker.lock().failed(now_ns);
    }

    /// The answer to a record did not come in time.
    pub(super) fn overdue(&self, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.failed.fetch_add(1, Relaxed);
        self.breaker.lock().trip(now_ns);
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.lock().is_open()
    }

    pub(super) fn trips(&self) -> u64 {
        self.breaker.lock().trips()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }
}
