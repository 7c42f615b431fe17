//! Whether a token may use a namespace: asked of the store, and remembered for half a second, so that a token that is
//! deleted in any process stops working in all of them within a second.

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use windfall_contract::Clock;
use windfall_contract::task_queue::{JobStoreError, QueueTokens, RateLimit, TokenRecord};

/// From this age on one caller asks the store again while others go on with what is known.
const FRESH: Duration = Duration::from_millis(400);
/// From this age on nobody goes on without an answer.
const KNOWN: Duration = Duration::from_millis(800);
/// Tokens that are remembered at most; beyond, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;
/// The random bytes of a token that is made here.
const MADE_BYTES: usize = 24;

/// The tokens of a pool.
pub(crate) struct Tokens {
    store: Arc<dyn QueueTokens>,
    clock: Clock,
    known: Mutex<HashMap<[u8; 32], Known>>,
}

struct Known {
    token: Arc<KnownToken>,
    checked_ns: u64,
    is_asked: bool,
}

/// A token that is good.
#[derive(Debug)]
pub(crate) struct KnownToken {
    /// Tells it from others in this process.
    pub(crate) number: u64,
    pub(crate) limit: Option<RateLimit>,
    /// Names its counters.
    digest: String,
    namespace: String,
}

impl KnownToken {
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// What a call counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Produce,
    Consume,
}

impl Tokens {
    pub(crate) fn new(store: Arc<dyn QueueTokens>, clock: Clock) -> Self {
        Self { store, clock, known: Mutex::default() }
    }

    /// The token, if it is one of this namespace.
    pub(crate) async fn check(
        &self,
        namespace: &str,
        token: &str,
    ) -> Result<Option<Arc<KnownToken>>, JobStoreError> {
        let key: [u8; 32] =
            Sha256::new().chain_update(namespace).chain_update([0]).chain_update(token).finalize().into();
        let now_ns = self.clock.monotonic_ns();
        if let Some(known) = self.known.lock().get_mut(&key) {
            let age = Duration::from_nanos(now_ns.saturating_sub(known.checked_ns));
            if age < FRESH || age < KNOWN && known.is_asked {
                return Ok(Some(Arc::clone(&known.token)));
            }
            known.is_asked = true;
        }
        let digest = digest(token);
        let found = self.store.token(namespace, &digest).await?;
        // The digest was of this token; the whole comparison costs nothing, and takes as long whatever is different.
        let is_equal = |found: &TokenRecord| found.token.as_bytes().ct_eq(token.as_bytes()).into();
        let Some(found) = found.filter(is_equal) else {
            self.known.lock().remove(&key);
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h, ..] = key;
        let token = Arc::new(KnownToken {
            number: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            limit: found.limit,
            digest,
            namespace: namespace.to_owned(),
        });
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        // What was read is as old as the question.
        known.insert(key, Known { token: Arc::clone(&token), checked_ns: now_ns, is_asked: false });
        Ok(Some(token))
    }

    /// Whether the token may be used once more in its interval, which it is by this.
    pub(crate) async fn admit(&self, token: &KnownToken, what: Use) -> Result<bool, JobStoreError> {
        let Some(limit) = token.limit else { return Ok(true) };
        let (most, letter) = match what {
            Use::Produce => (limit.write, 'w'),
            Use::Consume => (limit.read, 'r'),
        };
        if most == 0 {
            return Ok(true);
        }
        let name = format!("{letter}:{}:{}", token.namespace, token.digest);
        Ok(self.store.count_call(&name, limit.interval_s).await? <= most.into())
    }

    pub(crate) async fn list(&self) -> Result<Vec<TokenRecord>, JobStoreError> {
        self.store.tokens().await
    }

    pub(crate) async fn add(&self, record: &TokenRecord) -> Result<bool, JobStoreError> {
        self.store.add_token(record, &digest(&record.token)).await
    }

    pub(crate) async fn remove(&self, namespace: &str, token: &str) -> Result<(), JobStoreError> {
        let removed = self.store.remove_token(namespace, &digest(token)).await;
        self.known.lock().clear();
        removed
    }

    pub(crate) async fn limit(
        &self,
        namespace: &str,
        token: &str,
        limit: Option<RateLimit>,
    ) -> Result<bool, JobStoreError> {
        let limited = self.store.limit_token(namespace, &digest(token), limit).await;
        self.known.lock().clear();
        limited
    }

    pub(crate) async fn limit_of(
        &self,
        namespace: &str,
        token: &str,
    ) -> Result<Option<RateLimit>, JobStoreError> {
        Ok(self.store.token(namespace, &digest(token)).await?.and_then(|found| found.limit))
    }
}

/// A token that nobody can guess.
pub(crate) fn make_token() -> Result<String, getrandom::Error> {
    use base64::Engine as _;
    let mut bytes = [0; MADE_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes))
}

/// What a token is looked up by.
fn digest(token: &str) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
