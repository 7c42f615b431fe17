//! Accounts for wallets: a user's balances and movements, and withdrawals.
//!
//! A withdrawal is hold → payout → end. It is held, durably, before its payer is asked. If the process dies in between,
//! or an answer is lost, the next call with its id finds it held and asks the payer again with the same key; the payer
//! pays it once. Nothing but the payer's refusal gives the money back: a time-out says nothing (I1). The held
//! withdrawal names its payer: whichever pays by now, only the one that was asked is asked again.
//!
//! Where no downstream pays (`payout = "ledger"`), a front end does, and nobody is asked: what is held stays so, in a list,
//! until the front end acknowledges it ([`RewardHandle::acknowledge`]). So money that nobody has moved is never counted as
//! paid.
//!
//! Only types that the ledger pays are withdrawn. What a downstream pays was paid when it was credited.

use crate::claims::Claims;
use crate::decide::name;
use crate::handle::{CallError, RewardHandle};
use crate::inbox::NotTaken;
use crate::job::{End, Hold, Job};
use crate::options::Payer;
use crate::payouts::STOPPED_RETRY_MS;
use async_trait::async_trait;
use tokio::sync::oneshot;
use windfall_contract::accounts::{
    Accounts, AccountsError, FlowPage, OrderName, StoredOrder, Withdrawal, WithdrawalOutcome,
};
use windfall_contract::connector::{PayAnswer, PayOrder};
use windfall_ledger::{
    FRONT_END, Finish, HoldOutcome, LedgerError, OrderId, StatementCursor, StoredWithdrawal, WithdrawalStatus,
};
use windfall_proto::order::{check_amount, check_bonus_type, check_trade_no};

fn check(withdrawal: &Withdrawal) -> Result<(), AccountsError> {
    let invalid = |field: &'static str| move |why| AccountsError::Invalid(format!("{field} {why}"));
    check_trade_no(&withdrawal.id).map_err(invalid("withdrawal_id"))?;
    check_bonus_type(&withdrawal.bonus_type).map_err(invalid("bonus_type"))?;
    check_amount(withdrawal.amount).map_err(invalid("amount"))?;
    Ok(())
}

impl RewardHandle {
    pub(crate) fn unavailable(&self, what: impl ToString) -> AccountsError {
        AccountsError::Unavailable { what: what.to_string(), after_ms: self.inner.options.busy_retry_ms }
    }

    pub(crate) fn read_failed(&self, error: CallError) -> AccountsError {
        match error {
            CallError::Ledger(LedgerError::Invalid(what)) => AccountsError::Invalid(what),
            other => self.unavailable(other),
        }
    }

    /// The payer of a withdrawal of this type that begins now: a downstream's name, or [`FRONT_END`]. An
    /// error says why none can begin.
    fn payer_of_withdrawals(&self, bonus_type: &str) -> Result<String, String> {
        match self.payer(bonus_type) {
            Payer::Ledger => {}
            Payer::Connector(_) => {
                return Err(format!("{bonus_type} is paid by its downstream, not withdrawn"));
            }
            Payer::Nobody => return Err(format!("{bonus_type} is paid by nobody, so it is not withdrawn")),
        }
        match &self.inner.options.payout {
            Payer::Ledger => Ok(FRONT_END.to_owned()),
            Payer::Connector(name) if self.inner.downstreams.contains_key(name) => Ok(name.clone()),
            Payer::Connector(name) => Err(format!("there is no connector {name}")),
            Payer::Nobody => Err("nothing is paid out here".into()),
        }
    }

    /// The withdrawal of this user and id, as it is stored; `None` where none was ever held.
    pub(crate) async fn stored_withdrawal(
        &self,
        asked: &Withdrawal,
    ) -> Result<Option<StoredWithdrawal>, AccountsError> {
        let own = asked.clone();
        let found = self.read(move |reader| reader.withdrawal(name(&own))).await;
        found.map_err(|error| self.read_failed(error))
    }

    /// Hands a job to a writer, and waits for its answer. There is none where nothing is stored, or that is not known.
    pub(crate) async fn ask_writer<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) -> Job,
    ) -> Result<T, AccountsError> {
        let (reply, answer) = oneshot::channel();
        match self.inner.push(job(reply)) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(self.unavailable("too many calls wait")),
            Err(NotTaken::Closed) => return Err(self.unavailable("the reward service is closed")),
        }
        answer.await.map_err(|_| self.unavailable("the ledger did not store it, or nobody knows"))
    }

    /// Asks the payer of a withdrawal that is held, and ends it as the payer says. The caller has claimed it. Payer and key
    /// are those that are stored: the payer may have paid under that key, and would pay again under another (I1).
    pub(crate) async fn pay_out(&self, asked: &Withdrawal) -> Result<WithdrawalOutcome, AccountsError> {
        let Some(stored) = self.stored_withdrawal(asked).await? else {
            return Err(self.unavailable("the withdrawal has vanished from the ledger"));
        };
        match stored.status {
            WithdrawalStatus::Held => {}
            WithdrawalStatus::Paid if stored.payer == FRONT_END => return Ok(WithdrawalOutcome::PaidOut),
            WithdrawalStatus::Paid => return Ok(WithdrawalOutcome::AlreadyPaid),
            WithdrawalStatus::Refused => return Ok(WithdrawalOutcome::Refused(stored.reason)),
        }
        let StoredWithdrawal { payer, payer_key, withdrawal, .. } = &stored;
        if payer == FRONT_END {
            return Ok(WithdrawalOutcome::ToPayOut);
        }
        if self.payouts_stopped() {
            return Ok(WithdrawalOutcome::Pending { after_ms: STOPPED_RETRY_MS });
        }
        let Some(downstream) = self.inner.downstreams.get(payer) else {
            // It may have paid. Asking or paying elsewhere could pay twice (I1).
            tracing::error!(
                payer,
                id = withdrawal.id,
                "a withdrawal is held for a payer that is not configured; nobody else is asked"
            );
            return Ok(WithdrawalOutcome::Pending { after_ms: 1_000 });
        };
        let pay = PayOrder {
            trade_no: payer_key,
            user_id: withdrawal.user_id,
            activity: "",
            scene: "",
            bonus_type: &withdrawal.bonus_type,
            amount: withdrawal.amount,
        };
        let refused = match downstream.pay(pay, downstream.begin_by_ns()).await {
            PayAnswer::Paid | PayAnswer::AlreadyPaid => None,
            PayAnswer::Refused(why) => Some(why),
            PayAnswer::Busy { after_ms } | PayAnswer::Retry { after_ms } => {
                return Ok(WithdrawalOutcome::Pending { after_ms });
            }
            PayAnswer::Unknown => {
                return Ok(WithdrawalOutcome::Pending { after_ms: downstream.timeout_retry_ms() });
            }
        };
        let (user_id, id, why) = (withdrawal.user_id, withdrawal.id.clone(), refused.clone());
        let finish = self.ask_writer(|reply| Job::End(End { user_id, id, refused: why, reply })).await?;
        match (refused, finish) {
            (None, Finish::Done) => Ok(WithdrawalOutcome::Paid),
            (None, Finish::Before) => Ok(WithdrawalOutcome::AlreadyPaid),
            // The ledger has an entry about it in the archive: an operator has to look.
            (None, Finish::Otherwise) => Ok(WithdrawalOutcome::Paid),
            (Some(why), Finish::Done | Finish::Before) => Ok(WithdrawalOutcome::Refused(why)),
            (Some(_), Finish::Otherwise) => Ok(WithdrawalOutcome::AlreadyPaid),
            (_, Finish::Unknown) => Err(self.unavailable("the withdrawal has vanished from the ledger")),
        }
    }
}

#[async_trait]
impl Accounts for RewardHandle {
    async fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, AccountsError> {
        self.read(move |reader| reader.balances(user_id)).await.map_err(|error| self.read_failed(error))
    }

    async fn flow(&self, user_id: i64, after: &str, limit: usize) -> Result<FlowPage, AccountsError> {
        let after = match after {
            "" => None,
            text => Some(text.parse::<StatementCursor>().map_err(|error| self.read_failed(error.into()))?),
        };
        let read = self.read(move |reader| reader.flow_page(user_id, after.as_ref(), limit));
        read.await.map_err(|error| self.read_failed(error))
    }

    async fn orders(&self, names: &[OrderName]) -> Result<Vec<Option<StoredOrder>>, AccountsError> {
        let own = names.to_vec();
        let read = self.read(move |reader| {
            let id = |one| {
                let OrderName { activity, trade_no }: &OrderName = one;
                OrderId { activity, trade_no }
            };
            // It may answer with what is in an order's way, which the wallet tells from it: it waits for no conflict.
            reader.orders_of(&own.iter().map(id).collect::<Vec<_>>())
        });
        read.await.map_err(|error| self.read_failed(error))
    }

    async fn withdraw(&self, withdrawal: &Withdrawal) -> Result<WithdrawalOutcome, AccountsError> {
        check(withdrawal)?;
        self.check_payouts()?;
        let payer = match self.payer_of_withdrawals(&withdrawal.bonus_type) {
            Ok(payer) => payer,
            // A withdrawal that is held goes on to its end with its own payer.
            Err(why) => match self.stored_withdrawal(withdrawal).await? {
                Some(stored) => stored.payer,
                None => return Err(AccountsError::Invalid(why)),
            },
        };
        let mut claims = Claims::new(&self.inner.in_flight);
        let later = || Ok(WithdrawalOutcome::Pending { after_ms: self.inner.options.busy_retry_ms });
        let hold = |reply| Job::Hold(Hold { withdrawal: withdrawal.clone(), payer: payer.clone(), reply });
        if payer == FRONT_END {
            // No payer is asked, so no call has to wait for another one.
            match self.ask_writer(hold).await? {
                HoldOutcome::Decided(outcome) => return Ok(outcome),
                HoldOutcome::Held => return Ok(WithdrawalOutcome::ToPayOut),
                HoldOutcome::HeldBefore { payer } if payer == FRONT_END => {
                    return Ok(WithdrawalOutcome::ToPayOut);
                }
                HoldOutcome::HeldBefore { .. } => {}
            }
        }
        // Claimed before the ledger is asked how it stands: its payer is not asked about one that ends meanwhile.
        if !claims.claim_withdrawal(name(withdrawal)) {
            return later();
        }
        match self.ask_writer(hold).await? {
            HoldOutcome::Decided(outcome) => Ok(outcome),
            HoldOutcome::Held | HoldOutcome::HeldBefore { .. } => self.pay_out(withdrawal).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConnectorOptions, RewardOptions, RewardService};
    use std::sync::Arc;
    use windfall_contract::Clock;
    use windfall_contract::rewards::Rewards;
    use windfall_ledger::{ArchiveFilter, Ledger, LedgerOptions, Unbudgeted};
    use windfall_proto::event::EventRef;

    /// A payer that never says whether it has paid.
    struct Silent;

    #[async_trait]
    impl windfall_contract::connector::Connector for Silent {
        fn name(&self) -> &str {
            "bank"
        }

        async fn pay(&self, _: PayOrder<'_>) -> PayAnswer {
            PayAnswer::Unknown
        }
    }

    fn cash(trade_no: &str, user_id: i64) -> bytes::Bytes {
        let mut out = Vec::new();
        let event =
            EventRef { trade_no, user_id, activity: "spring-2027", scene: "rain", ..EventRef::default() };
        EventRef { bonus_type: "cash", amount: 9, award_time_ms: 1, first_sent_ms: 1, ..event }
            .encode([], &mut out);
        out.into()
    }

    #[tokio::test]
    async fn what_was_paid_after_its_refusal_is_archived_for_each_user_of_an_id() {
        let folder = tempfile::tempdir().unwrap();
        let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
        let ledger = Ledger::open(folder.path().join("ledger.db"), &options).unwrap();
        let mut options =
            RewardOptions { payout: Payer::Connector("bank".into()), ..RewardOptions::default() };
        options.connectors.insert("bank".into(), ConnectorOptions::default());
        let rewards =
            RewardService::start(options, ledger, vec![Arc::new(Silent)], None, Clock::system()).unwrap();
        for (trade_no, user_id) in [("a", 7), ("b", 8)] {
            rewards.grant_batch("cash", &[cash(trade_no, user_id)]).await;
            let out = Withdrawal { id: "w".into(), user_id, bonus_type: "cash".into(), amount: 4 };
            let held = rewards.withdraw(&out).await.unwrap();
            assert!(matches!(held, WithdrawalOutcome::Pending { .. }), "{held:?}");
            let end = |refused: Option<&str>| {
                let refused = refused.map(str::to_owned);
                rewards.ask_writer(move |reply| Job::End(End { user_id, id: "w".into(), refused, reply }))
            };
            assert_eq!(end(Some("closed account")).await.unwrap(), Finish::Done);
            // Twice: an answer is repeated.
            assert_eq!(end(None).await.unwrap(), Finish::Otherwise);
            assert_eq!(end(None).await.unwrap(), Finish::Otherwise);
        }
        let found = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.reason.as_str(), one.payload.as_slice())).collect();
        let reason = "paid_after_refusal";
        assert_eq!(found, [(reason, &b"withdrawal w 7"[..]), (reason, &b"withdrawal w 8"[..])]);
        rewards.close();
    }
}
