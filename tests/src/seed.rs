//! Randomness that can be replayed.

/// The environment variable that replays a run.
const VARIABLE: &str = "WINDFALL_TEST_SEED";

/// A sequence of random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Seed {
    first: u64,
    state: u64,
}

impl Seed {
    /// The seed that `WINDFALL_TEST_SEED` names, else one from the clock. Prints how to replay it; cargo shows that
    /// for a failing test.
    ///
    /// # Panics
    /// If the variable is no number.
    pub fn new(test: &str) -> Self {
        let first = match std::env::var(VARIABLE) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is no number")),
            Err(_) => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                u64::from(since.map_or(0, |since| since.subsec_nanos()))
            }
        };
        println!("{test}: replay with {VARIABLE}={first}");
        Self { first, state: first }
    }

    /// The value of `WINDFALL_TEST_SEED` for the same run.
    pub const fn replay(&self) -> u64 {
        self.first
    }

    /// A sequence of its own, for part `number` of a test.
    pub const fn part(&self, number: u64) -> Self {
        Self { first: self.first, state: self.first ^ (number + 1).wrapping_mul(0xA24B_AED4_963E_E407) }
    }

    /// A number below `end`, at least 0. SplitMix64 (Steele, Lea, Flood, 2014).
    ///
    /// # Panics
    /// If `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}
