//! The ports of both APIs: TLS, certificates that are replaced, and what those can take who have shown no token.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod api;

use api::{Served, TOKEN, serve};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use windfall_contract::Clock;
use windfall_edge::{ListenerLimits, TlsOptions};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
use windfall_task_queue::{ApiOptions, PoolParts, TaskQueues};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(dir: &Path) -> Arc<EmbeddedJobs> {
    let options = EmbeddedJobsOptions { shards: 1, ..EmbeddedJobsOptions::default() };
    EmbeddedJobs::open(dir, &options, Clock::system()).unwrap()
}

async fn start(dir: &Path, options: ApiOptions) -> TaskQueues {
    let any_port = "127.0.0.1:0".parse().unwrap();
    let options = ApiOptions { listen: any_port, admin_listen: any_port, ..options };
    let store = open(dir);
    let parts = PoolParts { store: store.clone(), tokens: store, far: None };
    let pools = BTreeMap::from([("default".to_owned(), parts)]);
    windfall_task_queue::start(options, pools, Clock::system()).await.unwrap()
}

/// A new certificate for `localhost` and its key, in the files that the options name.
fn certify(folder: &Path) -> (TlsOptions, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&cert_file, made.cert.pem()).unwrap();
    fs::write(&key_file, made.signing_key.serialize_pem()).unwrap();
    let (client_ca_file, client_crl_file) = (None, None);
    let tls =
        TlsOptions { cert_file, key_file, client_ca_file, client_crl_file, client_cert_required: false };
    (tls, made.cert.der().clone())
}

/// As clients that can do both connect, which prefer HTTP/2.
async fn connect(address: SocketAddr, trusted: &CertificateDer<'static>) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

fn request(method: &str, path: &str, token: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: h\r\nx-token: {token}\r\ncontent-length: 0\r\n\r\n")
}

/// One answer on a connection that stays.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut read = Vec::new();
    loop {
        let mut piece = [0; 4_096];
        let count = timeout(PATIENCE, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(count > 0, "no answer to {request}");
        read.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length: ").and_then(|length| length.parse::<usize>().ok())
        });
        if body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}

/// Waits until the other side ends a connection on which nothing comes.
async fn closed(stream: &mut TcpStream) {
    let end = timeout(PATIENCE, stream.read(&mut [0])).await.expect("the connection is closed");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// How many connections of the queue API were ended for this reason.
fn cut(queues: &TaskQueues, why: &str) -> u64 {
    let listeners = queues.listeners();
    let (name, counts) = &listeners[0];
    assert_eq!(*name, "task_queue");
    counts.cut().get(why).copied().unwrap_or(0)
}

fn bounded(connections: ListenerLimits) -> ApiOptions {
    ApiOptions { connections, ..ApiOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_apis_speak_tls_and_take_over_new_certificates() {
    let (dir, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (tls, first) = certify(folder.path());
    let queues = start(dir.path(), ApiOptions { tls: Some(tls), ..ApiOptions::default() }).await;
    let (api, admin) = (queues.api_address(), queues.admin_address());
    let mut operator = connect(admin, &first).await.unwrap();
    let made =
        ask(&mut operator, &request("POST", &format!("/token/n?description=x&token={TOKEN}"), "")).await;
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let mut kept = connect(api, &first).await.unwrap();
    assert_eq!(kept.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let put = request("PUT", "/api/n/q", TOKEN);
    assert!(ask(&mut kept, &put).await.starts_with("HTTP/1.1 201"));

    // In plain text nothing is done.
    for address in [api, admin] {
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(put.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        timeout(PATIENCE, plain.read_to_end(&mut read)).await.expect("the connection is closed").ok();
        assert!(!String::from_utf8_lossy(&read).contains("HTTP/1.1"), "{read:?}");
    }
    until("the handshake is counted", async || cut(&queues, "handshake") == 1).await;

    // A new certificate is in force for new connections; the old ones stay.
    let (_, second) = certify(folder.path());
    until("the new certificate is shown", async || connect(api, &second).await.is_ok()).await;
    assert!(connect(api, &first).await.is_err());
    assert!(ask(&mut kept, &put).await.starts_with("HTTP/1.1 201"));
    until("the admin API has it, too", async || connect(admin, &second).await.is_ok()).await;
    queues.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_does_not_come_ends() {
    let (dir, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (tls, _) = certify(folder.path());
    let limits = ListenerLimits { header_timeout_ms: 200, ..ListenerLimits::default() };
    let queues = start(dir.path(), ApiOptions { tls: Some(tls), ..bounded(limits) }).await;
    let mut silent = TcpStream::connect(queues.api_address()).await.unwrap();
    closed(&mut silent).await;
    until("it is counted", async || cut(&queues, "handshake_too_slow") == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_token_makes_room_and_who_has_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ListenerLimits {
        unauthenticated_connections_per_peer_max: 2,
        header_timeout_ms: 300_000,
        ..ListenerLimits::default()
    };
    let Served { queues, .. } = serve(&[("default", open(dir.path()))], bounded(limits)).await;
    let connect = async || TcpStream::connect(queues.api_address()).await.unwrap();
    let mut known = connect().await;
    let put = request("PUT", "/api/n/q", TOKEN);
    assert!(ask(&mut known, &put).await.starts_with("HTTP/1.1 201"));
    // A wrong token is none.
    let mut strangers = vec![connect().await];
    let refused = ask(&mut strangers[0], &request("PUT", "/api/n/q", "wrong-wrong-wrong-wrong")).await;
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    for _ in 0..4 {
        strangers.push(connect().await);
    }
    for stranger in &mut strangers[..3] {
        closed(stranger).await;
    }
    until("they are counted", async || cut(&queues, "peer_too_many") == 3).await;
    for _ in 0..3 {
        assert!(ask(&mut known, &put).await.starts_with("HTTP/1.1 201"));
    }
    // Those that are left are served, if they have a token after all.
    assert!(ask(&mut strangers[4], &put).await.starts_with("HTTP/1.1 201"));
    queues.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_shows_no_token_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ListenerLimits { header_timeout_ms: 3_000, ..ListenerLimits::default() };
    let Served { queues, .. } = serve(&[("default", open(dir.path()))], bounded(limits)).await;
    let connect = async || TcpStream::connect(queues.api_address()).await.unwrap();
    let mut known = connect().await;
    let put = request("PUT", "/api/n/q", TOKEN);
    assert!(ask(&mut known, &put).await.starts_with("HTTP/1.1 201"));
    let [mut silent, mut open] = [connect().await, connect().await];
    // This call is anybody's. On a slow machine the connection may have ended before it.
    open.write_all(request("GET", "/api/n/q/size", "").as_bytes()).await.ok();
    let mut read = Vec::new();
    timeout(PATIENCE, open.read_to_end(&mut read)).await.expect("the connection is closed").ok();
    closed(&mut silent).await;
    until("both are counted", async || {
        cut(&queues, "headers_too_slow") + cut(&queues, "idle_without_key") == 2
    })
    .await;
    assert!(ask(&mut known, &put).await.starts_with("HTTP/1.1 201"));
    queues.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_token_end_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ListenerLimits { unauthenticated_calls_max: 3, ..ListenerLimits::default() };
    let Served { queues, .. } = serve(&[("default", open(dir.path()))], bounded(limits)).await;
    let mut stream = TcpStream::connect(queues.api_address()).await.unwrap();
    let wrong = request("GET", "/api/n/q", "wrong-wrong-wrong-wrong");
    let mut answers = 0;
    loop {
        let answer = ask(&mut stream, &wrong).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        answers += 1;
        if answer.contains("connection: close") {
            break;
        }
        assert!(answers < 10, "it may go on for ever");
    }
    assert!(answers > 3, "{answers}");
    closed(&mut stream).await;
    queues.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_connection_ends_with_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ListenerLimits { connection_age_max_ms: 1_000, ..ListenerLimits::default() };
    let Served { queues, .. } = serve(&[("default", open(dir.path()))], bounded(limits)).await;
    let began = Instant::now();
    let mut stream = TcpStream::connect(queues.api_address()).await.unwrap();
    let put = request("PUT", "/api/n/q", TOKEN);
    while began.elapsed() < PATIENCE {
        let answer = ask(&mut stream, &put).await;
        // Also the last one was done.
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        if answer.contains("connection: close") {
            assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
            closed(&mut stream).await;
            queues.close(Duration::from_secs(5)).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the connection never became old");
}
