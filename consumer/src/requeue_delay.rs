//! The delay before a requeued event is granted again.

use windfall_contract::rules::Pacing;

/// The delay doubles with each attempt (1 is the first requeue), up to the longest.
pub(crate) fn delay_ms(pacing: &Pacing, attempt: u32) -> u64 {
    let doubled = 1_u64
        .checked_shl(attempt.saturating_sub(1).min(63))
        .and_then(|factor| pacing.requeue_delay_ms.checked_mul(factor));
    doubled.unwrap_or(u64::MAX).min(pacing.requeue_delay_max_ms)
}

/// Spreads delays, so that what failed together does not come back together. It is SplitMix64
/// (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws between a half of `most` and all of it.
    pub fn of(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        most - mixed % (most / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_never_overflow() {
        let pacing = Pacing { requeue_delay_ms: 100, requeue_delay_max_ms: 60_000, ..Pacing::default() };
        let delays: Vec<_> = [1, 2, 3, 10, 11, 64, u32::MAX].map(|n| delay_ms(&pacing, n)).into();
        assert_eq!(delays, [100, 200, 400, 51_200, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let mut jitter = Jitter::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| jitter.of(100)).collect();
        assert!(drawn.iter().all(|delay| (50..=100).contains(delay)));
        assert!(drawn.contains(&50) && drawn.contains(&100));
        assert_eq!(jitter.of(0), 0);
    }
}
