//! A bounded table in front of a token store, for a process that both sends rewards and hears of their credits.
//!
//! Most rewards are credited moments after they were sent. A token that waits here when its reward is credited is
//! cancelled: the store never sees it. Tokens that are older than [`WriteBehindOptions::delay_ms`], or that make the
//! table more than half full, are written in batches, the oldest first.
//!
//! **Order.** One task talks to the store, one call at a time, and a removal follows the write that it undoes. A put
//! that comes after the credit of its reward is left out. So no token of a credited reward stays behind.
//!
//! **Reads** see what waits here and what the store has.
//!
//! **Bounds.** A put waits while the table is full (I9); removals beyond
//! [`WriteBehindOptions::removals_max`] are given up and counted, as the store is a weak dependency (I8).
//!
//! **Disk.** With [`WriteBehindOptions::spill_dir`] the tokens themselves go to a file without a name when a quarter of the
//! memory is in use, the youngest first; what finds them stays in memory. So the same memory holds about three times as
//! many, and only what no credit has cancelled is read back. A disk that is full or broken costs that room alone.
//!
//! **What may be lost.** A put returns when its token is in the table. What waits there is lost with the process: those
//! users see a reward later, and no reward is lost.
//!
//! Another process that removes tokens from the same store cannot cancel what waits here. Where there is one, the
//! delay should be 0.

mod chunks;
mod spill;
mod spilling;
mod table;
mod waiting;

use async_trait::async_trait;
use parking_lot::Mutex;
use spill::SpillFile;
use spilling::{blocking, read_texts};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use table::{Bounds, Table, Taken};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use windfall_contract::declare_metrics;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};

/// The pause between two looks at waiting tokens; also long enough to gather a batch of removals.
const TICK: Duration = Duration::from_millis(5);
/// The pause between two tries while the store is down.
const BACKOFF: Duration = Duration::from_millis(50);
/// The number of batches of removals that go before one of puts: removals that find no room are given up, while puts
/// wait.
const REMOVALS_FIRST: usize = 8;
/// How long a call of the store may take once the table is closed.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// How tokens wait for their store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteBehindOptions {
    /// How long a token waits at least for the credit of its reward before it is written, and at most about twice as
    /// long. Default 0: it is written at once, and waits only while the store is behind.
    pub delay_ms: u64,
    /// The memory in bytes for waiting tokens, beside one batch. Default 72 MiB: by
    /// calculation some 230,000 tokens of a rain, or 690,000 with a `spill_dir`.
    pub waiting_max_bytes: usize,
    /// The directory, which must be there, of the file for tokens beyond a quarter of this memory. Default `None`: all
    /// stay in memory.
    pub spill_dir: Option<PathBuf>,
    /// The number of removals that wait for the store at most. Default 131,072, about 10 MiB.
    pub removals_max: usize,
    /// The number of credits that are remembered for puts that come after them. Default 131,072, about 5 MiB: twice as
    /// many tokens as an SDK keeps waiting.
    pub remembered_max: usize,
    /// The number of tokens or removals in one call of the store. Default 2,000.
    pub batch: usize,
}

impl Default for WriteBehindOptions {
    fn default() -> Self {
        Self {
            delay_ms: 0,
            waiting_max_bytes: 72 << 20,
            spill_dir: None,
            removals_max: 131_072,
            remembered_max: 131_072,
            batch: 2_000,
        }
    }
}

declare_metrics! {
    /// What a table has counted since its start.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct WriteBehindCounts {
        gauge "windfall_token_write_behind_waiting_tokens"
        "Tokens that wait in front of the token store" {
            /// Tokens in the table.
            pub waiting: usize,
        }
        counter "windfall_token_write_behind_tokens_total" ["state"]
        "Tokens that waited in front of the token store: written, cancelled because their reward was credited before, or dropped because the store was down when the process closed or the disk did not give them back" {
            /// Tokens that the store took.
            pub written: u64 as "written",
            /// Tokens that were never written because their rewards were credited before.
            pub cancelled: u64 as "cancelled",
            /// Tokens that were not written because the store was down at the end, or could not be read back from disk.
            pub dropped: u64 as "dropped",
        }
        counter "windfall_token_write_behind_removals_total" ["state"]
        "Tokens of credited rewards whose removal the token store took, whether it had them or not, or was given up because too many waited or the store was down when the process closed" {
            /// Removals that the store took, whether it had the token or not.
            pub removed: u64 as "removed",
            /// Removals given up because too many waited, or because the store was down at the end.
            pub given_up: u64 as "given_up",
        }
        counter "windfall_token_write_behind_spilled_chunks_total"
        "Times that some 250 waiting tokens went from memory to disk" {
            /// Times that tokens of a chunk, some 250, went to disk.
            pub spilled_chunks: u64,
        }
        counter "windfall_token_write_behind_errors_total"
        "Batches of waiting tokens or removals that the token store did not take; they are tried again until the process closes" {
            /// Calls that the store refused.
            pub failures: u64,
        }
    }
}

/// The table and the task that empties it. A [`TokenStore`] itself.
pub struct WriteBehind {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn TokenStore>,
    delay: Duration,
    batch: usize,
    spill: Option<Arc<SpillFile>>,
    table: Mutex<Table>,
    /// A lock that is held during a call of the store: a removal must not be overtaken by the write that it undoes.
    in_turn: tokio::sync::Mutex<()>,
    /// Signals that there is something to do.
    work: Notify,
    /// Signals that there may be room again.
    room: Notify,
    /// Signals that there are tokens for the disk.
    full: Notify,
    written: AtomicU64,
    cancelled: AtomicU64,
    removed: AtomicU64,
    given_up: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
    spilled_chunks: AtomicU64,
}

impl WriteBehind {
    /// Starts its tasks, on this runtime.
    pub fn start(store: Arc<dyn TokenStore>, options: &WriteBehindOptions) -> Arc<Self> {
        let bounds = Bounds {
            waiting_bytes: options.waiting_max_bytes,
            removals: options.removals_max,
            remembered: options.remembered_max.div_ceil(2),
        };
        let shared = Arc::new(Shared {
            store,
            delay: Duration::from_millis(options.delay_ms),
            batch: options.batch.max(1),
            spill: options.spill_dir.clone().map(|dir| Arc::new(SpillFile::new(dir))),
            table: Mutex::new(Table::new(bounds)),
            in_turn: tokio::sync::Mutex::default(),
            work: Notify::new(),
            room: Notify::new(),
            full: Notify::new(),
            written: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            spilled_chunks: AtomicU64::new(0),
        });
        let (closing, closed) = watch::channel(false);
        let mut tasks = vec![tokio::spawn(Arc::clone(&shared).run(closed.clone()))];
        if let Some(file) = shared.spill.clone() {
            tasks.push(tokio::spawn(Arc::clone(&shared).spill(file, closed)));
        }
        Arc::new(Self { shared, closing, tasks: Mutex::new(tasks) })
    }

    /// Notes that rewards were credited: cancels their tokens, or has them removed. It never waits for the store.
    /// Each has its user, activity and order number.
    pub fn credited<'a>(&self, credited: impl Iterator<Item = (i64, &'a str, &'a str)>) {
        let shared = &*self.shared;
        let (mut cancelled, mut given_up) = (0, 0);
        let mut table = shared.table.lock();
        for (user_id, activity, trade_no) in credited {
            let (is_cancelled, is_told) = table.credited(user_id, activity, trade_no);
            cancelled += u64::from(is_cancelled);
            given_up += u64::from(!is_told);
        }
        drop(table);
        shared.cancelled.fetch_add(cancelled, Relaxed);
        shared.given_up.fetch_add(given_up, Relaxed);
        if cancelled > 0 {
            shared.room.notify_waiters();
        }
        shared.work.notify_one();
    }

    /// Counters.
    pub fn counts(&self) -> WriteBehindCounts {
        let shared = &*self.shared;
        WriteBehindCounts {
            waiting: shared.table.lock().waiting(),
            written: shared.written.load(Relaxed),
            cancelled: shared.cancelled.load(Relaxed),
            removed: shared.removed.load(Relaxed),
            given_up: shared.given_up.load(Relaxed),
            dropped: shared.dropped.load(Relaxed),
            failures: shared.failures.load(Relaxed),
            spilled_chunks: shared.spilled_chunks.load(Relaxed),
        }
    }

    /// Writes and removes what waits, if the store takes it, and ends the tasks. Puts fail from then on.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if task.await.is_err() {
                tracing::error!("a task that writes tokens had panicked");
            }
        }
    }
}

#[async_trait]
impl TokenStore for WriteBehind {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        let shared = &*self.shared;
        let mut closed = self.closing.subscribe();
        let mut rest = batch;
        loop {
            let mut room = std::pin::pin!(shared.room.notified());
            // Before the look at the table: room that is made after it is heard of.
            room.as_mut().enable();
            if *closed.borrow_and_update() {
                return Err(Unavailable("closed".into()));
            }
            rest = shared.take(rest);
            if rest.is_empty() {
                return Ok(());
            }
            tokio::select! {
                () = room => {}
                // An error: the other end lives as long as `self`.
                _ = closed.changed() => {}
            }
        }
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        let _in_turn = self.shared.in_turn.lock().await;
        {
            let mut table = self.shared.table.lock();
            batch.iter().for_each(|key| table.forget(key));
        }
        self.shared.room.notify_waiters();
        self.shared.store.remove(batch).await
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let waiting: Vec<_> = {
            let table = self.shared.table.lock();
            keys.iter().map(|key| table.get(key)).collect()
        };
        let mut found = read_texts(waiting).await?;
        // What left the table before the look at it is in the store.
        let missing: Vec<usize> = (0..keys.len()).filter(|at| found[*at].is_none()).collect();
        if !missing.is_empty() {
            let wanted: Vec<TokenKey> = missing.iter().map(|at| keys[*at].clone()).collect();
            let answers = self.shared.store.get(&wanted).await?;
            if answers.len() != wanted.len() {
                // I7: what was not answered is not unknown.
                let what = format!("{} answers to {} keys", answers.len(), wanted.len());
                return Err(Unavailable(what));
            }
            for (at, token) in missing.into_iter().zip(answers) {
                found[at] = token;
            }
        }
        Ok(found)
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        let waiting = self.shared.table.lock().list(user_id, after, limit);
        let stored = self.shared.store.list(user_id, after, limit).await?;
        let (orders, texts): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let texts = read_texts(texts.into_iter().map(Some).collect()).await?;
        let waiting: BTreeMap<_, _> =
            orders.into_iter().zip(texts).filter_map(|(order, text)| Some((order, text?))).collect();
        Ok(table::merge(stored, waiting, limit))
    }
}

impl Shared {
    /// Takes the tokens that there is room for, and returns the rest.
    fn take<'a>(&self, puts: &'a [TokenPut]) -> &'a [TokenPut] {
        let mut cancelled = 0;
        let mut taken = puts.len();
        let mut table = self.table.lock();
        for (at, put) in puts.iter().enumerate() {
            match table.put(put) {
                Taken::Waits => {}
                Taken::Cancelled => cancelled += 1,
                Taken::Full => {
                    taken = at;
                    break;
                }
            }
        }
        let is_to_spill = self.spill.is_some() && table.is_to_spill();
        drop(table);
        self.cancelled.fetch_add(cancelled, Relaxed);
        self.work.notify_one();
        if is_to_spill {
            self.full.notify_one();
        }
        &puts[taken..]
    }

    /// Ends when it is told to, or when the owner is gone.
    async fn run(self: Arc<Self>, mut closed: watch::Receiver<bool>) {
        let mut turned = Instant::now();
        loop {
            // Before the work: what came before the close is done below.
            let closing = *closed.borrow_and_update();
            let done = tokio::select! {
                done = self.work_once(&mut turned, closing) => done,
                () = long_after_close(closed.clone()) => Err(Unavailable("no answer in time".into())),
            };
            let pause = match done {
                Ok(true) => continue,
                Ok(false) if closing => return,
                Ok(false) => {
                    let is_idle = self.table.lock().is_idle();
                    if is_idle {
                        self.shrink().await;
                    }
                    (!is_idle).then_some(TICK)
                }
                Err(error) => {
                    self.failures.fetch_add(1, Relaxed);
                    if *closed.borrow() {
                        tracing::warn!(%error, "tokens that wait for their store are dropped");
                        return self.give_up();
                    }
                    Some(BACKOFF)
                }
            };
            let waited = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => self.work.notified().await,
                }
            };
            tokio::select! {
                () = waited => {}
                // An error: the owner is gone without a close, and so is what waits.
                changed = closed.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Sends some batches of removals and one of puts. Returns whether there was anything to do.
    async fn work_once(&self, turned: &mut Instant, closing: bool) -> Result<bool, Unavailable> {
        let _in_turn = self.in_turn.lock().await;
        let mut removed = 0;
        for _ in 0..REMOVALS_FIRST {
            let removals = self.table.lock().take_removals(self.batch);
            if removals.is_empty() {
                break;
            }
            if let Err(error) = self.store.remove(&with_older_names(&removals)).await {
                self.table.lock().put_back_removals(removals);
                return Err(error);
            }
            removed += removals.len();
            self.removed.fetch_add(count(removals.len()), Relaxed);
        }
        let batch = self.take_due(turned, closing).await?;
        if !batch.is_empty() {
            self.room.notify_waiters();
            if let Err(error) = self.store.put(&batch).await {
                self.table.lock().put_back();
                return Err(error);
            }
            self.table.lock().written_all();
            self.written.fetch_add(count(batch.len()), Relaxed);
        }
        Ok(removed + batch.len() > 0)
    }

    /// Tokens that are old enough, or that have to make room.
    async fn take_due(&self, turned: &mut Instant, closing: bool) -> Result<Arc<Vec<TokenPut>>, Unavailable> {
        let spilled = {
            let mut table = self.table.lock();
            if table.turn() {
                *turned = Instant::now();
            }
            if !closing && !table.is_pressed() && turned.elapsed() < self.delay {
                return Ok(Arc::default());
            }
            table.to_recall(self.batch)
        };
        let mut read = Vec::new();
        if !spilled.is_empty() {
            let read_all = move || spilled.into_iter().map(|chunk| (chunk.slot.read(), chunk)).collect();
            read = blocking(read_all).await?;
        }
        let mut lost = 0;
        // In one go: what is in memory again may be on its way to disk a moment later.
        let mut table = self.table.lock();
        for (tokens, chunk) in read {
            if let Err(error) = &tokens {
                tracing::error!(%error, "waiting tokens cannot be read back from disk and are dropped");
            }
            lost += table.recalled(&chunk, tokens.ok());
        }
        let batch = table.take_old(self.batch);
        drop(table);
        self.dropped.fetch_add(count(lost), Relaxed);
        Ok(batch)
    }

    fn give_up(&self) {
        let mut table = self.table.lock();
        self.dropped.fetch_add(count(table.waiting()), Relaxed);
        self.given_up.fetch_add(count(table.take_removals(usize::MAX).len()), Relaxed);
    }
}

/// A store that hangs is waited for no longer than this once the owner closes.
async fn long_after_close(mut closed: watch::Receiver<bool>) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(CLOSE_PATIENCE).await;
}

fn count(items: usize) -> u64 {
    u64::try_from(items).unwrap_or(u64::MAX)
}

/// These keys, and those under which a process of an older version has kept the same tokens.
fn with_older_names(keys: &[TokenKey]) -> Vec<TokenKey> {
    let older = keys.iter().map(|key| {
        let number = key.name.split_once(' ').map_or(&*key.name, |(number, _)| number);
        TokenKey { user_id: key.user_id, name: number.into() }
    });
    keys.iter().cloned().chain(older).collect()
}
