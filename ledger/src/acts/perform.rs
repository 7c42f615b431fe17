//! Proposes, approves and refuses acts, on any database.
//!
//! The act's row is locked first, and what it is about after it: an order, a withdrawal, budgets, accounts, as everywhere.
//! The end is inserted by the transaction that performs the act, so there is never one without the other; if its commit's
//! answer is lost, whoever asks again is told the end.

use super::decision::{self, Approval};
use super::model::{ActEnd, ActOutcome, Deed, Ended, Operator, Proposal, Proposed, StoredAct, Subject};
use super::steps::{Payment, Transfer, TransferOutcome};
use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::journal::{Account, Kind, SETTLEMENT};
use crate::key::{OrderId, WithdrawalId, act_reference};
use sha2::{Digest, Sha256};
use windfall_contract::accounts::Reason;

/// How often a proposal looks again after another transaction was faster.
const ATTEMPTS: u32 = 4;

/// The name of an act in words.
fn name(act: i64) -> String {
    format!("act {act}")
}

/// The key of what is asked for: the same deed, reason and evidence.
fn key(proposal: &Proposal) -> Result<String, LedgerError> {
    let deed = to_json(&proposal.deed)?;
    let mut hash = Sha256::new();
    for part in [&deed, &proposal.reason, &proposal.evidence] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn to_json(deed: &Deed) -> Result<String, LedgerError> {
    serde_json::to_string(deed).map_err(|error| LedgerError::Invalid(error.to_string()))
}

/// The deed of a stored act.
pub(crate) fn of_json(id: i64, text: &str) -> Result<Deed, LedgerError> {
    serde_json::from_str(text).map_err(|error| {
        LedgerError::Damaged(format!("act {id} is of a kind that this build does not know: {error}"))
    })
}

pub(crate) fn propose(tx: &mut dyn Transaction, proposal: &Proposal) -> Result<Proposed, LedgerError> {
    tx.make_act_tables()?;
    let proposal = &match resolved(tx, proposal)? {
        Ok(proposal) => proposal,
        Err(why) => return Ok(Proposed::NotPossible(why)),
    };
    decision::check(proposal)?;
    let key = key(proposal)?;
    for _ in 0..ATTEMPTS {
        let nth = match tx.newest_act(&key)? {
            Some((act, _)) if decision::is_repeat(&act, proposal.time_ms) => {
                return Ok(Proposed::Before(act));
            }
            Some((_, nth)) => nth + 1,
            None => 1,
        };
        if let Some(why) = impossible(tx, &proposal.deed)? {
            return Ok(Proposed::NotPossible(why));
        }
        if let Some(id) = tx.insert_act(&key, nth, proposal)? {
            return Ok(Proposed::Now(StoredAct { id, proposal: proposal.clone(), parent: 0, end: None }));
        }
    }
    Err(LedgerError::Contended("others propose the same act".into()))
}

/// The proposal with the activity of its order, or the user of its withdrawal, where it names none.
fn resolved(tx: &mut dyn Transaction, proposal: &Proposal) -> Result<Result<Proposal, String>, LedgerError> {
    let mut own = proposal.clone();
    match &mut own.deed {
        Deed::SettleOrder { activity, trade_no, .. }
        | Deed::Release { activity, trade_no }
        | Deed::Reverse { activity, trade_no, .. }
            if activity.is_empty() =>
        {
            let mut found = tx.orders_of_number(trade_no)?;
            match (found.pop(), found.is_empty()) {
                (Some(order), true) => *activity = order.activity,
                (None, _) => return Ok(Err("the ledger knows no such order".into())),
                (Some(last), false) => {
                    let all: Vec<String> =
                        found.into_iter().chain([last]).map(|order| order.activity).collect();
                    return Ok(Err(format!(
                        "several activities have such an order: {}; name one",
                        all.join(", ")
                    )));
                }
            }
        }
        Deed::SettleWithdrawal { user_id, withdrawal, .. } if *user_id == 0 => {
            let mut found = tx.withdrawals_of_id(withdrawal)?;
            match (found.pop(), found.is_empty()) {
                (Some(one), true) => *user_id = one.withdrawal.user_id,
                (None, _) => return Ok(Err("the ledger knows no such withdrawal".into())),
                (Some(last), false) => {
                    let all = found.iter().chain([&last]).map(|one| one.withdrawal.user_id.to_string());
                    let all: Vec<String> = all.collect();
                    return Ok(Err(format!(
                        "several users have such a withdrawal: {}; name one",
                        all.join(", ")
                    )));
                }
            }
        }
        _ => {}
    }
    Ok(Ok(own))
}

/// Why a deed could not be done as things are now. What is spent or given out may change, so that is not looked at.
fn impossible(tx: &mut dyn Transaction, deed: &Deed) -> Result<Option<String>, LedgerError> {
    Ok(match deed {
        Deed::SettleOrder { activity, trade_no, .. } | Deed::Release { activity, trade_no } => {
            decision::not_waiting(tx.lock_order(OrderId { activity, trade_no })?.as_ref())
        }
        Deed::SettleWithdrawal { user_id, withdrawal, .. } => {
            decision::not_held(tx.withdrawal(WithdrawalId { user_id: *user_id, id: withdrawal })?.as_ref())
        }
        Deed::Reverse { activity, trade_no, .. } => {
            let id = OrderId { activity, trade_no };
            match decision::not_credited(tx.lock_order(id)?.as_ref()) {
                None => reversed_before(tx, id)?,
                why => why,
            }
        }
        Deed::Adjust { .. } | Deed::Freeze { .. } | Deed::Thaw { .. } | Deed::Correct(_) => None,
    })
}

/// The act that reversed an order, in words.
fn reversed_before(
    tx: &mut dyn Transaction,
    OrderId { activity, trade_no }: OrderId<'_>,
) -> Result<Option<String>, LedgerError> {
    #[cfg(feature = "sabotage")]
    if crate::sabotage::reverses_twice() {
        return Ok(None);
    }
    let subject = Subject::Order { activity, trade_no }.to_string();
    let before = tx.done_acts(&subject, &["reverse"])?;
    Ok(before.first().map(|before| format!("the order was reversed before, by {}", name(before.id))))
}

pub(crate) fn approve(
    tx: &mut dyn Transaction,
    id: i64,
    by: &Operator,
    now_ms: i64,
) -> Result<Ended, LedgerError> {
    let Some(mut act) = tx.lock_act(id)? else { return Ok(Ended::Unknown) };
    match decision::approval(&act, &by.name, now_ms) {
        Approval::Before => return Ok(Ended::Before(act)),
        Approval::Expired => return Ok(Ended::Expired(act)),
        Approval::SameOperator => return Ok(Ended::SameOperator(act)),
        Approval::Perform => {}
    }
    let (outcome, detail, amount) = match perform(tx, &act, now_ms)? {
        Effect::Done { detail, amount } => (ActOutcome::Done, detail, amount),
        Effect::NotDone(why) => (ActOutcome::NotDone, why, 0),
    };
    let end = ActEnd { outcome, detail, amount, operator: by.clone(), time_ms: now_ms };
    tx.end_act(id, &end)?;
    act.end = Some(end);
    Ok(Ended::Now(act))
}

pub(crate) fn refuse(
    tx: &mut dyn Transaction,
    id: i64,
    by: &Operator,
    why: &str,
    now_ms: i64,
) -> Result<Ended, LedgerError> {
    let Some(mut act) = tx.lock_act(id)? else { return Ok(Ended::Unknown) };
    match decision::approval(&act, &by.name, now_ms) {
        Approval::Before => return Ok(Ended::Before(act)),
        Approval::Expired => return Ok(Ended::Expired(act)),
        Approval::SameOperator | Approval::Perform => {}
    }
    let (outcome, detail) = (ActOutcome::Refused, why.to_owned());
    let end = ActEnd { outcome, detail, amount: 0, operator: by.clone(), time_ms: now_ms };
    tx.end_act(id, &end)?;
    act.end = Some(end);
    Ok(Ended::Now(act))
}

/// The settlement by which an order or a withdrawal has ended as it stands: the time of its end is that of the decision. Another
/// one has been overtaken: its subject was decided again since.
pub(crate) fn settled_by(
    tx: &mut dyn Transaction,
    subject: Subject<'_>,
) -> Result<Option<(bool, i64)>, LedgerError> {
    let found = tx.done_acts(&subject.to_string(), &["settle_order", "release", "settle_withdrawal"])?;
    if found.is_empty() {
        return Ok(None);
    }
    let decided_ms = match subject {
        Subject::Order { activity, trade_no } => {
            tx.orders(&[OrderId { activity, trade_no }])?.pop().flatten().and_then(|order| order.decided_ms)
        }
        Subject::Withdrawal { user_id, id } => {
            tx.withdrawal(WithdrawalId { user_id, id })?.and_then(|found| found.decided_ms)
        }
        Subject::User(_) | Subject::Activity(_) => None,
    };
    // What performs an act decides its subject at the time of the act's end. Which of them ended last is not asked: they were
    // approved by several hosts, whose clocks differ.
    let ended_ms = |act: &StoredAct| act.end.as_ref().map(|end| end.time_ms);
    let own = found.into_iter().filter(|act| decided_ms.is_some() && ended_ms(act) == decided_ms);
    Ok(own.max_by_key(|act| act.id).and_then(|act| match act.proposal.deed {
        Deed::SettleOrder { paid, .. } | Deed::SettleWithdrawal { paid, .. } => Some((paid, act.id)),
        _ => None,
    }))
}

/// What performing an act came to.
pub(crate) enum Effect {
    Done { detail: String, amount: i64 },
    NotDone(String),
}

impl Effect {
    fn of(why_not: Option<String>, detail: impl Into<String>, amount: i64) -> Self {
        match why_not {
            None => Self::Done { detail: detail.into(), amount },
            Some(why) => Self::NotDone(why),
        }
    }
}

fn perform(tx: &mut dyn Transaction, act: &StoredAct, now_ms: i64) -> Result<Effect, LedgerError> {
    match &act.proposal.deed {
        Deed::SettleOrder { activity, trade_no, paid } => {
            end_order(tx, OrderId { activity, trade_no }, Some(*paid), now_ms)
        }
        Deed::Release { activity, trade_no } => end_order(tx, OrderId { activity, trade_no }, None, now_ms),
        Deed::SettleWithdrawal { user_id, withdrawal, paid } => {
            end_withdrawal(tx, act, WithdrawalId { user_id: *user_id, id: withdrawal }, *paid, now_ms)
        }
        Deed::Reverse { activity, trade_no, take_what_is_there, keep } => {
            reverse(tx, OrderId { activity, trade_no }, (*keep, *take_what_is_there), now_ms)
        }
        Deed::Correct(correction) => Ok(Effect::Done {
            detail: format!(
                "approved for {} orders and {} at most; nothing is taken before it is carried out",
                correction.max_orders, correction.max_taken
            ),
            amount: 0,
        }),
        Deed::Adjust { .. } => adjust(tx, act, now_ms),
        Deed::Freeze { user_id } => {
            let is_new = tx.set_frozen(*user_id, true, act.id, now_ms)?;
            let why_not = (!is_new).then(|| "the user is frozen already".into());
            Ok(Effect::of(why_not, "no withdrawal of this user is held any more", 0))
        }
        Deed::Thaw { user_id } => {
            let is_new = tx.set_frozen(*user_id, false, act.id, now_ms)?;
            let why_not = (!is_new).then(|| "the user is not frozen".into());
            Ok(Effect::of(why_not, "withdrawals of this user are held again", 0))
        }
    }
}

/// Ends an order that waits for its payer: it has paid, has not, or nobody knows (`None`).
fn end_order(
    tx: &mut dyn Transaction,
    id: OrderId<'_>,
    paid: Option<bool>,
    now_ms: i64,
) -> Result<Effect, LedgerError> {
    let found = tx.lock_order(id)?;
    if let Some(why) = decision::not_waiting(found.as_ref()) {
        return Ok(Effect::NotDone(why));
    }
    let Some((order, _)) = found else { return Ok(Effect::NotDone("there is no such order".into())) };
    let payer = &order.payer;
    let (finish, detail) = match paid {
        Some(true) => (tx.post(&[id], now_ms)?, format!("credited as paid by {payer}")),
        // Released, not refused by its payer: a replay asks that payer again, and no other one (I1).
        Some(false) => {
            let ended = tx.release(&[(id, Reason::Released)], now_ms)?;
            (ended, format!("given back to its budget; {payer} has not paid it"))
        }
        None => {
            let ended = tx.release(&[(id, Reason::Released)], now_ms)?;
            (ended, format!("released; nobody knows whether {payer} has paid it"))
        }
    };
    Ok(Effect::of(decision::not_done(finish.first()), detail, order.amount))
}

fn end_withdrawal(
    tx: &mut dyn Transaction,
    act: &StoredAct,
    id: WithdrawalId<'_>,
    paid: bool,
    now_ms: i64,
) -> Result<Effect, LedgerError> {
    // Its user never changes. Whether it is held is looked at again, under its lock, by the step that ends it.
    let found = tx.withdrawal(id)?;
    if let Some(why) = decision::not_held(found.as_ref()) {
        return Ok(Effect::NotDone(why));
    }
    let Some(found) = found else { return Ok(Effect::NotDone("there is no such withdrawal".into())) };
    let (finish, detail) = if paid {
        (tx.pay_out(&[id], now_ms)?, format!("ended as paid by {}", found.payer))
    } else {
        let why = format!("settled by {}", name(act.id));
        (tx.give_back(&[(id, &why)], now_ms)?, format!("given back; {} has not paid it", found.payer))
    };
    Ok(Effect::of(decision::not_done(finish.first()), detail, found.withdrawal.amount))
}

fn reverse(
    tx: &mut dyn Transaction,
    id: OrderId<'_>,
    (keep, take_what_is_there): (i64, bool),
    now_ms: i64,
) -> Result<Effect, LedgerError> {
    let found = tx.lock_order(id)?;
    if let Some(why) = decision::not_credited(found.as_ref()) {
        return Ok(Effect::NotDone(why));
    }
    // Under the order's lock: of two reversals the second one finds the first.
    if let Some(why) = reversed_before(tx, id)? {
        return Ok(Effect::NotDone(why));
    }
    let Some((order, _)) = found else { return Ok(Effect::NotDone("there is no such order".into())) };
    let Some(payment) = tx.payment(&order.key)? else {
        return Err(LedgerError::Damaged(format!(
            "order {} is credited, and its transfer is missing",
            order.key
        )));
    };
    if keep > 0 && payment.payee.kind == SETTLEMENT {
        return Ok(Effect::NotDone(
            "a payer has paid the order, so that it is taken back as a whole or not at all".into(),
        ));
    }
    if keep >= payment.amount {
        return Ok(Effect::NotDone(format!(
            "the order is of {}, which is no more than is kept",
            payment.amount
        )));
    }
    let transfer = payment.reversal(order.user_id, &order.key, (keep, take_what_is_there), now_ms);
    Ok(reversed(tx.move_money(&transfer)?, &payment, keep))
}

/// What a reversal of a payment came to.
pub(crate) fn reversed(outcome: TransferOutcome, payment: &Payment, keep: i64) -> Effect {
    let from = if payment.payee.kind == SETTLEMENT { "the payer's settlement" } else { "the user" };
    let kept = if keep == 0 { String::new() } else { format!("; {keep} of {} is kept", payment.amount) };
    let wanted = payment.amount - keep;
    match outcome {
        TransferOutcome::Done(amount) if amount < wanted => Effect::Done {
            detail: format!("{amount} of {wanted} taken back from {from}; the rest was spent{kept}"),
            amount,
        },
        other => moved(other, &format!("taken back from {from}{kept}")),
    }
}

fn adjust(tx: &mut dyn Transaction, act: &StoredAct, now_ms: i64) -> Result<Effect, LedgerError> {
    let Deed::Adjust { user_id, activity, scene, bonus_type, amount, to_user } = &act.proposal.deed else {
        return Err(LedgerError::Invalid("this act is no adjustment".into()));
    };
    let (other, bonus_type, budget) = if scene.is_empty() {
        let Some((activity, bonus_type)) = tx.name_numbers(activity, bonus_type)? else {
            return Ok(Effect::NotDone("the ledger knows no such activity or bonus type".into()));
        };
        (Account::funding(activity), bonus_type, None)
    } else {
        let own = tx.budget_numbers(activity, scene, bonus_type)?;
        (Account::budget(own.id), own.bonus_type, Some(own.id))
    };
    let user = Account::user(*user_id);
    let (debit, credit) = if *to_user { (other, user) } else { (user, other) };
    let transfer = Transfer {
        kind: Kind::Direct,
        user_id: *user_id,
        bonus_type,
        debit,
        credit,
        amount: *amount,
        take_what_is_there: false,
        budget,
        reference: &act_reference(act.id),
        time_ms: now_ms,
    };
    let done = if *to_user { "given to the user" } else { "taken from the user" };
    Ok(moved(tx.move_money(&transfer)?, done))
}

fn moved(moved: TransferOutcome, done: &str) -> Effect {
    match moved {
        TransferOutcome::Done(amount) => Effect::Done { detail: format!("{amount} {done}"), amount },
        TransferOutcome::Short(missing) => Effect::NotDone(format!("the user's balance lacks {missing}")),
        TransferOutcome::NoRoom(reason) => {
            Effect::NotDone(format!("the budget does not give it: {reason:?}"))
        }
        TransferOutcome::NotGiven => Effect::NotDone("the budget has given out less than that".into()),
    }
}
