//! The clock that callers inject: monotonic for waits, wall time for what is written down.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

type Source = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Two readings: monotonic nanoseconds since an arbitrary start, and Unix milliseconds. Clones read the same clock.
#[derive(Clone)]
pub struct Clock {
    monotonic_ns: Source,
    unix_ms: Source,
}

impl Clock {
    /// The machine's clocks. A machine whose clock stands before 1970 reads 0 Unix milliseconds.
    pub fn system() -> Self {
        let start = Instant::now();
        Self::from_sources(
            move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            || {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            },
        )
    }

    /// Readings of the caller's own, for tests and simulations.
    pub fn from_sources(
        monotonic_ns: impl Fn() -> u64 + Send + Sync + 'static,
        unix_ms: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { monotonic_ns: Arc::new(monotonic_ns), unix_ms: Arc::new(unix_ms) }
    }

    /// Wall time alone, for what never waits; the monotonic reading follows it.
    pub fn from_unix_ms(unix_ms: impl Fn() -> u64 + Clone + Send + Sync + 'static) -> Self {
        let wall = unix_ms.clone();
        Self::from_sources(move || wall().saturating_mul(1_000_000), unix_ms)
    }

    /// Nanoseconds since an arbitrary start; never goes back.
    #[inline]
    pub fn monotonic_ns(&self) -> u64 {
        (self.monotonic_ns)()
    }

    /// Unix milliseconds; may step.
    #[inline]
    pub fn unix_ms(&self) -> u64 {
        (self.unix_ms)()
    }

    /// Unix milliseconds as events and tables carry them, signed.
    #[inline]
    pub fn wall_ms(&self) -> i64 {
        i64::try_from(self.unix_ms()).unwrap_or(i64::MAX)
    }

    /// Whole Unix seconds.
    #[inline]
    pub fn unix_s(&self) -> u64 {
        self.unix_ms() / 1_000
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
