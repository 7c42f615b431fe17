//! Threads that only read the ledger, each on a connection of its own: a wallet's page does not queue behind grants.

use crate::inbox::{CloseAtEnd, Inbox, NotTaken, Weight};
use crate::service::{CallError, RewardHandle};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use windfall_ledger::{LedgerError, LedgerReader};

/// Something to read.
pub(crate) type ReadCall = Box<dyn FnOnce(&LedgerReader) + Send>;

/// Starts one.
pub(crate) fn start(
    reader: LedgerReader,
    inbox: Arc<Inbox<ReadCall>>,
) -> Result<JoinHandle<()>, std::io::Error> {
    std::thread::Builder::new().name("ledger-reader".into()).spawn(move || {
        let end = CloseAtEnd::new(Arc::clone(&inbox), "a reader of the ledger");
        let mut calls = Vec::new();
        while inbox.take(1, &mut calls) {
            calls.drain(..).for_each(|call| call(&reader));
        }
        drop(end);
    })
}

impl RewardHandle {
    /// Reads the ledger as it is committed now, beside its writers.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn read<T: Send + 'static>(
        &self,
        run: impl FnOnce(&LedgerReader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        // A caller that has gone does not want the answer.
        let call: ReadCall = Box::new(move |reader| drop(reply.send(run(reader))));
        match self.inner.reads.push(Weight { events: 1, bytes: 0 }, call) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(CallError::Busy),
            Err(NotTaken::Closed) => return Err(CallError::Closed),
        }
        Ok(answer.await.map_err(|_| CallError::Closed)??)
    }
}
