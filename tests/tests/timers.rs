//! Timers, from outside: added by HTTP and gRPC, moved, cancelled, and fired by `windfall serve`, which is killed and
//! started again meanwhile. The callers' own journal is held against what the targets received.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_client::{ClientOptions, TimersClient};
use windfall_contract::broker::{Broker, Fetch, InRecord};
use windfall_proto::v1::{
    AddTimersRequest, CancelTimersRequest, NewTimer, TimerChange, TimerName, add_timer_result,
    cancel_timer_result,
};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_tests::{Answer, Deliveries, Run, Service, plain, receiver, scratch};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn start(data: &Path, options: &Path) -> Service {
    let args = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    Service::start(args, data.as_os_str())
}

fn write_options(dir: &Path, hook: SocketAddr) -> std::path::PathBuf {
    let secret = dir.join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let text = format!(
        "[scheduler.tenants.windfall]\nwaiting_max = 1000\n\
         [scheduler.tenants.windfall.targets.rewards]\nto = \"send_bonus\"\n\
         [scheduler.tenants.windfall.targets.topic]\nto = {{ topic = {{ broker = \"a\", topic = \"fired\" }} }}\n\
         [scheduler.tenants.windfall.targets.hook.to.http]\nurl = \"http://{hook}/fired\"\n\
         allow = [\"127.0.0.1\"]\nkey_id = \"test\"\nsecret_file = {secret:?}\nwire = {{ plaintext = true }}\n\
         [scheduler.tenants.small]\nwaiting_max = 1\n[scheduler.tenants.small.targets.rewards]\nto = \"send_bonus\"\n"
    );
    let path = dir.join("windfall.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn ok(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// What the callers were told: the time of each timer that must fire, by id, and the ids that must not.
#[derive(Default)]
struct Journal {
    due_ms: BTreeMap<String, u64>,
    cancelled: BTreeSet<String>,
}

fn post(service: &Service, path: &str, body: &Value) -> Answer {
    service.post("scheduler", None, path, body)
}

fn add_by_http(
    service: &Service,
    count: u64,
    due_ms: impl Fn(u64) -> u64,
    journal: &mut Journal,
) -> Vec<String> {
    let timer = |nth| {
        let payload = STANDARD.encode(format!("http {nth}"));
        json!({"target": "hook", "due_ms": due_ms(nth), "key": format!("http-{nth}"), "payload": payload})
    };
    let timers: Vec<Value> = (0..count).map(timer).collect();
    let reply = ok(post(service, "/v1/timers/add-batch", &json!({"timers": timers})));
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), timers.len());
    let ids = (0..).zip(results).map(|(nth, result)| {
        let id = result["added"]["id"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
        journal.due_ms.insert(id.clone(), due_ms(nth));
        id
    });
    ids.collect()
}

fn client(service: &Service) -> TimersClient {
    let options = ClientOptions {
        endpoints: vec![service.url()],
        bearer_key: Some(service.keys["scheduler"].clone()),
        attempt_timeout_ms: 20_000,
        ..ClientOptions::default()
    };
    TimersClient::open(options).unwrap()
}

async fn add_by_grpc(client: &TimersClient, count: u64, due_ms: u64, journal: &mut Journal) -> Vec<String> {
    let timer = |nth| NewTimer {
        target: "hook".into(),
        due_ms: due_ms + nth,
        key: String::new(),
        payload: format!("grpc {nth}").into_bytes(),
    };
    let timers: Vec<_> = (0..count).map(timer).collect();
    let results = client.add_batch(AddTimersRequest { timers: timers.clone(), ..Default::default() }).await;
    let ids = timers.iter().zip(results.unwrap()).map(|(timer, result)| match result.result {
        Some(add_timer_result::Result::Added(added)) => {
            journal.due_ms.insert(added.id.clone(), timer.due_ms);
            added.id
        }
        other => panic!("{other:?}"),
    });
    ids.collect()
}

async fn cancel_by_grpc(client: &TimersClient, ids: &[String], journal: &mut Journal) {
    let timers = ids.iter().map(|id| TimerName { id: id.clone(), key: String::new() }).collect();
    let results = client.cancel_batch(CancelTimersRequest { timers, ..Default::default() }).await.unwrap();
    for (id, result) in ids.iter().zip(results) {
        match result.result {
            Some(cancel_timer_result::Result::Changed(reply)) if reply.change() == TimerChange::Done => {
                journal.due_ms.remove(id);
                journal.cancelled.insert(id.clone());
            }
            other => panic!("{other:?}"),
        }
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Deliveries by id.
fn by_id(deliveries: &Deliveries) -> BTreeMap<String, Vec<(u64, Value)>> {
    let mut found = BTreeMap::<String, Vec<_>>::new();
    for (time_ms, body) in deliveries.lock().iter() {
        let id = body["id"].as_str().unwrap().to_owned();
        found.entry(id).or_default().push((*time_ms, body.clone()));
    }
    found
}

#[test]
fn timers_fire_once_their_time_has_come_whatever_is_killed_and_cancelled_ones_never() {
    let dir = scratch();
    let (hook, deliveries) = receiver();
    let (data, options) = (dir.path().join("data"), write_options(dir.path(), hook));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let service = start(&data, &options);
    let mut journal = Journal::default();
    let begun_ms = now_ms();

    // Half of them while the process lives, half while it is dead or later.
    let by_http = add_by_http(&service, 60, |nth| begun_ms + 3_000 + nth % 2 * 9_000 + nth, &mut journal);
    let grpc = runtime.block_on(async { client(&service) });
    let by_grpc = runtime.block_on(add_by_grpc(&grpc, 40, begun_ms + 12_000, &mut journal));
    runtime.block_on(cancel_by_grpc(&grpc, &by_grpc[..10], &mut journal));

    // Moved: some nearer, some further, by key and by id; each keeps the id that its caller knows.
    for (nth, id) in by_http.iter().enumerate().filter(|(nth, _)| nth % 2 == 1).take(10) {
        let due_ms = begun_ms + if nth % 4 == 1 { 5_000 } else { 14_000 };
        let body = match nth % 4 {
            1 => json!({"key": format!("http-{nth}"), "due_ms": due_ms}),
            _ => json!({"id": id, "due_ms": due_ms, "payload": STANDARD.encode("moved")}),
        };
        let reply = ok(post(&service, "/v1/timers/update", &body));
        assert_eq!(reply["change"], "TIMER_CHANGE_DONE", "{reply}");
        journal.due_ms.insert(id.clone(), due_ms);
    }
    // Cancelled behind a move, by its first id.
    let moved_then_cancelled = &by_http[3];
    let reply = ok(post(&service, "/v1/timers/cancel", &json!({"id": moved_then_cancelled})));
    assert_eq!(reply["change"], "TIMER_CHANGE_DONE", "{reply}");
    journal.due_ms.remove(moved_then_cancelled);
    journal.cancelled.insert(moved_then_cancelled.clone());
    let again = ok(post(&service, "/v1/timers/cancel", &json!({"id": moved_then_cancelled})));
    assert_eq!(again["change"], "TIMER_CHANGE_ALREADY_CANCELLED", "{again}");

    // Killed while some have fired and others wait, and started again behind the time of those.
    wait_for("the first timers", || by_id(&deliveries).len() >= 10);
    let killed_ms = now_ms();
    service.kill();
    let down_ms = (begun_ms + 13_000).saturating_sub(now_ms());
    std::thread::sleep(Duration::from_millis(down_ms));
    let service = start(&data, &options);
    wait_for("every timer that was not cancelled", || {
        let fired = by_id(&deliveries);
        journal.due_ms.keys().all(|id| fired.contains_key(id))
    });
    // In order, and started once more: nothing fires again.
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
    let at_the_stop = deliveries.lock().len();
    let service = start(&data, &options);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(deliveries.lock().len(), at_the_stop, "a restart in order repeats nothing");

    let fired = by_id(&deliveries);
    for (id, deliveries) in &fired {
        assert!(!journal.cancelled.contains(id), "{id} was cancelled");
        let due_ms = journal.due_ms.get(id).unwrap_or_else(|| panic!("nobody added {id}"));
        for (time_ms, body) in deliveries {
            assert!(time_ms >= due_ms, "{id} came {} ms early", due_ms - time_ms);
            assert_eq!(body["due_ms"].as_str().unwrap(), due_ms.to_string(), "{body}");
        }
        let is_explained = deliveries.len() == 1 || deliveries[0].0 <= killed_ms + 1_000;
        assert!(is_explained, "{id} was repeated, and no crash explains it: {deliveries:?}");
    }
    let moved = by_id(&deliveries)[&by_http[7]][0].1["payload"].as_str().unwrap().to_owned();
    assert_eq!(STANDARD.decode(moved).unwrap(), b"moved");
    assert_eq!(fired.len(), journal.due_ms.len());
    // Their keys are free again.
    let due_ms = now_ms() + 600_000;
    let timer = json!({"timer": {"target": "hook", "due_ms": due_ms, "key": "http-0"}});
    let added = ok(post(&service, "/v1/timers/add", &timer));
    assert_eq!(added["existed"], false, "{added}");
    let twice = ok(post(&service, "/v1/timers/add", &timer));
    assert_eq!((&twice["id"], &twice["existed"]), (&added["id"], &json!(true)));
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
}

#[test]
fn a_timer_sends_its_reward_once_and_quotas_and_strangers_are_refused() {
    let dir = scratch();
    let (hook, _deliveries) = receiver();
    let (data, options) = (dir.path().join("data"), write_options(dir.path(), hook));
    let service = start(&data, &options);
    let reward = json!({
        "trade_no": "thanks/42", "user": {"user_id": 42}, "activity": "spring-2027", "scene": "thanks",
        "bonus": {"type": "coin", "amount": 5},
    });
    let timer = |payload: &str, due_ms: u64| json!({"timer": {"target": "rewards", "due_ms": due_ms, "payload": STANDARD.encode(payload)}});
    // Two timers with one order number: one reward.
    for due_ms in [now_ms() + 500, now_ms() + 800] {
        ok(post(&service, "/v1/timers/add", &timer(&reward.to_string(), due_ms)));
    }
    service.post_until("wallet-front", Some(42), "/v1/wallet/get", &json!({}), |answer| {
        answer.body["balances"][0]["credited"].as_str() == Some("5")
    });

    // What is no reward is given up, shown, and can be deleted.
    let broken = ok(post(&service, "/v1/timers/add", &timer("no reward", 1)));
    let dead = |wanted: usize| {
        service.post_until("scheduler", None, "/v1/timers/dead/list", &json!({}), |answer| {
            answer.body["timers"].as_array().map_or(0, Vec::len) == wanted
        })
    };
    let listed = dead(1).body;
    assert_eq!(listed["timers"][0]["id"], broken["id"], "{listed}");
    assert!(listed["timers"][0]["reason"].as_str().unwrap().contains("SendBonusRequest"), "{listed}");
    let end = json!({"ids": [broken["id"]], "end": "DEAD_TIMER_END_DELETE"});
    assert_eq!(ok(post(&service, "/v1/timers/dead/end", &end))["found"], json!([true]));
    dead(0);

    let code = |answer: &Answer| (answer.status, answer.body["code"].as_str().unwrap_or_default().to_owned());
    let small = json!({"tenant": "small", "timer": {"target": "rewards", "due_ms": 1}});
    assert_eq!(code(&post(&service, "/v1/timers/add", &small)), (403, "PERMISSION_DENIED".into()));
    let stranger = post(&service, "/v1/timers/add", &json!({"timer": {"target": "nowhere", "due_ms": 1}}));
    assert_eq!(code(&stranger), (400, "INVALID_ARGUMENT".into()));
    assert!(stranger.body["message"].as_str().unwrap().contains("nowhere"), "{stranger:?}");
    let nobody = service.post("activity", None, "/v1/timers/list", &json!({}));
    assert_eq!(code(&nobody), (403, "PERMISSION_DENIED".into()));
    assert_eq!(code(&post(&service, "/v1/timers/get", &json!({"key": "none"}))), (404, "NOT_FOUND".into()));

    by_command_line(&service, dir.path());
    let to_topic =
        json!({"target": "topic", "due_ms": 1, "key": "t-1", "payload": STANDARD.encode("to the topic")});
    let added = ok(post(&service, "/v1/timers/add", &json!({"timer": to_topic})));
    service.post_until("scheduler", None, "/v1/timers/get", &json!({"key": "t-1"}), |answer| {
        answer.status == 404
    });
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let record = runtime.block_on(first_record(&data.join("brokers").join("a"), "fired"));
    assert_eq!(record.key, "t-1");
    let has = |text: &str| record.payload.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("to the topic") && has(added["id"].as_str().unwrap()), "{record:?}");
}

/// The first record of a topic of an embedded broker.
async fn first_record(broker: &Path, topic: &str) -> InRecord {
    let broker = EmbeddedBroker::open(broker, &EmbeddedOptions::default()).unwrap();
    let mut consumer = broker.consumer(topic, "test").await.unwrap();
    let fetch = Fetch { max_records: 1, max_bytes: 1 << 20, wait: Duration::from_millis(100) };
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(record) = consumer.poll(fetch).await.unwrap().records.pop() {
            consumer.close().await;
            return record;
        }
        assert!(Instant::now() < until, "the topic is empty");
    }
}

/// The same by `windfall schedule`.
fn by_command_line(service: &Service, dir: &Path) {
    let key_file = dir.join("key");
    std::fs::write(&key_file, &service.keys["scheduler"]).unwrap();
    let schedule = |args: &[&str]| {
        let run = Run::new(plain()).args(["schedule", "--server", &service.url(), "--json", "--key-file"]);
        run.arg(&key_file).args(args).end()
    };
    let added =
        schedule(&["add", "--target", "hook", "--in", "1h", "--key", "cli-1", "--payload", "x"]).json();
    let id = added["id"].as_str().unwrap().to_owned();
    let shown = schedule(&["get", &id]).json();
    assert_eq!((&shown["key"], &shown["state"]), (&json!("cli-1"), &json!("TIMER_STATE_WAITING")));
    let listed = schedule(&["list"]).json();
    assert!(listed.as_array().unwrap().iter().any(|timer| timer["id"] == id.as_str()), "{listed}");
    let moved = schedule(&["update", "--key", "cli-1", "--in", "2h"]).json();
    assert_eq!(moved[0]["change"], "TIMER_CHANGE_DONE", "{moved}");
    let cancelled = schedule(&["cancel", &id]);
    assert_eq!(cancelled.code, Some(0), "{cancelled}");
    let late = schedule(&["update", "--key", "cli-1", "--in", "1h"]);
    assert_eq!(late.code, Some(2), "{late}");
    assert_eq!(schedule(&["dead"]).json(), json!([]));
    let unknown = schedule(&["get", "--key", "none"]);
    assert!(unknown.code == Some(2) && unknown.stderr.contains("not found"), "{unknown}");
}
