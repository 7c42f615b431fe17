//! How fast budgets are used: what each has given out and reserved within the last minutes and the last hour, from which the page
//! says when it ends at that pace.

use crate::flow::{Falling, Flow, Used};
use crate::options::HISTORY_MS;
use serde::Serialize;

/// The time of the pace that shows what has just changed.
const RECENT_MS: u64 = 300_000;
/// The shortest time that a pace is told of, s. Services ask the ledger every five seconds.
pub(crate) const KNOWN_MIN_S: f64 = 30.0;

/// The budgets that are followed.
#[derive(Debug, Serialize)]
pub(crate) struct Forecast {
    /// Whether there are more of them.
    is_cut: bool,
    /// The shortest time that a pace is told of, s.
    known_min_s: f64,
    pub(crate) budgets: Vec<Pace>,
}

/// How fast a budget is used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Pace {
    /// `*` where it is the cap of a type.
    pub(crate) activity: String,
    /// `*` where it is over all scenes.
    pub(crate) scene: String,
    /// `*` where it is over all types.
    pub(crate) bonus_type: String,
    /// What it had left when it was seen last.
    pub(crate) left: f64,
    /// What was used in the last five minutes.
    recent: Used,
    /// What was used in the last hour.
    pub(crate) hour: Used,
}

impl Forecast {
    pub(crate) fn of(flow: &Flow) -> Self {
        let (falling, is_cut) = flow.falling([RECENT_MS, HISTORY_MS]);
        let budgets = falling.into_iter().map(Pace::of).collect();
        Self { is_cut, known_min_s: KNOWN_MIN_S, budgets }
    }
}

impl Pace {
    fn of(falling: Falling<2>) -> Self {
        let Falling { labels, left, used: [recent, hour] } = falling;
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        Self {
            activity: label("activity"),
            scene: label("scene"),
            bonus_type: label("type"),
            left,
            recent,
            hour,
        }
    }

    /// What was used per second in the last hour; none where that is not known for long enough.
    pub(crate) fn used_per_s(&self) -> Option<f64> {
        let Used { amount, known_s } = self.hour;
        (known_s >= KNOWN_MIN_S).then(|| amount / known_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Scraped;
    use serde_json::{Value, json};

    #[test]
    fn the_pace_of_the_last_minutes_is_not_that_of_the_hour() {
        let flow = Flow::default();
        for minute in 0..=50_u64 {
            // 60 are used in each minute up to the 45th, and 600 in each one from then on.
            let used = minute.min(45) * 60 + minute.saturating_sub(45) * 600;
            let text = format!(
                "windfall_budget_left{{activity=\"a\",scene=\"s\",type=\"cash\"}} {}\n",
                1_000_000 - used
            );
            let all = [Scraped { instance: "one".into(), text: Ok(text) }];
            flow.take(minute * 60_000, minute * 60_000_000_000, &all, &Value::Null);
        }
        let found = Forecast::of(&flow);
        assert_eq!(found.budgets[0].used_per_s(), Some(5_700.0 / 3_000.0));
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            json!({ "is_cut": false, "known_min_s": 30.0, "budgets": [{
                "activity": "a", "scene": "s", "bonus_type": "cash", "left": 994_300.0,
                "recent": { "amount": 3_000.0, "known_s": 300.0 },
                "hour": { "amount": 5_700.0, "known_s": 3_000.0 },
            }] })
        );
    }

    #[test]
    fn a_budget_that_was_seen_for_a_moment_has_no_pace() {
        let hour = Used { amount: 10.0, known_s: KNOWN_MIN_S - 1.0 };
        let (activity, scene, bonus_type) = ("a".to_owned(), "s".to_owned(), "cash".to_owned());
        let pace = Pace { activity, scene, bonus_type, left: 5.0, recent: Used::default(), hour };
        assert_eq!(pace.used_per_s(), None);
    }
}
