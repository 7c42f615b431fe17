//! A connection that writes, as the ledger's front sees it.

use super::budget_keys::BudgetKeys;
use super::link::{Address, Link};
use super::options::PostgresOptions;
use super::schema;
use super::session::Session;
use super::state::{self, Numbers, PgTx};
use crate::contract::{Read, Store, Transaction};
use crate::error::{LedgerError, OpenError};
use crate::model::Writers;

/// A connection that writes.
#[derive(Debug)]
pub(crate) struct PgLedger {
    link: Link,
    budget_keys: BudgetKeys,
    numbers: Numbers,
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
        let link = Link::new(address, session, false);
        Self { link, budget_keys: BudgetKeys::default(), numbers: Numbers::default() }
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
        let (session, new) = self.link.session_mut()?;
        if new {
            // A server that has crashed may not remember that it gave these numbers out.
            self.numbers = Numbers::default();
        }
        let rules_version = match state::begin(session, &mut self.numbers) {
            Ok(version) => version,
            // Lost while nothing was asked of it, as after a restart of the server: there is nothing to repeat.
            Err(LedgerError::Unavailable(_)) if session.is_broken() && !new => {
                self.numbers = Numbers::default();
                state::begin(self.link.session_mut()?.0, &mut self.numbers)?
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
}
