//! The time, given from outside.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time. One instance for all that shares a limiter.
pub trait Clock: Send + Sync {
    /// Nanoseconds since a start of the clock's choice; never steps back.
    fn now_ns(&self) -> u64;
    /// Unix milliseconds; may step.
    fn wall_ms(&self) -> i64;
}

/// The system's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Counts nanoseconds from now on.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> i64 {
        // Before 1970 every delayed record is due later than it should be; the deadline still bounds it.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
