//! Decides orders, given what is stored and what their budgets hold. Every step is a few statements over the whole
//! batch.

use super::budget_keys::BudgetKey;
use super::budgets::{self, Demand};
use super::orders::{self, Changes, Stored};
use super::state::PgTx;
use crate::budget::Take;
use crate::error::LedgerError;
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
            old => orders::read(self.session, old, attempt == Attempt::Replay)?,
        };
        if let Some(lost) = old.iter().find(|trade_no| !stored.contains_key(**trade_no)) {
            return Err(LedgerError::Damaged(format!("order {lost} was there, and has vanished")));
        }
        let kept = if stored.values().any(|order| goal.takes_up(order)) {
            self.take_up(batch, &budget_keys, &mut stored, payers, goal)?
        } else {
            Vec::new()
        };
        let mut asking: Vec<Asking> = Vec::with_capacity(firsts.len());
        for (at, transfer) in firsts.into_iter().zip(transfers) {
            match stored.get(batch[at].trade_no) {
                None => asking.push(Asking { at, transfer, budget_key: budget_keys[at], old: None }),
                Some(old) => match old.answer(&batch[at], budget_keys[at].id) {
                    OrderOutcome::Rejected(_) if attempt == Attempt::Replay => {
                        asking.push(Asking { at, transfer, budget_key: budget_keys[at], old: Some(*old) });
                    }
                    _ => {}
                },
            }
        }
        // In the caller's order, so that a short budget goes to the orders that came first.
        asking.sort_unstable_by_key(|one| one.at);
        let decided = self.grant(batch, payers, &asking, goal)?;
        for (one, status) in asking.iter().zip(&decided) {
            let order = &batch[one.at];
            let created_ms = one.old.map_or(order.time_ms, |old| old.created_ms);
            let (user_id, amount, budget_key) = (order.user_id, order.amount, one.budget_key);
            let (promised, has_payer) = (false, true);
            let new =
                Stored { user_id, amount, status: *status, promised, has_payer, created_ms, budget_key };
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
        batch: &[Order<'a>],
        budget_keys: &[BudgetKey],
        stored: &mut HashMap<&'a str, Stored>,
        payers: &[&'a str],
        goal: Goal,
    ) -> Result<Vec<usize>, LedgerError> {
        let mut names: Vec<&str> =
            stored.iter().filter(|(_, order)| goal.takes_up(order)).map(|(trade_no, _)| *trade_no).collect();
        names.sort_unstable();
        // No other transaction may do so at the same time: the rows are locked and read again.
        stored.extend(orders::read(self.session, &names, true)?);
        let (mut changes, mut demand, mut kept) = (Changes::default(), Demand::default(), Vec::new());
        for (at, (order, budget_key)) in batch.iter().zip(budget_keys).enumerate() {
            let Some(own) = stored.get_mut(order.trade_no).filter(|own| goal.takes_up(own)) else { continue };
            if own.answer(order, budget_key.id) != OrderOutcome::Reserved {
                continue;
            }
            own.promised = false;
            own.has_payer = true;
            if goal == Goal::Reserve {
                let payer = payers.get(at).copied();
                changes.push_for(order.trade_no, Status::Reserved, Awaits::Payer, 0, 0, payer);
                continue;
            }
            own.status = Status::Credited;
            let transfer = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
            let took_ms = order.time_ms.saturating_sub(own.created_ms);
            changes.push(order.trade_no, Status::Credited, Awaits::Payer, transfer, took_ms);
            self.transfers.push(
                transfer,
                order.trade_no,
                own.user_id,
                own.budget_key,
                own.amount,
                order.time_ms,
            )?;
            demand.push(at, own.budget_key, own.amount);
            kept.push(at);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.budget_keys, &demand, true)?;
        Ok(kept)
    }

    /// Takes the budget for the orders that ask for it, and stores the status of each.
    fn grant(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        asking: &[Asking],
        goal: Goal,
    ) -> Result<Vec<Status>, LedgerError> {
        let mut demand = Demand::default();
        let over_cap = |order: &Order<'_>| {
            self.order_caps.get(order.bonus_type).is_some_and(|largest| order.amount > *largest)
        };
        for one in asking.iter().filter(|one| !over_cap(&batch[one.at])) {
            demand.push(one.at, one.budget_key, batch[one.at].amount);
        }
        let taken = budgets::take(self.session, self.budget_keys, self.unbudgeted, demand, goal.take())?;
        let mut changes = Changes::default();
        let mut decided = Vec::with_capacity(asking.len());
        for one in asking {
            let order = &batch[one.at];
            let took_ms = one.old.map_or(0, |old| order.time_ms.saturating_sub(old.created_ms));
            let status = if over_cap(order) {
                Status::Rejected(Reason::OverOrderCap)
            } else {
                taken.refused(one.at).map_or(goal.status(), Status::Rejected)
            };
            let transfer = if status == Status::Credited { one.transfer } else { 0 };
            // New ones were inserted as if they got it.
            if one.old.is_some() || status != goal.status() {
                // The stored payer was asked, or is about to be. An order that gets no budget keeps its payer.
                let payer = match (status, one.old) {
                    (Status::Reserved, _) => payers.get(one.at).copied(),
                    (_, None) => Some(""),
                    (_, Some(_)) => None,
                };
                changes.push_for(order.trade_no, status, goal.awaits(), transfer, took_ms, payer);
            }
            if status == Status::Credited {
                let Order { trade_no, user_id, amount, time_ms, .. } = *order;
                self.transfers.push(transfer, trade_no, user_id, one.budget_key, amount, time_ms)?;
            }
            decided.push(status);
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
        let mut stored = orders::read(self.session, &names, true)?;
        let (mut changes, mut demand) = (Changes::default(), Demand::default());
        let mut done = Vec::with_capacity(ends.len());
        for (at, (trade_no, goal)) in ends.iter().enumerate() {
            let Some(order) = stored.get_mut(trade_no) else {
                done.push(Finish::Unknown);
                continue;
            };
            done.push(match (order.status, goal) {
                (Status::Reserved, _) => Finish::Done,
                (Status::Credited, Status::Credited) | (Status::Rejected(_), Status::Rejected(_)) => {
                    Finish::Before
                }
                _ => Finish::Otherwise,
            });
            if order.status != Status::Reserved {
                continue;
            }
            order.status = *goal;
            let took_ms = time_ms.saturating_sub(order.created_ms);
            let mut transfer = 0;
            if credited {
                transfer = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
                self.transfers.push(
                    transfer,
                    trade_no,
                    order.user_id,
                    order.budget_key,
                    order.amount,
                    time_ms,
                )?;
            }
            changes.push(trade_no, *goal, Awaits::Payer, transfer, took_ms);
            demand.push(at, order.budget_key, order.amount);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.budget_keys, &demand, credited)?;
        Ok(done)
    }
}

/// What is done with new orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Credit,
    /// They are reserved for a downstream.
    Reserve,
    /// They are reserved for their event.
    Promise,
}

impl Goal {
    const fn take(self) -> Take {
        match self {
            Self::Credit => Take::Used,
            Self::Reserve | Self::Promise => Take::Reserved,
        }
    }

    const fn status(self) -> Status {
        match self {
            Self::Credit => Status::Credited,
            Self::Reserve | Self::Promise => Status::Reserved,
        }
    }

    /// Whether an order with this stored state is taken up.
    fn takes_up(self, order: &Stored) -> bool {
        match self {
            Self::Credit => order.promised,
            Self::Reserve => order.promised || (order.status == Status::Reserved && !order.has_payer),
            Self::Promise => false,
        }
    }

    const fn awaits(self) -> Awaits {
        match self {
            Self::Promise => Awaits::Event,
            Self::Credit | Self::Reserve => Awaits::Payer,
        }
    }
}

/// An order that asks for budget: it is new, or rejected and replayed.
#[derive(Debug)]
struct Asking {
    at: usize,
    transfer: i64,
    budget_key: BudgetKey,
    old: Option<Stored>,
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
            .map_or(OrderOutcome::Conflict, |stored| stored.answer(order, budget_key.id));
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
