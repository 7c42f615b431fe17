//! What a token store offers. The store is a weak dependency (I8): callers go on without it, and count how often they
//! did.

use async_trait::async_trait;

/// A token to keep. A store keeps one hash per user, from the token's name to its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPut {
    /// The user who holds it.
    pub user_id: i64,
    /// Its name ([`name`]).
    pub name: Box<str>,
    /// The token text, as the user holds it.
    pub token: Box<str>,
    /// The Unix milliseconds until which it is kept at least; later it may be removed at any time. [`NEVER`] keeps it
    /// for good.
    pub expires_at_ms: u64,
}

/// The name of the token of an order: an order number counts within its activity, so tokens of two activities must not take
/// each other's place. Names sort like order numbers. Processes of older versions keep a token under its order number alone,
/// and find none under such a name.
pub fn name(activity: &str, trade_no: &str) -> Box<str> {
    let mut name = String::with_capacity(trade_no.len() + 1 + activity.len());
    push_name(activity, trade_no, &mut name);
    name.into()
}

/// Appends the [`name`] to a text.
pub fn push_name(activity: &str, trade_no: &str, text: &mut String) {
    text.push_str(trade_no);
    text.push(' ');
    text.push_str(activity);
}

/// Whether a token of this order may be kept under this name, by this version or an older one.
pub fn is_name_of(name: &str, activity: &str, trade_no: &str) -> bool {
    name == trade_no || name.strip_prefix(trade_no).and_then(|rest| rest.strip_prefix(' ')) == Some(activity)
}

/// The expiry of a token that does not expire.
pub const NEVER: u64 = u64::MAX;

/// Names one token. Ordered by user, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The user who holds it.
    pub user_id: i64,
    /// Its name ([`name`]).
    pub name: Box<str>,
}

/// A token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// Its name ([`name`]).
    pub name: Box<str>,
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

    /// A page of a user's tokens in the order of their names: those after `after`, at most `limit`.
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
