//! Every row of the contract that clients of lmstfy rely on, asked by hand over a socket.

mod client;

pub use client::{Wire, data_of};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::task_queue::{JobStore, QueueTokens};
use windfall_task_queue::{ApiOptions, FarJobs, PoolParts, TaskQueues, start};

pub const TOKEN: &str = "a-token-for-the-tests";

/// A process's task queues, with a token for the namespace `n` of each pool.
pub struct Served {
    pub queues: TaskQueues,
    pub wire: Wire,
    pub admin: Wire,
}

pub async fn serve<S: JobStore + QueueTokens + 'static>(
    pools: &[(&str, Arc<S>)],
    options: ApiOptions,
) -> Served {
    serve_with(pools, None, options).await
}

/// The same where jobs for later wait as timers.
pub async fn serve_with<S: JobStore + QueueTokens + 'static>(
    pools: &[(&str, Arc<S>)],
    far: Option<FarJobs>,
    options: ApiOptions,
) -> Served {
    serve_by(Clock::system(), pools, far, options).await
}

/// The same by a clock of the test's own, which says how long connections wait for a request.
pub async fn serve_by<S: JobStore + QueueTokens + 'static>(
    clock: Clock,
    pools: &[(&str, Arc<S>)],
    far: Option<FarJobs>,
    options: ApiOptions,
) -> Served {
    let parts = pools.iter().map(|(name, store)| {
        let (store, tokens) = (Arc::clone(store) as _, Arc::clone(store) as _);
        ((*name).to_owned(), PoolParts { store, tokens, far: far.clone() })
    });
    let any_port = "127.0.0.1:0".parse().unwrap();
    let options = ApiOptions { listen: any_port, admin_listen: any_port, ..options };
    let queues = start(options, parts.collect::<BTreeMap<_, _>>(), clock).await.unwrap();
    let (wire, admin) = (Wire::new(queues.api_address(), TOKEN), Wire::new(queues.admin_address(), ""));
    for (name, _) in pools {
        let path = format!("/token/n?description=tests&token={TOKEN}&pool={name}");
        let made = admin.post(&path, "").await;
        assert!(made.status == 201 || made.json() == json!({ "error": "token exists" }), "{made:?}");
    }
    Served { queues, wire, admin }
}

/// The whole contract, on the stores of two pools with nothing in them.
pub async fn whole_contract<S: JobStore + QueueTokens + 'static>(store: Arc<S>, other: Arc<S>) {
    let served = serve(&[("default", store), ("other", other)], ApiOptions::default()).await;
    let Served { wire, admin, .. } = &served;
    refusals(wire).await;
    publish_and_consume(wire).await;
    replacing_and_bulk(wire).await;
    batches_and_priorities(wire).await;
    attributes(wire).await;
    looking(wire).await;
    tries_and_dead_letter(wire).await;
    polls(wire).await;
    pools(wire, admin).await;
    dead_letter_across_shards(wire).await;
    unusual_terms(wire).await;
    admin_tokens(wire, admin).await;
    admin_limits(wire, admin).await;
    admin_rest(admin).await;
    let closed = served.queues.close(Duration::from_secs(5)).await;
    assert_eq!(closed.connections_cut, 0);
}

async fn refusals(wire: &Wire) {
    let long = "q".repeat(256);
    let big = "x".repeat((1 << 20) + 1);
    let many = json!(vec![1; 65]).to_string();
    let job_too_large = format!("[\"{big}\"]");
    let rows: &[(&str, &str, &str, u16, &str)] = &[
        ("POST", "/api/n/q", "", 404, "api not found"),
        ("GET", "/nothing", "", 404, "api not found"),
        ("PUT", "/api/n%20/q", "", 400, "namespace name contains forbidden characters"),
        ("PUT", "/api/n/_q", "", 400, "queue name contains forbidden characters"),
        ("PUT", "/api/n/q,r", "", 400, "queue name contains forbidden characters"),
        ("PUT", &format!("/api/n/{long}"), "", 400, "namespace or queue name too long"),
        ("PUT", "/api/n/q?delay=x", "", 400, "invalid delay"),
        ("PUT", "/api/n/q?ttl=-1", "", 400, "invalid ttl"),
        ("PUT", "/api/n/q?tries=65536", "", 400, "invalid tries"),
        ("PUT", "/api/n/q?delay=2&ttl=1", "", 400, "ttl is shorter than delay"),
        ("PUT", "/api/n/q?tries=0", "", 400, "tries shouldn't be zero"),
        ("PUT", "/api/n/q", &big, 413, "body too large"),
        ("PUT", "/api/n/q/bulk", "{}", 400, "request body should be an array of objects"),
        ("PUT", "/api/n/q/bulk", "[]", 400, "no jobs"),
        ("PUT", "/api/n/q/bulk", "null", 400, "no jobs"),
        ("PUT", "/api/n/q/bulk", &many, 400, "too many jobs"),
        ("PUT", "/api/n/q/bulk", &job_too_large, 413, "job too large"),
        ("GET", "/api/n/q?ttr=x", "", 400, "invalid ttr"),
        ("GET", "/api/n/q?timeout=x", "", 400, "invalid timeout"),
        ("GET", "/api/n/q?count=101", "", 400, "invalid count"),
        ("GET", "/api/n/,", "", 400, "invalid queue name(s)"),
        ("GET", "/api/n/q/peek", "", 404, "the queue is empty"),
        ("GET", "/api/n/q/job/01ARYZ6S41TSV4RRFFQ69G5FAV", "", 404, "job not found"),
        ("GET", "/api/n/q/job/nonsense", "", 404, "job not found"),
        ("PUT", "/api/n/q/deadletter?limit=0", "", 400, "invalid limit"),
        ("DELETE", "/api/n/q/deadletter?limit=x", "", 400, "invalid limit"),
        ("PUT", "/api/n/q?token=none:a", "", 404, "pool not found"),
    ];
    for (method, path, body, status, error) in rows {
        let token = if path.contains("token=") { "" } else { TOKEN };
        let reply = wire.call(method, path, &[("x-token", token)], body).await;
        assert_eq!((reply.status, reply.json()), (*status, json!({ "error": error })), "{method} {path:.80}");
        assert!(reply.header("x-request-id").is_some_and(|id| !id.is_empty()), "{reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/json; charset=utf-8"));
    }
    for (token, error) in [("", "token not found"), ("wrong-wrong-wrong-wrong", "invalid token")] {
        let reply = wire.call("PUT", "/api/n/q", &[("x-token", token)], "").await;
        assert_eq!((reply.status, reply.json()), (401, json!({ "error": error })));
    }
    let reply = wire.call("PUT", "/api/other/q", &[("x-token", TOKEN)], "").await;
    assert_eq!(reply.status, 401, "a token is one of its namespace");
    assert_eq!(wire.get("/api/n/q/size").await.json()["size"], 0, "nothing was published");
    let own = wire.call("GET", "/api/n/q/size", &[("x-request-id", "mine")], "").await;
    assert_eq!((own.status, own.header("x-request-id")), (200, Some("mine")), "sizes need no token");
}

async fn publish_and_consume(wire: &Wire) {
    let reply = wire.put("/api/n/first?tries=3&ttl=60", "\u{0}body").await;
    assert_eq!((reply.status, &reply.json()["msg"]), (201, &json!("published")));
    let id = reply.text("job_id");
    assert!(id.len() == 26 && id.starts_with('0'), "{id}");
    // The token in the query, and of the default pool by name.
    let path = format!("/api/n/first?ttr=30&token=default:{TOKEN}");
    let job = wire.call("GET", &path, &[], "").await;
    assert_eq!(job.status, 200, "{job:?}");
    let job = job.json();
    let elapsed_ms = job["elapsed_ms"].as_u64().unwrap();
    let expected = json!({
        "msg": "new job", "namespace": "n", "queue": "first", "job_id": id, "data": "AGJvZHk=",
        "ttl": job["ttl"], "elapsed_ms": elapsed_ms, "remain_tries": 2, "attributes": null,
    });
    assert_eq!(job, expected);
    assert!((50..=60).contains(&job["ttl"].as_u64().unwrap()) && elapsed_ms < 10_000, "{job}");
    let none = wire.get("/api/n/first").await;
    assert_eq!((none.status, none.json()), (404, json!({ "msg": "no job available" })));
    for _ in 0..2 {
        let path = format!("/api/n/first/job/{id}");
        assert_eq!((wire.delete(&path).await.status, wire.get(&path).await.status), (204, 404));
    }
    assert_eq!(wire.delete("/api/n/first/job/nonsense").await.status, 204);
    // The delay is in the last four bytes.
    let delayed = wire.put("/api/n/first?delay=258&ttl=0", "").await.text("job_id");
    assert_eq!(delay_of(&delayed), 258);
    let seen = wire.get(&format!("/api/n/first/job/{delayed}")).await.json();
    assert_eq!((&seen["ttl"], &seen["remain_tries"], &seen["data"]), (&json!(0), &json!(0), &json!("")));
    assert_eq!(wire.delete(&format!("/api/n/first/job/{delayed}")).await.status, 204);
    // At a time of its own.
    let began = Instant::now();
    wire.put("/api/n/first?delay=1", "later").await;
    assert_eq!(wire.get("/api/n/first").await.status, 404);
    assert_eq!(wire.get("/api/n/first?timeout=10").await.status, 200);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

fn delay_of(id: &str) -> u32 {
    id.parse::<windfall_contract::task_queue::JobId>().unwrap().delay_s()
}

async fn replacing_and_bulk(wire: &Wire) {
    let old = wire.put("/api/n/second", "old").await.text("job_id");
    let path = format!("/api/n/second/job/{old}");
    assert_eq!(wire.put(&format!("{path}?tries=0"), "bad").await.status, 400);
    assert_eq!(wire.get(&path).await.status, 200, "a bad replacement changes nothing");
    let new = wire.put(&path, "new").await;
    assert_eq!(new.status, 201);
    assert_ne!(new.text("job_id"), old);
    assert_eq!(wire.get(&path).await.status, 404);
    assert_eq!(wire.get("/api/n/second/size").await.json()["size"], 1);
    assert_eq!(wire.get("/api/n/second").await.data(), b"new");
    let reply = wire.put("/api/n/second/bulk?tries=2", r#"[ {"a": 1}, "text", 3 ]"#).await;
    assert_eq!((reply.status, &reply.json()["msg"]), (201, &json!("published")));
    assert_eq!(reply.json()["job_ids"].as_array().map(Vec::len), Some(3));
    let bodies: Vec<Vec<u8>> = consume_all(wire, "/api/n/second").await;
    assert_eq!(bodies, [br#"{"a": 1}"#.to_vec(), br#""text""#.to_vec(), b"3".to_vec()]);
}

/// The bodies of all that is ready, sorted.
async fn consume_all(wire: &Wire, path: &str) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    loop {
        let reply = wire.get(&format!("{path}?count=100")).await;
        if reply.status == 404 {
            bodies.sort_by_key(|body: &Vec<u8>| std::cmp::Reverse(body.len()));
            return bodies;
        }
        assert_eq!(reply.status, 200, "{reply:?}");
        bodies.extend(reply.json().as_array().unwrap().iter().map(data_of));
    }
}

async fn batches_and_priorities(wire: &Wire) {
    for at in 0..5 {
        wire.put("/api/n/low", &format!("low {at}")).await;
        wire.put("/api/n/high", &format!("high {at}")).await;
    }
    for _ in 0..5 {
        let job = wire.get("/api/n/high,none,low").await;
        assert!(job.data().starts_with(b"high"), "the leftmost queue comes first: {job:?}");
        assert_eq!(job.json()["queue"], "high");
    }
    let one = wire.get("/api/n/high,low?count=2").await.json();
    assert_eq!(one.as_array().map(Vec::len), Some(2), "{one}");
    // A batch does not wait to fill.
    let began = Instant::now();
    let rest = wire.get("/api/n/low?count=100&timeout=30").await.json();
    assert_eq!(rest.as_array().map(Vec::len), Some(3));
    assert!(began.elapsed() < Duration::from_secs(20));
    let none = wire.get("/api/n/low?count=3").await;
    assert_eq!((none.status, none.json()), (404, json!({ "msg": "no job available" })));
}

async fn attributes(wire: &Wire) {
    let headers =
        [("x-token", TOKEN), ("enable-job-version", "YES"), ("Job-Attr-Color", "red"), ("job-attr-none", "")];
    let reply = wire.call("PUT", "/api/n/attributes", &headers, "body").await;
    assert!(reply.text("job_id").starts_with('1'), "{reply:?}");
    let job = wire.get("/api/n/attributes/peek").await.json();
    assert_eq!(job["attributes"], json!({ "color": "red" }), "one without a value is none");
    assert_eq!(wire.get("/api/n/attributes").await.json()["attributes"], job["attributes"]);
    // Each job of a bulk call has them.
    let reply = wire.call("PUT", "/api/n/attributes/bulk", &headers, "[1, 2]").await;
    assert_eq!(reply.status, 201, "{reply:?}");
    let jobs = wire.get("/api/n/attributes?count=9").await.json();
    for job in jobs.as_array().unwrap() {
        assert_eq!(job["attributes"], json!({ "color": "red" }));
        assert!(job["job_id"].as_str().unwrap().starts_with('1'), "{job}");
    }
    let names: Vec<String> = (0..17).map(|at| format!("job-attr-{at}")).collect();
    let mut many = vec![("x-token", TOKEN), ("enable-job-version", "yes")];
    many.extend(names.iter().map(|name| (name.as_str(), "x")));
    for path in ["/api/n/attributes", "/api/n/attributes/bulk"] {
        let refused = wire.call("PUT", path, &many, "[1]").await;
        let error = json!({ "error": "too many attributes, cannot exceed 16" });
        assert_eq!((refused.status, refused.json()), (400, error), "{path}");
    }
    many.pop();
    assert_eq!(wire.call("PUT", "/api/n/attributes", &many, "x").await.status, 201);
    let job = wire.get("/api/n/attributes").await.json();
    assert_eq!(job["attributes"].as_object().map(serde_json::Map::len), Some(16));
    let without = [("x-token", TOKEN), ("job-attr-color", "red")];
    let reply = wire.call("PUT", "/api/n/attributes", &without, "body").await;
    assert!(reply.text("job_id").starts_with('0'));
    assert_eq!(wire.get("/api/n/attributes").await.json()["attributes"], Value::Null);
}

async fn looking(wire: &Wire) {
    let id = wire.put("/api/n/looked?tries=4&ttl=1", "here").await.text("job_id");
    let size = wire.call("GET", "/api/n/looked/size", &[], "").await.json();
    assert_eq!(size, json!({ "namespace": "n", "queue": "looked", "size": 1 }));
    let head = wire.get("/api/n/looked/peek").await;
    assert_eq!((head.status, head.text("job_id"), head.data()), (200, id.clone(), b"here".to_vec()));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let head = wire.get("/api/n/looked/peek").await;
    // It may have been swept away meanwhile.
    assert!(head.status == 404 || head.json()["data"].is_null(), "{head:?}");
    assert_eq!(wire.get(&format!("/api/n/looked/job/{id}")).await.status, 404, "it has expired");
    wire.put("/api/n/looked", "a").await;
    wire.put("/api/n/looked?delay=60", "b").await;
    assert_eq!(wire.delete("/api/n/looked").await.status, 204);
    assert_eq!(wire.get("/api/n/looked/size").await.json()["size"], 0);
    assert_eq!(wire.get("/api/n/looked").await.status, 404);
}

async fn tries_and_dead_letter(wire: &Wire) {
    let dead_size = async || wire.call("GET", "/api/n/dying/deadletter/size", &[], "").await.json();
    let id = wire.put("/api/n/dying?tries=2&ttl=30", "x").await.text("job_id");
    for left in [1, 0] {
        let job = wire.get("/api/n/dying?ttr=1&timeout=10").await;
        assert_eq!((job.status, &job.json()["remain_tries"]), (200, &json!(left)), "{job:?}");
    }
    let began = Instant::now();
    while dead_size().await["size"] != 1 {
        assert!(began.elapsed() < Duration::from_secs(20), "it is not in the dead letter");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(dead_size().await, json!({ "namespace": "n", "queue": "dying", "size": 1 }));
    let head = json!({ "namespace": "n", "queue": "dying", "deadletter_size": 1, "deadletter_head": id });
    assert_eq!(wire.get("/api/n/dying/deadletter").await.json(), head);
    let back = wire.put("/api/n/dying/deadletter?limit=10&ttl=7", "").await;
    assert_eq!((back.status, back.json()), (200, json!({ "msg": "respawned", "count": 1 })));
    let job = wire.get("/api/n/dying?ttr=1").await.json();
    assert_eq!((&job["job_id"], &job["remain_tries"]), (&json!(id), &json!(0)));
    assert!(job["ttl"].as_u64().unwrap() <= 7, "{job}");
    while dead_size().await["size"] != 1 {
        assert!(began.elapsed() < Duration::from_secs(40), "it is not in the dead letter again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(wire.delete("/api/n/dying/deadletter").await.status, 204);
    let empty = wire.get("/api/n/dying/deadletter").await.json();
    assert_eq!((&empty["deadletter_size"], &empty["deadletter_head"]), (&json!(0), &json!("")));
}

async fn polls(wire: &Wire) {
    let waiting = {
        let wire = wire.clone();
        tokio::spawn(async move { wire.get("/api/n/polled-1,polled-2?timeout=30&count=5").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    wire.put("/api/n/polled-2/bulk", "[1, 2]").await;
    let job = waiting.await.unwrap();
    assert_eq!(
        (job.status, job.json().as_array().map(Vec::len)),
        (200, Some(1)),
        "an empty one waits for one"
    );
    let began = Instant::now();
    assert_eq!(wire.get("/api/n/polled-1?timeout=1").await.status, 404);
    assert!(began.elapsed() >= Duration::from_secs(1));
    // A synchronous job: the answer comes in the queue that has the job's id as its name.
    let id = wire.put("/api/n/asked", "question").await.text("job_id");
    let answer = {
        let (wire, id) = (wire.clone(), id.clone());
        tokio::spawn(async move { wire.get(&format!("/api/n/{id}?timeout=30")).await })
    };
    let job = wire.get("/api/n/asked").await.text("job_id");
    wire.put(&format!("/api/n/{job}"), "answer").await;
    assert_eq!(answer.await.unwrap().data(), b"answer");
}

async fn pools(wire: &Wire, admin: &Wire) {
    let other_token = format!("other:{TOKEN}");
    let other = [("x-token", other_token.as_str())];
    wire.put("/api/n/pooled", "of default").await;
    assert_eq!(wire.call("PUT", "/api/n/pooled", &other, "of other").await.status, 201);
    assert_eq!(wire.call("PUT", "/api/n/alone", &other, "of other").await.status, 201);
    for (headers, body) in [(&other[..], "of other"), (&[("x-token", TOKEN)][..], "of default")] {
        let job = wire.call("GET", "/api/n/pooled", headers, "").await;
        assert_eq!((job.status, job.data()), (200, body.as_bytes().to_vec()), "{job:?}");
        assert_eq!(wire.call("GET", "/api/n/pooled", headers, "").await.status, 404, "each has one job");
    }
    // Sizes need no token, and yet its pool.
    assert_eq!(wire.get("/api/n/alone/size").await.json()["size"], 0);
    assert_eq!(wire.call("GET", "/api/n/alone/size", &other, "").await.json()["size"], 1);
    let queues = async |pool: &str| admin.get(&format!("/info?pool={pool}")).await.json()["n"].to_string();
    assert!(queues("other").await.contains("alone") && !queues("default").await.contains("alone"));
    // A token is one of its pool.
    let of_default = admin.post("/token/n?description=x", "").await.text("token");
    let as_other = format!("other:{of_default}");
    let refused = wire.call("GET", "/api/n/alone", &[("x-token", &as_other)], "").await;
    assert_eq!((refused.status, refused.json()), (401, json!({ "error": "invalid token" })));
    assert_eq!(wire.call("GET", "/api/n/alone", &[("x-token", &of_default)], "").await.status, 404);
    assert_eq!(admin.get("/token/n?pool=other").await.json()["tokens"].get(&of_default), None);
    // Nothing before the colon is the default pool.
    let plain = format!(":{of_default}");
    assert_eq!(wire.call("GET", "/api/n/pooled", &[("x-token", &plain)], "").await.status, 404);
}

/// A limit is one of the queue, and not of each shard.
async fn dead_letter_across_shards(wire: &Wire) {
    let dead = async || {
        let size = wire.get("/api/n/many-dead/deadletter/size").await.json()["size"].as_u64();
        size.unwrap()
    };
    let becomes = async |expected: u64| {
        let began = Instant::now();
        while dead().await != expected {
            assert!(began.elapsed() < Duration::from_secs(30), "{} jobs are dead", dead().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // One by one, so that each shard has some.
    for _ in 0..12 {
        wire.put("/api/n/many-dead", "x").await;
    }
    let mut taken = 0;
    while taken < 12 {
        // It may be over at once: a ttr of 0 is a lease that has ended.
        let jobs = wire.get("/api/n/many-dead?count=100&ttr=0").await;
        assert_eq!(jobs.status, 200, "{jobs:?}");
        taken += jobs.json().as_array().unwrap().len();
    }
    becomes(12).await;
    let back = wire.put("/api/n/many-dead/deadletter?limit=7", "").await.json();
    assert_eq!(back, json!({ "msg": "respawned", "count": 7 }));
    assert_eq!((dead().await, wire.get("/api/n/many-dead/size").await.json()["size"].as_u64()), (5, Some(7)));
    assert_eq!(wire.delete("/api/n/many-dead/deadletter?limit=3").await.status, 204);
    assert_eq!(dead().await, 2);
    let back = wire.put("/api/n/many-dead/deadletter?limit=100", "").await.json();
    assert_eq!(back["count"], 2, "there are no more");
    assert_eq!((dead().await, wire.get("/api/n/many-dead/size").await.json()["size"].as_u64()), (0, Some(9)));
    assert_eq!(wire.delete("/api/n/many-dead").await.status, 204);
}

async fn unusual_terms(wire: &Wire) {
    let list = |count: usize| (0..count).map(|at| format!("q{at}")).collect::<Vec<_>>().join(",");
    assert_eq!(wire.get(&format!("/api/n/{}", list(32))).await.status, 404);
    let refused = wire.get(&format!("/api/n/{}", list(33))).await;
    assert_eq!((refused.status, refused.json()), (400, json!({ "error": "invalid queue name(s)" })));
    // A ttl that is as long as the delay is no shorter one.
    let reply = wire.put("/api/n/just?delay=1&ttl=1", "x").await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(wire.put("/api/n/just?delay=2&ttl=1", "x").await.status, 400);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(wire.get("/api/n/just").await.status, 404, "it has expired when it is ready");
}

async fn admin_tokens(wire: &Wire, admin: &Wire) {
    let made = admin.post("/token/shop?description=mails", "").await;
    assert_eq!(made.status, 201);
    let token = made.text("token");
    assert!(token.len() >= 20);
    let of_pool = admin.post("/token/shop", "description=two+words&pool=other").await.text("token");
    assert!(of_pool.starts_with("other:"));
    let listed = admin.get("/token/shop").await.json();
    assert_eq!(listed["tokens"][&token], "mails");
    for (path, error) in [
        ("/token/shop", "invalid description"),
        ("/token/shop?description=x&token=short", "the user token was too short"),
        ("/token/sh%20op?description=x", "namespace name contains forbidden characters"),
        ("/token/shop?description=x&pool=none", "pool not found"),
        (&format!("/token/n?description=x&token={TOKEN}"), "token exists"),
    ] {
        let reply = admin.post(path, "").await;
        assert_eq!((reply.status, reply.json()), (400, json!({ "error": error })), "{path}");
    }
    let use_it = async || wire.call("GET", "/api/shop/q", &[("x-token", &token)], "").await.status;
    assert_eq!(use_it().await, 404);
    assert_eq!(admin.delete(&format!("/token/shop/{token}")).await.status, 204);
    assert_eq!(use_it().await, 401, "a deleted token works no more");
    assert_eq!(wire.call("GET", "/api/shop/q", &[("x-token", &of_pool)], "").await.status, 404);
}

async fn admin_limits(wire: &Wire, admin: &Wire) {
    let token = admin.post("/token/limited?description=x", "").await.text("token");
    let path = format!("/token/limited/{token}/limit");
    let none = admin.get(&path).await;
    assert_eq!((none.status, none.json()), (404, Value::Null));
    for bad in [r#"{"read":0,"write":0,"interval":1}"#, r#"{"read":1,"write":0,"interval":0}"#, "x"] {
        assert_eq!(admin.post(&path, bad).await.status, 400, "{bad}");
    }
    let limiter = json!({ "read": 1, "write": 2, "interval": 60 });
    let set = admin.post(&path, &limiter.to_string()).await;
    assert_eq!((set.status, set.json()), (201, json!({ "limiter": limiter })));
    assert_eq!(admin.get(&path).await.json(), limiter);
    assert_eq!(admin.get("/limits").await.json()[format!("default/limited/{token}")], limiter);
    let as_limited =
        async |method: &str| wire.call(method, "/api/limited/q", &[("x-token", &token)], "").await;
    for (method, calls, name) in [("PUT", 2, "produce"), ("GET", 1, "consume")] {
        for _ in 0..calls {
            assert!(as_limited(method).await.status < 400);
        }
        let error = format!("token({token}) {name} reach the limit rate, please retry later");
        let over = as_limited(method).await;
        assert_eq!((over.status, over.json()), (429, json!({ "error": error })));
    }
    let wider = json!({ "read": 100, "write": 100, "interval": 60 });
    let put = admin.call("PUT", &path, &[], &wider.to_string()).await;
    assert_eq!((put.status, put.json()), (200, json!({ "limiter": wider })));
    assert_eq!(as_limited("PUT").await.status, 201);
    let gone = admin.delete(&path).await;
    assert_eq!((gone.status, gone.json()), (200, json!({ "msg": "success" })));
    assert_eq!(admin.get(&path).await.status, 404);
}

async fn admin_rest(admin: &Wire) {
    assert_eq!(admin.get("/pools").await.json(), json!(["default", "other"]));
    assert!(admin.get("/version").await.json()["version"].is_string());
    let info = admin.get("/info?pool=default").await.json();
    assert!(info["n"].as_array().is_some_and(|queues| queues.contains(&json!("looked"))), "{info}");
    assert_eq!(admin.get("/accesslog").await.json(), json!({ "status": "disabled" }));
    assert_eq!(admin.post("/accesslog?status=enable", "").await.json(), json!({ "status": "enabled" }));
    assert_eq!(admin.post("/accesslog?status=x", "").await.status, 400);
    assert_eq!(admin.post("/accesslog?status=disable", "").await.json(), json!({ "status": "disabled" }));
    assert_eq!(admin.get("/metrics").await.status, 503, "nobody has said what they are");
    assert_eq!(admin.get("/nothing").await.json(), json!({ "error": "api not found" }));
}
