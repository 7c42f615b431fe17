//! Adds of timers by a queue on Kafka, while Redis is frozen, killed, and away when the scheduler starts: each answer is OK, and
//! each timer fires once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};
use windfall_servers::{Private, RedisOptions, Servers};
use windfall_tests::{Deliveries, Ground, Service, now_ms, receiver, scratch};

const PATIENCE: Duration = Duration::from_secs(120);

fn fired(deliveries: &Deliveries) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (_, body) in deliveries.lock().iter() {
        let payload = STANDARD.decode(body["payload"].as_str().unwrap()).unwrap();
        *found.entry(String::from_utf8(payload).unwrap()).or_default() += 1;
    }
    found
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn add(service: &Service, numbers: std::ops::Range<u64>) {
    let timer = |nth: u64| {
        let key = format!("order-{nth}");
        json!({"target": "hook", "due_ms": now_ms() + 300, "key": key, "payload": STANDARD.encode(&key)})
    };
    let timers: Vec<Value> = numbers.map(timer).collect();
    let batch = json!({"timers": timers, "accept": "TIMER_ACCEPT_QUEUE"});
    let answer = service.post("timers", None, "/v1/timers/add-batch", &batch);
    assert_eq!(answer.status, 200, "{answer:?}");
    for result in answer.body["results"].as_array().unwrap() {
        assert_eq!(result["added"]["queued"], true, "{result}");
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn adds_on_kafka_succeed_while_redis_is_away_and_each_fires_once() {
    let servers = Servers::from_env_or_start(&["kafka"]).unwrap();
    let kafka = servers.server("kafka").unwrap();
    let (redis, dir, (hook, deliveries)) =
        (Private::start(RedisOptions::default()).unwrap(), scratch(), receiver());
    let secret = dir.path().join("secret");
    fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let prefix = format!("add-queue-{:x}-", std::process::id());
    let options = format!(
        "[brokers]\na = \"embedded\"\nb = \"embedded\"\n\
         own = {{ kafka = {{ bootstrap_servers = {:?}, prefix = {prefix:?} }} }}\n\
         [scheduler]\nshards = 16\nstore = {{ redis = {{ urls = [{:?}] }} }}\n\
         [scheduler.queue]\nmaster = {{ broker = \"own\", topic = \"adds\" }}\n\
         backup = {{ broker = \"b\", topic = \"adds-backup\" }}\n\
         [scheduler.tenants.windfall.targets.hook.to.http]\nurl = \"http://{hook}/fired\"\n\
         allow = [\"127.0.0.1\"]\nkey_id = \"test\"\nsecret_file = {secret:?}\nwire = {{ plaintext = true }}\n",
        kafka.url(),
        redis.url()
    );
    let ground = Ground::new(dir.path(), &[("timers", "schedule")], &options).with_signing();
    let args = ["--log", "warn", "--listen", "127.0.0.1:0"];
    let service = ground.start_with("scheduler", &args, "data", true);
    let part = "timers' queue of adds";
    service.ready_until(PATIENCE, |answer| answer.status == 200 && answer.body["missing"][part].is_null());
    // The store's id is known a moment after the store is.
    rest(2_000);
    add(&service, 0..50);
    wait_for("the first timers", || fired(&deliveries).len() == 50);
    // Until it is noted what has fired: else a crash may repeat it, as it may any timer.
    rest(2_000);

    redis.freeze().unwrap();
    add(&service, 50..100);
    rest(3_000);
    assert_eq!(fired(&deliveries).len(), 50);
    redis.thaw().unwrap();
    wait_for("those of the freeze", || fired(&deliveries).len() == 100);
    rest(2_000);

    redis.kill().unwrap();
    add(&service, 100..150);
    rest(1_000);
    redis.start().unwrap();
    wait_for("those of the kill", || fired(&deliveries).len() == 150);
    rest(2_000);

    // The scheduler itself starts while Redis is away, knows whose queue it is, and takes adds at once.
    redis.kill().unwrap();
    assert_eq!(service.stop().code, Some(0));
    let service = ground.start_with("scheduler", &args, "data", false);
    add(&service, 150..200);
    redis.start().unwrap();
    wait_for("those of the start", || fired(&deliveries).len() == 200);
    // A copy that fires would come now: the topic is read again from its last commit.
    rest(4_000);
    let fired = fired(&deliveries);
    let twice: Vec<_> = fired.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty() && fired.len() == 200, "{} fired, not once: {twice:?}", fired.len());
    assert_eq!(service.stop().code, Some(0));
}
