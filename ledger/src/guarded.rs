//! What the front offers of a guarded ledger.

use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::mark::Mark;
use std::sync::Arc;

/// A beat of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// The mark to keep outside of the ledger.
    pub mark: Mark,
    /// Whether the call has counted it. Otherwise it is an older one, which says nothing of what was committed since.
    pub is_counted: bool,
}

/// A person's word that the ledger is to go on as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The ledger's generation that the person has seen. Another one is not accepted.
    pub generation: i64,
    /// The lineage of the ledger's last beat that the person has seen …
    pub lineage: String,
    /// … and its number. A ledger that does not hold that beat is another one, and is not accepted.
    pub beat: i64,
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
        /// The reason that this person gave.
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

    /// Compares the ledger with the guard's marks, and returns the mark to keep outside of it: if it was counted, then
    /// everything that was committed before this call was made is held by a ledger that holds the mark. `None` where the
    /// ledger went back in time, and where it is not guarded. Without `count` no beat is counted, for a caller that has
    /// committed nothing since the last one; nor is one while another process counts.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing is known; ask again.
    pub fn beat(&mut self, count: bool) -> Result<Option<Beat>, LedgerError> {
        self.store.beat(count)
    }

    /// Notes that a person has accepted the ledger as it is: every mark that is known is given up, by every process. The
    /// ledger's new generation is above that of each of them.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] if the generation is not the ledger's, if it does not hold the beat that was seen, or if the
    /// ledger is not known to lack anything: marks that nobody has read must not be given up. After every other error ask
    /// again: what was accepted answers [`Accepted::Before`].
    pub fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError> {
        self.store.accept(acceptance)
    }
}

/// Why a ledger is not accepted that does not hold the beat that the person has seen.
pub(crate) fn not_as_shown(now: &Mark) -> LedgerError {
    LedgerError::Invalid(format!("the ledger is not the one that was shown: it is at {now}; look again"))
}

/// Why a ledger of generation `now`, whose acceptance was asked for with `asked`, is not accepted.
pub(crate) fn not_accepted(now: i64, asked: i64) -> LedgerError {
    LedgerError::Invalid(match now == asked {
        true => "the ledger is not known to lack anything, so there is nothing to accept; look again when every place of \
                 its mark can be read"
            .into(),
        false => format!("the ledger's generation is {now}, not {asked}; look again"),
    })
}
