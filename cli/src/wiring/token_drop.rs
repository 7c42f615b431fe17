//! Drops a token from the store once its reward is credited. Weak (I8): what cannot be dropped is counted, and a
//! wallet leaves it out anyway because its order is credited.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use windfall_contract::tokens::{TokenKey, TokenStore};
use windfall_reward_service::GrantObserver;

/// Removals that wait for the store; what is more is given up.
const WAITING_MAX: usize = 131_072;
/// Removals in one call.
const BATCH: usize = 2_000;
/// Longer than this, and the store is taken for down.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Between two tries while it is down.
const BACKOFF: Duration = Duration::from_millis(50);

struct Waiting {
    keys: Mutex<Vec<TokenKey>>,
    more: Notify,
    removed: AtomicU64,
    given_up: AtomicU64,
}

/// The task that drops tokens, and its way in.
pub struct TokenDrop {
    waiting: Arc<Waiting>,
    closing: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl TokenDrop {
    /// Starts the task.
    pub fn start(store: Arc<dyn TokenStore>) -> Self {
        let waiting = Arc::new(Waiting {
            keys: Mutex::default(),
            more: Notify::new(),
            removed: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        });
        let (closing, closed) = tokio::sync::watch::channel(false);
        let task = tokio::spawn(run(Arc::clone(&waiting), store, closed));
        Self { waiting, closing, task }
    }

    /// Hears of credits. Never blocks.
    pub fn observer(&self) -> GrantObserver {
        let waiting = Arc::clone(&self.waiting);
        Arc::new(move |credited| {
            let mut keys = waiting.keys.lock();
            let room = WAITING_MAX.saturating_sub(keys.len());
            let fits = credited.iter().take(room);
            keys.extend(
                fits.map(|(user_id, trade_no)| TokenKey { user_id: *user_id, trade_no: (*trade_no).into() }),
            );
            drop(keys);
            waiting.given_up.fetch_add(credited.len().saturating_sub(room) as u64, Relaxed);
            waiting.more.notify_one();
        })
    }

    /// Removed, and given up.
    pub fn counts(&self) -> (u64, u64) {
        (self.waiting.removed.load(Relaxed), self.waiting.given_up.load(Relaxed))
    }

    /// Removes what waits if the store takes it, and ends.
    pub async fn close(self) {
        self.closing.send_replace(true);
        if self.task.await.is_err() {
            tracing::error!("the task that drops tokens had panicked");
        }
    }
}

async fn run(
    waiting: Arc<Waiting>,
    store: Arc<dyn TokenStore>,
    mut closed: tokio::sync::watch::Receiver<bool>,
) {
    loop {
        let closing = *closed.borrow();
        let keys = std::mem::take(&mut *waiting.keys.lock());
        for batch in keys.chunks(BATCH) {
            remove(&waiting, &*store, batch, &closed).await;
        }
        if !keys.is_empty() {
            continue;
        }
        if closing {
            return;
        }
        tokio::select! {
            () = waiting.more.notified() => {}
            changed = closed.changed() => {
                // The owner is gone without a close: so is what waits.
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

async fn remove(
    waiting: &Waiting,
    store: &dyn TokenStore,
    batch: &[TokenKey],
    closed: &tokio::sync::watch::Receiver<bool>,
) {
    loop {
        if matches!(tokio::time::timeout(TIMEOUT, store.remove(batch)).await, Ok(Ok(()))) {
            waiting.removed.fetch_add(batch.len() as u64, Relaxed);
            return;
        }
        if *closed.borrow() {
            waiting.given_up.fetch_add(batch.len() as u64, Relaxed);
            return;
        }
        tokio::time::sleep(BACKOFF).await;
    }
}
