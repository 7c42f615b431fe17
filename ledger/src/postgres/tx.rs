//! One transaction, step by step. Every step is a few statements over the whole batch.

use super::budgets::{self, Demand};
use super::moves::Moves;
use super::orders::{self, Changes, Stored};
use super::programs::{self, Program, Programs, cell};
use super::session::Session;
use super::{archive, read};
use crate::archive::{ArchiveEntry, Replay};
use crate::budget::Take;
use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::model::{
    Attempt, Awaits, BudgetRaised, BudgetSet, Finish, Order, OrderOutcome, Reason, Status, StoredOrder,
    Unbudgeted,
};
use crate::withdrawal::{End, HoldOutcome, Withdrawal};
use std::collections::{BTreeSet, HashMap};

/// Numbers of transfers that a connection draws at once.
const BLOCK: i64 = 4_096;
const DRAW: &str = "SELECT nextval('transfer_blocks')";
const DRAW_MORE: &str = "SELECT nextval('transfer_blocks') FROM generate_series(1, $1::bigint)";

/// Numbers for transfers. A number is used at most once, whatever became of its transaction: after a commit
/// whose answer was lost, nobody knows which ones are stored.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: i64,
    end: i64,
}

impl Numbers {
    fn refill(&mut self, block: i64) {
        (self.next, self.end) = (block * BLOCK, (block + 1) * BLOCK);
    }

    fn left(&self) -> i64 {
        self.end - self.next
    }

    pub(super) fn take(&mut self, session: &Session, count: usize) -> Result<Vec<i64>, LedgerError> {
        let mut numbers = Vec::with_capacity(count);
        let want = i64::try_from(count).unwrap_or(i64::MAX);
        let mut blocks = Vec::new();
        if want > self.left() {
            let more = (want - self.left() - 1) / BLOCK + 1;
            for row in &session.query(DRAW_MORE, &[&more])? {
                blocks.push(cell::<i64>(row, 0)?);
            }
        }
        let mut blocks = blocks.into_iter();
        while numbers.len() < count {
            if self.left() == 0 {
                let block = blocks.next().ok_or_else(|| LedgerError::Sql("a sequence has ended".into()))?;
                self.refill(block);
            }
            numbers.push(self.next);
            self.next += 1;
        }
        Ok(numbers)
    }
}

/// A transaction at READ COMMITTED.
#[derive(Debug)]
pub(crate) struct PgTx<'l> {
    pub(super) session: &'l Session,
    programs: &'l mut Programs,
    pub(super) numbers: &'l mut Numbers,
    unbudgeted: Unbudgeted,
    pub(super) moves: Moves,
    committed: bool,
}

/// Begins a transaction.
pub(crate) fn begin(session: &Session, numbers: &mut Numbers) -> Result<(), LedgerError> {
    if numbers.left() >= BLOCK / 4 {
        return session.batch("BEGIN");
    }
    // Not worth a round trip of its own: it goes with the first one. What is left of the old block is wasted.
    let rows = session.begin(DRAW)?;
    numbers.refill(rows.first().map_or(Ok(0), |row| cell(row, 0))?);
    Ok(())
}

impl<'l> PgTx<'l> {
    /// Of a transaction that has begun.
    pub fn new(
        session: &'l Session,
        programs: &'l mut Programs,
        numbers: &'l mut Numbers,
        unbudgeted: Unbudgeted,
    ) -> Self {
        Self { session, programs, numbers, unbudgeted, moves: Moves::default(), committed: false }
    }

    /// Credits or reserves a batch; `payers`, one an order, where it is reserved for downstreams.
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
        let programs = self.programs.of_orders(self.session, batch)?;
        let firsts = crate::model::first_of_each(batch);
        let transfers = match goal.take() {
            Take::Used => self.numbers.take(self.session, firsts.len())?,
            Take::Reserved => vec![0; firsts.len()],
        };
        let as_if = (goal.status(), goal.awaits());
        let new = orders::insert(self.session, batch, &programs, &firsts, &transfers, as_if, payers)?;
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
            self.take_up(batch, &programs, &mut stored, payers, goal)?
        } else {
            Vec::new()
        };
        let mut asking: Vec<Asking> = Vec::with_capacity(firsts.len());
        for (at, transfer) in firsts.into_iter().zip(transfers) {
            match stored.get(batch[at].trade_no) {
                None => asking.push(Asking { at, transfer, program: programs[at], old: None }),
                Some(old) => match old.answer(&batch[at], programs[at].asset) {
                    // The activity and scene that it was first seen in pay for it.
                    OrderOutcome::Rejected(_) if attempt == Attempt::Replay => {
                        asking.push(Asking { at, transfer, program: old.program, old: Some(*old) });
                    }
                    _ => {}
                },
            }
        }
        // In the caller's order, so that a short budget goes to those who came first.
        asking.sort_unstable_by_key(|one| one.at);
        let decided = self.grant(batch, payers, &asking, goal)?;
        for (one, status) in asking.iter().zip(&decided) {
            let order = &batch[one.at];
            let created_ms = one.old.map_or(order.time_ms, |old| old.created_ms);
            let (user_id, amount, program) = (order.user_id, order.amount, one.program);
            let (promised, has_payer) = (false, true);
            let new = Stored { user_id, amount, status: *status, promised, has_payer, created_ms, program };
            stored.insert(order.trade_no, new);
        }
        let mut own: Vec<usize> = asking.iter().map(|one| one.at).chain(kept).collect();
        own.sort_unstable();
        Ok(answers(batch, &programs, &stored, &own))
    }

    /// Orders whose event was awaited. It has come: they are credited from what is held for them (I1, I4); or their
    /// type is a downstream's by now, which from now on may have paid. And orders that version 1 reserved for a
    /// downstream it did not note: from now on no other is asked (I1). Answers which were credited.
    fn take_up<'a>(
        &mut self,
        batch: &[Order<'a>],
        programs: &[Program],
        stored: &mut HashMap<&'a str, Stored>,
        payers: &[&'a str],
        goal: Goal,
    ) -> Result<Vec<usize>, LedgerError> {
        let mut names: Vec<&str> =
            stored.iter().filter(|(_, order)| goal.takes_up(order)).map(|(trade_no, _)| *trade_no).collect();
        names.sort_unstable();
        // Nobody else may do so at the same time: locked, and read again.
        stored.extend(orders::read(self.session, &names, true)?);
        let (mut changes, mut demand, mut kept) = (Changes::default(), Demand::default(), Vec::new());
        for (at, (order, program)) in batch.iter().zip(programs).enumerate() {
            let Some(own) = stored.get_mut(order.trade_no).filter(|own| goal.takes_up(own)) else { continue };
            if own.answer(order, program.asset) != OrderOutcome::Reserved {
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
            self.moves.push(transfer, order.trade_no, own.user_id, own.program, own.amount, order.time_ms)?;
            demand.push(at, own.program, own.amount);
            kept.push(at);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.programs, &demand, true)?;
        Ok(kept)
    }

    /// Takes the budget of those who ask, and stores what became of them: a status each.
    fn grant(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        asking: &[Asking],
        goal: Goal,
    ) -> Result<Vec<Status>, LedgerError> {
        let mut demand = Demand::default();
        for one in asking {
            demand.push(one.at, one.program, batch[one.at].amount);
        }
        let taken = budgets::take(self.session, self.programs, self.unbudgeted, demand, goal.take())?;
        let mut changes = Changes::default();
        let mut decided = Vec::with_capacity(asking.len());
        for one in asking {
            let order = &batch[one.at];
            let took_ms = one.old.map_or(0, |old| order.time_ms.saturating_sub(old.created_ms));
            let status = if taken.contains(&one.at) {
                goal.status()
            } else {
                Status::Rejected(Reason::BudgetExhausted)
            };
            let transfer = if status == Status::Credited { one.transfer } else { 0 };
            // New ones were inserted as if they got it.
            if one.old.is_some() || status != goal.status() {
                // Who stands there was asked, or is about to be. One that gets nothing keeps whom it had.
                let payer = match (status, one.old) {
                    (Status::Reserved, _) => payers.get(one.at).copied(),
                    (_, None) => Some(""),
                    (_, Some(_)) => None,
                };
                changes.push_for(order.trade_no, status, goal.awaits(), transfer, took_ms, payer);
            }
            if status == Status::Credited {
                let Order { trade_no, user_id, amount, time_ms, .. } = *order;
                self.moves.push(transfer, trade_no, user_id, one.program, amount, time_ms)?;
            }
            decided.push(status);
        }
        changes.write(self.session)?;
        Ok(decided)
    }

    /// Ends reserved orders: one answer a number, repeats as if they came one after another.
    fn finish(
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
                self.moves.push(transfer, trade_no, order.user_id, order.program, order.amount, time_ms)?;
            }
            changes.push(trade_no, *goal, Awaits::Payer, transfer, took_ms);
            demand.push(at, order.program, order.amount);
        }
        changes.write(self.session)?;
        budgets::settle(self.session, self.programs, &demand, credited)?;
        Ok(done)
    }
}

/// What is asked for orders that are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Credit,
    /// For a downstream.
    Reserve,
    /// For their event.
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

    /// Whether an order that is stored like this becomes another's.
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
    program: Program,
    old: Option<Stored>,
}

/// One answer an order. `stored` says where each number stands now; those at `own` were decided by this very call.
fn answers(
    batch: &[Order<'_>],
    programs: &[Program],
    stored: &HashMap<&str, Stored>,
    own: &[usize],
) -> Vec<OrderOutcome> {
    let mut own = own.iter().peekable();
    let mut outcomes = Vec::with_capacity(batch.len());
    for (at, (order, program)) in batch.iter().zip(programs).enumerate() {
        let answer = stored
            .get(order.trade_no)
            .map_or(OrderOutcome::Conflict, |stored| stored.answer(order, program.asset));
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

impl Transaction for PgTx<'_> {
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

    fn orders(&mut self, trade_nos: &[&str]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        read::orders(self.session, trade_nos)
    }

    fn post(&mut self, trade_nos: &[&str], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = trade_nos.iter().map(|trade_no| (*trade_no, Status::Credited)).collect();
        self.finish(&ends, time_ms, true)
    }

    fn release(&mut self, refused: &[(&str, Reason)], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> =
            refused.iter().map(|(trade_no, reason)| (*trade_no, Status::Rejected(*reason))).collect();
        self.finish(&ends, time_ms, false)
    }

    fn hold(&mut self, batch: &[Withdrawal<'_>]) -> Result<Vec<HoldOutcome>, LedgerError> {
        self.hold_all(batch)
    }

    fn pay_out(&mut self, ids: &[&str], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = ids.iter().map(|id| (*id, End::Paid)).collect();
        self.end_all(&ends, time_ms)
    }

    fn give_back(&mut self, refused: &[(&str, &str)], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        let ends: Vec<_> = refused.iter().map(|(id, why)| (*id, End::Refused(why))).collect();
        self.end_all(&ends, time_ms)
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

    fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        budgets.iter().try_for_each(BudgetSet::check)?;
        let combined: BTreeSet<&str> =
            budgets.iter().filter(|one| one.is_combined()).map(|one| one.activity).collect();
        programs::hold_alone(self.session, &combined.into_iter().collect::<Vec<_>>())?;
        let mut own = Vec::with_capacity(budgets.len());
        for (at, budget) in budgets.iter().enumerate() {
            let activity = budget.activity;
            let (scene, bonus_type) = budget.stored();
            let order =
                Order { trade_no: "", user_id: 0, activity, scene, bonus_type, amount: 0, time_ms: 0 };
            let program = self.programs.of_orders(self.session, &[order])?;
            own.extend(program.first().map(|program| (budget.is_combined(), program.id, at)));
        }
        // Locked in the order of their numbers, combined ones last, as everywhere; of two for one program the later
        // one holds.
        own.sort_unstable();
        let mut raised = Vec::new();
        for (_, program, at) in own {
            let one = budgets::set(self.session, self.programs, program, &budgets[at])?;
            raised.extend(one.map(|one| (at, one)));
        }
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

    fn commit(mut self: Box<Self>) -> Result<(), LedgerError> {
        std::mem::take(&mut self.moves).commit(self.session)?;
        self.committed = true;
        Ok(())
    }
}

impl PgTx<'_> {
    fn each(
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
}

impl Drop for PgTx<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Names and programs that this transaction made are gone with it.
        self.programs.clear();
        if !self.session.is_broken()
            && let Err(error) = self.session.batch("ROLLBACK")
        {
            self.session.give_up();
            tracing::warn!(%error, "a transaction could not be rolled back; its connection is closed");
        }
    }
}
