//! Sampled users: what they hold, what the token store keeps, and what their wallet shows must tell one story.

use super::journal::{self, Line};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use tokio::task::block_in_place;
use windfall_contract::accounts::{Status, StoredOrder};
use windfall_contract::tokens::{TokenKey, TokenStore, is_name_of};
use windfall_ledger::{LedgerReader, OrderId};
use windfall_proto::v1::BonusToken;
use windfall_token::{KeyRing, StoreAnswer, TokenFields, Verdict};

/// How many users are sampled.
pub const USERS: usize = 20;

/// One sampled user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The user's id.
    pub user_id: i64,
    /// Tokens that the user was given.
    pub client_tokens: usize,
    /// Tokens that the store still keeps for rewards on their way.
    pub server_tokens: usize,
    /// The number of rewards that the wallet has.
    pub credited: usize,
    /// Balances by bonus type, in the smallest unit.
    pub balances: BTreeMap<String, i64>,
    /// The contradictions; empty when all agree.
    pub disagreements: Vec<String>,
}

/// The users that a seed samples.
pub fn sampled_users(users: u64, seed: u64) -> BTreeSet<i64> {
    let mut state = seed;
    let mut sampled = BTreeSet::new();
    let wanted = USERS.min(usize::try_from(users).unwrap_or(USERS));
    while sampled.len() < wanted {
        state = state.wrapping_add(1);
        sampled.insert(crate::demo::rain::user_of(crate::demo::rain::mix(state), users));
    }
    sampled
}

/// The places from which tokens, ledger and journal are read.
pub struct Sources<'a> {
    /// The data directory with the journal.
    pub data: &'a Path,
    /// The ledger, opened afresh.
    pub ledger: &'a LedgerReader,
    /// The token store.
    pub tokens: &'a dyn TokenStore,
    /// The key ring.
    pub keys: &'a KeyRing,
    /// The tenant of the tokens.
    pub app_id: &'a str,
}

impl Sources<'_> {
    /// The rain's order with this number, off the async threads: the ledger's reader blocks.
    fn order(&self, trade_no: &str) -> Result<Option<StoredOrder>> {
        let id = OrderId { activity: crate::demo::rain::ACTIVITY, trade_no };
        Ok(block_in_place(|| self.ledger.order(id))?)
    }
}

/// Compares the places for each user.
pub async fn check(sources: &Sources<'_>, users: &BTreeSet<i64>) -> Result<Vec<Sample>> {
    let held = client_side(sources.data, users)?;
    let mut samples = Vec::new();
    for user_id in users {
        let empty = Held::default();
        samples.push(check_user(sources, *user_id, held.get(user_id).unwrap_or(&empty)).await?);
    }
    Ok(samples)
}

/// The rewards that a user was given, by the demo's journal.
#[derive(Default)]
struct Held {
    /// Token texts by order number.
    tokens: BTreeMap<String, String>,
    /// Order numbers of calls without a token: refused, or swallowed by a kill.
    others: BTreeSet<String>,
}

fn client_side(data: &Path, users: &BTreeSet<i64>) -> Result<HashMap<i64, Held>> {
    let mut orders: HashMap<u64, (i64, String)> = HashMap::new();
    let mut held: HashMap<i64, Held> = HashMap::new();
    let mut tokens: Vec<(u64, String)> = Vec::new();
    journal::read(data, |line| {
        match line {
            Line::Intent(intent) if users.contains(&intent.user_id) => {
                orders.insert(intent.number, (intent.user_id, intent.trade_no));
            }
            Line::Token(number, token) => tokens.push((number, token)),
            Line::Intent(_) | Line::Answer(..) => {}
        }
        Ok(())
    })?;
    for (number, token) in tokens {
        if let Some((user_id, trade_no)) = orders.remove(&number) {
            held.entry(user_id).or_default().tokens.insert(trade_no, token);
        }
    }
    for (user_id, trade_no) in orders.into_values() {
        held.entry(user_id).or_default().others.insert(trade_no);
    }
    Ok(held)
}

async fn check_user(sources: &Sources<'_>, user_id: i64, held: &Held) -> Result<Sample> {
    let mut wrong = Vec::new();
    let mut owed: BTreeMap<String, i64> = BTreeMap::new();
    let mut credited = 0;
    for (trade_no, text) in &held.tokens {
        let token = match sources.keys.open(text.as_bytes(), sources.app_id, user_id) {
            Ok(token) if token.trade_no == *trade_no => token,
            _ => {
                wrong.push(format!("the token of {trade_no} does not open for its owner"));
                continue;
            }
        };
        wrong.extend(forgeries(sources, &token, text));
        match sources.order(trade_no)? {
            Some(order) if order.status == Status::Credited => {
                credited += 1;
                owe(&mut owed, &order);
                let same = (order.user_id, order.bonus_type.as_str(), order.amount)
                    == (user_id, token.bonus_type.as_str(), token.amount);
                if !same {
                    wrong.push(format!("{trade_no}: the wallet shows something else than the token"));
                }
            }
            Some(_) | None => {}
        }
    }
    for trade_no in &held.others {
        if let Some(order) = sources.order(trade_no)?.filter(|order| order.status == Status::Credited) {
            credited += 1;
            owe(&mut owed, &order);
        }
    }
    let balances: BTreeMap<String, i64> = block_in_place(|| sources.ledger.balances(user_id))?
        .into_iter()
        .filter(|(_, balance)| *balance != 0)
        .collect();
    if balances != owed {
        wrong.push(format!("balances are {balances:?}; credited tokens sum to {owed:?}"));
    }
    let server_tokens = server_side(sources, user_id, held, &mut wrong).await?;
    let client_tokens = held.tokens.len();
    Ok(Sample { user_id, client_tokens, server_tokens, credited, balances, disagreements: wrong })
}

/// Adds what the ledger has paid. What a payer has paid is settled with it, and on no balance.
fn owe(owed: &mut BTreeMap<String, i64>, order: &StoredOrder) {
    if order.payer.is_empty() {
        *owed.entry(order.bonus_type.clone()).or_default() += order.amount;
    }
}

/// Counts the stored tokens of rewards on their way; those of credited ones are dropped, as a wallet does.
async fn server_side(
    sources: &Sources<'_>,
    user_id: i64,
    held: &Held,
    wrong: &mut Vec<String>,
) -> Result<usize> {
    let mut on_their_way = 0;
    let mut after: Option<Box<str>> = None;
    loop {
        let page = sources
            .tokens
            .list(user_id, after.as_deref(), 100)
            .await
            .context("the token store does not answer")?;
        let Some(last) = page.last() else { return Ok(on_their_way) };
        after = Some(last.name.clone());
        for stored in page {
            let opens = sources.keys.open(stored.token.as_bytes(), sources.app_id, user_id);
            let trade_no =
                opens.as_ref().map_or_else(|_| stored.name.to_string(), |token| token.trade_no.clone());
            let known = held.tokens.contains_key(&trade_no) || held.others.contains(&trade_no);
            if !known || !opens.is_ok_and(|token| is_name_of(&stored.name, &token.activity, &token.trade_no))
            {
                wrong.push(format!("the store keeps a token of {} that the user never got", stored.name));
            }
            let order = sources.order(&trade_no)?;
            if order.is_some_and(|order| order.status == Status::Credited) {
                let key = TokenKey { user_id, name: stored.name };
                sources.tokens.remove(&[key]).await.context("the token store does not answer")?;
            } else {
                on_their_way += 1;
            }
        }
    }
}

/// Presents tokens that must not force a credit (I7): somebody else's, and one that differs from the stored one.
fn forgeries(sources: &Sources<'_>, token: &BonusToken, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let stored = StoreAnswer::Held(text);
    let verify = |text: &str, owner| sources.keys.verify(text, stored, sources.app_id, owner);
    if verify(text, token.user_id) != Verdict::Valid(token.clone()) {
        wrong.push(format!("the token of {} is not valid for its owner", token.trade_no));
    }
    if verify(text, token.user_id + 1) != Verdict::Illegal {
        wrong.push(format!("the token of {} is taken from another user", token.trade_no));
    }
    let richer = TokenFields { amount: token.amount + 1, ..TokenFields::from(token) };
    let forged = sources.keys.minter(sources.app_id).ok().and_then(|minter| minter.mint(&richer, 0).ok());
    if forged.is_none_or(|forged| verify(&forged, token.user_id) != Verdict::Illegal) {
        wrong.push(format!("a token of {} with another amount than the stored one is taken", token.trade_no));
    }
    wrong
}
