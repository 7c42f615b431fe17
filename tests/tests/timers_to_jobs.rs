//! Timers whose target is a task queue: one `windfall serve` has both, and is killed while the timers fire.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use windfall_tests::{Caller, Service, now_ms, scratch};

const OPTIONS: &str = r#"
[task_queue.api]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[task_queue.pools.default]

[scheduler.tenants.windfall.targets.ring]
to = { task_queue = { namespace = "calls", queue = "ring", tries = 5 } }
"#;
const TIMERS: u64 = 300;
const PATIENCE: Duration = Duration::from_secs(60);

fn add(service: &Service, due_ms: u64) {
    let timer = |nth: u64| {
        let payload = STANDARD.encode(format!("call {nth}"));
        json!({"target": "ring", "due_ms": due_ms + nth * 3, "payload": payload})
    };
    let timers: Vec<Value> = (0..TIMERS).map(timer).collect();
    let added = service.post("scheduler", None, "/v1/timers/add-batch", &json!({"timers": timers}));
    assert_eq!(added.status, 200, "{added:?}");
    let results = added.body["results"].as_array().unwrap();
    assert!(results.len() == timers.len() && results.iter().all(|result| result["added"]["id"].is_string()));
}

fn ready(api: &Caller) -> u64 {
    api.send("GET", "/api/calls/ring/size", &[], b"").body["size"].as_u64().unwrap()
}

#[test]
fn each_timer_is_one_job_though_its_process_is_killed() {
    let dir = scratch();
    let (data, options) = (dir.path().join("data"), dir.path().join("windfall.toml"));
    std::fs::write(&options, OPTIONS).unwrap();
    let (service, api, admin) = Service::with_task_queues(&data, &options);
    let made = admin.send("POST", "/token/calls?description=tests", &[], b"");
    let token = [("x-token", made.body["token"].as_str().unwrap().to_owned())];
    let keys = service.keys.clone();
    add(&service, now_ms() + 1_000);
    let began = Instant::now();
    while ready(&api) < TIMERS / 5 {
        assert!(began.elapsed() < PATIENCE, "{} timers have fired: {}", ready(&api), service.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    service.kill();

    let (service, api, _) = Service::with_task_queues(&data, &options);
    let service = service.with_keys(keys);
    let (mut bodies, mut timers, mut taken) = (BTreeSet::new(), BTreeSet::new(), 0);
    while taken < TIMERS {
        assert!(began.elapsed() < PATIENCE * 2, "{taken} timers have come: {}", service.said());
        let jobs = api.send("GET", "/api/calls/ring?count=100&timeout=5&ttr=600", &token, b"");
        for job in jobs.body.as_array().into_iter().flatten() {
            bodies.insert(STANDARD.decode(job["data"].as_str().unwrap()).unwrap());
            timers.insert(job["attributes"]["timer-id"].as_str().unwrap().to_owned());
            let path = format!("/api/calls/ring/job/{}", job["job_id"].as_str().unwrap());
            assert_eq!(api.send("DELETE", &path, &token, b"").status, 204);
            taken += 1;
        }
    }
    let expected: BTreeSet<Vec<u8>> = (0..TIMERS).map(|nth| format!("call {nth}").into_bytes()).collect();
    assert_eq!((bodies, timers.len()), (expected, usize::try_from(TIMERS).unwrap()));
    // Whatever was handed over again has come by now, or comes.
    let more = api.send("GET", "/api/calls/ring?timeout=3", &token, b"");
    assert_eq!(more.status, 404, "{more:?}");
    let stopped = service.stop();
    assert_eq!(stopped.code, Some(0), "{stopped}");
}
