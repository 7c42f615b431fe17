//! Reads limits, budgets and pacing: how fast, how much, in what pieces.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeTable;

use super::build::{Names, SCENE_NAME, check_name, is_scene_name, narrow};
use super::walk::{Findings, Section, Text};
use crate::bounds::{self, Bound, NUMBER_MAX};
use crate::nearest::shortened;
use crate::refusal::Fault;
use windfall_contract::rules::{Budget, BudgetKind, Fuse, Limit, Limits, Pacing, TypeLimit};

/// Stands in where a limit is faulty.
const SHUT: Limit = Limit { rate_per_s: 0, burst: 1 };

/// All scenes, or all types, of a combined budget.
const ALL: &str = "*";

pub(super) fn read_limits(root: &Section<'_, '_>, names: &Names<'_>, findings: &mut Findings<'_>) -> Limits {
    let mut limits = Limits { global: SHUT, types: BTreeMap::new() };
    let Some(section) = root.section("limits", findings) else {
        if !root.has("limits") {
            findings.note("limits", None, Fault::Missing { allowed: "a table with `global`".to_owned() });
        }
        return limits;
    };
    section.only(&["global", "default", "types"], findings);
    let plain = |key: &str, findings: &mut Findings<'_>| {
        let section = section.section(key, findings)?;
        section.only(&["rate_per_s", "burst"], findings);
        Some(read_limit(&section, findings))
    };
    match plain("global", findings) {
        Some(global) => limits.global = global,
        None if section.has("global") => {}
        None => {
            let allowed = "a table with `rate_per_s` and `burst`".to_owned();
            findings.note(section.path_of("global"), section.at(), Fault::Missing { allowed });
        }
    }
    let default = plain("default", findings);
    let own = section.section("types", findings);
    for name in own.iter().flat_map(Section::keys) {
        names.known_type(&section.path_of("types"), name, findings);
    }
    for name in names.types {
        let own = own.as_ref().and_then(|own| own.section(name, findings));
        let limit = read_type_limit(&section, name, own.as_ref(), default, findings);
        limits.types.insert(name.clone(), limit);
    }
    limits
}

fn read_type_limit(
    limits: &Section<'_, '_>,
    name: &str,
    own: Option<&Section<'_, '_>>,
    default: Option<Limit>,
    findings: &mut Findings<'_>,
) -> TypeLimit {
    let priority_bound = if name == "cash" { bounds::PRIORITY_CASH } else { bounds::PRIORITY };
    let mut limit = default;
    let mut fuse = Fuse::default();
    let mut priority = priority_bound.default;
    if let Some(own) = own {
        own.only(&["rate_per_s", "burst", "fuse", "priority"], findings);
        // A rate without its burst is half a limit: they come together.
        if own.has("rate_per_s") || own.has("burst") {
            limit = Some(read_limit(own, findings));
        }
        fuse = match own.word("fuse", &["closed", "pause", "divert"], findings) {
            "pause" => Fuse::Pause,
            "divert" => Fuse::Divert,
            _ => Fuse::Closed,
        };
        priority = own.number("priority", priority_bound, findings);
    }
    if limit.is_none() {
        let found = format!("the type `{}` has no limit", shortened(name));
        let allowed = "give `rate_per_s` and `burst` under `limits.types`, or `limits.default` for all";
        findings.note(limits.path(), own.map_or(limits.at(), Section::at), Fault::Clash { found, allowed });
    }
    let priority = priority.and_then(|priority| u8::try_from(priority).ok()).unwrap_or_default();
    TypeLimit { limit: limit.unwrap_or(SHUT), fuse, priority }
}

fn read_limit(section: &Section<'_, '_>, findings: &mut Findings<'_>) -> Limit {
    let rate_per_s = section.number("rate_per_s", bounds::RATE_PER_S, findings).unwrap_or_default();
    let burst = narrow(section.number("burst", bounds::BURST, findings));
    Limit { rate_per_s, burst }
}

pub(super) fn read_budgets(
    root: &Section<'_, '_>,
    names: &Names<'_>,
    findings: &mut Findings<'_>,
) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = Vec::new();
    let mut keys = BTreeSet::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for section in root.list("budgets", findings) {
        section.only(&["kind", "activity", "scene", "type", "total", "shards"], findings);
        let name = |key: &str, findings: &mut Findings<'_>| {
            let name = section.needed_text(key, SCENE_NAME, findings)?;
            match key {
                // Only a combined budget may say so, which is seen below.
                "scene" | "type" if name.text == ALL => {}
                "type" => names.known_type(&section.path_of(key), name, findings),
                _ => {
                    check_name(&section.path_of(key), name, is_scene_name, SCENE_NAME, findings);
                    refuse_star(&section, key, name, findings);
                }
            }
            Some(name.text.to_owned())
        };
        let (activity, scene, bonus_type) =
            (name("activity", findings), name("scene", findings), name("type", findings));
        let total = section.number("total", bounds::BUDGET_TOTAL, findings);
        let stars = [scene.as_deref(), bonus_type.as_deref()].contains(&Some(ALL));
        let kind = read_kind(&section, stars, findings);
        let shards = read_shards(&section, kind, total, findings);
        let (Some(activity), Some(scene), Some(bonus_type)) = (activity, scene, bonus_type) else {
            continue; // noted
        };
        if !keys.insert((activity.clone(), scene.clone(), bonus_type.clone())) {
            let found = format!(
                "the budget of `{}`, `{}`, `{}`",
                shortened(&activity),
                shortened(&scene),
                shortened(&bonus_type)
            );
            findings.note(section.path(), section.at(), Fault::Twice { found });
        }
        if kind == BudgetKind::Combined {
            // It lies over others, whose sum is checked.
            budgets.push(Budget { kind, activity, scene, bonus_type, total: units(total), shards });
            continue;
        }
        let sum = sums.entry(bonus_type.clone()).or_default();
        let before = *sum;
        // Each total is at most 2^53 − 1 and a document has fewer than 2^11 · 2^53 of them; saturate anyway.
        *sum = sum.saturating_add(total.unwrap_or_default());
        if *sum > NUMBER_MAX && before <= NUMBER_MAX {
            let fault = Fault::Clash {
                found: format!("the totals of the type `{}` add up to {sum} or more", shortened(&bonus_type)),
                allowed: "they must add up to at most 9007199254740991 (2^53 - 1)",
            };
            findings.note(section.path_of("total"), section.at_value("total"), fault);
        }
        budgets.push(Budget { kind, activity, scene, bonus_type, total: units(total), shards });
    }
    budgets
}

fn units(total: Option<u64>) -> i64 {
    total.and_then(|total| i64::try_from(total).ok()).unwrap_or_default()
}

/// `*` says that it is combined; a kind that is named has to fit it.
fn read_kind(section: &Section<'_, '_>, stars: bool, findings: &mut Findings<'_>) -> BudgetKind {
    let kind = match section.word("kind", &["sharded", "strict", "combined"], findings) {
        "strict" => BudgetKind::Strict,
        "combined" => BudgetKind::Combined,
        _ if stars && !section.has("kind") => BudgetKind::Combined,
        _ => BudgetKind::Sharded,
    };
    let clash = |found: &str, allowed| Fault::Clash { found: found.to_owned(), allowed };
    let fault = match (kind, stars) {
        (BudgetKind::Combined, false) => clash(
            "a combined budget of one scene and one type",
            "it must have `*` for its scene, its type or both",
        ),
        (BudgetKind::Sharded | BudgetKind::Strict, true) => {
            clash("`*` for a scene or a type", "only a combined budget may have it")
        }
        _ => return kind,
    };
    findings.note(section.path_of("kind"), section.at_value("kind"), fault);
    kind
}

/// A budget is one campaign's: `*` would look like all, and be a name.
fn refuse_star(section: &Section<'_, '_>, key: &str, name: Text<'_>, findings: &mut Findings<'_>) {
    if name.text == "*" {
        let fault = Fault::NotAllowed {
            found: "`*`".to_owned(),
            allowed: "one name; a budget is of one activity".to_owned(),
        };
        findings.note(section.path_of(key), Some(name.at), fault);
    }
}

/// By default eight, or fewer where the total is smaller: a shard holds one unit at least.
fn read_shards(
    section: &Section<'_, '_>,
    kind: BudgetKind,
    total: Option<u64>,
    findings: &mut Findings<'_>,
) -> u32 {
    let shards = section.number("shards", bounds::BUDGET_SHARDS, findings);
    if kind == BudgetKind::Strict {
        if section.has("shards") && shards.is_some_and(|shards| shards != 1) {
            let fault = Fault::Clash {
                found: "shards of a strict budget".to_owned(),
                allowed: "it has one row; leave `shards` out",
            };
            findings.note(section.path_of("shards"), section.at_value("shards"), fault);
        }
        return 1;
    }
    match (shards, total) {
        (Some(shards), Some(total)) if shards > total => {
            if !section.has("shards") {
                return narrow(Some(total));
            }
            let fault = Fault::Clash {
                found: format!("{shards} shards of a total of {total}"),
                allowed: "there may be at most as many shards as units",
            };
            findings.note(section.path_of("shards"), section.at_value("shards"), fault);
            narrow(Some(shards))
        }
        _ => narrow(shards),
    }
}

pub(super) fn read_pacing(root: &Section<'_, '_>, findings: &mut Findings<'_>) -> Pacing {
    let empty = DeTable::new();
    let section = root.section("pacing", findings).unwrap_or_else(|| Section::root(&empty));
    let default = Pacing::default();
    let fields = [
        ("hold_max_ms", bounds::HOLD_MAX_MS.or(default.hold_max_ms)),
        ("deadline_ms", bounds::DEADLINE_MS.or(default.deadline_ms)),
        ("requeue_delay_ms", bounds::REQUEUE_DELAY_MS.or(default.requeue_delay_ms)),
        ("requeue_delay_max_ms", bounds::REQUEUE_DELAY_MAX_MS.or(default.requeue_delay_max_ms)),
        ("max_failures", bounds::MAX_FAILURES.or(default.max_failures.into())),
        ("grant_batch", bounds::GRANT_BATCH.or(default.grant_batch.into())),
        ("in_hand_max", bounds::IN_HAND_MAX.or(default.in_hand_max.into())),
        ("lane_events_max", bounds::LANE_EVENTS_MAX.or(default.lane_events_max.into())),
        ("lane_bytes_max", bounds::LANE_BYTES_MAX.or(default.lane_bytes_max)),
    ];
    section.only(&fields.map(|(key, _)| key), findings);
    let [hold, deadline, delay, delay_max, failures, batch, in_hand, lane_events, lane_bytes] =
        fields.map(|(key, bound): (&str, Bound)| section.number(key, bound, findings));
    let mut at_most = |low: (&str, Option<u64>), high: (&str, Option<u64>), allowed: &'static str| {
        if let (Some(low_value), Some(high_value)) = (low.1, high.1)
            && low_value > high_value
        {
            let found = format!("{} = {low_value} is above {} = {high_value}", low.0, high.0);
            findings.note(section.path_of(low.0), section.at_value(low.0), Fault::Clash { found, allowed });
        }
    };
    at_most(("hold_max_ms", hold), ("deadline_ms", deadline), "what is held must pass before the deadline");
    at_most(
        ("requeue_delay_ms", delay),
        ("requeue_delay_max_ms", delay_max),
        "the first delay may be at most the longest",
    );
    at_most(("grant_batch", batch), ("in_hand_max", in_hand), "one full batch must fit in hand");
    Pacing {
        hold_max_ms: hold.unwrap_or_default(),
        deadline_ms: deadline.unwrap_or_default(),
        requeue_delay_ms: delay.unwrap_or_default(),
        requeue_delay_max_ms: delay_max.unwrap_or_default(),
        max_failures: narrow(failures),
        grant_batch: narrow(batch),
        in_hand_max: narrow(in_hand),
        lane_events_max: narrow(lane_events),
        lane_bytes_max: lane_bytes.unwrap_or_default(),
    }
}
