//! Verification and lists on a real Redis: right, and at what pace.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::tokens::{NEVER, TokenPut, TokenStore as _};
use windfall_contract::verifier::{Page, Verdict};
use windfall_servers::{Private, RedisOptions as ServerOptions};
use windfall_store::redis::{RedisOptions, RedisStore};
use windfall_token::{KeyRing, TokenFields};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};

const USERS: i64 = 64;
const TOKENS: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn tokens_of_redis_are_verified_and_listed() {
    let server = Private::start(ServerOptions::default()).unwrap();
    let options = RedisOptions { call_timeout_ms: 20_000, ..RedisOptions::at(server.url()) };
    let store = RedisStore::open(options).await.unwrap();
    let ring = KeyRing::ephemeral().unwrap();
    let minter = ring.minter("acme").unwrap();
    let mut texts = Vec::new();
    for user_id in 1..=USERS {
        let of_user = (0..TOKENS).map(|n| {
            let trade_no = format!("spring-2027:rain:{n:04}:{user_id}");
            let fields = TokenFields {
                trade_no: &trade_no,
                user_id,
                bonus_type: "cash",
                amount: 8,
                ..Default::default()
            };
            (minter.mint(&fields, 0).unwrap(), trade_no)
        });
        let of_user: Vec<_> = of_user.collect();
        let put = |(text, trade_no): &(String, String)| TokenPut {
            user_id,
            name: trade_no.as_str().into(),
            token: text.as_str().into(),
            expires_at_ms: NEVER,
        };
        store.put(&of_user.iter().map(put).collect::<Vec<_>>()).await.unwrap();
        texts.push(of_user.into_iter().map(|(text, _)| text).collect::<Vec<_>>());
    }
    let rules = LiveRules::fixed(
        windfall_config::parse_rules(include_str!("../../config/samples/rules.toml"), None).unwrap(),
    );
    let parts = TokenParts { keys: ring, store, rules };
    let options = TokenOptions { store_timeout_ms: 20_000 };
    let verifier = KeyRingVerifier::open(options, parts).unwrap();

    let page = verifier.list("acme", 1, None, Page { after: None, size: 500 }).await.unwrap();
    assert_eq!((page.tokens.len(), page.next), (500, None));
    let altered = format!("{}AAAA", &texts[0][0][..texts[0][0].len() - 4]);
    let verdicts = verifier.verify("acme", 1, &[texts[0][0].as_str(), &texts[1][0], &altered]).await.unwrap();
    assert!(matches!(verdicts[..], [Verdict::Valid(_), Verdict::Illegal, Verdict::Illegal]));

    let texts = Arc::new(texts);
    let started = Instant::now();
    let callers = (0..8_usize).map(|caller| {
        let (verifier, texts) = (verifier.clone(), Arc::clone(&texts));
        tokio::spawn(async move {
            let mut verified = 0;
            let mut round = caller;
            while started.elapsed() < Duration::from_secs(3) {
                let user = round % texts.len();
                let from = round * 64 % (TOKENS - 64);
                let user_id = i64::try_from(user).unwrap() + 1;
                let verdicts = verifier.verify("acme", user_id, &texts[user][from..from + 64]).await.unwrap();
                assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Valid(_))));
                verified += verdicts.len();
                round += 8;
            }
            verified
        })
    });
    let mut verified = 0;
    for caller in callers.collect::<Vec<_>>() {
        verified += caller.await.unwrap();
    }
    println!("{} verifications/s in batches of 64", verified * 1_000 / 3_000);
}
