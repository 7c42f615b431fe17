//! Far jobs of several processes on one Redis: what one publishes another one deletes, fires and hands out, while they are
//! killed, and one of them comes back without a horizon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use windfall_servers::{Private, RedisOptions};
use windfall_tests::{Caller, Service, scratch};

const PATIENCE: Duration = Duration::from_secs(120);
const JOBS: usize = 60;
const DELETED: usize = 18;

/// The options of a process, with these lines of `[task_queue]`.
fn write(path: &Path, redis: &str, task_queue: &str, rest: &str) {
    let text = format!(
        "[task_queue]\n{task_queue}\n[task_queue.api]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n\
         [task_queue.pools.default.store.redis]\nurls = [{redis:?}]\n\
         [scheduler]\nshards = 16\nstore = {{ redis = {{ urls = [{redis:?}] }} }}\n{rest}"
    );
    std::fs::write(path, text).unwrap();
}

fn publish(api: &Caller, token: &[(&str, String)], delay_s: u64, body: &str) -> String {
    let path = format!("/api/shop/later?delay={delay_s}&ttl=0&tries=9");
    let reply = api.send("PUT", &path, token, body.as_bytes());
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.body["job_id"].as_str().unwrap().to_owned()
}

fn status(api: &Caller, token: &[(&str, String)], method: &str, id: &str) -> u16 {
    api.send(method, &format!("/api/shop/later/job/{id}"), token, b"").status
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn far_jobs_of_processes_on_one_redis_come_once_whoever_is_killed_and_deleted_ones_do_not() {
    let (redis, dir) = (Private::start(RedisOptions::default()).unwrap(), scratch());
    let path = |name: &str| dir.path().join(name);
    write(&path("keeper.toml"), redis.url(), "horizon_s = 1", "[scheduler.far]\n");
    write(&path("other.toml"), redis.url(), "horizon_s = 1", "");
    write(&path("off.toml"), redis.url(), "horizon_s = 0", "[scheduler.far]\n");
    let (keeper, at_keeper, admin) = Service::with_task_queues(&path("keeper"), &path("keeper.toml"));
    let (other, at_other, _) = Service::with_task_queues(&path("other"), &path("other.toml"));
    // One without a scheduler.
    let (queue, at_queue, _) = Service::task_queue(&path("queue"), &path("other.toml"), Duration::ZERO);
    let made = admin.send("POST", "/token/shop?description=tests", &[], b"");
    let token = [("x-token", made.body["token"].as_str().unwrap().to_owned())];

    // One that lies in the far tier of the keeper: no other process says that there is none, and each may delete it.
    let far = publish(&at_keeper, &token, 4 * 3_600, "far");
    assert_eq!(status(&at_keeper, &token, "GET", &far), 200);
    assert!([500, 503].contains(&status(&at_other, &token, "GET", &far)));
    assert_eq!(status(&at_queue, &token, "DELETE", &far), 204);

    let apis = [&at_keeper, &at_other];
    let made = (0..JOBS).map(|nth| {
        let body = format!("job {nth}");
        (publish(apis[nth % 2], &token, 6, &body), body)
    });
    let mut published: BTreeMap<String, String> = made.collect();
    assert_eq!(published.len(), JOBS);
    // Deleted by two processes at once, of which one may have no scheduler.
    for nth in 0..DELETED {
        let (id, _) = published.pop_last().unwrap();
        let pair = [[&at_keeper, &at_other], [&at_other, &at_queue], [&at_queue, &at_queue]][nth % 3];
        let deleted = std::thread::scope(|scope| {
            let both = pair.map(|api| scope.spawn(|| status(api, &token, "DELETE", &id)));
            both.map(|one| one.join().unwrap())
        });
        assert_eq!(deleted, [204, 204]);
    }
    // The last call was answered.
    let last = publish(&at_keeper, &token, 6, "last");
    published.insert(last, "last".into());
    keeper.kill();

    let until = Instant::now() + PATIENCE;
    let ready = || at_queue.send("GET", "/api/shop/later/size", &token, b"").body["size"].as_u64().unwrap();
    while ready() == 0 {
        assert!(Instant::now() < until, "nothing comes: {}", other.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    other.kill();

    // It publishes no more far jobs, and fires those that wait.
    let (keeper, _, _) = Service::with_task_queues(&path("keeper"), &path("off.toml"));
    let mut taken = BTreeMap::new();
    let mut consume = |timeout_s: u64| {
        let jobs = at_queue.send(
            "GET",
            &format!("/api/shop/later?count=20&timeout={timeout_s}&ttr=600"),
            &token,
            b"",
        );
        for job in jobs.body.as_array().into_iter().flatten() {
            let id = job["job_id"].as_str().unwrap().to_owned();
            let body = STANDARD.decode(job["data"].as_str().unwrap()).unwrap();
            assert_eq!(status(&at_queue, &token, "DELETE", &id), 204);
            let before = taken.insert(id, String::from_utf8(body).unwrap());
            assert_eq!(before, None, "a job comes once");
        }
        taken.len()
    };
    while consume(5) < published.len() {
        assert!(Instant::now() < until, "some are missing: {}", keeper.said());
    }
    consume(2);
    assert!(taken == published, "other jobs have come than were published and not deleted");
    for service in [keeper, queue] {
        let stopped = service.stop();
        assert_eq!(stopped.code, Some(0), "{stopped}");
    }
}
