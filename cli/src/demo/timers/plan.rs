//! What is to happen to each timer, by its number and the seed alone. Times count in milliseconds from the start.

use crate::demo::rain::mix;

/// How long after the start the first timer is due.
const FIRST_DUE_MS: u64 = 2_000;
/// How far around its due time a timer is changed at the last moment: before it and after it.
const LAST_MOMENT_MS: u64 = 40;

/// The demo's timers.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many there are.
    pub timers: u64,
    /// Decides which of them are changed, when, and how.
    pub seed: u64,
    /// The time over which their due times are spread.
    pub spread_ms: u64,
}

/// A change of a timer that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is cancelled.
    Cancel,
    /// It is moved to this time.
    Move {
        /// From the start.
        due_ms: u64,
    },
}

impl Plan {
    /// When a timer is added. Adding takes six tenths of the time that firing takes.
    pub const fn add_ms(&self, number: u64) -> u64 {
        self.nth_ms(number) * 6 / 10
    }

    /// When it is due, unless it is moved.
    pub const fn due_ms(&self, number: u64) -> u64 {
        FIRST_DUE_MS + self.nth_ms(number)
    }

    /// The time of a share of the minute, in hundredths.
    pub const fn at_percent_ms(&self, percent: u64) -> u64 {
        FIRST_DUE_MS + self.spread_ms * percent / 100
    }

    /// Whether its caller gives it a key, by which it is changed then.
    pub const fn has_key(number: u64) -> bool {
        number.is_multiple_of(8)
    }

    /// One timer in ten is cancelled and one in ten is moved, most of them while they wait, every fifth at the very moment
    /// at which it is due.
    pub const fn change(&self, number: u64) -> Option<(u64, Change)> {
        let random = mix(self.seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
        let (add_ms, due_ms) = (self.add_ms(number), self.due_ms(number));
        let at_ms = if (random >> 8).is_multiple_of(5) {
            due_ms - LAST_MOMENT_MS + (random >> 16) % (2 * LAST_MOMENT_MS)
        } else {
            add_ms + (due_ms - add_ms) * (10 + (random >> 16) % 80) / 100
        };
        // To any time from then until the end: some fire sooner, some later.
        let left_ms = (FIRST_DUE_MS + self.spread_ms).saturating_sub(at_ms) + 1;
        match random % 100 {
            0..10 => Some((at_ms, Change::Cancel)),
            10..20 => Some((at_ms, Change::Move { due_ms: at_ms + (random >> 24) % left_ms })),
            _ => None,
        }
    }

    const fn nth_ms(&self, number: u64) -> u64 {
        number.saturating_mul(self.spread_ms) / if self.timers == 0 { 1 } else { self.timers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_cancelled_a_tenth_is_moved_and_all_of_it_happens_in_the_minute() {
        let plan = Plan { timers: 20_000, seed: 7, spread_ms: 60_000 };
        let (mut cancelled, mut moved) = (0, 0);
        for number in 0..plan.timers {
            assert!(plan.add_ms(number) + FIRST_DUE_MS <= plan.due_ms(number));
            match plan.change(number) {
                Some((at_ms, change)) => {
                    assert!(at_ms >= plan.add_ms(number), "{number} is changed before it is added");
                    match change {
                        Change::Cancel => cancelled += 1,
                        Change::Move { due_ms } => {
                            moved += 1;
                            assert!((at_ms..=62_040).contains(&due_ms), "{number} is moved to {due_ms}");
                        }
                    }
                }
                None => assert!(plan.due_ms(number) < 62_000),
            }
        }
        assert!(
            (1_800..2_200).contains(&cancelled) && (1_800..2_200).contains(&moved),
            "{cancelled} {moved}"
        );
    }
}
