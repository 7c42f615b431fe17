//! What the tests of this crate share.
#![allow(dead_code, clippy::unwrap_used)]

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_connectors::fake::{FakeServer, ServerOptions};
use windfall_connectors::signature::SigningKey;
use windfall_connectors::{GrpcConnector, GrpcOptions, HttpConnector, HttpOptions, WireOptions};
use windfall_contract::Clock;
use windfall_contract::connector::PayOrder;

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub const BEARER: &str = "a-bearer-key-of-the-fake";

pub fn order(trade_no: &str) -> PayOrder<'_> {
    PayOrder { trade_no, user_id: 7, activity: "spring-2027", scene: "rain", bonus_type: "badge", amount: 1 }
}

/// How long no connection is tried after one failed.
pub const PAUSE_MS: u64 = 300;
/// How long a call may take: quick to lose patience, and slow enough for a busy machine.
pub const TIMEOUT_MS: u64 = 1_000;

pub fn wire() -> WireOptions {
    WireOptions {
        connect_timeout_ms: 5_000,
        timeout_ms: TIMEOUT_MS,
        pause_ms: PAUSE_MS,
        plaintext: true,
        ..WireOptions::default()
    }
}

pub fn http_options(folder: &Path, url: &str) -> HttpOptions {
    let secret_file = folder.join("secret");
    std::fs::write(&secret_file, format!("{SECRET}\n")).unwrap();
    HttpOptions {
        url: url.into(),
        allow: vec!["127.0.0.1".into(), "localhost".into()],
        key_id: "k1".into(),
        secret_file,
        signature_v1: true,
        wire: wire(),
    }
}

pub fn http(folder: &Path, address: SocketAddr) -> HttpConnector {
    let options = http_options(folder, &format!("http://{address}/v1/{{bonus_type}}/pay?from=windfall"));
    HttpConnector::new("fake", &options, Clock::system()).unwrap()
}

pub fn grpc_options(folder: &Path, url: &str) -> GrpcOptions {
    let key_file = folder.join("bearer");
    std::fs::write(&key_file, format!("{BEARER}\n")).unwrap();
    let allow = vec!["127.0.0.1".into(), "localhost".into()];
    GrpcOptions { url: url.into(), allow, key_file, wire: wire() }
}

pub fn grpc(folder: &Path, address: SocketAddr) -> GrpcConnector {
    GrpcConnector::new("fake", &grpc_options(folder, &format!("http://{address}")), Clock::system()).unwrap()
}

pub fn quick() -> FakeOptions {
    FakeOptions { rate_per_s: 0, latency_ms: 0, hang_ms: 3_000, ..FakeOptions::default() }
}

pub fn book(folder: &Path) -> PathBuf {
    folder.join("book")
}

pub fn server_options() -> ServerOptions {
    ServerOptions {
        signing_keys: vec![SigningKey::new("k1", SECRET.as_bytes()).unwrap()],
        bearer_key: Some(BEARER.into()),
        ..ServerOptions::default()
    }
}

pub async fn server(folder: &Path, fake: FakeOptions) -> (FakeServer, Arc<FakeDownstream>) {
    let downstream = Arc::new(FakeDownstream::open(book(folder), fake, Clock::system()).unwrap());
    let server = FakeServer::start(server_options(), downstream.clone(), Clock::system()).await.unwrap();
    (server, downstream)
}

/// A server made by hand, which does this with each connection. Ends when dropped.
pub struct ByHand {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for ByHand {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn by_hand<F, R>(each: F) -> ByHand
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut all = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            all.spawn(each(stream));
        }
    });
    ByHand { address, task }
}

/// Reads a whole request, head and body.
pub async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text.into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Answers every request with these bytes and then does as told with the connection.
pub async fn answering(answer: impl Into<Vec<u8>>) -> ByHand {
    let answer: Arc<[u8]> = answer.into().into();
    by_hand(move |mut stream| {
        let answer = Arc::clone(&answer);
        async move {
            while read_request(&mut stream).await.is_some() {
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}
