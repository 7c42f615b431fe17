//! What the front offers of a guarded ledger.

use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::mark::Mark;
use std::sync::Arc;

/// A person's word that the ledger is to go on as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The ledger's generation that the person has seen. Another one is not accepted.
    pub generation: i64,
    /// Who accepts it.
    pub actor: String,
    /// Why, with the evidence.
    pub reason: String,
    /// What the ledger lacks.
    pub lost: String,
    /// The present time, in Unix milliseconds.
    pub time_ms: i64,
}

/// The answer to an acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It is accepted now.
    Now {
        /// Where it goes on.
        ledger: Mark,
        /// When it was accepted, in Unix milliseconds.
        time_ms: i64,
    },
    /// That generation was accepted before.
    Before {
        /// Who accepted it.
        actor: String,
        /// Why.
        reason: String,
        /// When, in Unix milliseconds.
        time_ms: i64,
    },
}

impl Ledger {
    /// The same ledger under this guard, as are all readers and further connections that are made from it from now on.
    /// Each connection compares the database with the guard's marks before it is used. The database gets tables of the
    /// guard's own.
    ///
    /// # Errors
    /// [`OpenError`], where the ledger is a file and cannot be compared. A ledger on PostgreSQL is compared with its
    /// next connection.
    pub fn guarded(mut self, guard: Arc<Guard>) -> Result<Self, OpenError> {
        self.store.guard_by(guard)?;
        Ok(self)
    }

    /// The guard, if there is one.
    pub fn guard(&self) -> Option<Arc<Guard>> {
        self.store.guard()
    }

    /// Compares the ledger with the guard's marks, and returns the mark to keep outside of it: everything that was
    /// committed before this call was made is held by a ledger that holds the mark. `None` where the ledger went back in
    /// time, and where it is not guarded. Without `count` no beat is counted, for a caller that has committed nothing
    /// since the last one.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing is known; ask again.
    pub fn beat(&mut self, count: bool) -> Result<Option<Mark>, LedgerError> {
        self.store.beat(count)
    }

    /// Notes that a person has accepted the ledger as it is: every mark that was made before is given up, by every
    /// process.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] if the generation is not the ledger's. For all others ask again: what was accepted
    /// answers [`Accepted::Before`].
    pub fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError> {
        self.store.accept(acceptance)
    }
}
