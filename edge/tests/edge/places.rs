//! Places among the calls in hand: who has one, who waits for one, and who needs none.

use crate::fixture::http::{JSON, bearer, channel, post, request, with};
use crate::fixture::{Running, options, start, until};
use bytes::Bytes;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;
use windfall_contract::Clock;
use windfall_edge::ServeOptions;
use windfall_proto::v1;
use windfall_proto::v1::send_client::SendClient;

const SEND: &str = "/v1/bonuses/send";

async fn running(options: ServeOptions) -> Running {
    start(options, "", Clock::system()).await
}

#[tokio::test]
async fn calls_beyond_the_limit_are_told_to_come_again() {
    let running = running(ServeOptions { calls_max: 1, ..options() }).await;
    let address = running.server.address();
    let key = running.keys.send.text.clone();
    let held = tokio::spawn({
        let key = key.clone();
        async move { post(address, SEND, &key, r#"{"trade_no": "wait-1000"}"#).await.status }
    });
    until("one is in hand", async || running.metric("windfall_edge_calls_in_hand") == 1.0).await;
    let reply = post(address, SEND, &key, "{}").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "UNAVAILABLE"));
    assert_eq!((reply.header("retry-after"), &reply.json()["retry_after_ms"]), (Some("1"), &200.into()));
    let headers = [("authorization", bearer(&key))];
    let headers = [(headers[0].0, headers[0].1.as_str())];
    let sent = SendClient::new(channel(address).await)
        .send_bonus(with(v1::SendBonusRequest::default(), &headers))
        .await;
    let error = sent.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.metadata().get("retry-after-ms").unwrap(), "200");
    assert_eq!(request(address, "GET", "/health/live", &[], "").await.status, 200, "health needs no place");
    assert_eq!(held.await.unwrap(), 200);
    assert_eq!(post(address, SEND, &key, "{}").await.status, 200);
}

/// Calls whose answers' bodies wait for a window that never opens.
#[tokio::test]
async fn refusals_and_probes_that_nobody_reads_take_no_place() {
    let running = running(ServeOptions { calls_max: 2, ..options() }).await;
    let address = running.server.address();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut client = h2::client::Builder::new();
    let (sender, connection) = client.initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let mut unread = Vec::new();
    // Of no service by name.
    let health_check = Bytes::from_static(&[0; 5]);
    for (method, path, kind, message, status) in [
        ("POST", SEND, JSON.1, Bytes::new(), 401),
        ("GET", "/health/live", "", Bytes::new(), 200),
        ("POST", "/grpc.health.v1.Health/Check", "application/grpc", health_check, 200),
    ] {
        for _ in 0..2 {
            let request = http::Request::builder().method(method).uri(format!("http://h{path}"));
            let request = request.header("content-type", kind).body(()).unwrap();
            let (response, mut body) = sender.send_request(request, message.is_empty()).unwrap();
            if !message.is_empty() {
                body.send_data(message.clone(), true).unwrap();
            }
            let response = response.await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            unread.push(response.into_body());
        }
    }
    assert_eq!(running.metric("windfall_edge_calls_in_hand"), 6.0, "they are still there");
    assert_eq!(post(address, SEND, &running.keys.send.text, "{}").await.status, 200);
    drop(unread);
    connection.abort();
}

#[tokio::test]
async fn who_announces_a_body_that_nobody_wants_takes_no_place() {
    let running = running(ServeOptions { calls_max: 1, ..options() }).await;
    let address = running.server.address();
    let key = &running.keys.send.text;
    for path in ["/health/live", "/openapi.json", SEND] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-length: 9\r\n\r\n",
            bearer(key)
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // Its answer waits for the body for a second.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(post(address, SEND, key, "{}").await.status, 200, "{path}");
    }
}
