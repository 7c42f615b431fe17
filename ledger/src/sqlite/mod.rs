//! The ledger in one SQLite file: one writer at a time, over all processes.

mod archive;
mod budgets;
mod credit;
mod moves;
mod orders;
mod programs;
mod query;
mod reader;
mod rows;
mod schema;
mod tx;
mod withdrawals;

pub(crate) use reader::open as open_reader;
pub use schema::LedgerOptions;

use crate::contract::{Read, Store, Transaction};
use crate::error::{LedgerError, OpenError};
use crate::ledger::Writers;
use programs::Programs;
use rusqlite::Connection;
use schema::WriterLock;
use std::path::{Path, PathBuf};

/// A file, opened for writing.
#[derive(Debug)]
pub(crate) struct SqliteLedger {
    db: Connection,
    options: LedgerOptions,
    programs: Programs,
    path: PathBuf,
    _lock: WriterLock,
}

impl SqliteLedger {
    pub fn open(path: &Path, options: &LedgerOptions) -> Result<Self, OpenError> {
        let (db, lock) = schema::open_writer(path, options)?;
        let (options, path) = (options.clone(), path.to_owned());
        Ok(Self { db, options, programs: Programs::default(), path, _lock: lock })
    }
}

impl Store for SqliteLedger {
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(tx::SqliteTx::begin(self)?))
    }

    fn read(&self) -> &dyn Read {
        &self.db
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
