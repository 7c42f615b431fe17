//! One transaction, step by step.

use super::budget_keys::{self, cell};
use super::state::PgTx;
use super::{archive, budgets, closed, stored_orders};
use crate::archive::{ArchiveEntry, Replay};
use crate::contract::Transaction;
use crate::decision::Goal;
use crate::error::LedgerError;
use crate::journal::Funded;
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Attempt, BudgetRaised, BudgetSet, Finish, Order, OrderOutcome};
use crate::withdrawal::{End, Held, HoldOutcome};
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::accounts::{Reason, Status, StoredOrder};

impl PgTx<'_> {
    /// Notes in the journal that budgets' totals have changed.
    fn fund(&mut self, funded: &[Funded]) -> Result<(), LedgerError> {
        if funded.is_empty() {
            return Ok(());
        }
        let now = "SELECT (extract(epoch FROM now()) * 1000)::bigint";
        let time_ms = self.session.query(now, &[])?.first().map_or(Ok(0), |row| cell(row, 0))?;
        for (one, number) in funded.iter().zip(self.numbers.take(self.session, funded.len())?) {
            if let Some(entry) = one.entry(number, time_ms) {
                self.transfers.push(entry)?;
            }
        }
        Ok(())
    }
}

impl Transaction for PgTx<'_> {
    fn closed(&mut self, batch: &[Order<'_>]) -> Result<BTreeSet<String>, LedgerError> {
        closed::closed(self.session, batch)
    }

    fn apply(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.each(batch, &[], attempt, Goal::Credit)
    }

    fn reserve(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.each(batch, payers, attempt, Goal::Reserve)
    }

    fn promise(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.each(batch, &[], attempt, Goal::Promise)
    }

    fn orders(&mut self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        stored_orders::orders(self.session, ids)
    }

    fn post(&mut self, ids: &[OrderId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = ids.iter().map(|id| (*id, Status::Credited)).collect();
        self.finish(&ends, time_ms, true)
    }

    fn release(
        &mut self,
        refused: &[(OrderId<'_>, Reason)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = refused.iter().map(|(id, reason)| (*id, Status::Rejected(*reason))).collect();
        self.finish(&ends, time_ms, false)
    }

    fn name_tenant(&mut self, tenant: &str) {
        tenant.clone_into(&mut self.tenant);
    }

    fn hold(&mut self, batch: &[Held<'_>], time_ms: i64) -> Result<Vec<HoldOutcome>, LedgerError> {
        self.hold_all(batch, time_ms)
    }

    fn pay_out(&mut self, ids: &[WithdrawalId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = ids.iter().map(|id| (*id, End::Paid)).collect();
        self.end_all(&ends, time_ms)
    }

    fn give_back(
        &mut self,
        refused: &[(WithdrawalId<'_>, &str)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = refused.iter().map(|(id, why)| (*id, End::Refused(why))).collect();
        self.end_all(&ends, time_ms)
    }

    fn rules_version(&mut self) -> Result<i64, LedgerError> {
        Ok(self.rules_version)
    }

    fn set_rules_version(&mut self, version: i64) -> Result<(), LedgerError> {
        self.session.execute("UPDATE rules_version SET version = $1", &[&version]).map(drop)
    }

    fn raise_rules_version(&mut self, version: i64) -> Result<i64, LedgerError> {
        // The row is locked until the end of this transaction: what it says is so while budgets are set. Where it
        // waited for another, it compares with what that one left.
        let rows = self.session.query(
            "INSERT INTO rules_version AS v (one, version) VALUES (true, $1) \
             ON CONFLICT (one) DO UPDATE SET version = greatest(v.version, excluded.version) RETURNING version",
            &[&version],
        )?;
        rows.first().map_or_else(|| Err(LedgerError::Sql("no version came back".into())), |row| cell(row, 0))
    }

    fn cap_orders(&mut self, largest: &BTreeMap<String, i64>) {
        self.order_caps.clone_from(largest);
    }

    fn lift_caps(&mut self, keep: &[&str]) -> Result<(), LedgerError> {
        let lifted = budgets::lift_caps(self.session, keep)?;
        self.fund(&lifted)
    }

    fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        budgets.iter().try_for_each(BudgetSet::check)?;
        let combined: BTreeSet<&str> =
            budgets.iter().filter(|one| one.is_combined()).map(|one| one.stored()[0]).collect();
        budget_keys::hold_alone(self.session, &combined.into_iter().collect::<Vec<_>>())?;
        let mut own = Vec::with_capacity(budgets.len());
        for (at, budget) in budgets.iter().enumerate() {
            let [activity, scene, bonus_type] = budget.stored();
            let order =
                Order { trade_no: "", user_id: 0, activity, scene, bonus_type, amount: 0, time_ms: 0 };
            let budget_key = self.budget_keys.of_orders(self.session, &[order])?;
            own.extend(budget_key.first().map(|budget_key| (budget.is_combined(), budget_key.id, at)));
        }
        // Locked in the order of their numbers, combined ones last, as everywhere; of two for one budget key the later
        // one holds.
        own.sort_unstable();
        let (mut raised, mut funded) = (Vec::new(), Vec::new());
        for (_, budget_key, at) in own {
            let (one, change) = budgets::set(self.session, self.budget_keys, budget_key, &budgets[at])?;
            raised.extend(one.map(|one| (at, one)));
            funded.push(change);
        }
        self.fund(&funded)?;
        raised.sort_by_key(|(at, _)| *at);
        Ok(raised.into_iter().map(|(_, one)| one).collect())
    }

    fn archive(&mut self, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
        archive::insert(self.session, entries)
    }

    fn archived_as(&mut self, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError> {
        archive::id_of(self.session, payload, reason)
    }

    fn mark_replayed(&mut self, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
        archive::mark_replayed(self.session, id, replay)
    }

    fn went_back(&self) -> bool {
        self.session.went_back()
    }

    fn commit(mut self: Box<Self>) -> Result<(), LedgerError> {
        std::mem::take(&mut self.transfers).commit(self.session)?;
        self.committed = true;
        Ok(())
    }
}
