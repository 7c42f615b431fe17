//! Processes start while a server that they work with is away: they serve what they can, say what is missing, and take
//! it up within five seconds of its return.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;
use windfall_servers::{KafkaOptions, PostgresOptions, Private, RedisOptions, Spec};
use windfall_tests::{Answer, Ground, Run, Service, plain, scratch};

/// What a process may take to notice that a server is back, and a slow machine.
const TAKEN_UP: Duration = Duration::from_secs(5 + 3);
const PATIENCE: Duration = Duration::from_secs(60);

const CALLERS: [(&str, &str); 4] =
    [("activity", "send"), ("wallet-front", "verify"), ("grants", "grant"), ("timers", "schedule")];

/// `servers` are lines of the options file.
fn ground_at(dir: &Path, servers: &str) -> Ground {
    Ground::new(dir, &CALLERS, servers)
}

fn order(nth: u32) -> Value {
    json!({
        "trade_no": format!("outage/rain/{nth}"), "user": {"user_id": 7}, "activity": "outage", "scene": "rain",
        "bonus": {"type": "cash", "amount": 5, "description": "red packet"},
    })
}

fn is_whole(answer: &Answer) -> bool {
    answer.status == 200 && answer.body["missing"].is_null()
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_reward_service_starts_without_postgres_and_grants_when_it_is_back() {
    let postgres = Private::start(PostgresOptions::default()).unwrap();
    let dir = scratch();
    let ground = ground_at(dir.path(), &format!("[ledger.postgres]\nurl = {:?}\n", postgres.url()));
    postgres.kill().unwrap();
    let service = ground.start_unready("reward-service");
    let unready = service.ready_until(PATIENCE, |answer| answer.status == 503);
    let why = unready.body["failing"]["ledger"].as_str().unwrap();
    assert!(why.contains("PostgreSQL") && unready.body["failing"]["budgets"].is_string(), "{unready:?}");
    let grant = || service.post("grants", None, "/v1/rewards/grant", &json!({ "event": order(1) }));
    let refused = grant();
    assert_ne!(refused.body["outcome"], "GRANT_OUTCOME_CREDITED", "{refused:?}");
    postgres.start().unwrap();
    service.ready_until(TAKEN_UP, is_whole);
    let granted = grant();
    assert_eq!(granted.body["outcome"], "GRANT_OUTCOME_CREDITED", "{granted:?}");
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
    // It was opened by the process that waited for it.
    let service = ground.start("wallet");
    assert_eq!(service.stop().code, Some(0));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_gateway_sends_without_redis_and_a_token_service_says_that_it_lacks_it() {
    let redis = Private::start(RedisOptions::default()).unwrap();
    let dir = scratch();
    let ground = ground_at(dir.path(), &format!("[tokens.redis]\nurls = [{:?}]\n", redis.url()));
    redis.kill().unwrap();
    let tokens = ground.start_unready("token-service");
    let gateway = ground.start("sdk-gateway");
    let weak = gateway.ready_until(PATIENCE, |answer| answer.body["missing"]["tokens"].is_string());
    assert_eq!(weak.status, 200, "{weak:?}");
    let sent = gateway.post("activity", None, "/v1/bonuses/send", &order(1));
    assert_eq!(sent.status, 200, "{sent:?}");
    redis.start().unwrap();
    gateway.ready_until(TAKEN_UP, is_whole);
    tokens.ready_until(TAKEN_UP, is_whole);
    for service in [gateway, tokens] {
        assert_eq!(service.stop().code, Some(0));
    }
}

/// The options of a scheduler whose timers lie in this Redis.
fn scheduling(redis: &Private, shards: u16) -> String {
    format!(
        "[scheduler]\nshards = {shards}\nstore = {{ redis = {{ urls = [{:?}] }} }}\n\
         [scheduler.tenants.windfall.targets.topic]\nto = {{ topic = {{ broker = \"a\", topic = \"fired\" }} }}\n",
        redis.url()
    )
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_scheduler_starts_without_redis_and_keeps_and_fires_timers_when_it_is_back() {
    let redis = Private::start(RedisOptions::default()).unwrap();
    let dir = scratch();
    let ground = ground_at(dir.path(), &scheduling(&redis, 64));
    redis.kill().unwrap();
    let service = ground.start_unready("scheduler");
    let unready = service.ready_until(PATIENCE, |answer| answer.status == 503);
    let why = unready.body["failing"]["scheduler"].as_str().unwrap();
    assert!(why.contains("Redis") && why.contains("cannot be reached"), "{unready:?}");
    let add = |key: &str| {
        let timer = json!({"timer": {"target": "topic", "due_ms": 1, "key": key}});
        service.post("timers", None, "/v1/timers/add", &timer)
    };
    let refused = add("early");
    assert_eq!((refused.status, &refused.body["code"]), (503, &json!("UNAVAILABLE")), "{refused:?}");
    redis.start().unwrap();
    service.ready_until(TAKEN_UP, is_whole);
    assert_eq!(add("late").status, 200);
    let is_over = |answer: &Answer| answer.status == 404;
    service.post_until("timers", None, "/v1/timers/get", &json!({"key": "late"}), is_over);
    // A Redis that goes later is missed and waited for, too.
    redis.kill().unwrap();
    let unready = service.ready_until(PATIENCE, |answer| answer.status == 503);
    let why = unready.body["failing"]["scheduler"].as_str().unwrap();
    assert!(why.contains("has not answered for") && why.contains("no connection"), "{unready:?}");
    redis.start().unwrap();
    service.ready_until(TAKEN_UP, is_whole);
    let said = service.said();
    let told = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (told("a part is not there yet"), told("a part is gone"), told("a part is back")),
        (1, 1, 2),
        "{said}"
    );
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_scheduler_ends_when_it_first_reaches_a_redis_that_cannot_keep_its_timers() {
    // A store of another number of shards: at once, and later where Redis is away at the start.
    let redis = Private::start(RedisOptions::default()).unwrap();
    let dir = scratch();
    let first = ground_at(dir.path(), &scheduling(&redis, 64));
    assert_eq!(first.start("scheduler").stop().code, Some(0));
    let other = scratch();
    let ground = ground_at(other.path(), &scheduling(&redis, 32));
    let run = || {
        let options = ["scheduler", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
        let run = Run::new(plain()).args(options).arg(other.path().join("windfall.toml"));
        run.arg("--data").arg(other.path().join("own")).end()
    };
    let ended = run();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("shards: 32") && ended.stderr.contains("was made with 64"), "{ended}");
    redis.kill().unwrap();
    let service = ground.start_unready("scheduler");
    redis.start().unwrap();
    let ended = service.end();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("windfall: ") && ended.stderr.contains("was made with 64"), "{ended}");

    let forgetful = Private::start(RedisOptions { appendonly: false, ..RedisOptions::default() }).unwrap();
    let dir = scratch();
    let ground = ground_at(dir.path(), &scheduling(&forgetful, 64));
    forgetful.kill().unwrap();
    let service = ground.start_unready("scheduler");
    forgetful.start().unwrap();
    let ended = service.end();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("set appendonly yes on the server"), "{ended}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn without_etcd_a_process_waits_for_its_first_rules_and_starts_with_a_copy_afterwards() {
    let etcd = Private::start(Spec::Etcd).unwrap();
    let dir = scratch();
    let ground = ground_at(dir.path(), &format!("[rules.etcd]\nendpoints = [{:?}]\n", etcd.url()));
    etcd.kill().unwrap();
    let service = ground.start_unready("sdk-gateway");
    let waiting = service.ready_until(PATIENCE, |answer| answer.body["failing"]["rules"].is_string());
    assert_eq!(waiting.status, 503, "{waiting:?}");
    service.kill();

    etcd.start().unwrap();
    let etcd_at = || ["--etcd", etcd.url()];
    let set = Run::new(plain()).args(["rules", "set"]).arg(dir.path().join("rules.toml"));
    let set = set.args(["--who", "ann", "--why", "first"]).args(etcd_at()).end();
    assert_eq!(set.code, Some(0), "{set}");
    let service = ground.start("sdk-gateway");
    service.ready_until(PATIENCE, is_whole);
    let status = || Run::new(plain()).args(["rules", "status", "--json"]).args(etcd_at()).end();
    let seen = status();
    assert_eq!(seen.json()["processes"][0]["state"], "runs", "{seen}");
    service.kill();
    etcd.kill().unwrap();
    let service = ground.start("sdk-gateway");
    let weak = service.ready_until(PATIENCE, |answer| answer.body["missing"]["rules"].is_string());
    let why = weak.body["missing"]["rules"].as_str().unwrap();
    assert!(why.contains("version 1 runs from the copy on disk") && why.contains(" s ago"), "{why}");
    assert_eq!(service.post("activity", None, "/v1/bonuses/send", &order(1)).status, 200);
    etcd.start().unwrap();
    service.ready_until(TAKEN_UP, is_whole);
    assert_eq!(service.stop().code, Some(0));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn gateway_and_consumer_start_without_a_broker_and_without_both() {
    let kafkas = ["a", "b"].map(|_| Private::start(KafkaOptions::default()).unwrap());
    let dir = scratch();
    let [a, b] =
        kafkas.each_ref().map(|kafka| format!("kafka = {{ bootstrap_servers = {:?} }}\n", kafka.url()));
    let ground = ground_at(dir.path(), &format!("[brokers.a]\n{a}[brokers.b]\n{b}")).with_signing();
    let is_without = |answer: &Answer, name: &str| answer.body["missing"][name].is_string();
    let send = |gateway: &Service, nth: u32| {
        let sent = gateway.post("activity", None, "/v1/bonuses/send", &order(nth));
        assert_eq!(sent.status, 200, "{sent:?}");
    };
    kafkas[1].kill().unwrap();
    let (gateway, consumer) = (ground.start("sdk-gateway"), ground.start("consumer"));
    let weak = gateway.ready_until(PATIENCE, |answer| is_without(answer, "outbox of cash-b on b"));
    assert_eq!(weak.status, 200, "{weak:?}");
    consumer.ready_until(PATIENCE, |answer| {
        answer.status == 200 && is_without(answer, "consumer of cash-b on b")
    });
    send(&gateway, 1);
    kafkas[1].start().unwrap();
    gateway.ready_until(TAKEN_UP, is_whole);
    consumer.ready_until(TAKEN_UP, is_whole);
    for service in [gateway, consumer] {
        assert_eq!(service.stop().code, Some(0));
    }

    kafkas.iter().for_each(|kafka| kafka.kill().unwrap());
    let (gateway, consumer) = (ground.start("sdk-gateway"), ground.start_unready("consumer"));
    let unready = consumer.ready_until(PATIENCE, |answer| answer.status == 503);
    assert!(unready.body["failing"]["consumers"].is_string(), "{unready:?}");
    send(&gateway, 2);
    kafkas.iter().for_each(|kafka| kafka.start().unwrap());
    gateway.ready_until(TAKEN_UP, is_whole);
    consumer.ready_until(TAKEN_UP, is_whole);
    for service in [gateway, consumer] {
        assert_eq!(service.stop().code, Some(0));
    }
}
