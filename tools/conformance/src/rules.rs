//! What every home of live rules has to show, file or etcd: changes numbered and kept, refusals that change nothing,
//! followers that are up to date within a second and never go back; and changes that wait for a second person.

mod proposals;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use windfall_config::{ChangeRules, LiveRules, SetError, Status, Written};

/// A home of rules under test.
pub trait Fixture {
    /// Names it in messages.
    fn name(&self) -> &str;

    /// A place where nothing lies yet.
    ///
    /// # Errors
    /// What it says; it fails the check.
    fn place(&self) -> Result<Box<dyn Place>, String>;
}

/// One document with its history and its followers.
pub trait Place: Send + Sync {
    /// The store by which an operator changes it.
    fn store(&self) -> Box<dyn ChangeRules>;

    /// Begins to follow it, until the second value is dropped; again after that as a process does that starts anew.
    ///
    /// # Errors
    /// What the source says; it fails the check.
    fn follow(&self) -> Result<(LiveRules, Box<dyn Send>), String>;

    /// Puts bytes there past the store, as an editor does.
    ///
    /// # Errors
    /// What the home says; it fails the check.
    fn overwrite(&self, bytes: &[u8]) -> Result<(), String>;

    /// Makes something that is kept there unreadable.
    ///
    /// # Errors
    /// What the home says, also where it is not there; it fails the check.
    fn damage(&self, kept: Kept) -> Result<(), String>;

    /// Takes the home away, or brings it back as it was.
    ///
    /// # Errors
    /// What the home says; it fails the check.
    fn set_away(&self, is_away: bool) -> Result<(), String>;

    /// Whether [`Place::follow`] works while it is away, where it worked before.
    fn starts_while_away(&self) -> bool;
}

/// What a store keeps beside the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The history's entry of the change that made this version.
    Change(u64),
    /// The proposal with this number.
    Proposal(u64),
}

type Check = fn(&dyn Place) -> Result<(), String>;

const CHECKS: [(&str, Check); 19] = [
    ("changes_are_numbered_and_kept", changes_are_numbered_and_kept),
    ("what_does_not_validate_changes_nothing", what_does_not_validate_changes_nothing),
    ("a_rollback_is_a_new_version", a_rollback_is_a_new_version),
    ("of_two_writers_one_is_told", of_two_writers_one_is_told),
    ("applied_within_a_second", applied_within_a_second),
    ("the_last_good_document_stays", the_last_good_document_stays),
    ("never_back_to_an_older_version", never_back_to_an_older_version),
    ("gone_and_back", gone_and_back),
    ("a_new_start_has_what_changed_meanwhile", a_new_start_has_what_changed_meanwhile),
    ("another_person_makes_what_one_has_proposed", proposals::another_person_makes_what_one_has_proposed),
    ("what_was_said_is_told_from_what_was_proved", proposals::what_was_said_is_told_from_what_was_proved),
    ("what_stops_or_slows_down_never_waits", proposals::what_stops_or_slows_down_never_waits),
    (
        "a_proposal_ends_when_the_rules_move_on_or_after_a_day",
        proposals::a_proposal_ends_when_the_rules_move_on_or_after_a_day,
    ),
    ("many_propose_and_approve_at_once", proposals::many_propose_and_approve_at_once),
    (
        "approval_does_not_begin_while_an_old_process_runs",
        proposals::approval_does_not_begin_while_an_old_process_runs,
    ),
    (
        "a_trial_is_looked_at_again_when_its_promotion_is_approved",
        proposals::a_trial_is_looked_at_again_when_its_promotion_is_approved,
    ),
    (
        "a_trial_that_a_process_would_refuse_is_not_approved",
        proposals::a_trial_that_a_process_would_refuse_is_not_approved,
    ),
    ("a_damaged_proposal_holds_up_no_other", proposals::a_damaged_proposal_holds_up_no_other),
    ("a_broken_document_opens_nothing", proposals::a_broken_document_opens_nothing),
];

const SAMPLE: &str = include_str!("../../../config/samples/rules.toml");
/// Far more than it may take; for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all checks on a place of their own each, and returns the failed ones with what was wrong.
pub fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let checks = CHECKS.into_iter();
    let failed = checks.filter_map(|(name, check)| {
        let result = fixture.place().and_then(|place| check(&*place));
        Some((name, format!("{}: {}", fixture.name(), result.err()?)))
    });
    failed.collect()
}

fn with_burst(text: &str, burst: u32) -> Result<String, String> {
    let mut rules = windfall_config::parse_rules(text, None).map_err(said)?;
    rules.limits.global.burst = burst;
    Ok(windfall_config::rules_text(&rules))
}

fn at_version(version: u64, burst: u32) -> Result<String, String> {
    let mut rules = windfall_config::parse_rules(SAMPLE, None).map_err(said)?;
    rules.version = version;
    rules.limits.global.burst = burst;
    Ok(windfall_config::rules_text(&rules))
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

/// Changes the burst, from whatever is there.
fn change(store: &dyn ChangeRules, burst: u32) -> Result<u64, String> {
    let text = with_burst(&store.show().map_err(said)?, burst)?;
    match store.set(&text, "ann", "a test", 7).map_err(said)? {
        Written::Changed { version } => Ok(version),
        Written::Unchanged { version } => Err(format!("nothing changed at version {version}")),
    }
}

fn begin(place: &dyn Place) -> Result<Box<dyn ChangeRules>, String> {
    let store = place.store();
    same(
        "the first",
        &store.set(SAMPLE, "ann", "first", 1).map_err(said)?,
        &Written::Changed { version: 1 },
    )?;
    Ok(store)
}

fn wait(live: &LiveRules, what: &str, reached: impl Fn(&Status) -> bool) -> Result<Duration, String> {
    let started = Instant::now();
    loop {
        let status = live.status();
        if reached(&status) {
            return Ok(started.elapsed());
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("waited for {what}: {status:?}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn changes_are_numbered_and_kept(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    let second = SAMPLE.replacen("ratio = 50", "ratio = 51", 1);
    same("set", &store.set(&second, "bob", "try 51", 2).map_err(said)?, &Written::Changed { version: 2 })?;
    let shown = store.show().map_err(said)?;
    same("only the number changes", &shown, &second.replacen("version = 1\n", "version = 2\n", 1))?;
    same("again", &store.set(&shown, "bob", "again", 3).map_err(said)?, &Written::Unchanged { version: 2 })?;
    let history = store.history().map_err(said)?;
    let [first, second] = history.changes.as_slice() else { return Err(format!("{history:?}")) };
    same("the first's text", &(first.before.as_deref(), first.after.as_str()), &(None, SAMPLE))?;
    same(
        "the second",
        &(second.version, second.at_ms, second.who.as_str(), second.why.as_str()),
        &(2, 2, "bob", "try 51"),
    )?;
    same("its text", &(second.before.as_deref(), &second.after), &(Some(SAMPLE), &shown))?;
    // Past the store: not lost, and the next change says what it found.
    place.overwrite(at_version(7, 70)?.as_bytes())?;
    same("after it", &change(&*store, 80)?, &8)?;
    let history = store.history().map_err(said)?;
    let last = history.changes.last().and_then(|change| change.before.clone());
    same("what it found", &last, &Some(at_version(7, 70)?))?;
    store.rollback(7, "ann", "as it was", 3).map_err(said)?;
    same("a version made outside", &store.show().map_err(said)?, &at_version(9, 70)?)
}

fn what_does_not_validate_changes_nothing(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    for text in
        ["", "version = 1", &SAMPLE.replacen("ratio = 50", "ratio = 101", 1), &SAMPLE[..SAMPLE.len() - 3]]
    {
        if !matches!(store.set(text, "bob", "why", 2), Err(SetError::Refused(_))) {
            return Err(format!("taken: {text:.40}"));
        }
    }
    for (who, why) in [("", "why"), ("bob", " "), (&*"b".repeat(4097), "why")] {
        if !matches!(store.set(SAMPLE, who, why, 2), Err(SetError::Remark(_))) {
            return Err("taken without who and why".to_owned());
        }
    }
    same("the document", &store.show().map_err(said)?, &SAMPLE.to_owned())?;
    same("changes", &store.history().map_err(said)?.changes.len(), &1)
}

fn a_rollback_is_a_new_version(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    change(&*store, 5)?;
    let back = store.rollback(1, "bob", "five was too few", 3).map_err(said)?;
    same("back", &back, &Written::Changed { version: 3 })?;
    same("text", &store.show().map_err(said)?, &SAMPLE.replacen("version = 1\n", "version = 3\n", 1))?;
    let history = store.history().map_err(said)?;
    same("why", &history.changes[2].why.as_str(), &"rollback to version 1: five was too few")?;
    same("no gap", &history.changes.windows(2).all(|pair| pair[1].follows(&pair[0])), &true)?;
    same("to itself", &store.rollback(3, "bob", "no", 4).map_err(said)?, &Written::Unchanged { version: 3 })?;
    match store.rollback(9, "bob", "typo", 5) {
        Err(SetError::UnknownVersion(9)) => Ok(()),
        other => Err(format!("a version that never was: {other:?}")),
    }
}

/// Four add 1 to the burst, each from what it read, and again after a conflict: every addition counts.
fn of_two_writers_one_is_told(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    let mine = with_burst(SAMPLE, 1)?;
    store.set(&mine, "ann", "mine", 2).map_err(said)?;
    match store.set(&with_burst(SAMPLE, 2)?, "bob", "his", 2) {
        Err(SetError::Conflict { based_on: 1, current: 2 }) => {}
        other => return Err(format!("from an old version: {other:?}")),
    }
    let add = |who: &str| {
        let store = place.store();
        let mut made = 0;
        while made < 5 {
            let text = store.show().map_err(said)?;
            let burst = windfall_config::parse_rules(&text, None).map_err(said)?.limits.global.burst;
            match store.set(&with_burst(&text, burst + 1)?, who, "one more", 3) {
                Ok(Written::Changed { .. }) => made += 1,
                Err(SetError::Conflict { .. } | SetError::Locked(_)) => {}
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let writers = ["w1", "w2", "w3", "w4"].map(|who| scope.spawn(move || add(who)));
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap_or_else(|_| Err("it panicked".to_owned())))
            .collect()
    });
    ends.into_iter().collect::<Result<(), String>>()?;
    let now = windfall_config::parse_rules(&store.show().map_err(said)?, None).map_err(said)?;
    same("additions", &now.limits.global.burst, &21)?;
    let history = store.history().map_err(said)?;
    let versions: Vec<u64> = history.changes.iter().map(|change| change.version).collect();
    same("versions", &versions, &(1..=22).collect())?;
    same("no gap", &history.changes.windows(2).all(|pair| pair[1].follows(&pair[0])), &true)
}

/// The best of three, for a machine that stood still meanwhile.
fn applied_within_a_second(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    let (live, _source) = place.follow()?;
    let mut best = PATIENCE;
    for burst in 5..8 {
        let version = change(&*store, burst)?;
        best = best.min(wait(&live, "a change", |status| status.version == version)?);
        same("burst", &live.current().limits.global.burst, &burst)?;
    }
    if best < Duration::from_secs(1) { Ok(()) } else { Err(format!("{best:?} at best")) }
}

/// I6.
fn the_last_good_document_stays(place: &dyn Place) -> Result<(), String> {
    begin(place)?;
    let (live, _source) = place.follow()?;
    let bad = at_version(2, 5)?.replacen("ratio = 50", "ratio = 101", 1);
    let bytes: [&[u8]; 3] = [bad.as_bytes(), b"", &[0xff, 0xfe]];
    for (count, bytes) in (1..).zip(bytes) {
        place.overwrite(bytes)?;
        wait(&live, "a refusal", |status| status.refusals == count)?;
    }
    let status = live.status();
    same("version and swaps", &(status.version, status.swaps), &(1, 0))?;
    // The store mends it.
    let store = place.store();
    store.set(&at_version(1, 6)?, "ann", "mend", 3).map_err(said)?;
    wait(&live, "the good one", |status| status.swaps == 1)?;
    same("burst", &live.current().limits.global.burst, &6)?;
    same("refusals, each once", &live.status().refusals, &3)
}

fn never_back_to_an_older_version(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    change(&*store, 5)?;
    let (live, source) = place.follow()?;
    place.overwrite(SAMPLE.as_bytes())?;
    wait(&live, "the refusal", |status| status.refusals == 1)?;
    same("burst", &live.current().limits.global.burst, &5)?;
    // By an operator it goes back, as a new version.
    store.rollback(1, "bob", "five was too few", 3).map_err(said)?;
    wait(&live, "the rollback", |status| status.version == 3)?;
    drop(source);
    same(
        "burst",
        &live.current().limits.global.burst,
        &windfall_config::parse_rules(SAMPLE, None).map_err(said)?.limits.global.burst,
    )
}

/// I8.
fn gone_and_back(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    let (live, source) = place.follow()?;
    place.set_away(true)?;
    wait(&live, "the failure", |status| status.source_failure.is_some())?;
    same("version", &live.current().version, &1)?;
    if place.starts_while_away() {
        drop(source);
        let (live, source) = place.follow()?;
        same("a start meanwhile", &live.current().version, &1)?;
        same("it shows", &live.status().source_failure.is_some(), &true)?;
        place.set_away(false)?;
        follows_again(&*store, &live)?;
        drop(source);
        return Ok(());
    }
    place.set_away(false)?;
    follows_again(&*store, &live)
}

fn follows_again(store: &dyn ChangeRules, live: &LiveRules) -> Result<(), String> {
    wait(live, "it to be back", |status| status.source_failure.is_none())?;
    let version = change(store, 5)?;
    wait(live, "a change after it", |status| status.version == version)?;
    same("refusals", &live.status().refusals, &0)
}

fn a_new_start_has_what_changed_meanwhile(place: &dyn Place) -> Result<(), String> {
    let store = begin(place)?;
    for burst in 5..8 {
        let (live, source) = place.follow()?;
        let version = store
            .show()
            .map_err(said)
            .and_then(|text| Ok(windfall_config::parse_rules(&text, None).map_err(said)?.version))?;
        wait(&live, "what is there", |status| status.version == version)?;
        drop(source);
        change(&*store, burst)?;
        same("after its end", &live.current().version, &version)?;
    }
    // Whoever reads while it is written sees whole documents, and versions that only grow.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let store = place.store();
            let mut newest = 0;
            while !is_over.load(Ordering::Acquire) {
                let version =
                    windfall_config::parse_rules(&store.show().map_err(said)?, None).map_err(said)?.version;
                if version < newest {
                    return Err(format!("{version} after {newest}"));
                }
                newest = version;
            }
            Ok(())
        });
        let changes: Result<Vec<u64>, String> = (20..30).map(|burst| change(&*store, burst)).collect();
        is_over.store(true, Ordering::Release);
        let read = reader.join().unwrap_or_else(|_| Err("it panicked".to_owned()));
        changes.map(drop).and(read)
    })
}
