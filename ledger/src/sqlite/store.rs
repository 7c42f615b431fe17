//! A connection that writes the file, as the ledger's front sees it.

use super::schema::{self, LedgerOptions};
use super::state::{Connected, SqliteTx};
use super::{closed, copies, position};
use crate::contract::{Read, Store, Transaction};
use crate::copies::{CopyKey, ListCopies, Listing, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat};
use crate::model::Writers;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file, opened for writing.
#[derive(Debug)]
pub(crate) struct SqliteLedger {
    pub(super) connected: Connected,
    path: PathBuf,
    pub(super) guard: Option<Arc<Guard>>,
    _lock: schema::WriterLock,
}

impl SqliteLedger {
    pub fn open(path: &Path, options: &LedgerOptions) -> Result<Self, OpenError> {
        let (db, lock) = schema::open_writer(path, options)?;
        let has_bare = schema::has_bare(&db).map_err(|error| OpenError::of_sql(path, &error))?;
        let closed = closed::names(&db).map_err(|error| OpenError::of_sql(path, &error))?;
        let connected = Connected::new(db, options.unbudgeted, has_bare, closed);
        Ok(Self { connected, path: path.to_owned(), guard: None, _lock: lock })
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

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        let path = || self.path.display().to_string();
        position::open(&self.connected.db, &guard)
            .map_err(|error| OpenError::Io { path: path(), what: error.to_string() })?;
        self.guard = Some(guard);
        Ok(())
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        self.guard.clone()
    }

    fn beat(&mut self, count: bool) -> Result<Option<Beat>, LedgerError> {
        match &self.guard {
            Some(guard) => position::beat(&self.connected.db, guard, count),
            None => Ok(None),
        }
    }

    fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError> {
        match &self.guard {
            Some(guard) => position::accept(&self.connected.db, guard, acceptance),
            None => Err(LedgerError::Invalid("the ledger has no mark, so there is nothing to accept".into())),
        }
    }

    fn list_copies(&mut self, how: &ListCopies) -> Result<Listing, LedgerError> {
        copies::list(&self.connected.db, how)
    }

    fn copy_keys(&mut self) -> Result<Vec<CopyKey>, LedgerError> {
        copies::keys(&self.connected.db)
    }

    fn take_copies(&mut self, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
        copies::take(&self.connected.db, which)
    }

    fn note_copies(&mut self, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError> {
        copies::note(&self.connected.db, written)
    }
}
