//! A rules file as a source: replaced, edited in place, broken, deleted, and back.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use windfall_config::{FileSource, LiveRules, OpenError, Status, WatchOptions};

const SAMPLE: &str = include_str!("../samples/rules.toml");
/// A change is applied within a second; the rest is for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(8);

struct Bed {
    directory: TempDir,
    live: LiveRules,
    _source: FileSource,
}

impl Bed {
    fn new(options: WatchOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.toml");
        fs::write(&path, SAMPLE).unwrap();
        let (live, source) = FileSource::open_with(&path, None, || 77, options).unwrap();
        Self { directory, live, _source: source }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("rules.toml")
    }

    fn replace(&self, text: &[u8]) {
        let draft = self.directory.path().join("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.path()).unwrap();
    }

    #[track_caller]
    fn wait(&self, what: &str, reached: impl Fn(&Status) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let status = self.live.status();
            if reached(&status) {
                return start.elapsed();
            }
            assert!(start.elapsed() < PATIENCE, "waited for {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn version(version: u64) -> String {
    let mut rules = windfall_config::parse_rules(SAMPLE, None).unwrap();
    rules.version = version;
    windfall_config::rules_text(&rules)
}

fn both_ways(run: impl Fn(Bed)) {
    run(Bed::new(WatchOptions { poll_ms: 60_000, ..WatchOptions::default() }));
    run(Bed::new(WatchOptions { notify: false, poll_ms: 100, ..WatchOptions::default() }));
}

#[test]
fn a_file_replaced_by_rename_is_taken_again_and_again() {
    both_ways(|bed| {
        for number in 2..5 {
            bed.replace(version(number).as_bytes());
            bed.wait("the new version", |status| status.version == number);
        }
        let status = bed.live.status();
        assert_eq!((status.swaps, status.refusals, status.applied_at_ms), (3, 0, Some(77)));
    });
}

#[test]
fn a_file_edited_in_place_is_taken() {
    both_ways(|bed| {
        for number in 2..4 {
            fs::write(bed.path(), version(number)).unwrap();
            bed.wait("the new version", |status| status.version == number);
        }
    });
}

/// The better of three tries, for a machine that stood still meanwhile.
#[test]
fn a_change_is_applied_within_a_second() {
    for notify in [true, false] {
        let bed = Bed::new(WatchOptions { notify, ..WatchOptions::default() });
        let tries = (2..5).map(|number| {
            bed.replace(version(number).as_bytes());
            bed.wait("the new version", |status| status.version == number)
        });
        let best = tries.min().unwrap();
        assert!(best < Duration::from_secs(1), "notify {notify}: {best:?}");
    }
}

/// I6: counted once however often it is read, named, and the last good rules stay.
#[test]
fn a_bad_file_changes_nothing_and_a_good_one_after_it_is_taken() {
    both_ways(|bed| {
        let before = bed.live.current();
        bed.replace(version(2).replacen("ratio = 50", "ratio = 101", 1).as_bytes());
        bed.wait("the refusal", |status| status.refusals == 1);
        fs::write(bed.directory.path().join("neighbour"), "wakes the watcher").unwrap();
        std::thread::sleep(Duration::from_millis(250));
        let status = bed.live.status();
        assert_eq!((status.version, status.refusals, status.swaps), (1, 1, 0), "{status:?}");
        let last = status.last_refusal.unwrap();
        assert_eq!(last.at_ms, 77);
        assert!(last.text.contains("queues.gifts.ratio: is 101"), "{}", last.text);
        assert!(Arc::ptr_eq(&before, &bed.live.current()));

        bed.replace(b"");
        bed.wait("the second refusal", |status| status.refusals == 2);
        bed.replace(&[0xff, 0xfe]);
        bed.wait("the third refusal", |status| status.refusals == 3);
        bed.replace(version(1).replacen("ratio = 50", "ratio = 51", 1).as_bytes());
        bed.wait("the stale version", |status| status.refusals == 4);
        assert!(bed.live.status().last_refusal.unwrap().text.contains("needs a higher version"));
        bed.replace(version(2).as_bytes());
        bed.wait("the good one", |status| status.version == 2);
        assert_eq!(bed.live.status().refusals, 4);
    });
}

/// I8: without the file the process goes on, and says so.
#[test]
fn a_file_deleted_and_back() {
    both_ways(|bed| {
        fs::remove_file(bed.path()).unwrap();
        bed.wait("the failure", |status| status.source_failure.is_some());
        assert_eq!(bed.live.current().version, 1);
        bed.replace(version(2).as_bytes());
        bed.wait("the new version", |status| status.version == 2);
        let status = bed.live.status();
        assert_eq!((status.source_failures, status.source_failure, status.refusals), (1, None, 0));
    });
}

/// The watch on the directory is lost with it; the poll is not.
#[test]
fn a_directory_replaced_under_the_file() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("conf");
    let path = directory.join("rules.toml");
    fs::create_dir(&directory).unwrap();
    fs::write(&path, SAMPLE).unwrap();
    let options = WatchOptions { poll_ms: 100, ..WatchOptions::default() };
    let (live, source) = FileSource::open_with(&path, None, || 0, options).unwrap();
    for number in 2..4 {
        let next = root.path().join("next");
        fs::create_dir(&next).unwrap();
        fs::write(next.join("rules.toml"), version(number)).unwrap();
        fs::rename(&directory, root.path().join(format!("old{number}"))).unwrap();
        fs::rename(&next, &directory).unwrap();
        let start = Instant::now();
        while live.current().version != number {
            assert!(start.elapsed() < PATIENCE, "{:?}", live.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    source.close();
}

/// As an orchestrator mounts a configuration: the file is a link through a link that is swapped.
#[cfg(unix)]
#[test]
fn a_link_that_is_swapped() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (name, text) in [("one", SAMPLE.to_owned()), ("two", version(2))] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("rules.toml"), text).unwrap();
    }
    symlink("one", at("data")).unwrap();
    symlink("data/rules.toml", at("rules.toml")).unwrap();
    let options = WatchOptions { poll_ms: 60_000, ..WatchOptions::default() };
    let (live, _source) = FileSource::open_with(&at("rules.toml"), None, || 0, options).unwrap();
    symlink("two", at("next")).unwrap();
    fs::rename(at("next"), at("data")).unwrap();
    let start = Instant::now();
    while live.current().version != 2 {
        assert!(start.elapsed() < PATIENCE, "{:?}", live.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Written in pieces, as an editor or `cat >` does: no piece is taken, and the whole is.
#[test]
fn a_slow_writer_is_waited_for() {
    let bed = Bed::new(WatchOptions { settle_ms: 400, ..WatchOptions::default() });
    let text = version(2);
    let mut file = fs::File::create(bed.path()).unwrap();
    for piece in text.as_bytes().chunks(text.len() / 5) {
        file.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    bed.wait("the whole", |status| status.version == 2);
    assert_eq!(bed.live.status().refusals, 0);
    assert_eq!(*bed.live.current(), windfall_config::parse_rules(&text, None).unwrap());
}

#[test]
fn what_is_no_rules_file_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let open = |path: &Path| FileSource::open(path, None, || 0).map(|_| ()).unwrap_err();
    assert!(matches!(open(&at("missing")), OpenError::Read { .. }));
    assert!(open(directory.path()).to_string().contains("not a regular file"));
    fs::write(at("bad"), "version = \"one\"").unwrap();
    let error = open(&at("bad"));
    assert!(matches!(error, OpenError::Refused { .. }));
    assert!(error.to_string().contains("bad: the rules are refused") && error.to_string().contains("line 1"));
    fs::write(at("broker"), SAMPLE).unwrap();
    let known = Some(vec!["a".to_owned()]);
    assert!(matches!(FileSource::open(&at("broker"), known, || 0), Err(OpenError::Refused { .. })));
}

#[test]
fn a_huge_file_is_refused_without_reading_it() {
    let bed = Bed::new(WatchOptions::default());
    let draft = bed.directory.path().join("draft");
    fs::File::create(&draft).unwrap().set_len(1 << 40).unwrap();
    fs::rename(draft, bed.path()).unwrap();
    bed.wait("the refusal", |status| status.refusals == 1);
    assert!(bed.live.status().last_refusal.unwrap().text.contains("1048576 bytes"));
}

/// Rules that follow nothing any more must not look as if they did.
#[test]
fn a_watcher_that_dies_shows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.toml");
    fs::write(&path, SAMPLE).unwrap();
    let options = WatchOptions { poll_ms: 10, ..WatchOptions::default() };
    let (live, source) = FileSource::open_with(&path, None, || panic!("a broken clock"), options).unwrap();
    let start = Instant::now();
    while live.status().source_failure.is_none() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    source.close();
    let failure = live.status().source_failure.unwrap();
    assert!(failure.text.contains("its watcher has died"), "{}", failure.text);
    assert_eq!(live.current().version, 1);
}

/// Closed in the middle of a change: it waits for its thread, and the change is not taken any more.
#[test]
fn a_closed_source_has_ended_its_thread_and_leaves_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.toml");
    fs::write(&path, SAMPLE).unwrap();
    let held = Arc::new(());
    let in_thread = Arc::clone(&held);
    let clock = move || u64::try_from(Arc::strong_count(&in_thread)).unwrap_or_default();
    let options = WatchOptions { settle_ms: 400, ..WatchOptions::default() };
    let (live, source) = FileSource::open_with(&path, None, clock, options).unwrap();
    assert_eq!(Arc::strong_count(&held), 2);
    fs::write(&path, version(2)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    source.close();
    // The thread held the clock: it is gone.
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(live.current().version, 1);
}

/// Reading the file is an event in its directory too; waking for that would read it without end.
#[test]
fn a_watcher_rests_while_nothing_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.toml");
    fs::write(&path, SAMPLE).unwrap();
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let clock = move || counted.fetch_add(1, Ordering::Relaxed);
    let options = WatchOptions { poll_ms: 60_000, ..WatchOptions::default() };
    let (live, _source) = FileSource::open_with(&path, None, clock, options).unwrap();
    fs::write(&path, version(2)).unwrap();
    let start = Instant::now();
    while live.current().version != 2 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(400));
    let looks = looks.load(Ordering::Relaxed);
    assert!((1..10).contains(&looks), "{looks} looks");
}
