//! How long runs that succeeded are kept, so that no more of them are kept than may be, about: the more runs are made, the
//! shorter. How many that are, by all processes, is seen from the numbers that the store gives.

use crate::options::JobsOptions;
use crate::runs::Keep;
use parking_lot::Mutex;
use windfall_contract::Clock;
use windfall_contract::due::Shard;

/// Runs are counted over one to two of these, so that a burst is none of the runs of an hour.
const WINDOW_NS: u64 = 60_000_000_000;
/// Every run is kept for so long, if it is to be kept at all: reports are repeated, and somebody may look at it.
const LEAST_MS: u64 = 60_000;
const NS_PER_MS: u64 = 1_000_000;

/// How many numbers a shard had given at a moment, by the monotonic clock.
#[derive(Clone, Copy)]
struct Sample {
    given: u64,
    at_ns: u64,
}

#[derive(Clone, Copy)]
struct Known {
    from: Sample,
    /// Where the next window begins.
    next_from: Sample,
    last: Sample,
}

pub(crate) struct Retention {
    clock: Clock,
    keep: Keep,
    each_max: u64,
    known: Vec<Mutex<Option<Known>>>,
}

impl Retention {
    pub fn new(clock: Clock, shards: usize, options: &JobsOptions) -> Self {
        let each_max = options.succeeded_max / u64::try_from(shards.max(1)).unwrap_or(u64::MAX);
        let known = (0..shards).map(|_| Mutex::default()).collect();
        Self { clock, keep: options.keep(), each_max, known }
    }

    /// A shard has given so many numbers by now.
    pub fn numbered(&self, shard: Shard, given: u64) {
        let Some(known) = self.known.get(usize::from(shard.0)) else { return };
        let (mut known, at_ns) = (known.lock(), self.clock.monotonic_ns());
        let last = Sample { given, at_ns };
        let before = known.unwrap_or(Known { from: last, next_from: last, last });
        let is_full = at_ns.saturating_sub(before.next_from.at_ns) >= WINDOW_NS;
        let (from, next_from) = match is_full {
            true => (before.next_from, last),
            false => (before.from, before.next_from),
        };
        *known = Some(Known { from, next_from, last });
    }

    /// How long the runs of a shard that end now are kept.
    pub fn keep(&self, shard: Shard) -> Keep {
        let known = self.known.get(usize::from(shard.0)).and_then(|known| *known.lock());
        let Some(Known { from, last, .. }) = known else { return self.keep };
        let made = last.given.saturating_sub(from.given);
        let window_ns = self.clock.monotonic_ns().saturating_sub(from.at_ns).max(WINDOW_NS);
        let room_ms = self.each_max.saturating_mul(window_ns / NS_PER_MS).checked_div(made);
        let kept_ms = room_ms.map_or(u64::MAX, |room_ms| room_ms.max(LEAST_MS));
        Keep { succeeded_ms: self.keep.succeeded_ms.min(kept_ms), ..self.keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_more_runs_are_made_the_shorter_they_are_kept() {
        let s = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&s);
        let clock = Clock::from_sources(move || read.load(Ordering::Relaxed) * 1_000_000_000, || 5);
        let options = JobsOptions { succeeded_max: 1_200_000, ..JobsOptions::default() };
        let retention = Retention::new(clock, 2, &options);
        let kept_s = || retention.keep(Shard(0)).succeeded_ms / 1_000;
        assert_eq!(kept_s(), 3_600, "nothing is known yet");
        // Of two shards, each may keep 600,000: those of 600 s with a thousand each second.
        for at_s in 0..=300 {
            s.store(at_s, Ordering::Relaxed);
            retention.numbered(Shard(0), 1_000 * at_s);
            assert!(kept_s() >= 600, "{at_s}");
        }
        assert_eq!(kept_s(), 600);
        assert_eq!(retention.keep(Shard(0)).failed_ms, options.keep_failed_ms);
        assert_eq!(retention.keep(Shard(1)).succeeded_ms, options.keep_succeeded_ms);
        // Far too many are still kept for a minute.
        s.store(301, Ordering::Relaxed);
        retention.numbered(Shard(0), 900_000_000);
        assert_eq!(kept_s(), 60);
        // And a burst counts for less and less.
        s.store(1_000_000, Ordering::Relaxed);
        retention.numbered(Shard(0), 900_001_000);
        retention.numbered(Shard(0), 900_002_000);
        s.store(1_000_100, Ordering::Relaxed);
        retention.numbered(Shard(0), 900_003_000);
        assert_eq!(kept_s(), 3_600);
    }
}
