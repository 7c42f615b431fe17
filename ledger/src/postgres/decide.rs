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
use crate::key::OrderId;
use crate::model::{Attempt, Awaits, Finish, Order, OrderOutcome};
use std::borrow::Cow;
use std::collections::HashMap;
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
        batch.iter().try_for_each(Order::check)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let budget_keys = self.budget_keys.of_orders(self.session, batch)?;
        let shape = self.session.shape();
        let keys: Vec<Cow<'_, str>> = batch.iter().map(|order| orders::key_of(shape, order.id())).collect();
        let firsts = crate::model::first_of_each(&keys);
        let transfers = match goal.take() {
            Take::Used => self.numbers.take(self.session, firsts.len())?,
            Take::Reserved => vec![0; firsts.len()],
        };
        let as_if = (goal.status(), goal.awaits());
        let new =
            orders::insert(self.session, (batch, &keys), &budget_keys, &firsts, &transfers, as_if, payers)?;
        let old: Vec<usize> = firsts.iter().zip(&new).filter(|(_, new)| !**new).map(|(at, _)| *at).collect();
        // A replay decides anew: no other may do so at the same time.
        let mut stored = match old.as_slice() {
            [] => HashMap::new(),
            old => {
                let names = orders::candidates(shape, old.iter().map(|at| batch[*at].id()));
                let locks = attempt == Attempt::Replay;
                orders::by_key(orders::read(self.session, self.budget_keys, &names, locks)?)
            }
        };
        if let Some(lost) = old.iter().map(|at| &keys[*at]).find(|key| !stored.contains_key(&***key)) {
            // Its activity is closed, and it was detached in between: the repeat is refused.
            return Err(LedgerError::Contended(format!("order {lost} was there, and has gone")));
        }
        let payer_ids = self.budget_keys.payers(self.session, payers)?;
        let (budget_keys, payer_ids) = (&budget_keys[..], &payer_ids[..]);
        let call = Call { batch, keys: &keys, budget_keys, payers, payer_ids, goal, attempt };
        let kept = self.take_up(&call, &mut stored)?;
        let mut asking: Vec<Asking> = Vec::with_capacity(firsts.len());
        for (at, transfer) in firsts.into_iter().zip(transfers) {
            let old = stored.get(&*keys[at]).cloned();
            if call.step(at, old.as_ref()) == Step::Ask {
                asking.push(Asking { at, transfer, old });
            }
        }
        // In the caller's order, so that a short budget goes to the orders that came first.
        asking.sort_unstable_by_key(|one| one.at);
        let decided = self.grant(&call, &asking)?;
        for (one, status) in asking.iter().zip(&decided) {
            let order = &batch[one.at];
            let created_ms = one.old.as_ref().map_or(order.time_ms, |old| old.created_ms);
            let budget_key = budget_keys[one.at];
            let known = Known {
                user_id: order.user_id,
                budget_key: budget_key.id,
                amount: order.amount,
                status: *status,
                promised: *status == Status::Reserved && goal == Goal::Promise,
                payer: payer_ids.get(one.at).copied().flatten(),
            };
            let key = call.key(one).to_owned();
            stored.insert(keys[one.at].to_string(), Stored { key, known, created_ms, budget_key });
        }
        let mut own: Vec<usize> = asking.iter().map(|one| one.at).chain(kept).collect();
        own.sort_unstable();
        Ok(answers(&call, &stored, &own))
    }

    /// Takes up orders whose awaited event has come: they are credited from what is held for them (I1, I4), or their
    /// type belongs to a downstream by now, which from now on may have paid. Also takes up orders that version 1
    /// reserved for a downstream that it did not note: from now on no other is asked (I1). Returns the orders that were
    /// credited.
    fn take_up(
        &mut self,
        call: &Call<'_, '_>,
        stored: &mut HashMap<String, Stored>,
    ) -> Result<Vec<usize>, LedgerError> {
        let takes_up = |step| matches!(step, Step::Keep | Step::HandOver);
        let taken = (0..call.batch.len()).filter(|at| takes_up(call.step(*at, stored.get(&*call.keys[*at]))));
        let names = orders::candidates(self.session.shape(), taken.map(|at| call.batch[at].id()));
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // No other transaction may do so at the same time: the rows are locked and read again.
        stored.extend(orders::by_key(orders::read(self.session, self.budget_keys, &names, true)?));
        let (mut changes, mut demand, mut kept) = (Changes::default(), Demand::default(), Vec::new());
        for (at, order) in call.batch.iter().enumerate() {
            let key = &*call.keys[at];
            let step = call.step(at, stored.get(key));
            let Some(own) = stored.get_mut(key).filter(|_| takes_up(step)) else { continue };
            let (key, from) = (own.key.clone(), own.known.payee());
            let money = own.money(&key);
            own.known.promised = false;
            if step == Step::HandOver {
                own.known.payer = call.payer_ids.get(at).copied().flatten();
                let payer = call.payers.get(at).copied();
                changes.push_for(&key, Status::Reserved, Awaits::Payer, 0, 0, payer);
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
            changes.push_for(&key, Status::Credited, Awaits::Payer, transfer, took_ms, Some(""));
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
            let took_ms = one.old.as_ref().map_or(0, |old| order.time_ms.saturating_sub(old.created_ms));
            let transfer = if status == Status::Credited { one.transfer } else { 0 };
            // New ones were inserted as if they got it.
            if one.old.is_some() || status != goal.status() {
                let asked = call.payers.get(one.at).copied().unwrap_or("");
                let payer = decision::payer_of(status, asked, one.old.is_none());
                changes.push_for(call.key(one), status, goal.awaits(), transfer, took_ms, payer);
            }
            let money = money(call.key(one), order, call.budget_keys[one.at]);
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

    /// Ends reserved orders: one answer for each name, repeats as if they came one after another.
    pub(super) fn finish(
        &mut self,
        ends: &[(OrderId<'_>, Status)],
        time_ms: i64,
        credited: bool,
    ) -> Result<Vec<Finish>, LedgerError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let names = orders::candidates(self.session.shape(), ends.iter().map(|(id, _)| *id));
        let found = orders::read(self.session, self.budget_keys, &names, true)?;
        let name = |(_, activity, stored): orders::Found| {
            ((activity, crate::key::number_of(&stored.key).to_owned()), stored)
        };
        let mut stored: HashMap<(String, String), Stored> = found.into_iter().map(name).collect();
        let (mut changes, mut demand) = (Changes::default(), Demand::default());
        let mut done = Vec::with_capacity(ends.len());
        for (at, (id, goal)) in ends.iter().enumerate() {
            let Some(order) = stored.get_mut(&(id.activity.to_owned(), id.trade_no.to_owned())) else {
                done.push(Finish::Unknown);
                continue;
            };
            let finish = decision::finish(order.known.status, credited);
            done.push(finish);
            if finish != Finish::Done {
                continue;
            }
            order.known.status = *goal;
            let (money, to) = (order.money(&order.key), order.known.payee());
            let took_ms = time_ms.saturating_sub(order.created_ms);
            let number = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
            let entry =
                if credited { money.post(to, number, time_ms) } else { money.void(to, number, time_ms) };
            self.transfers.push(entry)?;
            let transfer = if credited { number } else { 0 };
            changes.push(&order.key, *goal, Awaits::Payer, transfer, took_ms);
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
    /// The keys that they have if they are new.
    keys: &'c [Cow<'a, str>],
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

    /// The key that an order is stored under.
    fn key<'k>(&'k self, one: &'k Asking) -> &'k str {
        one.old.as_ref().map_or(&self.keys[one.at], |old| &old.key)
    }
}

/// An order that asks for budget: it is new, or rejected and replayed.
#[derive(Debug)]
struct Asking {
    at: usize,
    transfer: i64,
    old: Option<Stored>,
}

fn money<'k>(key: &'k str, order: &Order<'_>, budget_key: BudgetKey) -> Money<'k> {
    let Order { user_id, amount, .. } = *order;
    Money { key, user_id, budget_key: budget_key.id, bonus_type: budget_key.bonus_type, amount }
}

impl Stored {
    fn money<'k>(&self, key: &'k str) -> Money<'k> {
        let Known { user_id, budget_key, amount, .. } = self.known;
        Money { key, user_id, budget_key, bonus_type: self.budget_key.bonus_type, amount }
    }
}

/// One answer for each order. `stored` has the present state of each; those at `own` were decided by this very call.
fn answers(call: &Call<'_, '_>, stored: &HashMap<String, Stored>, own: &[usize]) -> Vec<OrderOutcome> {
    let mut own = own.iter().peekable();
    let mut outcomes = Vec::with_capacity(call.batch.len());
    for (at, (order, budget_key)) in call.batch.iter().zip(call.budget_keys).enumerate() {
        let answer = stored
            .get(&*call.keys[at])
            .map_or(OrderOutcome::Conflict, |stored| stored.known.answer(order, budget_key.id));
        let first = own.next_if_eq(&&at).is_some();
        outcomes.push(match answer {
            OrderOutcome::AlreadyCredited if first => OrderOutcome::Credited,
            answer => answer,
        });
    }
    outcomes
}
