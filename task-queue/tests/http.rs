//! Both APIs over a socket, on the store in files.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod api;

use api::{Served, TOKEN, serve, serve_by, whole_contract};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windfall_contract::Clock;
use windfall_task_queue::ApiOptions;
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

/// How long a connection may be idle where a test waits for its end.
const IDLE_TIMEOUT_MS: u64 = 400;

fn open(dir: &tempfile::TempDir, shards: u16) -> Arc<EmbeddedJobs> {
    let options = EmbeddedJobsOptions { shards, ..EmbeddedJobsOptions::default() };
    EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_contract_holds_on_one_shard_and_on_many() {
    for shards in [1, 5] {
        let [dir, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        whole_contract(open(&dir, shards), open(&other, shards)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_starves_behind_its_shards() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", open(&dir, 8))], ApiOptions::default()).await;
    for at in 0..40 {
        wire.put("/api/n/old", &format!("old {at}")).await;
    }
    // A job comes for each that is taken: the queue is never empty, and every old job goes out all the same.
    let (mut old, mut calls) = (0, 0);
    while old < 40 {
        wire.put("/api/n/old", "new").await;
        let job = wire.get("/api/n/old").await;
        assert_eq!(job.status, 200);
        old += u32::from(job.data().starts_with(b"old"));
        calls += 1;
        assert!(calls < 4_000, "{old} of 40 old jobs have gone out after {calls} calls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consumer_that_hung_up_was_to_get_goes_to_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", open(&dir, 2))], ApiOptions::default()).await;
    for round in 0..20 {
        let gone = wire.begin("GET", "/api/n/hung?timeout=30&ttr=600", &[("x-token", TOKEN)], "").await;
        tokio::time::sleep(Duration::from_millis(round % 5)).await;
        drop(gone);
        wire.put("/api/n/hung", "body").await;
        let job = wire.get("/api/n/hung?timeout=20&ttr=600").await;
        assert_eq!((job.status, &job.json()["remain_tries"]), (200, &json!(0)), "{round}: {job:?}");
    }
}

/// Waits until a connection is closed, on which nothing comes: no earlier than the time for which it may be idle.
async fn closed(stream: &mut (impl AsyncRead + Unpin), passed_ms: &AtomicU64) {
    let end = stream.read(&mut [0]).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let passed_ms = passed_ms.load(SeqCst);
    assert!(passed_ms >= IDLE_TIMEOUT_MS, "too early: after {passed_ms} ms");
}

/// The time goes on between two calls alone, and by less than a connection may be idle, so a machine that stalls proves
/// nothing else than one that does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_closed_whose_caller_sends_no_request_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let passed_ms = Arc::new(AtomicU64::new(0));
    let (began_ms, own) = (Clock::system().unix_ms(), Arc::clone(&passed_ms));
    let clock = Clock::from_unix_ms(move || began_ms + own.load(SeqCst));
    let options = ApiOptions { idle_timeout_ms: IDLE_TIMEOUT_MS, ..ApiOptions::default() };
    let Served { queues, wire, .. } = serve_by(clock, &[("default", open(&dir, 2))], None, options).await;
    let ask = async |stream: &mut TcpStream, request: &str| {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut read = [0; 4_096];
        let length = stream.read(&mut read).await.unwrap();
        String::from_utf8_lossy(&read[..length]).into_owned()
    };
    let request = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nhost: h\r\nx-token: {TOKEN}\r\ncontent-length: 0\r\n\r\n")
    };
    let connect = async || TcpStream::connect(queues.api_address()).await.unwrap();
    let [mut silent, mut slow, mut idle, mut busy, mut polls] =
        [connect().await, connect().await, connect().await, connect().await, connect().await];
    assert!(ask(&mut idle, &request("PUT", "/api/n/other")).await.starts_with("HTTP/1.1 201"));
    polls.write_all(request("GET", "/api/n/none?timeout=600").as_bytes()).await.unwrap();
    slow.write_all(b"PUT /api/n/q HTTP/1.1\r\nhost: ").await.unwrap();
    let (mut slow_read, mut slow_write) = slow.split();
    let are_closed = AtomicBool::new(false);
    let others = async {
        let passed_ms = &passed_ms;
        tokio::join!(
            closed(&mut silent, passed_ms),
            closed(&mut slow_read, passed_ms),
            closed(&mut idle, passed_ms)
        );
        are_closed.store(true, SeqCst);
    };
    // One that calls again and again stays, and so does one whose call goes on: the server looks at each a few times meanwhile.
    let began = Instant::now();
    let calls = async {
        while !are_closed.load(SeqCst) || began.elapsed() < Duration::from_millis(1_600) {
            let reply = ask(&mut busy, &request("PUT", "/api/n/q")).await;
            assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
            // A head that comes a byte at a time takes no longer than another one. Once it is refused, it cannot be sent.
            slow_write.write_all(b"h").await.ok();
            passed_ms.fetch_add(300, SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let both = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(others, calls) });
    both.await.expect("the other connections are closed");
    assert_eq!(wire.put("/api/n/none", "").await.status, 201);
    let mut reply = [0; 12];
    polls.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200");
    queues.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_are_bounded_and_end_when_the_process_does() {
    let dir = tempfile::tempdir().unwrap();
    let options = ApiOptions { polls_max: 3, polls_of_token_max: 2, ..ApiOptions::default() };
    let Served { queues, wire, admin } = serve(&[("default", open(&dir, 1))], options).await;
    let other = admin.post("/token/m?description=x", "").await.text("token");
    let mut waiting = Vec::new();
    let mut poll = async |namespace: &str, token: &str| {
        let path = format!("/api/{namespace}/q?timeout=30");
        waiting.push(wire.begin("GET", &path, &[("x-token", token)], "").await);
        tokio::time::sleep(Duration::from_millis(150)).await;
    };
    poll("n", TOKEN).await;
    poll("n", TOKEN).await;
    assert_eq!(wire.get("/api/n/q?timeout=30").await.status, 429);
    poll("m", &other).await;
    let path = "/api/m/q?timeout=30";
    assert_eq!(wire.call("GET", path, &[("x-token", &other)], "").await.status, 503);
    assert_eq!(wire.get("/api/n/q").await.status, 404, "who does not wait is no poll");
    let began = Instant::now();
    assert_eq!(queues.close(Duration::from_secs(10)).await.connections_cut, 0);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    for mut stream in waiting {
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        assert!(answer.contains("no job available"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_api_asks_for_an_account_where_there_are_any() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = BTreeMap::from([("ops".to_owned(), "rain".to_owned())]);
    let store = open(&dir, 1);
    let any_port = "127.0.0.1:0".parse().unwrap();
    let options = ApiOptions { accounts, listen: any_port, admin_listen: any_port, ..ApiOptions::default() };
    let parts = windfall_task_queue::PoolParts { store: store.clone(), tokens: store, far: None };
    let pools = BTreeMap::from([("default".to_owned(), parts)]);
    let queues = windfall_task_queue::start(options, pools, Clock::system()).await.unwrap();
    let admin = api::Wire::new(queues.admin_address(), "");
    let with = async |given: &str| admin.call("GET", "/pools", &[("authorization", given)], "").await;
    assert_eq!(with("Basic b3BzOnJhaW4=").await.status, 200);
    for wrong in ["", "Basic b3BzOnJhaW4h", "Bearer b3BzOnJhaW4=", "Basic %"] {
        let refused = with(wrong).await;
        assert_eq!((refused.status, refused.header("www-authenticate").is_some()), (401, true), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_does_not_read_its_answer_is_cut_off() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    let options = ApiOptions { body_timeout_ms: 500, ..ApiOptions::default() };
    let Served { wire, queues, .. } = serve(&[("default", open(&dir, 1))], options).await;
    let body = "x".repeat(1 << 20);
    for _ in 0..16 {
        assert_eq!(wire.put("/api/n/big?tries=2", &body).await.status, 201);
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(queues.api_address()).await.unwrap();
    let one = format!("GET /api/n/big?count=100 HTTP/1.1\r\nhost: h\r\nx-token: {TOKEN}\r\n\r\n");
    stream.write_all(one.repeat(4).as_bytes()).await.unwrap();
    // Longer than it may take.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut read = Vec::new();
    let _end = stream.read_to_end(&mut read).await;
    assert!(read.starts_with(b"HTTP/1.1 200") && read.len() < 16 << 20, "{} bytes came", read.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_token_consumes_no_more_by_its_open_polls() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, admin, queues } = serve(&[("default", open(&dir, 2))], ApiOptions::default()).await;
    let gone = admin.post("/token/n?description=x", "").await.text("token");
    let poll = tokio::spawn({
        let (wire, gone) = (wire.clone(), gone.clone());
        async move { wire.call("GET", "/api/n/kept?timeout=30&ttr=600", &[("x-token", &gone)], "").await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(admin.delete(&format!("/token/n/{gone}")).await.status, 204);
    wire.put("/api/n/kept", "body").await;
    let refused = poll.await.unwrap();
    assert_eq!((refused.status, refused.json()), (401, json!({ "error": "invalid token" })));
    let job = wire.get("/api/n/kept?timeout=10&ttr=600").await;
    assert_eq!((job.status, &job.json()["remain_tries"]), (200, &json!(0)), "{job:?}");
    let (mut consumed, mut waits) = (0, 0);
    queues.counters()[0].1.each_queue(|_, _, stats, times| {
        consumed += stats.consumed;
        waits += times.buckets.iter().sum::<u64>();
    });
    assert_eq!((consumed, waits), (1, 1), "what was given back was handed to nobody");
}

/// A consume call took 4 MiB from each shard, and held all of it until its caller had read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_has_no_more_bytes_for_each_shard_that_has_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", open(&dir, 8))], ApiOptions::default()).await;
    let body = "x".repeat(1 << 20);
    for _ in 0..24 {
        assert_eq!(wire.put("/api/n/long", &body).await.status, 201);
    }
    let (mut taken, mut calls) = (0, 0);
    while taken < 24 {
        let reply = wire.get("/api/n/long?count=100&ttr=600").await;
        assert_eq!(reply.status, 200, "{taken} of 24 jobs came");
        let jobs = reply.json().as_array().unwrap().len();
        // 4 MiB, and what the last shard had besides.
        assert!(jobs <= 9, "{jobs} jobs of 1 MiB in one answer");
        taken += jobs;
        calls += 1;
    }
    assert!(calls >= 3);
    assert_eq!(wire.get("/api/n/long?count=100").await.status, 404);
}

/// A consumer that asks for much and reads nothing.
async fn hoard(queues: &windfall_task_queue::TaskQueues, path: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(queues.api_address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-token: {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Nothing bounded the answers of consumers that do not read them: a hundred of them took all memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_leave_the_jobs_in_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        ApiOptions { bodies_bytes_max: 16 << 20, body_timeout_ms: 300_000, ..ApiOptions::default() };
    let Served { wire, queues, .. } = serve(&[("default", open(&dir, 1))], options).await;
    let body = "x".repeat(1 << 20);
    for _ in 0..20 {
        assert_eq!(wire.put("/api/n/long", &body).await.status, 201);
    }
    let size = async || wire.get("/api/n/long/size").await.json()["size"].as_u64().unwrap();
    let mut hoards = Vec::new();
    for left in [15, 10, 5] {
        hoards.push(hoard(&queues, "/api/n/long?count=100&ttr=600").await);
        let began = Instant::now();
        while size().await != left {
            assert!(began.elapsed() < Duration::from_secs(60), "{} jobs are left", size().await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    // 15 MiB of bodies are 20 MiB of answers.
    let refused = wire.get("/api/n/long?ttr=600").await;
    let error = json!({ "error": "too many answers are in memory, please retry later" });
    assert_eq!((refused.status, refused.json()), (503, error));
    assert_eq!(size().await, 5, "nothing was taken for it");
    assert_eq!(wire.put("/api/n/other", "x").await.status, 201, "publishers have room of their own");
    drop(hoards);
    let began = Instant::now();
    while wire.get("/api/n/long?ttr=600").await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "there is no room again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A body may take its time: what it was to be published with was asked before it came, and not after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_token_publishes_no_more_by_a_body_that_is_still_coming() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, admin, queues } = serve(&[("default", open(&dir, 2))], ApiOptions::default()).await;
    for (path, body) in [("/api/n/kept", "body"), ("/api/n/kept/bulk", "[1, 2]")] {
        let token = admin.post("/token/n?description=x", "").await.text("token");
        let mut stream = TcpStream::connect(queues.api_address()).await.unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nexpect: 100-continue\r\nx-token: {token}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server asks for the body when it has found the token good.
        let mut asks = [0; 25];
        stream.read_exact(&mut asks).await.unwrap();
        assert!(asks.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&asks));
        assert_eq!(admin.delete(&format!("/token/n/{token}")).await.status, 204);
        stream.write_all(body.as_bytes()).await.unwrap();
        let refused = api::Wire::end(stream).await;
        assert_eq!((refused.status, refused.json()), (401, json!({ "error": "invalid token" })), "{path}");
    }
    assert_eq!(wire.get("/api/n/kept/size").await.json()["size"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_of_polls_and_of_bulk_calls_are_those_of_the_options() {
    let dir = tempfile::tempdir().unwrap();
    let options = ApiOptions { poll_max_s: 1, bulk_bytes_max: 1 << 20, ..ApiOptions::default() };
    let Served { wire, queues: _queues, .. } = serve(&[("default", open(&dir, 2))], options).await;
    let began = Instant::now();
    assert_eq!(wire.get("/api/n/none?timeout=600").await.status, 404);
    let took = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(300)).contains(&took), "{took:?}");
    // Each job may have as much, but not the call.
    let halves = json!(vec!["x".repeat(1 << 19); 2]).to_string();
    let refused = wire.put("/api/n/q/bulk", &halves).await;
    assert_eq!((refused.status, refused.json()), (413, json!({ "error": "body too large" })));
    let fits = json!(vec!["x".repeat(1 << 18); 2]).to_string();
    assert_eq!(wire.put("/api/n/q/bulk", &fits).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_call_and_a_replacement_count_as_one_call_each_for_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, admin, queues: _queues } =
        serve(&[("default", open(&dir, 2))], ApiOptions::default()).await;
    let old = wire.put("/api/n/q", "old").await.text("job_id");
    let token = admin.post("/token/n?description=x", "").await.text("token");
    let limit = json!({ "read": 0, "write": 2, "interval": 600 }).to_string();
    assert_eq!(admin.post(&format!("/token/n/{token}/limit"), &limit).await.status, 201);
    let replace = format!("/api/n/q/job/{old}");
    let put =
        async |path: &str, body: &str| wire.call("PUT", path, &[("x-token", &token)], body).await.status;
    assert_eq!(put("/api/n/q/bulk", "[1, 2, 3]").await, 201);
    assert_eq!(put(&replace, "new").await, 201);
    for path in ["/api/n/q", "/api/n/q/bulk", &replace] {
        assert_eq!(put(path, "[4]").await, 429, "{path}");
    }
    assert_eq!(wire.get("/api/n/q/size").await.json()["size"], 4, "what was refused changed nothing");
    // 0 is any number.
    for _ in 0..3 {
        assert_eq!(wire.call("GET", "/api/n/q", &[("x-token", &token)], "").await.status, 200);
    }
}

/// The same as for one queue and one job, where a call asks for several of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_starves_where_batches_are_taken_of_several_queues() {
    let dir = tempfile::tempdir().unwrap();
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", open(&dir, 8))], ApiOptions::default()).await;
    for at in 0..40 {
        wire.put("/api/n/second", &format!("old {at}")).await;
    }
    let (mut old, mut calls) = (0, 0);
    while old < 40 {
        wire.put("/api/n/second/bulk", "[1, 2, 3]").await;
        let jobs = wire.get("/api/n/first,second?count=3&ttr=600").await;
        assert_eq!(jobs.status, 200, "{jobs:?}");
        let jobs = jobs.json();
        old += jobs.as_array().unwrap().iter().filter(|job| api::data_of(job).starts_with(b"old")).count();
        calls += 1;
        assert!(calls < 2_000, "{old} of 40 old jobs have gone out after {calls} calls");
    }
}
