//! Seals closed ranges of the journal behind its writers, and anchors the chain outside the database.

use crate::anchor::{Anchor, AnchorError};
use crate::chain::Seal;
use crate::contract::{Chain, Read};
use crate::error::{LedgerError, OpenError};
use std::path::Path;

/// The number of transfers of a seal, about: a transaction is never divided.
pub const SEAL_ROWS_MAX: usize = 65_536;

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
        "seal {seal} is anchored, and not in the ledger: run windfall ledger verify before anything is sealed"
    )]
    Gone {
        /// The seal's number.
        seal: i64,
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

/// Seals a ledger. Any number may run, over any number of processes, beside any number of writers: one at a time seals.
#[derive(Debug)]
pub struct Sealer {
    chain: Box<dyn Chain>,
    rows_max: usize,
}

impl Sealer {
    /// Opens the ledger of this file for sealing. Its writer may have it open.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self { chain: Box::new(crate::sqlite::open_sealer(path.as_ref())?), rows_max: SEAL_ROWS_MAX })
    }

    /// Connects to a ledger on PostgreSQL for sealing; the schema must be the newest.
    ///
    /// # Errors
    /// [`OpenError`].
    #[cfg(feature = "postgres")]
    pub fn connect(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { chain: Box::new(crate::postgres::open_sealer(url, options)?), rows_max: SEAL_ROWS_MAX })
    }

    /// The same with ranges of about so many transfers, at least 1.
    #[must_use]
    pub fn with_rows_max(mut self, rows_max: usize) -> Self {
        self.rows_max = rows_max.max(1);
        self
    }

    /// Seals one range of what is closed by now, and anchors it. `None` where nothing is to be sealed, or another sealer is
    /// at it.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&mut self, anchor: &mut dyn Anchor, now_ms: i64) -> Result<Option<Seal>, SealError> {
        let chain: &mut dyn Chain = self.chain.as_mut();
        compare(chain.read(), anchor)?;
        let sealed = chain.seal(self.rows_max, now_ms)?;
        // Also the head of one that died before it was anchored.
        if let Some(head) = chain.read().last_seal()? {
            anchor.keep(head.head())?;
        }
        Ok(sealed)
    }
}

/// The last head that was anchored must be in the chain.
fn compare(ledger: &dyn Read, anchor: &dyn Anchor) -> Result<(), SealError> {
    let Some(last) = anchor.heads()?.pop() else { return Ok(()) };
    match ledger.seals(last.seal.saturating_sub(1), 1)?.first() {
        Some(seal) if seal.head() == last => Ok(()),
        Some(seal) if seal.id == last.seal => Err(SealError::Rewritten { seal: last.seal }),
        _ => Err(SealError::Gone { seal: last.seal }),
    }
}
