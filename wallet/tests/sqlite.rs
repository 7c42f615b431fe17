//! The race on a real ledger: users withdraw all they have while the same rewards arrive by the consumer's path.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bytes::Bytes;
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::accounts::{Status, Withdrawal, WithdrawalOutcome};
use windfall_contract::rewards::Rewards as _;
use windfall_contract::tokens::{NEVER, TokenKey, TokenPut, TokenStore, name};
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, OrderId, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{GrantObserver, RewardHandle, RewardOptions, RewardService};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
use windfall_token::{KeyRing, TokenFields};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};
use windfall_wallet::{Wallet, WalletOptions, WalletParts, WithdrawError};

const USERS: i64 = 40;
const REWARDS: i64 = 25;
/// 1 + 2 + … + 25.
const TOTAL: i64 = REWARDS * (REWARDS + 1) / 2;

fn event(user_id: i64, nth: i64) -> (String, Bytes) {
    let trade_no = format!("rain-{user_id}-{nth}");
    let event = EventRef {
        trade_no: &trade_no,
        user_id,
        app_id: "acme",
        device_id: "a phone",
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: nth,
        first_sent_ms: 5,
        ..EventRef::default()
    };
    let mut bytes = Vec::new();
    event.encode([("from", "the sdk")], &mut bytes);
    (trade_no, bytes.into())
}

/// All tokens of all users, held by the store.
async fn hand_out(ring: &KeyRing, store: &dyn TokenStore) {
    let minter = ring.minter("acme").unwrap();
    for user_id in 1..=USERS {
        let put = |nth| {
            let trade_no = format!("rain-{user_id}-{nth}");
            let fields = TokenFields {
                trade_no: &trade_no,
                user_id,
                app_id: "acme",
                activity: "spring",
                scene: "rain",
                bonus_type: "cash",
                amount: nth,
                ..TokenFields::default()
            };
            let token = minter.mint(&fields, 0).unwrap().into();
            TokenPut { user_id, name: name("spring", &trade_no), token, expires_at_ms: NEVER }
        };
        store.put(&(1..=REWARDS).map(put).collect::<Vec<_>>()).await.unwrap();
    }
}

/// Grants every event, in an order of the seed's.
async fn consume(rewards: RewardHandle, mut seed: u64) {
    let mut events: Vec<Bytes> =
        (1..=USERS).flat_map(|user_id| (1..=REWARDS).map(move |nth| event(user_id, nth).1)).collect();
    while !events.is_empty() {
        let mut part = Vec::new();
        for _ in 0..20.min(events.len()) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(seed >> 33).unwrap() % events.len();
            part.push(events.swap_remove(at));
        }
        let replies = rewards.grant_batch("cash", &part).await;
        // What is not decided comes again, as in the consumer.
        events.extend(
            part.into_iter().zip(replies).filter(|(_, reply)| !reply.is_final()).map(|(event, _)| event),
        );
    }
}

/// Withdraws until there is an outcome.
async fn withdraw(wallet: Wallet, user_id: i64) -> WithdrawalOutcome {
    let asked = Withdrawal { id: format!("w-{user_id}"), user_id, bonus_type: "cash".into(), amount: TOTAL };
    loop {
        match wallet.withdraw("acme", &asked, &[]).await {
            Ok(receipt) => return receipt.outcome,
            Err(WithdrawError::Unanswered { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("user {user_id}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_once_and_each_withdrawal_once() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&folder.path().join("tokens"), &EmbeddedStoreOptions::default()).unwrap();
    let ring = KeyRing::ephemeral().unwrap();
    hand_out(&ring, &*store).await;

    // Tokens of what was credited go, some time later.
    let (credited, mut dropping) = tokio::sync::mpsc::channel::<TokenKey>(10_000);
    let observer: GrantObserver = Arc::new(move |keys: &[(i64, OrderId<'_>)]| {
        for (user_id, id) in keys {
            credited.try_send(TokenKey { user_id: *user_id, name: name(id.activity, id.trade_no) }).unwrap();
        }
    });
    let path = folder.path().join("ledger.db");
    let ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    let rewards =
        RewardService::start(RewardOptions::default(), ledger, vec![], Some(observer), Clock::system())
            .unwrap();
    let dropper = tokio::spawn({
        let store = store.clone();
        async move {
            while let Some(key) = dropping.recv().await {
                store.remove(&[key]).await.ok();
            }
        }
    });

    let rules = windfall_config::parse_rules(include_str!("../../config/samples/rules.toml"), None).unwrap();
    let parts = TokenParts { keys: ring, store: store.clone(), rules: LiveRules::fixed(rules) };
    let verifier = Arc::new(KeyRingVerifier::open(TokenOptions::default(), parts).unwrap());
    let parts =
        WalletParts { verifier, rewards: Arc::new(rewards.clone()), accounts: Arc::new(rewards.clone()) };
    let wallet = Wallet::open(WalletOptions::default(), parts).unwrap();

    let consumer = tokio::spawn(consume(rewards.clone(), seed));
    let calls: Vec<_> = (1..=USERS)
        .flat_map(|user_id| [user_id; 2])
        .map(|user_id| (user_id, tokio::spawn(withdraw(wallet.clone(), user_id))))
        .collect();
    let mut taken = BTreeSet::new();
    for (user_id, call) in calls {
        match call.await.unwrap() {
            WithdrawalOutcome::ToPayOut => {
                taken.insert(user_id);
            }
            other => panic!("user {user_id}: {other:?}"),
        }
    }
    consumer.await.unwrap();
    println!("{:?}", wallet.stats());
    assert_eq!(taken.len(), usize::try_from(USERS).unwrap());
    let listed = rewards.to_pay_out(0, "", 10_000).await.unwrap();
    let users: Vec<i64> = listed.iter().map(|one| one.withdrawal.user_id).collect();
    assert_eq!(users.len(), taken.len(), "a user is to be paid twice");
    assert_eq!(users.into_iter().collect::<BTreeSet<_>>(), taken);
    drop(wallet);
    rewards.close();
    drop(rewards);
    dropper.abort();

    let reader = LedgerReader::open(&path).unwrap();
    for user_id in 1..=USERS {
        assert!(reader.balances(user_id).unwrap().iter().all(|(_, balance)| *balance == 0), "user {user_id}");
        for nth in 1..=REWARDS {
            let order = reader
                .order(OrderId { activity: "spring", trade_no: &event(user_id, nth).0 })
                .unwrap()
                .unwrap();
            assert_eq!((order.status, order.amount), (Status::Credited, nth));
        }
    }
    let sums = reader.reconcile().unwrap();
    assert!(sums.is_clean(), "{sums:?}");
}
