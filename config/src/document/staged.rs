//! `[staged]`: a change that some processes try before it holds for all. It names what differs; what it says nothing
//! about is as in the rest of the document.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, TableLike};
use windfall_contract::rules::{Guards, Limits, Pacing, Rules, Staged, TypeLimit};

use super::END;
use super::check::{Known, distinct};
use super::edit::{EditError, put, table};
use super::limits::{check_pacing_over, fuse_of, needed_here, plain_limit};
use super::raw::{RawStaged, RawStagedLimits};
use super::value::Field;
use super::write::{Out, quoted, quoted_list};
use crate::bounds::{PROCESS_NAME_MAX_BYTES, STAGED_PROCESSES_MAX};
use crate::findings::{Findings, join};
use crate::nearest::shortened;
use crate::refusal::Fault;

/// The table's name.
pub(super) const STAGED: &str = "staged";

pub(super) fn check_staged(
    raw: &Field<RawStaged>,
    limits: &Limits,
    pacing: &Pacing,
    known: &Known<'_>,
) -> Option<Box<Staged>> {
    let at = raw.at();
    let raw = raw.get()?;
    let findings = known.findings;
    let time = |time: &Field<crate::bounds::TimeMs>| time.get().map_or(0, |time| time.0);
    let (since_ms, proven_ms, until_ms) = (time(&raw.since_ms), time(&raw.proven_ms), time(&raw.until_ms));
    if raw.since_ms.get().is_some()
        && raw.proven_ms.get().is_some()
        && raw.until_ms.get().is_some()
        && !(since_ms <= proven_ms && proven_ms < until_ms)
    {
        let found = format!("since_ms = {since_ms}, proven_ms = {proven_ms}, until_ms = {until_ms}");
        let allowed = "it must be since_ms ≤ proven_ms < until_ms";
        findings.note(STAGED, at, Fault::Clash { found, allowed });
    }
    let guards = raw.guards.get();
    let guards = Guards {
        oldest_max_ms: guards.and_then(|raw| Some(raw.oldest_max_ms.get()?.0)),
        failed_max_percent: guards.and_then(|raw| Some(raw.failed_max_percent.get()?.0)),
        lag_max_records: guards.and_then(|raw| Some(raw.lag_max_records.get()?.0)),
        latency_p99_max_ms: guards.and_then(|raw| Some(raw.latency_p99_max_ms.get()?.0)),
        budget_lasts_min_ms: guards.and_then(|raw| Some(raw.budget_lasts_min_ms.get()?.0)),
    };
    Some(Box::new(Staged {
        since_ms,
        proven_ms,
        until_ms,
        processes: check_processes(raw, findings),
        guards,
        limits: check_limits(&raw.limits, limits, known),
        pacing: check_pacing_over("staged.pacing", &raw.pacing, pacing, findings),
    }))
}

fn check_processes(raw: &RawStaged, findings: &Findings<'_>) -> Vec<String> {
    let count = raw.processes.get().map_or(0, Vec::len);
    if count > STAGED_PROCESSES_MAX {
        let allowed = format!("an array of 1 to {STAGED_PROCESSES_MAX} names of processes");
        let fault = Fault::NotAllowed { found: format!("{count} names"), allowed };
        findings.note("staged.processes", raw.processes.at(), fault);
    }
    let fits = |name: &str| {
        (1..=PROCESS_NAME_MAX_BYTES).contains(&name.len()) && !name.contains(|sign: char| sign.is_control())
    };
    let names = distinct("staged.processes", &raw.processes, findings).take(STAGED_PROCESSES_MAX);
    let names = names.inspect(|(at, name)| {
        if !fits(name) {
            let allowed = format!("1 to {PROCESS_NAME_MAX_BYTES} bytes without control characters");
            let fault = Fault::NotAllowed { found: format!("{:?}", shortened(name)), allowed };
            findings.note("staged.processes", *at, fault);
        }
    });
    names.map(|(_, name)| name.to_owned()).collect()
}

fn check_limits(raw: &Field<RawStagedLimits>, base: &Limits, known: &Known<'_>) -> Limits {
    let mut limits = base.clone();
    let Some(raw) = raw.get() else { return limits };
    if raw.global.is_given() {
        limits.global = plain_limit(&raw.global);
    }
    let no_types = BTreeMap::new();
    for (name, table) in raw.types.get().unwrap_or(&no_types) {
        known.check_type("staged.limits.types", Some(name.span().start), name.get_ref());
        let (Some(own), Some(raw)) = (limits.types.get_mut(name.get_ref()), table.get()) else { continue };
        if raw.rate_per_s.is_given() || raw.burst.is_given() {
            let path = join("staged.limits.types", name.get_ref());
            let rate = needed_here(&raw.rate_per_s, &path, "rate_per_s", table.at(), known.findings);
            let burst = needed_here(&raw.burst, &path, "burst", table.at(), known.findings);
            if let (Some(rate), Some(burst)) = (rate, burst) {
                (own.limit.rate_per_s, own.limit.burst) = (rate.0, burst.0);
            }
        }
        own.fuse = raw.fuse.get().map_or(own.fuse, |fuse| fuse_of(*fuse));
        own.priority = raw.priority.get().map_or(own.priority, |priority| priority.0);
    }
    limits
}

/// The tables that stage this change of these rules.
pub(super) fn write_staged(rules: &Rules, staged: &Staged, out: &mut Out) {
    out.head(format_args!("[staged]"));
    out.line(format_args!("since_ms = {}", staged.since_ms));
    out.line(format_args!("proven_ms = {}", staged.proven_ms));
    out.line(format_args!("until_ms = {}", staged.until_ms));
    out.line(format_args!("processes = {}", quoted_list(&staged.processes)));
    let guards = staged.guards.named();
    if guards.iter().any(|(_, bound)| bound.is_some()) {
        out.head(format_args!("[staged.guards]"));
    }
    for (key, bound) in guards {
        if let Some(bound) = bound {
            out.line(format_args!("{key} = {bound}"));
        }
    }
    if staged.limits.global != rules.limits.global {
        out.head(format_args!("[staged.limits.global]"));
        out.line(format_args!("rate_per_s = {}", staged.limits.global.rate_per_s));
        out.line(format_args!("burst = {}", staged.limits.global.burst));
    }
    for (name, own) in &staged.limits.types {
        if let Some(base) = rules.limits.types.get(name).filter(|base| *base != own) {
            write_type(name, base, own, out);
        }
    }
    write_pacing(&rules.pacing, &staged.pacing, out);
}

fn write_type(name: &str, base: &TypeLimit, own: &TypeLimit, out: &mut Out) {
    out.head(format_args!("[staged.limits.types.{}]", quoted(name)));
    if own.limit != base.limit {
        out.line(format_args!("rate_per_s = {}", own.limit.rate_per_s));
        out.line(format_args!("burst = {}", own.limit.burst));
    }
    if own.fuse != base.fuse {
        out.line(format_args!("fuse = \"{}\"", own.fuse));
    }
    if own.priority != base.priority {
        out.line(format_args!("priority = {}", own.priority));
    }
}

fn write_pacing(base: &Pacing, own: &Pacing, out: &mut Out) {
    if own == base {
        return;
    }
    out.head(format_args!("[staged.pacing]"));
    let mut before = Out::default();
    let mut after = Out::default();
    super::write::write_pacing_keys(base, &mut before);
    super::write::write_pacing_keys(own, &mut after);
    let pairs = before.text().lines().zip(after.text().lines());
    for (_, line) in pairs.filter(|(before, after)| before != after) {
        out.line(format_args!("{line}"));
    }
}

/// The tables of a document that stage this change, with a remark for whoever reads the document.
pub(super) fn staged_text(rules: &Rules, staged: &Staged) -> String {
    let mut out = Out::default();
    let names = staged.processes.len();
    out.line(format_args!(
        "# Tried by {names} of the processes, until `windfall rules promote` or `windfall rules abort`."
    ));
    write_staged(rules, staged, &mut out);
    out.into_text()
}

/// The same document with this staged change of it begun so much later.
pub(crate) fn with_staged_later(text: &str, staged: &Staged, later_ms: u64) -> Result<String, EditError> {
    let mut document = parse(text)?;
    let own = table(document.as_table_mut(), STAGED)?;
    let times =
        [("since_ms", staged.since_ms), ("proven_ms", staged.proven_ms), ("until_ms", staged.until_ms)];
    for (key, time_ms) in times {
        // What exceeds the range of TOML is out of that of a time, and is refused with the document.
        put(own, key, i64::try_from(time_ms.saturating_add(later_ms)).unwrap_or(i64::MAX));
    }
    Ok(document.to_string())
}

/// The same document without its staged change.
pub(crate) fn without_staged(text: &str) -> Result<String, EditError> {
    let mut document = parse(text)?;
    document.remove(STAGED);
    Ok(document.to_string())
}

/// The same document with its staged change made for all.
pub(crate) fn with_staged_for_all(text: &str) -> Result<String, EditError> {
    let mut document = parse(text)?;
    // A table that is made new is written after those that are there: the end has to be made later.
    let end = document.remove(END);
    if let Some(staged) = document.remove(STAGED)
        && let Some(staged) = staged.as_table_like()
    {
        for name in ["limits", "pacing"] {
            if let Some(changed) = staged.get(name).and_then(Item::as_table_like) {
                merge(changed, table(document.as_table_mut(), name)?)?;
            }
        }
    }
    if let Some(mut end) = end {
        if let Some(table) = end.as_table_mut() {
            table.set_position(Some(isize::MAX));
        }
        document.insert(END, end);
    }
    Ok(document.to_string())
}

fn merge(from: &dyn TableLike, into: &mut dyn TableLike) -> Result<(), EditError> {
    for (key, item) in from.iter() {
        match (item.as_table_like(), item.as_value()) {
            (Some(changed), _) => merge(changed, table(into, key)?)?,
            (None, Some(value)) => {
                let mut value = value.clone();
                value.decor_mut().clear();
                put(into, key, value);
            }
            (None, None) => {}
        }
    }
    Ok(())
}

fn parse(text: &str) -> Result<DocumentMut, EditError> {
    text.parse().map_err(|error: toml_edit::TomlError| EditError::Document(error.message().to_owned()))
}
