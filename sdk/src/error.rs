//! Why the SDK could not start. Why a reward was not taken is [`windfall_proto::send::SendError`].

use std::path::PathBuf;

/// The SDK could not start.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// An option is out of its range.
    #[error("option {0}")]
    Option(String),
    /// The key ring has no key to mint with.
    #[error(transparent)]
    Keys(#[from] windfall_token::NoPrimary),
    /// The spool cannot be opened.
    #[error(transparent)]
    Spool(#[from] windfall_spool::OpenError),
    /// A thread could not be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The SDK could not be built. Nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The builder was not told something that has no default. Final: add the call.
    #[error("the SDK cannot be built without {what}; call `{call}` on the builder")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// The builder's method that gives it.
        call: &'static str,
    },
    /// The key ring cannot be read.
    #[error("the key ring {path} cannot be read: {source}")]
    Keys {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        source: windfall_token::KeyFileError,
    },
    /// The signing keys cannot be read, or have none of this sender to sign with.
    #[error("the signing keys {path} cannot be used: {source}")]
    Signing {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        source: windfall_signing::OpenRingError,
    },
    /// The live rules cannot be opened, or name brokers that the builder was not given.
    #[error("the live rules cannot be opened: {0}")]
    Rules(#[from] windfall_config::OpenError),
    /// A broker cannot be opened: its options are wrong, or (an embedded one) its files are in use.
    #[error("the broker `{name}` cannot be opened: {source}")]
    Broker {
        /// Its name in the rules.
        name: String,
        /// The broker's error.
        source: windfall_contract::broker::OpenError,
    },
    /// The fan-out cannot be started: one of its options is out of its range, or there is no thread for it.
    #[error("the queues cannot be started: {0}")]
    Queues(windfall_contract::broker::OpenError),
    /// The SDK itself could not start.
    #[error(transparent)]
    Init(#[from] InitError),
}
