//! What the server asks of the scheduler behind it.

use super::address::Executor;
use super::result::RunResult;
use async_trait::async_trait;

/// Takes registrations and results. A call goes on to its end though the executor that asked for it has gone.
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// An executor is there. It says so every 30 seconds, and is gone after 90 of silence.
    ///
    /// # Errors
    /// [`AdminError`]; it asks again at its next beat, or at another server.
    async fn register(&self, executor: Executor) -> Result<(), AdminError>;

    /// An executor ends in order: it takes no more runs. Those that it has end first or are reported as failed. One
    /// that is not registered is no error.
    ///
    /// # Errors
    /// [`AdminError`]; it does not ask again.
    async fn remove(&self, executor: Executor) -> Result<(), AdminError>;

    /// Runs have ended. Ok: all of these results are durable, for the executor forgets them.
    ///
    /// The same results may come any number of times, beside other ones and at the same time: an executor whose report
    /// was not answered within three seconds keeps it in a file and repeats it every 30 seconds, also after a restart.
    /// So a result of a run that is unknown or has ended already is no error, or it would come for ever.
    ///
    /// # Errors
    /// [`AdminError`]; the executor reports them again.
    async fn report(&self, results: Vec<RunResult>) -> Result<(), AdminError>;
}

/// It was not done. An executor reads the text in its log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// It could not be made durable; later it can.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It is not allowed, as an application that nobody has made known.
    #[error("refused: {0}")]
    Refused(String),
}
