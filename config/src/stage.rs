//! Stages a change for some processes, promotes it to all, or takes it back; and says whether it has proven itself.
//!
//! A staged change is a part of the document, so it is numbered, kept and told like any other one, and every process has
//! the same version. It may reach limits, fuses, ranks and pacing: what one process may have otherwise than the next
//! one. Where a guard is exceeded, a process gives the change up by itself and reports why.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windfall_contract::rules::{Guards, Rules, Staged};

use crate::difference::differences;
use crate::document::{EditError, parse_rules, rules_text, with_staged, with_staged_for_all, without_staged};
use crate::refusal::Refusal;
use crate::status::{ProcessStatus, SILENT_AFTER_MS};

/// The time after the proof in which a change can be promoted before every process gives it up.
pub const PROMOTE_WITHIN_MS: u64 = 60_000;

/// What a process does with the change that is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedStatus {
    /// The change, by the time at which it was staged.
    pub since_ms: u64,
    /// Whether this process runs it.
    pub runs: bool,
    /// Why it has given it up, where it has.
    pub given_up: Option<String>,
}

/// The processes that an operator wants to try a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Triers {
    /// These ones, by the names that they report.
    Named(Vec<String>),
    /// This share of the processes with consumers in per cent, 1 to 100: rounded up, the first ones by name.
    Percent(u8),
}

/// Who tries a change, for how long, and within which bounds.
#[derive(Debug, Clone)]
pub struct StageFor {
    /// The processes, by the names that they report.
    pub processes: Vec<String>,
    /// Where each gives it up.
    pub guards: Guards,
    /// The time after which it counts as proven, in ms.
    pub proven_after_ms: u64,
}

/// A change was not staged, promoted or taken back. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Another change is staged.
    #[error(
        "a change is staged already, for {0}: promote it or take it back first (`windfall rules promote`, `windfall rules abort`)"
    )]
    Already(String),
    /// Nothing is staged.
    #[error("no change is staged")]
    Nothing,
    /// The change would change nothing.
    #[error("the document says what the rules in force say: there is nothing to try")]
    NoDifference,
    /// The change reaches what all processes must have alike.
    #[error(
        "only limits, fuses, priorities and pacing can be tried by some processes, and this changes {0}: make that change for all first, with `windfall rules set`"
    )]
    NotForSome(String),
    /// A program that does not know staged changes would refuse the document, and run behind the others.
    #[error(
        "{0} runs an older version of Windfall, which refuses a document with a staged change: bring all processes up to date first"
    )]
    OldProcess(String),
    /// A program that does not know a guard would refuse the document, and run behind the others.
    #[error(
        "{process} runs an older version of Windfall, which refuses a document with the guard `{guard}`: bring all processes up to date first, or leave this guard out"
    )]
    OldProcessForGuard {
        /// The process.
        process: String,
        /// The guard, by its key.
        guard: &'static str,
    },
    /// No process that could try the change has this name.
    #[error("no process with consumers has the name {name}; there are: {known}")]
    UnknownProcess {
        /// The process that was named.
        name: String,
        /// The names of the processes that could try it.
        known: String,
    },
    /// No process could try the change.
    #[error("no process with consumers reports now, so nobody could try the change")]
    NoProcess,
    /// The change has not proven itself.
    #[error(
        "it is not promoted: {0}; `windfall rules abort` takes it back, and --force promotes it in spite of that"
    )]
    NotProven(String),
    /// The rules in force are no document that can be changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The document has no place for the change.
    #[error(transparent)]
    Edit(#[from] EditError),
}

/// How a staged change stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// Every process runs it, or may still take it over; it counts as proven after so many ms.
    Running {
        /// The ms that are left.
        left_ms: u64,
    },
    /// Every process has run it for the whole time.
    Proven,
    /// It cannot count as proven any more; each reason is a sentence.
    Failed(Vec<String>),
}

impl Triers {
    /// Their names, by what the processes report, for a change with these guards.
    ///
    /// # Errors
    /// [`StageError::OldProcess`], [`StageError::OldProcessForGuard`], [`StageError::UnknownProcess`],
    /// [`StageError::NoProcess`].
    pub fn choose(
        &self,
        reports: &[ProcessStatus],
        guards: &Guards,
        now_ms: u64,
    ) -> Result<Vec<String>, StageError> {
        check_known(reports, guards, now_ms)?;
        let living = reports.iter().filter(|one| !one.is_silent(now_ms));
        let is_able = |one: &&ProcessStatus| {
            one.stages == Some(true) && one.refuses.is_none() && one.source_failure.is_none()
        };
        let able: Vec<&str> = living.filter(is_able).map(|one| one.process.as_str()).collect();
        match self {
            Self::Named(names) => match names.iter().find(|name| !able.contains(&name.as_str())) {
                None => Ok(names.clone()),
                Some(unknown) => {
                    let known = if able.is_empty() { "none reports now".to_owned() } else { able.join(", ") };
                    Err(StageError::UnknownProcess { name: unknown.clone(), known })
                }
            },
            Self::Percent(percent) => {
                let count = (able.len() * usize::from(*percent)).div_ceil(100);
                if count == 0 {
                    return Err(StageError::NoProcess);
                }
                Ok(able.into_iter().take(count).map(str::to_owned).collect())
            }
        }
    }
}

/// Refuses to stage a change with these guards while a process runs that would refuse the document.
pub(crate) fn check_known(reports: &[ProcessStatus], guards: &Guards, now_ms: u64) -> Result<(), StageError> {
    let living: Vec<&ProcessStatus> = reports.iter().filter(|one| !one.is_silent(now_ms)).collect();
    if let Some(old) = living.iter().find(|one| one.stages.is_none()) {
        return Err(StageError::OldProcess(old.process.clone()));
    }
    match living.iter().find_map(|one| Some((one.process.clone(), one.unknown_guard(guards)?))) {
        Some((process, guard)) => Err(StageError::OldProcessForGuard { process, guard }),
        None => Ok(()),
    }
}

/// The document `text` with the change to `wanted` staged. What is staged there and over goes.
///
/// # Errors
/// [`StageError`].
pub fn stage(text: &str, wanted: &Rules, who: &StageFor, now_ms: u64) -> Result<String, StageError> {
    let mut text = text.to_owned();
    let mut rules = parse_rules(&text, None)?;
    if let Some(staged) = rules.staged.take() {
        if now_ms < staged.until_ms {
            return Err(StageError::Already(staged.processes.join(", ")));
        }
        text = without_staged(&text)?;
    }
    let wanted = Rules { staged: None, ..wanted.clone() };
    let found = differences(&rules, &wanted);
    let for_some = |key: &str| key.starts_with("limits.") || key.starts_with("pacing.");
    if let Some(other) = found.iter().find(|one| !for_some(&one.key)) {
        return Err(StageError::NotForSome(format!("`{}`", other.key)));
    }
    if found.is_empty() {
        return Err(StageError::NoDifference);
    }
    let proven_ms = now_ms.saturating_add(who.proven_after_ms);
    let staged = Staged {
        since_ms: now_ms,
        proven_ms,
        until_ms: proven_ms.saturating_add(PROMOTE_WITHIN_MS),
        processes: who.processes.clone(),
        guards: who.guards,
        limits: wanted.limits,
        pacing: wanted.pacing,
    };
    let text = with_staged(&text, &rules, &staged).unwrap_or_else(|| {
        // What was parsed has an end, so this writes the same with every default.
        rules_text(&Rules { staged: Some(Box::new(staged)), ..rules })
    });
    parse_rules(&text, None)?;
    Ok(text)
}

/// The document with its staged change made for all. `is_forced` makes it though it has not proven itself.
///
/// # Errors
/// [`StageError`].
pub fn promote(
    text: &str,
    reports: &[ProcessStatus],
    is_forced: bool,
    now_ms: u64,
) -> Result<String, StageError> {
    let rules = parse_rules(text, None)?;
    let staged = rules.staged.as_deref().ok_or(StageError::Nothing)?;
    if !is_forced && let Some(why) = unproven(staged, reports, now_ms) {
        return Err(StageError::NotProven(why));
    }
    let promoted = with_staged_for_all(text)?;
    parse_rules(&promoted, None)?;
    Ok(promoted)
}

/// The document without its staged change.
///
/// # Errors
/// [`StageError`].
pub fn abort(text: &str) -> Result<String, StageError> {
    if parse_rules(text, None)?.staged.is_none() {
        return Err(StageError::Nothing);
    }
    Ok(without_staged(text)?)
}

/// The first reasons, and how many there are beside them, in one sentence's part.
pub fn shortened_reasons(reasons: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = reasons.iter().take(SHOWN).map(|reason| reason.chars().take(400).collect::<String>());
    let shown = shown.collect::<Vec<_>>().join("; ");
    match reasons.len() {
        0..=SHOWN => shown,
        all => format!("{shown}; and {} more", all - SHOWN),
    }
}

/// How a staged change stands, by what its processes report.
pub fn trial(staged: &Staged, reports: &[ProcessStatus], now_ms: u64) -> Trial {
    let mut reasons = Vec::new();
    if now_ms >= staged.until_ms {
        reasons.push("its time was over before it was promoted, so no process runs it".to_owned());
    }
    // A process hears of it within a second, and reports every few.
    let is_young = now_ms.saturating_sub(staged.since_ms) <= SILENT_AFTER_MS;
    let mut all_run = true;
    for name in &staged.processes {
        let report = reports.iter().find(|report| report.process == *name);
        let own = report.and_then(|report| report.staged.as_ref());
        let own = own.filter(|own| own.since_ms == staged.since_ms);
        match (report, own) {
            (_, Some(StagedStatus { given_up: Some(why), .. })) => {
                reasons.push(format!("{name} gave it up: {why}"));
            }
            (Some(report), _) if report.refuses.is_some() => {
                reasons.push(format!("{name} refuses the rules"));
            }
            (Some(report), Some(StagedStatus { runs: true, .. })) if !report.is_silent(now_ms) => {
                // What it reported before says nothing of the rest of the time.
                all_run &= report.at_ms >= staged.proven_ms;
            }
            _ if is_young => all_run = false,
            (Some(report), _) if !report.is_silent(now_ms) => {
                reasons.push(format!("{name} does not run it"));
            }
            _ => reasons.push(format!("{name} has not reported for long, or has ended")),
        }
    }
    match (reasons.is_empty(), all_run && now_ms >= staged.proven_ms) {
        (false, _) => Trial::Failed(reasons),
        (true, true) => Trial::Proven,
        (true, false) => Trial::Running { left_ms: staged.proven_ms.saturating_sub(now_ms) },
    }
}

/// Why a staged change does not count as proven; nothing where it does.
pub(crate) fn unproven(staged: &Staged, reports: &[ProcessStatus], now_ms: u64) -> Option<String> {
    match trial(staged, reports, now_ms) {
        Trial::Proven => None,
        Trial::Failed(reasons) => Some(shortened_reasons(&reasons)),
        Trial::Running { left_ms: 0 } => {
            Some("not every process has reported since its time was over".to_owned())
        }
        Trial::Running { left_ms } => Some(format!("it counts as proven in {} s", left_ms.div_ceil(1000))),
    }
}

/// How a staged change stands, as `windfall rules status --json` and the console say it.
pub fn standing_json(staged: &Staged, reports: &[ProcessStatus], now_ms: u64) -> Value {
    let (state, left_ms, reasons) = match trial(staged, reports, now_ms) {
        Trial::Running { left_ms } => ("running", left_ms, Vec::new()),
        Trial::Proven => ("proven", 0, Vec::new()),
        Trial::Failed(reasons) => ("failed", 0, reasons),
    };
    json!({
        "since_ms": staged.since_ms, "proven_ms": staged.proven_ms, "until_ms": staged.until_ms,
        "processes": staged.processes, "state": state, "left_ms": left_ms, "reasons": reasons,
        "guards": BTreeMap::from(staged.guards.named()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::document::{Bucket, RulesEdit};
    use windfall_contract::rules::Fuse;

    const SAMPLE: &str = include_str!("../samples/rules.toml");
    const NOW_MS: u64 = 1_790_000_000_000;

    fn who() -> StageFor {
        let guards = Guards { oldest_max_ms: Some(20_000), ..Guards::default() };
        StageFor { processes: vec!["consumer-a-1".into()], guards, proven_after_ms: 600_000 }
    }

    fn wanted() -> Rules {
        let badge = RulesEdit::Limit { bucket: Bucket::Type("badge".into()), rate_per_s: 1500, burst: None };
        let coin = RulesEdit::Fuse { bonus_type: "coin".into(), fuse: Fuse::Pause };
        let text = coin.apply(&badge.apply(SAMPLE).unwrap()).unwrap();
        parse_rules(&text.replace("grant_batch = 1000", "grant_batch = 500"), None).unwrap()
    }

    fn staged_text() -> String {
        stage(SAMPLE, &wanted(), &who(), NOW_MS).unwrap()
    }

    fn report(runs: bool, given_up: Option<&str>) -> ProcessStatus {
        let given_up = given_up.map(str::to_owned);
        ProcessStatus {
            process: "consumer-a-1".into(),
            version: 2,
            at_ms: NOW_MS + 1000,
            refuses: None,
            source_failure: None,
            stages: Some(true),
            staged: Some(StagedStatus { since_ms: NOW_MS, runs, given_up }),
            guards: Vec::new(),
            knows_approval: true,
        }
    }

    #[test]
    fn a_staged_change_is_in_the_document_and_changes_nothing_for_the_others() {
        let (before, after) =
            (parse_rules(SAMPLE, None).unwrap(), parse_rules(&staged_text(), None).unwrap());
        let staged = after.staged.clone().unwrap();
        assert_eq!(Rules { staged: None, ..after.clone() }, before);
        assert_eq!((&staged.limits, &staged.pacing), (&wanted().limits, &wanted().pacing));
        assert_eq!(
            (staged.since_ms, staged.proven_ms, staged.guards),
            (NOW_MS, NOW_MS + 600_000, who().guards)
        );
        assert_eq!(Rules { staged: None, tries_staged: false, ..after.with_staged() }, wanted());
        // What is written from it reads back as it, and only what differs is named.
        assert_eq!(parse_rules(&rules_text(&after), None).unwrap(), after);
        let keys: Vec<_> = differences(&before, &after).into_iter().map(|one| one.key).collect();
        let expected = [
            "staged.guards.oldest_max_ms",
            "staged.limits.types.badge.burst",
            "staged.limits.types.badge.rate_per_s",
            "staged.limits.types.coin.fuse",
            "staged.pacing.grant_batch",
            "staged.processes",
            "staged.proven_ms",
            "staged.since_ms",
            "staged.until_ms",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn promoted_it_is_what_was_wanted_and_aborted_what_was_before() {
        let text = staged_text();
        let early = promote(&text, &[report(true, None)], false, NOW_MS + 2000).unwrap_err();
        assert!(early.to_string().contains("it counts as proven in 598 s"), "{early}");
        let proven = ProcessStatus { at_ms: NOW_MS + 600_000, ..report(true, None) };
        let promoted = promote(&text, &[proven], false, NOW_MS + 601_000).unwrap();
        assert_eq!(parse_rules(&promoted, None).unwrap(), wanted());
        assert!(promoted.contains("# a lower number takes from the global bucket first"), "comments stay");
        assert!(!promoted.contains("\n[staged") && promoted.trim_end().ends_with("[end]"), "{promoted}");
        assert_eq!(abort(&text).unwrap(), SAMPLE);
        // A document without the tables that the change reaches gets them before its end.
        let at = SAMPLE.find("[pacing]").unwrap();
        let rest = SAMPLE[at..].find("# ---- Staged").unwrap();
        let bare = format!("{}{}", &SAMPLE[..at], &SAMPLE[at + rest..]);
        let text = stage(&bare, &wanted(), &who(), NOW_MS).unwrap();
        let promoted = promote(&text, &[], true, NOW_MS).unwrap();
        assert_eq!(parse_rules(&promoted, None).unwrap(), wanted());
        assert!(matches!(abort(SAMPLE), Err(StageError::Nothing)));
        assert!(matches!(promote(SAMPLE, &[], true, NOW_MS), Err(StageError::Nothing)));
    }

    #[test]
    fn only_what_may_differ_between_processes_is_staged() {
        let mut others = wanted();
        others.budgets[0].total += 1;
        let refused = stage(SAMPLE, &others, &who(), NOW_MS).unwrap_err();
        assert!(refused.to_string().contains("budgets[spring-2027"), "{refused}");
        let same = parse_rules(SAMPLE, None).unwrap();
        assert!(matches!(stage(SAMPLE, &same, &who(), NOW_MS), Err(StageError::NoDifference)));
        let again = stage(&staged_text(), &wanted(), &who(), NOW_MS + 1).unwrap_err();
        assert!(matches!(again, StageError::Already(_)), "{again}");
        // Over, it is in nobody's way.
        let text = stage(&staged_text(), &wanted(), &who(), NOW_MS + 700_000).unwrap();
        assert_eq!(parse_rules(&text, None).unwrap().staged.unwrap().since_ms, NOW_MS + 700_000);
    }

    #[test]
    fn a_change_for_all_ends_a_trial_of_the_same_and_a_rollback_begins_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.toml");
        std::fs::write(&path, staged_text()).unwrap();
        let store = crate::RulesStore::new(&path, None);
        let limit = |name: &str| {
            let bucket = Bucket::Type(name.into());
            let edit = RulesEdit::Limit { bucket, rate_per_s: 3, burst: Some(100) };
            let text = edit.apply(&store.show().unwrap()).unwrap();
            store.set(&text, "ann", "slow", NOW_MS).unwrap();
            parse_rules(&store.show().unwrap(), None).unwrap()
        };
        assert!(limit("cash").staged.is_some(), "it has nothing to do with the trial");
        let rules = limit("badge");
        assert_eq!((rules.staged, rules.limits.types["badge"].limit.rate_per_s), (None, 3));
        store.rollback(2, "ann", "back", NOW_MS).unwrap();
        let rules = parse_rules(&store.show().unwrap(), None).unwrap();
        assert_eq!((rules.staged, rules.limits.types["badge"].limit.rate_per_s), (None, 2000));
    }

    #[test]
    fn a_trial_is_proven_by_every_process_and_failed_by_one() {
        let staged = parse_rules(&staged_text(), None).unwrap().staged.unwrap();
        let at = |ms: u64, report: ProcessStatus| {
            trial(&staged, &[ProcessStatus { at_ms: NOW_MS + ms, ..report }], NOW_MS + ms)
        };
        assert_eq!(at(1000, report(true, None)), Trial::Running { left_ms: 599_000 });
        // It has not heard of it yet; after a while that is a failure.
        assert_eq!(at(1000, report(false, None)), Trial::Running { left_ms: 599_000 });
        assert!(matches!(at(30_000, report(false, None)), Trial::Failed(_)));
        assert_eq!(at(600_000, report(true, None)), Trial::Proven);
        assert!(matches!(at(660_000, report(true, None)), Trial::Failed(_)), "its time is over");
        let Trial::Failed(why) = at(9000, report(false, Some("lag"))) else { panic!("not failed") };
        assert_eq!(why, ["consumer-a-1 gave it up: lag"]);
        let silent = trial(&staged, &[report(true, None)], NOW_MS + 40_000);
        assert!(matches!(&silent, Trial::Failed(why) if why[0].contains("not reported")), "{silent:?}");
        assert!(matches!(trial(&staged, &[], NOW_MS + 40_000), Trial::Failed(_)));
        // What another change's trial has ended with says nothing of this one.
        let mut old = report(false, Some("lag"));
        old.staged.as_mut().unwrap().since_ms -= 1;
        assert_eq!(at(1000, old), Trial::Running { left_ms: 599_000 });
        let refused =
            promote(&staged_text(), &[report(false, Some("lag"))], false, NOW_MS + 2000).unwrap_err();
        assert!(refused.to_string().contains("gave it up: lag"), "{refused}");
        assert!(promote(&staged_text(), &[report(false, Some("lag"))], true, NOW_MS + 2000).is_ok());
    }

    #[test]
    fn a_share_is_rounded_up_and_only_who_can_try_is_chosen() {
        let named = |name: &str, stages: Option<bool>| ProcessStatus {
            process: name.into(),
            stages,
            staged: None,
            ..report(false, None)
        };
        let all =
            ["a", "b", "c"].map(|name| named(name, Some(true))).into_iter().chain([named("d", Some(false))]);
        let mut all: Vec<_> = all.collect();
        let at_ms = NOW_MS + 2000;
        let none = Guards::default();
        let share = |all: &[ProcessStatus], percent: u8| Triers::Percent(percent).choose(all, &none, at_ms);
        assert_eq!(share(&all, 34).unwrap(), ["a", "b"]);
        assert_eq!(share(&all, 1).unwrap(), ["a"]);
        assert_eq!(share(&all, 100).unwrap(), ["a", "b", "c"]);
        assert!(matches!(share(&all[3..], 100), Err(StageError::NoProcess)));
        let wanted = |name: &str| Triers::Named(vec![name.to_owned()]).choose(&all, &none, at_ms);
        assert_eq!(wanted("b").unwrap(), ["b"]);
        assert!(wanted("d").unwrap_err().to_string().ends_with("there are: a, b, c"));
        assert!(Triers::Named(vec!["a".into()]).choose(&all, &none, at_ms + 60_000).is_err(), "it is silent");
        all.push(named("old", None));
        assert!(matches!(share(&all, 100), Err(StageError::OldProcess(name)) if name == "old"));
    }

    /// A process of the version before would refuse the document, and with older rules than the ledger has seen it would grant
    /// nothing: so all are asked, also those that would not try the change.
    #[test]
    fn a_guard_that_a_process_does_not_know_is_not_staged() {
        let (live, _) = crate::LiveRules::adjustable(parse_rules(SAMPLE, None).unwrap(), None);
        let new = ProcessStatus::of("consumer-a-1", &live.status(), true, NOW_MS);
        let old = ProcessStatus {
            process: "gateway-b-1".into(),
            guards: Vec::new(),
            stages: Some(false),
            ..new.clone()
        };
        let choose =
            |reports: &[ProcessStatus], guards: Guards| Triers::Percent(100).choose(reports, &guards, NOW_MS);
        let both = [new.clone(), old.clone()];
        assert_eq!(choose(&both, who().guards).unwrap(), ["consumer-a-1"], "every version has this one");
        let latency = Guards { latency_p99_max_ms: Some(2_000), ..Guards::default() };
        let budget = Guards { budget_lasts_min_ms: Some(600_000), ..who().guards };
        for (guards, key) in [(latency, "latency_p99_max_ms"), (budget, "budget_lasts_min_ms")] {
            assert_eq!(choose(std::slice::from_ref(&new), guards).unwrap(), ["consumer-a-1"]);
            let refused = choose(&both, guards).unwrap_err();
            assert!(
                matches!(&refused, StageError::OldProcessForGuard { process, guard } if process == "gateway-b-1" && *guard == key),
                "{refused}"
            );
            // One that has ended is in nobody's way.
            let gone = ProcessStatus { at_ms: NOW_MS - 60_000, ..old.clone() };
            assert!(choose(&[new.clone(), gone], guards).is_ok());
        }
        // What was reported before there were such guards.
        let mut report = serde_json::to_value(&new).unwrap();
        report.as_object_mut().unwrap().remove("guards");
        let read: ProcessStatus = serde_json::from_value(report).unwrap();
        let refused = choose(&[read], latency).unwrap_err();
        assert!(refused.to_string().contains("the guard `latency_p99_max_ms`"), "{refused}");
    }

    #[test]
    fn every_guard_is_written_and_read_and_kept_within_its_range() {
        let guards = Guards {
            oldest_max_ms: Some(1_000),
            failed_max_percent: Some(0),
            lag_max_records: Some(1),
            latency_p99_max_ms: Some(10),
            budget_lasts_min_ms: Some(60_000),
        };
        let text = |guards: Guards| stage(SAMPLE, &wanted(), &StageFor { guards, ..who() }, NOW_MS);
        let rules = parse_rules(&text(guards).unwrap(), None).unwrap();
        let staged = rules.staged.clone().unwrap();
        assert_eq!(staged.guards, guards);
        assert_eq!(parse_rules(&rules_text(&rules), None).unwrap(), rules);
        let standing = standing_json(&staged, &[], NOW_MS);
        assert_eq!(standing["guards"]["latency_p99_max_ms"], 10);
        assert_eq!(standing["guards"].as_object().unwrap().len(), guards.named().len());
        for (wrong, key) in [
            (Guards { latency_p99_max_ms: Some(9), ..guards }, "staged.guards.latency_p99_max_ms"),
            (Guards { latency_p99_max_ms: Some(86_400_001), ..guards }, "staged.guards.latency_p99_max_ms"),
            (Guards { budget_lasts_min_ms: Some(59_999), ..guards }, "staged.guards.budget_lasts_min_ms"),
            (
                Guards { budget_lasts_min_ms: Some(2_592_000_001), ..guards },
                "staged.guards.budget_lasts_min_ms",
            ),
        ] {
            let refused = text(wrong).unwrap_err().to_string();
            assert!(refused.contains(key), "{refused}");
        }
    }

    #[test]
    fn a_change_reaches_the_types_that_it_names_and_budgets_over_all_types() {
        let reached = |wanted: &Rules| {
            let rules = parse_rules(&stage(SAMPLE, wanted, &who(), NOW_MS).unwrap(), None).unwrap();
            ["badge", "cash", "*"].map(|bonus_type| rules.staged_reaches(bonus_type))
        };
        let badge = RulesEdit::Limit { bucket: Bucket::Type("badge".into()), rate_per_s: 1500, burst: None };
        let badge = parse_rules(&badge.apply(SAMPLE).unwrap(), None).unwrap();
        assert_eq!(reached(&badge), [true, false, true]);
        assert_eq!(reached(&wanted()), [true; 3], "pacing is that of all types");
        assert!(!badge.staged_reaches("badge"), "nothing is staged");
    }
}
