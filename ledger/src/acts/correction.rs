//! Corrections: what a campaign gave wrongly is taken back from everybody who got it. Two operators agree on a selection of
//! orders and on how much it may take in all; it is then carried out page by page, each page in a transaction of its own.
//!
//! Every order that a correction decides has an act of its own, a part of the correction, which is inserted and ended by the
//! transaction that moves the money. So an order is taken back once, however often a page is asked for, by whoever, and
//! whatever else reads acts knows of it: the statement of a user, `reconcile`, the auditor.

use super::model::{ActOutcome, Deed, Operator, StoredAct, Subject};
use super::perform::{self, Effect};
use super::selection::{Correction, Totals};
use super::steps::{Part, Payment, Transfer};
use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::journal::SETTLEMENT;
use crate::key::number_of;

/// The orders of one call. Their budgets are locked meanwhile, and grants of the same scene wait.
const PAGE: usize = 1_000;

/// What carrying out a page came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CarriedOut {
    /// The orders that it took from.
    pub orders: i64,
    /// How much it took.
    pub taken: i64,
    /// The orders that it did not take as a whole, or not at all.
    pub short_orders: i64,
    /// How much of them it did not take.
    pub short_amount: i64,
    /// From where the next page goes on; `None`: this was the last of this pass. A pass that decides nothing ends the correction.
    pub next: Option<String>,
    /// What the whole correction has come to so far.
    pub all: Totals,
}

/// The answer to who asks to carry a correction out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarryOut {
    /// A page was carried out.
    Page(CarriedOut),
    /// It is not approved.
    NotApproved(StoredAct),
    /// The time until which it could be approved is over, and so is the time to carry it out.
    Expired(StoredAct),
    /// Somebody else carries it out at this moment. Nothing was done.
    Busy,
    /// The act is no correction.
    NoCorrection(StoredAct),
    /// The page would take from more orders, or more, than was approved, so nothing of it was taken.
    TooMuch {
        /// The number of orders that it has taken from so far.
        orders: i64,
        /// How much it has taken so far.
        taken: i64,
    },
    /// There is no such act.
    Unknown,
}

pub(crate) fn carry_out(
    tx: &mut dyn Transaction,
    id: i64,
    after: &str,
    by: &Operator,
    now_ms: i64,
) -> Result<CarryOut, LedgerError> {
    // Under the act's lock, which is not waited for: who waits holds up a connection that grants are to have.
    if !tx.try_lock_act(id)? {
        return Ok(CarryOut::Busy);
    }
    let Some(act) = tx.lock_act(id)? else { return Ok(CarryOut::Unknown) };
    let Deed::Correct(correction) = &act.proposal.deed else { return Ok(CarryOut::NoCorrection(act)) };
    let Some(approved) = act.end.as_ref().filter(|end| end.outcome == ActOutcome::Done) else {
        return Ok(CarryOut::NotApproved(act));
    };
    if now_ms >= act.proposal.expires_ms {
        return Ok(CarryOut::Expired(act));
    }
    // What was credited behind the proposal nobody has counted.
    let (keys, next) = tx.select_orders(&correction.selection, act.proposal.time_ms, after, PAGE)?;
    let undecided = undecided(tx, id, correction, &keys)?;
    let mut page = CarriedOut { next, all: tx.totals(id)?, ..CarriedOut::default() };
    if undecided.is_empty() {
        return Ok(CarryOut::Page(page));
    }
    let Totals { orders, taken, .. } = page.all;
    let wanted = undecided.iter().map(|(.., payment)| payment.amount - correction.keep);
    let wanted = wanted.fold(taken, i64::saturating_add);
    let count = orders.saturating_add(i64::try_from(undecided.len()).unwrap_or(i64::MAX));
    if count > correction.max_orders || wanted > correction.max_taken {
        return Ok(CarryOut::TooMuch { orders, taken });
    }
    let how = (correction.keep, correction.take_what_is_there);
    let transfers =
        undecided.iter().map(|(key, user_id, payment)| payment.reversal(*user_id, key, how, now_ms));
    let transfers: Vec<Transfer<'_>> = transfers.collect();
    let moved = tx.take_back(&transfers)?;
    let mut parts = Vec::with_capacity(undecided.len());
    for ((key, _, payment), moved) in undecided.iter().zip(moved) {
        let (outcome, detail, amount) = perform::reversed(moved, payment, correction.keep).parts();
        page.count(amount, payment.amount - correction.keep);
        parts.push(correction.part(id, key, outcome, detail, amount));
    }
    tx.insert_parts(&act, approved, &parts, now_ms)?;
    page.all.pages += 1;
    tx.insert_page(id, &page.all, by, now_ms)?;
    Ok(CarryOut::Page(page))
}

/// Those of these orders that nobody has taken back and that this correction has not decided, with whom they were paid to.
/// Behind their locks: who takes one back meanwhile has done so, or waits until this transaction ends.
fn undecided(
    tx: &mut dyn Transaction,
    id: i64,
    Correction { selection, keep, .. }: &Correction,
    keys: &[String],
) -> Result<Vec<(String, i64, Payment)>, LedgerError> {
    tx.lock_orders(keys)?;
    let subjects: Vec<String> = keys.iter().map(|key| subject(&selection.activity, key)).collect();
    let decided = tx.decided_parts(id, &subjects)?;
    let left = keys.iter().zip(&subjects).filter(|(_, subject)| !decided.contains(*subject));
    let left: Vec<String> = left.map(|(key, _)| key.clone()).collect();
    let paid = tx.payments(&left)?;
    // One without a payment, or with one that is not its amount, is damaged, which the auditor says: a correction mends no ledger.
    let found =
        left.into_iter().zip(paid).filter_map(|(key, paid)| paid.map(|(user, payment)| (key, user, payment)));
    let is_whole = |payment: &Payment| *keep == 0 || payment.payee.kind != SETTLEMENT;
    Ok(found.filter(|(.., payment)| payment.amount > *keep && is_whole(payment)).collect())
}

fn subject(activity: &str, key: &str) -> String {
    Subject::Order { activity, trade_no: number_of(key) }.to_string()
}

impl Correction {
    fn part(&self, id: i64, key: &str, outcome: ActOutcome, detail: String, amount: i64) -> Part {
        let activity = &self.selection.activity;
        let deed = Deed::Reverse {
            activity: activity.clone(),
            trade_no: number_of(key).to_owned(),
            take_what_is_there: self.take_what_is_there,
            keep: self.keep,
        };
        Part { key: format!("{id} {key}"), deed, subject: subject(activity, key), outcome, detail, amount }
    }
}

impl CarriedOut {
    fn count(&mut self, taken: i64, wanted: i64) {
        let (has_taken, is_short, missing) =
            (i64::from(taken > 0), i64::from(taken < wanted), wanted - taken);
        self.orders += has_taken;
        self.taken = self.taken.saturating_add(taken);
        self.short_orders += is_short;
        self.short_amount = self.short_amount.saturating_add(missing);
        self.all.orders += has_taken;
        self.all.taken = self.all.taken.saturating_add(taken);
        self.all.short_orders += is_short;
        self.all.short_amount = self.all.short_amount.saturating_add(missing);
    }
}

impl Effect {
    fn parts(self) -> (ActOutcome, String, i64) {
        match self {
            Self::Done { detail, amount } => (ActOutcome::Done, detail, amount),
            Self::NotDone(why) => (ActOutcome::NotDone, why, 0),
        }
    }
}
