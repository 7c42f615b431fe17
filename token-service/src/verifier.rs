//! The handle, and the parts that it works with.

use crate::decoy::Decoy;
use crate::options::TokenOptions;
use crate::stats::{Cause, Counters, TokenStats};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_contract::rules::Revocations;
use windfall_contract::tokens::{TokenStore, Unavailable};
use windfall_contract::verifier::{ListError, Page, TokenPage, TokenVerifier, Verdict, VerifyError};
use windfall_proto::v1::BonusToken;
use windfall_token::{KeyRing, Reason, State};

/// The parts that a [`KeyRingVerifier`] is wired to.
pub struct TokenParts {
    /// The key ring that opens tokens. A verifier's copy of the ring is enough.
    pub keys: KeyRing,
    /// The store of the tokens that users hold.
    pub store: Arc<dyn TokenStore>,
    /// The live rules, with the revocations.
    pub rules: LiveRules,
}

/// The verifier could not be opened, or the changed ring could not be taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range. Correct it.
    #[error("option {0}")]
    Option(String),
    /// The operating system has no randomness for a decoy. Try again.
    #[error("no randomness: {0}")]
    NoRandomness(String),
}

/// Verifies tokens with a key ring and a token store. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct KeyRingVerifier(Arc<Inner>);

struct Inner {
    keys: ArcSwap<Keys>,
    store: Arc<dyn TokenStore>,
    rules: LiveRules,
    store_timeout: Duration,
    counters: Counters,
}

/// A ring and the decoy that costs what its tokens cost. Swapped together.
pub(crate) struct Keys {
    pub(crate) ring: KeyRing,
    pub(crate) decoy: Decoy,
}

impl Keys {
    fn new(ring: KeyRing) -> Result<Self, OpenError> {
        let decoy = Decoy::like(&ring).map_err(OpenError::NoRandomness)?;
        Ok(Self { ring, decoy })
    }
}

impl KeyRingVerifier {
    /// Opens the verifier. Neither the store nor the rules are asked yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: TokenOptions, parts: TokenParts) -> Result<Self, OpenError> {
        if let Some(wrong) = options.out_of_range() {
            return Err(OpenError::Option(wrong));
        }
        Ok(Self(Arc::new(Inner {
            keys: ArcSwap::from_pointee(Keys::new(parts.keys)?),
            store: parts.store,
            rules: parts.rules,
            store_timeout: Duration::from_millis(options.store_timeout_ms),
            counters: Counters::default(),
        })))
    }

    /// Takes over a changed ring. Calls that have begun end with the one they began with.
    ///
    /// # Errors
    /// [`OpenError::NoRandomness`]: the ring so far stays.
    pub fn set_keys(&self, ring: KeyRing) -> Result<(), OpenError> {
        self.0.keys.store(Arc::new(Keys::new(ring)?));
        Ok(())
    }

    /// Counters since the start, and the newest key that opens tokens now.
    pub fn stats(&self) -> TokenStats {
        let keys = self.keys();
        let opens = keys.ring.keys().filter(|key| matches!(key.state, State::VerifyOnly | State::Primary));
        let newest_key = opens.map(|key| u64::from(key.id.0)).max().unwrap_or(0);
        TokenStats { newest_key, ..self.0.counters.read() }
    }

    /// The ring that is in force. A call takes it once.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        self.0.keys.load_full()
    }

    pub(crate) fn rules(&self) -> Arc<windfall_contract::rules::Rules> {
        self.0.rules.current()
    }

    pub(crate) fn store(&self) -> &dyn TokenStore {
        &*self.0.store
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Asks the store; an answer that is not in time counts as none.
    pub(crate) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, Unavailable>>,
    ) -> Result<T, Unavailable> {
        let limit = self.0.store_timeout;
        let answer = match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Unavailable(format!("no answer within {} ms", limit.as_millis()))),
        };
        if let Err(error) = &answer {
            self.0.counters.store_failed();
            tracing::debug!(%error, "the token store was asked in vain");
        }
        answer
    }
}

#[async_trait]
impl TokenVerifier for KeyRingVerifier {
    async fn list(
        &self,
        tenant: &str,
        user_id: i64,
        activity: Option<&str>,
        page: Page<'_>,
    ) -> Result<TokenPage, ListError> {
        Self::list(self, tenant, user_id, activity, page).await
    }

    async fn verify(
        &self,
        tenant: &str,
        user_id: i64,
        texts: &[String],
    ) -> Result<Vec<Verdict>, VerifyError> {
        Self::verify(self, tenant, user_id, texts).await
    }
}

impl fmt::Debug for KeyRingVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRingVerifier").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Opens a token for this user: its content, or why it does not count.
pub(crate) fn open(
    ring: &KeyRing,
    revocations: &Revocations,
    text: &str,
    tenant: &str,
    user_id: i64,
) -> Result<BonusToken, Failed> {
    let token = ring.diagnose(text.as_bytes(), tenant, Some(user_id)).map_err(Failed::Opening)?;
    if is_revoked(revocations, &token, text) { Err(Failed::Revoked) } else { Ok(token) }
}

/// Whether an operator has revoked a token that has been opened.
pub(crate) fn is_revoked(revocations: &Revocations, token: &BonusToken, text: &str) -> bool {
    // The seal binds the header, so the key that is named there is the key that it opened with.
    !revocations.is_empty()
        && key_of(text).is_none_or(|key| {
            revocations.of_token(key, &token.activity, token.award_time_ms, &token.trade_no).is_some()
        })
}

/// The token does not count.
pub(crate) enum Failed {
    /// It does not open for this user.
    Opening(Reason),
    /// It opens, and an operator has revoked it.
    Revoked,
}

impl From<&Failed> for Cause {
    fn from(failed: &Failed) -> Self {
        match failed {
            Failed::Opening(reason) => reason.into(),
            Failed::Revoked => Self::Revoked,
        }
    }
}

/// The key that a text names: the four bytes after its version. `None` where it is too short to name one.
pub(crate) fn key_of(text: &str) -> Option<u32> {
    let mut head = [0; 6];
    let read = URL_SAFE_NO_PAD.decode_slice(text.get(..8)?, &mut head).ok()?;
    match head {
        [_version, a, b, c, d, _] if read == 6 => Some(u32::from_be_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use windfall_token::TokenFields;

    #[test]
    fn a_text_names_its_key() {
        let ring = KeyRing::ephemeral().unwrap();
        let text = ring.minter("t").unwrap().mint(&TokenFields::default(), 0).unwrap();
        assert_eq!(key_of(&text), Some(ring.keys().next().unwrap().id.0));
        assert_eq!((key_of(""), key_of("AQAB"), key_of("äöüß")), (None, None, None));
    }
}
