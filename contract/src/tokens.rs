//! What a token store offers. The store is a weak dependency (I8): callers go on without it, and count how often they
//! did.

use async_trait::async_trait;

/// A token to keep. A store keeps one hash per user, from order number to token text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPut {
    /// The user who holds it.
    pub user_id: i64,
    /// Its order number.
    pub trade_no: Box<str>,
    /// The token text, as the user holds it.
    pub token: Box<str>,
    /// The Unix milliseconds until which it is kept at least; later it may be removed at any time. [`NEVER`] keeps it
    /// for good.
    pub expires_at_ms: u64,
}

/// The expiry of a token that does not expire.
pub const NEVER: u64 = u64::MAX;

/// Names one token. Ordered by user, then by order number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The user who holds it.
    pub user_id: i64,
    /// Its order number.
    pub trade_no: Box<str>,
}

/// A token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// Its order number.
    pub trade_no: Box<str>,
    /// The token text.
    pub token: Box<str>,
}

/// The store did not answer, or not in time. That says nothing about what is stored (I7): it means neither Unknown nor
/// Valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the token store is unavailable: {0}")]
pub struct Unavailable(pub String);

/// Keeps tokens by user. Every call may be repeated: the last put of an order wins, and removing what is not there
/// succeeds.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Stores tokens, all or an unknown part of them on an error.
    ///
    /// # Errors
    /// [`Unavailable`]; repeat the whole batch.
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable>;

    /// Removes tokens whose rewards have been credited.
    ///
    /// # Errors
    /// [`Unavailable`]; repeat the whole batch.
    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable>;

    /// Reads tokens: one answer for each key, in order, `None` where none is stored.
    ///
    /// # Errors
    /// [`Unavailable`].
    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable>;

    /// A page of a user's tokens in the order of their order numbers: those after `after`, at most `limit`.
    ///
    /// # Errors
    /// [`Unavailable`].
    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable>;
}
