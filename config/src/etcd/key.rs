//! One small value in etcd, replaced only by those who know what it was.

use super::connection::Connection;
use super::{EtcdOptions, OpenEtcdError};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::Runtime;

/// A value beside the rules. Its calls block for up to `call_timeout_ms` each; where async code may not block, they belong
/// on a thread of their own.
pub struct EtcdValue {
    options: EtcdOptions,
    key: String,
    open: Mutex<Option<Open>>,
}

/// A connection and the runtime that drives it.
struct Open {
    runtime: Option<Runtime>,
    connection: Connection,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Async code may drop it, where a runtime must not be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for EtcdValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}

impl EtcdValue {
    /// The value of this name under the prefix of the rules. Does not connect yet.
    ///
    /// # Errors
    /// [`OpenEtcdError::Option`] alone.
    pub fn new(options: EtcdOptions, name: &str) -> Result<Self, OpenEtcdError> {
        options.check()?;
        let key = format!("{}{name}", options.prefix);
        Ok(Self { options, key, open: Mutex::default() })
    }

    /// Where it is.
    pub fn place(&self) -> String {
        format!("{} in etcd at {}", self.key, self.options.place())
    }

    /// The value; `None` where there is none.
    ///
    /// # Errors
    /// etcd did not answer, or refused.
    pub fn get(&self) -> Result<Option<Vec<u8>>, io::Error> {
        self.connected(async |connection| Ok(connection.find(&self.key, false).await?.document))
    }

    /// Puts `new` in place of `old`. False where the value is another one by now.
    ///
    /// # Errors
    /// etcd refused, or did not answer: then nobody knows.
    pub fn replace(&self, old: Option<&[u8]>, new: Vec<u8>) -> Result<bool, io::Error> {
        let is_old = match old {
            Some(old) => Compare::value(self.key.as_str(), CompareOp::Equal, old),
            None => Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0),
        };
        let put = TxnOp::put(self.key.as_str(), new, None);
        let transaction = Txn::new().when([is_old]).and_then([put]);
        self.connected(async |connection| Ok(connection.transact(transaction).await?.succeeded()))
    }

    /// Works on the connection; one that fails is made anew with the next call.
    fn connected<T>(
        &self,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, String>,
    ) -> Result<T, io::Error> {
        let mut own = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = match own.take() {
            Some(open) => open,
            None => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let connection =
                    runtime.block_on(Connection::open(&self.options)).map_err(io::Error::other)?;
                Open { runtime: Some(runtime), connection }
            }
        };
        let Open { runtime: Some(runtime), connection } = &mut open else {
            return Err(io::Error::other("the runtime has ended"));
        };
        let done = runtime.block_on(work(connection)).map_err(io::Error::other)?;
        *own = Some(open);
        Ok(done)
    }
}
