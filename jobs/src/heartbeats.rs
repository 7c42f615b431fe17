//! Whether the heartbeats of executors could be taken. While no process ran, or the store did not answer, they were lost, and
//! that an app has no executors says nothing of them.

use crate::options::JobsOptions;
use parking_lot::Mutex;
use windfall_contract::Clock;
use windfall_contract::due::Shard;

/// An executor sends so many heartbeats while it is there without one: one or two that are lost do no harm.
const BEATS: u64 = 3;
const NS_PER_MS: u64 = 1_000_000;

#[derive(Clone, Copy, Default)]
struct Known {
    /// When heartbeats could be taken last, by the monotonic clock; `None`: not since this process has started.
    taken_ns: Option<u64>,
    /// When the store has refused one last, unless it has taken another one since.
    refused_ns: Option<u64>,
    awaited_until_ns: u64,
}

pub(crate) struct Heartbeats {
    clock: Clock,
    ttl_ns: u64,
    /// A gap that is shorter costs no executor its place.
    gap_ns: u64,
    known: Vec<Mutex<Known>>,
}

impl Heartbeats {
    pub fn new(clock: Clock, shards: usize, options: &JobsOptions) -> Self {
        let ttl_ns = options.executor_ttl_ms.saturating_mul(NS_PER_MS);
        // Longer than the time between two reads, whatever the options are.
        let gap_ns = (ttl_ns / BEATS).max(BEATS * options.executors_every_ms * NS_PER_MS);
        Self { clock, ttl_ns, gap_ns, known: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// The store has answered who is registered in a shard: it would have taken heartbeats, too, unless it has just refused one.
    pub fn read(&self, shard: Shard) {
        let Some(known) = self.known.get(usize::from(shard.0)) else { return };
        let (mut known, now_ns) = (known.lock(), self.clock.monotonic_ns());
        let is_long_ago = |then_ns: u64| now_ns.saturating_sub(then_ns) > self.gap_ns;
        if known.refused_ns.is_some_and(|refused_ns| !is_long_ago(refused_ns)) {
            return;
        }
        if known.taken_ns.is_none_or(is_long_ago) {
            known.awaited_until_ns = now_ns.saturating_add(self.ttl_ns);
        }
        known.taken_ns = Some(now_ns);
        known.refused_ns = None;
    }

    /// A heartbeat was taken by the store, or was not.
    pub fn answered(&self, shard: Shard, is_taken: bool) {
        if let Some(known) = self.known.get(usize::from(shard.0)) {
            known.lock().refused_ns = (!is_taken).then(|| self.clock.monotonic_ns());
        }
    }

    /// Whether executors that live may not be registered yet: heartbeats were lost, and executors have not had the time since
    /// in which each of them sends another one.
    pub fn are_awaited(&self, shard: Shard) -> bool {
        let Some(known) = self.known.get(usize::from(shard.0)).map(|known| *known.lock()) else {
            return false;
        };
        let now_ns = self.clock.monotonic_ns();
        let is_gap = |taken_ns: u64| now_ns.saturating_sub(taken_ns) > self.gap_ns;
        known.taken_ns.is_none_or(is_gap) || now_ns < known.awaited_until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const AT: Shard = Shard(0);

    /// Heartbeats with an executor's time of 90 s, and what sets the clock, in seconds.
    fn heartbeats() -> (Heartbeats, impl Fn(u64)) {
        let ns = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&ns);
        let clock = Clock::from_sources(move || read.load(Ordering::Relaxed), || 5);
        let heartbeats = Heartbeats::new(clock, 1, &JobsOptions::default());
        (heartbeats, move |s| ns.store(s * 1_000_000_000, Ordering::Relaxed))
    }

    #[test]
    fn executors_are_awaited_after_a_start_and_after_an_outage_and_then_no_more() {
        let (heartbeats, set_s) = heartbeats();
        assert!(heartbeats.are_awaited(AT), "nothing was read yet");
        for s in 5..=94 {
            set_s(s);
            heartbeats.read(AT);
            assert!(heartbeats.are_awaited(AT), "{s}");
        }
        for s in 95..200 {
            set_s(s);
            heartbeats.read(AT);
            assert!(!heartbeats.are_awaited(AT), "{s}");
        }
        // An outage in which no executor loses its place.
        set_s(229);
        heartbeats.read(AT);
        assert!(!heartbeats.are_awaited(AT));
        set_s(260);
        assert!(heartbeats.are_awaited(AT), "the store is away");
        heartbeats.read(AT);
        for s in 261..=349 {
            set_s(s);
            heartbeats.read(AT);
            assert!(heartbeats.are_awaited(AT), "{s}");
        }
        set_s(350);
        heartbeats.read(AT);
        assert!(!heartbeats.are_awaited(AT));
    }

    #[test]
    fn a_store_that_is_read_and_refuses_heartbeats_is_away_until_it_takes_them() {
        let (heartbeats, set_s) = heartbeats();
        heartbeats.read(AT);
        for s in 1..=200 {
            set_s(s);
            if s > 90 && s % 10 == 0 {
                heartbeats.answered(AT, false);
            }
            heartbeats.read(AT);
        }
        assert!(heartbeats.are_awaited(AT));
        heartbeats.answered(AT, true);
        heartbeats.read(AT);
        for s in 201..=289 {
            set_s(s);
            heartbeats.read(AT);
            assert!(heartbeats.are_awaited(AT), "{s}");
        }
        set_s(291);
        heartbeats.read(AT);
        assert!(!heartbeats.are_awaited(AT));
        // One refusal, after which nobody sends a heartbeat any more, keeps nothing waiting for ever.
        heartbeats.answered(AT, false);
        for s in 292..=600 {
            set_s(s);
            heartbeats.read(AT);
        }
        assert!(!heartbeats.are_awaited(AT));
    }
}
