//! `token.verify`: verifications per second of the token service in process, batches of 64 tokens of a user, HMAC, the
//! tokens in a real Redis, four calls at once. Beside it by hand: the same tokens opened by the same key ring, read by
//! one command per batch with the same client crate, and not even compared. In `more` the same calls over gRPC,
//! and how long a list of 500 tokens takes while half of the load goes on.

use crate::measure::{Row, Unit, median, per};
use crate::mint::FIELDS;
use crate::served::Served;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_client::{EndUser, TokensClient};
use windfall_config::LiveRules;
use windfall_contract::tokens::{NEVER, TokenPut, TokenStore, name};
use windfall_contract::verifier::{Page, Verdict};
use windfall_edge::{Role, Router};
use windfall_proto::v1::{ListTokensRequest, TokenVerdict};
use windfall_servers::{Private, RedisOptions as ServerOptions};
use windfall_store::redis::{RedisOptions, RedisStore};
use windfall_token::{KeyRing, TokenFields};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts, TokenService};

const BATCH: usize = 64;
const USERS: i64 = 200;
const CALLERS: i64 = 4;
/// Each caller asks for each of its users so often a run.
const LAPS: usize = 20;
const RUNS: usize = 7;
/// Tokens of the one who has many.
const MANY: usize = 500;
const LISTS: usize = 400;
const RICH: i64 = 1_000_000;
const PREFIX: &str = "windfall:tokens:";

/// Tokens by user.
type Held = Arc<Vec<(i64, Vec<String>)>>;

pub fn measure(name: &'static str) -> Result<Row> {
    let server = Private::start(ServerOptions::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(name, server.url()))
}

async fn run(name: &'static str, url: &str) -> Result<Row> {
    let ring = KeyRing::ephemeral()?;
    let store = RedisStore::open(RedisOptions::at(url)).await?;
    let held = fill(&ring, &*store).await?;
    let rules = LiveRules::fixed(windfall_config::parse_rules(RULES, None)?);
    let parts = TokenParts { keys: ring.clone(), store: Arc::clone(&store) as _, rules };
    let book = KeyRingVerifier::open(TokenOptions::default(), parts)?;
    let router = Router::new().tokens(Arc::new(TokenService::new(book.clone())));
    let served = Served::start(router, Role::Verify).await?;
    let client = TokensClient::open(served.client())?;
    let redis = redis::Client::open(url)?;
    let (mut ours, mut bare, mut grpc) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let asked = book.clone();
        let by_book = callers(&held, move |user_id, texts| {
            let (book, texts) = (asked.clone(), texts.to_vec());
            async move {
                let verdicts = book.verify(FIELDS.app_id, user_id, &texts).await?;
                Ok(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Valid(_))).count())
            }
        });
        let own = by_book.await?;
        let hand = by_hand(&ring, &redis, &held).await?;
        let asked = client.clone();
        let over_grpc = callers(&held, move |user_id, texts| {
            let (client, texts) = (asked.clone(), texts.to_vec());
            async move {
                let tokens = client.verify(EndUser::Named(user_id), texts).await?;
                Ok(tokens.iter().filter(|token| token.verdict() == TokenVerdict::Valid).count())
            }
        });
        let wire = over_grpc.await?;
        // The first run warms up.
        if run > 0 {
            ours.push(own);
            bare.push(hand);
            grpc.push(wire);
        }
    }
    let ours = median(ours);
    let p99_ms = list_p99_ms(&book, &client, &held, ours / 2.0).await?;
    served.stop().await;
    Ok(Row::new(name, ours, Unit::PerSecond, Some(median(bare)))
        .with("over_grpc_per_s", median(grpc))
        .with("list_500_over_grpc_p99_ms_at_half_load", p99_ms))
}

async fn fill(ring: &KeyRing, store: &dyn TokenStore) -> Result<Held> {
    let minter = ring.minter(FIELDS.app_id)?;
    let mut held = Vec::new();
    let users = (1..=USERS).map(|user_id| (user_id, BATCH)).chain([(RICH, MANY)]);
    for (user_id, count) in users {
        let mut puts = Vec::with_capacity(count);
        for nth in 0..count {
            let trade_no = format!("spring-2027/rain/0000000001/cash/{user_id}/{nth}");
            let fields = TokenFields { trade_no: &trade_no, user_id, ..FIELDS };
            let token = minter.mint(&fields, 0)?;
            puts.push(TokenPut {
                user_id,
                name: name(FIELDS.activity, &trade_no),
                token: token.into(),
                expires_at_ms: NEVER,
            });
        }
        store.put(&puts).await?;
        held.push((user_id, puts.into_iter().map(|put| String::from(put.token)).collect()));
    }
    Ok(Arc::new(held))
}

/// Verifications per second of several callers at once, each with users of its own.
async fn callers<F, A>(held: &Held, ask: F) -> Result<f64>
where
    F: Fn(i64, &[String]) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<usize>> + Send,
{
    let began = Instant::now();
    let work: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (held, ask) = (Arc::clone(held), ask.clone());
            tokio::spawn(async move {
                let mut verified = 0;
                for _ in 0..LAPS {
                    for (user_id, texts) in
                        held.iter().filter(|(id, _)| *id != RICH && id % CALLERS == caller)
                    {
                        let valid = ask(*user_id, texts).await?;
                        ensure!(valid == texts.len(), "{valid} of {} are valid", texts.len());
                        verified += valid as u64;
                    }
                }
                anyhow::Ok(verified)
            })
        })
        .collect();
    let mut verified = 0;
    for caller in work {
        verified += caller.await??;
    }
    Ok(per(verified, 1) / began.elapsed().as_secs_f64())
}

async fn by_hand(ring: &KeyRing, redis: &redis::Client, held: &Held) -> Result<f64> {
    // As many connections as the store has.
    let connections =
        [redis.get_multiplexed_async_connection().await?, redis.get_multiplexed_async_connection().await?];
    let ring = Arc::new(ring.clone());
    callers(held, move |user_id, texts| {
        let (ring, texts) = (Arc::clone(&ring), texts.to_vec());
        let mut connection = connections[usize::try_from(user_id).unwrap_or(0) % 2].clone();
        async move {
            let mut read = redis::cmd("HMGET");
            read.arg(format!("{PREFIX}{user_id}"));
            for text in &texts {
                let token = ring.open(text.as_bytes(), FIELDS.app_id, user_id)?;
                read.arg(&*name(&token.activity, &token.trade_no));
            }
            let stored: Vec<Option<Vec<u8>>> = read.query_async(&mut connection).await?;
            Ok(stored.iter().filter(|one| one.as_ref().is_some_and(|bytes| bytes.len() > 100)).count())
        }
    })
    .await
}

/// How long listing 500 tokens takes, while so many verifications per second go on.
async fn list_p99_ms(
    book: &KeyRingVerifier,
    client: &TokensClient,
    held: &Held,
    load_per_s: f64,
) -> Result<f64> {
    // The same through the service alone, so that a page that is not whole is noticed.
    let whole = book.list(FIELDS.app_id, RICH, None, Page { size: MANY, ..Page::default() }).await?;
    ensure!(whole.tokens.len() == MANY, "{} of {MANY} tokens are listed", whole.tokens.len());
    let over = Arc::new(AtomicBool::new(false));
    let (own, loaded, stop) = (book.clone(), Arc::clone(held), Arc::clone(&over));
    let pause = Duration::from_secs_f64(f64::from(u32::try_from(BATCH)?) / load_per_s);
    let load = tokio::spawn(async move {
        let mut due = tokio::time::Instant::now();
        for (user_id, texts) in loaded.iter().filter(|(id, _)| *id != RICH).cycle() {
            if stop.load(Relaxed) {
                break;
            }
            due += pause;
            tokio::time::sleep_until(due).await;
            own.verify(FIELDS.app_id, *user_id, texts).await?;
        }
        anyhow::Ok(())
    });
    let mut took_ms = Vec::with_capacity(LISTS);
    for _ in 0..LISTS {
        let began = Instant::now();
        let request = ListTokensRequest { page_size: u32::try_from(MANY)?, ..ListTokensRequest::default() };
        let page = client.list(EndUser::Named(RICH), request).await?;
        took_ms.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(page.tokens.len() == MANY, "{} of {MANY} tokens are listed", page.tokens.len());
    }
    over.store(true, Relaxed);
    load.await??;
    took_ms.sort_by(f64::total_cmp);
    took_ms.get(LISTS * 99 / 100).copied().context("nothing was listed")
}

/// The least that rules can be: no revocations.
const RULES: &str = r#"version = 1
types = ["cash"]

[topics]
cash-a = { broker = "a", partitions = 1 }
cash-b = { broker = "b", partitions = 1 }

[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90

[[routes]]
type = "*"
queue = "cash"

[limits.global]
rate_per_s = 1000
burst = 1000

[limits.default]
rate_per_s = 1000
burst = 1000

[end]
"#;
