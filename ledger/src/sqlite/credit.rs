//! Carries out what is decided on an order, given what is stored and what its budget holds.

use super::budget_keys::{BudgetKey, name_id};
use super::orders::{self, Row};
use super::state::SqliteTx;
use super::transfers::{self, Transfers};
use crate::budget::{Take, hash};
use crate::decision::{self, Goal, Known, Step};
use crate::error::LedgerError;
use crate::journal::{Money, Payee};
use crate::key::{OrderId, is_bare};
use crate::model::{Attempt, Finish, Order, OrderOutcome, Unbudgeted, first_of_each};
use windfall_contract::accounts::{Reason, Status};

/// The place of an order in its batch, and the row that is stored under its number alone.
type Bare = (usize, Option<Row>);

impl SqliteTx<'_> {
    pub(crate) fn credit(
        &mut self,
        batch: &[Order<'_>],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        let budget_keys = batch.iter().map(|order| self.budget_key(order)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<i64> = budget_keys.iter().map(|budget_key| budget_key.id).collect();
        let keys: Vec<String> = batch.iter().map(|order| order.id().key()).collect();
        let (bare, firsts) = self.bare_of(batch, first_of_each(&keys))?;
        let base = self.next_transfer;
        let found = orders::insert_credited(&self.ledger.db, batch, &keys, &ids, &firsts, base)?;
        let mut plans = vec![None; batch.len()];
        for (at, row) in firsts.iter().copied().zip(found).chain(bare) {
            plans[at] = Some((self.next_transfer, row));
            self.next_transfer += 1;
        }
        let mut transfers = Transfers::with_capacity(firsts.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        // In the caller's order, so that a short budget goes to the orders that came first.
        for ((at, budget_key), plan) in budget_keys.iter().enumerate().zip(plans) {
            let own = Own { order: &batch[at], key: &keys[at], budget_key: *budget_key };
            outcomes.push(match plan {
                Some((transfer, row)) => {
                    Some(self.credit_one(&own, row, transfer, attempt, &mut transfers)?)
                }
                None => None,
            });
        }
        transfers.write(&self.ledger.db)?;
        let mut answers = Vec::with_capacity(batch.len());
        let mut late = Transfers::default();
        for ((at, budget_key), outcome) in budget_keys.iter().enumerate().zip(outcomes) {
            let own = Own { order: &batch[at], key: &keys[at], budget_key: *budget_key };
            answers.push(match outcome {
                Some(outcome) => outcome,
                // A repeat within the batch: its order is stored by now.
                None => self.repeated(&own, &mut late)?,
            });
        }
        late.write(&self.ledger.db)?;
        Ok(answers)
    }

    /// Those of these orders that are stored under their numbers alone, and the others.
    fn bare_of(
        &self,
        batch: &[Order<'_>],
        firsts: Vec<usize>,
    ) -> Result<(Vec<Bare>, Vec<usize>), LedgerError> {
        if !self.ledger.has_bare {
            return Ok((Vec::new(), firsts));
        }
        let (mut bare, mut others) = (Vec::new(), Vec::with_capacity(firsts.len()));
        for at in firsts {
            match orders::find_bare(&self.ledger.db, batch[at].id())? {
                None => others.push(at),
                found => bare.push((at, found)),
            }
        }
        Ok((bare, others))
    }

    fn budget_key(&mut self, order: &Order<'_>) -> Result<BudgetKey, LedgerError> {
        order.check()?;
        let Order { activity, scene, bonus_type, .. } = order;
        self.ledger.budget_keys.intern(&self.ledger.db, activity, scene, bonus_type)
    }

    fn credit_one<'a>(
        &mut self,
        own: &Own<'_, 'a>,
        stored: Option<Row>,
        transfer: i64,
        attempt: Attempt,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        let Own { order, budget_key, .. } = *own;
        let (known, money) = (stored.as_ref().map(|row| row.known), own.money(stored.as_ref()));
        match decision::step(known.as_ref(), order, budget_key.id, Goal::Credit, attempt) {
            Step::Ask => {}
            Step::Keep => return self.keep_promise(own, stored, transfer, transfers),
            #[cfg(feature = "sabotage")]
            Step::Answer(OrderOutcome::AlreadyCredited) if crate::sabotage::dedupe_is_off() => {
                transfers.push(money.direct(transfer, order.time_ms))?;
                return Ok(OrderOutcome::Credited);
            }
            Step::Answer(decided) => return Ok(decided),
            // A credit hands nothing over.
            Step::HandOver => return Ok(OrderOutcome::Reserved),
        }
        let (status, outcome) = match self.take(order, budget_key, Take::Used)? {
            None => (Status::Credited, OrderOutcome::Credited),
            Some(reason) => (Status::Rejected(reason), OrderOutcome::Rejected(reason)),
        };
        let is_credited = status == Status::Credited;
        // A new one was inserted as credited.
        if stored.is_some() || !is_credited {
            let took_ms = stored.as_ref().map_or(0, |row| order.time_ms.saturating_sub(row.created_ms));
            let payer = decision::payer_of(status, "", stored.is_none());
            let paid_by = if is_credited { transfer } else { 0 };
            orders::set_status(&self.ledger.db, money.key, status, paid_by, took_ms, payer)?;
        }
        if is_credited {
            transfers.push(money.direct(transfer, order.time_ms))?;
        }
        Ok(outcome)
    }

    /// Credits an order whose awaited event has come, from the budget that is held for it (I1, I4).
    fn keep_promise<'a>(
        &mut self,
        own: &Own<'_, 'a>,
        stored: Option<Row>,
        transfer: i64,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        let (order, money) = (own.order, own.money(stored.as_ref()));
        let Some(row) = stored else { return Ok(OrderOutcome::Reserved) };
        self.settle(order.trade_no, &row, true)?;
        let took_ms = order.time_ms.saturating_sub(row.created_ms);
        let (status, db) = (Status::Credited, &self.ledger.db);
        orders::set_status(db, money.key, status, transfer, took_ms, Some(""))?;
        transfers.push(money.post(row.known.payee(), transfer, order.time_ms))?;
        Ok(OrderOutcome::Credited)
    }

    fn repeated<'a>(
        &mut self,
        own: &Own<'_, 'a>,
        transfers: &mut Transfers<'a>,
    ) -> Result<OrderOutcome, LedgerError> {
        let Own { order, budget_key, .. } = *own;
        let Some(row) = orders::find(self.ledger, order.id())? else {
            return Err(LedgerError::Damaged(format!("order {} has vanished", order.trade_no)));
        };
        match decision::step(Some(&row.known), order, budget_key.id, Goal::Credit, Attempt::Normal) {
            // The first under this number was another order.
            Step::Keep => {
                let transfer = self.number();
                self.keep_promise(own, Some(row), transfer, transfers)
            }
            Step::Answer(decided) => Ok(decided),
            Step::Ask | Step::HandOver => Ok(row.known.answer(order, budget_key.id)),
        }
    }

    /// Takes an order's room. Returns why there is none; `None` where it was taken.
    pub(super) fn take(
        &mut self,
        order: &Order<'_>,
        budget_key: BudgetKey,
        what: Take,
    ) -> Result<Option<Reason>, LedgerError> {
        if decision::is_over_order_cap(&self.order_caps, order) {
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
            let mut short = Vec::new();
            for id in budget_key.all() {
                if !self.shards_of(id)?.fits(order.amount) {
                    short.push(id == budget_key.cap);
                }
            }
            if let Some(reason) = decision::refusal(short) {
                return Ok(Some(reason));
            }
            for id in budget_key.above() {
                self.shards_of(id)?.take(hash(order.trade_no), order.amount, what);
            }
        }
        let taken = self.shards_of(budget_key.id)?.take(hash(order.trade_no), order.amount, what);
        Ok(if taken { None } else { decision::refusal([false]) })
    }

    pub(crate) fn reserve_one(
        &mut self,
        order: &Order<'_>,
        attempt: Attempt,
        goal: Goal,
        payer: &str,
    ) -> Result<OrderOutcome, LedgerError> {
        let (budget_key, key) = (self.budget_key(order)?, order.id().key());
        let own = Own { order, key: &key, budget_key };
        let stored = orders::find(self.ledger, order.id())?;
        let (known, money) = (stored.as_ref().map(|row| row.known), own.money(stored.as_ref()));
        match (decision::step(known.as_ref(), order, budget_key.id, goal, attempt), known) {
            (Step::Ask, _) => {}
            (Step::HandOver, Some(known)) => {
                let to = goal.payee(self.payer(payer)?);
                self.hand_over(&money, order.time_ms, known.payee(), to)?;
                orders::set_awaits(&self.ledger.db, money.key, goal.awaits(), payer)?;
                return Ok(OrderOutcome::Reserved);
            }
            (Step::Answer(decided), _) => return Ok(decided),
            // A reservation keeps no promise.
            (Step::Keep | Step::HandOver, _) => return Ok(OrderOutcome::Reserved),
        }
        let (status, outcome) = match self.take(order, budget_key, Take::Reserved)? {
            None => (Status::Reserved, OrderOutcome::Reserved),
            Some(reason) => (Status::Rejected(reason), OrderOutcome::Rejected(reason)),
        };
        let kept = decision::payer_of(status, payer, stored.is_none());
        let db = &self.ledger.db;
        match stored {
            None => {
                orders::insert_open(
                    db,
                    &key,
                    order,
                    budget_key.id,
                    status,
                    goal.awaits(),
                    kept.unwrap_or(""),
                )?;
            }
            Some(row) => {
                let took_ms = order.time_ms.saturating_sub(row.created_ms);
                orders::set_status(db, money.key, status, 0, took_ms, kept)?;
                orders::set_awaits(db, money.key, goal.awaits(), payer)?;
            }
        }
        if status == Status::Reserved {
            let to = goal.payee(self.payer(payer)?);
            let number = self.number();
            let held = money.pending(to, number, order.time_ms);
            transfers::insert(&self.ledger.db, &[held])?;
        }
        Ok(outcome)
    }

    /// What was held for one is held for another from now on.
    fn hand_over(
        &mut self,
        money: &Money<'_>,
        time_ms: i64,
        from: Payee,
        to: Payee,
    ) -> Result<(), LedgerError> {
        if from == to {
            return Ok(());
        }
        let (first, second) = (self.number(), self.number());
        let entries = [money.void(from, first, time_ms), money.pending(to, second, time_ms)];
        transfers::insert(&self.ledger.db, &entries)
    }

    /// The number of a downstream's name.
    fn payer(&self, name: &str) -> Result<Option<i64>, LedgerError> {
        if name.is_empty() { Ok(None) } else { name_id(&self.ledger.db, name).map(Some) }
    }

    /// The next transfer's number.
    pub(crate) const fn number(&mut self) -> i64 {
        let number = self.next_transfer;
        self.next_transfer += 1;
        number
    }

    /// Ends a reserved order: credited, or rejected for a reason.
    pub(crate) fn finish_one<'a>(
        &mut self,
        id: OrderId<'a>,
        goal: Status,
        time_ms: i64,
        transfers: &mut Transfers<'a>,
    ) -> Result<Finish, LedgerError> {
        let credited = goal == Status::Credited;
        let Some(row) = orders::find(self.ledger, id)? else {
            return Ok(Finish::Unknown);
        };
        let finish = decision::finish(row.known.status, credited);
        if finish != Finish::Done {
            return Ok(finish);
        }
        self.settle(id.trade_no, &row, credited)?;
        let Known { user_id, amount, budget_key, .. } = row.known;
        let own = self.ledger.budget_keys.of_id(&self.ledger.db, budget_key)?;
        let money = Money { key: &row.key, user_id, budget_key, bonus_type: own.bonus_type, amount };
        let (number, to) = (self.number(), row.known.payee());
        let took_ms = time_ms.saturating_sub(row.created_ms);
        let (paid_by, entry) = if credited {
            (number, money.post(to, number, time_ms))
        } else {
            (0, money.void(to, number, time_ms))
        };
        orders::set_status(&self.ledger.db, &row.key, goal, paid_by, took_ms, None)?;
        transfers.push(entry.into_owned())?;
        Ok(finish)
    }

    fn settle(&mut self, trade_no: &str, row: &Row, credited: bool) -> Result<(), LedgerError> {
        let Known { budget_key, amount, .. } = row.known;
        let budget_key = self.ledger.budget_keys.of_id(&self.ledger.db, budget_key)?;
        for id in budget_key.all() {
            if !self.shards_of(id)?.settle(hash(trade_no), amount, credited) {
                return Err(LedgerError::Damaged(format!(
                    "order {trade_no} is reserved, but its budget holds less"
                )));
            }
        }
        Ok(())
    }
}

/// An order of a call, with the key that it is stored under if it is new.
struct Own<'o, 'a> {
    order: &'o Order<'a>,
    key: &'a str,
    budget_key: BudgetKey,
}

impl<'a> Own<'_, 'a> {
    /// Its money, under the key that it has.
    fn money(&self, stored: Option<&Row>) -> Money<'a> {
        let Order { trade_no, user_id, amount, .. } = *self.order;
        let key = if stored.is_some_and(|row| is_bare(&row.key)) { trade_no } else { self.key };
        Money { key, user_id, budget_key: self.budget_key.id, bonus_type: self.budget_key.bonus_type, amount }
    }
}
