//! The ledger in a PostgreSQL database: any number of writers, over any number of processes.
//!
//! A transaction is a handful of statements whatever its batch: insert the orders that are new, read back those
//! that were there, take the budgets, move the accounts, write the transfers, commit. Each takes arrays
//! (`unnest`).
//!
//! ## Why READ COMMITTED suffices
//! A statement sees what was committed when it began, and one that changes a row first locks its newest version.
//! So every decision here rests on a unique index, on a condition in the very statement that changes the row, or
//! on a row that an earlier statement of the transaction has locked; the statement that does so says which. What
//! was waited for is read by a later statement, never by the one that waited.
//!
//! ## Locks
//! Order numbers (or withdrawals), budget rows, then accounts, each in the order of their keys. Where two writers still meet
//! head on, the server ends one of them; it is told [`LedgerError::Contended`] and repeats its transaction.
//!
//! ## What may be lost
//! A connection that is lost before `COMMIT` was sent has stored nothing; after it, nobody knows
//! ([`LedgerError::Unknown`]): the callers ask again, and what was credited says so (I1).

mod archive;
mod budgets;
mod link;
mod moves;
mod options;
mod orders;
mod programs;
mod read;
mod schema;
mod session;
mod tx;
mod wait;
mod withdrawals;

pub use options::PostgresOptions;

use crate::contract::{Read, Store, Transaction};
use crate::error::{LedgerError, OpenError};
use crate::ledger::Writers;
use link::{Address, Link};
use programs::Programs;
use session::Session;
use tx::{Numbers, PgTx};

/// A connection that writes.
#[derive(Debug)]
pub(crate) struct PgLedger {
    link: Link,
    programs: Programs,
    numbers: Numbers,
}

impl PgLedger {
    pub fn connect(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        Self::open(Address::new(url, options)?)
    }

    fn open(address: Address) -> Result<Self, OpenError> {
        let session = Session::open(&address.config, &address.place, &address.options, false)?;
        schema::migrate(&session, &address)?;
        let link = Link::new(address, session, false);
        Ok(Self { link, programs: Programs::default(), numbers: Numbers::default() })
    }
}

/// Opens a reader of one moment: that of its first read.
pub(crate) fn open_reader(
    url: &str,
    options: &PostgresOptions,
) -> Result<impl Read + Send + use<>, OpenError> {
    let address = Address::new(url, options)?;
    let session = Session::open(&address.config, &address.place, &address.options, true)?;
    schema::check(&session, &address)?;
    session.open_batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", &address.place)?;
    Ok(Link::new(address, session, true))
}

impl Store for PgLedger {
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        let unbudgeted = self.link.address.options.unbudgeted;
        let (session, new) = self.link.session_mut()?;
        if new {
            // A server that has crashed may not remember that it gave these numbers out.
            self.numbers = Numbers::default();
        }
        match tx::begin(session, &mut self.numbers) {
            Ok(()) => {}
            // Lost while nothing was asked of it, as after a restart of the server: there is nothing to repeat.
            Err(LedgerError::Unavailable(_)) if session.is_broken() && !new => {
                self.numbers = Numbers::default();
                tx::begin(self.link.session_mut()?.0, &mut self.numbers)?;
            }
            Err(error) => return Err(error),
        }
        // I1, I4: never a new connection here, on which nobody has said BEGIN.
        let session = self.link.held()?;
        Ok(Box::new(PgTx::new(session, &mut self.programs, &mut self.numbers, unbudgeted)))
    }

    fn read(&self) -> &dyn Read {
        &self.link
    }

    fn writers(&self) -> Writers {
        Writers::Many
    }

    fn another(&self) -> Result<Box<dyn Store>, OpenError> {
        Ok(Box::new(Self::open(self.link.address.clone())?))
    }

    fn reader(&self) -> Result<Box<dyn Read + Send>, OpenError> {
        let address = self.link.address.clone();
        let session = Session::open(&address.config, &address.place, &address.options, false)?;
        schema::check(&session, &address)?;
        Ok(Box::new(Link::new(address, session, false)))
    }
}
