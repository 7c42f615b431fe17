//! Checks limits, budgets and pacing.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use windfall_contract::rules::{Budget, BudgetKind, Cap, Fuse, Limit, Limits, Pacing, TypeLimit};

use super::check::{Known, listed};
use super::raw::{RawBudget, RawBudgetKind, RawCap, RawFuse, RawLimit, RawLimits, RawPacing, RawTypeLimit};
use super::value::{Described, Field, Needed, Number};
use crate::bounds::{BUDGET_SHARDS_DEFAULT, NUMBER_MAX, PRIORITY_CASH, PRIORITY_DEFAULT};
use crate::findings::{Findings, join};
use crate::nearest::shortened;
use crate::refusal::Fault;

/// The limit that takes the place of a faulty one.
const SHUT: Limit = Limit { rate_per_s: 0, burst: 1 };

/// The name of all scenes, or all types, in a combined budget.
const ALL: &str = "*";

pub(super) fn check_limits(limits: &Field<RawLimits>, known: &Known<'_>) -> Limits {
    let Some(raw) = limits.get() else {
        return Limits { global: SHUT, types: BTreeMap::new() };
    };
    let no_types = BTreeMap::new();
    let own = raw.types.get().unwrap_or(&no_types);
    for name in own.keys() {
        known.check_type("limits.types", Some(name.span().start), name.get_ref());
    }
    let default = Some(&raw.default).filter(|default| default.is_given()).map(plain_limit);
    let types = known.types.iter().map(|name| {
        let limit = check_type_limit(limits, name, own.get(name.as_str()), default, known.findings);
        (name.clone(), limit)
    });
    Limits { global: plain_limit(&raw.global), types: types.collect() }
}

pub(super) fn plain_limit(raw: &Field<RawLimit>) -> Limit {
    let limit = raw.get().and_then(|raw| Some((raw.rate_per_s.get()?, raw.burst.get()?)));
    limit.map_or(SHUT, |(rate_per_s, burst)| Limit { rate_per_s: rate_per_s.0, burst: burst.0 })
}

pub(super) const fn fuse_of(raw: RawFuse) -> Fuse {
    match raw {
        RawFuse::Closed => Fuse::Closed,
        RawFuse::Pause => Fuse::Pause,
        RawFuse::Divert => Fuse::Divert,
    }
}

fn check_type_limit(
    limits: &Field<RawLimits>,
    name: &str,
    table: Option<&Needed<RawTypeLimit>>,
    default: Option<Limit>,
    findings: &Findings<'_>,
) -> TypeLimit {
    let priority = if name == "cash" { PRIORITY_CASH } else { PRIORITY_DEFAULT };
    let at = table.map_or(limits.at(), |table| table.at());
    let raw = table.and_then(|table| table.get());
    // A rate without its burst is half a limit, so they come together.
    let own = raw.filter(|raw| raw.rate_per_s.is_given() || raw.burst.is_given()).map(|raw| {
        let path = join("limits.types", name);
        let rate_per_s = needed_here(&raw.rate_per_s, &path, "rate_per_s", at, findings);
        let burst = needed_here(&raw.burst, &path, "burst", at, findings);
        rate_per_s
            .zip(burst)
            .map_or(SHUT, |(rate_per_s, burst)| Limit { rate_per_s: rate_per_s.0, burst: burst.0 })
    });
    let limit = own.or(default);
    if limit.is_none() {
        let found = format!("the type `{}` has no limit", shortened(name));
        let allowed = "give `rate_per_s` and `burst` under `limits.types`, or `limits.default` for all";
        findings.note("limits", at, Fault::Clash { found, allowed });
    }
    TypeLimit {
        limit: limit.unwrap_or(SHUT),
        fuse: raw.and_then(|raw| raw.fuse.get()).map_or(Fuse::Closed, |fuse| fuse_of(*fuse)),
        priority: raw.and_then(|raw| raw.priority.get()).map_or(priority, |own| own.0),
    }
}

/// A key that may be left out elsewhere, but not in this table.
pub(super) fn needed_here<'r, T: Described>(
    field: &'r Field<T>,
    path: &str,
    key: &str,
    table_at: Option<usize>,
    findings: &Findings<'_>,
) -> Option<&'r T> {
    if !field.is_given() {
        findings.note(join(path, key), table_at, Fault::Missing { allowed: T::describe() });
    }
    field.get()
}

pub(super) fn check_budgets(raw: &Field<Vec<Needed<RawBudget>>>, known: &Known<'_>) -> Vec<Budget> {
    let findings = known.findings;
    let mut keys = BTreeSet::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut budgets = Vec::new();
    for (path, at, raw) in listed("budgets", raw) {
        if let Some(name) = raw.bonus_type.get().filter(|name| &***name != ALL) {
            known.check_type(&join(&path, "type"), raw.bonus_type.at(), name);
        }
        let kind = check_kind(&path, at, raw, findings);
        let shards = check_shards(&path, raw, kind, findings);
        let (Some(activity), Some(scene), Some(bonus_type)) =
            (raw.activity.get(), raw.scene.get(), raw.bonus_type.get())
        else {
            continue; // noted
        };
        if !keys.insert((&**activity, &**scene, &**bonus_type)) {
            let [activity, scene, bonus_type] = [&**activity, &**scene, &**bonus_type].map(shortened);
            let found = format!("the budget of `{activity}`, `{scene}`, `{bonus_type}`");
            findings.note(path.as_str(), at, Fault::Twice { found });
        }
        let total = raw.total.get().map_or(0, |total| total.0);
        // A combined one lies over others, whose sum is checked.
        if kind != BudgetKind::Combined {
            let sum = sums.entry((**bonus_type).to_owned()).or_default();
            let before = *sum;
            // Each total is at most 2^53 − 1 and a document has fewer than 2^11 of them, by far; saturate anyway.
            *sum = sum.saturating_add(total.unsigned_abs());
            if *sum > NUMBER_MAX && before <= NUMBER_MAX {
                let found =
                    format!("the totals of the type `{}` add up to {sum} or more", shortened(bonus_type));
                let allowed = "they must add up to at most 9007199254740991 (2^53 - 1)";
                findings.note(join(&path, "total"), raw.total.at(), Fault::Clash { found, allowed });
            }
        }
        budgets.push(Budget {
            kind,
            activity: (**activity).to_owned(),
            scene: (**scene).to_owned(),
            bonus_type: (**bonus_type).to_owned(),
            total,
            shards,
        });
    }
    budgets
}

/// `*` says that a budget is combined; a kind that is named has to fit it.
fn check_kind(path: &str, at: Option<usize>, raw: &RawBudget, findings: &Findings<'_>) -> BudgetKind {
    let stars = raw.scene.get().is_some_and(|scene| &**scene == ALL)
        || raw.bonus_type.get().is_some_and(|bonus_type| &**bonus_type == ALL);
    let kind = match raw.kind.get() {
        Some(RawBudgetKind::Sharded) => BudgetKind::Sharded,
        Some(RawBudgetKind::Strict) => BudgetKind::Strict,
        Some(RawBudgetKind::Combined) => BudgetKind::Combined,
        None if stars => return BudgetKind::Combined,
        None => return BudgetKind::Sharded,
    };
    let (found, allowed) = match (kind, stars) {
        (BudgetKind::Combined, false) => (
            "a combined budget of one scene and one type",
            "it must have `*` for its scene, its type or both",
        ),
        (BudgetKind::Sharded | BudgetKind::Strict, true) => {
            ("`*` for a scene or a type", "only a combined budget may have it")
        }
        _ => return kind,
    };
    let fault = Fault::Clash { found: found.to_owned(), allowed };
    findings.note(join(path, "kind"), raw.kind.at().or(at), fault);
    kind
}

/// By default eight, or fewer where the total is smaller: a shard holds one unit at least.
fn check_shards(path: &str, raw: &RawBudget, kind: BudgetKind, findings: &Findings<'_>) -> u32 {
    let own = raw.shards.get().map(|shards| shards.0);
    let total = raw.total.get().and_then(|total| u64::try_from(total.0).ok());
    let note = |found: String, allowed| {
        findings.note(join(path, "shards"), raw.shards.at(), Fault::Clash { found, allowed });
    };
    if kind == BudgetKind::Strict {
        if own.is_some_and(|shards| shards != 1) {
            note("shards of a strict budget".to_owned(), "it has one row; leave `shards` out");
        }
        return 1;
    }
    let most = total.map_or(u32::MAX, |total| u32::try_from(total).unwrap_or(u32::MAX));
    if let Some(shards) = own.filter(|shards| *shards > most) {
        note(format!("{shards} shards of a total of {most}"), "there may be at most as many shards as units");
    }
    own.unwrap_or(BUDGET_SHARDS_DEFAULT.min(most))
}

pub(super) fn check_caps(
    caps: &Field<BTreeMap<Spanned<String>, Needed<RawCap>>>,
    known: &Known<'_>,
) -> BTreeMap<String, Cap> {
    let mut checked = BTreeMap::new();
    for (name, table) in caps.get().into_iter().flatten() {
        let at = Some(name.span().start);
        known.check_type("caps", at, name.get_ref());
        let Some(raw) = table.get() else { continue };
        let path = join("caps", name.get_ref());
        if !raw.order.is_given() && !raw.total.is_given() {
            let found = "a cap with neither `order` nor `total`".to_owned();
            let allowed = "give one of them or both, or leave the table out";
            known.findings.note(path.as_str(), table.at(), Fault::Clash { found, allowed });
        }
        let cap = Cap { order: raw.order.get().map(|own| own.0), total: raw.total.get().map(|own| own.0) };
        if let (Some(order), Some(total)) = (cap.order, cap.total)
            && order > total
        {
            let found = format!("order = {order} is above total = {total}");
            let allowed = "one order may be at most as large as all together";
            known.findings.note(join(&path, "order"), raw.order.at(), Fault::Clash { found, allowed });
        }
        checked.insert(name.get_ref().clone(), cap);
    }
    checked
}

pub(super) fn check_pacing(pacing: &Field<RawPacing>, findings: &Findings<'_>) -> Pacing {
    check_pacing_over("pacing", pacing, &Pacing::default(), findings)
}

/// The pacing of a table, where what it leaves out is as in `default`.
pub(super) fn check_pacing_over(
    path: &str,
    pacing: &Field<RawPacing>,
    default: &Pacing,
    findings: &Findings<'_>,
) -> Pacing {
    fn or<T: Copy, const MIN: u64, const MAX: u64>(own: &Field<Number<T, MIN, MAX>>, default: T) -> T {
        own.get().map_or(default, |own| own.0)
    }
    let defaults = RawPacing::default();
    let raw = pacing.get().unwrap_or(&defaults);
    let pacing_at = pacing.at();
    let pacing = Pacing {
        hold_max_ms: or(&raw.hold_max_ms, default.hold_max_ms),
        deadline_ms: or(&raw.deadline_ms, default.deadline_ms),
        requeue_delay_ms: or(&raw.requeue_delay_ms, default.requeue_delay_ms),
        requeue_delay_max_ms: or(&raw.requeue_delay_max_ms, default.requeue_delay_max_ms),
        max_failures: or(&raw.max_failures, default.max_failures),
        grant_batch: or(&raw.grant_batch, default.grant_batch),
        in_hand_max: or(&raw.in_hand_max, default.in_hand_max),
        lane_events_max: or(&raw.lane_events_max, default.lane_events_max),
        lane_bytes_max: or(&raw.lane_bytes_max, default.lane_bytes_max),
    };
    let at_most = |low: (&str, u64, Option<usize>), high: (&str, u64), allowed| {
        if low.1 > high.1 {
            let found = format!("{} = {} is above {} = {}", low.0, low.1, high.0, high.1);
            findings.note(join(path, low.0), low.2.or(pacing_at), Fault::Clash { found, allowed });
        }
    };
    at_most(
        ("hold_max_ms", pacing.hold_max_ms, raw.hold_max_ms.at()),
        ("deadline_ms", pacing.deadline_ms),
        "what is held must pass before the deadline",
    );
    at_most(
        ("requeue_delay_ms", pacing.requeue_delay_ms, raw.requeue_delay_ms.at()),
        ("requeue_delay_max_ms", pacing.requeue_delay_max_ms),
        "the first delay may be at most the longest",
    );
    at_most(
        ("grant_batch", pacing.grant_batch.into(), raw.grant_batch.at()),
        ("in_hand_max", pacing.in_hand_max.into()),
        "one full batch must fit into the grant calls in flight",
    );
    pacing
}
