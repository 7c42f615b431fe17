//! Pages beside services: a stranger has no body read, and pages take no place of a call.

use crate::fixture::http::{parse, post, request};
use crate::fixture::{Keys, Running, options, start_with_pages, until};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windfall_contract::Clock;
use windfall_edge::{Access, AccessSource, ByHead, Pages, ServeOptions, Visitor};

const SEND: &str = "/v1/bonuses/send";
/// What the server has by itself, or for its services.
const SERVED: [&str; 5] =
    [SEND, "/metrics", "/openapi.json", "/health/ready", "/grpc.health.v1.Health/Check"];
/// More than there are places.
const MANY: usize = 70;

/// Knows whoever says so, and answers others with 401.
struct Fake;

#[tonic::async_trait]
impl Pages for Fake {
    fn takes(&self, path: &str) -> bool {
        path.starts_with("/page") || SERVED.contains(&path)
    }

    fn by_head(&self, head: &Parts, _: Visitor) -> ByHead {
        if head.headers.contains_key("x-known") {
            return ByHead::Known { body_bytes_max: 8 };
        }
        let mut answer = Response::new(Bytes::from_static(b"who?"));
        *answer.status_mut() = StatusCode::UNAUTHORIZED;
        ByHead::Answer(answer)
    }

    async fn answer(&self, request: Request<Bytes>, _: Visitor) -> Response<Bytes> {
        Response::new(request.into_body())
    }
}

async fn running(options: ServeOptions) -> Running {
    let keys = Keys::mint();
    let access = Access::parse(&keys.access_text()).unwrap();
    let access = AccessSource::fixed(access, Clock::system()).unwrap();
    start_with_pages(options, keys, access, Some(Arc::new(Fake))).await
}

/// Sends the head of a request whose body never comes.
async fn announce(running: &Running, header: &str) -> TcpStream {
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let head = format!("POST /page HTTP/1.1\r\nhost: h\r\n{header}content-length: 8\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn pages_that_are_full_take_nothing_from_calls_nor_from_strangers() {
    let limits = ServeOptions {
        calls_max: 1,
        bodies_bytes_max: 4 << 10,
        body_bytes_max: 1 << 10,
        body_timeout_ms: 300_000,
        ..options()
    };
    let running = running(limits).await;
    let address = running.server.address();
    let mut waiting = Vec::new();
    for _ in 0..MANY {
        waiting.push(announce(&running, "x-known: 1\r\n").await);
    }
    until("all places of the pages are taken", async || {
        request(address, "POST", "/page", &[("x-known", "1")], "12345678").await.status == 503
    })
    .await;
    assert_eq!(post(address, SEND, &running.keys.send.text, "{}").await.status, 200);
    assert_eq!(request(address, "GET", "/page", &[], "").await.status, 401);
    drop(waiting);
    until("the pages have places again", async || {
        request(address, "POST", "/page", &[("x-known", "1")], "12345678").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn pages_take_no_path_of_the_services() {
    let running = running(options()).await;
    let address = running.server.address();
    for path in SERVED.iter().filter(|path| !path.starts_with("/health")) {
        let refused = request(address, "POST", path, &[("x-known", "1")], "{}").await;
        assert_eq!(refused.status, 401, "{path}");
        assert!(!refused.body.contains("who?"), "{path}");
    }
    assert_eq!(request(address, "GET", "/health/ready", &[], "").await.status, 200);
}

#[tokio::test]
async fn strangers_who_announce_bodies_take_no_place_and_are_answered() {
    let running = running(ServeOptions { calls_max: 1, ..options() }).await;
    let address = running.server.address();
    let mut waiting = Vec::new();
    for _ in 0..MANY {
        waiting.push(announce(&running, "").await);
    }
    assert_eq!(request(address, "POST", "/page", &[("x-known", "1")], "12345678").await.status, 200);
    assert_eq!(post(address, SEND, &running.keys.send.text, "{}").await.status, 200);
    // The answer comes although the body does not.
    let mut answer = [0; 64];
    let count = waiting[0].read(&mut answer).await.unwrap();
    assert_eq!(parse(&answer[..count]).status, 401);
    let refused = running.metric(
        "windfall_edge_calls_total{face=\"http\",service=\"Pages\",method=\"answer\",code=\"UNAUTHENTICATED\"}",
    );
    assert!(refused >= 1.0, "{}", running.metrics.text().unwrap());
}

#[tokio::test]
async fn a_body_is_read_up_to_what_the_pages_allow_and_its_connection_is_known() {
    let running = running(options()).await;
    let address = running.server.address();
    let known = [("x-known", "1")];
    assert_eq!(request(address, "POST", "/page", &known, "123456789").await.status, 413);
    let mut stream = announce(&running, "x-known: 1\r\n").await;
    stream.write_all(b"12345678").await.unwrap();
    let mut answer = [0; 1024];
    let count = stream.read(&mut answer).await.unwrap();
    assert_eq!(parse(&answer[..count]).status, 200);
    assert_eq!(running.metric("windfall_edge_unauthenticated_connections"), 0.0, "its connection may stay");
}
