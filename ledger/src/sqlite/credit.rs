//! Decides an order, given what is stored and what its budget holds.

use super::budget_keys::BudgetKey;
use super::orders::{self, Row};
use super::state::SqliteTx;
use super::transfers::Transfers;
use crate::budget::{Take, hash};
use crate::error::LedgerError;
use crate::model::{Attempt, Awaits, Finish, Order, OrderOutcome, Unbudgeted, first_of_each};
use windfall_contract::accounts::{Reason, Status};

impl SqliteTx<'_> {
    pub(crate) fn credit(
        &mut self,
        batch: &[Order<'_>],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        let budget_keys = batch.iter().map(|order| self.budget_key(order)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<i64> = budget_keys.iter().map(|budget_key| budget_key.id).collect();
        let firsts = first_of_each(batch);
        let base = self.next_transfer;
        let found = orders::insert_credited(&self.ledger.db, batch, &ids, &firsts, base)?;
        let mut plans = vec![None; batch.len()];
        for (at, row) in firsts.iter().zip(found) {
            plans[*at] = Some((self.next_transfer, row));
            self.next_transfer += 1;
        }
        let mut transfers = Transfers::with_capacity(firsts.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        // In the caller's order, so that a short budget goes to the orders that came first.
        for ((order, budget_key), plan) in batch.iter().zip(&budget_keys).zip(&plans) {
            outcomes.push(match plan {
                Some((transfer, row)) => {
                    Some(self.credit_one(order, *budget_key, *row, *transfer, attempt, &mut transfers)?)
                }
                None => None,
            });
        }
        transfers.write(&self.ledger.db)?;
        let mut answers = Vec::with_capacity(batch.len());
        let mut late = Transfers::default();
        for ((order, budget_key), outcome) in batch.iter().zip(&budget_keys).zip(outcomes) {
            answers.push(match outcome {
                Some(outcome) => outcome,
                // A repeat within the batch: its order is stored by now.
                None => self.repeated(order, *budget_key, &mut late)?,
            });
        }
        late.write(&self.ledger.db)?;
        Ok(answers)
    }

    fn budget_key(&mut self, order: &Order<'_>) -> Result<BudgetKey, LedgerError> {
        order.check()?;
        let Order { activity, scene, bonus_type, .. } = order;
        self.ledger.budget_keys.intern(&self.ledger.db, activity, scene, bonus_type)
    }

    fn credit_one<'a>(
        &mut self,
        order: &Order<'a>,
        budget_key: BudgetKey,
        stored: Option<Row>,
        transfer: i64,
        attempt: Attempt,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        if let Some(row) = stored {
            match row.answer(order, budget_key.id) {
                OrderOutcome::Rejected(_) if attempt == Attempt::Replay => {}
                OrderOutcome::Reserved if row.promised => {
                    return self.keep_promise(order, row, transfer, transfers);
                }
                #[cfg(feature = "sabotage")]
                OrderOutcome::AlreadyCredited if crate::sabotage::dedupe_is_off() => {
                    transfers.push(
                        transfer,
                        order.trade_no,
                        order.user_id,
                        budget_key,
                        order.amount,
                        order.time_ms,
                    )?;
                    return Ok(OrderOutcome::Credited);
                }
                decided => return Ok(decided),
            }
        }
        let refused = self.take(order, budget_key, Take::Used)?;
        let Some(reason) = refused else {
            if let Some(row) = stored {
                let took_ms = order.time_ms.saturating_sub(row.created_ms);
                orders::set_status(&self.ledger.db, order.trade_no, Status::Credited, transfer, took_ms)?;
            }
            transfers.push(
                transfer,
                order.trade_no,
                order.user_id,
                budget_key,
                order.amount,
                order.time_ms,
            )?;
            return Ok(OrderOutcome::Credited);
        };
        let took_ms = stored.map_or(0, |row| order.time_ms.saturating_sub(row.created_ms));
        orders::set_status(&self.ledger.db, order.trade_no, Status::Rejected(reason), 0, took_ms)?;
        Ok(OrderOutcome::Rejected(reason))
    }

    /// Credits an order whose awaited event has come, from the budget that is held for it (I1, I4).
    fn keep_promise<'a>(
        &mut self,
        order: &Order<'a>,
        row: Row,
        transfer: i64,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        self.settle(order.trade_no, row, true)?;
        let budget_key = self.ledger.budget_keys.of_id(&self.ledger.db, row.budget_key)?;
        let took_ms = order.time_ms.saturating_sub(row.created_ms);
        orders::set_status(&self.ledger.db, order.trade_no, Status::Credited, transfer, took_ms)?;
        transfers.push(transfer, order.trade_no, row.user_id, budget_key, row.amount, order.time_ms)?;
        Ok(OrderOutcome::Credited)
    }

    fn repeated<'a>(
        &mut self,
        order: &Order<'a>,
        budget_key: BudgetKey,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        match orders::find(&self.ledger.db, order.trade_no)? {
            Some(row) => match row.answer(order, budget_key.id) {
                // The first under this number was another order.
                OrderOutcome::Reserved if row.promised => {
                    let transfer = self.next_transfer;
                    self.next_transfer += 1;
                    self.keep_promise(order, row, transfer, transfers)
                }
                decided => Ok(decided),
            },
            None => Err(LedgerError::Damaged(format!("order {} has vanished", order.trade_no))),
        }
    }

    /// Takes an order's room. Returns why there is none; `None` where it was taken.
    fn take(
        &mut self,
        order: &Order<'_>,
        budget_key: BudgetKey,
        what: Take,
    ) -> Result<Option<Reason>, LedgerError> {
        if self.order_caps.get(order.bonus_type).is_some_and(|largest| order.amount > *largest) {
            return Ok(Some(Reason::OverOrderCap));
        }
        let is_covered = budget_key.covered_by != [0; 3];
        if !budget_key.budgeted && !is_covered && self.ledger.unbudgeted == Unbudgeted::Refuse {
            return Ok(Some(Reason::Unbudgeted));
        }
        #[cfg(feature = "sabotage")]
        if crate::sabotage::budget_check_is_off() {
            for id in budget_key.all() {
                self.shards_of(id)?.take_unchecked(hash(order.trade_no), order.amount, what);
            }
            return Ok(None);
        }
        // From all or from none.
        if is_covered || budget_key.cap != 0 {
            for id in budget_key.all().filter(|id| *id != budget_key.cap) {
                if !self.shards_of(id)?.fits(order.amount) {
                    return Ok(Some(Reason::BudgetExhausted));
                }
            }
            if budget_key.cap != 0 && !self.shards_of(budget_key.cap)?.fits(order.amount) {
                return Ok(Some(Reason::OverTypeCap));
            }
            for id in budget_key.above() {
                self.shards_of(id)?.take(hash(order.trade_no), order.amount, what);
            }
        }
        let taken = self.shards_of(budget_key.id)?.take(hash(order.trade_no), order.amount, what);
        Ok((!taken).then_some(Reason::BudgetExhausted))
    }

    pub(crate) fn reserve_one(
        &mut self,
        order: &Order<'_>,
        attempt: Attempt,
        awaits: Awaits,
        payer: &str,
    ) -> Result<OrderOutcome, LedgerError> {
        let budget_key = self.budget_key(order)?;
        let stored = orders::find(&self.ledger.db, order.trade_no)?;
        if let Some(row) = stored {
            match row.answer(order, budget_key.id) {
                OrderOutcome::Rejected(_) if attempt == Attempt::Replay => {}
                OrderOutcome::Reserved if awaits == Awaits::Payer && (row.promised || !row.has_payer) => {
                    // A downstream is about to be asked: from now on it may have paid, and no other is asked (I1).
                    orders::set_awaits(&self.ledger.db, order.trade_no, awaits, payer)?;
                    return Ok(OrderOutcome::Reserved);
                }
                decided => return Ok(decided),
            }
        }
        let (status, outcome) = match self.take(order, budget_key, Take::Reserved)? {
            None => (Status::Reserved, OrderOutcome::Reserved),
            Some(reason) => (Status::Rejected(reason), OrderOutcome::Rejected(reason)),
        };
        let db = &self.ledger.db;
        match stored {
            None => {
                // The stored payer was asked, or is about to be.
                let payer = if status == Status::Reserved { payer } else { "" };
                orders::insert_open(db, order, budget_key.id, status, awaits, payer)?;
            }
            Some(row) => {
                let took_ms = order.time_ms.saturating_sub(row.created_ms);
                orders::set_status(db, order.trade_no, status, 0, took_ms)?;
                orders::set_awaits(db, order.trade_no, awaits, payer)?;
            }
        }
        Ok(outcome)
    }

    pub(crate) fn post_one<'a>(
        &mut self,
        trade_no: &'a str,
        time_ms: i64,
        transfers: &mut Transfers<'a>,
    ) -> Result<Finish, LedgerError> {
        let Some(row) = orders::find(&self.ledger.db, trade_no)? else {
            return Ok(Finish::Unknown);
        };
        match row.status {
            Status::Credited => return Ok(Finish::Before),
            Status::Rejected(_) => return Ok(Finish::Otherwise),
            Status::Reserved => {}
        }
        self.settle(trade_no, row, true)?;
        let budget_key = self.ledger.budget_keys.of_id(&self.ledger.db, row.budget_key)?;
        let transfer = self.next_transfer;
        self.next_transfer += 1;
        let took_ms = time_ms.saturating_sub(row.created_ms);
        orders::set_status(&self.ledger.db, trade_no, Status::Credited, transfer, took_ms)?;
        transfers.push(transfer, trade_no, row.user_id, budget_key, row.amount, time_ms)?;
        Ok(Finish::Done)
    }

    pub(crate) fn release_one(
        &mut self,
        trade_no: &str,
        reason: Reason,
        time_ms: i64,
    ) -> Result<Finish, LedgerError> {
        let Some(row) = orders::find(&self.ledger.db, trade_no)? else {
            return Ok(Finish::Unknown);
        };
        match row.status {
            Status::Credited => return Ok(Finish::Otherwise),
            Status::Rejected(_) => return Ok(Finish::Before),
            Status::Reserved => {}
        }
        self.settle(trade_no, row, false)?;
        let took_ms = time_ms.saturating_sub(row.created_ms);
        orders::set_status(&self.ledger.db, trade_no, Status::Rejected(reason), 0, took_ms)?;
        Ok(Finish::Done)
    }

    fn settle(&mut self, trade_no: &str, row: Row, credited: bool) -> Result<(), LedgerError> {
        let budget_key = self.ledger.budget_keys.of_id(&self.ledger.db, row.budget_key)?;
        for id in budget_key.all() {
            if !self.shards_of(id)?.settle(hash(trade_no), row.amount, credited) {
                return Err(LedgerError::Damaged(format!(
                    "order {trade_no} is reserved, but its budget holds less"
                )));
            }
        }
        Ok(())
    }
}
