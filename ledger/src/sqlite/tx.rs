//! One transaction on the file: all of it is stored, or none.

use super::state::SqliteTx;
use super::transfers::Transfers;
use super::{archive, query};
use crate::archive::{ArchiveEntry, Replay};
use crate::closing;
use crate::contract::Transaction;
use crate::decision::Goal;
use crate::error::LedgerError;
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Attempt, BudgetRaised, BudgetSet, Finish, Order, OrderOutcome};
use crate::withdrawal::{End, Held, HoldOutcome};
use rusqlite::OptionalExtension;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::accounts::{Reason, Status, StoredOrder};

impl SqliteTx<'_> {
    fn finish<'a>(
        &mut self,
        ends: impl Iterator<Item = (OrderId<'a>, Status)>,
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        let mut transfers = Transfers::default();
        let done = ends
            .map(|(id, goal)| self.finish_one(id, goal, time_ms, &mut transfers))
            .collect::<Result<Vec<_>, _>>()?;
        transfers.write(&self.ledger.db)?;
        Ok(done)
    }
}

impl Transaction for SqliteTx<'_> {
    fn closed(&mut self, batch: &[Order<'_>]) -> Result<BTreeSet<String>, LedgerError> {
        Ok(closing::among(&self.ledger.closed, batch))
    }

    fn apply(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        match attempt {
            Attempt::Normal => self.credit(batch, attempt),
            // A rejected order that comes twice may be decided anew by its second occurrence: one by one.
            Attempt::Replay => {
                let each = batch.chunks(1).map(|one| self.credit(one, attempt));
                Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
    }

    fn reserve(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        let each = batch.iter().zip(payers);
        each.map(|(order, payer)| self.reserve_one(order, attempt, Goal::Reserve, payer)).collect()
    }

    fn promise(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        batch.iter().map(|order| self.reserve_one(order, attempt, Goal::Promise, "")).collect()
    }

    fn orders(&mut self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        ids.iter().map(|id| query::order(&self.ledger.db, *id)).collect()
    }

    fn post(&mut self, ids: &[OrderId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        self.finish(ids.iter().map(|id| (*id, Status::Credited)), time_ms)
    }

    fn release(
        &mut self,
        refused: &[(OrderId<'_>, Reason)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        let ends = refused.iter().map(|(id, reason)| (*id, Status::Rejected(*reason)));
        self.finish(ends, time_ms)
    }

    fn name_tenant(&mut self, tenant: &str) {
        tenant.clone_into(&mut self.tenant);
    }

    fn hold(&mut self, batch: &[Held<'_>], time_ms: i64) -> Result<Vec<HoldOutcome>, LedgerError> {
        batch.iter().map(|asked| self.hold_one(*asked, time_ms)).collect()
    }

    fn pay_out(&mut self, ids: &[WithdrawalId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        ids.iter().map(|id| self.end_one(*id, End::Paid, time_ms)).collect()
    }

    fn give_back(
        &mut self,
        refused: &[(WithdrawalId<'_>, &str)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        refused.iter().map(|(id, why)| self.end_one(*id, End::Refused(why), time_ms)).collect()
    }

    fn rules_version(&mut self) -> Result<i64, LedgerError> {
        let found = self
            .ledger
            .db
            .prepare_cached("SELECT version FROM rules_version")?
            .query_row([], |row| row.get(0))
            .optional()?;
        Ok(found.unwrap_or(0))
    }

    fn set_rules_version(&mut self, version: i64) -> Result<(), LedgerError> {
        self.ledger.db.prepare_cached("UPDATE rules_version SET version = ?1")?.execute([version])?;
        Ok(())
    }

    fn raise_rules_version(&mut self, version: i64) -> Result<i64, LedgerError> {
        Ok(self
            .ledger
            .db
            .prepare_cached(
                "INSERT INTO rules_version (one, version) VALUES (1, ?1) \
                 ON CONFLICT (one) DO UPDATE SET version = max(version, excluded.version) RETURNING version",
            )?
            .query_row([version], |row| row.get(0))?)
    }

    fn cap_orders(&mut self, largest: &BTreeMap<String, i64>) {
        self.order_caps.clone_from(largest);
    }

    fn lift_caps(&mut self, keep: &[&str]) -> Result<(), LedgerError> {
        SqliteTx::lift_caps(self, keep)
    }

    fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        let set = budgets.iter().map(|budget| self.set_budget(budget)).collect::<Result<Vec<_>, _>>()?;
        Ok(set.into_iter().flatten().collect())
    }

    fn archive(&mut self, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
        archive::insert(&self.ledger.db, entries)
    }

    fn archived_as(&mut self, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError> {
        archive::id_of(&self.ledger.db, payload, reason)
    }

    fn mark_replayed(&mut self, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
        archive::mark_replayed(&self.ledger.db, id, replay)
    }

    fn went_back(&self) -> bool {
        // There is one connection to a file, so the guard knows.
        false
    }

    fn commit(mut self: Box<Self>) -> Result<(), LedgerError> {
        self.write_shards()?;
        self.ledger.db.execute_batch("COMMIT")?;
        self.committed = true;
        Ok(())
    }
}
