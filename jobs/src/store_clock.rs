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
    /// By how much the store's clock may have been ahead of that.
    slack_ms: u64,
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

    /// A shard has answered with its time; it was asked at `asked_ns` by the monotonic clock. Its clock read `now_ms` at some
    /// moment since, so that answers may come out of order, and late ones say little.
    pub fn answered(&self, shard: Shard, asked_ns: u64, now_ms: u64) {
        let Some(known) = self.known.get(usize::from(shard.0)) else { return };
        let (mut known, now_ns) = (known.lock(), self.clock.monotonic_ns());
        let earliest_ms = now_ms.max(1);
        let latest_ms = earliest_ms.saturating_add(now_ns.saturating_sub(asked_ns) / 1_000_000);
        let mut then_ms = earliest_ms;
        let mut slack_ms = now_ns.saturating_sub(asked_ns).div_ceil(1_000_000);
        if known.then_ms != 0 {
            let expected_ms = known.then_ms + now_ns.saturating_sub(known.then_ns) / 1_000_000;
            then_ms = expected_ms.clamp(earliest_ms, latest_ms);
            let ahead_ms = earliest_ms.saturating_add(slack_ms);
            if expected_ms.abs_diff(then_ms) <= JUMP_MS {
                slack_ms = ahead_ms.min(expected_ms.saturating_add(known.slack_ms)).saturating_sub(then_ms);
            } else {
                slack_ms = ahead_ms.saturating_sub(then_ms);
                tracing::warn!(
                    shard = shard.0,
                    expected_ms,
                    now_ms,
                    "the clock of the store of jobs has jumped"
                );
                known.jumped_ns = Some(now_ns);
            }
        }
        (known.then_ms, known.then_ns, known.slack_ms) = (then_ms, now_ns, slack_ms);
    }

    /// The time of a shard, late by at most the way of an answer; `None` before the first answer.
    pub fn now_ms(&self, shard: Shard) -> Option<u64> {
        let known = *self.known.get(usize::from(shard.0))?.lock();
        let since_ms = self.clock.monotonic_ns().saturating_sub(known.then_ns) / 1_000_000;
        (known.then_ms != 0).then(|| known.then_ms.saturating_add(since_ms))
    }

    /// By how much a shard's clock may be ahead of [`now_ms`](Self::now_ms).
    pub fn slack_ms(&self, shard: Shard) -> u64 {
        self.known.get(usize::from(shard.0)).map_or(0, |known| known.lock().slack_ms)
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

    fn clocks() -> (StoreClocks, impl Fn(u64)) {
        let ns = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&ns);
        let clock = Clock::from_sources(move || read.load(Ordering::Relaxed), || 5);
        (StoreClocks::new(clock, 2), move |ms| ns.store(ms * 1_000_000, Ordering::Relaxed))
    }

    #[test]
    fn a_jump_is_noticed_and_the_way_of_an_answer_is_none() {
        let (clocks, set_ms) = clocks();
        let at = |asked_ms: u64| asked_ms * 1_000_000;
        assert_eq!(clocks.now_ms(Shard(0)), None);
        clocks.answered(Shard(0), 0, 1_000_000);
        set_ms(3_000);
        assert_eq!(clocks.now_ms(Shard(0)), Some(1_003_000));
        assert_eq!(clocks.now_ms(Shard(1)), None);
        clocks.answered(Shard(0), at(3_000), 1_003_100);
        assert!(!clocks.has_jumped(Shard(0), 1_000));
        clocks.answered(Shard(0), at(3_000), 4_600_000);
        assert!(clocks.has_jumped(Shard(0), 1_000));
        assert_eq!(clocks.now_ms(Shard(0)), Some(4_600_000));
        set_ms(5_000);
        assert!(!clocks.has_jumped(Shard(0), 1_000));
        clocks.answered(Shard(0), at(4_900), 1_000_000);
        assert!(clocks.has_jumped(Shard(0), 1_000), "back again");
        assert_eq!(clocks.now_ms(Shard(0)), Some(1_000_100));
    }

    #[test]
    fn an_answer_that_was_overtaken_moves_nothing() {
        let (clocks, set_ms) = clocks();
        clocks.answered(Shard(0), 0, 1_000_000);
        // Asked at once, and answered by the store at once; but the answer was nine seconds on its way.
        set_ms(9_000);
        clocks.answered(Shard(0), 9_000_000_000, 1_009_000);
        clocks.answered(Shard(0), 0, 1_000_000);
        assert_eq!(clocks.now_ms(Shard(0)), Some(1_009_000));
        assert!(!clocks.has_jumped(Shard(0), 60_000));
    }

    #[test]
    fn the_time_is_behind_by_no_more_than_the_way_of_the_quickest_answer() {
        let (clocks, set_ms) = clocks();
        set_ms(80);
        // The store's clock read 1,000,000 at some moment of these 80 ms.
        clocks.answered(Shard(0), 0, 1_000_000);
        assert_eq!((clocks.now_ms(Shard(0)), clocks.slack_ms(Shard(0))), (Some(1_000_000), 80));
        set_ms(100);
        clocks.answered(Shard(0), 98_000_000, 1_000_050);
        assert_eq!((clocks.now_ms(Shard(0)), clocks.slack_ms(Shard(0))), (Some(1_000_050), 2));
        set_ms(500);
        clocks.answered(Shard(0), 100_000_000, 1_000_050);
        assert_eq!((clocks.now_ms(Shard(0)), clocks.slack_ms(Shard(0))), (Some(1_000_450), 0));
    }
}
