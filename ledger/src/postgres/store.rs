//! A connection that writes, as the ledger's front sees it.

use super::budget_keys::BudgetKeys;
use super::link::{Address, Link};
use super::options::PostgresOptions;
use super::session::Session;
use super::state::{self, Numbers, PgTx};
use super::{position, schema};
use crate::contract::{Read, Store, Transaction};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted};
use crate::mark::Mark;
use crate::model::Writers;
use std::sync::Arc;

/// A connection that writes.
#[derive(Debug)]
pub(crate) struct PgLedger {
    link: Link,
    budget_keys: BudgetKeys,
    numbers: Numbers,
    /// The connection on which the numbers were drawn and the budget keys were read; 0 for none.
    connection: u64,
}

impl PgLedger {
    pub fn connect(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        let address = Address::new(url, options)?;
        let session = address.connect()?;
        Ok(Self::new(address, Some(session)))
    }

    pub fn connect_when_used(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self::new(Address::new(url, options)?, None))
    }

    fn new(address: Address, session: Option<Session>) -> Self {
        let connection = session.as_ref().map_or(0, Session::number);
        let link = Link::new(address, session, false);
        Self { link, budget_keys: BudgetKeys::default(), numbers: Numbers::default(), connection }
    }

    /// Connects where the connection was lost. Returns whether it is another one than that of the last transaction,
    /// whichever use has made it.
    fn connected(&mut self) -> Result<bool, LedgerError> {
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
    let session = Session::open(&address.config, &address.place, &address.options, true)?;
    schema::check(&session, &address)?;
    session.open_batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", &address.place)?;
    Ok(Link::new(address, Some(session), true))
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
        Ok(Box::new(Self::new(self.link.address.clone(), None)))
    }

    fn reader(&self) -> Result<Box<dyn Read + Send>, OpenError> {
        Ok(Box::new(Link::new(self.link.address.clone(), None, false)))
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.link.address.guard = Some(guard);
        // It was made without a look.
        self.link.drop_session();
        Ok(())
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        self.link.address.guard.clone()
    }

    fn beat(&mut self, count: bool) -> Result<Option<Mark>, LedgerError> {
        let Some(guard) = self.guard() else { return Ok(None) };
        self.connected()?;
        position::beat(self.link.held()?, &guard, count)
    }

    fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError> {
        let Some(guard) = self.guard() else {
            return Err(LedgerError::Invalid("the ledger has no mark, so there is nothing to accept".into()));
        };
        self.connected()?;
        position::accept(self.link.held()?, &guard, acceptance)
    }
}
