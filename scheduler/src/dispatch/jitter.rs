//! Spreads retries, so that what failed together does not come back together.

/// A small random sequence by seed. It is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws between a half of `most` and all of it.
    pub fn of(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        most - mix(self.0) % (most / 2 + 1)
    }
}

/// Spreads the bits of a number over all of it.
pub(super) const fn mix(number: u64) -> u64 {
    let mut mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_half_and_all() {
        let mut jitter = Jitter::new(7);
        let drawn: Vec<_> = (0..1_000).map(|_| jitter.of(100)).collect();
        assert!(drawn.iter().all(|wait| (50..=100).contains(wait)));
        assert!(drawn.contains(&50) && drawn.contains(&100));
        assert_eq!(jitter.of(0), 0);
    }
}
