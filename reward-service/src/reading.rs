//! Threads that only read the ledger, each on a connection of its own: a wallet's page does not queue behind grants.

use crate::inbox::{CloseAtEnd, Inbox};
use std::sync::Arc;
use std::thread::JoinHandle;
use windfall_ledger::LedgerReader;

/// A read of the ledger.
pub(crate) type ReadCall = Box<dyn FnOnce(&LedgerReader) + Send>;

/// Starts one reading thread.
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
