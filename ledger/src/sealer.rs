//! Seals closed ranges of the journal behind its writers, and anchors the chain outside the database.

use crate::anchor::Anchor;
use crate::chain::{Head, Seal};
use crate::contract::{Chain, Read};
use crate::error::OpenError;
use crate::guard::Guard;
use crate::seal_error::SealError;
use std::path::Path;
use std::sync::Arc;

/// The number of transfers of a seal, about: a transaction is never divided.
pub const SEAL_ROWS_MAX: usize = 65_536;

/// Seals a ledger. Any number may run, over any number of processes, beside any number of writers: one at a time seals.
#[derive(Debug)]
pub struct Sealer {
    chain: Box<dyn Chain>,
    rows_max: usize,
    new_anchor: bool,
    accept_loss: Option<i64>,
    guard: Option<Arc<Guard>>,
}

impl Sealer {
    /// Opens the ledger of this file for sealing. Its writer may have it open.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self::of(Box::new(crate::sqlite::open_sealer(path.as_ref())?)))
    }

    /// Connects to a ledger on PostgreSQL for sealing; the schema must be the newest.
    ///
    /// # Errors
    /// [`OpenError`].
    #[cfg(feature = "postgres")]
    pub fn connect(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self::of(Box::new(crate::postgres::open_sealer(url, options)?)))
    }

    fn of(chain: Box<dyn Chain>) -> Self {
        Self { chain, rows_max: SEAL_ROWS_MAX, new_anchor: false, accept_loss: None, guard: None }
    }

    /// The same with ranges of about so many transfers, at least 1.
    #[must_use]
    pub fn with_rows_max(mut self, rows_max: usize) -> Self {
        self.rows_max = rows_max.max(1);
        self
    }

    /// Where the anchor is empty and the ledger has seals, the chain is believed as it is now, and anchored from here on.
    /// Verify it first, with the anchor that it had.
    #[must_use]
    pub fn with_new_anchor(mut self) -> Self {
        self.new_anchor = true;
        self
    }

    /// Where the database has lost this seal, the last one that is anchored, and perhaps some before it, they are given up:
    /// the anchor notes it, and sealing goes on behind the last seal that is anchored and there. Reconcile first: what was
    /// committed behind that seal may be lost too.
    #[must_use]
    pub fn with_accepted_loss(mut self, seal: i64) -> Self {
        self.accept_loss = Some(seal);
        self
    }

    /// Sealing goes on though the last seal was made on another PostgreSQL cluster. This one must number its transactions
    /// on from there, as after `pg_upgrade`; verify the chain first.
    #[must_use]
    pub fn with_accepted_cluster(mut self) -> Self {
        self.chain.accept_cluster();
        self
    }

    /// The same under this guard: while the ledger does not hold the guard's marks, nothing is sealed.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn guarded(mut self, guard: Arc<Guard>) -> Result<Self, OpenError> {
        self.chain.guard_by(Arc::clone(&guard))?;
        self.guard = Some(guard);
        Ok(self)
    }

    /// Seals one range of what is closed by now, and anchors it. `None` where nothing is to be sealed, or another sealer is
    /// at it.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&mut self, anchor: &mut dyn Anchor, now_ms: i64) -> Result<Option<Seal>, SealError> {
        let chain: &mut dyn Chain = self.chain.as_mut();
        if let Some(guard) = &self.guard {
            chain.look()?;
            if let Some(why) = guard.why_stopped() {
                return Err(SealError::WentBack { why });
            }
        }
        let last = compare(chain.read(), anchor, self.new_anchor, self.accept_loss)?;
        let sealed = chain.seal(last, self.rows_max, now_ms)?;
        if let Some(seal) = &sealed {
            anchor.keep(seal.head())?;
        }
        Ok(sealed)
    }
}

/// The last head that was anchored must be in the chain, and at most one seal behind it: that of a sealer that died
/// before it was anchored, or is about to anchor it. It is anchored here, before another one is made. Returns the number
/// of the last seal, 0 for none.
fn compare(
    ledger: &dyn Read,
    anchor: &mut dyn Anchor,
    new_anchor: bool,
    accept_loss: Option<i64>,
) -> Result<i64, SealError> {
    // Read before the anchor: what another sealer makes meanwhile is no seal without an anchor.
    let last = ledger.last_seal()?;
    let seals = last.as_ref().map_or(0, |last| last.id);
    let anchored = match (anchor.heads()?.pop(), &last) {
        (Some(head), _) => head,
        // An anchor that was begun is not empty any more, also if its first sealer dies.
        (None, None) => {
            anchor.keep(Head::NONE)?;
            Head::NONE
        }
        (None, Some(last)) if new_anchor => {
            anchor.keep(last.head())?;
            last.head()
        }
        (None, Some(_)) => return Err(SealError::Unanchored { seals, anchored: 0 }),
    };
    let anchored = match is_in_chain(ledger, anchored) {
        Err(SealError::Gone { seal }) if accept_loss == Some(seal) => give_up(ledger, anchor)?,
        other => other.map(|()| anchored)?,
    };
    let Some(last) = last.filter(|last| last.id > anchored.seal) else { return Ok(seals) };
    if last.id > anchored.seal.saturating_add(1) {
        return Err(SealError::Unanchored { seals, anchored: anchored.seal });
    }
    if last.previous != anchored.hash || last.hash != last.own_hash() {
        return Err(SealError::Rewritten { seal: last.id });
    }
    anchor.keep(last.head())?;
    Ok(seals)
}

/// Gives up the heads whose seals are not in the ledger. Returns the last one that is.
fn give_up(ledger: &dyn Read, anchor: &mut dyn Anchor) -> Result<Head, SealError> {
    for head in anchor.heads()?.into_iter().rev() {
        match is_in_chain(ledger, head) {
            Ok(()) => {
                anchor.give_up(head)?;
                return Ok(head);
            }
            Err(SealError::Gone { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    // Not one of the anchored seals is left, as where the database lost all of its chain. Every chain begins with none.
    match ledger.last_seal()? {
        Some(last) if last.id > 1 => Err(SealError::Unanchored { seals: last.id, anchored: 0 }),
        _ => {
            anchor.give_up(Head::NONE)?;
            Ok(Head::NONE)
        }
    }
}

fn is_in_chain(ledger: &dyn Read, head: Head) -> Result<(), SealError> {
    if head == Head::NONE {
        return Ok(());
    }
    match ledger.seals(head.seal.saturating_sub(1), 1)?.first() {
        Some(seal) if seal.head() == head => Ok(()),
        Some(seal) if seal.id == head.seal => Err(SealError::Rewritten { seal: head.seal }),
        _ => Err(SealError::Gone { seal: head.seal }),
    }
}
