//! Changes that wait for a second person: kept and shown, made once by another one, bounded, and over after a day.

use super::{Place, begin, said, same, with_burst};
use std::thread;
use windfall_config::{
    Actor, ChangeRules, PROPOSAL_VALID_MS, PROPOSALS_MAX, ProcessStatus, RulesEdit, SetError, Written,
};
use windfall_contract::rules::Fuse;

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

    let shown = store.proposals(5).map_err(said)?;
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
    let shown = store.proposals(4).map_err(said)?;
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
    same("all wait", &store.proposals(6).map_err(said)?.len(), &3)?;
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
    let shown = store.proposals(5).map_err(said)?;
    same("it says so", &shown.first().map(|one| one.differences_from(&in_force)), &Some(None))?;
    store.refuse(second, ANN, 5).map_err(said)?;
    match store.refuse(second, ANN, 5) {
        Err(SetError::UnknownProposal(_)) => {}
        other => return Err(format!("refused twice: {other:?}")),
    }

    let third = waits(store.set_by(&with_burst(&in_force, BURST + 3)?, ANN, "three", 10))?;
    let over = 10 + PROPOSAL_VALID_MS;
    same("on the last day", &store.proposals(over - 1).map_err(said)?.len(), &1)?;
    same("after it", &store.proposals(over).map_err(said)?.len(), &0)?;
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
