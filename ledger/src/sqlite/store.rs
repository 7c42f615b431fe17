//! A connection that writes the file, as the ledger's front sees it.

use super::schema::{self, LedgerOptions};
use super::state::{Connected, SqliteTx};
use crate::contract::{Read, Store, Transaction};
use crate::error::{LedgerError, OpenError};
use crate::model::Writers;
use std::path::{Path, PathBuf};

/// A file, opened for writing.
#[derive(Debug)]
pub(crate) struct SqliteLedger {
    connected: Connected,
    path: PathBuf,
    _lock: schema::WriterLock,
}

impl SqliteLedger {
    pub fn open(path: &Path, options: &LedgerOptions) -> Result<Self, OpenError> {
        let (db, lock) = schema::open_writer(path, options)?;
        let connected = Connected::new(db, options.unbudgeted);
        Ok(Self { connected, path: path.to_owned(), _lock: lock })
    }
}

impl Store for SqliteLedger {
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(SqliteTx::begin(&mut self.connected)?))
    }

    fn read(&self) -> &dyn Read {
        &self.connected.db
    }

    fn writers(&self) -> Writers {
        Writers::One
    }

    fn another(&self) -> Result<Box<dyn Store>, OpenError> {
        Err(OpenError::InUse { path: self.path.display().to_string() })
    }

    fn reader(&self) -> Result<Box<dyn Read + Send>, OpenError> {
        Ok(Box::new(schema::open_reader(&self.path)?))
    }
}
