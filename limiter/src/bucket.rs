//! One token bucket in exact integers.
//!
//! A level counts in grains: one event is `10^9 · of` grains, where `of` is the share's denominator. A nanosecond
//! then adds `rate_per_s · owned` grains, a whole number, so that no rate, share or call frequency rounds anything.
//! Ranges, at their worst: `rate · owned · dt` = 10^8 · 2^32 · 2^64 < 2^123; `level · of` (change of a share)
//! ≤ 10^7 · 2^32 · 10^9 · 2^32 < 2^118. Both fit u128, so nothing here overflows, for the 584 years of the clock.

use crate::{Limit, Now, Share};

const NANOS_PER_S: u64 = 1_000_000_000;

/// A share in the form that buckets need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    owned: u32,
    of: u32,
    /// Grains in one event.
    event: u64,
}

impl Scale {
    pub(crate) fn new(share: Share) -> Self {
        Self { owned: share.owned(), of: share.of(), event: u64::from(share.of()) * NANOS_PER_S }
    }

    /// This share of a rate, in events per second.
    pub(crate) fn of_rate(&self, rate_per_s: u32) -> f64 {
        f64::from(rate_per_s) * f64::from(self.owned) / f64::from(self.of)
    }
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate_per_s: u32,
    burst: u32,
    /// The grains that each nanosecond adds.
    gain: u64,
    /// The most grains that the bucket holds.
    ceiling: u128,
    /// The grains that the bucket holds now; with `held`, at most `ceiling`.
    level: u128,
    /// The grains for which there is room because they may come back. They count as if they were there (I5): a bucket
    /// that filled up meanwhile would pass them on top of a whole burst.
    held: u128,
    /// How often a lower ceiling has taken this room away: what was held before that does not come back.
    era: u64,
    /// The time that `level` belongs to. Never steps back.
    filled_ns: u64,
}

impl Bucket {
    /// A bucket that passes nothing until a limit is set.
    pub(crate) fn shut() -> Self {
        Self { rate_per_s: 0, burst: 1, gain: 0, ceiling: 0, level: 0, held: 0, era: 0, filled_ns: 0 }
    }

    pub(crate) fn rate_per_s(&self) -> u32 {
        self.rate_per_s
    }

    /// Adds what the time since the last call has earned.
    #[inline]
    pub(crate) fn fill(&mut self, now: Now) {
        // I5: time that was paid for once is not paid for again.
        if now.0 > self.filled_ns {
            let earned = u128::from(self.gain) * u128::from(now.0 - self.filled_ns);
            self.level = (self.level + earned).min(self.ceiling - self.held);
            self.filled_ns = now.0;
        }
    }

    /// Changes the limit. Earns at the old rate up to `now`; the level is cut to the new ceiling, never raised (I5).
    pub(crate) fn set_limit(&mut self, limit: Limit, scale: &Scale, now: Now) {
        self.fill(now);
        let rate = limit.rate_per_s.min(Limit::RATE_PER_S_MAX);
        self.rate_per_s = u32::try_from(rate).unwrap_or(u32::MAX);
        self.burst = limit.burst.clamp(1, Limit::BURST_MAX);
        self.rescale(scale);
    }

    /// Shuts the bucket from `now` on; the level is kept for a later limit.
    pub(crate) fn shut_at(&mut self, now: Now) {
        self.fill(now);
        self.rate_per_s = 0;
        self.gain = 0;
    }

    /// Changes the share. The level stays the same number of events, rounded down by less than a grain, and is cut
    /// to the new ceiling, never raised (I5).
    pub(crate) fn set_scale(&mut self, old: &Scale, new: &Scale, now: Now) {
        self.fill(now);
        self.level = self.level * u128::from(new.of) / u128::from(old.of);
        self.held = self.held * u128::from(new.of) / u128::from(old.of);
        self.rescale(new);
    }

    fn rescale(&mut self, scale: &Scale) {
        self.gain = u64::from(self.rate_per_s) * u64::from(scale.owned);
        let burst = u128::from(self.burst) * u128::from(scale.owned) * u128::from(NANOS_PER_S);
        // A bucket that never holds one event never passes one: the crate's page says what this costs.
        self.ceiling = if scale.owned == 0 { 0 } else { burst.max(u128::from(scale.event)) };
        if self.held > self.ceiling {
            self.held = 0;
            self.era += 1;
        }
        self.level = self.level.min(self.ceiling - self.held);
    }

    /// Whether time earns anything at all. Where not, nothing passes, whatever the level (I5: rate 0).
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.gain == 0
    }

    /// The number of whole events in the bucket, at most `wanted`.
    #[inline]
    pub(crate) fn whole(&self, wanted: u32, scale: &Scale) -> u32 {
        let event = u128::from(scale.event);
        if self.level >= u128::from(wanted) * event {
            return wanted;
        }
        // A dry bucket is asked most often, and a division of 128 bits costs more than all the rest.
        if self.level < event {
            return 0;
        }
        // Less than `wanted`, so it fits.
        u32::try_from(self.level / event).unwrap_or(wanted)
    }

    /// Takes `events`, which [`whole`](Self::whole) has found.
    #[inline]
    pub(crate) fn take(&mut self, events: u32, scale: &Scale) {
        self.level -= u128::from(events) * u128::from(scale.event);
    }

    /// Keeps room for up to `events` of those that were just taken, within half of the bucket, so that the other half fills
    /// on while they are away. Returns for how many, and the era in which they are held.
    pub(crate) fn hold(&mut self, events: u32, scale: &Scale) -> (u32, u64) {
        let event = u128::from(scale.event);
        let room = (self.ceiling / 2).saturating_sub(self.held).min(self.ceiling - self.level - self.held);
        let kept = u32::try_from(room / event).unwrap_or(events).min(events);
        self.held += u128::from(kept) * event;
        (kept, self.era)
    }

    /// Takes `unused` of `held` events back, and gives up the room for all of them, if they still have it.
    pub(crate) fn give_back(&mut self, held: u32, era: u64, unused: u32, scale: &Scale) {
        if era != self.era {
            return;
        }
        let grains = |events: u32| u128::from(events) * u128::from(scale.event);
        // Another share may have rounded it down.
        let room = self.held.min(grains(held));
        self.held -= room;
        self.level += grains(unused).min(room);
    }

    /// Nanoseconds from the last fill until there is a whole event, if nobody takes any. It must not be called on a
    /// bucket that is shut.
    #[inline]
    pub(crate) fn wait_ns(&self, scale: &Scale) -> u64 {
        match u64::try_from(self.level) {
            Ok(level) if level < scale.event => (scale.event - level).div_ceil(self.gain),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CENTURY_NS: u64 = 100 * 366 * 86_400 * NANOS_PER_S;

    fn bucket(limit: Limit, scale: &Scale) -> Bucket {
        let mut bucket = Bucket::shut();
        bucket.set_limit(limit, scale, Now(0));
        bucket
    }

    #[test]
    fn the_extremes_neither_overflow_nor_drift() {
        for share in [Share::ALL, Share::new(u32::MAX, u32::MAX).unwrap(), Share::new(1, u32::MAX).unwrap()] {
            let scale = Scale::new(share);
            let mut bucket =
                bucket(Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX }, &scale);
            bucket.fill(Now(CENTURY_NS));
            let full = bucket.whole(u32::MAX, &scale);
            assert_eq!(full, if share.owned() == 1 && share.of() > 1 { 1 } else { Limit::BURST_MAX });
            bucket.take(full, &scale);
            bucket.fill(Now(u64::MAX));
            assert_eq!(bucket.whole(u32::MAX, &scale), full);
            let other = Scale::new(Share::new(u32::MAX - 1, u32::MAX - 1).unwrap());
            bucket.set_scale(&scale, &other, Now(u64::MAX));
            assert!(bucket.whole(u32::MAX, &other) <= full);
        }
    }

    #[test]
    fn figures_beyond_their_range_count_as_its_end() {
        let scale = Scale::new(Share::ALL);
        let mut high = bucket(Limit { rate_per_s: u64::MAX, burst: u32::MAX }, &scale);
        assert_eq!(u64::from(high.rate_per_s()), Limit::RATE_PER_S_MAX);
        high.fill(Now(CENTURY_NS));
        assert_eq!(high.whole(u32::MAX, &scale), Limit::BURST_MAX);
        let mut low = bucket(Limit { rate_per_s: 1, burst: 0 }, &scale);
        low.fill(Now(CENTURY_NS));
        assert_eq!(low.whole(u32::MAX, &scale), 1);
    }

    #[test]
    fn a_rate_that_divides_no_second_is_kept_to_the_event() {
        // 1/7 of 3 a second for an hour of virtual time, filled in odd steps: 1542.86 events.
        let scale = Scale::new(Share::new(1, 7).unwrap());
        let mut bucket = bucket(Limit { rate_per_s: 3, burst: 14 }, &scale);
        let (mut passed, mut at) = (0, 0);
        while at < 3_600 * NANOS_PER_S {
            for _ in 0..10 {
                at += 13;
                bucket.fill(Now(at));
            }
            at += 99_999_871;
            bucket.fill(Now(at));
            let whole = bucket.whole(9, &scale);
            bucket.take(whole, &scale);
            passed += whole;
        }
        assert_eq!(passed, 3 * 3_600 / 7);
    }
}
