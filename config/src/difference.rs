//! What differs between two documents of rules, by their meaning: comments, order of tables and defaults do not count.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windfall_contract::rules::Rules;

use crate::document::rules_text;

/// One key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The key, such as `limits.types.cash.rate_per_s`; a budget, a route, a draining topic and a revocation go by what
    /// they are about.
    pub key: String,
    /// Its value before; `None` where it was not there.
    pub before: Option<String>,
    /// Its value after; `None` where it is not there any more.
    pub after: Option<String>,
}

/// Everything that differs but the version, by key. The default limit shows at each type that it is for.
pub fn differences(before: &Rules, after: &Rules) -> Vec<Difference> {
    let (before, after) = (values(before), values(after));
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let difference = |key: &String| Difference {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
    };
    keys.into_iter().map(difference).filter(|one| one.before != one.after).collect()
}

/// The rules as JSON, with the keys of the document and every default written out.
pub fn rules_json(rules: &Rules) -> Value {
    // What was written from rules is a document, so the object is never empty.
    toml::from_str(&rules_text(rules)).unwrap_or_default()
}

fn values(rules: &Rules) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let Value::Object(document) = rules_json(rules) else { return values };
    for (key, value) in document.iter().filter(|(key, _)| *key != "version" && *key != "end") {
        flatten(key, value, &mut values);
    }
    values
}

fn flatten(key: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                flatten(&format!("{key}.{name}"), value, into);
            }
        }
        Value::Array(entries) if entries.iter().all(Value::is_object) => {
            for (nth, entry) in entries.iter().enumerate() {
                flatten_entry(key, nth, entry, into);
            }
        }
        value => {
            into.insert(key.to_owned(), value.to_string());
        }
    }
}

/// Routes go by their place, since the first that matches is used; the others by what they are about.
fn flatten_entry(key: &str, nth: usize, entry: &Value, into: &mut BTreeMap<String, String>) {
    let own: &[&str] = match key {
        "budgets" => &["activity", "scene", "type"],
        "draining" => &["topic", "broker"],
        "revoke" => &["key", "trade_no", "activity", "before_ms"],
        _ => &[],
    };
    let text = |name: &&str| {
        let value = match entry.get(*name)? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // An order number may be `7` as well: whoever approves a change must see it where one takes the place of the key.
        Some(if *name == "key" { format!("key = {value}") } else { value })
    };
    let parts: Vec<String> = own.iter().filter_map(text).collect();
    if parts.is_empty() {
        into.insert(format!("{key} {:>4}", nth + 1), entry.to_string());
        return;
    }
    let Value::Object(table) = entry else { return };
    let about = format!("{key}[{}]", parts.join(" "));
    let rest: BTreeMap<_, _> = table.iter().filter(|(name, _)| !own.contains(&name.as_str())).collect();
    for (name, value) in rest {
        flatten(&format!("{about}.{name}"), value, into);
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "~ {}: {before} → {after}", self.key),
            (None, Some(after)) => write!(f, "+ {}: {after}", self.key),
            (Some(before), None) => write!(f, "- {}: {before}", self.key),
            (None, None) => f.write_str(&self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::parse_rules;

    const SAMPLE: &str = include_str!("../samples/rules.toml");

    fn shown(after: &str) -> Vec<String> {
        let (before, after) = (parse_rules(SAMPLE, None).unwrap(), parse_rules(after, None).unwrap());
        differences(&before, &after).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn versions_comments_and_defaults_written_out_are_no_difference() {
        let rules = parse_rules(SAMPLE, None).unwrap();
        assert_eq!(shown(&rules_text(&rules).replace("version = 1", "version = 7")), [""; 0]);
    }

    #[test]
    fn each_kind_of_change_is_shown_by_its_key() {
        for (from, to, expected) in [
            ("ratio = 50", "ratio = 10", &["~ queues.gifts.ratio: 50 → 10"][..]),
            (
                "rate_per_s = 100000\nburst = 10000",
                "rate_per_s = 90000\nburst = 10000",
                &[
                    "~ limits.types.coin.rate_per_s: 100000 → 90000",
                    "~ limits.types.coupon_taxi.rate_per_s: 100000 → 90000",
                    "~ limits.types.coupon_tea.rate_per_s: 100000 → 90000",
                ],
            ),
            (
                "total = 2000000",
                "total = 2000001",
                &["~ budgets[spring-2027 card-draw badge].total: 2000000 → 2000001"],
            ),
            (
                "trade_no = \"autumn-2026:rain:1:42\"",
                "trade_no = \"autumn-2026:rain:1:43\"",
                &[
                    "- revoke[autumn-2026:rain:1:42].why: \"drawn twice\"",
                    "+ revoke[autumn-2026:rain:1:43].why: \"drawn twice\"",
                ],
            ),
            (
                "fuse = \"closed\" ",
                "fuse = \"pause\" ",
                &["~ limits.types.cash.fuse: \"closed\" → \"pause\""],
            ),
        ] {
            assert!(SAMPLE.contains(from), "{from}");
            assert_eq!(shown(&SAMPLE.replace(from, to)), expected);
        }
    }

    /// A second person would else approve that a leaked key is good again, and see no difference at all.
    #[test]
    fn a_revoked_key_is_told_from_an_order_whose_number_looks_the_same() {
        assert!(SAMPLE.contains("key = 7 "));
        let expected = ["+ revoke[7].why: \"backup lost\"", "- revoke[key = 7].why: \"backup lost\""];
        assert_eq!(shown(&SAMPLE.replace("key = 7 ", "trade_no = \"7\" ")), expected);
    }

    #[test]
    fn a_route_is_shown_whole_at_its_place() {
        let shown = shown(&SAMPLE.replace("requeue = [\"cash\", \"gifts\"] #", "requeue = [\"gifts\"] #"));
        let [line] = &shown[..] else { panic!("{shown:?}") };
        assert!(line.starts_with("~ routes    1: {") && line.contains("\"requeue\":[\"gifts\"]"), "{line}");
    }
}
