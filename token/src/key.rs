//! The public part of a key: its number, its algorithm and its state.

use std::fmt;

/// Names a key within its ring; never used again, even after the key is destroyed. Ids begin at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How tokens of a key are signed. Sealing is XAES-256-GCM for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// HMAC-SHA256 cut to 128 bits (RFC 2104). Whoever can verify can also mint. This is the default.
    HmacSha256,
    /// Ed25519 (RFC 8032). Verifiers get a copy of the ring that cannot mint: [`KeyFile::export_verifier`].
    ///
    /// [`KeyFile::export_verifier`]: crate::KeyFile::export_verifier
    Ed25519,
}

impl Algorithm {
    /// Its name in the key file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac-sha256-128",
            Self::Ed25519 => "ed25519",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a name that no algorithm has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such algorithm: use hmac-sha256-128 or ed25519")]
pub struct UnknownAlgorithm;

impl std::str::FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        [Self::HmacSha256, Self::Ed25519]
            .into_iter()
            .find(|algorithm| algorithm.as_str() == name)
            .ok_or(UnknownAlgorithm)
    }
}

/// The state of a key: pending → verify-only → primary → verify-only → destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It is being distributed to every process, and opens nothing yet.
    Pending,
    /// It opens tokens and mints none.
    VerifyOnly,
    /// It mints and opens tokens. A ring has at most one such key.
    Primary,
    /// Its secrets are gone; its tokens are illegal for good.
    Destroyed,
}

impl State {
    /// Its name in the key file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::VerifyOnly => "verify-only",
            Self::Primary => "primary",
            Self::Destroyed => "destroyed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The public description of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its number.
    pub id: KeyId,
    /// The algorithm by which it signs.
    pub algorithm: Algorithm,
    /// Its state.
    pub state: State,
    /// Whether it is or was primary: a verify-only key that has minted is being retired.
    pub has_minted: bool,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}
