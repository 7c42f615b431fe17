//! Names of jobs.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Bytes of a job's name at most.
pub const NAME_MAX_BYTES: usize = 100;

/// A job's name among its tenant's jobs: 1 to [`NAME_MAX_BYTES`] letters, digits, dots, dashes and underscores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(Arc<str>);

/// A name that no job can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a job, which has 1 to {NAME_MAX_BYTES} letters, digits, dots, dashes and underscores"
)]
pub struct InvalidName(pub String);

impl JobName {
    /// A name.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX_BYTES || !name.bytes().all(is_good) {
            return Err(InvalidName(name.chars().take(NAME_MAX_BYTES).collect()));
        }
        Ok(Self(name.into()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for JobName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(&name)
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        (*name.0).to_owned()
    }
}
