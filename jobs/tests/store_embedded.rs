//! The embedded store of entries: the contract, the model, its open errors, restarts, kills at any write. The killed process
//! is this program, started again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_conformance::entries::{self, Fixture};
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    Applied, EntryChange, EntryGroup, EntryKey, EntryStore, Expect, To, VALUE_MAX_BYTES,
};
use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions, OpenEntriesError};

/// Some day in 2027.
const START_MS: u64 = 1_800_000_030_050;
const DIR: &str = "WINDFALL_ENTRIES_CRASH_DIR";
const ROUNDS: u64 = 10;
const WRITERS: u16 = 4;

struct Embedded {
    dir: tempfile::TempDir,
    options: EmbeddedEntriesOptions,
    now_ms: Arc<AtomicU64>,
}

impl Embedded {
    fn new(options: EmbeddedEntriesOptions) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), options, now_ms: Arc::new(AtomicU64::new(START_MS)) }
    }

    fn open_now(&self) -> Result<Arc<EmbeddedEntries>, OpenEntriesError> {
        let now_ms = Arc::clone(&self.now_ms);
        let clock = Clock::from_unix_ms(move || now_ms.load(SeqCst));
        EmbeddedEntries::open(self.dir.path(), &self.options, clock)
    }
}

#[async_trait]
impl Fixture for Embedded {
    fn name(&self) -> &str {
        "embedded"
    }

    async fn open(&self) -> Result<Arc<dyn EntryStore>, String> {
        // A call that was given up runs to its end, and has the directory until then.
        for _ in 0..1_000 {
            match self.open_now() {
                Err(OpenEntriesError::InUse(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(store) => return Ok(store),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the directory stays in use".into())
    }

    async fn beside(&self, open: &Arc<dyn EntryStore>) -> Result<Arc<dyn EntryStore>, String> {
        Ok(Arc::clone(open))
    }

    async fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
    }

    fn clock_back_ms(&self, ms: u64) -> bool {
        self.now_ms.fetch_sub(ms, SeqCst);
        true
    }
}

/// Small memtables, so that tables are written and merged all the time.
fn small() -> EmbeddedEntriesOptions {
    EmbeddedEntriesOptions { shards: 32, memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..Default::default() }
}

fn key(name: &str) -> EntryKey {
    EntryKey::new(name.as_bytes().to_vec()).unwrap()
}

fn put(name: &str, value: impl ToString, wake_ms: Option<u64>) -> EntryChange {
    let to = To::Put { value: value.to_string().into_bytes().into(), wake_ms };
    EntryChange { key: key(name), expect: Expect::Anything, to }
}

fn group(changes: Vec<EntryChange>) -> EntryGroup {
    EntryGroup { changes, not_after_ms: None }
}

async fn done(store: &dyn EntryStore, shard: Shard, changes: Vec<EntryChange>) -> u64 {
    let (_, applied) = store.apply(shard, &[group(changes)]).await.unwrap();
    let [Applied::Done(version)] = applied[..] else { panic!("{applied:?}") };
    version
}

async fn value(store: &dyn EntryStore, shard: Shard, name: &str) -> Option<u64> {
    let found = store.read(shard, &[key(name)]).await.unwrap().remove(0)?;
    Some(std::str::from_utf8(&found.value).unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_conforms() {
    for durability in [Durability::Process, Durability::Machine] {
        let fixture = Embedded::new(EmbeddedEntriesOptions { durability, ..small() });
        let failed = entries::run(&fixture).await;
        assert!(failed.is_empty(), "{durability:?}: {failed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_is_as_the_model() {
    entries::run_model(&Embedded::new(small()), 40, 250).await.unwrap();
}

#[tokio::test]
async fn open_says_what_is_wrong() {
    let fixture = Embedded::new(small());
    let store = fixture.open_now().unwrap();
    assert!(matches!(fixture.open_now().map(drop), Err(OpenEntriesError::InUse(_))));
    drop(store);
    let open = |options| {
        let opened = EmbeddedEntries::open(fixture.dir.path(), &options, Clock::system());
        opened.map(drop).unwrap_err().to_string()
    };
    let other = open(EmbeddedEntriesOptions { shards: 64, ..small() });
    assert!(other.contains("was made with 32 shards") && other.contains("64"), "{other}");
    for wrong in [
        EmbeddedEntriesOptions { shards: 0, ..small() },
        EmbeddedEntriesOptions { shards: 1_025, ..small() },
        EmbeddedEntriesOptions { memtable_bytes: 5, ..small() },
        EmbeddedEntriesOptions { max_reads: 0, ..small() },
        EmbeddedEntriesOptions { durability: Durability::EverySecond, ..small() },
    ] {
        let error = EmbeddedEntries::open(fixture.dir.path(), &wrong, Clock::system()).map(drop).unwrap_err();
        assert!(matches!(error, OpenEntriesError::Invalid(_)), "{error:?}");
    }
    std::fs::write(fixture.dir.path().join("WINDFALL-ENTRIES"), "2\n").unwrap();
    assert!(open(small()).contains("format version 2"));
    std::fs::write(fixture.dir.path().join("WINDFALL-ENTRIES"), "1\n").unwrap();
    std::fs::remove_dir_all(fixture.dir.path().join("db")).unwrap();
    assert!(open(small()).contains("the database is gone"));
}

/// Many calls on one shard at once, with a sync before each Ok: none waits for ever, and each is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_syncs() {
    let fixture = Embedded::new(EmbeddedEntriesOptions { durability: Durability::Machine, ..small() });
    let store = fixture.open_now().unwrap();
    let calls: Vec<_> = (0..500)
        .map(|call: u64| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { done(&*store, Shard(1), vec![put("a", call, None)]).await })
        })
        .collect();
    let mut versions = Vec::new();
    for call in calls {
        versions.push(call.await.unwrap());
    }
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 500);
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name()))?,
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name()))?),
        }
    }
    Ok(())
}

/// What was answered lies in the files: nothing waits for the store to be closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_in_the_files_of_an_open_store() {
    let fixture = Embedded::new(small());
    let store = fixture.open_now().unwrap();
    let large = "x".repeat(VALUE_MAX_BYTES);
    let (mut version, mut number) = (0, 0);
    for round in 0..30_u64 {
        let changes = vec![put("last", round, Some(START_MS)), put(&format!("l-{round}"), &large, None)];
        version = done(&*store, Shard(3), changes).await;
        number = store.numbers(Shard(3), 700).await.unwrap() + 699;
    }
    let (_aside, copied) = open_a_copy(fixture.dir.path()).await;
    assert_eq!(value(&*copied, Shard(3), "last").await, Some(29));
    assert_eq!(copied.woken(Shard(3), 10).await.unwrap().entries.len(), 1);
    assert!(done(&*copied, Shard(3), vec![put("last", 30, None)]).await > version);
    assert!(copied.numbers(Shard(3), 1).await.unwrap() > number);
    // The one that is still open does not see the other.
    assert_eq!(value(&*store, Shard(3), "last").await, Some(29));
}

/// Opens a copy of the files of an open store. The store still merges its tables, so a copy may hold a part of that:
/// one that is made when the store has come to rest is whole.
async fn open_a_copy(of: &Path) -> (tempfile::TempDir, Arc<EmbeddedEntries>) {
    for _ in 0..100 {
        let aside = tempfile::tempdir().unwrap();
        let clock = Clock::from_unix_ms(|| START_MS);
        if copy(of, aside.path()).is_ok()
            && let Ok(copied) = EmbeddedEntries::open(aside.path(), &small(), clock)
        {
            return (aside, copied);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no copy of the files of an open store opens");
}

/// Changes two shards without end, and says so after each answer.
async fn write_until_killed(store: Arc<EmbeddedEntries>) {
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, shard) = (Arc::clone(&store), Shard(writer % 2));
            tokio::spawn(async move {
                let last = format!("last-{writer}");
                let first = value(&*store, shard, &last).await.map_or(0, |last| last + 1);
                for round in first.. {
                    let own = |at: u64| format!("own-{writer}-{}", at % 50);
                    let gone =
                        EntryChange { key: key(&own(round + 25)), expect: Expect::Anything, to: To::Deleted };
                    let wake_ms = (round % 3 == 0).then_some(START_MS - round % 100);
                    let changes = vec![put(&last, round, None), put(&own(round), round, wake_ms), gone];
                    let version = done(&*store, shard, changes).await;
                    let number = match round % 50 {
                        0 => store.numbers(shard, 100).await.unwrap() + 99,
                        _ => 0,
                    };
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "done {writer} {round} {version} {number} .").unwrap();
                    out.flush().unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

/// What the killed processes said: by writer the last round, and by shard the last version and number.
#[derive(Default)]
struct Said {
    rounds: BTreeMap<u16, u64>,
    last: BTreeMap<u16, (u64, u64)>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        // A line that the kill has cut short has no end.
        let ["done", writer, round, version, number, "."] = words[..] else { return };
        let writer: u16 = writer.parse().unwrap();
        self.rounds.insert(writer, round.parse().unwrap());
        let last = self.last.entry(writer % 2).or_default();
        *last = (last.0.max(version.parse().unwrap()), last.1.max(number.parse().unwrap()));
    }
}

fn run_and_kill(dir: &Path, said: &mut Said, lines: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_at_any_write", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..lines {
        said.hear(&out.next().unwrap().unwrap());
    }
    // A bit later, in the middle of whatever it does.
    std::thread::sleep(Duration::from_micros(lines * 137 % 3_000));
    child.kill().unwrap();
    out.map_while(Result::ok).for_each(|line| said.hear(&line));
    child.wait().unwrap();
}

#[test]
fn killed_at_any_write() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let open = |dir: &Path| EmbeddedEntries::open(dir, &small(), Clock::from_unix_ms(|| START_MS)).unwrap();
    if let Some(dir) = std::env::var_os(DIR) {
        runtime.block_on(write_until_killed(open(Path::new(&dir))));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut said = Said::default();
    for round in 0..ROUNDS {
        run_and_kill(dir.path(), &mut said, 10 + round * 300);
        runtime.block_on(check(&*open(dir.path()), &mut said));
    }
    assert!(said.rounds.values().sum::<u64>() > 5_000, "{:?}", said.rounds);
}

async fn check(store: &dyn EntryStore, said: &mut Said) {
    for (writer, acknowledged) in &said.rounds {
        let shard = Shard(writer % 2);
        let last = value(store, shard, &format!("last-{writer}")).await.unwrap();
        // The group that was in flight when it died may be done without an answer.
        assert!((*acknowledged..=acknowledged + 1).contains(&last), "{writer}: {acknowledged}, found {last}");
        for at in 0..50 {
            let own = value(store, shard, &format!("own-{writer}-{at}")).await;
            let age = (last + 50 - at) % 50;
            let expected = (age < 25 && age <= last).then(|| last - age);
            assert_eq!(own, expected, "writer {writer}, entry {at}, round {last}: a group is there by half");
        }
    }
    for shard in [Shard(0), Shard(1)] {
        let page = store.scan(shard, b"own-", None, 1_000).await.unwrap();
        let mut times: Vec<_> = page.entries.iter().filter_map(|entry| entry.wake_ms).collect();
        times.sort_unstable();
        let woken = store.woken(shard, 1_000).await.unwrap();
        assert_eq!(woken.entries.iter().filter_map(|entry| entry.wake_ms).collect::<Vec<_>>(), times);
        let last = said.last.entry(shard.0).or_default();
        let version = done(store, shard, vec![put("check", 1, None)]).await;
        let number = store.numbers(shard, 1).await.unwrap();
        assert!(version > last.0 && number > last.1, "{version} and {number} behind {last:?}");
        *last = (version, number);
    }
}
