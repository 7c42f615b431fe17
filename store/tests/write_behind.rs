//! The table in front of a store: the contract, and what a credit does to a token wherever it is.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;
use windfall_conformance::tokens::{self as conformance, Fixture};
use windfall_contract::tokens::{self, NEVER, StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
use windfall_store::write_behind::{WriteBehind, WriteBehindCounts, WriteBehindOptions};

const LONG_MS: u64 = 3_600_000;

fn put(user_id: i64, name: &str) -> TokenPut {
    TokenPut { user_id, name: tokens::name("spring", name), token: "AQAB".into(), expires_at_ms: NEVER }
}

fn credited(table: &WriteBehind, credited: &[(i64, &str)]) {
    table.credited(credited.iter().map(|(user_id, trade_no)| (*user_id, "spring", *trade_no)));
}

fn key(user_id: i64, name: &str) -> TokenKey {
    TokenKey { user_id, name: tokens::name("spring", name) }
}

fn delay(delay_ms: u64) -> WriteBehindOptions {
    WriteBehindOptions { delay_ms, ..WriteBehindOptions::default() }
}

/// A store on files whose writes can be held up, and fail.
struct Slow {
    files: Arc<EmbeddedStore>,
    _dir: tempfile::TempDir,
    /// One permit a write.
    writes: Semaphore,
    /// Writes that have begun.
    begun: AtomicU64,
    /// A write fails after it was carried out, like one whose answer is lost.
    loses_answers: AtomicBool,
}

impl Slow {
    fn new(writes: usize) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let files = EmbeddedStore::open(dir.path(), &EmbeddedStoreOptions::default()).unwrap();
        Arc::new(Self {
            files,
            _dir: dir,
            writes: Semaphore::new(writes),
            begun: AtomicU64::new(0),
            loses_answers: AtomicBool::new(false),
        })
    }

    async fn has(&self, user_id: i64, name: &str) -> bool {
        self.files.get(&[key(user_id, name)]).await.unwrap()[0].is_some()
    }
}

#[async_trait]
impl TokenStore for Slow {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        self.begun.fetch_add(1, SeqCst);
        self.writes.acquire().await.unwrap().forget();
        self.files.put(batch).await?;
        if self.loses_answers.load(SeqCst) { Err(Unavailable("lost".into())) } else { Ok(()) }
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        self.files.remove(batch).await
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        self.files.get(keys).await
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        self.files.list(user_id, after, limit).await
    }
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "waited for {what}");
}

struct Table {
    dir: tempfile::TempDir,
    options: WriteBehindOptions,
    last: parking_lot::Mutex<Option<Arc<WriteBehind>>>,
}

#[async_trait]
impl Fixture for Table {
    fn name(&self) -> &str {
        "write-behind"
    }

    async fn open(&self) -> Result<Arc<dyn TokenStore>, String> {
        // The same data: what waits in the last table is written first.
        let last = self.last.lock().take();
        if let Some(last) = last {
            last.close().await;
        }
        let options = EmbeddedStoreOptions { memtable_bytes: 1 << 20, ..EmbeddedStoreOptions::default() };
        let store = EmbeddedStore::open(self.dir.path(), &options).map_err(|error| error.to_string())?;
        let table = WriteBehind::start(store, &self.options);
        *self.last.lock() = Some(Arc::clone(&table));
        Ok(table)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_behind_a_table_conforms_whatever_the_delay() {
    let spills = tempfile::tempdir().unwrap();
    let on_disk = WriteBehindOptions {
        waiting_max_bytes: 100_000,
        spill_dir: Some(spills.path().into()),
        ..delay(LONG_MS)
    };
    for options in [delay(0), delay(3), delay(LONG_MS), on_disk] {
        let dir = tempfile::tempdir().unwrap();
        let failed = conformance::run(&Table { dir, options, last: parking_lot::Mutex::default() }).await;
        assert!(failed.is_empty(), "{failed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_cancels_a_token_that_is_not_written_yet() {
    let store = Slow::new(0);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(LONG_MS));
    table.put(&[put(1, "a"), put(1, "b")]).await.unwrap();
    credited(&table, &[(1, "a")]);
    assert_eq!(table.get(&[key(1, "a"), key(1, "b")]).await.unwrap(), [None, Some("AQAB".into())]);
    until("the removal", async || table.counts().removed == 1).await;
    store.writes.add_permits(10);
    table.close().await;
    let counts = table.counts();
    assert_eq!((counts.cancelled, counts.written, counts.waiting, counts.dropped), (1, 1, 0, 0));
    assert!(!store.has(1, "a").await && store.has(1, "b").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_comes_after_its_credit_is_never_written() {
    let store = Slow::new(100);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(0));
    credited(&table, &[(1, "a")]);
    until("the removal", async || table.counts().removed == 1).await;
    table.put(&[put(1, "a"), put(1, "b")]).await.unwrap();
    until("the other token", async || store.has(1, "b").await).await;
    table.close().await;
    assert!(!store.has(1, "a").await, "it stays behind for ever");
    assert_eq!(table.counts().cancelled, 1);
}

/// The removal waits for the write that it undoes.
/// A writer whose batch was taken in part repeats the whole of it, after the credit of a token that was taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_was_cancelled_and_is_put_again_is_never_written() {
    let store = Slow::new(0);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(LONG_MS));
    table.put(&[put(1, "a")]).await.unwrap();
    credited(&table, &[(1, "a")]);
    table.put(&[put(1, "a"), put(1, "b")]).await.unwrap();
    store.writes.add_permits(10);
    table.close().await;
    assert!(!store.has(1, "a").await && store.has(1, "b").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_is_not_overtaken_by_the_write_of_its_token() {
    let store = Slow::new(0);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(0));
    table.put(&[put(1, "a"), put(1, "b")]).await.unwrap();
    until("the write to begin", async || store.begun.load(SeqCst) == 1).await;
    credited(&table, &[(1, "a")]);
    let removing = tokio::spawn({
        let table = Arc::clone(&table);
        async move { table.remove(&[key(1, "b")]).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(table.counts().removed, 0);
    assert!(!removing.is_finished());
    store.writes.add_permits(1);
    removing.await.unwrap().unwrap();
    until("the removal", async || table.counts().removed == 1).await;
    assert!(!store.has(1, "a").await && !store.has(1, "b").await);
}

/// A write whose answer is lost is repeated without the tokens that were credited meanwhile, and these go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_write_leaves_out_what_was_credited_meanwhile() {
    let store = Slow::new(0);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(0));
    table.put(&[put(1, "a"), put(1, "b")]).await.unwrap();
    until("the write to begin", async || store.begun.load(SeqCst) == 1).await;
    credited(&table, &[(1, "a")]);
    store.loses_answers.store(true, SeqCst);
    store.writes.add_permits(1);
    until("the failure", async || table.counts().failures == 1).await;
    store.loses_answers.store(false, SeqCst);
    store.writes.add_permits(10);
    until("the repetition", async || table.counts().written == 1).await;
    until("the removal", async || table.counts().removed == 1).await;
    table.close().await;
    assert!(!store.has(1, "a").await && store.has(1, "b").await);
}

/// An order that was sent again has a token in the store and one in the table: its credit takes both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_takes_an_earlier_token_of_the_same_order_too() {
    let store = Slow::new(100);
    store.files.put(&[put(1, "a")]).await.unwrap();
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(LONG_MS));
    table.put(&[TokenPut { token: "AQAC".into(), ..put(1, "a") }]).await.unwrap();
    assert_eq!(&*table.list(1, None, 10).await.unwrap()[0].token, "AQAC", "the last put wins");
    credited(&table, &[(1, "a")]);
    table.close().await;
    assert!(!store.has(1, "a").await);
    assert_eq!(table.get(&[key(1, "a")]).await.unwrap(), [None]);
}

/// I9: a full table makes its callers wait, and a credit makes room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_table_takes_no_more_until_there_is_room() {
    let store = Slow::new(0);
    let options = WriteBehindOptions { waiting_max_bytes: 11_000, batch: 10, ..delay(0) };
    let table = WriteBehind::start(Arc::clone(&store) as _, &options);
    let puts: Vec<_> = (0..1_000).map(|number| put(number, "a")).collect();
    let putting = tokio::spawn({
        let (table, puts) = (Arc::clone(&table), puts.clone());
        async move { table.put(&puts).await }
    });
    until("the write to begin", async || store.begun.load(SeqCst) == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let waiting = table.counts().waiting;
    assert!(waiting < 200 && !putting.is_finished(), "{waiting}");
    // Some are credited; as many come in, and no more.
    let gone: Vec<_> = (20..40).map(|user_id| (user_id, "a")).collect();
    credited(&table, &gone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(table.counts().waiting <= waiting && !putting.is_finished());
    store.writes.add_permits(1_000);
    putting.await.unwrap().unwrap();
    table.close().await;
    let counts = table.counts();
    assert_eq!((counts.cancelled, counts.written, counts.dropped), (20, 980, 0));
}

fn long_token(number: i64) -> Box<str> {
    format!("{number:0300}").into()
}

/// More tokens than memory has room for wait on disk, are read, cancelled and written from there, and the disk is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_memory_has_no_room_for_wait_on_disk() {
    const USERS: i64 = 6_000;
    let spills = tempfile::tempdir().unwrap();
    let store = Slow::new(0);
    let options = WriteBehindOptions {
        waiting_max_bytes: 1_000_000,
        spill_dir: Some(spills.path().into()),
        batch: 500,
        ..delay(LONG_MS)
    };
    let table = WriteBehind::start(Arc::clone(&store) as _, &options);
    let puts: Vec<_> =
        (0..USERS).map(|user_id| TokenPut { token: long_token(user_id), ..put(user_id, "a") }).collect();
    table.put(&puts).await.unwrap();
    let counts = table.counts();
    assert!(counts.waiting >= 5_000 && counts.spilled_chunks > 10, "{counts:?}");
    for user_id in 0..USERS {
        assert_eq!(table.get(&[key(user_id, "a")]).await.unwrap(), [Some(long_token(user_id))]);
        assert_eq!(table.list(user_id, None, 10).await.unwrap()[0].token, long_token(user_id));
    }
    let gone: Vec<_> = (0..USERS).filter(|user_id| user_id % 3 == 0).map(|user_id| (user_id, "a")).collect();
    credited(&table, &gone);
    store.writes.add_permits(1_000);
    table.close().await;
    let counts = table.counts();
    assert_eq!((counts.dropped, counts.given_up, counts.failures), (0, 0, 0));
    for user_id in 0..USERS {
        let there = store.files.get(&[key(user_id, "a")]).await.unwrap().remove(0);
        assert_eq!(there, (user_id % 3 != 0).then(|| long_token(user_id)), "{user_id}");
    }
}

/// A disk that takes nothing costs room, and no token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_cannot_go_to_disk_stay_in_memory() {
    let store = Slow::new(1_000);
    let options = WriteBehindOptions {
        waiting_max_bytes: 200_000,
        spill_dir: Some("/dev/null/nowhere".into()),
        ..delay(LONG_MS)
    };
    let table = WriteBehind::start(Arc::clone(&store) as _, &options);
    let puts: Vec<_> =
        (0..3_000).map(|user_id| TokenPut { token: long_token(user_id), ..put(user_id, "a") }).collect();
    table.put(&puts).await.unwrap();
    table.close().await;
    let counts = table.counts();
    assert_eq!((counts.written, counts.dropped, counts.spilled_chunks), (3_000, 0, 0));
    assert!(store.has(0, "a").await && store.has(2_999, "a").await);
}

/// What a process of an older version has kept goes with its credit; a token of another activity stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_takes_the_token_of_its_activity_and_that_of_an_older_process() {
    let store = Slow::new(1_000);
    let older = TokenKey { user_id: 1, name: "a".into() };
    let other = TokenKey { user_id: 1, name: tokens::name("autumn", "a") };
    for key in [&older, &other] {
        let put = TokenPut { name: key.name.clone(), ..put(1, "") };
        store.files.put(&[put]).await.unwrap();
    }
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(0));
    table.put(&[put(1, "a")]).await.unwrap();
    credited(&table, &[(1, "a")]);
    until("the removal", async || table.counts().removed == 1).await;
    table.close().await;
    let left = store.files.get(&[key(1, "a"), older, other]).await.unwrap();
    assert_eq!(left, [None, None, Some("AQAB".into())]);
}

/// I9: removals that a store does not take are given up beyond their bound, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removals_are_bounded() {
    let store = Slow::new(0);
    let options = WriteBehindOptions { removals_max: 100, remembered_max: 100, ..delay(0) };
    let table = WriteBehind::start(Arc::clone(&store) as _, &options);
    table.put(&[put(1, "a")]).await.unwrap();
    until("the write to begin", async || store.begun.load(SeqCst) == 1).await;
    let gone: Vec<_> = (0..1_000).map(|user_id| (user_id, "b")).collect();
    credited(&table, &gone);
    assert_eq!(table.counts().given_up, 900);
    store.writes.add_permits(1);
    table.close().await;
    assert_eq!(table.counts().removed, 100);
}

/// I8: a store that hangs holds up neither credits nor the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_does_not_wait_for_a_store_that_hangs() {
    let store = Slow::new(0);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(0));
    table.put(&[put(1, "a"), put(2, "a")]).await.unwrap();
    until("the write to begin", async || store.begun.load(SeqCst) == 1).await;
    // The store does not answer for as long as the test lasts.
    tokio::time::timeout(Duration::from_secs(60), table.close())
        .await
        .expect("the close waits for the store");
    assert_eq!((table.counts().dropped, table.counts().written), (2, 0));
    assert!(table.put(&[put(3, "a")]).await.is_err());
}

/// At a pace that a store keeps up with, every token is stored or cancelled, and none stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_dropped_at_a_modest_rate() {
    const USERS: i64 = 20_000;
    let store = Slow::new(1 << 20);
    let table = WriteBehind::start(Arc::clone(&store) as _, &delay(20));
    for first in (0..USERS).step_by(200) {
        let puts: Vec<_> = (first..first + 200).map(|user_id| put(user_id, "a")).collect();
        table.put(&puts).await.unwrap();
        // Every fourth is credited at once, every other fourth later, the rest never.
        let now: Vec<_> = (first..first + 200).step_by(4).map(|user_id| (user_id, "a")).collect();
        credited(&table, &now);
        let late = (first - 5_000..first - 4_800).skip(1).step_by(4);
        let late: Vec<_> = late.filter(|user_id| *user_id >= 0).map(|user_id| (user_id, "a")).collect();
        credited(&table, &late);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    table.close().await;
    let counts = table.counts();
    assert_eq!((counts.dropped, counts.given_up, counts.waiting), (0, 0, 0));
    assert_eq!(counts.cancelled + counts.written, USERS.unsigned_abs());
    assert!(counts.cancelled >= 5_000, "{counts:?}");
    for user_id in 0..USERS {
        let is_credited = user_id % 4 == 0 || (user_id % 4 == 1 && user_id < USERS - 5_000);
        assert_eq!(store.has(user_id, "a").await, !is_credited, "{user_id}");
    }
}

/// A process that serves dropped tokens, and no metric said so. Each count has a place of its own.
#[test]
fn every_count_is_exported() {
    let counts = WriteBehindCounts {
        waiting: 1,
        written: 2,
        cancelled: 3,
        dropped: 4,
        removed: 5,
        given_up: 6,
        spilled_chunks: 7,
        failures: 8,
    };
    let mut seen = Vec::new();
    for metric in WriteBehindCounts::METRICS {
        let name = metric.name.strip_prefix("windfall_token_write_behind_").unwrap();
        (metric.read)(&counts, &mut |state, value| seen.push(format!("{name} {state:?} {value}")));
    }
    let expected = [
        "waiting_tokens [] 1",
        r#"tokens_total ["written"] 2"#,
        r#"tokens_total ["cancelled"] 3"#,
        r#"tokens_total ["dropped"] 4"#,
        r#"removals_total ["removed"] 5"#,
        r#"removals_total ["given_up"] 6"#,
        "spilled_chunks_total [] 7",
        "errors_total [] 8",
    ];
    assert_eq!(seen, expected);
}
