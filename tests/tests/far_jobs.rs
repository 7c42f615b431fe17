//! Jobs for later of a task queue: one `windfall serve` keeps them as timers, and is killed before they are due and while they
//! come.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use windfall_tests::{Service, scratch};

const OPTIONS: &str = r#"
[task_queue]
horizon_s = 1

[task_queue.api]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[task_queue.pools.default]
"#;
const JOBS: usize = 120;
const CANCELLED: usize = 20;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn each_job_for_later_comes_once_under_its_id_though_its_process_is_killed() {
    let dir = scratch();
    let (data, options) = (dir.path().join("data"), dir.path().join("windfall.toml"));
    std::fs::write(&options, OPTIONS).unwrap();
    let (service, api, admin) = Service::with_task_queues(&data, &options);
    let made = admin.send("POST", "/token/shop?description=tests", &[], b"");
    let token = [("x-token", made.body["token"].as_str().unwrap().to_owned())];
    let began = Instant::now();
    let (mut published, mut cancelled) = (BTreeMap::new(), Vec::new());
    for nth in 0..JOBS {
        let body = format!("job {nth}").into_bytes();
        let reply = api.send("PUT", "/api/shop/later?delay=8&ttl=0&tries=9", &token, &body);
        assert_eq!(reply.status, 201, "{reply:?}");
        published.insert(reply.body["job_id"].as_str().unwrap().to_owned(), body);
    }
    for _ in 0..CANCELLED {
        let (id, _) = published.pop_last().unwrap();
        let reply = api.send("DELETE", &format!("/api/shop/later/job/{id}"), &token, b"");
        assert_eq!(reply.status, 204, "{reply:?}");
        cancelled.push(id);
    }
    service.kill();

    let (service, api, _) = Service::with_task_queues(&data, &options);
    let ready = || api.send("GET", "/api/shop/later/size", &[], b"").body["size"].as_u64().unwrap();
    while ready() == 0 {
        assert!(began.elapsed() < PATIENCE, "nothing comes: {}", service.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    service.kill();

    let (service, api, _) = Service::with_task_queues(&data, &options);
    let mut taken = BTreeMap::new();
    while taken.len() < published.len() {
        assert!(began.elapsed() < PATIENCE * 2, "{} jobs have come: {}", taken.len(), service.said());
        let jobs = api.send("GET", "/api/shop/later?count=100&timeout=5&ttr=600", &token, b"");
        for job in jobs.body.as_array().into_iter().flatten() {
            let id = job["job_id"].as_str().unwrap().to_owned();
            let path = format!("/api/shop/later/job/{id}");
            assert_eq!(api.send("DELETE", &path, &token, b"").status, 204);
            let body = STANDARD.decode(job["data"].as_str().unwrap()).unwrap();
            assert_eq!(taken.insert(id, body), None, "a job comes once");
        }
    }
    assert_eq!(taken, published, "none of {cancelled:?} comes");
    // Whatever was handed over again has come by now, or comes.
    let more = api.send("GET", "/api/shop/later?timeout=3", &token, b"");
    assert_eq!(more.status, 404, "{more:?}");
    let stopped = service.stop();
    assert_eq!(stopped.code, Some(0), "{stopped}");
}
