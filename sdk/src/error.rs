//! Why the SDK could not start. Why a reward was not taken is [`windfall_proto::send::SendError`].

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
