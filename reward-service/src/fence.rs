//! Compares the rules that this process runs with those that the ledger has seen: a process with older rules grants
//! nothing.
//!
//! A process that started on an old copy of the rules does not know of a fuse that was opened or of a limit that was
//! lowered since. The ledger keeps the newest version that any process of its fleet has run; each transaction that
//! grants compares, and raises it where its own is newer.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use windfall_ledger::{LedgerError, Tx};

/// The part of the live rules that a service has to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RulesInForce {
    /// Their version.
    pub version: u64,
    /// The largest amount of one order, by type; a type that is not named has no such cap.
    pub order_caps: BTreeMap<String, i64>,
}

/// Returns the rules in force now.
pub type RunningRules = Box<dyn Fn() -> RulesInForce + Send + Sync>;

/// A service's knowledge of rules versions.
#[derive(Default)]
pub(crate) struct Fence {
    own: OnceLock<RunningRules>,
    /// The newest that the ledger has shown.
    newest: AtomicU64,
    /// Whether it was logged that this process is behind.
    told: AtomicBool,
}

impl Fence {
    /// Follows these rules from now on; the first call holds.
    pub fn follow(&self, own: RunningRules) {
        if self.own.set(own).is_err() {
            tracing::warn!("a reward service follows the rules that it was given first");
        }
    }

    /// The own version and the newest one, where the own is older.
    pub fn behind(&self) -> Option<(u64, u64)> {
        let own = self.own.get()?().version;
        let newest = self.newest.load(Ordering::Acquire);
        (own < newest).then_some((own, newest))
    }

    /// The newest version that the ledger has shown; 0 for none.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Whether this transaction may grant. It notes a version that the ledger has not seen, and keeps to the caps of
    /// that version.
    pub fn may_grant(&self, tx: &mut Tx<'_>) -> Result<bool, LedgerError> {
        let Some(own) = self.own.get().map(|own| own()) else { return Ok(true) };
        let mut newest = tx.rules_version()?;
        if newest < own.version {
            newest = tx.raise_rules_version(own.version)?;
        }
        self.saw(newest);
        tx.cap_orders(&own.order_caps);
        Ok(own.version >= newest)
    }

    /// Notes a version that the ledger has shown.
    pub fn saw(&self, newest: u64) {
        // Not the largest of all: an operator may have lowered it.
        self.newest.store(newest, Ordering::Release);
        match self.behind() {
            Some((own, newest)) if !self.told.swap(true, Ordering::AcqRel) => tracing::error!(
                own,
                newest,
                "the ledger has seen newer rules than this process runs, so it grants nothing; it goes on when it takes \
                 over version {newest} or a newer one. If the rules were restored from an older copy on purpose, restart \
                 every process on them, then run `windfall rules accept {own} --config FILE`"
            ),
            None if self.told.swap(false, Ordering::AcqRel) => {
                tracing::info!(
                    newest,
                    "this process runs the newest rules that the ledger has seen, and grants again"
                );
            }
            _ => {}
        }
    }
}
