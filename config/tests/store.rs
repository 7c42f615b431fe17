//! Changes to a rules file: checked, whole, numbered, kept, and rolled back.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use windfall_config::{Actor, ChangeRules, RulesStore, SetError, Written};

const SAMPLE: &str = include_str!("../samples/rules.toml");

fn bed() -> (TempDir, RulesStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = RulesStore::new(directory.path().join("rules.toml"), None);
    assert_eq!(store.set(SAMPLE, "ann", "first", 1).unwrap(), Written::Changed { version: 1 });
    (directory, store)
}

fn with_burst(text: &str, burst: u32) -> String {
    let mut rules = windfall_config::parse_rules(text, None).unwrap();
    rules.limits.global.burst = burst;
    windfall_config::rules_text(&rules)
}

fn burst(store: &RulesStore) -> u32 {
    windfall_config::parse_rules(&store.show().unwrap(), None).unwrap().limits.global.burst
}

#[test]
fn a_change_gets_the_next_version_and_is_kept() {
    let (_directory, store) = bed();
    assert_eq!(store.show().unwrap(), SAMPLE);
    let second = SAMPLE.replacen("ratio = 50", "ratio = 51", 1);
    assert_eq!(store.set(&second, "bob", "try 51", 2).unwrap(), Written::Changed { version: 2 });
    let shown = store.show().unwrap();
    // Only the number changes; comments stay.
    assert_eq!(shown, second.replacen("version = 1\n", "version = 2\n", 1));
    let history = store.history().unwrap();
    assert!(history.unreadable.is_empty());
    let [first, change] = history.changes.as_slice() else { panic!("{history:?}") };
    assert_eq!((first.version, first.before.as_deref(), first.after.as_str()), (1, None, SAMPLE));
    assert_eq!((change.version, change.at_ms), (2, 2));
    assert_eq!((change.who.as_str(), change.why.as_str()), ("bob", "try 51"));
    assert_eq!((change.before.as_deref(), &change.after), (Some(SAMPLE), &shown));
    assert!(change.follows(first));
}

/// Rewards that were answered with Ok may wait in a topic that a change takes away: it is read until it is empty.
#[test]
fn a_topic_that_a_change_takes_away_is_kept_among_those_that_are_read() {
    let (_directory, store) = bed();
    let rules = || windfall_config::parse_rules(&store.show().unwrap(), None).unwrap();
    let moved = SAMPLE.replacen("[topics.cash-a]", "[topics.cash-new]", 1).replacen(
        "master = \"cash-a\"",
        "master = \"cash-new\"",
        1,
    );
    store.set(&moved, "bob", "a new master topic", 2).unwrap();
    let old = |rules: &windfall_contract::rules::Rules| {
        rules
            .draining
            .iter()
            .map(|old| format!("{}@{}/{}", old.topic, old.broker, old.partitions))
            .collect::<Vec<_>>()
    };
    assert_eq!(old(&rules()), ["cash-a@a/8"]);
    let shown = store.show().unwrap();
    assert!(shown.trim_end().ends_with("[end]") && shown.contains("This sample has every key"), "{shown}");
    // Another change keeps it, and a rollback has the topic that it takes away read in its turn.
    store.set(&with_burst(&shown, 7), "bob", "more", 3).unwrap();
    assert_eq!(old(&rules()), ["cash-a@a/8"]);
    store.rollback(1, "bob", "the old one was better", 4).unwrap();
    assert_eq!(old(&rules()), ["cash-new@a/8"]);
    // It is empty, says the operator.
    let mut gone = rules();
    gone.draining.clear();
    store.set(&windfall_config::rules_text(&gone), "bob", "it is empty", 5).unwrap();
    assert_eq!((old(&rules()), rules().version), (Vec::new(), 5));
}

#[test]
fn what_does_not_validate_changes_nothing() {
    let (directory, store) = bed();
    let before = listing(directory.path());
    for text in
        ["", "version = 1", &SAMPLE.replacen("ratio = 50", "ratio = 101", 1), &SAMPLE[..SAMPLE.len() - 3]]
    {
        assert!(matches!(store.set(text, "bob", "why", 2), Err(SetError::Refused(_))));
    }
    for (who, why) in [("", "why"), ("bob", " "), (&*"b".repeat(4097), "why")] {
        assert!(matches!(store.set(SAMPLE, who, why, 2), Err(SetError::Remark(_))));
    }
    assert!(matches!(store.rollback(1, "bob", "", 2), Err(SetError::Remark("why"))));
    let known = RulesStore::new(directory.path().join("rules.toml"), Some(vec!["a".to_owned()]));
    assert!(matches!(known.set(SAMPLE, "bob", "why", 2), Err(SetError::Refused(_))));
    assert_eq!(store.show().unwrap(), SAMPLE);
    assert_eq!(listing(directory.path()), before);
}

fn listing(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_same_text_again_writes_nothing() {
    let (_directory, store) = bed();
    assert_eq!(store.set(SAMPLE, "bob", "again", 2).unwrap(), Written::Unchanged { version: 1 });
    assert_eq!(store.history().unwrap().changes.len(), 1);
}

/// Asked again after a lost answer, or made from a version that is no longer: neither undoes what came since.
#[test]
fn a_change_made_from_another_version_is_a_conflict() {
    let (_directory, store) = bed();
    let change = with_burst(SAMPLE, 5);
    store.set(&change, "ann", "five", 2).unwrap();
    let again = store.set(&change, "ann", "five", 3).unwrap_err();
    assert!(matches!(again, SetError::Conflict { based_on: 1, current: 2 }), "{again}");
    let ahead = store.set(&change.replacen("version = 1", "version = 3", 1), "ann", "five", 3).unwrap_err();
    assert!(ahead.to_string().contains("leave `version = 2` in it"), "{ahead}");
    assert_eq!(store.history().unwrap().changes.len(), 2);
}

#[test]
fn a_rollback_is_a_new_version_with_the_old_content() {
    let (_directory, store) = bed();
    store.set(&with_burst(SAMPLE, 5), "ann", "five", 2).unwrap();
    assert_eq!(store.rollback(1, "bob", "five was too few", 3).unwrap(), Written::Changed { version: 3 });
    assert_eq!(store.show().unwrap(), SAMPLE.replacen("version = 1\n", "version = 3\n", 1));
    assert_eq!(store.rollback(2, "bob", "or not", 4).unwrap(), Written::Changed { version: 4 });
    assert_eq!(burst(&store), 5);
    let history = store.history().unwrap();
    assert_eq!(history.changes[2].why, "rollback to version 1: five was too few");
    assert!(history.changes.windows(2).all(|pair| pair[1].follows(&pair[0])));
    assert_eq!(store.rollback(4, "bob", "nothing", 5).unwrap(), Written::Unchanged { version: 4 });
    assert!(matches!(store.rollback(9, "bob", "typo", 5), Err(SetError::UnknownVersion(9))));
}

/// Whoever rolls back from a version that is not there any more would take back a change that he has not seen.
#[test]
fn a_rollback_from_another_version_than_was_shown_is_refused() {
    let (_directory, store) = bed();
    let store: &dyn ChangeRules = &store;
    store.set(&with_burst(SAMPLE, 5), "ann", "five", 2).unwrap();
    let late = store.rollback_from(1, 1, Actor::said("bob"), "late", 3).unwrap_err();
    assert!(matches!(late, SetError::Conflict { based_on: 1, current: 2 }), "{late}");
    assert!(matches!(
        store.rollback_from(2, 9, Actor::said("bob"), "typo", 3),
        Err(SetError::UnknownVersion(9))
    ));
    assert!(matches!(store.rollback_from(2, 1, Actor::said("bob"), "", 3), Err(SetError::Remark("why"))));
    assert_eq!(store.history().unwrap().changes.len(), 2);
    let back = store.rollback_from(2, 1, Actor::said("bob"), "five was too few", 3).unwrap();
    assert_eq!(back, Written::Changed { version: 3 });
    assert_eq!(store.show().unwrap(), SAMPLE.replacen("version = 1\n", "version = 3\n", 1));
    assert_eq!(store.history().unwrap().changes[2].why, "rollback to version 1: five was too few");
}

/// A rules file changed by an editor is kept in the next change's `before`, and can be gone back to.
#[test]
fn a_change_outside_is_not_lost() {
    let (directory, store) = bed();
    let mut outside = windfall_config::parse_rules(SAMPLE, None).unwrap();
    outside.version = 7;
    outside.limits.global.burst = 70;
    fs::write(directory.path().join("rules.toml"), windfall_config::rules_text(&outside)).unwrap();
    let made =
        store.set(&with_burst(&windfall_config::rules_text(&outside), 80), "ann", "eighty", 2).unwrap();
    assert_eq!(made, Written::Changed { version: 8 });
    let history = store.history().unwrap();
    assert!(!history.changes[1].follows(&history.changes[0]));
    store.rollback(7, "ann", "as it was", 3).unwrap();
    assert_eq!(burst(&store), 70);
}

/// A broken file must not stand in the way of the change that mends it, nor take its number back.
#[test]
fn a_broken_or_missing_file_can_be_mended() {
    let (directory, store) = bed();
    store.set(&with_burst(SAMPLE, 5), "ann", "five", 2).unwrap();
    let path = directory.path().join("rules.toml");
    fs::write(&path, "version = = 1").unwrap();
    assert_eq!(store.set(SAMPLE, "ann", "mend", 3).unwrap(), Written::Changed { version: 3 });
    fs::remove_file(&path).unwrap();
    assert_eq!(store.rollback(2, "ann", "mend", 4).unwrap(), Written::Changed { version: 4 });
    assert_eq!(burst(&store), 5);
}

/// Died after the history's entry and before the file: the version is passed over, not written twice.
#[test]
fn a_change_that_was_cut_short_is_seen_and_its_number_not_reused() {
    let (directory, store) = bed();
    store.set(&with_burst(SAMPLE, 5), "ann", "cut short", 2).unwrap();
    fs::write(directory.path().join("rules.toml"), SAMPLE).unwrap();
    let made = store.set(&with_burst(SAMPLE, 6), "bob", "six", 3).unwrap();
    assert_eq!(made, Written::Changed { version: 3 });
    let history = store.history().unwrap();
    assert_eq!(history.changes.len(), 3);
    assert!(!history.changes[2].follows(&history.changes[1]));
    assert_eq!(burst(&store), 6);
}

/// Rules that ask for a second person, and a change that waits as proposal 1; with the file that it lies in.
fn waiting() -> (TempDir, RulesStore, std::path::PathBuf) {
    let (directory, store) = bed();
    let mut rules = windfall_config::parse_rules(SAMPLE, None).unwrap();
    rules.changes_need_approval = true;
    store.set(&windfall_config::rules_text(&rules), "ann", "two see more", 2).unwrap();
    let wanted = with_burst(&store.show().unwrap(), 30_001);
    let waits = store.set_by(&wanted, Actor::proved("ann", "ann"), "more", 3).unwrap_err();
    assert!(matches!(waits, SetError::Waits { number: 1 }), "{waits}");
    let kept = directory.path().join("rules.toml.proposals/00000001.toml");
    (directory, store, kept)
}

/// Died while it was approved, at either place: it is made once, or it was made and expires.
#[test]
fn an_approval_that_was_cut_short_makes_the_change_once() {
    let (directory, store, kept) = waiting();
    let bob = Actor::proved("bob", "bob");
    let (document, proposal) = (store.show().unwrap(), fs::read(&kept).unwrap());
    assert_eq!(store.approve(1, bob, 4).unwrap(), Written::Changed { version: 3 });
    assert!(!kept.exists());
    // After the history's entry and before the document.
    fs::write(directory.path().join("rules.toml"), &document).unwrap();
    fs::write(&kept, &proposal).unwrap();
    assert_eq!(store.approve(1, bob, 5).unwrap(), Written::Changed { version: 4 });
    assert_eq!(burst(&store), 30_001);
    // After the document and before the proposal went.
    fs::write(&kept, &proposal).unwrap();
    let again = store.approve(1, bob, 6).unwrap_err();
    assert!(matches!(again, SetError::Moved { number: 1, based_on: 2, current: 4 }), "{again}");
    assert_eq!(store.history().unwrap().changes.len(), 4);
}

/// A broken document is mended, and nobody gets more by it than the rules before allowed.
#[test]
fn a_broken_document_opens_no_way_past_the_second_person() {
    let (directory, store, _) = waiting();
    let good = store.show().unwrap();
    fs::write(directory.path().join("rules.toml"), "version = = 1").unwrap();
    let alone = store.set(SAMPLE, "ann", "alone again", 4).unwrap_err();
    assert!(matches!(alone, SetError::Waits { number: 2 }), "{alone}");
    assert_eq!(store.set(&good, "ann", "mend", 5).unwrap(), Written::Changed { version: 3 });
}

#[test]
fn a_damaged_proposal_is_named_and_approves_nothing() {
    let (_directory, store, kept) = waiting();
    fs::write(&kept, "number = 1").unwrap();
    let refused = store.approve(1, Actor::proved("bob", "bob"), 4).unwrap_err();
    assert!(refused.to_string().contains("00000001.toml"), "{refused}");
    assert_eq!(burst(&store), 30_000);
}

/// Programs of before refuse an entry with a key that they do not know.
#[test]
fn a_change_whose_name_was_said_is_kept_as_programs_of_before_read_it() {
    let (directory, store) = bed();
    let entry = directory.path().join("rules.toml.history/00000001.toml");
    let kept = fs::read_to_string(&entry).unwrap();
    assert!(!kept.contains("\ncaller") && !kept.contains("\napproved_by"), "{kept}");
    store.set_by(&with_burst(SAMPLE, 5), Actor::proved("ann: Ann Lee", "ann"), "five", 2).unwrap();
    let history = store.history().unwrap();
    let identities: Vec<_> = history.changes.iter().map(|change| change.identity()).collect();
    assert_eq!(identities, ["said", "proved"]);
}

/// Died while writing: the half draft lies there, and neither readers nor the next change care.
#[test]
fn a_draft_that_was_left_is_overwritten() {
    let (directory, store) = bed();
    for name in ["rules.toml.new", "rules.toml.history/00000002.toml.new"] {
        fs::write(directory.path().join(name), "version = 9\ntyp").unwrap();
    }
    assert_eq!(store.history().unwrap().changes.len(), 1);
    assert_eq!(store.set(&with_burst(SAMPLE, 5), "ann", "five", 2).unwrap(), Written::Changed { version: 2 });
    assert_eq!(burst(&store), 5);
    let history = store.history().unwrap();
    assert_eq!((history.changes.len(), history.unreadable.len()), (2, 0));
    assert_eq!(listing(directory.path()), ["rules.toml", "rules.toml.history", "rules.toml.lock"]);
}

#[test]
fn a_damaged_history_file_is_named_and_stops_no_change() {
    let (directory, store) = bed();
    let entry = directory.path().join("rules.toml.history/00000001.toml");
    fs::write(&entry, "version = ").unwrap();
    assert_eq!(store.set(&with_burst(SAMPLE, 5), "ann", "five", 2).unwrap(), Written::Changed { version: 2 });
    let history = store.history().unwrap();
    assert_eq!((history.changes.len(), history.unreadable.len()), (1, 1));
    assert_eq!(history.unreadable[0].0, entry.display().to_string());
}

/// Four setters add 1 to the burst, each from what it read, and try again on a conflict: every addition counts,
/// every version is there once, and a reader at the same time never sees half a file.
#[test]
fn setters_at_once_lose_no_change_and_a_reader_sees_whole_files() {
    let (_directory, store) = bed();
    store.set(&with_burst(SAMPLE, 1), "ann", "from one", 0).unwrap();
    let done = AtomicBool::new(false);
    let setter = |who: String| {
        let store = store.clone();
        let mut made = 0;
        while made < 10 {
            let text = store.show().unwrap();
            let next =
                with_burst(&text, windfall_config::parse_rules(&text, None).unwrap().limits.global.burst + 1);
            match store.set(&next, &who, "one more", 1) {
                Ok(written) => {
                    assert!(matches!(written, Written::Changed { .. }));
                    made += 1;
                }
                Err(SetError::Conflict { .. } | SetError::Locked(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut newest = 0;
            while !done.load(Ordering::Acquire) {
                let rules = windfall_config::parse_rules(&store.show().unwrap(), None).unwrap();
                assert!(rules.version >= newest);
                newest = rules.version;
            }
        });
        let setters: Vec<_> = (0..4).map(|n| scope.spawn(move || setter(format!("setter {n}")))).collect();
        let ends: Vec<_> = setters.into_iter().map(|setter| setter.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ends.into_iter().all(|end| end.is_ok()));
        reader.join().unwrap();
    });
    assert_eq!(burst(&store), 41);
    let history = store.history().unwrap();
    let versions: Vec<u64> = history.changes.iter().map(|change| change.version).collect();
    assert_eq!(versions, (1..=42).collect::<Vec<_>>());
    assert!(history.changes.windows(2).all(|pair| pair[1].follows(&pair[0])));
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_and_the_mode_stays() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (directory, store) = bed();
    let path = directory.path().join("rules.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let link = directory.path().join("link.toml");
    symlink("rules.toml", &link).unwrap();
    RulesStore::new(&link, None).set(&with_burst(SAMPLE, 5), "ann", "by the link", 2).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(burst(&store), 5);
    assert_eq!(store.history().unwrap().changes.len(), 2);
}

#[test]
fn what_cannot_be_written_says_where() {
    let directory = tempfile::tempdir().unwrap();
    let store = RulesStore::new(directory.path().join("missing/rules.toml"), None);
    let error = store.set(SAMPLE, "ann", "first", 1).unwrap_err();
    assert!(matches!(error, SetError::Io { .. }));
    assert!(error.to_string().contains("missing/rules.toml.lock"), "{error}");
    assert!(store.show().is_err());
    assert!(store.history().unwrap().changes.is_empty());
}
