//! A reward for later, from outside: sent with its token at once, handed over to the scheduler by the consumer, and granted
//! once under its own order number, over a scheduler that is away and processes that are killed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_tests::{Answer, Service, scratch};

const USER: i64 = 42;
/// Two hours: far beyond what a consumer keeps by itself.
const LATER_MS: u64 = 7_200_000;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn write_options(dir: &Path, scheduler: SocketAddr, key: &str, durability: &str) -> PathBuf {
    let text = format!(
        "[scheduler]\ndurability = \"{durability}\"\n[rewards]\nunbudgeted = \"allow\"\n[sdk]\nnot_before_ahead_max_ms = 86400000\n\
         [scheduler.tenants.windfall.targets.rewards]\nto = \"send_bonus\"\n\
         [long_delays]\ntarget = \"rewards\"\n\
         scheduler = {{ endpoints = [\"http://{scheduler}\"], bearer_key = \"{key}\" }}\n"
    );
    let path = dir.join("windfall.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn ok(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn send(service: &Service, trade_no: &str, not_before_ms: u64) -> Answer {
    let body = json!({
        "trade_no": trade_no, "user": {"user_id": USER}, "activity": "spring-2027", "scene": "thanks",
        "bonus": {"type": "coin", "amount": 5}, "not_before_ms": not_before_ms,
    });
    service.post("activity", None, "/v1/bonuses/send", &body)
}

fn credited(service: &Service) -> u64 {
    let wallet = ok(service.post("wallet-front", Some(USER), "/v1/wallet/get", &json!({})));
    let coins = wallet["balances"].as_array().unwrap().iter().find(|own| own["bonus_type"] == "coin");
    coins.map_or(0, |own| own["credited"].as_str().unwrap_or("0").parse().unwrap())
}

fn timers(service: &Service) -> Vec<Value> {
    let page = ok(service.post("scheduler", None, "/v1/timers/list", &json!({})));
    page["timers"].as_array().cloned().unwrap_or_default()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The same process again, with the keys that it printed at its first start.
fn restart(data: &Path, options: &Path, address: SocketAddr, keys: &BTreeMap<String, String>) -> Service {
    let listen = address.to_string();
    let args = ["serve", "--log", "warn", "--listen", &listen, "--config"].map(OsStr::new);
    let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    Service::start(args, data.as_os_str()).with_keys(keys.clone())
}

#[test]
fn a_reward_for_later_is_granted_once_by_the_scheduler_whatever_was_away_or_killed() {
    let dir = scratch();
    let data = dir.path().join("data");
    // Nobody listens at the scheduler's address.
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let options = write_options(dir.path(), nowhere, "none", "process");
    let args = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    let service = Service::start(args, data.as_os_str());
    let (address, keys) = (service.address, service.keys.clone());
    let due_ms = now_ms() + LATER_MS;
    let tokens = ["later/1", "later/2"].map(|trade_no| ok(send(&service, trade_no, due_ms))["token"].clone());
    assert!(tokens.iter().all(|token| !token.as_str().unwrap().is_empty()), "the user has them at once");
    let too_late = send(&service, "later/3", now_ms() + 86_500_000);
    assert_eq!(too_late.status, 400, "{too_late:?}");
    assert!(too_late.body["message"].as_str().unwrap().contains("not_before_ms"), "{too_late:?}");

    // The scheduler is away: what is not for later flows, and the others wait.
    ok(send(&service, "now/1", 0));
    wait_for("the reward that is not for later", || credited(&service) == 5);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((credited(&service), timers(&service).len()), (5, 0));
    service.kill();

    // It is back, and would lose what it has taken with its machine: nothing is handed over.
    let options = write_options(dir.path(), address, &keys["scheduler"], "process");
    let service = restart(&data, &options, address, &keys);
    wait_for("a hand-over that was refused", || service.said().contains("needs.machine_durability"));
    assert_eq!(timers(&service).len(), 0);
    service.kill();

    // Now it is firm: both are handed over, once, also when the process is killed at that moment.
    let options = write_options(dir.path(), address, &keys["scheduler"], "machine");
    let service = restart(&data, &options, address, &keys);
    wait_for("the first timer", || !timers(&service).is_empty());
    service.kill();
    let service = restart(&data, &options, address, &keys);
    wait_for("both timers", || timers(&service).len() >= 2);
    std::thread::sleep(Duration::from_secs(2));
    let waiting = timers(&service);
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    for (timer, order) in waiting.iter().zip(["later/", "later/"]) {
        assert!(timer["key"].as_str().unwrap().starts_with(order), "{timer}");
        assert_eq!((&timer["target"], &timer["due_ms"]), (&json!("rewards"), &json!(due_ms.to_string())));
    }
    assert_eq!(credited(&service), 5, "not before its time");

    // The time of one comes, and it comes twice: the order number credits once.
    let of = |order: &str| {
        let is_its = |timer: &&Value| timer["key"].as_str().unwrap().starts_with(order);
        waiting.iter().find(is_its).unwrap().clone()
    };
    let first = of("later/1");
    let again = json!({"target": "rewards", "due_ms": 1, "payload": first["payload"]});
    ok(service.post("scheduler", None, "/v1/timers/add", &json!({"timer": again})));
    let now = json!({"key": first["key"], "due_ms": 1});
    assert_eq!(ok(service.post("scheduler", None, "/v1/timers/update", &now))["change"], "TIMER_CHANGE_DONE");
    wait_for("the reward at its time", || credited(&service) == 10);

    // The other one is withdrawn by its token before its time; what the timer sends later changes nothing.
    let body = json!({"withdrawal_id": "w-1", "bonus_type": "coin", "amount": 15, "tokens": [tokens[1]]});
    let paid = ok(service.post("wallet-front", Some(USER), "/v1/wallet/withdraw", &body));
    assert_eq!(paid["outcome"], "WITHDRAW_OUTCOME_TO_PAY_OUT", "{paid}");
    let now = json!({"key": of("later/2")["key"], "due_ms": 1});
    assert_eq!(ok(service.post("scheduler", None, "/v1/timers/update", &now))["change"], "TIMER_CHANGE_DONE");
    wait_for("the last timer", || timers(&service).is_empty());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(credited(&service), 0, "all of it was paid out");
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
}
