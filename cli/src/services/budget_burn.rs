//! How long budgets last at the pace of the last minute, for a guard of a staged change.

use std::collections::{BTreeMap, VecDeque};

/// The time over which the pace is taken, in ms.
const WINDOW_MS: u64 = 60_000;
/// The shortest time over which a pace is taken, in ms. Budgets are read every five seconds.
const KNOWN_MIN_MS: u64 = 30_000;

/// What budgets have left, by activity, scene and bonus type.
pub type BudgetsLeft = BTreeMap<[String; 3], u64>;

/// A budget that ends soon.
#[derive(Debug, PartialEq, Eq)]
pub struct EndsSoon {
    /// Its activity, scene and bonus type, with slashes between them.
    pub budget: String,
    /// The time that it lasts, in ms.
    pub lasts_ms: u64,
}

/// What budgets had left within the last minute.
#[derive(Debug, Default)]
pub struct BudgetBurn {
    round: u64,
    readings: VecDeque<(u64, BudgetsLeft)>,
}

impl BudgetBurn {
    /// Whether the budgets of this round are not known here. Rounds are numbered from 1.
    pub const fn is_new(&self, round: u64) -> bool {
        self.round != round
    }

    /// Takes what a round has read, at this monotonic time. A round that read nothing, because the ledger did not answer,
    /// says nothing.
    pub fn take(&mut self, round: u64, now_ms: u64, left: BudgetsLeft) {
        self.round = round;
        if left.is_empty() {
            return;
        }
        self.readings.push_back((now_ms, left));
        while self.readings.front().is_some_and(|(at_ms, _)| now_ms.saturating_sub(*at_ms) > WINDOW_MS) {
            self.readings.pop_front();
        }
    }

    /// The budget that ends first of those that last for less than this at their pace. One of which nothing was used lasts.
    pub fn ends_within(&self, min_ms: u64) -> Option<EndsSoon> {
        let ((first_ms, _), (last_ms, left)) = (self.readings.front()?, self.readings.back()?);
        let known_ms = last_ms.saturating_sub(*first_ms);
        if known_ms < KNOWN_MIN_MS {
            return None;
        }
        let lasting = left.iter().filter_map(|(budget, left)| {
            let lasts_ms =
                (u128::from(*left) * u128::from(known_ms)).checked_div(self.used(budget).into())?;
            Some((budget, u64::try_from(lasts_ms).unwrap_or(u64::MAX)))
        });
        let (budget, lasts_ms) =
            lasting.filter(|(_, lasts_ms)| *lasts_ms < min_ms).min_by_key(|(_, ms)| *ms)?;
        Some(EndsSoon { budget: budget.join("/"), lasts_ms })
    }

    /// What was used of a budget. That it was raised, or that reserved amounts came back, makes nothing of it unused.
    fn used(&self, budget: &[String; 3]) -> u64 {
        let known = self.readings.iter().filter_map(|(_, left)| left.get(budget).copied());
        let later = known.clone().skip(1);
        known.zip(later).map(|(before, after)| before.saturating_sub(after)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(all: &[(&str, u64)]) -> BudgetsLeft {
        all.iter().map(|(scene, left)| (["spring".into(), (*scene).into(), "cash".into()], *left)).collect()
    }

    /// The readings of one budget, one every ten seconds.
    fn after(readings: &[u64]) -> BudgetBurn {
        let mut burn = BudgetBurn::default();
        for (round, own) in (1..).zip(readings) {
            burn.take(round, round * 10_000, left(&[("rain", *own)]));
        }
        burn
    }

    #[test]
    fn a_budget_lasts_for_what_is_left_at_the_pace_of_the_minute() {
        let burn = after(&[9_000, 8_700, 8_400, 8_100]);
        // 900 in 30 s.
        assert_eq!(burn.ends_within(270_000), None);
        let soon = EndsSoon { budget: "spring/rain/cash".into(), lasts_ms: 270_000 };
        assert_eq!(burn.ends_within(270_001), Some(soon));
    }

    #[test]
    fn of_a_moment_there_is_no_pace() {
        assert_eq!(BudgetBurn::default().ends_within(u64::MAX), None);
        assert_eq!(after(&[9_000, 10, 0]).ends_within(u64::MAX), None, "20 s");
        assert!(after(&[9_000, 10, 5, 0]).ends_within(u64::MAX).is_some());
    }

    #[test]
    fn a_budget_that_is_not_used_lasts_and_one_that_is_raised_is_used_all_the_same() {
        assert_eq!(after(&[0, 0, 0, 0]).ends_within(u64::MAX), None, "it had ended before");
        assert_eq!(after(&[10, 20, 30, 40]).ends_within(u64::MAX), None);
        // 300 are used, and 1,000 come in between.
        assert_eq!(after(&[500, 400, 1_400, 1_200]).ends_within(u64::MAX).unwrap().lasts_ms, 120_000);
        assert_eq!(after(&[500, 400, 300, 0]).ends_within(1).unwrap().lasts_ms, 0);
    }

    #[test]
    fn what_was_used_longer_ago_than_a_minute_is_over() {
        let mut readings = vec![1_000_000, 100];
        readings.extend([100; 7]);
        assert_eq!(after(&readings).ends_within(u64::MAX), None);
    }

    #[test]
    fn the_first_to_end_is_named_and_a_round_without_an_answer_says_nothing() {
        let mut burn = BudgetBurn::default();
        assert!(burn.is_new(1));
        burn.take(1, 0, left(&[("rain", 100), ("cards", 100)]));
        assert!(!burn.is_new(1) && burn.is_new(2));
        burn.take(2, 20_000, BudgetsLeft::new());
        burn.take(3, 40_000, left(&[("rain", 90), ("cards", 60), ("new", 1)]));
        assert_eq!(
            burn.ends_within(u64::MAX).unwrap(),
            EndsSoon { budget: "spring/cards/cash".into(), lasts_ms: 60_000 }
        );
    }
}
