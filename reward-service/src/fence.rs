//! Compares the rules that this process runs with those that the ledger has seen: a process with older rules grants
//! nothing.
//!
//! A process that started on an old copy of the rules does not know of a fuse that was opened or of a limit that was
//! lowered since. The ledger keeps the newest version that any process of its fleet has run; each transaction that
//! grants compares.
//!
//! A process that has newer rules, and has not set their budgets yet, waits as well: it would refuse for good what the
//! rules have a budget for. Until then its version is not noted in the ledger either.

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

/// Whether events may be decided by the rules that this process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// They may be decided.
    Granted,
    /// The ledger has seen newer rules.
    OldRules,
    /// The budgets of the own rules are not set yet.
    BudgetsNotSet,
}

/// A service's knowledge of rules versions.
#[derive(Default)]
pub(crate) struct Fence {
    own: OnceLock<RunningRules>,
    /// The newest version whose budgets this process has set, or has found to be set.
    applied: AtomicU64,
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

    /// Whether this transaction may grant. Where it may, it notes a version that the ledger does not know of any more,
    /// and keeps to the caps of that version.
    pub fn may_grant(&self, tx: &mut Tx<'_>) -> Result<Permit, LedgerError> {
        let Some(own) = self.own.get().map(|own| own()) else { return Ok(Permit::Granted) };
        let mut newest = tx.rules_version()?;
        let is_applied = own.version <= self.applied.load(Ordering::Acquire);
        if newest < own.version && is_applied {
            newest = tx.raise_rules_version(own.version)?;
        }
        self.saw(newest);
        if own.version < newest {
            return Ok(Permit::OldRules);
        }
        if !is_applied {
            return Ok(Permit::BudgetsNotSet);
        }
        tx.cap_orders(&own.order_caps);
        Ok(Permit::Granted)
    }

    /// Notes that the budgets of this version are set, and that the ledger has noted the version.
    pub fn applied(&self, version: u64) {
        self.applied.fetch_max(version, Ordering::AcqRel);
        self.saw(version);
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
