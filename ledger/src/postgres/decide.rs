//! Carries out what is decided on orders, given what is stored and what their budgets hold. Every step is a few
//! statements over the whole batch.

use super::budget_keys::BudgetKey;
use super::budgets::{self, Demand};
use super::orders::{self, Changes, Stored};
use super::state::PgTx;
use crate::budget::Take;
use crate::decision::{self, Goal, Known, Step};
use crate::error::LedgerError;
use crate::journal::Money;
use crate::model::{Attempt, Awaits, Finish, Order, OrderOutcome};
use std::collections::{BTreeSet, HashMap};
use windfall_contract::accounts::{Reason, Status};

impl PgTx<'_> {
    pub(super) fn each(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
        goal: Goal,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        match attempt {
            Attempt::Normal => self.decide(batch, payers, attempt, goal),
            // A rejected order that comes twice may be decided anew by its second occurrence: one by one.
            Attempt::Replay => {
                let each = batch.chunks(1).enumerate().map(|(at, one)| {
                    let own = payers.get(at..at + 1).unwrap_or_default();
                    self.decide(one, own, attempt, goal)
                });
                Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
    }

    /// Credits or reserves a batch; `payers`, one per order, where it is reserved for downstreams.
    fn decide(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
        goal: Goal,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        check(batch)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let budget_keys = self.budget_keys.of_orders(self.session, batch)?;
        let firsts = crate::model::first_of_each(batch);
        let transfers = match goal.take() {
            Take::Used => self.numbers.take(self.session, firsts.len())?,
            Take::Reserved => vec![0; firsts.len()],
        };
        let as_if = (goal.status(), goal.awaits());
        let new = orders::insert(self.session, batch, &budget_keys, &firsts, &transfers, as_if, payers)?;
        let old: Vec<&str> =
            firsts.iter().zip(&new).filter(|(_, new)| !**new).map(|(at, _)| batch[*at].trade_no).collect();
        // A replay decides anew: no other may do so at the same time.
        let mut stored = match old.as_slice() {
            [] => HashMap::new(),
            old => orders::read(self.session, self.budget_keys, old, attempt == Attempt::Replay)?,
        };
        if let Some(lost) = old.iter().find(|trade_no| !stored.contains_key(**trade_no)) {
            return Err(LedgerError::Damaged(format!("order {lost} was there, and has vanished")));
        }
        let payer_ids = self.budget_keys.payers(self.session, payers)?;
        let call = Call { batch, budget_keys: &budget_keys, payers, payer_ids: &payer_ids, goal, attempt };
        let kept = self.take_up(&call, &mut stored)?;
        let mut asking: Vec<Asking> = Vec::with_capacity(firsts.len());
        for (at, transfer) in firsts.into_iter().zip(transfers) {
            let old = stored.get(batch[at].trade_no).copied();
            if call.step(at, old.as_ref()) == Step::Ask {
                asking.push(Asking { at, transfer, old });
            }
        }
        // In the caller's order, so that a short budget goes to the orders that came first.
        asking.sort_unstable_by_key(|one| one.at);
        let decided = self.grant(&call, &asking)?;
        for (one, status) in asking.iter().zip(&decided) {
            let order = &batch[one.at];
            let created_ms = one.old.map_or(order.time_ms, |old| old.created_ms);
            let budget_key = budget_keys[one.at];
            let known = Known {
                user_id: order.user_id,
                budget_key: budget_key.id,
                amount: order.amount,
                status: *status,
                promised: *status == Status::Reserved && goal == Goal::Promise,
                payer: payer_ids.get(one.at).copied().flatten(),
            };
            let new = Stored { known, created_ms, budget_key };
            stored.insert(order.trade_no, new);
        }
        let mut own: Vec<usize> = asking.iter().map(|one| one.at).chain(kept).collect();
        own.sort_unstable();
        Ok(answers(batch, &budget_keys, &stored, &own))
    }

    /// Takes up orders whose awaited event has come: they are credited from what is held for them (I1, I4), or their
    /// type belongs to a downstream by now, which from now on may have paid. Also takes up orders that version 1
    /// reserved for a downstream that it did not note: from now on no other is asked (I1). Returns the orders that were
    /// credited.
    fn take_up<'a>(
        &mut self,
        call: &Call<'_, 'a>,
        stored: &mut HashMap<&'a str, Stored>,
    ) -> Result<Vec<usize>, LedgerError> {
        let takes_up = |step| matches!(step, Step::Keep | Step::HandOver);
        let names: BTreeSet<&str> = (0..call.batch.len())
            .map(|at| (at, call.batch[at].trade_no))
            .filter(|(at, trade_no)| takes_up(call.step(*at, stored.get(trade_no))))
            .map(|(_, trade_no)| trade_no)
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // No other transaction may do so at the same time: the rows are locked and read again.
        let names: Vec<&str> = names.into_iter().collect();
        stored.extend(orders::read(self.session, self.budget_keys, &names, true)?);
        let (mut changes, mut demand, mut kept) = (Changes::default(), Demand::default(), Vec::new());
        for (at, order) in call.batch.iter().enumerate() {
            let step = call.step(at, stored.get(order.trade_no));
            let Some(own) = stored.get_mut(order.trade_no).filter(|_| takes_up(step)) else { continue };
            let (money, from) = (own.money(order.trade_no), own.known.payee());
            own.known.promised = false;
            if step == Step::HandOver {
                own.known.payer = call.payer_ids.get(at).copied().flatten();
                let payer = call.payers.get(at).copied();
                changes.push_for(order.trade_no, Status::Reserved, Awaits::Payer, 0, 0, payer);
                let to = own.known.payee();
                if from != to {
                    let numbers = self.numbers.take(self.session, 2)?;
                    let number = |nth: usize| numbers.get(nth).copied().unwrap_or(0);
                    self.transfers.push(money.void(from, number(0), order.time_ms))?;
                    self.transfers.push(money.pending(to, number(1), order.time_ms))?;
                }
                continue;
            }
            own.known.status = Status::Credited;
            let transfer = self.number()?;
            let took_ms = order.time_ms.saturating_sub(own.created_ms);
            changes.push_for(order.trade_no, Status::Credited, Awaits::Payer, transfer, took_ms, Some(""));
            self.transfers.push(money.post(from, transfer, order.time_ms))?;
            demand.push(at, own.budget_key, own.known.amount);
            kept.push(at);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.budget_keys, &demand, true)?;
        Ok(kept)
    }

    /// One transfer's number.
    pub(super) fn number(&mut self) -> Result<i64, LedgerError> {
        Ok(self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0))
    }

    /// Takes the budget for the orders that ask for it, and stores the status of each.
    fn grant(&mut self, call: &Call<'_, '_>, asking: &[Asking]) -> Result<Vec<Status>, LedgerError> {
        let goal = call.goal;
        let mut demand = Demand::default();
        let order_caps = &self.order_caps;
        let over_cap = |order: &Order<'_>| decision::is_over_order_cap(order_caps, order);
        for one in asking.iter().filter(|one| !over_cap(&call.batch[one.at])) {
            demand.push(one.at, call.budget_keys[one.at], call.batch[one.at].amount);
        }
        let taken = budgets::take(self.session, self.budget_keys, self.unbudgeted, demand, goal.take())?;
        let mut changes = Changes::default();
        let mut decided = Vec::with_capacity(asking.len());
        for one in asking {
            let order = &call.batch[one.at];
            decided.push(if decision::is_over_order_cap(&self.order_caps, order) {
                Status::Rejected(Reason::OverOrderCap)
            } else {
                taken.refused(one.at).map_or(goal.status(), Status::Rejected)
            });
        }
        let held = decided.iter().filter(|status| **status == Status::Reserved).count();
        let mut held = self.numbers.take(self.session, held)?.into_iter();
        for (one, status) in asking.iter().zip(&decided) {
            let (order, status) = (&call.batch[one.at], *status);
            let took_ms = one.old.map_or(0, |old| order.time_ms.saturating_sub(old.created_ms));
            let transfer = if status == Status::Credited { one.transfer } else { 0 };
            // New ones were inserted as if they got it.
            if one.old.is_some() || status != goal.status() {
                let asked = call.payers.get(one.at).copied().unwrap_or("");
                let payer = decision::payer_of(status, asked, one.old.is_none());
                changes.push_for(order.trade_no, status, goal.awaits(), transfer, took_ms, payer);
            }
            let money = money(order, call.budget_keys[one.at]);
            match status {
                Status::Credited => self.transfers.push(money.direct(transfer, order.time_ms))?,
                Status::Reserved => {
                    let to = goal.payee(call.payer_ids.get(one.at).copied().flatten());
                    let number = held.next().ok_or_else(|| LedgerError::Sql("a number is missing".into()))?;
                    self.transfers.push(money.pending(to, number, order.time_ms))?;
                }
                Status::Rejected(_) => {}
            }
        }
        changes.write(self.session)?;
        Ok(decided)
    }

    /// Ends reserved orders: one answer for each number, repeats as if they came one after another.
    pub(super) fn finish(
        &mut self,
        ends: &[(&str, Status)],
        time_ms: i64,
        credited: bool,
    ) -> Result<Vec<Finish>, LedgerError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let names: BTreeSet<&str> = ends.iter().map(|(trade_no, _)| *trade_no).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let mut stored = orders::read(self.session, self.budget_keys, &names, true)?;
        let (mut changes, mut demand) = (Changes::default(), Demand::default());
        let mut done = Vec::with_capacity(ends.len());
        for (at, (trade_no, goal)) in ends.iter().enumerate() {
            let Some(order) = stored.get_mut(trade_no) else {
                done.push(Finish::Unknown);
                continue;
            };
            let finish = decision::finish(order.known.status, credited);
            done.push(finish);
            if finish != Finish::Done {
                continue;
            }
            order.known.status = *goal;
            let (money, to) = (order.money(trade_no), order.known.payee());
            let took_ms = time_ms.saturating_sub(order.created_ms);
            let number = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
            let entry =
                if credited { money.post(to, number, time_ms) } else { money.void(to, number, time_ms) };
            self.transfers.push(entry)?;
            let transfer = if credited { number } else { 0 };
            changes.push(trade_no, *goal, Awaits::Payer, transfer, took_ms);
            demand.push(at, order.budget_key, order.known.amount);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.budget_keys, &demand, credited)?;
        Ok(done)
    }
}

/// What is asked for a batch.
struct Call<'c, 'a> {
    batch: &'c [Order<'a>],
    budget_keys: &'c [BudgetKey],
    /// One for each order, or none at all; and the numbers of their names.
    payers: &'c [&'a str],
    payer_ids: &'c [Option<i64>],
    goal: Goal,
    attempt: Attempt,
}

impl Call<'_, '_> {
    fn step(&self, at: usize, stored: Option<&Stored>) -> Step {
        let known = stored.map(|stored| &stored.known);
        decision::step(known, &self.batch[at], self.budget_keys[at].id, self.goal, self.attempt)
    }
}

/// An order that asks for budget: it is new, or rejected and replayed.
#[derive(Debug)]
struct Asking {
    at: usize,
    transfer: i64,
    old: Option<Stored>,
}

fn money<'a>(order: &Order<'a>, budget_key: BudgetKey) -> Money<'a> {
    let Order { trade_no, user_id, amount, .. } = *order;
    Money { trade_no, user_id, budget_key: budget_key.id, asset: budget_key.bonus_type, amount }
}

impl Stored {
    fn money<'a>(&self, trade_no: &'a str) -> Money<'a> {
        let Known { user_id, budget_key, amount, .. } = self.known;
        Money { trade_no, user_id, budget_key, asset: self.budget_key.bonus_type, amount }
    }
}

/// One answer for each order. `stored` has the present state of each number; those at `own` were decided by this very
/// call.
fn answers(
    batch: &[Order<'_>],
    budget_keys: &[BudgetKey],
    stored: &HashMap<&str, Stored>,
    own: &[usize],
) -> Vec<OrderOutcome> {
    let mut own = own.iter().peekable();
    let mut outcomes = Vec::with_capacity(batch.len());
    for (at, (order, budget_key)) in batch.iter().zip(budget_keys).enumerate() {
        let answer = stored
            .get(order.trade_no)
            .map_or(OrderOutcome::Conflict, |stored| stored.known.answer(order, budget_key.id));
        let first = own.next_if_eq(&&at).is_some();
        outcomes.push(match answer {
            OrderOutcome::AlreadyCredited if first => OrderOutcome::Credited,
            answer => answer,
        });
    }
    outcomes
}

fn check(batch: &[Order<'_>]) -> Result<(), LedgerError> {
    for order in batch {
        order.check()?;
        if order.trade_no.contains('\0') {
            return Err(LedgerError::Invalid(format!(
                "order {:?}: the order number must not contain NUL",
                order.trade_no
            )));
        }
    }
    Ok(())
}
