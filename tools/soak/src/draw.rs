//! Random choices that a seed repeats.

/// A sequence of numbers from a seed: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// The sequence of part `part` of a run with this seed.
    pub const fn new(seed: u64, part: u64) -> Self {
        Self(seed ^ (part + 1).wrapping_mul(0xA24B_AED4_963E_E407))
    }

    /// A number below `end`, which is at least 1.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % end
    }

    /// A number of milliseconds from `low` up to and without `high`.
    pub const fn ms(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// One of these.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())].clone()
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }
}

/// Cards that are all drawn before one comes again, so that a short run sees as many kinds of fault as it can.
#[derive(Debug, Clone)]
pub struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Clone> Deck<T> {
    /// A deck of these cards.
    pub fn new(all: &[T]) -> Self {
        Self { all: all.to_vec(), left: Vec::new() }
    }

    /// The next card, `None` where the deck has none at all.
    pub fn next(&mut self, draw: &mut Draw) -> Option<T> {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        if self.left.is_empty() {
            return None;
        }
        let at = draw.index(self.left.len());
        Some(self.left.swap_remove(at))
    }
}

/// Spreads a number evenly over all 64-bit numbers.
pub const fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
