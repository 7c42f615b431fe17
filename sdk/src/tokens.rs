//! Tokens that wait for the token store: a bounded buffer and the thread that empties it in batches.
//!
//! The store is a weak dependency (I8). While it is down the buffer fills, then the newest tokens are dropped and
//! counted; their users still hold them, and their rewards arrive all the same.

use crate::options::SdkOptions;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::tokens::{TokenPut, TokenStore, push_name};
use windfall_proto::event::EventRef;
use windfall_queue_virtual::ThreadHealth;

/// The pause between two looks at the buffer: short enough for a wallet opened at once, long enough to gather a batch.
const TICK: Duration = Duration::from_millis(2);
/// The pause between two tries while the store is down.
const BACKOFF: Duration = Duration::from_millis(50);

pub(crate) struct TokenBuffer {
    shards: Box<[Mutex<Waiting>]>,
    shard_max: usize,
    /// The number of tokens taken out of the shards and not yet written or dropped.
    in_flight: AtomicUsize,
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// The health of the thread that writes.
    pub(crate) health: ThreadHealth,
    /// Whether the thread is to write what is there and then end.
    closing: AtomicBool,
    /// Whether the thread is to drop what is there and end.
    give_up: AtomicBool,
}

/// The waiting tokens. Their texts lie in one string, so that a caller allocates nothing for them, and the values that
/// the store is given are allocated by the thread that frees them.
#[derive(Default)]
struct Waiting {
    tokens: Vec<Lengths>,
    /// The name and the text of each token, one after the other.
    texts: String,
}

struct Lengths {
    user_id: i64,
    expires_at_ms: u64,
    name_bytes: usize,
    token_bytes: usize,
}

impl TokenBuffer {
    pub(crate) fn new(options: &SdkOptions) -> Self {
        let shards = options.shards.max(1);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_max: (options.tokens_waiting_max / shards).max(1),
            in_flight: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            health: ThreadHealth::default(),
            closing: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
        }
    }

    /// Puts a token in, or drops it when there is no room.
    #[inline]
    pub(crate) fn push(&self, shard: usize, event: &EventRef<'_>, token: &str, expires_at_ms: u64) {
        let mut waiting = self.shards[shard % self.shards.len()].lock();
        if waiting.tokens.len() < self.shard_max {
            let before = waiting.texts.len();
            push_name(event.activity, event.trade_no, &mut waiting.texts);
            let name_bytes = waiting.texts.len() - before;
            waiting.texts.push_str(token);
            let (user_id, token_bytes) = (event.user_id, token.len());
            waiting.tokens.push(Lengths { user_id, expires_at_ms, name_bytes, token_bytes });
        } else {
            drop(waiting);
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tokens.len()).sum::<usize>()
            + self.in_flight.load(Relaxed)
    }
}

/// The thread that writes.
pub(crate) struct TokenWriter {
    buffer: Arc<TokenBuffer>,
    thread: JoinHandle<()>,
}

impl TokenWriter {
    pub(crate) fn start(
        buffer: Arc<TokenBuffer>,
        store: Arc<dyn TokenStore>,
        options: &SdkOptions,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let timeout = Duration::from_millis(options.tokens_timeout_ms);
        let batch = options.tokens_batch;
        let own = Arc::clone(&buffer);
        let thread = std::thread::Builder::new().name("windfall-tokens".into()).spawn(move || {
            let is_over = || own.give_up.load(Relaxed);
            own.health.supervise("windfall-tokens", is_over, || {
                // What the last run held when it panicked; users still hold these tokens.
                let lost = own.in_flight.swap(0, Relaxed);
                own.dropped.fetch_add(u64::try_from(lost).unwrap_or(u64::MAX), Relaxed);
                runtime.block_on(write(&own, &*store, batch, timeout));
            });
        })?;
        Ok(Self { buffer, thread })
    }

    /// Writes what is there until `is_over`, and ends. A write that is under way then is waited for, at most the
    /// store's time-out.
    pub(crate) fn close(self, is_over: impl Fn() -> bool) {
        self.buffer.closing.store(true, Relaxed);
        while !self.thread.is_finished() {
            if is_over() {
                self.buffer.give_up.store(true, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.thread.join().is_err() {
            tracing::error!("the token writer had panicked");
        }
    }
}

async fn write(buffer: &TokenBuffer, store: &dyn TokenStore, batch_max: usize, timeout: Duration) {
    let mut waiting = Waiting::default();
    let mut batch = Vec::with_capacity(batch_max);
    loop {
        // Read before the buffer: what was put in before `close` is seen below.
        let closing = buffer.closing.load(Relaxed);
        let mut wrote = false;
        for shard in &buffer.shards {
            // Swapped, so that both keep their memory.
            std::mem::swap(&mut *shard.lock(), &mut waiting);
            buffer.in_flight.store(waiting.tokens.len(), Relaxed);
            let mut texts = waiting.texts.as_str();
            for tokens in waiting.tokens.chunks(batch_max) {
                wrote = true;
                batch.extend(tokens.iter().map(|lengths| {
                    let (name, rest) = texts.split_at(lengths.name_bytes);
                    let (token, rest) = rest.split_at(lengths.token_bytes);
                    texts = rest;
                    TokenPut {
                        user_id: lengths.user_id,
                        name: name.into(),
                        token: token.into(),
                        expires_at_ms: lengths.expires_at_ms,
                    }
                }));
                put(buffer, store, &batch, timeout).await;
                batch.clear();
                buffer.in_flight.fetch_sub(tokens.len(), Relaxed);
            }
            waiting.tokens.clear();
            waiting.texts.clear();
        }
        if closing {
            return;
        }
        if !wrote {
            tokio::time::sleep(TICK).await;
        }
    }
}

/// Writes one batch, again and again until the store takes it or the SDK is closed.
async fn put(buffer: &TokenBuffer, store: &dyn TokenStore, batch: &[TokenPut], timeout: Duration) {
    let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
    while !buffer.give_up.load(Relaxed) {
        if matches!(tokio::time::timeout(timeout, store.put(batch)).await, Ok(Ok(()))) {
            buffer.written.fetch_add(count, Relaxed);
            return;
        }
        buffer.failures.fetch_add(1, Relaxed);
        if buffer.closing.load(Relaxed) {
            // The store is down: what waits behind this batch would fare no better.
            buffer.give_up.store(true, Relaxed);
        } else {
            tokio::time::sleep(BACKOFF).await;
        }
    }
    buffer.dropped.fetch_add(count, Relaxed);
}
