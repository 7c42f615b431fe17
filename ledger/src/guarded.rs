//! What a guarded ledger answers, and what a person says to accept it.

use crate::error::LedgerError;
use crate::mark::{Mark, Position, ServerPosition};

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

impl Position {
    /// Whether this database holds the beat that a person has seen before accepting it.
    pub fn is_as_shown(&self, acceptance: &Acceptance) -> bool {
        let Acceptance { generation, lineage, beat, .. } = acceptance;
        let is_last = (&self.last.lineage, self.last.beat) == (lineage, *beat);
        let shown = || Mark {
            generation: *generation,
            lineage: lineage.clone(),
            beat: *beat,
            server: ServerPosition::default(),
        };
        is_last || self.holds(&shown()).is_ok()
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
