//! A token store that is down on demand: a decorator for the demo and for tests.

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};

/// How a store that is down behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// Every call fails at once.
    Refuses,
    /// Every call fails after this long, like a call that waited for an answer. 1 ms at least.
    TimesOut(Duration),
}

/// The decorator. A call looks at the switch when it begins.
pub struct Switchable {
    inner: Arc<dyn TokenStore>,
    /// [`UP`], [`REFUSES`], or the time-out in milliseconds.
    state: AtomicU64,
}

const UP: u64 = u64::MAX;
const REFUSES: u64 = 0;

impl Switchable {
    /// A decorator over `inner`, up.
    pub fn new(inner: Arc<dyn TokenStore>) -> Arc<Self> {
        Arc::new(Self { inner, state: AtomicU64::new(UP) })
    }

    /// Switches the store. While it is down every call is `Unavailable` at once and does nothing; while it is up calls
    /// go through.
    pub fn set_down(&self, down: bool) {
        self.set(down.then_some(Down::Refuses));
    }

    /// Sets how it is down; `None` is up.
    pub fn set(&self, down: Option<Down>) {
        let state = match down {
            None => UP,
            Some(Down::Refuses) => REFUSES,
            Some(Down::TimesOut(after)) => {
                u64::try_from(after.as_millis()).unwrap_or(UP - 1).clamp(1, UP - 1)
            }
        };
        self.state.store(state, Ordering::Release);
    }

    async fn pass(&self) -> Result<(), Unavailable> {
        match self.state.load(Ordering::Acquire) {
            UP => Ok(()),
            REFUSES => Err(Unavailable("switched off".into())),
            after_ms => {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                Err(Unavailable(format!("no answer within {after_ms} ms")))
            }
        }
    }
}

#[async_trait]
impl TokenStore for Switchable {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        self.pass().await?;
        self.inner.put(batch).await
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        self.pass().await?;
        self.inner.remove(batch).await
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        self.pass().await?;
        self.inner.get(keys).await
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        self.pass().await?;
        self.inner.list(user_id, after, limit).await
    }
}
