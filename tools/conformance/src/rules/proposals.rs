//! Changes that wait for a second person: kept and shown, made once by another one, bounded, and over after a day.

use super::{Kept, Place, begin, said, same, with_burst};
use std::thread;
use windfall_config::{
    Actor, ChangeRules, PROPOSAL_VALID_MS, PROPOSALS_MAX, ProcessStatus, RulesEdit, SetError, StageError,
    StageFor, StagedStatus, Written,
};
use windfall_contract::rules::{Fuse, Guards};

/// The burst of the sample; more of it costs money.
const BURST: u32 = 30_000;

const ANN: Actor<'static> = Actor::proved("ann: Ann Lee", "ann");
const BOB: Actor<'static> = Actor::proved("bob", "bob");

/// Rules that ask for a second person, as version 2.
fn asking(place: &dyn Place) -> Result<(Box<dyn ChangeRules>, String), String> {
    let store = begin(place)?;
    let mut rules = windfall_config::parse_rules(&store.show().map_err(said)?, None).map_err(said)?;
    rules.changes_need_approval = true;
    let text = windfall_config::rules_text(&rules);
    let written = store.set_by(&text, ANN, "two see more than one", 2).map_err(said)?;
    same("it begins at once", &written, &Written::Changed { version: 2 })?;
    let text = store.show().map_err(said)?;
    Ok((store, text))
}

/// The number under which a change waits.
fn waits(result: Result<Written, SetError>) -> Result<u64, String> {
    match result {
        Err(SetError::Waits { number }) => Ok(number),
        other => Err(format!("it does not wait: {other:?}")),
    }
}

fn changes(store: &dyn ChangeRules) -> Result<usize, String> {
    Ok(store.history().map_err(said)?.changes.len())
}

pub(super) fn another_person_makes_what_one_has_proposed(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let wanted = with_burst(&text, BURST + 1)?;
    let number = waits(store.set_by(&wanted, ANN, "the evening", 3))?;
    // The answer was lost.
    same("again", &waits(store.set_by(&wanted, ANN, "the evening", 4))?, &number)?;
    same("the document", &store.show().map_err(said)?, &text)?;
    same("nothing in the history", &changes(&*store)?, &2)?;

    let shown = store.proposals(5).map_err(said)?.open;
    let [shown] = &shown[..] else { return Err(format!("{shown:?}")) };
    let row = (shown.number, shown.at_ms, shown.who.as_str(), shown.identity(), shown.why.as_str());
    same("shown", &row, &(number, 3, "ann: Ann Lee", "proved", "the evening"))?;
    let found = shown.differences_from(&text).ok_or("it has moved on")?;
    let keys: Vec<&str> = found.iter().map(|one| one.key.as_str()).collect();
    same("what it changes", &keys, &vec!["limits.global.burst"])?;

    for (by, what) in [
        (ANN, "who has proposed it"),
        (Actor::proved("bob", "ann"), "the same key under another name"),
        (Actor::said("bob"), "somebody whom nothing proves"),
    ] {
        match store.approve(number, by, 6) {
            Err(SetError::OwnProposal(_) | SetError::Unproved) => {}
            other => return Err(format!("{what}: {other:?}")),
        }
    }
    same("still", &store.show().map_err(said)?, &text)?;
    same("approved", &store.approve(number, BOB, 7).map_err(said)?, &Written::Changed { version: 3 })?;
    let rules = windfall_config::parse_rules(&store.show().map_err(said)?, None).map_err(said)?;
    same("in force", &(rules.version, rules.limits.global.burst), &(3, BURST + 1))?;
    let history = store.history().map_err(said)?;
    let made = history.changes.last().ok_or("no history")?;
    let row = (made.at_ms, made.who.as_str(), made.caller.as_deref(), made.approved_by.as_deref());
    same("kept", &row, &(7, "ann: Ann Lee", Some("ann"), Some("bob")))?;
    same("its reason", &made.why.as_str(), &"the evening")?;
    match store.approve(number, BOB, 8) {
        Err(SetError::UnknownProposal(_)) => same("once", &changes(&*store)?, &3),
        other => Err(format!("approved twice: {other:?}")),
    }
}

pub(super) fn what_was_said_is_told_from_what_was_proved(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let number = waits(store.set(&with_burst(&text, BURST + 1)?, "bob", "more", 3))?;
    let shown = store.proposals(4).map_err(said)?.open;
    same("said", &shown.first().map(|one| one.identity()), &Some("said"))?;
    // The name that was said is taken at its word against its owner.
    match store.approve(number, BOB, 4) {
        Err(SetError::OwnProposal(_)) => {}
        other => return Err(format!("{other:?}")),
    }
    store.approve(number, ANN, 5).map_err(said)?;
    let identities: Vec<_> =
        store.history().map_err(said)?.changes.iter().map(|change| change.identity()).collect();
    same("identities", &identities, &vec!["said", "proved", "said"])
}

pub(super) fn what_stops_or_slows_down_never_waits(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let fuse = |fuse| RulesEdit::Fuse { bonus_type: "cash".to_owned(), fuse };
    let paused = fuse(Fuse::Pause).apply(&text).map_err(said)?;
    let written = store.set(&paused, "ann", "cash is paid twice", 3).map_err(said)?;
    same("paused", &written, &Written::Changed { version: 3 })?;
    let text = store.show().map_err(said)?;
    let slower = store.set(&with_burst(&text, 1)?, "ann", "slower", 4).map_err(said)?;
    same("slower", &slower, &Written::Changed { version: 4 })?;
    // The way back gives money out, and so does any other change.
    let text = store.show().map_err(said)?;
    waits(store.set(&fuse(Fuse::Closed).apply(&text).map_err(said)?, "ann", "it is over", 5))?;
    waits(store.rollback(3, "ann", "it is over", 5))?;
    let mut rules = windfall_config::parse_rules(&text, None).map_err(said)?;
    rules.changes_need_approval = false;
    waits(store.set(&windfall_config::rules_text(&rules), "ann", "alone again", 5))?;
    same("all wait", &store.proposals(6).map_err(said)?.open.len(), &3)?;
    same("the document", &store.show().map_err(said)?, &text)
}

pub(super) fn a_proposal_ends_when_the_rules_move_on_or_after_a_day(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let first = waits(store.set_by(&with_burst(&text, BURST + 1)?, ANN, "one", 3))?;
    let second = waits(store.set_by(&with_burst(&text, BURST + 2)?, ANN, "two", 3))?;
    store.approve(first, BOB, 4).map_err(said)?;
    match store.approve(second, BOB, 5) {
        Err(SetError::Moved { based_on: 2, current: 3, .. }) => {}
        other => return Err(format!("made from rules that are there no more: {other:?}")),
    }
    let in_force = store.show().map_err(said)?;
    let shown = store.proposals(5).map_err(said)?.open;
    same("it says so", &shown.first().map(|one| one.differences_from(&in_force)), &Some(None))?;
    store.refuse(second, ANN, 5).map_err(said)?;
    match store.refuse(second, ANN, 5) {
        Err(SetError::UnknownProposal(_)) => {}
        other => return Err(format!("refused twice: {other:?}")),
    }

    let third = waits(store.set_by(&with_burst(&in_force, BURST + 3)?, ANN, "three", 10))?;
    let over = 10 + PROPOSAL_VALID_MS;
    same("on the last day", &store.proposals(over - 1).map_err(said)?.open.len(), &1)?;
    same("after it", &store.proposals(over).map_err(said)?.open.len(), &0)?;
    match store.approve(third, BOB, over) {
        Err(SetError::UnknownProposal(_)) => {}
        other => return Err(format!("expired: {other:?}")),
    }
    same("the document", &store.show().map_err(said)?, &in_force)?;
    // No other change gets the number of one that has ended, or who has looked at that one would approve it.
    let fourth = waits(store.set_by(&with_burst(&in_force, BURST + 4)?, ANN, "four", over))?;
    same("numbers grow", &[first < second, second < third, third < fourth], &[true; 3])
}

/// Proposed and approved side by side: no number twice, never more than may be, and one change is made of each version.
pub(super) fn many_propose_and_approve_at_once(place: &dyn Place) -> Result<(), String> {
    let (_, text) = asking(place)?;
    let propose = |burst: u32| -> Result<Option<u64>, String> {
        let wanted = with_burst(&text, burst)?;
        loop {
            match place.store().set_by(&wanted, ANN, "at once", 3) {
                Err(SetError::Locked(_)) => {}
                Err(SetError::TooManyProposals) => return Ok(None),
                other => return waits(other).map(Some),
            }
        }
    };
    let most = u32::try_from(PROPOSALS_MAX).map_err(said)?;
    let made: Vec<Result<Option<u64>, String>> = thread::scope(|scope| {
        let proposing: Vec<_> =
            (1..=most + 2).map(|more| scope.spawn(move || propose(BURST + more))).collect();
        let ended = proposing.into_iter().map(|one| one.join());
        ended.map(|end| end.unwrap_or_else(|_| Err("it panicked".to_owned()))).collect()
    });
    let mut numbers: Vec<u64> =
        made.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    numbers.sort_unstable();
    numbers.dedup();
    same("as many as may be, each with a number of its own", &numbers.len(), &PROPOSALS_MAX)?;

    let approve = |number: u64| -> Result<bool, String> {
        loop {
            match place.store().approve(number, BOB, 4) {
                Err(SetError::Locked(_)) => {}
                Ok(Written::Changed { .. }) => return Ok(true),
                Err(SetError::Moved { .. } | SetError::Conflict { .. } | SetError::UnknownProposal(_)) => {
                    return Ok(false);
                }
                other => return Err(format!("{other:?}")),
            }
        }
    };
    // Two of the same, and two of others.
    let wanted = [numbers[0], numbers[0], numbers[1], numbers[2]];
    let made: Vec<Result<bool, String>> = thread::scope(|scope| {
        let approving = wanted.map(|number| scope.spawn(move || approve(number)));
        let ended = approving.into_iter().map(|one| one.join());
        ended.map(|end| end.unwrap_or_else(|_| Err("it panicked".to_owned()))).collect()
    });
    let made = made.into_iter().collect::<Result<Vec<bool>, String>>()?;
    same("one of them", &made.into_iter().filter(|is_made| *is_made).count(), &1)?;
    same("changes", &changes(&*place.store())?, &3)
}

/// A program of before refuses the document, and would grant nothing.
pub(super) fn approval_does_not_begin_while_an_old_process_runs(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    let old = ProcessStatus {
        process: "old".to_owned(),
        version: 1,
        at_ms: 5,
        refuses: None,
        source_failure: None,
        stages: Some(true),
        staged: None,
        guards: Vec::new(),
        knows_approval: false,
    };
    store.report(&old).map_err(said)?;
    let before = store.show().map_err(said)?;
    let mut rules = windfall_config::parse_rules(&before, None).map_err(said)?;
    rules.changes_need_approval = true;
    let text = windfall_config::rules_text(&rules);
    match store.set(&text, "ann", "two see more than one", 6) {
        Err(SetError::OldProcess(name)) if name == "old" => {}
        other => return Err(format!("{other:?}")),
    }
    same("the document", &store.show().map_err(said)?, &before)?;
    store.report(&ProcessStatus { knows_approval: true, ..old }).map_err(said)?;
    let written = store.set(&text, "ann", "two see more than one", 7).map_err(said)?;
    same("then it does", &written, &Written::Changed { version: 2 })
}

/// A process with consumers that knows every guard, by its report.
fn process(name: &str, at_ms: u64) -> ProcessStatus {
    let guards = ["latency_p99_max_ms", "budget_lasts_min_ms"];
    ProcessStatus {
        process: name.to_owned(),
        version: 2,
        at_ms,
        refuses: None,
        source_failure: None,
        stages: Some(true),
        staged: None,
        guards: guards.map(str::to_owned).to_vec(),
        knows_approval: true,
    }
}

/// The document in which the process `one` tries a larger burst for a second, begun at 3.
fn with_trial(text: &str, guards: Guards) -> Result<String, String> {
    let wanted = windfall_config::parse_rules(&with_burst(text, BURST + 1)?, None).map_err(said)?;
    let who = StageFor { processes: vec!["one".to_owned()], guards, proven_after_ms: 1_000 };
    windfall_config::stage(text, &wanted, &who, 3).map_err(said)
}

/// The document does not change where a process gives a trial up after its promotion was proposed.
pub(super) fn a_trial_is_looked_at_again_when_its_promotion_is_approved(
    place: &dyn Place,
) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let trial = waits(store.set_by(&with_trial(&text, Guards::default())?, ANN, "try it", 3))?;
    store.approve(trial, BOB, 3).map_err(said)?;
    let report = |at_ms: u64, given_up: Option<&str>| {
        let staged =
            StagedStatus { since_ms: 3, runs: given_up.is_none(), given_up: given_up.map(str::to_owned) };
        store.report(&ProcessStatus { staged: Some(staged), ..process("one", at_ms) }).map_err(said)
    };
    report(1_003, None)?;
    let in_force = store.show().map_err(said)?;
    let promoted = windfall_config::promote(&in_force, &store.reports().map_err(said)?, false, 1_004);
    let promoted = promoted.map_err(said)?;
    let number = waits(store.set_by(&promoted, ANN, "it holds", 1_004))?;
    report(1_005, Some("the lag is 9"))?;
    match store.approve(number, BOB, 1_006) {
        Err(SetError::NotProven { why, .. }) => {
            same("why", &why.as_str(), &"one gave it up: the lag is 9")?;
        }
        other => return Err(format!("promoted after it was given up: {other:?}")),
    }
    same("the document", &store.show().map_err(said)?, &in_force)?;

    // The same by force is another proposal, which says so.
    let forced = waits(store.force_by(&promoted, ANN, "it holds", 1_007))?;
    let shown = store.proposals(1_007).map_err(said)?.open;
    let rows: Vec<_> = shown.iter().map(|one| (one.number, one.promotes, one.by_force)).collect();
    same("shown", &rows, &vec![(number, Some(3), false), (forced, Some(3), true)])?;
    store.approve(forced, BOB, 1_008).map_err(said)?;
    let rules = windfall_config::parse_rules(&store.show().map_err(said)?, None).map_err(said)?;
    same("in force", &(rules.staged, rules.limits.global.burst), &(None, BURST + 1))
}

/// A role may have gone back to an older release since the trial was proposed.
pub(super) fn a_trial_that_a_process_would_refuse_is_not_approved(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let guards = Guards { latency_p99_max_ms: Some(2_000), ..Guards::default() };
    store.report(&process("one", 3)).map_err(said)?;
    let number = waits(store.set_by(&with_trial(&text, guards)?, ANN, "try it", 3))?;
    store.report(&ProcessStatus { guards: Vec::new(), ..process("one", 4) }).map_err(said)?;
    match store.approve(number, BOB, 5) {
        Err(SetError::Trial(StageError::OldProcessForGuard { process, guard: "latency_p99_max_ms" })) => {
            same("who", &process.as_str(), &"one")?;
        }
        other => return Err(format!("approved though a process would refuse it: {other:?}")),
    }
    same("the document", &store.show().map_err(said)?, &text)?;
    store.report(&process("one", 6)).map_err(said)?;
    let made = store.approve(number, BOB, 7).map_err(said)?;
    same("then it is", &made, &Written::Changed { version: 3 })
}

pub(super) fn a_damaged_proposal_holds_up_no_other(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let first = waits(store.set_by(&with_burst(&text, BURST + 1)?, ANN, "one", 3))?;
    let second = waits(store.set_by(&with_burst(&text, BURST + 2)?, ANN, "two", 3))?;
    place.damage(Kept::Proposal(first))?;
    let shown = |now_ms: u64| -> Result<(Vec<u64>, Vec<u64>), String> {
        let shown = store.proposals(now_ms).map_err(said)?;
        let open = shown.open.iter().map(|one| one.number).collect();
        Ok((open, shown.unreadable.iter().map(|(number, _)| *number).collect()))
    };
    same("shown", &shown(4)?, &(vec![second], vec![first]))?;
    match store.approve(first, BOB, 4) {
        Err(SetError::DamagedProposal { .. }) => {}
        other => return Err(format!("approved unread: {other:?}")),
    }
    let third = waits(store.set_by(&with_burst(&text, BURST + 3)?, ANN, "three", 4))?;
    same("another number", &(second < third), &true)?;
    store.refuse(first, ANN, 5).map_err(said)?;
    same("removed", &shown(5)?, &(vec![second, third], Vec::new()))?;
    match store.refuse(first, ANN, 5) {
        Err(SetError::UnknownProposal(_)) => {}
        other => return Err(format!("removed twice: {other:?}")),
    }
    store.approve(second, BOB, 6).map_err(said).map(drop)
}

/// Neither does it where the newest entries of the history cannot be read.
pub(super) fn a_broken_document_opens_nothing(place: &dyn Place) -> Result<(), String> {
    let (store, text) = asking(place)?;
    let pause = RulesEdit::Fuse { bonus_type: "cash".to_owned(), fuse: Fuse::Pause };
    let paused = pause.apply(&text).map_err(said)?;
    store.set_by(&paused, ANN, "cash is paid twice", 3).map_err(said)?;
    let mut rules = windfall_config::parse_rules(&paused, None).map_err(said)?;
    rules.changes_need_approval = false;
    let alone = windfall_config::rules_text(&rules);
    place.overwrite(b"version = = 1")?;
    place.damage(Kept::Change(3))?;
    waits(store.set_by(&alone, ANN, "alone again", 4))?;
    // What the newest entry that can be read has is put back at once.
    same("mended", &store.set_by(&text, ANN, "mend", 5).map_err(said)?, &Written::Changed { version: 4 })?;
    place.overwrite(b"version = = 1")?;
    for version in 1..=4 {
        place.damage(Kept::Change(version))?;
    }
    let number = waits(store.set_by(&alone, ANN, "alone again", 6))?;
    let made = store.approve(number, BOB, 7).map_err(said)?;
    same("by two it is made", &made, &Written::Changed { version: 5 })
}
