//! The health of a topic: its breaker, its records in flight, and how long it has been silent.

use super::options::FanoutOptions;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::breaker::{Breaker, Pass};

/// The health of one topic. Counters are read without a lock and may be a moment old.
pub(super) struct Health {
    watched: Mutex<Watched>,
    hang_ns: u64,
    in_flight: AtomicU64,
    /// The time (monotonic ns) of the last report, or of the first record after a pause.
    heard_ns: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// A breaker, and when and why it last changed.
struct Watched {
    breaker: Breaker,
    since_ns: u64,
    reason: String,
}

impl Watched {
    /// Lets `act` change the breaker, and notes the change.
    fn act(&mut self, now_ns: u64, why: &str, act: impl FnOnce(&mut Breaker)) {
        let was_open = self.breaker.is_open();
        act(&mut self.breaker);
        if self.breaker.is_open() != was_open {
            self.since_ns = now_ns;
            self.reason.clear();
            self.reason.push_str(why);
        }
    }
}

impl Health {
    pub(super) fn new(options: &FanoutOptions, now_ns: u64) -> Self {
        let breaker = Breaker::new(options.breaker_failures, options.breaker_probe_ms * 1_000_000);
        Self {
            watched: Mutex::new(Watched { breaker, since_ns: now_ns, reason: String::new() }),
            hang_ns: options.hang_ms * 1_000_000,
            in_flight: AtomicU64::new(0),
            heard_ns: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Whether the next record may go here. A topic that holds records and reports nothing is taken to be hung long
    /// before their answers are overdue, so that new records do not queue up behind them.
    pub(super) fn ask(&self, now_ns: u64) -> Pass {
        let mut watched = self.watched.lock();
        let silent_ns = now_ns.saturating_sub(self.heard_ns.load(Relaxed));
        if self.in_flight.load(Relaxed) > 0 && silent_ns > self.hang_ns && !watched.breaker.is_open() {
            watched.act(now_ns, "it holds records and reports nothing", |breaker| breaker.trip(now_ns));
        }
        watched.breaker.ask(now_ns)
    }

    /// Notes that a record is about to be sent here.
    pub(super) fn sending(&self, now_ns: u64) {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            self.heard_ns.store(now_ns, Relaxed);
        }
        self.sent.fetch_add(1, Relaxed);
    }

    /// Notes that the topic refused a record; `fault` says why, if the broker is at fault.
    pub(super) fn refused(&self, fault: Option<&str>, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.sent.fetch_sub(1, Relaxed);
        if let Some(why) = fault {
            self.failed.fetch_add(1, Relaxed);
            self.watched.lock().act(now_ns, why, |breaker| breaker.failed(now_ns));
        }
    }

    pub(super) fn stored(&self, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.heard_ns.store(now_ns, Relaxed);
        self.stored.fetch_add(1, Relaxed);
        self.watched.lock().act(now_ns, "", Breaker::succeeded);
    }

    pub(super) fn failed(&self, why: &str, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.heard_ns.store(now_ns, Relaxed);
        self.failed.fetch_add(1, Relaxed);
        self.watched.lock().act(now_ns, why, |breaker| breaker.failed(now_ns));
    }

    /// Notes that the answer to a record did not come in time.
    pub(super) fn overdue(&self, now_ns: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.failed.fetch_add(1, Relaxed);
        self.watched.lock().act(now_ns, "an answer did not come in time", |breaker| breaker.trip(now_ns));
    }

    pub(super) fn is_open(&self) -> bool {
        self.watched.lock().breaker.is_open()
    }

    /// Since when (monotonic ns) and why its breaker is open, if it is.
    pub(super) fn breaker_open(&self) -> Option<(u64, String)> {
        let watched = self.watched.lock();
        watched.breaker.is_open().then(|| (watched.since_ns, watched.reason.clone()))
    }

    /// When its breaker last changed (monotonic ns).
    pub(super) fn closed_since_ns(&self) -> u64 {
        self.watched.lock().since_ns
    }

    pub(super) fn trips(&self) -> u64 {
        self.watched.lock().breaker.trips()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }
}
