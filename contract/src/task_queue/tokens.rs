//! Who may use a namespace, and how often.

use super::JobStoreError;
use async_trait::async_trait;

/// A token of a namespace.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its namespace.
    pub namespace: String,
    /// Itself. Whoever has it may publish to each queue of the namespace and take from it.
    pub token: String,
    /// What it is for, in its maker's words.
    pub description: String,
    /// How often it may be used.
    pub limit: Option<RateLimit>,
}

/// How often a token may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Calls that consume, per interval; 0 is any number.
    pub read: u32,
    /// Calls that publish, per interval; 0 is any number.
    pub write: u32,
    /// The interval.
    pub interval_s: u32,
}

impl std::fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token itself is a secret.
        f.debug_struct("TokenRecord").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Keeps the tokens of a store's namespaces. A token is looked up by its digest, so that how long a look-up takes says
/// nothing about the tokens that are there.
#[async_trait]
pub trait QueueTokens: Send + Sync {
    /// The token of a namespace with this digest.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn token(&self, namespace: &str, digest: &str) -> Result<Option<TokenRecord>, JobStoreError>;

    /// All tokens.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn tokens(&self) -> Result<Vec<TokenRecord>, JobStoreError>;

    /// Keeps a token; false where the namespace has it already. Its limit is not looked at.
    ///
    /// # Errors
    /// [`JobStoreError`]; it may be kept all the same.
    async fn add_token(&self, record: &TokenRecord, digest: &str) -> Result<bool, JobStoreError>;

    /// Forgets a token and its limit. It does nothing where there is none.
    ///
    /// # Errors
    /// [`JobStoreError`]; it may be forgotten all the same.
    async fn remove_token(&self, namespace: &str, digest: &str) -> Result<(), JobStoreError>;

    /// Sets or removes a token's limit; false where there is no such token.
    ///
    /// # Errors
    /// [`JobStoreError`]; it may be set all the same.
    async fn limit_token(
        &self,
        namespace: &str,
        digest: &str,
        limit: Option<RateLimit>,
    ) -> Result<bool, JobStoreError>;

    /// Counts a call under a name, and returns how many there were in its interval, with this one. An interval begins
    /// with its first call; one that is longer than `interval_s` by now has ended.
    ///
    /// # Errors
    /// [`JobStoreError`]; it may be counted all the same.
    async fn count_call(&self, name: &str, interval_s: u32) -> Result<u64, JobStoreError>;
}
