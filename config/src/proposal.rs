//! Changes of the rules that wait for a second person: which ones have to, and what is kept of each.
//!
//! The rules themselves ask for it, by `changes_need_approval`. To take that away is a change like any other one, so it
//! waits, too.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windfall_contract::rules::{Fuse, Limit, Limits, Rules, Staged};

use crate::change::{Actor, Change, History, ReadError, SetError, identity};
use crate::difference::{Difference, differences};
use crate::document::{parse_rules, version_of, with_staged_later, with_version};
use crate::stage::{check_known, unproven};
use crate::status::ProcessStatus;

/// The number of proposals that wait at once, at most: each has a whole document.
pub const PROPOSALS_MAX: usize = 16;
/// The time for which a proposal can be approved, in ms: a day.
pub const PROPOSAL_VALID_MS: u64 = 86_400_000;

/// A change of the rules that waits for approval. It never changes, and no other one gets its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Its number, by which it is approved.
    pub number: u64,
    /// When it was proposed, in ms since 1970.
    pub at_ms: u64,
    /// When it can be approved no more, in ms since 1970.
    pub expires_ms: u64,
    /// The person or program that proposes it.
    pub who: String,
    /// The caller whose key has proved that; `None` where the name was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The reason that was given for it.
    pub why: String,
    /// The version of the rules that it was made from; `None` where the document carried none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub based_on: Option<u64>,
    /// When the trial was staged that it promotes, in ms since 1970; `None` where it promotes none, or an older program has
    /// proposed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotes: Option<u64>,
    /// Whether it promotes that trial though it has not proven itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_force: bool,
    /// The whole document that is proposed, with that version.
    pub text: String,
}

/// Every change that waits for approval.
#[derive(Debug, Default)]
pub struct Proposals {
    /// Those that can be approved, by their numbers.
    pub open: Vec<Proposal>,
    /// The numbers of those that cannot be read, with the reason. Nobody can approve them, and they wait until they are
    /// refused: when they expire cannot be read, either.
    pub unreadable: Vec<(u64, ReadError)>,
    /// The numbers of those that have expired.
    pub(crate) over: Vec<u64>,
}

/// What the history has last, for a change of a document that is no rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    /// There is no history.
    Nothing,
    /// The newest document of it that is rules.
    Text(String),
    /// There is a history, and nothing of it can be read.
    Lost,
}

/// What a change needs before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Nothing.
    Open,
    /// It asks for approval of later changes, which every process has to know.
    Begins,
    /// A second person.
    Waits,
}

impl Proposal {
    /// A change as it is kept until it is approved; its number is given by the store.
    pub(crate) fn of(change: Change, number: u64, by_force: bool) -> Self {
        let promotes = change.before.as_deref().and_then(|before| promoted(before, &change.after));
        let based_on = change.before.as_deref().and_then(version_of);
        let text = based_on.and_then(|based_on| with_version(&change.after, based_on));
        Self {
            number,
            at_ms: change.at_ms,
            expires_ms: change.at_ms.saturating_add(PROPOSAL_VALID_MS),
            who: change.who,
            caller: change.caller,
            why: change.why,
            based_on,
            promotes,
            by_force: by_force && promotes.is_some(),
            text: text.unwrap_or(change.after),
        }
    }

    /// Whether a key has proved who proposes it: `proved` or `said`.
    pub const fn identity(&self) -> &'static str {
        identity(self.caller.is_some())
    }

    /// Whether it can be approved no more.
    pub const fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.expires_ms
    }

    /// What it changes in the document in force; `None` where that document has moved on since, or is no rules.
    pub fn differences_from(&self, in_force: &str) -> Option<Vec<Difference>> {
        let (before, after) = (parse_rules(in_force, None).ok()?, parse_rules(&self.text, None).ok()?);
        (self.based_on == Some(before.version)).then(|| differences(&before, &after))
    }

    /// As `windfall rules proposals --json` and the console show it: what it changes takes the place of the document.
    /// `in_force` is the document in force.
    pub fn row(&self, in_force: &str) -> Value {
        let differences = self.differences_from(in_force);
        json!({
            "number": self.number, "at_ms": self.at_ms, "expires_ms": self.expires_ms, "who": self.who,
            "identity": self.identity(), "why": self.why, "based_on": self.based_on,
            "promotes": self.promotes_from(in_force), "by_force": self.by_force,
            "is_overtaken": differences.is_none(), "differences": differences.unwrap_or_default(),
        })
    }

    /// Whether this caller has proposed it, or is said to have.
    pub(crate) fn is_by(&self, caller: &str) -> bool {
        match &self.caller {
            Some(own) => own == caller,
            // The console writes the person behind the caller: `ann: Ann Lee`.
            None => self.who.split(':').next().is_some_and(|said| said.trim() == caller),
        }
    }

    /// When the trial was staged that it promotes, also where the program that proposed it did not note that.
    fn promotes_from(&self, in_force: &str) -> Option<u64> {
        self.promotes.or_else(|| promoted(in_force, &self.text))
    }

    /// Whether it is the same change by the same person, as when it is proposed again since the answer was lost.
    pub(crate) fn is_repeat_of(&self, other: &Self) -> bool {
        // What was proposed without force is not made by force.
        (self.promotes, self.by_force) == (other.promotes, other.by_force)
            && (&self.who, &self.caller, &self.why, self.based_on, &self.text)
                == (&other.who, &other.caller, &other.why, other.based_on, &other.text)
    }

    /// The document to write when it is approved. A trial that it begins begins then: in its own time nobody could try it.
    pub(crate) fn text_at(&self, in_force: Option<&str>, now_ms: u64) -> String {
        let staged = |text: &str| parse_rules(text, None).ok().and_then(|rules| rules.staged);
        let Some(begun) = staged(&self.text) else { return self.text.clone() };
        let is_there = in_force.and_then(staged).is_some_and(|there| there.since_ms == begun.since_ms);
        if is_there {
            return self.text.clone();
        }
        let later_ms = now_ms.saturating_sub(self.at_ms);
        with_staged_later(&self.text, &begun, later_ms).unwrap_or_else(|_| self.text.clone())
    }
}

impl Proposals {
    /// Puts one that is kept under this number where it belongs.
    pub(crate) fn add(&mut self, number: u64, read: Result<Proposal, ReadError>, now_ms: u64) {
        match read {
            Ok(proposal) if proposal.is_over(now_ms) => self.over.push(number),
            Ok(proposal) => self.open.push(proposal),
            Err(error) => self.unreadable.push((number, error)),
        }
    }

    /// The one that is to be approved.
    pub(crate) fn find(self, number: u64) -> Result<Proposal, SetError> {
        if let Some((_, error)) = self.unreadable.into_iter().find(|(one, _)| *one == number) {
            return Err(SetError::DamagedProposal { number, why: error.to_string() });
        }
        self.open.into_iter().find(|one| one.number == number).ok_or(SetError::UnknownProposal(number))
    }

    /// The one that is to be refused; `None` where it is there and cannot be read.
    pub(crate) fn find_refused(self, number: u64) -> Result<Option<Proposal>, SetError> {
        if self.unreadable.iter().any(|(one, _)| *one == number) {
            return Ok(None);
        }
        self.find(number).map(Some)
    }
}

impl Last {
    /// By a history: the newest document that can be read says most of what was there.
    pub(crate) fn of(history: History) -> Self {
        let is_empty = history.changes.is_empty() && history.unreadable.is_empty();
        let mut texts = history.changes.into_iter().rev().map(|change| change.after);
        match texts.find(|text| parse_rules(text, None).is_ok()) {
            Some(text) => Self::Text(text),
            None if is_empty => Self::Nothing,
            None => Self::Lost,
        }
    }
}

/// Reads what is kept under this number.
pub(crate) fn read_proposal(number: u64, text: &str) -> io::Result<Proposal> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let proposal: Proposal = toml::from_str(text).map_err(|error| invalid(error.message().to_owned()))?;
    if proposal.number != number {
        return Err(invalid(format!("it says that it is proposal {}", proposal.number)));
    }
    Ok(proposal)
}

/// Writes into the log who has refused a proposal; `None` where it could not be read.
pub(crate) fn note_refused(number: u64, proposal: Option<&Proposal>, by: Actor<'_>) {
    tracing::info!(
        number,
        proposed_by = proposal.map(|one| one.who.as_str()),
        by = by.who,
        "a change of the rules was refused"
    );
}

/// When the trial of the document `before` was staged, where the document `after` makes for all what it tries.
fn promoted(before: &str, after: &str) -> Option<u64> {
    let (before, after) = (parse_rules(before, None).ok()?, parse_rules(after, None).ok()?);
    let tried = before.staged?;
    let is_ended = after.staged.is_none_or(|staged| staged.since_ms != tried.since_ms);
    (is_ended && after.limits == tried.limits && after.pacing == tried.pacing).then_some(tried.since_ms)
}

/// Refuses to approve what the processes' reports speak against now, whatever they said when it was proposed: the promotion of
/// a trial that is not proven any more, unless it was proposed by force; and a trial that a process would refuse.
pub(crate) fn check_reports(
    proposal: &Proposal,
    in_force: Option<&str>,
    reports: &[ProcessStatus],
    now_ms: u64,
) -> Result<(), SetError> {
    let staged = |text: &str| parse_rules(text, None).ok().and_then(|rules| rules.staged);
    let tried = in_force.and_then(staged);
    let promotes = in_force.and_then(|in_force| proposal.promotes_from(in_force)).or(proposal.promotes);
    if let Some(since_ms) = promotes.filter(|_| !proposal.by_force) {
        let why = match tried.as_deref().filter(|tried| tried.since_ms == since_ms) {
            Some(tried) => unproven(tried, reports, now_ms),
            None => Some("it is not staged any more".to_owned()),
        };
        if let Some(why) = why {
            return Err(SetError::NotProven { number: proposal.number, why });
        }
    }
    match staged(&proposal.text) {
        Some(begun) if tried.as_ref().is_none_or(|tried| tried.since_ms != begun.since_ms) => {
            check_known(reports, &begun.guards, now_ms).map_err(SetError::Trial)
        }
        _ => Ok(()),
    }
}

/// Refuses a second person who is none.
pub(crate) fn check_second(proposal: &Proposal, caller: Option<&str>) -> Result<(), SetError> {
    match caller {
        None => Err(SetError::Unproved),
        Some(caller) if proposal.is_by(caller) => Err(SetError::OwnProposal(proposal.number)),
        Some(_) => Ok(()),
    }
}

/// Refuses a proposal that was made from other rules than are there now.
pub(crate) fn check_unmoved(proposal: &Proposal, current: Option<u64>) -> Result<(), SetError> {
    if proposal.based_on == current {
        return Ok(());
    }
    let (based_on, current) = (proposal.based_on.unwrap_or(0), current.unwrap_or(0));
    Err(SetError::Moved { number: proposal.number, based_on, current })
}

/// The number of the open proposal that this one repeats; or none, if there is room for one more. Those that cannot be read
/// take room, too, since they do not expire.
pub(crate) fn find_repeat(kept: &Proposals, wanted: &Proposal) -> Result<Option<u64>, SetError> {
    if let Some(same) = kept.open.iter().find(|one| one.is_repeat_of(wanted)) {
        return Ok(Some(same.number));
    }
    if kept.open.len() + kept.unreadable.len() >= PROPOSALS_MAX {
        return Err(SetError::TooManyProposals);
    }
    Ok(None)
}

/// The number of the next proposal. `next` is what was noted for it.
pub(crate) fn next_number(kept: &Proposals, next: u64) -> u64 {
    let unreadable = kept.unreadable.iter().map(|(number, _)| *number);
    let numbers = kept.open.iter().map(|one| one.number).chain(unreadable).chain(kept.over.iter().copied());
    numbers.map(|number| number.saturating_add(1)).fold(next.max(1), u64::max)
}

/// Whether the document in force is no rules, so that [`gate`] has to know what the history has last.
pub(crate) fn needs_last(change: &Change) -> bool {
    change.before.as_deref().is_none_or(|before| parse_rules(before, None).is_err())
}

/// What a change needs. Where the document in force is no rules, what the history has last (`last`) decides: whoever finds a
/// broken document mends it, and gets no more by it. Where that is lost, too, nobody knows what the rules asked for, and
/// nothing is known to be safe.
pub(crate) fn gate(change: &Change, last: &Last) -> Gate {
    let rules = |text: &str| parse_rules(text, None).ok();
    let last_rules = || if let Last::Text(text) = last { rules(text) } else { None };
    let before = change.before.as_deref().and_then(rules).or_else(last_rules);
    let after = rules(&change.after);
    match (before, after) {
        (None, _) if *last == Last::Lost => Gate::Waits,
        (Some(before), after) if before.changes_need_approval => {
            let is_safe = after.is_some_and(|after| is_safe(&before, &after));
            if is_safe { Gate::Open } else { Gate::Waits }
        }
        (_, Some(after)) if after.changes_need_approval => Gate::Begins,
        _ => Gate::Open,
    }
}

/// Refuses to begin with approval while a process runs that would refuse the document.
pub(crate) fn check_processes(reports: &[ProcessStatus], now_ms: u64) -> Result<(), SetError> {
    match reports.iter().find(|one| !one.is_silent(now_ms) && !one.knows_approval) {
        Some(old) => Err(SetError::OldProcess(old.process.clone())),
        None => Ok(()),
    }
}

/// Whether a change can lose no money: it stops or slows down what is granted, or takes a trial back, and does nothing else.
fn is_safe(before: &Rules, after: &Rules) -> bool {
    let rest = Rules {
        version: before.version,
        limits: before.limits.clone(),
        staged: before.staged.clone(),
        ..after.clone()
    };
    let staged = match (before.staged.as_deref(), after.staged.as_deref()) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(before), Some(after)) => {
            lowers(&before.limits, &after.limits)
                && Staged { limits: before.limits.clone(), ..after.clone() } == *before
        }
    };
    rest == *before && staged && lowers(&before.limits, &after.limits)
}

/// Whether no type may be granted faster or in larger bursts, and no fuse is closed that was not.
fn lowers(before: &Limits, after: &Limits) -> bool {
    let limit =
        |before: &Limit, after: &Limit| after.rate_per_s <= before.rate_per_s && after.burst <= before.burst;
    limit(&before.global, &after.global)
        && before.types.len() == after.types.len()
        && before.types.iter().all(|(name, own)| {
            after.types.get(name).is_some_and(|new| {
                limit(&own.limit, &new.limit)
                    && (new.fuse == own.fuse || new.fuse != Fuse::Closed)
                    && new.priority == own.priority
            })
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::document::{Bucket, RulesEdit};
    use crate::stage::{StageFor, StagedStatus, abort, promote, stage};
    use windfall_contract::rules::Guards;

    const SAMPLE: &str = include_str!("../samples/rules.toml");

    fn change(at_ms: u64, before: Option<&str>, after: &str) -> Change {
        Change {
            version: 2,
            at_ms,
            who: "ann".into(),
            why: "a test".into(),
            before: before.map(str::to_owned),
            after: after.to_owned(),
            caller: None,
            approved_by: None,
        }
    }

    fn asking() -> String {
        let text = SAMPLE.replacen("# changes_need_approval = true", "changes_need_approval = true", 1);
        assert!(parse_rules(&text, None).unwrap().changes_need_approval, "the sample shows the key");
        text
    }

    fn gate_of(before: &str, after: &str) -> Gate {
        gate(&change(5, Some(before), after), &Last::Nothing)
    }

    fn edited(text: &str, edits: &[RulesEdit]) -> String {
        edits.iter().fold(text.to_owned(), |text, edit| edit.apply(&text).unwrap())
    }

    fn limit(bucket: Bucket, rate_per_s: u64, burst: Option<u64>) -> RulesEdit {
        RulesEdit::Limit { bucket, rate_per_s, burst }
    }

    fn fuse(bonus_type: &str, fuse: Fuse) -> RulesEdit {
        RulesEdit::Fuse { bonus_type: bonus_type.into(), fuse }
    }

    fn badge() -> Bucket {
        Bucket::Type("badge".into())
    }

    #[test]
    fn what_stops_or_slows_down_never_waits_and_everything_else_does() {
        let text = asking();
        let paused = edited(&text, &[fuse("cash", Fuse::Pause)]);
        for safe in [
            &paused,
            &edited(&text, &[fuse("cash", Fuse::Divert), limit(badge(), 1, Some(1))]),
            &edited(&text, &[limit(badge(), 0, None)]),
            &edited(&text, &[limit(Bucket::Global, 1, None)]),
        ] {
            assert_eq!(gate_of(&text, safe), Gate::Open, "{safe}");
        }
        assert_eq!(gate_of(&paused, &edited(&paused, &[fuse("cash", Fuse::Divert)])), Gate::Open);
        for other in [
            &edited(&text, &[limit(badge(), 2_001, None)]),
            // Slower, with a larger burst.
            &edited(&text, &[limit(badge(), 1, Some(201))]),
            // What is safe hides nothing that is not.
            &edited(&text, &[fuse("cash", Fuse::Pause), limit(badge(), 2_001, None)]),
            &text.replacen("ratio = 50", "ratio = 51", 1),
            &text.replacen("priority = 2", "priority = 3", 1),
            &SAMPLE.to_owned(),
        ] {
            assert_eq!(gate_of(&text, other), Gate::Waits, "{other}");
        }
        assert_eq!(gate_of(&paused, &text), Gate::Waits, "granting again waits");
        assert_eq!(gate_of(SAMPLE, &text), Gate::Begins);
        assert_eq!(gate_of(SAMPLE, &edited(SAMPLE, &[limit(badge(), 2_001, None)])), Gate::Open);
    }

    #[test]
    fn a_trial_waits_to_begin_and_to_be_promoted_and_not_to_be_taken_back() {
        let text = asking();
        let who = StageFor {
            processes: vec!["consumer-a-1".into()],
            guards: Guards::default(),
            proven_after_ms: 600_000,
        };
        let wanted = parse_rules(&edited(&text, &[limit(badge(), 1_500, None)]), None).unwrap();
        let staged = stage(&text, &wanted, &who, 1_000).unwrap();
        assert_eq!(gate_of(&text, &staged), Gate::Waits);
        assert_eq!(gate_of(&staged, &abort(&staged).unwrap()), Gate::Open);
        // A fuse goes on working while something is tried.
        assert_eq!(gate_of(&staged, &edited(&staged, &[fuse("cash", Fuse::Pause)])), Gate::Open);
        let raising = parse_rules(&edited(&text, &[limit(badge(), 2_500, None)]), None).unwrap();
        let staged = stage(&text, &raising, &who, 1_000).unwrap();
        let promoted = promote(&staged, &[], true, 2_000).unwrap();
        assert_eq!(gate_of(&staged, &promoted), Gate::Waits);
    }

    #[test]
    fn a_trial_that_was_proposed_begins_when_it_is_approved() {
        let text = asking();
        let who = StageFor {
            processes: vec!["consumer-a-1".into()],
            guards: Guards::default(),
            proven_after_ms: 600_000,
        };
        let wanted = parse_rules(&edited(&text, &[limit(badge(), 1_500, None)]), None).unwrap();
        let after = stage(&text, &wanted, &who, 1_000).unwrap();
        let proposal = Proposal::of(change(1_000, Some(&text), &after), 1, false);
        let staged = |text: &str| parse_rules(text, None).unwrap().staged.unwrap();
        let begun = staged(&proposal.text_at(Some(&text), 51_000));
        assert_eq!((begun.since_ms, begun.proven_ms), (51_000, 651_000));
        assert_eq!(begun.limits, staged(&proposal.text).limits);
        // One that runs already keeps its time.
        assert_eq!(proposal.text_at(Some(&proposal.text), 51_000), proposal.text);
    }

    #[test]
    fn a_document_that_is_no_rules_opens_nothing() {
        let mend = |after: &str, last: &Last| gate(&change(5, Some("version = = 1"), after), last);
        let asked = Last::Text(asking());
        assert_eq!(mend(&asking(), &asked), Gate::Open, "what was there is put back at once");
        assert_eq!(mend(SAMPLE, &asked), Gate::Waits);
        assert_eq!(mend(SAMPLE, &Last::Nothing), Gate::Open);
        assert_eq!(mend(SAMPLE, &Last::Lost), Gate::Waits);
        assert_eq!(mend(&asking(), &Last::Lost), Gate::Waits, "whether that was there is not known");
    }

    #[test]
    fn a_history_says_what_its_newest_document_says_that_can_be_read() {
        let history = |texts: Vec<String>, damaged: usize| History {
            changes: (1..)
                .zip(texts)
                .map(|(version, text)| Change { version, ..change(5, None, &text) })
                .collect(),
            unreadable: vec![("3.toml".to_owned(), "half of it".to_owned()); damaged],
        };
        let all = vec![SAMPLE.to_owned(), asking(), "version = = 3".to_owned()];
        assert_eq!(Last::of(history(all, 1)), Last::Text(asking()));
        assert_eq!(Last::of(history(vec!["version = = 1".to_owned()], 0)), Last::Lost);
        assert_eq!(Last::of(history(Vec::new(), 1)), Last::Lost);
        assert_eq!(Last::of(history(Vec::new(), 0)), Last::Nothing);
    }

    /// What was proven when it was proposed may be given up until it is approved, and the document is the same then.
    #[test]
    fn a_promotion_is_approved_while_its_trial_is_proven_or_by_force() {
        let text = asking();
        let who = StageFor {
            processes: vec!["consumer-a-1".into()],
            guards: Guards::default(),
            proven_after_ms: 600_000,
        };
        let wanted = parse_rules(&edited(&text, &[limit(badge(), 2_500, None)]), None).unwrap();
        let staged = stage(&text, &wanted, &who, 1_000).unwrap();
        let proposal =
            |after: String, by_force: bool| Proposal::of(change(601_001, Some(&staged), &after), 7, by_force);
        let report = |given_up: Option<&str>| ProcessStatus {
            process: "consumer-a-1".into(),
            version: 2,
            at_ms: 601_500,
            refuses: None,
            source_failure: None,
            stages: Some(true),
            staged: Some(StagedStatus {
                since_ms: 1_000,
                runs: given_up.is_none(),
                given_up: given_up.map(str::to_owned),
            }),
            guards: Vec::new(),
            knows_approval: true,
        };
        let (runs, gave_up) = (report(None), report(Some("the lag is 9")));
        let check = |proposal: &Proposal, report: &ProcessStatus, now_ms: u64| {
            check_reports(proposal, Some(&staged), std::slice::from_ref(report), now_ms)
        };
        let promotion = promote(&staged, &[], true, 2_000).unwrap();
        let (unforced, forced) = (proposal(promotion.clone(), false), proposal(promotion, true));
        assert_eq!((unforced.promotes, unforced.by_force), (Some(1_000), false));
        assert_eq!((forced.promotes, forced.by_force), (Some(1_000), true));
        assert!(!forced.is_repeat_of(&unforced) && forced.is_repeat_of(&forced.clone()));
        assert!(check(&unforced, &runs, 601_501).is_ok());
        let refused = check(&unforced, &gave_up, 601_501).unwrap_err();
        assert!(
            matches!(&refused, SetError::NotProven { number: 7, why } if why == "consumer-a-1 gave it up: the lag is 9"),
            "{refused}"
        );
        let late = check(&unforced, &runs, 661_000).unwrap_err();
        assert!(late.to_string().contains("its time was over"), "{late}");
        assert!(check(&forced, &gave_up, 601_501).is_ok() && check(&forced, &runs, 661_000).is_ok());

        // As an older program has written it, which noted nothing of the trial.
        let kept = toml::to_string(&unforced).unwrap();
        assert_eq!(read_proposal(7, &kept).unwrap(), unforced);
        let old = kept.replacen("promotes = 1000\n", "", 1);
        assert_ne!(old, kept);
        let old = read_proposal(7, &old).unwrap();
        assert_eq!(old.promotes, None);
        assert!(check(&old, &runs, 601_501).is_ok() && check(&old, &gave_up, 601_501).is_err());
        assert_eq!(old.row(&staged)["promotes"], 1_000);

        // What promotes nothing is none of it, and no force is kept with it.
        let other = proposal(edited(&staged, &[limit(Bucket::Global, 400_000, None)]), true);
        assert_eq!((other.promotes, other.by_force), (None, false));
        assert!(check(&other, &gave_up, 601_501).is_ok());
    }

    #[test]
    fn what_cannot_be_read_takes_its_number_and_its_room() {
        let broken = |number: u64| {
            let place = format!("{number}.toml");
            let source = read_proposal(number, "number = ").unwrap_err();
            (number, ReadError { place, source })
        };
        let wanted = Proposal::of(change(1_000, Some(&asking()), SAMPLE), 4, false);
        let other_number = read_proposal(5, &toml::to_string(&wanted).unwrap()).unwrap_err();
        assert!(other_number.to_string().contains("proposal 4"), "{other_number}");
        let kept =
            |count: u64| Proposals { unreadable: (1..=count).map(broken).collect(), ..Proposals::default() };
        assert_eq!(next_number(&kept(9), 3), 10);
        let most = u64::try_from(PROPOSALS_MAX).unwrap();
        assert!(matches!(find_repeat(&kept(most - 1), &wanted), Ok(None)));
        assert!(matches!(find_repeat(&kept(most), &wanted), Err(SetError::TooManyProposals)));
        assert!(
            matches!(kept(2).find(2), Err(SetError::DamagedProposal { number: 2, why }) if why.starts_with("2.toml cannot be read"))
        );
        assert!(matches!(kept(2).find(3), Err(SetError::UnknownProposal(3))));
        assert!(matches!(kept(2).find_refused(2), Ok(None)));
        assert!(matches!(kept(2).find_refused(3), Err(SetError::UnknownProposal(3))));
    }
}
