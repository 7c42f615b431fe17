//! Callers over HTTP/1.1 on connections that stay, and a bare hyper server that reads a body and answers 201.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Connections that call at a time, each without waiting between its calls.
const CALLERS: usize = 32;

/// A connection that stays.
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// One call: its status and body.
    pub async fn call(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let mut part = [0; 16 << 10];
        loop {
            let count = self.stream.read(&mut part).await?;
            ensure!(count > 0, "the connection was closed");
            self.read.extend_from_slice(&part[..count]);
            if let Some(reply) = parse(&self.read)? {
                return Ok(reply);
            }
        }
    }
}

/// The reply, once it is whole.
fn parse(read: &[u8]) -> Result<Option<(u16, Vec<u8>)>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&read[..end])?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    });
    let body = &read[end + 4..];
    let length = length.unwrap_or(0);
    Ok((body.len() >= length).then(|| (status, body[..length].to_vec())))
}

pub fn request(method: &str, path: &str, token: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: bench\r\nx-token: {token}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Sends all requests over [`CALLERS`] connections; each must be answered with this status. How long it took.
pub async fn send_all(
    address: SocketAddr,
    requests: Vec<Vec<u8>>,
    status: u16,
) -> Result<(Duration, Vec<Vec<u8>>)> {
    let mut shares: Vec<Vec<Vec<u8>>> = vec![Vec::new(); CALLERS];
    for (at, request) in requests.into_iter().enumerate() {
        shares[at % CALLERS].push(request);
    }
    let mut connections = Vec::new();
    for _ in 0..CALLERS {
        connections.push(Connection::open(address).await?);
    }
    let mut callers: JoinSet<Result<Vec<Vec<u8>>>> = JoinSet::new();
    let began = Instant::now();
    for (mut connection, share) in connections.into_iter().zip(shares) {
        callers.spawn(async move {
            let mut bodies = Vec::with_capacity(share.len());
            for request in &share {
                let (found, body) = connection.call(request).await?;
                if found != status {
                    bail!("answered with {found}: {}", String::from_utf8_lossy(&body));
                }
                bodies.push(body);
            }
            Ok(bodies)
        });
    }
    let mut bodies = Vec::new();
    while let Some(done) = callers.join_next().await {
        bodies.extend(done??);
    }
    Ok((began.elapsed(), bodies))
}

/// A server that does nothing with what it reads. Dropped, it ends.
pub struct Bare {
    pub address: SocketAddr,
    acceptor: JoinHandle<()>,
}

impl Bare {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
                connections.spawn(async move { connection.await.ok() });
            }
        });
        Ok(Self { address, acceptor })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let read = request.into_body().collect().await?.to_bytes();
    let mut response = Response::new(Full::new(Bytes::from(format!("{{\"read\":{}}}", read.len()))));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}
