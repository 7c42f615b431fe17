//! Users withdraw while the same rewards arrive through the queue and are forced through tokens at once, on Kafka, Redis
//! and PostgreSQL, with processes killed all the while. Each order once, every withdrawal once, balances equal the
//! sums, no budget over. 10,000 users and 100,000 rewards, or as many users as `RACE_USERS` says.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};
use windfall_contract::accounts::Status;
use windfall_ledger::{LedgerReader, PostgresOptions};
use windfall_servers::Servers;
use windfall_tests::{AboutMoney, Run, Seed, Service, plain, scratch, sign};

/// Rewards of a user; each of another amount.
const EACH: i64 = 10;
/// Users who withdraw at the same time.
const WITHDRAWERS: usize = 24;
/// Rewards of one call.
const BATCH: i64 = 500;
const PATIENCE: Duration = Duration::from_secs(400);

fn users() -> i64 {
    std::env::var("RACE_USERS").ok().map_or(10_000, |text| text.parse().unwrap())
}

fn amount(user: i64, nth: i64) -> i64 {
    1 + (user * 7 + nth * 13) % 997
}

fn sum(user: i64) -> i64 {
    (0..EACH).map(|nth| amount(user, nth)).sum()
}

fn trade_no(user: i64, nth: i64) -> String {
    format!("race/rain/{user}/{nth}")
}

/// Everything that the processes share, in files.
struct Ground {
    dir: PathBuf,
    options: PathBuf,
    keys: BTreeMap<String, String>,
    url: String,
    schema: String,
}

impl Ground {
    fn new(dir: &Path) -> Self {
        let servers = Servers::from_env_or_start(&["kafka", "kafka2", "redis", "postgres"]).unwrap();
        let url = |name: &str| servers.server(name).unwrap().url().to_owned();
        let run = format!("race{}", std::process::id());
        let keys_file = dir.join("keys.toml");
        let made = Run::new(plain()).args(["keys", "new", "--file"]).arg(&keys_file).end();
        assert_eq!(made.code, Some(0), "{made}");
        let callers = [("activity", "send"), ("wallet-front", "verify"), ("operator", "operate")];
        let (mut keys, mut access) = (BTreeMap::new(), String::new());
        for (name, role) in callers {
            let key = Run::new(plain()).args(["access", "new-key", "--json"]).end().json();
            access.push_str(&format!(
                "[[caller]]\nname = {name:?}\ntenant = \"windfall\"\nroles = [{role:?}]\n\
                 key_sha256 = {}\nmay_name_users = {}\n\n",
                key["key_sha256"],
                role == "verify"
            ));
            keys.insert(name.to_owned(), key["key"].as_str().unwrap().to_owned());
        }
        fs::write(dir.join("access.toml"), access).unwrap();
        let total: i64 = (1..=users()).map(sum).sum();
        fs::write(dir.join("rules.toml"), rules(total)).unwrap();
        let own = |name: &str| dir.join(name);
        let options = own("windfall.toml");
        let text = format!(
            r#"
keys = {keys_file:?}
access = {access:?}
rules = {{ file = {rules:?} }}

[brokers.a.kafka]
bootstrap_servers = {kafka:?}
prefix = "{run}-"

[brokers.b.kafka]
bootstrap_servers = {kafka2:?}
prefix = "{run}-"

[tokens.redis]
urls = [{redis:?}]
prefix = "{run}:"

[ledger.postgres]
url = {postgres:?}
schema = "{run}"
"#,
            access = own("access.toml"),
            rules = own("rules.toml"),
            kafka = url("kafka"),
            kafka2 = url("kafka2"),
            redis = url("redis"),
            postgres = url("postgres"),
        );
        fs::write(&options, text).unwrap();
        sign(dir, &options);
        Self { dir: dir.to_owned(), options, keys, url: url("postgres"), schema: run }
    }

    fn start(&self, role: &str, name: &str) -> Service {
        let data = self.dir.join(name);
        let args = [role, "--config"].map(OsStr::new);
        let args = args.into_iter().chain([self.options.as_os_str()]);
        let args = args.chain(["--listen", "127.0.0.1:0", "--data"].map(OsStr::new));
        Service::start(args, data.as_os_str()).with_keys(self.keys.clone())
    }

    fn ledger(&self) -> LedgerReader {
        let options = PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::default() };
        LedgerReader::connect(&self.url, &options).unwrap()
    }
}

/// A budget that is spent to the last piece, so that one credit too many would be seen.
fn rules(total: i64) -> String {
    format!(
        r#"version = 1
types = ["cash"]

[topics]
cash-a = {{ broker = "a", partitions = 8 }}
cash-b = {{ broker = "b", partitions = 8 }}

[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 80

[[routes]]
type = "*"
queue = "cash"

[limits.global]
rate_per_s = 100000
burst = 1000

[limits.default]
rate_per_s = 2500
burst = 250

[[budgets]]
activity = "race"
scene = "rain"
type = "cash"
total = {total}

[end]
"#
    )
}

/// A process that is killed and started again now and then; callers find it by its number.
struct Pool {
    services: Vec<Mutex<Option<Service>>>,
}

impl Pool {
    fn post(&self, at: usize, user: i64, path: &str, body: &Value) -> Option<(u16, Value)> {
        // A copy of what a call needs: nobody holds the lock while it waits for an answer.
        let caller = self.services[at % self.services.len()].lock().unwrap().as_ref()?.caller();
        let answer = caller.try_post("wallet-front", Some(user), path, body)?;
        Some((answer.status, answer.body))
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn withdrawals_race_with_the_queue() {
    let dir = scratch();
    let ground = Ground::new(dir.path());
    let gateway = ground.start("sdk-gateway", "gateway");
    let wallets = Pool {
        services: (0..2)
            .map(|at| Mutex::new(Some(ground.start("wallet", &format!("wallet-{at}")))))
            .collect(),
    };
    let consumers = Pool {
        services: (0..2)
            .map(|at| Mutex::new(Some(ground.start("consumer", &format!("consumer-{at}")))))
            .collect(),
    };
    let (done, killed, forced) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (ready, waiting) = mpsc::sync_channel::<(i64, Vec<String>)>(1_000);
    let waiting = Mutex::new(waiting);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_now_and_then(&ground, &wallets, &consumers, &done, &killed));
        let withdrawers: Vec<_> = (0..WITHDRAWERS)
            .map(|at| {
                let (waiting, wallets, forced) = (&waiting, &wallets, &forced);
                scope.spawn(move || {
                    loop {
                        let next = waiting.lock().unwrap().recv();
                        let Ok((user, tokens)) = next else { break };
                        forced.fetch_add(withdraw(wallets, at, user, &tokens), Relaxed);
                    }
                })
            })
            .collect();
        send_all(&gateway, &ready);
        drop(ready);
        for withdrawer in withdrawers {
            withdrawer.join().unwrap();
        }
        done.store(true, Relaxed);
        killer.join().unwrap();
    });
    println!(
        "{} users withdrew within {:?}; {} credits were forced; {} processes were killed",
        users(),
        started.elapsed(),
        forced.load(Relaxed),
        killed.load(Relaxed)
    );
    assert!(killed.load(Relaxed) >= 2 && forced.load(Relaxed) > 0, "the race was none");
    check(&ground);
    let ended = gateway.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
}

/// Sends each user's rewards; hands the user on with all tokens.
fn send_all(gateway: &Service, ready: &mpsc::SyncSender<(i64, Vec<String>)>) {
    let users_a_call = BATCH / EACH;
    for first in (1..=users()).step_by(usize::try_from(users_a_call).unwrap()) {
        let batch: Vec<i64> = (first..(first + users_a_call).min(users() + 1)).collect();
        let requests = batch.iter().flat_map(|&user| (0..EACH).map(move |nth| reward(user, nth)));
        let requests: Vec<Value> = requests.collect();
        let taken = gateway.post_until(
            "activity",
            None,
            "/v1/bonuses/send-batch",
            &json!({"requests": requests}),
            |answer| {
                let results = answer.body["results"].as_array();
                results.is_some_and(|results| results.iter().all(|one| one["token"].is_string()))
            },
        );
        let mut tokens = taken.body["results"].as_array().unwrap().iter();
        for user in batch {
            let own = tokens.by_ref().take(usize::try_from(EACH).unwrap());
            let own = own.map(|one| one["token"].as_str().unwrap().to_owned()).collect();
            ready.send((user, own)).unwrap();
        }
    }
}

fn reward(user: i64, nth: i64) -> Value {
    json!({
        "trade_no": trade_no(user, nth),
        "user": {"user_id": user},
        "activity": "race",
        "scene": "rain",
        "bonus": {"type": "cash", "amount": amount(user, nth)},
    })
}

/// Withdraws all that the user was sent, asking again with the same id until it is settled; some users ask twice at
/// once. Answers how many credits were forced.
fn withdraw(wallets: &Pool, at: usize, user: i64, tokens: &[String]) -> u64 {
    let body = json!({
        "withdrawal_id": format!("w-{user}"),
        "bonus_type": "cash",
        "amount": sum(user),
        "tokens": tokens,
    });
    let until = Instant::now() + PATIENCE;
    let settle = |mut wallet: usize| {
        let mut forced = 0;
        loop {
            let answer = wallets.post(wallet, user, "/v1/wallet/withdraw", &body);
            wallet += 1;
            if let Some((status, reply)) = &answer {
                let outcome = reply["outcome"].as_str().unwrap_or_default();
                forced += reply["credited_tokens"].as_u64().unwrap_or(0);
                if *status == 200 && outcome == "WITHDRAW_OUTCOME_TO_PAY_OUT" {
                    return forced;
                }
                // Tokens go to the store on the side: one that is not there yet is Unknown, and the balance short.
                let is_short = reply["code"] == "FAILED_PRECONDITION";
                assert!(is_short || matches!(status, 200 | 429 | 503 | 504), "user {user}: {answer:?}");
            }
            assert!(Instant::now() < until, "user {user} is not settled: {answer:?}");
            std::thread::sleep(Duration::from_millis(30));
        }
    };
    if user % 5 == 0 {
        return std::thread::scope(|scope| {
            let other = scope.spawn(|| settle(at + 1));
            settle(at) + other.join().unwrap()
        });
    }
    settle(at)
}

fn kill_now_and_then(
    ground: &Ground,
    wallets: &Pool,
    consumers: &Pool,
    done: &AtomicBool,
    killed: &AtomicU64,
) {
    let mut seed = Seed::new("race");
    while !done.load(Relaxed) {
        let pause = Instant::now() + Duration::from_millis(2_000 + seed.below(3_000));
        while Instant::now() < pause && !done.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if done.load(Relaxed) {
            break;
        }
        let at = usize::try_from(seed.below(2)).unwrap();
        let (pool, role) = if seed.below(2) == 0 { (wallets, "wallet") } else { (consumers, "consumer") };
        let gone = pool.services[at].lock().unwrap().take();
        drop(gone.map(Service::kill));
        killed.fetch_add(1, Relaxed);
        *pool.services[at].lock().unwrap() = Some(ground.start(role, &format!("{role}-{at}")));
    }
}

/// Believes nothing but the ledger's rows.
fn check(ground: &Ground) {
    let _about = AboutMoney;
    let ledger = ground.ledger();
    let mut seen: BTreeMap<i64, i64> = BTreeMap::new();
    for order in ledger.orders().unwrap() {
        let order = order.unwrap();
        assert_eq!((order.status, order.credits), (Status::Credited, 1), "{}", order.trade_no);
        *seen.entry(order.user_id).or_default() += order.amount;
    }
    assert_eq!(i64::try_from(seen.len()).unwrap(), users());
    for user in 1..=users() {
        assert_eq!(seen[&user], sum(user), "the orders of user {user}");
        let left = ledger.balances(user).unwrap();
        assert!(left.iter().all(|(_, balance)| *balance == 0), "user {user} has withdrawn all: {left:?}");
    }
    let budgets = ledger.budgets().unwrap();
    let budget = &budgets[0];
    let total: i64 = (1..=users()).map(sum).sum();
    assert_eq!((budget.total, budget.used, budget.reserved), (Some(total), total, 0), "{budgets:?}");
    let found = ledger.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}
