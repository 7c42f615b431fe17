//! The public part of a key: its number, its sender and its state.

use std::fmt;

/// Bytes of a sender's name: 1 to 64.
pub const SENDER_MAX_BYTES: usize = 64;

/// The state of a key: verify-only → primary → verify-only → destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyState {
    /// Records that it signed are verified, and it signs none.
    VerifyOnly,
    /// It signs. A sender has at most one such key.
    Primary,
    /// Its secret is gone; what it signed is refused for good.
    Destroyed,
}

impl KeyState {
    /// Its name in the key file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VerifyOnly => "verify-only",
            Self::Primary => "primary",
            Self::Destroyed => "destroyed",
        }
    }
}

impl fmt::Display for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The public description of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its number, from 1. No other key of the ring ever has it, also after this one is destroyed.
    pub id: u32,
    /// Whose key it is.
    pub sender: String,
    /// Whether it may sign records that name another key as their origin, which consumers do when they requeue.
    pub may_copy: bool,
    /// Its state.
    pub state: KeyState,
    /// Whether it is or was primary: a verify-only key that has signed is being retired.
    pub has_signed: bool,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// A name that no sender can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a sender: use 1 to 64 letters, digits, dots, hyphens and underscores")]
pub struct UnusableName(pub String);

/// Checks a sender's name.
///
/// # Errors
/// [`UnusableName`].
pub fn check_sender(name: &str) -> Result<(), UnusableName> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match (1..=SENDER_MAX_BYTES).contains(&name.len()) && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(UnusableName(name.to_owned())),
    }
}
