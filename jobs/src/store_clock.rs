//! The clock of the store of entries, as this process knows it. Leases and time-outs count by it, so that hosts with other
//! clocks agree on them.

use parking_lot::Mutex;
use windfall_contract::Clock;

pub(crate) struct StoreClock {
    clock: Clock,
    /// The store's clock at its last answer, and when that came by the monotonic clock.
    last: Mutex<Option<(u64, u64)>>,
}

impl StoreClock {
    pub fn new(clock: Clock) -> Self {
        Self { clock, last: Mutex::new(None) }
    }

    /// The store has answered with its time.
    pub fn answered(&self, now_ms: u64) {
        *self.last.lock() = Some((now_ms, self.clock.monotonic_ns()));
    }

    /// The store's time, late by at most the way of an answer. Before the first answer this host's clock stands for it.
    pub fn now_ms(&self) -> u64 {
        match *self.last.lock() {
            Some((then_ms, then_ns)) => {
                then_ms.saturating_add(self.clock.monotonic_ns().saturating_sub(then_ns) / 1_000_000)
            }
            None => self.clock.unix_ms(),
        }
    }
}
