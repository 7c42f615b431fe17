//! The handle that writes a ledger, whatever database holds it.

use crate::archive::{ArchiveFilter, Archived, Replay};
use crate::closing::{Close, Closed, Detach, DetachBegun, DetachStep, Reopened};
use crate::contract::Store;
use crate::copies::{CopyKey, ListCopies, Listing, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat};
use crate::key::{OrderId, WithdrawalId};
use crate::model::{
    Attempt, BudgetRaised, BudgetSet, BudgetState, BudgetsApplied, Order, OrderOutcome, WhichBudgets, Writers,
};
use crate::reader::LedgerReader;
use crate::reconcile::Reconciliation;
use crate::sqlite::{LedgerOptions, SqliteLedger};
use crate::tx::Tx;
use crate::withdrawal::StoredWithdrawal;
use std::path::Path;
use std::sync::Arc;
use windfall_contract::accounts::{FlowLine, StoredOrder};

/// How often a whole transaction is tried that another transaction was in the way of.
const ATTEMPTS: u32 = 8;

/// A ledger, opened for writing. Calls block: use it from a thread of its own.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) store: Box<dyn Store>,
}

impl Ledger {
    /// Opens the ledger of this file, and makes it where there is none. Each file can have one writer at a
    /// time, over all processes.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub fn open(path: impl AsRef<Path>, options: &LedgerOptions) -> Result<Self, OpenError> {
        Ok(Self { store: Box::new(SqliteLedger::open(path.as_ref(), options)?) })
    }

    /// Connects to the ledger in a PostgreSQL database, and creates its schema. Any number of processes may do so. One of
    /// version 3 is written as it is until [`Ledger::migrate`] has made the journal.
    ///
    /// `url` is `postgres://user:password@host:port/database`, or the same as `key=value` pairs; what is left
    /// out has libpq's defaults. Several hosts with `target_session_attrs=read-write` follow a failover; for a new
    /// ledger they are refused where the server has no synchronous standby, unless the options allow it.
    ///
    /// # Errors
    /// [`OpenError`] names the place and what to do.
    #[cfg(feature = "postgres")]
    pub fn connect(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { store: Box::new(crate::postgres::PgLedger::connect(url, options)?) })
    }

    /// A ledger in a PostgreSQL database that may be away: for a process that must start without it. It connects when
    /// it is first used, and again with each use until that succeeds; the first connection creates or updates the
    /// schema. Until then, and while the schema is not one that this build understands, every call is
    /// [`LedgerError::Unavailable`], and nothing is read or written.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] alone: the address or an option is wrong.
    #[cfg(feature = "postgres")]
    pub fn connect_when_used(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { store: Box::new(crate::postgres::PgLedger::connect_when_used(url, options)?) })
    }

    /// Makes the journal of a ledger in PostgreSQL that older versions wrote, when none of their processes is left: the
    /// second step of an upgrade, after all processes were replaced one by one. Processes of this build may go on
    /// meanwhile; they wait. A ledger that does not hold the guard's marks, or in which a process has noted that it lacks one,
    /// is refused.
    ///
    /// Indexes of tables that may be large are built before, while writers go on; `tell` is told how far they are, every two
    /// seconds.
    ///
    /// # Errors
    /// [`OpenError`]: nothing was changed, but indexes that were built stay, and are not built again. [`OpenError::Invalid`] names processes of older versions that are connected, or says
    /// what the ledger lacks.
    #[cfg(feature = "postgres")]
    pub fn migrate(
        url: &str,
        postgres: &crate::PostgresOptions,
        options: crate::MigrateOptions,
        guard: &Guard,
        tell: &dyn Fn(&crate::IndexProgress),
    ) -> Result<crate::Migrated, OpenError> {
        crate::postgres::migrate(url, postgres, options, guard, tell)
    }

    /// Makes all tables of a ledger in PostgreSQL, as the user who is to own them, also those that processes make by themselves
    /// where they may; then gives the groups of `deploy/postgres/roles.sql`, where they are there, their rights on these. Returns
    /// the version of the tables. It may be run at any time, beside processes.
    ///
    /// # Errors
    /// [`OpenError`]; what was not made yet is made when it is run again.
    #[cfg(feature = "postgres")]
    pub fn prepare(
        url: &str,
        postgres: &crate::PostgresOptions,
        guard: Arc<Guard>,
    ) -> Result<i64, OpenError> {
        crate::postgres::prepare(url, postgres, guard)
    }

    /// How many handles may write at once.
    pub fn writers(&self) -> Writers {
        self.store.writers()
    }

    /// One more connection to the same ledger, for one more thread that writes. On PostgreSQL it is made when it is
    /// first used.
    ///
    /// # Errors
    /// [`OpenError::InUse`] where there can be [`Writers::One`] only, and all others.
    pub fn another(&self) -> Result<Self, OpenError> {
        Ok(Self { store: self.store.another()? })
    }

    /// A reader on a connection of its own, for a thread that only reads. Each read sees what is committed by then,
    /// so unlike one of [`LedgerReader::open`] it may be kept.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn reader(&self) -> Result<LedgerReader, OpenError> {
        Ok(LedgerReader::new(self.store.reader()?))
    }

    /// Begins a transaction. Nothing of it is stored before [`Tx::commit`]; one that is dropped has changed
    /// nothing.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn begin(&mut self) -> Result<Tx<'_>, LedgerError> {
        Ok(Tx::new(self.store.begin()?))
    }

    /// Credits a batch in one transaction: one outcome for each order, in order, durable when this returns.
    ///
    /// # Errors
    /// [`LedgerError`]: repeat the whole batch.
    pub fn apply(&mut self, batch: &[Order<'_>]) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.transact(|tx| tx.apply(batch, Attempt::Normal))
    }

    /// Sets budgets in one transaction, whatever the rules' version; those not named stay as they are. A total is never
    /// set below what is used and reserved (I4); where that was asked for, the answer says so.
    ///
    /// # Errors
    /// [`LedgerError`]: no budget was changed, or nobody knows; set them again.
    pub fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        self.transact(|tx| tx.set_budgets(budgets))
    }

    /// Sets the budgets of a version of the rules, caps of types among them, in one transaction with the note of that
    /// version; caps that it does not name are lifted. Where a newer version was noted, nothing is changed: so a
    /// process with old rules undoes nothing.
    ///
    /// # Errors
    /// [`LedgerError`]: no budget was changed, or nobody knows; set them again.
    pub fn apply_budgets(
        &mut self,
        version: u64,
        budgets: &[BudgetSet<'_>],
    ) -> Result<BudgetsApplied, LedgerError> {
        self.transact(|tx| {
            let newest = tx.raise_rules_version(version)?;
            if newest != version {
                return Ok(BudgetsApplied::Stale { newest });
            }
            let caps: Vec<&str> =
                budgets.iter().filter(|one| one.is_cap()).map(|one| one.bonus_type).collect();
            tx.lift_caps(&caps)?;
            Ok(BudgetsApplied::Set(tx.set_budgets(budgets)?))
        })
    }

    /// Notes the version of the rules that a process runs, whose budgets are those of `since`, a version before it that has
    /// set its budgets; returns the newest version that is noted. Where this is another one than `version`, nothing was noted:
    /// a newer one was before, or one in between, whose budgets may be others and are set in place of those of `since`. Then
    /// [`Ledger::apply_budgets`] is needed.
    ///
    /// # Errors
    /// [`LedgerError`]: note it again.
    pub fn note_rules_version(&mut self, since: u64, version: u64) -> Result<u64, LedgerError> {
        self.transact(|tx| {
            let newest = tx.rules_version()?;
            if newest >= version {
                return Ok(newest);
            }
            // Locked from here on: nobody sets the budgets of a version in between while this one is noted.
            match tx.raise_rules_version(0)? {
                newest if newest > since => Ok(newest),
                _ => tx.raise_rules_version(version),
            }
        })
    }

    /// Runs `steps` in one transaction and commits it; repeats all of it, a few times, where another transaction was in
    /// the way.
    ///
    /// # Errors
    /// [`LedgerError`] of the last attempt.
    pub fn transact<T>(
        &mut self,
        mut steps: impl FnMut(&mut Tx<'_>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let mut attempt = 1;
        loop {
            let mut once = || {
                let mut tx = self.begin()?;
                let done = steps(&mut tx)?;
                tx.commit()?;
                Ok(done)
            };
            match once() {
                Err(LedgerError::Contended(_)) if attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    /// Every activity, scene and type that ever had an order or a budget, with what it gave out.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn budgets(&self) -> Result<Vec<BudgetState>, LedgerError> {
        self.store.read().budgets(WhichBudgets::All)
    }

    /// A user's balance of a bonus type, 0 where there is no such account.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn balance(&self, user_id: i64, bonus_type: &str) -> Result<i64, LedgerError> {
        self.store.read().balance(user_id, bonus_type)
    }

    /// A user's newest movements over all bonus types, newest first, at most `limit`: of one type in the order in
    /// which they moved it, of several by time and then by number.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        self.store.read().flow(user_id, limit)
    }

    /// An order, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn order(&self, id: OrderId<'_>) -> Result<Option<StoredOrder>, LedgerError> {
        let found = self.store.read().orders(&[id])?.pop().flatten();
        Ok(found.filter(|order| order.activity == id.activity))
    }

    /// A withdrawal, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn withdrawal(&self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        self.store.read().withdrawal(id)
    }

    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        self.store.read().archive_list(filter)
    }

    /// One entry; `None` where there is no such entry.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError> {
        self.store.read().archived(id)
    }

    /// Every replay of an entry, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
        self.store.read().replays(archive_id)
    }

    /// Compares orders, transfers, accounts and budgets with each other. Reads every row.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        self.store.read().reconcile()
    }

    /// Reads everything that is stored. `Ok` says that it is sound.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] with the first finding.
    pub fn check(&self) -> Result<(), LedgerError> {
        self.store.read().check()
    }

    /// Closes an activity: the ledger credits and reserves none of its orders from now on. A repeat of an order that was
    /// credited answers so while its row is there.
    ///
    /// In PostgreSQL it waits for the transactions that have written orders, with new ones behind it, for two seconds at a time.
    /// Only the owner of the tables may do it, and every process has to be of a release that knows closed activities: an older one
    /// repeats what the database refuses it, without end.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; close it again.
    pub fn close_activity(&mut self, which: &Close<'_>) -> Result<Closed, LedgerError> {
        check_name(which.activity)?;
        self.store.close(which)
    }

    /// Opens a closed activity again, if none of its orders was detached.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; open it again.
    pub fn reopen_activity(&mut self, activity: &str) -> Result<Reopened, LedgerError> {
        check_name(activity)?;
        self.store.reopen(activity)
    }

    /// Notes that the orders of a closed activity leave the ledger, and which export has them. The caller has compared the
    /// export with the orders. The auditor must have read every transfer from before the close, and a seal must cover each, unless the
    /// caller accepts otherwise by name.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; ask again.
    pub fn begin_detach(&mut self, which: &Detach<'_>) -> Result<DetachBegun, LedgerError> {
        check_name(which.activity)?;
        self.store.begin_detach(which)
    }

    /// Deletes a part of the orders of an activity whose detaching has begun, from behind a place on: empty at first, then what the
    /// step before says comes next. With the last of them it notes that all have gone. It may be begun anew at any time.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where detaching has not begun; after every other error do the step again.
    pub fn detach_step(
        &mut self,
        activity: &str,
        after: &str,
        time_ms: i64,
    ) -> Result<DetachStep, LedgerError> {
        check_name(activity)?;
        self.store.detach_step(activity, after, time_ms)
    }

    /// Lists a page of the reserved orders that came of age, unless another process does.
    ///
    /// # Errors
    /// [`LedgerError`]: list again later.
    pub fn list_copies(&mut self, how: &ListCopies) -> Result<Listing, LedgerError> {
        self.store.list_copies(how)
    }

    /// The budget keys of all orders that are listed.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn copy_keys(&mut self) -> Result<Vec<CopyKey>, LedgerError> {
        self.store.copy_keys()
    }

    /// Takes orders that are due and that nobody else takes. Those that are not reserved any more are forgotten.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was taken, or nobody knows, and they are due again when the lease ends.
    pub fn take_copies(&mut self, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
        self.store.take_copies(which)
    }

    /// Notes that events were written.
    ///
    /// # Errors
    /// [`LedgerError`]: they are due again when the lease ends.
    pub fn note_copies(&mut self, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError> {
        self.store.note_copies(written)
    }

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

fn check_name(activity: &str) -> Result<(), LedgerError> {
    if activity.is_empty() || activity.contains('\0') {
        return Err(LedgerError::Invalid(
            "the name of an activity must not be empty, nor contain NUL".into(),
        ));
    }
    Ok(())
}
