//! Pending rewards: those not credited yet, as far as tokens prove them. // I7

use crate::options::HELD_MAX;
use crate::wallet::{Inner, User};
use std::collections::BTreeMap;
use windfall_contract::accounts::{AccountsError, OrderName, Status, StoredOrder};
use windfall_contract::verifier::{PAGE_MAX, Page, Verdict, VerifyError};
use windfall_proto::order::check_amount;
use windfall_proto::v1::BonusToken;

/// The pending rewards of a user.
pub(crate) struct Incoming {
    /// The rewards by order, so that a token that comes from both sides counts once.
    pub(crate) rewards: BTreeMap<OrderName, BonusToken>,
    /// False if the token store could not be asked for all of them, so that more may be pending.
    pub(crate) is_complete: bool,
}

impl Inner {
    /// Reads the rewards that tokens prove: those that the front end sends, and those of the store.
    pub(crate) async fn incoming(
        &self,
        user: User<'_>,
        texts: &[String],
        bonus_type: Option<&str>,
    ) -> Result<Incoming, VerifyError> {
        let (presented, held) =
            tokio::join!(self.verifier.verify(user.tenant, user.user_id, texts), self.held(user));
        let (held, mut is_complete) = held;
        let mut tokens = held;
        for verdict in presented? {
            match verdict {
                Verdict::Valid(token) => tokens.push(token),
                // The store cannot say: it proves nothing, and may be something.
                Verdict::Unavailable => is_complete = false,
                Verdict::Unknown | Verdict::Illegal => {}
            }
        }
        let counts = |token: &BonusToken| {
            check_amount(token.amount).is_ok() && bonus_type.is_none_or(|wanted| wanted == token.bonus_type)
        };
        let rewards = tokens.into_iter().filter(counts).map(|token| (name(&token), token));
        Ok(Incoming { rewards: rewards.collect(), is_complete })
    }

    /// Reads all pages of the store, at most [`HELD_MAX`] tokens; also returns whether that was all there is.
    async fn held(&self, user: User<'_>) -> (Vec<BonusToken>, bool) {
        let mut tokens = Vec::new();
        let mut after: Option<Box<str>> = None;
        for _ in 0..HELD_MAX.div_ceil(PAGE_MAX) {
            let page = Page { after: after.as_deref(), size: PAGE_MAX };
            let Ok(page) = self.verifier.list(user.tenant, user.user_id, None, page).await else {
                return (tokens, false);
            };
            tokens.extend(page.tokens.into_iter().map(|held| held.content));
            after = page.next;
            if after.is_none() {
                return (tokens, true);
            }
        }
        (tokens, false)
    }

    /// Removes rewards that are not pending any more by the ledger, and returns how many there were.
    pub(crate) async fn drop_arrived(&self, incoming: &mut Incoming) -> Result<usize, AccountsError> {
        if incoming.rewards.is_empty() {
            return Ok(0);
        }
        let names: Vec<OrderName> = incoming.rewards.keys().cloned().collect();
        let orders = self.read(self.accounts.orders(&names)).await?;
        if orders.len() != names.len() {
            let what = "an answer that does not fit the question".to_owned();
            return Err(AccountsError::Unavailable { what, after_ms: crate::options::RETRY_MS });
        }
        let before = incoming.rewards.len();
        for (name, order) in names.iter().zip(orders) {
            let arrives = |token: &BonusToken| order.as_ref().is_none_or(|order| is_coming(order, token));
            if incoming.rewards.get(name).is_some_and(|token| !arrives(token)) {
                incoming.rewards.remove(name);
            }
        }
        Ok(before - incoming.rewards.len())
    }
}

/// The name of a token's order.
pub(crate) fn name(token: &BonusToken) -> OrderName {
    OrderName { activity: token.activity.clone(), trade_no: token.trade_no.clone() }
}

/// Whether an order that the ledger knows may still be credited as its token says: a downstream is at it. What was
/// rejected is nothing to wait for, and what differs would be a conflict.
fn is_coming(order: &StoredOrder, token: &BonusToken) -> bool {
    order.status == Status::Reserved
        && (order.user_id, order.bonus_type.as_str(), order.amount)
            == (token.user_id, token.bonus_type.as_str(), token.amount)
        && (order.activity.as_str(), order.scene.as_str()) == (token.activity.as_str(), token.scene.as_str())
}
