//! What a token store offers. It is a weak dependency (I8): callers go on without it, and count that they did.

use async_trait::async_trait;

/// A token to keep: a hash a user, order number → token text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPut {
    /// Whose.
    pub user_id: i64,
    /// Its order number.
    pub trade_no: Box<str>,
    /// The token text, as the user holds it.
    pub token: Box<str>,
    /// Unix milliseconds until which it is kept at least; later it may go at any time. [`NEVER`] keeps it for good.
    pub expires_at_ms: u64,
}

/// For a token that does not expire.
pub const NEVER: u64 = u64::MAX;

/// Names one token. Ordered by user, then by order number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// Whose.
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

/// The store did not answer, or not in time. Says nothing about what is stored (I7): neither Unknown nor Valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the token store is unavailable: {0}")]
pub struct Unavailable(pub String);

/// Keeps tokens by user. Every call may be repeated: the last put of an order wins, a remove of nothing is done.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Stores tokens, all or an unknown part of them on an error.
    ///
    /// # Errors
    /// [`Unavailable`]; repeat the whole batch.
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable>;

    /// Drops tokens whose rewards have been credited.
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
