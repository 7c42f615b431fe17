//! The clocks of the store of entries, as this process knows them: one for each shard, since shards may lie on servers of their
//! own. Leases and time-outs count by them, so that hosts with other clocks agree.

use parking_lot::Mutex;
use windfall_contract::Clock;
use windfall_contract::due::Shard;

/// A clock that differs by more than this from what was expected has jumped.
const JUMP_MS: u64 = 2_000;
/// How long it is remembered that a clock was set ahead: as long as what became due by that may wait to be started.
const AHEAD_KEPT_MS: u64 = 3_600_000;
/// A clock that was set ahead has so long to be set back, before anybody goes by it.
const AHEAD_NEW_MS: u64 = 30_000;

/// By how much a clock was set ahead, and not back since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub ms: u64,
    /// Whether that was a moment ago.
    pub is_new: bool,
}

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
    /// By how much it was set ahead, and not back since; 0: it was not.
    ahead_ms: u64,
    /// When it was set ahead last, by the monotonic clock.
    ahead_ns: u64,
}

impl Known {
    fn ahead(&self, now_ns: u64) -> Option<Ahead> {
        let since_ms = now_ns.saturating_sub(self.ahead_ns) / 1_000_000;
        let is_known = self.ahead_ms > 0 && since_ms < AHEAD_KEPT_MS;
        is_known.then_some(Ahead { ms: self.ahead_ms, is_new: since_ms < AHEAD_NEW_MS })
    }

    /// The clock was set from one time to another.
    fn set(&mut self, from_ms: u64, to_ms: u64, now_ns: u64) {
        let before_ms = self.ahead(now_ns).map_or(0, |ahead| ahead.ms);
        if to_ms > from_ms {
            self.ahead_ns = now_ns;
        }
        self.ahead_ms = before_ms.saturating_add(to_ms).saturating_sub(from_ms);
        self.jumped_ns = Some(now_ns);
    }
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
                known.set(expected_ms, then_ms, now_ns);
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

    /// By how much a shard's clock was set ahead, as far as this process has seen it.
    pub fn ahead(&self, shard: Shard) -> Option<Ahead> {
        let known = *self.known.get(usize::from(shard.0))?.lock();
        known.ahead(self.clock.monotonic_ns())
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
    fn a_clock_that_is_set_ahead_is_known_to_be_until_it_is_set_back() {
        let (clocks, set_ms) = clocks();
        let answered = |at_ms: u64, ahead_ms: u64| {
            set_ms(at_ms);
            clocks.answered(Shard(0), at_ms * 1_000_000, 10_000_000 + at_ms + ahead_ms);
            clocks.ahead(Shard(0))
        };
        let ahead = |ms, is_new| Some(Ahead { ms, is_new });
        assert_eq!((answered(0, 0), answered(100, 1_900)), (None, None), "so little is no step");
        assert_eq!(answered(200, 0), None);
        assert_eq!(answered(300, 60_000), ahead(60_000, true));
        assert_eq!(answered(20_300, 100_000), ahead(100_000, true));
        assert_eq!(answered(50_300, 100_000), ahead(100_000, false));
        assert_eq!(answered(50_400, 70_000), ahead(70_000, false), "partly back");
        assert_eq!(answered(50_500, 0), None);
        assert_eq!(answered(50_600, 3_600_000), ahead(3_600_000, true));
        assert_eq!(answered(50_600 + AHEAD_KEPT_MS, 3_600_000), None, "that is the time by now");
        let later_ms = 50_700 + AHEAD_KEPT_MS;
        assert_eq!(answered(later_ms, 3_610_000), ahead(10_000, true), "and counts no more");
        assert_eq!(answered(later_ms + 100, 0), None, "further back than it was ahead");
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
