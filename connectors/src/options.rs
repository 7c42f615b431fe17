//! The options of connectors, and the reading of their files.

use crate::allow::BadEntry;
use crate::signature::BadKey;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Secrets and certificates are small; a larger file is a mistake.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Options of an HTTP connector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpOptions {
    /// Where orders are posted: `https://pay.example.com/v1/{bonus_type}/pay`. `{activity}`, `{scene}` and
    /// `{bonus_type}` may stand in path and query; what they stand for is percent-encoded, and `-` where it is empty.
    pub url: String,
    /// Hosts and networks that may be connected to; see [`crate::AllowList`].
    pub allow: Vec<String>,
    /// The id of the key that signs: 1 to 64 of `A-Z a-z 0-9 _ - .`.
    pub key_id: String,
    /// The file with the secret: 32 to 1,024 bytes, without the white space at its ends.
    pub secret_file: PathBuf,
    /// Whether requests carry version 1 of the [signature](crate::signature) beside version 2. Default true. Set it to false
    /// once the downstream checks version 2: version 1 covers neither the host nor the idempotency key.
    #[serde(default = "yes")]
    pub signature_v1: bool,
    /// Times, sizes and TLS.
    #[serde(default)]
    pub wire: WireOptions,
}

const fn yes() -> bool {
    true
}

/// Options of a gRPC connector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcOptions {
    /// Where `windfall.v1.Downstream` is served: `https://pay.example.com`, without a path.
    pub url: String,
    /// Hosts and networks that may be connected to; see [`crate::AllowList`].
    pub allow: Vec<String>,
    /// The file with the bearer key: visible ASCII, 16 to 1,024 bytes, without the white space at its ends.
    pub key_file: PathBuf,
    /// Times, sizes and TLS.
    #[serde(default)]
    pub wire: WireOptions,
}

/// The options that both kinds have: times, sizes and TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WireOptions {
    /// The time-out of resolving, connecting and the TLS handshake together, in ms, 1 to 60,000. Default 500. Keep it
    /// below the connector's `timeout_ms` in the reward service: what is given up while connecting is certainly
    /// not paid, which a time-out of the whole call cannot say.
    pub connect_timeout_ms: u64,
    /// The time-out of a call with the answer's body, in ms, 1 to 600,000. Default 10,000. The reward service
    /// gives up by its own `timeout_ms`, which is shorter as a rule.
    pub timeout_ms: u64,
    /// The pause after a failed connection before another is tried, in ms, 0 to 60,000. Default 500. Orders wait
    /// meanwhile, which counts against none of them; one connection at a time then tries.
    pub pause_ms: u64,
    /// Idle connections that are kept, 0 to 1,024. Default 64. HTTP only; gRPC has one connection. Connections in
    /// use are as many as calls, which the reward service limits.
    pub idle_max: usize,
    /// The time after which idle connections are closed, in ms, 1 to 3,600,000. Default 30,000; should be less than the
    /// downstream's own.
    pub idle_ms: u64,
    /// A PEM file of the authorities that may vouch for the downstream. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Permits `http://`, without TLS: orders, answers and a bearer key can then be read and changed on the way.
    /// Default false.
    pub plaintext: bool,
}

impl Default for WireOptions {
    fn default() -> Self {
        Self {
            connect_timeout_ms: 500,
            timeout_ms: 10_000,
            pause_ms: 500,
            idle_max: 64,
            idle_ms: 30_000,
            ca_file: None,
            plaintext: false,
        }
    }
}

/// A connector cannot be set up. Correct what it names.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An option is out of its range.
    #[error("{key}: {what}")]
    Option {
        /// Its name.
        key: &'static str,
        /// What is wrong.
        what: String,
    },
    /// An entry of the allow list cannot be read.
    #[error("allow: {0}")]
    Allow(#[from] BadEntry),
    /// The signing key cannot be used.
    #[error("key_id, secret_file: {0}")]
    Key(#[from] BadKey),
    /// A file cannot be read, or is not what it should be.
    #[error("{key}: {path}: {what}")]
    File {
        /// The option that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong. Never what the file holds.
        what: String,
    },
}

impl SetupError {
    pub(crate) fn option(key: &'static str, what: impl Into<String>) -> Self {
        Self::Option { key, what: what.into() }
    }

    pub(crate) fn file(key: &'static str, path: &Path, what: impl ToString) -> Self {
        Self::File { key, path: path.to_owned(), what: what.to_string() }
    }
}

impl WireOptions {
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        let range = |key, value: u64, range: std::ops::RangeInclusive<u64>| {
            let what = || format!("is {value}; {} to {} are allowed", range.start(), range.end());
            if range.contains(&value) { Ok(()) } else { Err(SetupError::option(key, what())) }
        };
        range("wire.connect_timeout_ms", self.connect_timeout_ms, 1..=60_000)?;
        range("wire.timeout_ms", self.timeout_ms, 1..=600_000)?;
        range("wire.pause_ms", self.pause_ms, 0..=60_000)?;
        range("wire.idle_max", self.idle_max as u64, 0..=1_024)?;
        range("wire.idle_ms", self.idle_ms, 1..=3_600_000)
    }
}

/// A file's bytes, without white space at the ends; wiped when dropped.
pub(crate) fn read_secret(key: &'static str, path: &Path) -> Result<Zeroizing<Vec<u8>>, SetupError> {
    let bytes = read_file(key, path)?;
    let metadata = path.metadata().map_err(|error| SetupError::file(key, path, error))?;
    if let Some(mode) = windfall_key_file::exposed_mode(&metadata) {
        let (path, mode) = (path.display(), format!("{mode:03o}"));
        tracing::warn!(option = key, %path, mode, "a secret is open to others than its owner; run chmod 600 on its file");
    }
    Ok(Zeroizing::new(bytes.trim_ascii().to_vec()))
}

/// A file's bytes, bounded.
pub(crate) fn read_file(key: &'static str, path: &Path) -> Result<Zeroizing<Vec<u8>>, SetupError> {
    let file = std::fs::File::open(path).map_err(|error| SetupError::file(key, path, error))?;
    // Room for all of it from the start: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(8 << 10));
    let read = file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| SetupError::file(key, path, error))?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(SetupError::file(key, path, "is larger than 1 MiB"));
    }
    Ok(bytes)
}
