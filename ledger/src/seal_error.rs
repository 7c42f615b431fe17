//! Why nothing is sealed.

use crate::anchor::AnchorError;
use crate::error::LedgerError;

/// Why nothing is sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The ledger could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The anchor could not be read or written. What is sealed stays so, and is anchored by the next call.
    #[error(transparent)]
    Anchor(#[from] AnchorError),
    /// The ledger has no such seal any more: an older copy of it was restored, or its chain was cut. Nothing was sealed.
    #[error(
        "seal {seal} is anchored, and not in the ledger: run windfall ledger verify before anything is sealed. Where the \
         database has lost its last commits, as after a fail-over, --accept-loss {seal} goes on behind the last seal that it \
         has"
    )]
    Gone {
        /// The seal's number.
        seal: i64,
    },
    /// The ledger has seals that nothing anchors: the anchor is another one, or lost its end. Nothing was sealed.
    #[error(
        "the ledger has {seals} seals, of which the anchor knows none after seal {anchored}: it is another ledger's, \
         another machine's, or its end was cut off; run windfall ledger verify with the right one. A new anchor is begun \
         only with --new-anchor"
    )]
    Unanchored {
        /// The number of the last seal.
        seals: i64,
        /// The last one that is anchored, 0 for none.
        anchored: i64,
    },
    /// The ledger went back in time, or nobody can know yet whether it did. Nothing was sealed: the seals of a server that
    /// a person has not accepted would stand in the anchor when the right one is back.
    #[error("{why}; nothing is sealed until that has ended, as docs/restore.md says")]
    WentBack {
        /// From where to where it went, or what could not be read.
        why: String,
    },
    /// The last seal was made on another PostgreSQL cluster. Nothing was sealed.
    #[error(
        "the last seal was made on the PostgreSQL cluster {before}, and this one is {here}. If it continues the other's \
         numbers of transactions, as after pg_upgrade, verify the chain and go on once with --accept-cluster. If the tables \
         were loaded into it, as by pg_restore, its transactions are numbered anew and it cannot be sealed on"
    )]
    Moved {
        /// The identifier of the cluster on which the last seal was made.
        before: i64,
        /// The identifier of this cluster.
        here: i64,
    },
    /// The ledger has another seal of this number: its chain was rewritten. Nothing was sealed.
    #[error(
        "seal {seal} is not the one that is anchored: run windfall ledger verify before anything is sealed"
    )]
    Rewritten {
        /// The seal's number.
        seal: i64,
    },
}
