//! When budgets would end under the rules in force, and under a change of them.
//!
//! The model knows how many events of a type pass, and neither their amounts nor their activities. So an event of a type is taken
//! to go on taking from each budget what it took in the last hour on average: what the budget was used by, over the events of the
//! type that passed, whether they were credited or archived. A budget over all types is left out, because nobody knows which type used it.

use super::{Outcome, Traffic};
use crate::forecast::Pace;
use serde::Serialize;
use windfall_contract::rules::Rules;

/// What stands for all activities, scenes or types in a budget's name.
const ALL: &str = "*";
/// The fewest events of which a mean is told.
const PASSED_MIN: f64 = 1.0;

/// When a budget would end, at the pace at which the model lets events of its type pass in the hour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ends {
    activity: String,
    scene: String,
    bonus_type: String,
    /// After so many seconds under the rules in force; none: never.
    in_force_s: Option<f64>,
    /// After so many seconds under the change; none: never.
    wanted_s: Option<f64>,
}

/// Rules, and what they do with the traffic.
#[derive(Clone, Copy)]
pub(crate) struct Replayed<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) outcomes: &'a [Outcome],
}

/// When the budgets would end of which that can be said: both rules have them, and their type and their use are known.
pub(crate) fn ends(
    traffic: &Traffic,
    paces: &[Pace],
    in_force: Replayed<'_>,
    wanted: Replayed<'_>,
) -> Vec<Ends> {
    let one = |pace: &Pace| {
        let passed_before = traffic.passed.get(&pace.bonus_type).copied().unwrap_or_default();
        let used_per_s = pace.used_per_s().filter(|used_per_s| *used_per_s > 0.0)?;
        if pace.bonus_type == ALL || passed_before < PASSED_MIN {
            return None;
        }
        let (total, wanted_total) = (total_of(in_force.rules, pace)?, total_of(wanted.rules, pace)?);
        // The pace under some rules: what passes under them instead of what passed.
        let after_s = |passed: f64, left: f64| {
            let pace = used_per_s * passed / passed_before;
            (pace > 0.0).then(|| left.max(0.0) / pace)
        };
        Some(Ends {
            activity: pace.activity.clone(),
            scene: pace.scene.clone(),
            bonus_type: pace.bonus_type.clone(),
            in_force_s: after_s(passed_of(in_force.outcomes, &pace.bonus_type)?, pace.left),
            wanted_s: after_s(
                passed_of(wanted.outcomes, &pace.bonus_type)?,
                pace.left + difference(wanted_total, total),
            ),
        })
    };
    paces.iter().filter_map(one).collect()
}

/// What rules say of a budget, or of a cap; none where they do not have it.
fn total_of(rules: &Rules, of: &Pace) -> Option<i64> {
    if of.activity == ALL {
        return rules.caps.get(&of.bonus_type)?.total;
    }
    let is_it = |activity: &str, scene: &str, bonus_type: &str| {
        activity == of.activity && scene == of.scene && bonus_type == of.bonus_type
    };
    rules.budgets.iter().find(|one| is_it(&one.activity, &one.scene, &one.bonus_type)).map(|one| one.total)
}

fn passed_of(outcomes: &[Outcome], bonus_type: &str) -> Option<f64> {
    outcomes.iter().find(|one| one.name == bonus_type).map(|one| one.passed)
}

#[expect(clippy::cast_precision_loss, reason = "a forecast needs no more than the digits that it has")]
fn difference(to: i64, from: i64) -> f64 {
    to.saturating_sub(from) as f64
}

#[cfg(test)]
mod tests {
    use super::super::replay;
    use super::*;
    use crate::flow::{Flow, Scraped};
    use crate::forecast::Forecast;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use windfall_config::parse_rules;

    const RULES: &str = include_str!("../../../config/samples/rules.toml");

    /// A hundred seconds in which ten events of cash come each second and pass, and take 50 from the budget, however many of them.
    fn hundred_seconds(activity: &str, scene: &str, bonus_type: &str) -> (Traffic, Vec<Pace>) {
        let flow = Flow::default();
        for second in 0..=100_u64 {
            let text = format!(
                "windfall_budget_left{{activity=\"{activity}\",scene=\"{scene}\",type=\"{bonus_type}\"}} {}\n",
                100_000 - second * 50
            );
            let all = [Scraped { instance: "one".into(), text: Ok(text) }];
            flow.take(second * 1_000, second * 1_000_000_000, &all, &Value::Null);
        }
        let came = (0..=100_u16).map(|second| f64::from(second) * 10.0).collect();
        let traffic = Traffic {
            at_s: (0..=100_u16).map(f64::from).collect(),
            came: [("cash".to_owned(), came)].into(),
            passed: [("cash".to_owned(), 1_000.0)].into(),
            ..Traffic::default()
        };
        (traffic, Forecast::of(&flow).budgets)
    }

    /// The sample rules with a budget, or a cap, and with a limit of cash.
    fn rules(total: i64, cash_per_s: u64) -> Rules {
        let mut rules = parse_rules(RULES, None).unwrap();
        let mut budget = rules.budgets.first().cloned().unwrap();
        (budget.activity, budget.scene, budget.bonus_type) = ("a".into(), "s".into(), "cash".into());
        budget.total = total;
        rules.budgets.push(budget);
        rules.caps.entry("cash".to_owned()).or_default().total = Some(total);
        let own = rules.limits.types.get_mut("cash").unwrap();
        own.limit.rate_per_s = cash_per_s;
        own.limit.burst = 1;
        rules
    }

    fn found(of: (&str, &str, &str), wanted: &Rules) -> Vec<Ends> {
        let (traffic, paces) = hundred_seconds(of.0, of.1, of.2);
        let in_force = rules(1_000_000, 1_000);
        let outcomes = [&in_force, wanted].map(|rules| replay(&traffic, &rules.limits));
        let [before, after] = [(&in_force, &outcomes[0]), (wanted, &outcomes[1])]
            .map(|(rules, outcomes)| Replayed { rules, outcomes });
        ends(&traffic, &paces, before, after)
    }

    fn about(found: Option<f64>, expected_s: f64) -> bool {
        found.is_some_and(|found_s| (found_s - expected_s).abs() <= expected_s / 100.0)
    }

    #[test]
    fn half_the_limit_makes_a_budget_last_twice_as_long_and_none_for_ever() {
        // 95,000 are left, of which 50 are used each second.
        let [one] = &found(("a", "s", "cash"), &rules(1_000_000, 5))[..] else { panic!() };
        assert!(about(one.in_force_s, 1_900.0) && about(one.wanted_s, 3_800.0), "{one:?}");
        let [one] = &found(("a", "s", "cash"), &rules(1_000_000, 0))[..] else { panic!() };
        assert_eq!(one.wanted_s, None);
        // A cap over all activities ends in the same way.
        let [one] = &found(("*", "*", "cash"), &rules(1_000_000, 5))[..] else { panic!() };
        assert!(about(one.wanted_s, 3_800.0), "{one:?}");
    }

    #[test]
    fn a_total_that_is_raised_or_cut_is_in_the_forecast() {
        let [one] = &found(("a", "s", "cash"), &rules(1_005_000, 1_000))[..] else { panic!() };
        assert!(about(one.wanted_s, 2_000.0), "{one:?}");
        let [one] = &found(("a", "s", "cash"), &rules(1, 1_000))[..] else { panic!() };
        assert_eq!(one.wanted_s, Some(0.0));
    }

    #[test]
    fn of_what_nobody_knows_nothing_is_said() {
        let wanted = rules(1_000_000, 5);
        assert!(found(("a", "s", "*"), &wanted).is_empty(), "which type used it?");
        assert!(found(("a", "other", "cash"), &wanted).is_empty(), "the rules do not have it");
        let (traffic, paces) = hundred_seconds("a", "s", "cash");
        let outcomes = replay(&traffic, &wanted.limits);
        let one = Replayed { rules: &wanted, outcomes: &outcomes };
        let nothing_passed = Traffic { passed: BTreeMap::new(), ..traffic };
        assert!(ends(&nothing_passed, &paces, one, one).is_empty());
    }
}
