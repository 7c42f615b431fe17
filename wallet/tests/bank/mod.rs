//! A little ledger and a token store in memory that die, hang, or do something else at any step of a call.
#![allow(dead_code, reason = "each test file uses a part")]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use windfall_config::LiveRules;
use windfall_contract::accounts::{
    Accounts, AccountsError, FlowKind, FlowLine, FlowPage, OrderName, Reason, Status, StoredOrder,
    Withdrawal, WithdrawalOutcome,
};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rejection, RetryReason, Rewards};
use windfall_contract::rules::Rules;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_proto::event::EventRef;
use windfall_token::{KeyRing, TokenFields};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};
use windfall_wallet::{Receipt, User, Wallet, WalletOptions, WalletParts, WithdrawError};

pub const ALICE: User<'static> = User { tenant: "acme", user_id: 42 };

type Action = Box<dyn Fn(&World) + Send + Sync>;
type Everywhere = Arc<dyn Fn(&World) + Send + Sync>;

/// What happens at a step: before a part does its work (even steps), or after, before it answers (odd ones).
pub enum At {
    /// Nobody ever answers: the call is abandoned, as when its process dies.
    Hang,
    /// Somebody else does something.
    Do(Action),
}

/// All that a wallet works on, shared by its parts.
#[derive(Default)]
pub struct World {
    pub books: Mutex<Books>,
    pub tokens: Mutex<BTreeMap<(i64, String), String>>,
    pub steps: AtomicUsize,
    pub store_down: Mutex<bool>,
    script: Mutex<BTreeMap<usize, At>>,
    each: Mutex<Option<Everywhere>>,
}

/// The ledger.
#[derive(Default)]
pub struct Books {
    pub orders: BTreeMap<String, StoredOrder>,
    pub balances: BTreeMap<(i64, String), i64>,
    pub flow: Vec<(i64, FlowLine)>,
    pub withdrawals: BTreeMap<String, (Withdrawal, WithdrawalOutcome)>,
    /// Money that really went out, by id.
    pub payouts: BTreeMap<String, Vec<i64>>,
    /// What the payout says, where it does not pay.
    pub payout: Option<WithdrawalOutcome>,
    /// Users whom operators have frozen.
    pub frozen: BTreeSet<i64>,
    /// What grants answer, where it is not money.
    pub grants: BTreeMap<String, GrantReply>,
    /// Order numbers of every event that was granted.
    pub granted: Vec<String>,
}

impl Books {
    fn add(
        &mut self,
        user_id: i64,
        bonus_type: &str,
        amount: i64,
        kind: FlowKind,
        reference: &str,
        activity: &str,
    ) {
        let balance = self.balances.entry((user_id, bonus_type.to_owned())).or_default();
        *balance += if kind == FlowKind::Withdrawal { -amount } else { amount };
        assert!(*balance >= 0, "below 0");
        let transfer = i64::try_from(self.flow.len()).unwrap();
        let (trade_no, bonus_type, activity) =
            (reference.to_owned(), bonus_type.to_owned(), activity.to_owned());
        self.flow.push((
            user_id,
            FlowLine { transfer, kind, trade_no, bonus_type, activity, amount, time_ms: transfer },
        ));
    }

    pub fn credit(&mut self, trade_no: &str, user_id: i64, bonus_type: &str, amount: i64) -> GrantReply {
        self.granted.push(trade_no.to_owned());
        if let Some(known) = self.orders.get(trade_no) {
            let same =
                (known.user_id, known.bonus_type.as_str(), known.amount) == (user_id, bonus_type, amount);
            return if same { GrantReply::AlreadyCredited } else { GrantReply::Conflict };
        }
        self.order(trade_no, user_id, bonus_type, amount, Status::Credited);
        self.add(user_id, bonus_type, amount, FlowKind::Credit, trade_no, "spring-2027");
        GrantReply::Credited
    }

    pub fn order(&mut self, trade_no: &str, user_id: i64, bonus_type: &str, amount: i64, status: Status) {
        let order = StoredOrder {
            key: format!("{trade_no} spring-2027"),
            trade_no: trade_no.to_owned(),
            user_id,
            activity: "spring-2027".into(),
            scene: "rain".into(),
            bonus_type: bonus_type.to_owned(),
            amount,
            status,
            payer: String::new(),
            created_ms: 0,
            decided_ms: Some(0),
        };
        self.orders.insert(trade_no.to_owned(), order);
    }

    fn withdraw(&mut self, order: &Withdrawal) -> WithdrawalOutcome {
        if let Some((known, outcome)) = self.withdrawals.get(&order.id) {
            return match outcome {
                _ if known != order => WithdrawalOutcome::Conflict,
                WithdrawalOutcome::Paid => WithdrawalOutcome::AlreadyPaid,
                other => other.clone(),
            };
        }
        if self.frozen.contains(&order.user_id) {
            return WithdrawalOutcome::Frozen;
        }
        let key = (order.user_id, order.bonus_type.clone());
        let balance = self.balances.get(&key).copied().unwrap_or_default();
        if balance < order.amount {
            return WithdrawalOutcome::Short { balance };
        }
        self.add(order.user_id, &order.bonus_type, order.amount, FlowKind::Withdrawal, &order.id, "");
        let outcome = self.payout.clone().unwrap_or(WithdrawalOutcome::Paid);
        match &outcome {
            WithdrawalOutcome::Paid => self.payouts.entry(order.id.clone()).or_default().push(order.amount),
            WithdrawalOutcome::Refused(_) => {
                self.add(order.user_id, &order.bonus_type, order.amount, FlowKind::Return, &order.id, "");
            }
            _ => {}
        }
        self.withdrawals.insert(order.id.clone(), (order.clone(), outcome.clone()));
        outcome
    }

    /// A cursor names its user and the line that comes next.
    fn page(&self, user_id: i64, after: &str, limit: usize) -> Result<FlowPage, AccountsError> {
        let of_cursor = |text: &str| {
            let (user, first) = text.split_once('/')?;
            first.parse::<i64>().ok().filter(|_| user == user_id.to_string())
        };
        let first: i64 = match after {
            "" => i64::MAX,
            text => {
                of_cursor(text).ok_or_else(|| AccountsError::Invalid(format!("{text:?} is no cursor")))?
            }
        };
        let own = self.flow.iter().rev().filter(|(user, line)| *user == user_id && line.transfer <= first);
        let mut lines: Vec<FlowLine> = own.map(|(_, line)| line.clone()).take(limit + 1).collect();
        let next = lines.get(limit).map(|line| format!("{user_id}/{}", line.transfer)).unwrap_or_default();
        lines.truncate(limit);
        Ok(FlowPage { lines, next })
    }

    /// Every order credited once, every id paid once, and not a unit more or less.
    pub fn check(&self) {
        let mut sums: BTreeMap<(i64, String), i64> = BTreeMap::new();
        for order in self.orders.values().filter(|order| order.status == Status::Credited) {
            *sums.entry((order.user_id, order.bonus_type.clone())).or_default() += order.amount;
        }
        for (id, amounts) in &self.payouts {
            let (order, _) = &self.withdrawals[id];
            assert_eq!(*amounts, [order.amount], "paid once: {id}");
            *sums.entry((order.user_id, order.bonus_type.clone())).or_default() -= order.amount;
        }
        sums.retain(|_, sum| *sum != 0);
        let mut balances = self.balances.clone();
        balances.retain(|_, balance| *balance != 0);
        assert_eq!(balances, sums);
    }
}

impl World {
    pub fn at(&self, step: usize, what: At) {
        self.script.lock().insert(step, what);
    }

    /// Something that happens at every step from now on.
    pub fn at_each(&self, action: impl Fn(&Self) + Send + Sync + 'static) {
        *self.each.lock() = Some(Arc::new(action));
    }

    /// Starts to count anew, with nothing in the script.
    pub fn rewind(&self) {
        self.script.lock().clear();
        *self.each.lock() = None;
        self.steps.store(0, SeqCst);
    }

    /// The consumer's path: credits, and then drops the token.
    pub fn arrive(&self, trade_no: &str, amount: i64) {
        self.books.lock().credit(trade_no, ALICE.user_id, "cash", amount);
        self.tokens.lock().remove(&(ALICE.user_id, trade_no.to_owned()));
    }

    pub fn balance(&self) -> i64 {
        self.books.lock().balances.get(&(ALICE.user_id, "cash".to_owned())).copied().unwrap_or_default()
    }

    async fn step(&self) {
        let step = self.steps.fetch_add(1, SeqCst);
        let each = self.each.lock().clone();
        if let Some(each) = each {
            each(self);
        }
        let what = self.script.lock().remove(&step);
        match what {
            None => {}
            Some(At::Do(action)) => action(self),
            Some(At::Hang) => std::future::pending().await,
        }
        // Others may run here.
        tokio::task::yield_now().await;
    }
}

/// One part of a world.
pub struct Part(pub Arc<World>);

#[async_trait]
impl TokenStore for Part {
    async fn put(&self, _: &[TokenPut]) -> Result<(), Unavailable> {
        unreachable!("a wallet stores no token")
    }

    async fn remove(&self, _: &[TokenKey]) -> Result<(), Unavailable> {
        unreachable!("a wallet removes no token")
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        self.0.step().await;
        let found = {
            let tokens = self.0.tokens.lock();
            let one = |key: &TokenKey| {
                tokens.get(&(key.user_id, key.name.to_string())).map(|text| text.as_str().into())
            };
            keys.iter().map(one).collect()
        };
        self.0.step().await;
        if *self.0.store_down.lock() { Err(Unavailable("switched off".into())) } else { Ok(found) }
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        self.0.step().await;
        let page = {
            let tokens = self.0.tokens.lock();
            let of_user = tokens.iter().filter(|((user, trade_no), _)| {
                *user == user_id && after.is_none_or(|after| trade_no.as_str() > after)
            });
            let stored = |((_, trade_no), text): (&(i64, String), &String)| StoredToken {
                name: trade_no.as_str().into(),
                token: text.as_str().into(),
            };
            of_user.take(limit).map(stored).collect()
        };
        self.0.step().await;
        if *self.0.store_down.lock() { Err(Unavailable("switched off".into())) } else { Ok(page) }
    }
}

#[async_trait]
impl Rewards for Part {
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        self.0.step().await;
        let replies = {
            let mut books = self.0.books.lock();
            let grant = |event: &Bytes| {
                let event = EventRef::parse(event).unwrap();
                assert_eq!(event.bonus_type, bonus_type);
                match books.grants.get(event.trade_no).cloned() {
                    Some(reply) => {
                        books.granted.push(event.trade_no.to_owned());
                        reply
                    }
                    None => books.credit(event.trade_no, event.user_id, bonus_type, event.amount),
                }
            };
            events.iter().map(grant).collect()
        };
        self.0.step().await;
        replies
    }

    async fn archive(&self, _: &[Failed]) -> Result<(), ArchiveUnavailable> {
        unreachable!("a wallet archives nothing")
    }
}

#[async_trait]
impl Accounts for Part {
    async fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, AccountsError> {
        self.0.step().await;
        let of_user = {
            let books = self.0.books.lock();
            let own = books.balances.iter().filter(|((user, _), _)| *user == user_id);
            own.map(|((_, bonus_type), balance)| (bonus_type.clone(), *balance)).collect()
        };
        self.0.step().await;
        Ok(of_user)
    }

    async fn flow(&self, user_id: i64, after: &str, limit: usize) -> Result<FlowPage, AccountsError> {
        self.0.step().await;
        let page = self.0.books.lock().page(user_id, after, limit);
        self.0.step().await;
        page
    }

    async fn orders(&self, names: &[OrderName]) -> Result<Vec<Option<StoredOrder>>, AccountsError> {
        self.0.step().await;
        let orders = {
            let books = self.0.books.lock();
            names.iter().map(|name| books.orders.get(&name.trade_no).cloned()).collect()
        };
        self.0.step().await;
        Ok(orders)
    }

    async fn withdraw(&self, order: &Withdrawal) -> Result<WithdrawalOutcome, AccountsError> {
        self.0.step().await;
        let withdrawn = self.0.books.lock().withdraw(order);
        self.0.step().await;
        Ok(withdrawn)
    }
}

/// A wallet over a world, and what mints its tokens.
pub struct Desk {
    pub world: Arc<World>,
    pub wallet: Wallet,
    pub ring: KeyRing,
}

impl Desk {
    pub fn new() -> Self {
        Self::with(WalletOptions::default())
    }

    pub fn with(options: WalletOptions) -> Self {
        let rules =
            windfall_config::parse_rules(include_str!("../../../config/samples/rules.toml"), None).unwrap();
        let rules = LiveRules::fixed(Rules { revocations: std::iter::empty().collect(), ..rules });
        let world = Arc::new(World::default());
        let part = || Arc::new(Part(Arc::clone(&world)));
        let ring = KeyRing::ephemeral().unwrap();
        let parts = TokenParts { keys: ring.clone(), store: part(), rules };
        let verifier = Arc::new(KeyRingVerifier::open(TokenOptions::default(), parts).unwrap());
        let parts = WalletParts { verifier, rewards: part(), accounts: part() };
        let wallet = Wallet::open(options, parts).unwrap();
        Self { world, wallet, ring }
    }

    pub async fn withdraw(&self, user: User<'_>, asked: &Asked) -> Result<Receipt, WithdrawError> {
        let withdrawal = Withdrawal { user_id: user.user_id, ..asked.withdrawal.clone() };
        self.wallet.withdraw(user.tenant, &withdrawal, &asked.texts).await
    }

    pub fn mint(&self, user_id: i64, trade_no: &str, bonus_type: &str, amount: i64) -> String {
        let fields = TokenFields {
            trade_no,
            user_id,
            app_id: ALICE.tenant,
            activity: "spring-2027",
            scene: "rain",
            bonus_type,
            amount,
            award_time_ms: 1_800_000_000_000,
            description: "",
        };
        self.ring.minter(ALICE.tenant).unwrap().mint(&fields, 0).unwrap()
    }

    /// A token of Alice's that the store holds.
    pub fn hold(&self, trade_no: &str, amount: i64) -> String {
        self.hold_of(trade_no, "cash", amount)
    }

    pub fn hold_of(&self, trade_no: &str, bonus_type: &str, amount: i64) -> String {
        let text = self.mint(ALICE.user_id, trade_no, bonus_type, amount);
        self.world.tokens.lock().insert((ALICE.user_id, trade_no.to_owned()), text.clone());
        text
    }
}

/// A withdrawal, and the tokens that the front end holds.
#[derive(Debug)]
pub struct Asked {
    pub withdrawal: Withdrawal,
    pub texts: Vec<String>,
}

pub fn asked(id: &str, amount: i64, texts: &[&str]) -> Asked {
    let (user_id, bonus_type) = (ALICE.user_id, "cash".to_owned());
    Asked {
        withdrawal: Withdrawal { id: id.into(), user_id, bonus_type, amount },
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
    }
}

pub fn busy() -> GrantReply {
    GrantReply::Retry { after_ms: 70, reason: RetryReason::Busy }
}

pub fn rejected() -> (GrantReply, Status) {
    (GrantReply::Rejected(Rejection::BudgetExhausted), Status::Rejected(Reason::BudgetExhausted))
}
