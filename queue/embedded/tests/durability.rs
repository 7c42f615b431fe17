//! What the embedded broker keeps through `kill -9`, and what it says about damage.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use windfall_conformance::broker::Reader;
use windfall_contract::broker::{
    Broker, Change, Commit, Delivery, DeliverySink, Fetch, OpenError, OutRecord, PollError, Tag,
};
use windfall_contract::finished::Finished;
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions, Fsync};

const CHILD_DIR: &str = "WINDFALL_TEST_QUEUE_DIR";

/// Prints the tag of each stored record: what the parent reads was stored before the kill.
struct Printer;

impl DeliverySink for Printer {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        if delivery == Delivery::Stored {
            let mut out = std::io::stdout().lock();
            writeln!(out, "stored {}", tag.0).unwrap();
            out.flush().unwrap();
        }
    }
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_writes_until_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let options = EmbeddedOptions { memtable_bytes: 1 << 20, ..EmbeddedOptions::default() };
    let broker = EmbeddedBroker::open(Path::new(&dir), &options).unwrap();
    broker.ensure_topic("t", 3).unwrap();
    let producer = broker.producer("t", Arc::new(Printer)).unwrap();
    let payload = vec![9u8; 3000];
    for tag in 0u64.. {
        let key = tag.to_be_bytes();
        while producer.send(Tag(tag), OutRecord { key: &key, payload: &payload }).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn spawn(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_killed", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reported_stored_is_there_after_kill_9() {
    for lines in [1usize, 500, 4000] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = spawn(dir.path());
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut stored = Vec::new();
        let mut killed = false;
        // Reads on to the end: what was reported while the kill was on its way counts too.
        for line in output.lines() {
            let Ok(line) = line else { break };
            if let Some(tag) = line.strip_prefix("stored ").and_then(|tag| tag.parse::<u64>().ok()) {
                stored.push(tag);
            }
            if stored.len() >= lines && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        assert!(killed, "the child ended by itself after {} records", stored.len());

        let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
        let end = broker.lag("t", "g").await.unwrap().end;
        let mut reader = Reader::new(broker.consumer("t", "g").await.unwrap());
        let seen = reader.read(usize::try_from(end).unwrap(), Duration::from_secs(20)).await.unwrap();
        let found: std::collections::BTreeSet<u64> =
            seen.values().map(|record| u64::from_be_bytes(record.key.as_ref().try_into().unwrap())).collect();
        let lost: Vec<_> = stored.iter().filter(|tag| !found.contains(tag)).collect();
        assert!(lost.is_empty(), "{} of {} stored records are gone: {lost:?}", lost.len(), stored.len());
        assert_eq!(found.len(), seen.len(), "a record is there twice");
        assert!(seen.values().all(|record| record.payload.iter().all(|byte| *byte == 9)));
    }
}

/// How many records are finished behind the one that hangs.
const BEHIND: u64 = 100_000;
const LANES_VAR: &str = "WINDFALL_TEST_LANES";
/// A name, and which offsets are finished.
type Lanes = (&'static str, fn(u64) -> bool);

const LANES: [Lanes; 3] = [
    ("all others", |_| true),
    ("every second", |offset| offset.is_multiple_of(2)),
    ("an even mix", |offset| mixed(offset).is_multiple_of(2)),
];

/// Looks like chance, and is the same in both processes.
fn mixed(number: u64) -> u64 {
    let first = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    second ^ (second >> 31)
}

fn finished_of(lanes: &str) -> Finished {
    let (_, is_finished) = LANES.iter().find(|(name, _)| *name == lanes).unwrap();
    let offsets = (1..=BEHIND).filter(|offset| is_finished(*offset));
    Finished::of(offsets.map(|offset| offset..offset + 1).collect::<Vec<_>>())
}

/// Not a test of its own: reads everything, commits what is finished, and waits for its end.
#[tokio::test]
async fn child_finishes_until_killed() {
    let (Ok(dir), Ok(lanes)) = (std::env::var(CHILD_DIR), std::env::var(LANES_VAR)) else { return };
    let broker = EmbeddedBroker::open(Path::new(&dir), &EmbeddedOptions::default()).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let producer = broker.producer("t", Arc::new(Nowhere)).unwrap();
    for tag in 0..=BEHIND {
        while producer.send(Tag(tag), OutRecord { key: b"k", payload: &tag.to_be_bytes() }).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(producer.close(Duration::from_secs(60)), 0);
    let mut reader = Reader::new(broker.consumer("t", "g").await.unwrap());
    let all = usize::try_from(BEHIND + 1).unwrap();
    assert_eq!(reader.read(all, Duration::from_secs(60)).await.unwrap().len(), all);
    let (partition, epoch) = reader.epochs().into_iter().next().unwrap();
    let commit = Commit { partition, epoch, next_offset: 0, finished: finished_of(&lanes) };
    reader.consumer().commit(&[commit]).await.unwrap();
    println!("\ncommitted");
    std::thread::sleep(Duration::from_secs(600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_finished_behind_one_that_hangs_is_not_delivered_again_after_kill_9() {
    for (lanes, _) in LANES {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_finishes_until_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .env(LANES_VAR, lanes)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed = lines.any(|line| line.is_ok_and(|line| line == "committed"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(committed, "the child ended by itself");

        let finished = finished_of(lanes);
        let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
        let mut consumer = broker.consumer("t", "g").await.unwrap();
        let fetch = Fetch { max_records: 4_096, max_bytes: 1 << 20, wait: Duration::from_millis(500) };
        let (mut again, mut next) = (std::collections::BTreeSet::new(), 0);
        while next <= BEHIND {
            let polled = consumer.poll(fetch).await.unwrap();
            assert!(!polled.changes.is_empty() || !polled.records.is_empty(), "nothing comes behind {next}");
            for change in polled.changes {
                if let Change::Passed { next_offset, .. } = change {
                    next = next_offset;
                }
            }
            for record in polled.records {
                next = record.offset + 1;
                again.insert(record.offset);
            }
        }
        let spared = BEHIND + 1 - again.len() as u64;
        let part = spared * 100 / finished.count();
        println!(
            "{lanes}: {} finished behind one; {spared} ({part} %) are not delivered again",
            finished.count()
        );
        assert!(
            (0..=BEHIND).all(|offset| again.contains(&offset) || finished.contains(offset)),
            "one is lost"
        );
        assert!(again.contains(&0) && part >= 20, "{lanes}: {part} %");
    }
}

struct Nowhere;

impl DeliverySink for Nowhere {
    fn delivered(&self, _: Tag, delivery: Delivery) {
        assert_eq!(delivery, Delivery::Stored);
    }
}

fn fill(dir: &Path, options: &EmbeddedOptions, records: u64) {
    let broker = EmbeddedBroker::open(dir, options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let producer = broker.producer("t", Arc::new(Nowhere)).unwrap();
    let payload = vec![5u8; 40_000];
    for tag in 0..records {
        while producer.send(Tag(tag), OutRecord { key: b"k", payload: &payload }).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(producer.close(Duration::from_secs(20)), 0);
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn open_error(dir: &Path) -> Option<OpenError> {
    EmbeddedBroker::open(dir, &EmbeddedOptions::default()).err()
}

#[test]
fn a_log_cut_short_or_overwritten_is_damaged_not_shorter() {
    for damage in ["cut", "overwrite", "flip"] {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &EmbeddedOptions::default(), 50);
        let journal = files(dir.path()).into_iter().find(|path| path.extension().is_some_and(|e| e == "jnl"));
        let file = std::fs::OpenOptions::new().read(true).write(true).open(journal.unwrap()).unwrap();
        match damage {
            "cut" => file.set_len(1_000_000).unwrap(),
            // A tag that fjall does not know: it takes it for the end of the journal.
            "overwrite" => file.write_all_at(&[0xff; 5_000_000], 0).unwrap(),
            _ => file.write_all_at(&[6], 500_000).unwrap(),
        }
        for attempt in 0..2 {
            let error = open_error(dir.path());
            assert!(matches!(error, Some(OpenError::Damaged { .. })), "{damage}, open {attempt}: {error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_fails_its_poll_and_only_that() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { memtable_bytes: 1 << 20, ..EmbeddedOptions::default() };
    fill(dir.path(), &options, 400);
    // All but the last MiB has left the journal for the files of large values.
    let blobs: Vec<_> =
        files(dir.path()).into_iter().filter(|path| path.to_str().unwrap().contains("/blobs/")).collect();
    let mut flipped = 0;
    for path in blobs {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        if file.metadata().unwrap().len() > 100_000 {
            file.write_all_at(&[6], 60_000).unwrap();
            flipped += 1;
        }
    }
    assert!(flipped > 0, "no file of large values");
    let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    let mut consumer = broker.consumer("t", "g").await.unwrap();
    let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_secs(2) };
    let (mut next, mut damaged) = (0, Vec::new());
    while damaged.len() < 3 {
        match consumer.poll(fetch).await {
            Ok(polled) => {
                for record in polled.records {
                    assert_eq!(record.offset, next, "a record was passed over");
                    assert!(record.payload.iter().all(|byte| *byte == 5));
                    next += 1;
                }
            }
            Err(PollError::Damaged { partition: 0, offset, .. }) => damaged.push(offset),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(damaged, [next; 3], "it says where, each time, and never goes past");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &EmbeddedOptions { fsync: Fsync::EachBatch, ..EmbeddedOptions::default() }, 3);
    let first = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    assert!(matches!(open_error(dir.path()), Some(OpenError::InUse(_))));
    let consumer = first.consumer("t", "g").await.unwrap();
    drop(first);
    assert!(matches!(open_error(dir.path()), Some(OpenError::InUse(_))), "a consumer keeps it open");
    drop(consumer);
    assert!(open_error(dir.path()).is_none());

    let wrong = EmbeddedOptions { prefetch_bytes: 1, ..EmbeddedOptions::default() };
    assert!(matches!(EmbeddedBroker::open(dir.path(), &wrong).err(), Some(OpenError::Invalid(_))));
    let format = dir.path().join("WINDFALL-QUEUE");
    std::fs::write(&format, "2\n").unwrap();
    assert!(matches!(open_error(dir.path()), Some(OpenError::Newer { found: 2, known: 1, .. })));
    std::fs::write(&format, "one\n").unwrap();
    assert!(matches!(open_error(dir.path()), Some(OpenError::Damaged { .. })));
    // Where a directory cannot be made, for whatever reason, the system's answer is passed on.
    assert!(matches!(open_error(&format), Some(OpenError::Io { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_every_group_has_committed_is_deleted_and_the_disk_freed() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { memtable_bytes: 1 << 20, ..EmbeddedOptions::default() };
    let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
    broker.ensure_topic("t", 2).unwrap();
    let producer = broker.producer("t", Arc::new(Nowhere)).unwrap();
    let mut readers = Vec::new();
    for group in ["slow", "fast"] {
        readers.push(Reader::new(broker.consumer("t", group).await.unwrap()));
    }
    let payload = vec![5u8; 50_000];
    let size = || {
        files(dir.path())
            .iter()
            .filter(|path| path.extension().is_none_or(|e| e != "jnl"))
            .filter_map(|path| path.metadata().ok())
            .map(|meta| meta.len())
            .sum()
    };
    let mut sizes: Vec<u64> = Vec::new();
    for round in 0u64..6 {
        for tag in 0u64..600 {
            while producer.send(Tag(tag), OutRecord { key: &tag.to_be_bytes(), payload: &payload }).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        for reader in &mut readers {
            if round > 0 || reader.owned().is_empty() {
                reader.read(600, Duration::from_secs(20)).await.unwrap();
                reader.commit().await.unwrap();
            }
        }
        sizes.push(size());
    }
    // 180 MB were written; journals (at most two of 64 MiB) and the last 30 MB may be there.
    assert!(size() < 150 << 20, "the files hold {sizes:?} bytes");
    drop(readers);
    // A group that comes now starts at what is left, and nothing of that is missing.
    let late = broker.consumer("t", "late").await.unwrap();
    let lag = broker.lag("t", "late").await.unwrap();
    assert_eq!(lag.end, 3600);
    assert!(lag.records() < 3600, "nothing was deleted");
    let mut late = Reader::new(late);
    let left = usize::try_from(lag.records()).unwrap();
    late.read(left, Duration::from_secs(20)).await.unwrap();
}

/// Owns the producer that reports to it, and through it the broker.
#[derive(Default)]
struct Owner(std::sync::OnceLock<Arc<dyn windfall_contract::broker::Producer>>);

impl DeliverySink for Owner {
    fn delivered(&self, _: Tag, _: Delivery) {}
}

#[test]
fn a_sink_that_owns_its_producer_does_not_keep_a_closed_broker_open() {
    let dir = tempfile::tempdir().unwrap();
    let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let sink = Arc::new(Owner::default());
    let producer = broker.producer("t", sink.clone()).unwrap();
    producer.send(Tag(1), OutRecord { key: b"k", payload: b"p" }).unwrap();
    assert!(sink.0.set(producer.clone()).is_ok());
    assert_eq!(producer.close(Duration::from_secs(20)), 0);
    drop((sink, producer, broker));
    let started = std::time::Instant::now();
    while let Some(error) = open_error(dir.path()) {
        assert!(started.elapsed() < Duration::from_secs(20), "{error}");
    }
}

#[test]
fn a_kill_while_the_broker_is_made_leaves_a_directory_that_opens() {
    for left in ["0.jnl", "version"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("MAKING"), "").unwrap();
        std::fs::write(dir.path().join(left), "").unwrap();
        assert!(open_error(dir.path()).is_none(), "{left}: {:?}", open_error(dir.path()));
    }
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_makes_a_broker() {
    let Ok(dir) = std::env::var("WINDFALL_TEST_QUEUE_MAKE") else { return };
    drop(EmbeddedBroker::open(Path::new(&dir), &EmbeddedOptions::default()).unwrap());
}

#[test]
fn a_broker_killed_at_any_moment_of_its_making_opens() {
    for moment in 0..24u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_makes_a_broker"])
            .env("WINDFALL_TEST_QUEUE_MAKE", dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(2 + moment * 2));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = open_error(dir.path());
        assert!(error.is_none(), "killed after {} ms: {error:?}", 2 + moment * 2);
    }
}

/// Panics at its first report and counts the others.
#[derive(Default)]
struct Clumsy(std::sync::Mutex<Vec<Delivery>>, std::sync::atomic::AtomicBool);

impl DeliverySink for Clumsy {
    fn delivered(&self, _: Tag, delivery: Delivery) {
        if !self.1.swap(true, std::sync::atomic::Ordering::SeqCst) {
            panic!("on purpose");
        }
        self.0.lock().unwrap().push(delivery);
    }
}

#[test]
fn a_sink_that_panics_stops_nobody_elses_records() {
    let dir = tempfile::tempdir().unwrap();
    let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let sink = Arc::new(Clumsy::default());
    let producer = broker.producer("t", sink.clone()).unwrap();
    for tag in 0..3 {
        producer.send(Tag(tag), OutRecord { key: b"k", payload: b"p" }).unwrap();
    }
    assert_eq!(producer.close(Duration::from_secs(10)), 0);
    assert_eq!(*sink.0.lock().unwrap(), [Delivery::Stored, Delivery::Stored]);
}

#[test]
fn a_broker_whose_disk_fails_says_so_and_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { memtable_bytes: 1 << 20, ..EmbeddedOptions::default() };
    let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let producer = broker.producer("t", Arc::new(Clumsy::default())).unwrap();
    std::fs::remove_dir_all(dir.path().join("keyspaces/1")).unwrap();
    let started = std::time::Instant::now();
    let payload = vec![1; 50_000];
    loop {
        match producer.send(Tag(0), OutRecord { key: b"k", payload: &payload }) {
            Err(windfall_contract::broker::SendRefused::Unavailable(_)) => break,
            _ => assert!(started.elapsed() < Duration::from_secs(10), "nobody noticed"),
        }
    }
}

#[test]
fn a_key_that_makes_a_record_too_large_is_not_full_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let most = 1 << 20;
    let options =
        EmbeddedOptions { max_unreported_bytes: most, max_record_bytes: most, ..EmbeddedOptions::default() };
    let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let producer = broker.producer("t", Arc::new(Nowhere)).unwrap();
    let refused = producer.send(Tag(0), OutRecord { key: b"k", payload: &vec![1; most] });
    assert!(matches!(refused, Err(windfall_contract::broker::SendRefused::TooLarge { .. })), "{refused:?}");
}

/// `close` once held the producer's lock while it woke the writer, which asks each producer under its own lock.
#[test]
fn producers_that_close_while_the_writer_looks_around_do_not_lock_it_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { linger: Duration::ZERO, ..EmbeddedOptions::default() };
    let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let (done, finished) = std::sync::mpsc::sync_channel(4);
    for _ in 0..4 {
        let (broker, done) = (broker.clone(), done.clone());
        std::thread::spawn(move || {
            for tag in 0..400 {
                let producer = broker.producer("t", Arc::new(Nowhere)).unwrap();
                producer.send(Tag(tag), OutRecord { key: b"k", payload: b"p" }).unwrap();
                assert_eq!(producer.close(Duration::from_secs(10)), 0);
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        assert!(finished.recv_timeout(Duration::from_secs(20)).is_ok(), "a close hangs");
    }
}
