//! Balances and movements, with the pending rewards.

use crate::incoming::Incoming;
use crate::options::{CURSOR_MAX_BYTES, FLOW_MAX, LOOKS_MAX};
use crate::wallet::{Inner, User, Wallet};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use windfall_contract::accounts::{AccountsError, FlowKind, FlowLine, OrderName};
use windfall_contract::verifier::VerifyError;
use windfall_proto::order::check_text;
use windfall_proto::v1::BonusToken;

/// A user's balance of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    /// The bonus type.
    pub bonus_type: String,
    /// The balance in the ledger.
    pub credited: i64,
    /// The pending rewards that tokens prove; not included in `credited`.
    pub pending: i64,
    /// The sum of both.
    pub total: i64,
}

/// The direction of a movement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// A reward, credited.
    Credit,
    /// A pending reward.
    Pending,
    /// Money that went out.
    Withdrawal,
    /// A withdrawal that was refused; the money is back.
    Return,
    /// A reward that its downstream has paid; no balance contains it.
    Settled,
    /// Money that operators took back from the balance.
    TakenBack,
    /// A reward that its downstream had paid, and has got back.
    SettledTakenBack,
}

/// A movement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What moved, and whether to the user or away.
    pub kind: LineKind,
    /// The order number, or the withdrawal's id.
    pub reference: String,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount, always positive.
    pub amount: i64,
    /// The campaign; empty with withdrawals.
    pub activity: String,
    /// Unix milliseconds; of rewards on their way, when they were awarded.
    pub time_ms: i64,
}

/// A user's balances and movements, with pending rewards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The balances, sorted by type.
    pub balances: Vec<Balance>,
    /// A page of the movements: pending rewards first, on the first page alone, then the newest first.
    pub flow: Vec<Line>,
    /// The cursor behind which the next page begins; empty: this is the last.
    pub flow_next: String,
    /// False if the token store could not be asked for all tokens, so that pending rewards may be missing.
    pub tokens_complete: bool,
}

/// There is no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// Mend the call.
    #[error("flow_limit is {0}; 1 to {FLOW_MAX} are allowed")]
    FlowLimit(usize),
    /// Mend the call: no page of this user has returned the cursor.
    #[error("flow_after: {0}")]
    FlowAfter(String),
    /// Mend the call.
    #[error("tokens: {0}")]
    Tokens(#[from] VerifyError),
    /// A sum exceeds 64 bits. No wrong sum is shown; an operator has to look at it.
    #[error("the rewards of type `{bonus_type}` add up to more than a balance holds")]
    Overflow {
        /// The type.
        bonus_type: String,
    },
    /// The ledger gave no answer. Ask again.
    #[error(transparent)]
    Ledger(#[from] AccountsError),
}

impl Wallet {
    /// What a user has and sees coming: at most `flow_limit` movements, 1 to [`FLOW_MAX`], from the newest on, or behind the
    /// page that has returned the cursor `flow_after`, where that is not empty. `texts` are the tokens that the front end holds.
    ///
    /// # Errors
    /// [`LookError`].
    pub async fn look(
        &self,
        user: User<'_>,
        texts: &[String],
        flow_after: &str,
        flow_limit: usize,
    ) -> Result<View, LookError> {
        let view = self.inner().look(user, texts, flow_after, flow_limit).await;
        self.inner().counters.looked(&view);
        view
    }
}

impl Inner {
    async fn look(
        &self,
        user: User<'_>,
        texts: &[String],
        flow_after: &str,
        flow_limit: usize,
    ) -> Result<View, LookError> {
        if !(1..=FLOW_MAX).contains(&flow_limit) {
            return Err(LookError::FlowLimit(flow_limit));
        }
        check_text(flow_after, CURSOR_MAX_BYTES).map_err(|why| LookError::FlowAfter(why.to_string()))?;
        let is_first_page = flow_after.is_empty();
        // Tokens, then balances, then orders: the crate's page says why.
        let mut incoming = self.incoming(user, texts, None).await?;
        let mut looks = 0;
        let (credited, moved) = loop {
            let credited = self.read(self.accounts.balances(user.user_id)).await?;
            // The page has room for both, and its cursor is behind the last movement that is shown.
            let shown = if is_first_page { incoming.rewards.len() } else { 0 };
            let flow = self.accounts.flow(user.user_id, flow_after, flow_limit.saturating_sub(shown));
            let moved = self.read(flow).await.map_err(|error| match error {
                AccountsError::Invalid(why) => LookError::FlowAfter(why),
                other => LookError::Ledger(other),
            })?;
            looks += 1;
            // What is still not credited now was not in what has been read.
            if self.drop_arrived(&mut incoming).await? == 0 || looks == LOOKS_MAX {
                break (credited, moved);
            }
        };
        let Incoming { rewards, is_complete } = incoming;
        let balances = add(credited, &rewards)?;
        // A reward on its way has no place in the ledger's order, so the pages behind the first do not repeat it.
        let mut pending: Vec<BonusToken> =
            if is_first_page { rewards.into_values().collect() } else { Vec::new() };
        pending.sort_by_key(|token| Reverse(token.award_time_ms));
        pending.truncate(flow_limit);
        let flow = pending.into_iter().map(Line::from).chain(moved.lines.into_iter().map(Line::from));
        let flow = flow.collect();
        Ok(View { balances, flow, flow_next: moved.next, tokens_complete: is_complete })
    }
}

/// Adds to the balances by type, checked at every step: a wrong sum is worse than none.
fn add(
    credited: Vec<(String, i64)>,
    rewards: &BTreeMap<OrderName, BonusToken>,
) -> Result<Vec<Balance>, LookError> {
    let mut sums: BTreeMap<String, (i64, i64)> =
        credited.into_iter().map(|(bonus_type, amount)| (bonus_type, (amount, 0))).collect();
    let overflow = |bonus_type: &str| LookError::Overflow { bonus_type: bonus_type.to_owned() };
    for token in rewards.values() {
        let (_, pending) = sums.entry(token.bonus_type.clone()).or_default();
        *pending = pending.checked_add(token.amount).ok_or_else(|| overflow(&token.bonus_type))?;
    }
    let balance = |(bonus_type, (credited, pending)): (String, (i64, i64))| {
        let total = credited.checked_add(pending).ok_or_else(|| overflow(&bonus_type))?;
        Ok(Balance { bonus_type, credited, pending, total })
    };
    sums.into_iter().map(balance).collect()
}

impl From<BonusToken> for Line {
    fn from(token: BonusToken) -> Self {
        Self {
            kind: LineKind::Pending,
            reference: token.trade_no,
            bonus_type: token.bonus_type,
            amount: token.amount,
            activity: token.activity,
            time_ms: token.award_time_ms,
        }
    }
}

impl From<FlowLine> for Line {
    fn from(line: FlowLine) -> Self {
        Self {
            kind: match line.kind {
                FlowKind::Credit => LineKind::Credit,
                FlowKind::Withdrawal => LineKind::Withdrawal,
                FlowKind::Return => LineKind::Return,
                FlowKind::Settled => LineKind::Settled,
                FlowKind::TakenBack => LineKind::TakenBack,
                FlowKind::SettledTakenBack => LineKind::SettledTakenBack,
            },
            reference: line.trade_no,
            bonus_type: line.bonus_type,
            amount: line.amount,
            activity: line.activity,
            time_ms: line.time_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn token(trade_no: &str, amount: i64) -> (OrderName, BonusToken) {
        let token = BonusToken {
            trade_no: trade_no.into(),
            bonus_type: "cash".into(),
            amount,
            ..BonusToken::default()
        };
        (crate::incoming::name(&token), token)
    }

    #[test]
    fn a_sum_that_leaves_64_bits_is_no_sum() {
        let overflow = Err(LookError::Overflow { bonus_type: "cash".into() });
        let two = [token("a", i64::MAX), token("b", 1)].into();
        assert_eq!(add(vec![], &two), overflow);
        let one = [token("a", i64::MAX)].into();
        assert_eq!(add(vec![("cash".into(), 1)], &one), overflow);
        let sums = add(vec![("cash".into(), 0)], &one).unwrap();
        assert_eq!((sums[0].pending, sums[0].total), (i64::MAX, i64::MAX));
    }
}
