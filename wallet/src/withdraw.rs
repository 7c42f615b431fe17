//! Withdrawals: once for each id.

use crate::incoming::Incoming;
use crate::options::{FORCES_MAX, GRANT_EVENTS, RETRY_MS};
use crate::wallet::{Inner, User, Wallet};
use bytes::Bytes;
use std::cmp::Reverse;
use windfall_contract::accounts::{AccountsError, Withdrawal, WithdrawalOutcome};
use windfall_contract::rewards::GrantReply;
use windfall_contract::verifier::{TEXTS_MAX, VerifyError};
use windfall_proto::event::EventRef;
use windfall_proto::order::{self, Invalid};
use windfall_proto::v1::BonusToken;

/// The answer to a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The outcome.
    pub outcome: WithdrawalOutcome,
    /// Tokens that this call credited.
    pub credited_tokens: u32,
    /// The balance of its type after it; 0 with a conflict, which shows nothing of the account.
    pub balance: i64,
}

/// A withdrawal without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WithdrawError {
    /// Mend the call.
    #[error("{field} {why}")]
    Invalid {
        /// The argument.
        field: &'static str,
        /// What is wrong with it.
        why: Invalid,
    },
    /// Mend the call.
    #[error("tokens: {0}")]
    Tokens(#[from] VerifyError),
    /// The ledger takes no such withdrawal. Final: mend the call, or who pays withdrawals.
    #[error("refused: {0}")]
    Refused(String),
    /// Paid, held or neither: ask again with the same id.
    #[error("{what}; ask again with the same id")]
    Unanswered {
        /// Why there is no answer.
        what: String,
        /// The least wait.
        after_ms: u64,
    },
}

impl From<AccountsError> for WithdrawError {
    fn from(error: AccountsError) -> Self {
        match error {
            AccountsError::Unavailable { what, after_ms } => Self::Unanswered { what, after_ms },
            AccountsError::Invalid(what) => Self::Refused(what),
        }
    }
}

impl Wallet {
    /// Withdraws, once for each id; before that it credits proved pending rewards, as far as necessary. `tenant`
    /// is the app of the service that calls, `texts` are the tokens that the front end holds, at most [`TEXTS_MAX`].
    ///
    /// # Errors
    /// [`WithdrawError`].
    pub async fn withdraw(
        &self,
        tenant: &str,
        withdrawal: &Withdrawal,
        texts: &[String],
    ) -> Result<Receipt, WithdrawError> {
        let receipt = self.inner().withdraw(tenant, withdrawal, texts).await;
        self.inner().counters.withdrew(&receipt);
        receipt
    }
}

impl Inner {
    async fn withdraw(
        &self,
        tenant: &str,
        withdrawal: &Withdrawal,
        texts: &[String],
    ) -> Result<Receipt, WithdrawError> {
        check(withdrawal, texts)?;
        // First without any token: an id that was used before, or a balance that is enough, needs none. If we die
        // here the next call finds the withdrawal as it stands.
        let mut outcome = self.pay(self.accounts.withdraw(withdrawal)).await?;
        let mut forced = Forced::default();
        if let WithdrawalOutcome::Short { balance } = outcome {
            outcome = self.pay_with_incoming(tenant, withdrawal, texts, balance, &mut forced).await?;
        }
        let balance = match outcome {
            WithdrawalOutcome::Conflict => 0,
            WithdrawalOutcome::Short { balance } => balance,
            // Where this read fails the outcome stands all the same; the next call with this id tells it.
            _ => {
                let balances = self.read(self.accounts.balances(withdrawal.user_id)).await?;
                let own = balances.into_iter().find(|(name, _)| *name == withdrawal.bonus_type);
                own.map_or(0, |(_, balance)| balance)
            }
        };
        Ok(Receipt { outcome, credited_tokens: forced.credited, balance })
    }

    /// Credits pending rewards for a balance that was short, as far as necessary, and tries again.
    async fn pay_with_incoming(
        &self,
        tenant: &str,
        withdrawal: &Withdrawal,
        texts: &[String],
        mut balance: i64,
        forced: &mut Forced,
    ) -> Result<WithdrawalOutcome, WithdrawError> {
        let Withdrawal { user_id, ref bonus_type, amount, .. } = *withdrawal;
        let mut incoming = self.incoming(User { tenant, user_id }, texts, Some(bonus_type)).await?;
        self.drop_arrived(&mut incoming).await?;
        let Incoming { rewards, is_complete } = incoming;
        let mut rewards: Vec<BonusToken> = rewards.into_values().collect();
        rewards.sort_by_key(|token| Reverse(token.amount));
        let mut seen = None;
        for _ in 0..FORCES_MAX {
            let mut part = take_covering(&mut rewards, amount, balance);
            if part.is_empty() && !is_complete {
                // The rest may be beyond what could be read: what is credited now makes room for it in the next call.
                part = std::mem::take(&mut rewards);
            }
            // Tried once in any case: what was on its way may have arrived before its token was read.
            if part.is_empty() && seen == Some(balance) {
                break;
            }
            self.force(bonus_type, &part, forced).await;
            match self.pay(self.accounts.withdraw(withdrawal)).await? {
                WithdrawalOutcome::Short { balance: now } => {
                    seen = Some(balance);
                    balance = now;
                }
                settled => return Ok(settled),
            }
        }
        // Too little, as far as is known. Where a grant has not answered, the store could not say, or others take
        // from the same balance, more may come: that is no answer yet.
        let after_ms = match (forced.retry_after_ms, is_complete) {
            (Some(after_ms), _) => after_ms,
            (None, true) if take_covering(&mut rewards, amount, balance).is_empty() => {
                return Ok(WithdrawalOutcome::Short { balance });
            }
            _ => RETRY_MS,
        };
        let what = format!("the balance is {balance}, and what is on its way could not be credited yet");
        Err(WithdrawError::Unanswered { what, after_ms })
    }

    /// Grants the events of these tokens. Each is VALID, and not credited as far as is known; a grant that is lost,
    /// or made twice, counts once (I1).
    async fn force(&self, bonus_type: &str, tokens: &[BonusToken], forced: &mut Forced) {
        let before = forced.credited;
        for part in tokens.chunks(GRANT_EVENTS) {
            let events: Vec<Bytes> = part.iter().map(event).collect();
            let granting = self.rewards.grant_batch(bonus_type, &events);
            match tokio::time::timeout(self.grant_timeout, granting).await {
                Ok(replies) if replies.len() == part.len() => {
                    replies.iter().for_each(|reply| forced.count(reply));
                }
                // A time-out means unknown, not failed.
                Ok(_) | Err(_) => forced.retry(RETRY_MS),
            }
        }
        self.counters.forced(tokens.len(), forced.credited - before);
    }
}

/// The result of forced credits.
#[derive(Default)]
struct Forced {
    credited: u32,
    /// One or more are not decided.
    retry_after_ms: Option<u64>,
}

impl Forced {
    fn count(&mut self, reply: &GrantReply) {
        match reply {
            GrantReply::Credited => self.credited += 1,
            GrantReply::Retry { after_ms, .. } => self.retry(*after_ms),
            // Money already, or never: archived by who decided it.
            GrantReply::AlreadyCredited | GrantReply::Conflict | GrantReply::Rejected(_) => {}
        }
    }

    fn retry(&mut self, after_ms: u64) {
        self.retry_after_ms = self.retry_after_ms.max(Some(after_ms));
    }
}

fn check(asked: &Withdrawal, texts: &[String]) -> Result<(), WithdrawError> {
    let invalid = |field| move |why| WithdrawError::Invalid { field, why };
    // An id is made of what an order number is made of.
    order::check_trade_no(&asked.id).map_err(invalid("withdrawal_id"))?;
    order::check_bonus_type(&asked.bonus_type).map_err(invalid("bonus_type"))?;
    order::check_amount(asked.amount).map_err(invalid("amount"))?;
    if texts.len() > TEXTS_MAX {
        return Err(VerifyError::TooMany { texts: texts.len() }.into());
    }
    Ok(())
}

/// Takes from `rewards`, whose largest come first, as many as make up for what the balance lacks; none where all of
/// them do not, for then they would pass the limits and help nobody.
fn take_covering(rewards: &mut Vec<BonusToken>, amount: i64, balance: i64) -> Vec<BonusToken> {
    let Some(mut lacking) = amount.checked_sub(balance) else { return Vec::new() };
    for (nth, token) in rewards.iter().enumerate() {
        // Both are below 2^54: amounts are checked, and it stops at the first that is not above 0.
        lacking -= token.amount;
        if lacking <= 0 {
            return rewards.drain(..=nth).collect();
        }
    }
    Vec::new()
}

/// The event of a token, as the SDK wrote it in every field that the ledger compares or keeps.
fn event(token: &BonusToken) -> Bytes {
    let event = EventRef {
        trade_no: &token.trade_no,
        user_id: token.user_id,
        app_id: &token.app_id,
        activity: &token.activity,
        scene: &token.scene,
        bonus_type: &token.bonus_type,
        amount: token.amount,
        description: &token.description,
        award_time_ms: token.award_time_ms,
        ..EventRef::default()
    };
    let mut bytes = Vec::with_capacity(256);
    event.encode([], &mut bytes);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(amounts: &[i64]) -> Vec<BonusToken> {
        amounts.iter().map(|amount| BonusToken { amount: *amount, ..BonusToken::default() }).collect()
    }

    #[test]
    fn as_few_as_it_takes() {
        let mut rewards = tokens(&[50, 30, 20, 10]);
        assert!(take_covering(&mut rewards, 211, 100).is_empty(), "all of them are not enough");
        assert_eq!(take_covering(&mut rewards, 160, 100), tokens(&[50, 30]));
        assert_eq!(rewards, tokens(&[20, 10]));
        assert_eq!(take_covering(&mut rewards, 130, 100), tokens(&[20, 10]));
        assert!(take_covering(&mut rewards, 130, 100).is_empty());
        let mut rewards = tokens(&[1]);
        assert!(take_covering(&mut rewards, 1, i64::MIN).is_empty(), "no overflow");
    }

    #[test]
    fn a_token_makes_the_event_that_the_sdk_sent() {
        let token = BonusToken {
            trade_no: "rain-1".into(),
            user_id: 42,
            app_id: "acme".into(),
            activity: "spring".into(),
            scene: "rain".into(),
            bonus_type: "cash".into(),
            amount: 888,
            award_time_ms: 1_800_000_000_000,
            description: "red packet".into(),
        };
        let bytes = event(&token);
        let Ok(read) = EventRef::parse(&bytes) else { panic!("an event") };
        assert_eq!((read.trade_no, read.user_id, read.app_id), ("rain-1", 42, "acme"));
        assert_eq!((read.activity, read.scene), ("spring", "rain"));
        assert_eq!((read.bonus_type, read.amount, read.description), ("cash", 888, "red packet"));
        assert_eq!(read.award_time_ms, 1_800_000_000_000);
    }
}
