//! Corrections: what a campaign gave wrongly is taken back from everybody who got it. Two operators agree on a selection of
//! orders and on how much it may take in all; it is then carried out page by page, each page in a transaction of its own.
//!
//! Every order that a correction decides has an act of its own, a part of the correction, which is inserted and ended by the
//! transaction that moves the money. So an order is taken back once, however often a page is asked for, by whoever, and
//! whatever else reads acts knows of it: the statement of a user, `reconcile`, the auditor.

use super::perform::{self, Effect};
use super::steps::{Payment, Transfer};
use super::{ActOutcome, Deed, Operator, StoredAct, Subject};
use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::journal::SETTLEMENT;
use crate::key::number_of;
use serde::{Deserialize, Serialize};
use windfall_proto::order::AMOUNT_MAX;

/// The orders of one call. Their budgets are locked meanwhile, and grants of the same scene wait.
const PAGE: usize = 1_000;

/// Which credited orders: those of an activity and a bonus type that the ledger took in a span of time, of these amounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The campaign.
    pub activity: String,
    /// The scene; empty: every scene of the activity.
    pub scene: String,
    /// The bonus type.
    pub bonus_type: String,
    /// When the ledger took the first of them; Unix milliseconds.
    pub from_ms: i64,
    /// Before when it took the last of them. It lies in the past when a correction is proposed.
    pub to_ms: i64,
    /// The smallest amount, at least 1.
    pub min_amount: i64,
    /// The largest amount.
    pub max_amount: i64,
}

/// What is taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// From which orders.
    pub selection: Selection,
    /// How much of each order its user keeps: what would have been right. Above 0, orders that a payer paid are left alone: a
    /// payer's settlement is taken back as a whole or not at all.
    pub keep: i64,
    /// Whether less is taken where the user has less. Otherwise nothing is taken then.
    pub take_what_is_there: bool,
    /// The number of orders that it may take from at most.
    pub max_orders: i64,
    /// How much it may take at most, in all.
    pub max_taken: i64,
}

impl Selection {
    /// Why it selects nothing that could be; `None`: it may.
    pub(crate) fn wrong(&self, keep: i64) -> Option<String> {
        let Self { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = self;
        if activity.is_empty() || bonus_type.is_empty() {
            return Some("a correction names an activity and a bonus type".into());
        }
        if [activity, scene, bonus_type].iter().any(|text| text.contains('\0')) {
            return Some("names are without NUL".into());
        }
        if from_ms >= to_ms {
            return Some("the time ends before it begins".into());
        }
        if *min_amount < 1 || min_amount > max_amount || *max_amount > AMOUNT_MAX {
            return Some(format!("amounts are 1 to {AMOUNT_MAX}, the smallest one first"));
        }
        if keep < 0 || keep >= *min_amount {
            return Some(format!(
                "of each order {keep} would be kept, which must be at least 0 and less than the smallest amount, {min_amount}"
            ));
        }
        None
    }
}

impl Correction {
    pub(crate) fn wrong(&self, now_ms: i64) -> Option<String> {
        if let Some(why) = self.selection.wrong(self.keep) {
            return Some(why);
        }
        if self.selection.to_ms > now_ms {
            return Some("the time of the orders must have ended: otherwise others would join them".into());
        }
        (self.max_orders < 1 || self.max_taken < 1).then(|| {
            "a correction says how many orders and how much it takes at most, each at least 1".into()
        })
    }
}

/// What a part of the ledger has of a selection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// The credited orders that a correction would take back.
    pub orders: i64,
    /// What it would take from them where everybody has it.
    pub amount: i64,
    /// The credited orders that a payer paid. They are among the others, and are taken from the payer's settlement; where a part of
    /// each order is kept, they are not, and are left alone.
    pub orders_of_payers: i64,
    /// The orders that a correction would take back and whose user has less than that, by the balance as it is now, each for itself.
    pub short_orders: i64,
    /// How much these users lack.
    pub short_amount: i64,
    /// The credited orders that were taken back before.
    pub orders_taken_back: i64,
    /// The orders that are reserved: they may be credited yet, and are not taken back until then.
    pub orders_reserved: i64,
    /// From where the next part goes on; `None`: there is none.
    pub next: Option<String>,
}

impl Survey {
    /// Adds what another part has.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a file is surveyed row by row"))]
    pub(crate) fn add(&mut self, other: &Self) {
        self.orders += other.orders;
        self.amount = self.amount.saturating_add(other.amount);
        self.orders_of_payers += other.orders_of_payers;
        self.short_orders += other.short_orders;
        self.short_amount = self.short_amount.saturating_add(other.short_amount);
        self.orders_taken_back += other.orders_taken_back;
        self.orders_reserved += other.orders_reserved;
    }
}

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

/// What a correction has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The pages that decided anything.
    pub pages: i64,
    /// The orders that it took from.
    pub orders: i64,
    /// How much it took.
    pub taken: i64,
    /// The orders that it did not take as a whole, or not at all.
    pub short_orders: i64,
    /// How much of them it did not take.
    pub short_amount: i64,
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

/// Why an order was or was not taken back: a part of a correction.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its key among those of all acts: the correction's number and the order's key. Other keys have no space.
    pub key: String,
    pub deed: Deed,
    pub subject: String,
    pub outcome: ActOutcome,
    pub detail: String,
    pub amount: i64,
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
