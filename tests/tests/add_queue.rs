//! Adds of timers by the queue, from outside, with embedded queues and an embedded store: killed right after the answer, repeated,
//! cancelled before they are added.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use windfall_tests::{Answer, Deliveries, Run, Service, now_ms, plain, receiver, scratch};

const QUEUE: &str = "TIMER_ACCEPT_QUEUE";

fn start(data: &Path, options: &Path) -> Service {
    let args = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    Service::start(args, data.as_os_str())
}

fn write_options(dir: &Path, hook: SocketAddr) -> PathBuf {
    let secret = dir.join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let text = format!(
        "[scheduler.queue]\nmaster = {{ broker = \"a\", topic = \"timers-a\" }}\n\
         backup = {{ broker = \"b\", topic = \"timers-b\" }}\n\
         [scheduler.tenants.windfall.targets.hook.to.http]\nurl = \"http://{hook}/fired\"\n\
         allow = [\"127.0.0.1\"]\nkey_id = \"test\"\nsecret_file = {secret:?}\nwire = {{ plaintext = true }}\n"
    );
    let path = dir.join("windfall.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn ok(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn post(service: &Service, path: &str, body: &Value) -> Answer {
    service.post("scheduler", None, path, body)
}

fn timer(key: &str, due_ms: u64) -> Value {
    json!({"target": "hook", "due_ms": due_ms, "key": key, "payload": STANDARD.encode(key)})
}

fn fired(deliveries: &Deliveries) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (_, body) in deliveries.lock().iter() {
        let payload = STANDARD.decode(body["payload"].as_str().unwrap()).unwrap();
        *found.entry(String::from_utf8(payload).unwrap()).or_default() += 1;
    }
    found
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn adds_by_the_queue_fire_once_whatever_is_killed_repeated_and_cancelled_before() {
    let (dir, (hook, deliveries)) = (scratch(), receiver());
    let (data, options) = (dir.path().join("data"), write_options(dir.path(), hook));
    let service = start(&data, &options);
    // The process has to have learnt the id of its store.
    wait_for("an add by the queue", || {
        let request = json!({"timer": timer("first", now_ms() + 500), "accept": QUEUE});
        post(&service, "/v1/timers/add", &request).status == 200
    });

    // A cancel that comes before its add, and one of a key that nobody will ever add.
    let cancel = json!({"key": "cancelled", "accept": QUEUE});
    assert_eq!(ok(post(&service, "/v1/timers/cancel", &cancel))["change"], "TIMER_CHANGE_MARKED");
    let plainly = json!({"key": "nobody"});
    assert_eq!(ok(post(&service, "/v1/timers/cancel", &plainly))["change"], "TIMER_CHANGE_NOT_FOUND");
    let update = json!({"key": "nobody", "due_ms": now_ms(), "accept": QUEUE});
    assert_eq!(post(&service, "/v1/timers/update", &update).status, 503);
    let keyless = json!({"timer": {"target": "hook", "due_ms": 1}, "accept": QUEUE});
    assert_eq!(post(&service, "/v1/timers/add", &keyless).status, 400);

    // Until it is noted that it has fired: else the kill may repeat it.
    wait_for("the first one", || fired(&deliveries).len() == 1);
    std::thread::sleep(Duration::from_secs(1));
    // Killed right after the answer.
    let due_ms = now_ms() + 1_500;
    let timers: Vec<Value> = (0..40).map(|nth| timer(&format!("order-{nth}"), due_ms)).collect();
    let batch = json!({"timers": timers, "accept": QUEUE});
    let reply = ok(post(&service, "/v1/timers/add-batch", &batch));
    for (nth, result) in reply["results"].as_array().unwrap().iter().enumerate() {
        let added = &result["added"];
        assert_eq!(added["queued"], true, "{result}");
        assert_eq!(added["key"], format!("order-{nth}"), "{result}");
    }
    service.kill();
    let service = start(&data, &options);
    wait_for("an answer to the repeat", || post(&service, "/v1/timers/add-batch", &batch).status == 200);
    let cancelled = json!({"timer": timer("cancelled", now_ms() + 200), "accept": QUEUE});
    assert_eq!(ok(post(&service, "/v1/timers/add", &cancelled))["queued"], true);
    wait_for("all that were not cancelled", || fired(&deliveries).len() == 41);

    // Another timer under a key that was used: answered OK, and set aside.
    let other = json!({"timer": timer("order-1", now_ms() + 50_000), "accept": QUEUE});
    ok(post(&service, "/v1/timers/add", &other));
    let listed = |json: bool| {
        let args = ["schedule", "set-aside"].into_iter().chain(json.then_some("--json"));
        Run::new(plain()).args(args).arg("--data").arg(&data).end()
    };
    wait_for("it to be set aside", || listed(false).code == Some(1));
    let aside = listed(true).json();
    assert_eq!((&aside[0]["reason"], &aside[0]["timer"]["key"]), (&json!("other_task"), &json!("order-1")));

    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
    let service = start(&data, &options);
    std::thread::sleep(Duration::from_secs(4));
    let fired = fired(&deliveries);
    assert!(!fired.contains_key("cancelled"), "{fired:?}");
    assert!(fired.values().all(|times| *times == 1) && fired.len() == 41, "{fired:?}");
    assert_eq!(service.stop().code, Some(0));
}
