//! What the server takes and what it does not, against a fake executor and callers by hand.

use super::{PATIENCE, app, here, patient, run, token};
use crate::xxl::fake::{FakeAdmin, FakeExecutor, FakeOptions, Reply};
use crate::xxl::{
    Admin, AdminError, Executor, HandleCode, RunResult, ServerOptions, StartError, WrongOption, XxlClient,
    XxlServer,
};
use async_trait::async_trait;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use windfall_contract::Clock;

const REGISTRY: &str =
    r#"{"registryGroup":"EXECUTOR","registryKey":"mails","registryValue":"http://127.0.0.1:9999/"}"#;
const RESULT: &str = r#"[{"logId":1,"logDateTim":2,"handleCode":200}]"#;

fn options() -> ServerOptions {
    ServerOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ServerOptions::default() }
}

async fn serve(options: ServerOptions, admin: Arc<dyn Admin>) -> XxlServer {
    let clock = Clock::from_unix_ms(|| 1_800_000_000_123);
    XxlServer::start(options, Some(token()), here(), admin, clock).await.unwrap()
}

/// Sends these bytes and reads to the end of the connection.
async fn exchange(address: SocketAddr, sent: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may end the connection before it has read everything.
    stream.write_all(sent.as_bytes()).await.ok();
    read_all(&mut stream).await
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the server ends the connection").ok();
    String::from_utf8(read).unwrap()
}

fn head(path: &str, token: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: windfall\r\nconnection: close\r\nXXL-JOB-ACCESS-TOKEN: {token}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

async fn post(address: SocketAddr, path: &str, body: &str) -> String {
    exchange(address, &format!("{}{body}", head(path, "s3cret-token", body.len()))).await
}

/// The code of the answer, not of HTTP.
fn code(answer: &str) -> i64 {
    let body = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}")).1;
    serde_json::from_str::<serde_json::Value>(body).unwrap()["code"].as_i64().unwrap()
}

#[tokio::test]
async fn an_executor_registers_runs_reports_and_takes_its_leave() {
    let admin = Arc::new(FakeAdmin::default());
    let server = serve(options(), admin.clone()).await;
    let fake = FakeExecutor::start(FakeOptions {
        token: Some(token()),
        admin_url: Some(format!("http://{}/xxl-job-admin/", server.address())),
        beat_ms: 20,
        script: Arc::new(|request| match request.log_id {
            1 => Reply::Finish(HandleCode::Success, "done".into()),
            2 => Reply::Finish(HandleCode::Timeout, String::new()),
            _ => Reply::Take,
        }),
        ..FakeOptions::new(app())
    })
    .await
    .unwrap();
    let executor = admin.wait(|seen| seen.registered.get(2).cloned()).await;
    assert_eq!(&executor, fake.executor());

    let client = XxlClient::new(patient(), Some(&token()), here()).unwrap();
    for log_id in 1..=3 {
        client.run(&executor, &run(log_id)).await.unwrap();
    }
    fake.report(&run(3), HandleCode::Failure, "killed").await;
    let mut results = admin.wait(|seen| (seen.results.len() == 3).then(|| seen.results.clone())).await;
    results.sort_by_key(|one| one.run);
    let expected = |run, handle_code, message: &str| RunResult {
        run,
        log_date_time_ms: 1_800_000_000_000,
        handle_code,
        message: message.into(),
        at_ms: 1_800_000_000_123,
    };
    assert_eq!(results[0], expected(1, HandleCode::Success, "done"));
    assert_eq!(results[1], expected(2, HandleCode::Timeout, ""));
    assert_eq!(results[2], expected(3, HandleCode::Failure, "killed"));

    let leaving = fake.executor().clone();
    fake.close().await;
    assert_eq!(admin.seen().removed, [leaving]);
    let stats = server.stats();
    assert!(stats.registrations >= 3 && stats.reports >= 1);
    assert_eq!((stats.removals, stats.results, stats.bad_calls, stats.wrong_tokens), (1, 3, 0, 0));
    assert_eq!(server.close(PATIENCE).await.cut, 0);
}

#[tokio::test]
async fn results_that_were_not_taken_come_again_and_none_is_lost() {
    let admin = Arc::new(FakeAdmin::default());
    let server = serve(options(), admin.clone()).await;
    let admin_url = Some(format!("http://{}", server.address()));
    let fake =
        FakeExecutor::start(FakeOptions { token: Some(token()), admin_url, ..FakeOptions::new(app()) });
    let fake = fake.await.unwrap();
    admin.fail_next(3);
    let client = XxlClient::new(patient(), Some(&token()), here()).unwrap();
    for log_id in 0..500 {
        client.run(fake.executor(), &run(log_id)).await.unwrap();
    }
    let seen = admin.wait(|seen| (seen.results.len() >= 500).then(|| seen.clone())).await;
    assert_eq!((seen.failed, server.stats().failed_calls), (3, 3));
    let mut runs: Vec<_> = seen.results.iter().map(|one| one.run).collect();
    runs.sort_unstable();
    assert!(runs.into_iter().eq(0..500));
    fake.close().await;
}

#[tokio::test]
async fn bad_calls_change_nothing() {
    let admin = Arc::new(FakeAdmin::default());
    let server = serve(options(), admin.clone()).await;
    let address = server.address();
    let registry = "/xxl-job-admin/api/registry";
    for (path, body) in [
        (registry, String::new()),
        (registry, "{".into()),
        (registry, "[]".into()),
        (registry, "{}".into()),
        (registry, REGISTRY.replace("EXECUTOR", "ADMIN")),
        (registry, REGISTRY.replace("mails", "ma ils")),
        (registry, REGISTRY.replace("127.0.0.1", "169.254.169.254")),
        (registry, REGISTRY.replace("127.0.0.1", "10.0.0.1")),
        (registry, REGISTRY.replace("http", "file")),
        (registry, REGISTRY.replace("127.0.0.1", "user@127.0.0.1")),
        ("/api/registryRemove", "{}".into()),
        ("/api/callback", RESULT.replace("200", "\"200\"")),
        // One bad entry spoils the batch.
        ("/api/callback", format!("{},{{}}]", RESULT.strip_suffix(']').unwrap())),
        ("/api/callback", REGISTRY.into()),
    ] {
        let answer = post(address, path, &body).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path} {body}: {answer}");
        assert_eq!(code(&answer), 500, "{path} {body}");
    }
    for (answer, status) in [
        (post(address, "/api/unknown", REGISTRY).await, 404),
        (post(address, "/", REGISTRY).await, 404),
        (exchange(address, "GET /api/registry HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await, 405),
    ] {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(code(&answer), 500);
    }
    let seen = admin.seen();
    assert!(seen.registered.is_empty() && seen.removed.is_empty() && seen.results.is_empty());
    assert_eq!(server.stats().bad_calls, 17);

    // The same calls without the mistakes.
    for (path, body) in [(registry, REGISTRY), ("/api/registryRemove", REGISTRY), ("/api/callback", RESULT)] {
        assert_eq!(code(&post(address, path, body).await), 200, "{path}");
    }
    assert_eq!(code(&post(address, "/api/callback", "[]").await), 200);
    let seen = admin.seen();
    assert_eq!((seen.registered.len(), seen.removed.len(), seen.results.len()), (1, 1, 1));
}

#[tokio::test]
async fn without_the_token_nothing_is_done() {
    let admin = Arc::new(FakeAdmin::default());
    let server = serve(options(), admin.clone()).await;
    for token in ["", "wrong", "s3cret-toke", "s3cret-tokenn"] {
        let sent = format!("{}{REGISTRY}", head("/api/registry", token, REGISTRY.len()));
        let answer = exchange(server.address(), &sent).await;
        assert_eq!(code(&answer), 500);
        assert!(answer.contains("The access token is wrong."), "{answer}");
    }
    let no_header = head("/api/registry", "", REGISTRY.len()).replace("XXL-JOB-ACCESS-TOKEN: \r\n", "");
    assert_eq!(code(&exchange(server.address(), &format!("{no_header}{REGISTRY}")).await), 500);
    assert_eq!((server.stats().wrong_tokens, admin.seen().registered.len()), (5, 0));

    let open = ServerOptions { listen: ([0, 0, 0, 0], 0).into(), plaintext: true, ..options() };
    let refused = XxlServer::start(open.clone(), None, here(), admin.clone(), Clock::system()).await;
    assert!(matches!(refused.err(), Some(StartError::Option(WrongOption::NoToken(_)))));
    let allowed = ServerOptions { allow_without_token: true, ..open };
    let server = XxlServer::start(allowed, None, here(), admin, Clock::system()).await.unwrap();
    server.close(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn bodies_are_bounded() {
    let admin = Arc::new(FakeAdmin::default());
    let limits = ServerOptions { body_max_bytes: 64 << 10, bodies_max_bytes: 64 << 10, ..options() };
    let server = serve(ServerOptions { body_timeout_ms: 300_000, ..limits }, admin.clone()).await;
    let address = server.address();
    let long = head("/api/callback", "s3cret-token", 65 << 10);
    let answer = exchange(address, &long).await;
    assert!(code(&answer) == 500 && answer.contains("too large"), "{answer}");

    let chunked =
        head("/api/callback", "s3cret-token", 0).replace("content-length: 0", "transfer-encoding: chunked");
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    let answer = exchange(address, &format!("{chunked}{chunk}{chunk}{chunk}")).await;
    assert!(code(&answer) == 500 && answer.contains("too large"), "{answer}");

    // One that does not come holds the whole room, until it is given up.
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(head("/api/callback", "s3cret-token", 64 << 10).as_bytes()).await.unwrap();
    let refused = async { while code(&post(address, "/api/callback", RESULT).await) == 200 {} };
    timeout(PATIENCE, refused).await.unwrap();
    drop(slow);
    let taken = async { while code(&post(address, "/api/callback", RESULT).await) == 500 {} };
    timeout(PATIENCE, taken).await.unwrap();
}

#[tokio::test]
async fn slow_callers_are_cut_off() {
    let server =
        serve(ServerOptions { body_timeout_ms: 100, ..options() }, Arc::new(FakeAdmin::default())).await;
    let answer = exchange(server.address(), &head("/api/callback", "s3cret-token", 10)).await;
    assert!(code(&answer) == 500 && answer.contains("in time"), "{answer}");

    let hasty = ServerOptions { idle_timeout_ms: 300, ..options() };
    let server = serve(hasty, Arc::new(FakeAdmin::default())).await;
    // No head, and half a head.
    assert_eq!(exchange(server.address(), "").await, "");
    let half = exchange(server.address(), "POST /api/callback HTTP/1.1\r\nhost:").await;
    assert!(!half.contains("200 OK"), "{half}");
    // Nothing after a call; on a busy machine the call itself may come too late.
    let kept = head("/api/callback", "s3cret-token", RESULT.len()).replace("connection: close\r\n", "");
    let idle = async {
        while !exchange(server.address(), &format!("{kept}{RESULT}")).await.contains(r#""code":200"#) {}
    };
    timeout(PATIENCE, idle).await.unwrap();
}

#[tokio::test]
async fn connections_are_bounded() {
    let server =
        serve(ServerOptions { connections_max: 1, ..options() }, Arc::new(FakeAdmin::default())).await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    silent.write_all(b"POST ").await.unwrap();
    // Accepted in their order: who has shown no token makes room for who comes.
    let mut first = TcpStream::connect(server.address()).await.unwrap();
    let kept = head("/api/callback", "s3cret-token", RESULT.len()).replace("connection: close\r\n", "");
    first.write_all(format!("{kept}{RESULT}").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(PATIENCE, first.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(read_all(&mut silent).await, "");
    // Who has shown one does not.
    assert_eq!(exchange(server.address(), "").await, "");
    let cut = server.port_counts().cut();
    assert_eq!((cut.get("made_room"), cut.get("too_many")), (Some(&1), Some(&1)));
    drop(first);
    let again = async { while !post(server.address(), "/api/callback", RESULT).await.contains("200 OK") {} };
    timeout(PATIENCE, again).await.unwrap();
}

/// Waits in each report for a permit, and counts what it has finished.
struct Slow {
    permits: Semaphore,
    begun: AtomicU64,
    finished: AtomicU64,
}

#[async_trait]
impl Admin for Slow {
    async fn register(&self, _: Executor) -> Result<(), AdminError> {
        panic!("it panics")
    }

    async fn remove(&self, _: Executor) -> Result<(), AdminError> {
        Err(AdminError::Refused("nobody may leave".into()))
    }

    async fn report(&self, results: Vec<RunResult>) -> Result<(), AdminError> {
        self.begun.fetch_add(1, SeqCst);
        self.permits.acquire().await.unwrap().forget();
        self.finished.fetch_add(results.len() as u64, SeqCst);
        Ok(())
    }
}

fn slow() -> Arc<Slow> {
    Arc::new(Slow { permits: Semaphore::new(0), begun: AtomicU64::new(0), finished: AtomicU64::new(0) })
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap();
}

#[tokio::test]
async fn a_report_goes_on_when_its_executor_stops_waiting() {
    let admin = slow();
    let server = serve(options(), admin.clone()).await;
    let mut caller = TcpStream::connect(server.address()).await.unwrap();
    let sent = format!("{}{RESULT}", head("/api/callback", "s3cret-token", RESULT.len()));
    caller.write_all(sent.as_bytes()).await.unwrap();
    until(|| admin.begun.load(SeqCst) == 1).await;
    drop(caller);
    // A server that leaves waits for it, too.
    let closing = tokio::spawn(server.close(PATIENCE));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closing.is_finished());
    admin.permits.add_permits(1);
    assert_eq!(closing.await.unwrap().cut, 0);
    assert_eq!(admin.finished.load(SeqCst), 1);
}

#[tokio::test]
async fn a_scheduler_that_hangs_or_fails_is_answered_as_a_failure() {
    let admin = slow();
    let server = serve(ServerOptions { admin_timeout_ms: 100, ..options() }, admin.clone()).await;
    let answer = post(server.address(), "/api/callback", RESULT).await;
    assert!(code(&answer) == 500 && answer.contains("not done in time"), "{answer}");
    assert_eq!(code(&post(server.address(), "/api/registry", REGISTRY).await), 500);
    let answer = post(server.address(), "/api/registryRemove", REGISTRY).await;
    assert!(code(&answer) == 500 && answer.contains("nobody may leave"), "{answer}");
    assert_eq!((server.stats().failed_calls, admin.finished.load(SeqCst)), (3, 0));
    assert_eq!(server.close(PATIENCE).await.cut, 0);
}

#[tokio::test]
async fn a_call_that_does_not_end_is_cut_at_the_deadline() {
    let admin = slow();
    let server = serve(options(), admin.clone()).await;
    let address = server.address();
    let caller = tokio::spawn(async move { post(address, "/api/callback", RESULT).await });
    until(|| admin.begun.load(SeqCst) == 1).await;
    assert_eq!(server.close(Duration::from_millis(50)).await.cut, 1);
    // Whether the answer still leaves is a race; that it does not say that it was done is none.
    assert!(!caller.await.unwrap().contains(r#""code":200"#));
    assert_eq!(admin.finished.load(SeqCst), 0);
    assert!(TcpStream::connect(address).await.is_err());
}
