//! Changes of the rules that wait for a second person: which ones have to, and what is kept of each.
//!
//! The rules themselves ask for it, by `changes_need_approval`. To take that away is a change like any other one, so it
//! waits, too.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windfall_contract::rules::{Fuse, Limit, Limits, Rules, Staged};

use crate::change::{Actor, Change, SetError, identity};
use crate::difference::{Difference, differences};
use crate::document::{parse_rules, version_of, with_staged_later, with_version};
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
    /// The whole document that is proposed, with that version.
    pub text: String,
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
    pub(crate) fn of(change: Change, number: u64) -> Self {
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

    /// Writes into the log who has refused it.
    pub(crate) fn note_refused(&self, by: Actor<'_>) {
        tracing::info!(
            number = self.number,
            proposed_by = self.who,
            by = by.who,
            "a change of the rules was refused"
        );
    }

    /// Whether it is the same change by the same person, as when it is proposed again since the answer was lost.
    pub(crate) fn is_repeat_of(&self, other: &Self) -> bool {
        (&self.who, &self.caller, &self.why, self.based_on, &self.text)
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

/// The number of the open proposal that this one repeats; or none, if there is room for one more.
pub(crate) fn find_repeat(open: &[Proposal], wanted: &Proposal) -> Result<Option<u64>, SetError> {
    if let Some(same) = open.iter().find(|one| one.is_repeat_of(wanted)) {
        return Ok(Some(same.number));
    }
    if open.len() >= PROPOSALS_MAX {
        return Err(SetError::TooManyProposals);
    }
    Ok(None)
}

/// The number of the next proposal. `next` is what was noted for it.
pub(crate) fn next_number(open: &[Proposal], next: u64) -> u64 {
    open.iter().map(|one| one.number.saturating_add(1)).fold(next.max(1), u64::max)
}

/// What a change needs. Where the document in force is no rules, what the history has last (`last`) decides: whoever finds a
/// broken document mends it, and gets no more by it.
pub(crate) fn gate(change: &Change, last: Option<&str>) -> Gate {
    let rules = |text: &str| parse_rules(text, None).ok();
    let before = change.before.as_deref().and_then(rules).or_else(|| last.and_then(rules));
    let after = rules(&change.after);
    match (before, after) {
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
    use crate::stage::{StageFor, abort, promote, stage};
    use windfall_contract::rules::Guards;

    const SAMPLE: &str = include_str!("../samples/rules.toml");

    fn asking() -> String {
        let text = SAMPLE.replacen("# changes_need_approval = true", "changes_need_approval = true", 1);
        assert!(parse_rules(&text, None).unwrap().changes_need_approval, "the sample shows the key");
        text
    }

    fn gate_of(before: &str, after: &str) -> Gate {
        let change = Change {
            version: 2,
            at_ms: 5,
            who: "ann".into(),
            why: "a test".into(),
            before: Some(before.to_owned()),
            after: after.to_owned(),
            caller: None,
            approved_by: None,
        };
        gate(&change, None)
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
        let change = Change {
            version: 2,
            at_ms: 1_000,
            who: "ann".into(),
            why: "a test".into(),
            before: Some(text.clone()),
            after: stage(&text, &wanted, &who, 1_000).unwrap(),
            caller: None,
            approved_by: None,
        };
        let proposal = Proposal::of(change, 1);
        let staged = |text: &str| parse_rules(text, None).unwrap().staged.unwrap();
        let begun = staged(&proposal.text_at(Some(&text), 51_000));
        assert_eq!((begun.since_ms, begun.proven_ms), (51_000, 651_000));
        assert_eq!(begun.limits, staged(&proposal.text).limits);
        // One that runs already keeps its time.
        assert_eq!(proposal.text_at(Some(&proposal.text), 51_000), proposal.text);
    }

    #[test]
    fn a_document_that_is_no_rules_opens_nothing() {
        let mend = |after: &str, last: Option<&str>| {
            let change = Change {
                version: 3,
                at_ms: 5,
                who: "ann".into(),
                why: "mend".into(),
                before: Some("version = = 1".into()),
                after: after.to_owned(),
                caller: None,
                approved_by: None,
            };
            gate(&change, last)
        };
        assert_eq!(mend(&asking(), Some(&asking())), Gate::Open, "what was there is put back at once");
        assert_eq!(mend(SAMPLE, Some(&asking())), Gate::Waits);
        assert_eq!(mend(SAMPLE, None), Gate::Open);
    }
}
