//! A connection that writes, as the ledger's front sees it.

use super::address::Address;
use super::budget_keys::BudgetKeys;
use super::link::{Link, Purpose};
use super::options::PostgresOptions;
use super::session::Session;
use super::state::{self, Numbers, PgTx};
use super::{copies, position, schema};
use crate::contract::{Read, Store, Transaction};
use crate::copies::{CopyKey, ListCopies, Listing, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat};
use crate::model::Writers;
use std::sync::Arc;

/// A connection that writes.
#[derive(Debug)]
pub(crate) struct PgLedger {
    pub(super) link: Link,
    budget_keys: BudgetKeys,
    numbers: Numbers,
    /// The connection on which the numbers were drawn and the budget keys were read; 0 for none.
    connection: u64,
}

impl PgLedger {
    pub fn connect(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self::new(Link::connect(Address::new(url, options)?, Purpose::Write)?))
    }

    pub fn connect_when_used(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self::new(Link::new(Address::new(url, options)?, None, Purpose::Write)))
    }

    fn new(mut link: Link) -> Self {
        let connection = link.number();
        Self { link, budget_keys: BudgetKeys::default(), numbers: Numbers::default(), connection }
    }

    /// Connects where the connection was lost. Returns whether it is another one than that of the last transaction,
    /// whichever use has made it.
    pub(super) fn connected(&mut self) -> Result<bool, LedgerError> {
        let number = self.link.session_mut()?.0.number();
        let is_new = number != self.connection;
        if is_new {
            // A server that has crashed may not remember that it gave these numbers out, and one that went back in time
            // may know other budget keys by theirs.
            self.numbers = Numbers::default();
            self.budget_keys.clear();
            self.connection = number;
        }
        Ok(is_new)
    }
}

/// Opens a reader that sees one moment: that of its first read.
pub(crate) fn open_reader(
    url: &str,
    options: &PostgresOptions,
) -> Result<impl Read + Send + use<>, OpenError> {
    let address = Address::new(url, options)?;
    let session = Session::open(&address, true)?;
    schema::check(&session, &address)?;
    session.open_batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", &address.place)?;
    Ok(Link::new(address, Some(session), Purpose::Snapshot))
}

impl Store for PgLedger {
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        let unbudgeted = self.link.address.options.unbudgeted;
        self.link.look_again()?;
        let new = self.connected()?;
        let session = self.link.held()?;
        let rules_version = match state::begin(session, &mut self.numbers) {
            Ok(version) => version,
            // Lost while nothing was asked of it, as after a restart of the server: there is nothing to repeat.
            Err(LedgerError::Unavailable(_)) if session.is_broken() && !new => {
                self.connected()?;
                state::begin(self.link.held()?, &mut self.numbers)?
            }
            Err(error) => return Err(error),
        };
        // I1, I4: never a new connection here, on which nobody has said BEGIN.
        let session = self.link.held()?;
        Ok(Box::new(PgTx::new(session, &mut self.budget_keys, &mut self.numbers, unbudgeted, rules_version)))
    }

    fn read(&self) -> &dyn Read {
        &self.link
    }

    fn writers(&self) -> Writers {
        Writers::Many
    }

    fn another(&self) -> Result<Box<dyn Store>, OpenError> {
        Ok(Box::new(Self::new(Link::new(self.link.address.clone(), None, Purpose::Write))))
    }

    fn reader(&self) -> Result<Box<dyn Read + Send>, OpenError> {
        Ok(Box::new(Link::new(self.link.address.clone(), None, Purpose::Read)))
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.link.guard_by(guard)
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        self.link.address.guard.clone()
    }

    fn beat(&mut self, count: bool) -> Result<Option<Beat>, LedgerError> {
        let Some(guard) = self.guard() else { return Ok(None) };
        self.connected()?;
        let schema = self.link.address.options.schema.clone();
        position::beat(self.link.held()?, &guard, &schema, count)
    }

    fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError> {
        let Some(guard) = self.guard() else {
            return Err(LedgerError::Invalid("the ledger has no mark, so there is nothing to accept".into()));
        };
        self.connected()?;
        let schema = self.link.address.options.schema.clone();
        position::accept(self.link.held()?, &guard, &schema, acceptance)
    }

    fn list_copies(&mut self, how: &ListCopies) -> Result<Listing, LedgerError> {
        self.connected()?;
        let schema = self.link.address.options.schema.clone();
        copies::list(self.link.held()?, &schema, how)
    }

    fn copy_keys(&mut self) -> Result<Vec<CopyKey>, LedgerError> {
        self.connected()?;
        copies::keys(self.link.held()?)
    }

    fn take_copies(&mut self, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
        self.connected()?;
        copies::take(self.link.held()?, which)
    }

    fn note_copies(&mut self, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError> {
        self.connected()?;
        copies::note(self.link.held()?, written)
    }
}
