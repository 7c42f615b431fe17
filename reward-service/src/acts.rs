//! Acts of two operators on a running service: one proposes, another approves, and the ledger performs the act once. What an
//! act gives up goes to the archive in the same transaction. Late answers of payers that contradict a settlement are noted in
//! the archive by the writer (`decide.rs`).
//!
//! Nothing is proposed or approved while the ledger does not hold its mark: what it says may be what was, not what is.

use crate::async_grant::archive_released;
use crate::handle::{CallError, RewardHandle};
use crate::mark_check::check_mark;
use std::sync::Arc;
use windfall_contract::accounts::StoredOrder;
use windfall_ledger::{
    ActFilter, ActOutcome, CarriedOut, CarryOut, Correction, Deed, Ended, LedgerError, LedgerReader,
    Operator, OrderId, Proposal, Proposed, Selection, StoredAct, StoredWithdrawal, Subject, Tx, WithdrawalId,
    WithdrawalStatus,
};

/// An act was not proposed, approved or refused.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// It could not be done as things are now.
    #[error("this cannot be done: {0}")]
    NotPossible(String),
    /// There is none of this number.
    #[error("there is no act {0}")]
    Unknown(i64),
    /// Nobody approved it in time.
    #[error("act {0} has expired")]
    Expired(i64),
    /// Somebody carries it out at this moment. Nothing was done: ask again.
    #[error("somebody else carries act {0} out at this moment; ask again")]
    Busy(i64),
    /// It is no correction, or not approved, and so cannot be carried out.
    #[error("act {0} cannot be carried out: {1}")]
    NotToCarryOut(i64, &'static str),
    /// A page of a correction would take from more orders, or more, than was approved. Nothing of it was taken.
    #[error(
        "correction {id} has taken {taken} from {orders} orders, and the next page would go beyond what was approved; nothing of \
         that page was taken: survey the orders again, and propose a correction of what is left"
    )]
    TooMuch {
        /// The number of the correction's act.
        id: i64,
        /// From how many orders it has taken.
        orders: i64,
        /// How much it has taken.
        taken: i64,
    },
    /// Who proposed it asks to approve it.
    #[error("act {0} has to be approved by another operator than the one who proposed it")]
    SameOperator(i64),
    /// The ledger could not be asked, or nobody knows what it did: ask again.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// An act, and whether an earlier call did what this one asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActAnswer {
    /// The act as it stands.
    pub act: StoredAct,
    /// Proposed before; or ended before, as its end says.
    pub is_repeat: bool,
}

impl RewardHandle {
    /// Proposes an act, which another operator has `valid_ms` to approve.
    ///
    /// # Errors
    /// [`ActError`].
    pub async fn propose_act(
        &self,
        deed: Deed,
        because: (String, String),
        operator: Operator,
        valid_ms: i64,
    ) -> Result<ActAnswer, ActError> {
        let time_ms = self.inner.clock.wall_ms();
        let (reason, evidence) = because;
        let expires_ms = time_ms.saturating_add(valid_ms);
        let proposal = Proposal { deed, reason, evidence, operator, time_ms, expires_ms };
        let guard = self.inner.guard.clone();
        let proposed = self
            .call(move |ledger| {
                ledger.transact(|tx| {
                    check_mark(tx, guard.as_deref())?;
                    tx.propose_act(&proposal)
                })
            })
            .await?;
        match proposed {
            Proposed::Now(act) => {
                tracing::warn!(id = act.id, act = %act.proposal.deed.subject(), by = act.proposal.operator.name, "an act was proposed");
                Ok(ActAnswer { act, is_repeat: false })
            }
            Proposed::Before(act) => Ok(ActAnswer { act, is_repeat: true }),
            Proposed::NotPossible(why) => Err(ActError::NotPossible(why)),
        }
    }

    /// Approves an act on behalf of an operator, and performs it, once.
    ///
    /// # Errors
    /// [`ActError`].
    pub async fn approve_act(&self, id: i64, by: Operator) -> Result<ActAnswer, ActError> {
        let (guard, now_ms) = (self.inner.guard.clone(), self.inner.clock.wall_ms());
        let ended = self
            .call(move |ledger| {
                ledger.transact(|tx| {
                    check_mark(tx, guard.as_deref())?;
                    let ended = tx.approve_act(id, &by, now_ms)?;
                    if let Ended::Now(act) = &ended {
                        archive_what_was_given_up(tx, act, now_ms)?;
                    }
                    Ok(ended)
                })
            })
            .await?;
        answer(id, ended)
    }

    /// Refuses an act on behalf of an operator.
    ///
    /// # Errors
    /// [`ActError`].
    pub async fn refuse_act(&self, id: i64, by: Operator, why: String) -> Result<ActAnswer, ActError> {
        let (guard, now_ms) = (self.inner.guard.clone(), self.inner.clock.wall_ms());
        let ended = self
            .call(move |ledger| {
                ledger.transact(|tx| {
                    check_mark(tx, guard.as_deref())?;
                    tx.refuse_act(id, &by, &why, now_ms)
                })
            })
            .await?;
        answer(id, ended)
    }

    /// What a part of the ledger has of a selection of orders of which this much would be kept.
    ///
    /// # Errors
    /// [`CallError`].
    #[cfg(feature = "rpc")]
    pub async fn survey(
        &self,
        which: Selection,
        keep: i64,
        after: String,
    ) -> Result<windfall_ledger::Survey, CallError> {
        self.walk(move |reader| reader.survey(&which, keep, &after)).await
    }

    /// Carries a page of an approved correction out on behalf of an operator.
    ///
    /// # Errors
    /// [`ActError`].
    pub async fn carry_out_act(&self, id: i64, after: String, by: Operator) -> Result<CarriedOut, ActError> {
        let (guard, now_ms) = (self.inner.guard.clone(), self.inner.clock.wall_ms());
        // One at a time, so that grants always find a writer.
        let turn = Arc::clone(&self.inner.carry).try_acquire_owned().map_err(|_| ActError::Busy(id))?;
        let own = by.clone();
        let done = self
            .call(move |ledger| {
                // It ends with the page, which goes on when the caller has gone.
                let _turn = turn;
                ledger.transact(|tx| {
                    check_mark(tx, guard.as_deref())?;
                    tx.carry_out(id, &after, &own, now_ms)
                })
            })
            .await?;
        match done {
            CarryOut::Page(page) => {
                let CarriedOut { orders, taken, short_orders, all, .. } = page;
                let (all_orders, all_taken, actor) = (all.orders, all.taken, &by.actor);
                tracing::warn!(
                    id,
                    by = by.name,
                    actor,
                    orders,
                    taken,
                    short_orders,
                    all_orders,
                    all_taken,
                    "a page of a correction was carried out"
                );
                Ok(page)
            }
            CarryOut::Busy => Err(ActError::Busy(id)),
            CarryOut::Expired(_) => Err(ActError::Expired(id)),
            CarryOut::NotApproved(_) => Err(ActError::NotToCarryOut(id, "it is not approved")),
            CarryOut::NoCorrection(_) => Err(ActError::NotToCarryOut(id, "it is no correction")),
            CarryOut::TooMuch { orders, taken } => Err(ActError::TooMuch { id, orders, taken }),
            CarryOut::Unknown => Err(ActError::Unknown(id)),
        }
    }

    /// Acts by number: those after `after`, and with `only_open` those that can be approved now. `parent` is a correction whose
    /// parts are listed; 0: acts that are no part of any.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn acts(
        &self,
        parent: i64,
        only_open: bool,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredAct>, CallError> {
        let open_at_ms = only_open.then(|| self.inner.clock.wall_ms());
        self.read(move |reader| reader.acts(&ActFilter { parent, open_at_ms, after, limit })).await
    }

    /// An act, and how what it is about stands now, in words.
    ///
    /// # Errors
    /// [`ActError`].
    pub async fn act(&self, id: i64) -> Result<(StoredAct, String), ActError> {
        let found = self
            .read(move |reader| {
                let Some(act) = reader.act(id)? else { return Ok(None) };
                let about = about(reader, &act.proposal.deed)?;
                Ok(Some((act, about)))
            })
            .await?;
        found.ok_or(ActError::Unknown(id))
    }

    /// The time by which acts expire.
    pub fn acts_now_ms(&self) -> i64 {
        self.inner.clock.wall_ms()
    }
}

fn answer(id: i64, ended: Ended) -> Result<ActAnswer, ActError> {
    match ended {
        Ended::Now(act) => {
            let end = act.end.as_ref();
            let (by, detail) = end.map_or(("", ""), |end| (end.operator.name.as_str(), end.detail.as_str()));
            tracing::warn!(id, about = %act.proposal.deed.subject(), by, detail, "an act has ended");
            Ok(ActAnswer { act, is_repeat: false })
        }
        Ended::Before(act) => Ok(ActAnswer { act, is_repeat: true }),
        Ended::Expired(_) => Err(ActError::Expired(id)),
        Ended::SameOperator(_) => Err(ActError::SameOperator(id)),
        Ended::Unknown => Err(ActError::Unknown(id)),
    }
}

/// Archives an order that an act has given up: with that entry it can be replayed, which asks the same payer again (I2).
fn archive_what_was_given_up(tx: &mut Tx<'_>, act: &StoredAct, now_ms: i64) -> Result<(), LedgerError> {
    let is_done = act.end.as_ref().is_some_and(|end| end.outcome == ActOutcome::Done);
    let (Deed::Release { activity, trade_no } | Deed::SettleOrder { activity, trade_no, paid: false }) =
        &act.proposal.deed
    else {
        return Ok(());
    };
    let Some(order) = tx.order(OrderId { activity, trade_no })?.filter(|_| is_done) else { return Ok(()) };
    let end = act.end.as_ref().map(|end| end.detail.clone()).unwrap_or_default();
    let who = format!("act {}", act.id);
    archive_released(tx, &order, &who, format!("{end} ({who})"), now_ms)
}

/// What a deed is about, and how that stands now.
fn about(reader: &LedgerReader, deed: &Deed) -> Result<String, LedgerError> {
    Ok(match deed.subject() {
        Subject::Order { activity, trade_no } => reader.order(OrderId { activity, trade_no })?.map_or_else(String::new, |order| {
            let StoredOrder { user_id, activity, scene, bonus_type, amount, status, payer, .. } = order;
            let payer = if payer.is_empty() { String::new() } else { format!(", payer {payer}") };
            format!(
                "order {trade_no}: {amount} {bonus_type} of user {user_id}, activity {activity}, scene {scene}{payer}; {status:?}"
            )
        }),
        Subject::Withdrawal { user_id, id } => reader.withdrawal(WithdrawalId { user_id, id })?.map_or_else(String::new, |found| {
            let StoredWithdrawal { withdrawal, status, payer, .. } = found;
            let status = match status {
                WithdrawalStatus::Held => "held",
                WithdrawalStatus::Paid => "paid",
                WithdrawalStatus::Refused => "given back",
            };
            format!(
                "withdrawal {id}: {} {} of user {}, payer {payer}; {status}",
                withdrawal.amount, withdrawal.bonus_type, withdrawal.user_id
            )
        }),
        Subject::User(user_id) => {
            let balances = reader.balances(user_id)?;
            let balances: Vec<String> =
                balances.into_iter().map(|(bonus_type, balance)| format!("{balance} {bonus_type}")).collect();
            let frozen = match reader.frozen(user_id)? {
                Some((act, _)) => format!("frozen by act {act}"),
                None => "not frozen".into(),
            };
            format!("user {user_id}: balance {}; {frozen}", balances.join(", "))
        }
        Subject::Activity(_) => about_correction(deed),
    })
}

/// What a correction takes back, from whom.
fn about_correction(deed: &Deed) -> String {
    let Deed::Correct(Correction { selection, keep, take_what_is_there, max_orders, max_taken }) = deed
    else {
        return String::new();
    };
    let Selection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = selection;
    let scene = if scene.is_empty() { "every scene".into() } else { format!("scene {scene}") };
    let rest = if *take_what_is_there { "what is there" } else { "nothing" };
    format!(
        "at most {max_taken} {bonus_type} of {max_orders} credited orders of activity {activity}, {scene}, of {min_amount} to \
         {max_amount} each, taken from {from_ms} up to {to_ms} (Unix milliseconds); each user keeps {keep} of an order, and from who \
         has less {rest} is taken"
    )
}
