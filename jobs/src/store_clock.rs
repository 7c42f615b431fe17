//! The clocks of the store of entries, as this process knows them: one for each shard, since shards may lie on servers of their
//! own. Leases and time-outs count by them, so that hosts with other clocks agree.

use parking_lot::Mutex;
use windfall_contract::Clock;
use windfall_contract::due::Shard;

/// A clock that differs by more than this from what was expected has jumped.
const JUMP_MS: u64 = 2_000;

#[derive(Clone, Copy, Default)]
struct Known {
    /// The store's clock at its last answer; 0: there was none.
    then_ms: u64,
    /// When that came, by the monotonic clock.
    then_ns: u64,
    /// When the clock jumped last, by the monotonic clock.
    jumped_ns: Option<u64>,
}

pub(crate) struct StoreClocks {
    clock: Clock,
    known: Vec<Mutex<Known>>,
}

impl StoreClocks {
    pub fn new(clock: Clock, shards: usize) -> Self {
        Self { clock, known: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// A shard has answered with its time.
    pub fn answered(&self, shard: Shard, now_ms: u64) {
        let Some(known) = self.known.get(usize::from(shard.0)) else { return };
        let (mut known, now_ns) = (known.lock(), self.clock.monotonic_ns());
        if known.then_ms != 0 {
            let expected_ms = known.then_ms + now_ns.saturating_sub(known.then_ns) / 1_000_000;
            if expected_ms.abs_diff(now_ms) > JUMP_MS {
                tracing::warn!(
                    shard = shard.0,
                    expected_ms,
                    now_ms,
                    "the clock of the store of jobs has jumped"
                );
                known.jumped_ns = Some(now_ns);
            }
        }
        (known.then_ms, known.then_ns) = (now_ms.max(1), now_ns);
    }

    /// The time of a shard, late by at most the way of an answer; `None` before the first answer.
    pub fn now_ms(&self, shard: Shard) -> Option<u64> {
        let known = *self.known.get(usize::from(shard.0))?.lock();
        let since_ms = self.clock.monotonic_ns().saturating_sub(known.then_ns) / 1_000_000;
        (known.then_ms != 0).then(|| known.then_ms.saturating_add(since_ms))
    }

    /// Whether a shard's clock has jumped within the last `within_ms`.
    pub fn has_jumped(&self, shard: Shard, within_ms: u64) -> bool {
        let jumped_ns = self.known.get(usize::from(shard.0)).and_then(|known| known.lock().jumped_ns);
        let since_ms = |jumped_ns| self.clock.monotonic_ns().saturating_sub(jumped_ns) / 1_000_000;
        jumped_ns.is_some_and(|jumped_ns| since_ms(jumped_ns) < within_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_jump_is_noticed_and_the_way_of_an_answer_is_none() {
        let ns = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&ns);
        let clock = Clock::from_sources(move || read.load(Ordering::Relaxed), || 5);
        let clocks = StoreClocks::new(clock, 2);
        assert_eq!(clocks.now_ms(Shard(0)), None);
        clocks.answered(Shard(0), 1_000_000);
        ns.store(3_000_000_000, Ordering::Relaxed);
        assert_eq!(clocks.now_ms(Shard(0)), Some(1_003_000));
        assert_eq!(clocks.now_ms(Shard(1)), None);
        clocks.answered(Shard(0), 1_003_100);
        assert!(!clocks.has_jumped(Shard(0), 1_000));
        clocks.answered(Shard(0), 4_600_000);
        assert!(clocks.has_jumped(Shard(0), 1_000));
        assert_eq!(clocks.now_ms(Shard(0)), Some(4_600_000));
        ns.store(5_000_000_000, Ordering::Relaxed);
        assert!(!clocks.has_jumped(Shard(0), 1_000));
    }
}
