//! Jobs of a task queue that wait for hours in the scheduler's far tier, in processes that are killed at each of their steps and
//! started again with a clock that is hours ahead.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windfall_tests::{Caller, Service, scratch};

const LISTEN: &str = "[task_queue.api]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n\
                      [task_queue.pools.default]\n";
/// So slow that a process can be killed while it loads some hundred timers.
const FAR: &str = "[scheduler.far]\nload_per_s = 100\n";
const HOUR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(120);

/// A data directory, and options that change from start to start.
struct Ground {
    _dir: TempDir,
    data: PathBuf,
    options: PathBuf,
    token: Vec<(&'static str, String)>,
}

impl Ground {
    fn new() -> Self {
        let dir = scratch();
        let (data, options) = (dir.path().join("data"), dir.path().join("windfall.toml"));
        Self { _dir: dir, data, options, token: Vec::new() }
    }

    /// Starts a process with these options of task queues and of the scheduler, and a clock that is so far ahead.
    fn start(&mut self, task_queue: &str, scheduler: &str, ahead: Duration) -> (Service, Caller) {
        write(&self.options, &format!("[task_queue]\n{task_queue}\n{LISTEN}{scheduler}"));
        let (service, api, admin) = Service::with_task_queues_ahead(&self.data, &self.options, ahead);
        if self.token.is_empty() {
            let made = admin.send("POST", "/token/shop?description=tests", &[], b"");
            self.token = vec![("x-token", made.body["token"].as_str().unwrap().to_owned())];
        }
        (service, api)
    }

    fn publish(&self, api: &Caller, delay_s: u64, body: &str) -> String {
        let path = format!("/api/shop/later?delay={delay_s}&ttl=0&tries=9");
        let reply = api.send("PUT", &path, &self.token, body.as_bytes());
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.body["job_id"].as_str().unwrap().to_owned()
    }

    fn status(&self, api: &Caller, method: &str, id: &str) -> u16 {
        api.send(method, &format!("/api/shop/later/job/{id}"), &self.token, b"").status
    }

    /// Deletes so many of these jobs, which come no more.
    fn delete(&self, api: &Caller, jobs: &mut BTreeMap<String, String>, count: usize) {
        for _ in 0..count {
            let (id, _) = jobs.pop_first().unwrap();
            assert_eq!(self.status(api, "DELETE", &id), 204);
        }
    }

    /// Takes and acknowledges what is ready, up to so many jobs: each comes under its id, with its body, once.
    fn consume(&self, api: &Caller, most: usize, timeout_s: u64, taken: &mut BTreeMap<String, String>) {
        let path = format!("/api/shop/later?count={most}&timeout={timeout_s}&ttr=600");
        let jobs = api.send("GET", &path, &self.token, b"").body;
        let one = std::slice::from_ref(&jobs);
        let found = jobs.as_array().map_or(one, Vec::as_slice).iter().filter(|job| job["job_id"].is_string());
        for job in found {
            let id = job["job_id"].as_str().unwrap().to_owned();
            let body = STANDARD.decode(job["data"].as_str().unwrap()).unwrap();
            assert_eq!(self.status(api, "DELETE", &id), 204);
            let before = taken.insert(id, String::from_utf8(body).unwrap());
            assert_eq!(before, None, "a job comes once");
        }
    }

    fn ready(&self, api: &Caller) -> u64 {
        api.send("GET", "/api/shop/later/size", &self.token, b"").body["size"].as_u64().unwrap()
    }
}

fn write(options: &Path, text: &str) {
    std::fs::write(options, text).unwrap();
}

/// The sum of a metric over all of its labels.
fn metric(of: &Caller, key: Option<&String>, name: &str) -> f64 {
    let headers: Vec<_> = key.map(|key| ("authorization", format!("Bearer {key}"))).into_iter().collect();
    let Value::String(text) = of.send("GET", "/metrics", &headers, b"").body else { panic!("no text") };
    let value = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
    text.lines().filter(|line| line.starts_with(name)).filter_map(value).sum()
}

#[test]
fn jobs_that_wait_for_hours_come_once_though_their_process_is_killed_at_each_step() {
    let mut ground = Ground::new();
    let horizon = "horizon_s = 60";
    let (service, api) = ground.start(horizon, FAR, Duration::ZERO);
    let began = Instant::now();
    let publish = |nth: usize| {
        let body = format!("job {nth}");
        (ground.publish(&api, 4 * 3_600, &body), body)
    };
    let mut jobs: BTreeMap<String, String> = (0..150).map(publish).collect();
    assert_eq!(jobs.len(), 150);
    let first = jobs.keys().next().unwrap().clone();
    ground.delete(&api, &mut jobs, 6);
    assert_eq!(ground.status(&api, "GET", &first), 404);
    // Killed as soon as the last call was answered.
    service.kill();

    // Without a horizon nothing more waits so. What does is found, and cancelled.
    let (service, api) = ground.start("horizon_s = 0", FAR, Duration::ZERO);
    let (first, _) = jobs.first_key_value().unwrap();
    assert_eq!(ground.status(&api, "GET", first), 200);
    ground.delete(&api, &mut jobs, 6);
    let near = ground.publish(&api, 4 * 3_600, "near");
    jobs.insert(near, "near".into());
    service.kill();
    // Without the option a deletion is remembered, and the timer is not asked for.
    let (service, api) = ground.start("", FAR, Duration::ZERO);
    ground.delete(&api, &mut jobs, 6);
    service.kill();

    // Their hour is loaded, by three processes that are killed meanwhile.
    for pause_ms in [0, 400, 800] {
        let (service, _) = ground.start(horizon, FAR, 3 * HOUR);
        std::thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
    }
    let (service, api) = ground.start(horizon, FAR, 3 * HOUR);
    ground.delete(&api, &mut jobs, 6);
    service.kill();

    // They come, into a process that is killed meanwhile, and another one that is killed while they are consumed.
    let ahead = (4 * HOUR).checked_sub(began.elapsed() + Duration::from_secs(2)).unwrap();
    let (service, api) = ground.start(horizon, FAR, ahead);
    let until = Instant::now() + PATIENCE;
    while ground.ready(&api) == 0 {
        assert!(Instant::now() < until, "nothing comes: {}", service.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    service.kill();
    let (service, api) = ground.start(horizon, FAR, ahead);
    let mut taken = BTreeMap::new();
    while taken.len() < jobs.len() / 3 {
        assert!(Instant::now() < until, "{} jobs have come: {}", taken.len(), service.said());
        ground.consume(&api, 10, 5, &mut taken);
    }
    service.kill();
    let (service, api) = ground.start(horizon, FAR, ahead);
    while taken.len() < jobs.len() {
        assert!(Instant::now() < until, "{} jobs have come: {}", taken.len(), service.said());
        ground.consume(&api, 100, 5, &mut taken);
    }
    assert!(taken == jobs, "other jobs have come than were published and not deleted");
    // Whatever was handed over again has come by now, or comes.
    ground.consume(&api, 1, 2, &mut taken);
    assert_eq!(taken.len(), jobs.len(), "and none comes twice, or after it was deleted");
    assert!(
        metric(&service, service.keys.get("operator"), "windfall_scheduler_dead_tasks_total") == 0.0,
        "and none was given up"
    );
    assert_eq!(service.stop().code, Some(0));
}

/// No scheduler runs for more than a week, so that the pool forgets what was deleted. Nobody knows then what may come.
#[test]
fn jobs_whose_deletion_may_be_forgotten_are_reported_and_do_not_come() {
    let mut ground = Ground::new();
    let horizon = "horizon_s = 60";
    let (service, api) = ground.start(horizon, "", Duration::ZERO);
    let (kept, deleted) = (ground.publish(&api, 120, "kept"), ground.publish(&api, 120, "deleted"));
    // Of hours that are forgotten later than that one, or not at all here.
    let (later, last) = (ground.publish(&api, 3 * 3_600, "later"), ground.publish(&api, 30 * 86_400, "last"));
    service.kill();
    let (service, api) = ground.start("", "", Duration::ZERO);
    assert_eq!(ground.status(&api, "DELETE", &deleted), 204);
    service.kill();

    // A process that has task queues and no scheduler.
    let ahead = 7 * 24 * HOUR + 4 * HOUR;
    let (service, api, admin) = Service::task_queue(&ground.data, &ground.options, ahead);
    assert_eq!(ground.status(&api, "DELETE", &last), 204);
    let until = Instant::now() + PATIENCE;
    // The first look that sees the second deletion has forgotten the first one.
    while metric(&admin, None, "windfall_taskqueue_far_removals") != 1.0 {
        assert!(Instant::now() < until, "the deletion is not forgotten: {}", service.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    service.kill();
    let (service, api) = ground.start(horizon, "", ahead);
    let mut taken = BTreeMap::new();
    while metric(&service, service.keys.get("operator"), "windfall_scheduler_dead_tasks_total") < 2.0 {
        assert!(Instant::now() < until, "they are not given up: {}", service.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    while taken.is_empty() {
        assert!(Instant::now() < until, "what is in no doubt does not come: {}", service.said());
        ground.consume(&api, 10, 5, &mut taken);
    }
    assert_eq!(taken, BTreeMap::from([(later, "later".to_owned())]), "neither {deleted} nor {kept}");
    assert_eq!(service.stop().code, Some(0));
}
