//! Orders over gRPC: to the fake server, and to servers that do what none should.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};
use support::{PAUSE_MS, answering, book, by_hand, grpc, grpc_options, order, quick, server};
use tokio::io::AsyncWriteExt;
use windfall_connectors::fake::Trouble;
use windfall_connectors::fake::{FakeBook, FakeOptions};
use windfall_connectors::{GrpcConnector, SetupError};
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer};

#[tokio::test]
async fn an_order_is_paid_once_and_everybody_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), quick()).await;
    let connector = grpc(folder.path(), server.address());
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Paid);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid);
    let mut other = order("a");
    other.user_id = 8;
    assert!(matches!(connector.pay(other).await, PayAnswer::Refused(_)));
    downstream.set_faults(1_000, 0);
    assert_eq!(connector.pay(order("b")).await, PayAnswer::Retry { after_ms: 20 });
    downstream.set_faults(0, 1_000);
    // Paid, and it hangs for longer than we wait.
    assert_eq!(connector.pay(order("c")).await, PayAnswer::Unknown);
    assert_eq!(connector.pay(order("c")).await, PayAnswer::AlreadyPaid);
    let metrics = connector.metrics();
    assert_eq!((metrics.paid, metrics.already_paid, metrics.refused), (1, 2, 1));
    assert_eq!((metrics.retry, metrics.timeouts, metrics.unreachable), (1, 1, 0));
    assert_eq!((server.stats().grpc, server.stats().http), (6, 0));
    server.stop().await;
    assert_eq!(FakeBook::read(book(folder.path())).unwrap().len(), 2);
}

#[tokio::test]
async fn paid_and_badly_answered_is_unknown_and_then_already_paid() {
    // gRPC's own framing and status decide, whatever the content type says.
    for trouble in Trouble::ALL.into_iter().filter(|one| *one != Trouble::WrongType) {
        let folder = tempfile::tempdir().unwrap();
        let (server, downstream) = server(folder.path(), quick()).await;
        let connector = grpc(folder.path(), server.address());
        server.set_trouble(Some(trouble), 1_000);
        let began = Instant::now();
        assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "{trouble}");
        assert!(began.elapsed() < Duration::from_secs(60), "{trouble} took {:?}", began.elapsed());
        assert_eq!((downstream.payments(), server.stats().troubled), (1, 1), "{trouble}");
        server.set_trouble(None, 0);
        assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid, "{trouble}");
        server.stop().await;
        assert_eq!(FakeBook::read(book(folder.path())).unwrap().len(), 1, "{trouble}");
    }
}

#[tokio::test]
async fn a_wrong_key_is_unknown_and_pays_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), quick()).await;
    let options = grpc_options(folder.path(), &format!("http://{}/", server.address()));
    std::fs::write(&options.key_file, "another-key-of-somebody").unwrap();
    let connector = GrpcConnector::new("fake", &options, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    assert_eq!((server.stats().forbidden, downstream.payments(), connector.metrics().nonsense), (1, 0, 1));
}

#[tokio::test]
async fn no_connection_is_not_paid_and_a_broken_one_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let gone = by_hand(|stream| async move { drop(stream) }).await;
    let address = gone.address;
    // Accepted, and closed at once.
    assert_eq!(grpc(folder.path(), address).pay(order("a")).await, PayAnswer::Unknown);
    drop(gone);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let connector = grpc(folder.path(), address);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    assert!(matches!(connector.pay(order("a")).await, PayAnswer::Busy { after_ms: 1..=PAUSE_MS }));
    assert_eq!((connector.metrics().unreachable, connector.metrics().unknown), (1, 0));
    // It comes back on the same port, and the connector with it.
    let downstream =
        windfall_connectors::fake::FakeDownstream::open(book(folder.path()), quick(), Clock::system());
    let options = windfall_connectors::fake::ServerOptions { listen: address, ..support::server_options() };
    let downstream = std::sync::Arc::new(downstream.unwrap());
    let server =
        windfall_connectors::fake::FakeServer::start(options, downstream, Clock::system()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(PAUSE_MS + 50)).await;
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Paid);
    // And goes, in the middle of its life.
    server.stop().await;
    let answer = connector.pay(order("b")).await;
    assert!(matches!(answer, PayAnswer::Unknown | PayAnswer::Retry { .. }), "{answer:?}");
}

#[tokio::test]
async fn what_speaks_no_grpc_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{\"outcome\":\"paid\"}";
    let http1 = by_hand(move |mut stream| async move {
        stream.readable().await.ok();
        stream.write_all(answer.as_bytes()).await.ok();
        tokio::time::sleep(Duration::from_secs(5)).await;
    })
    .await;
    assert_eq!(grpc(folder.path(), http1.address).pay(order("a")).await, PayAnswer::Unknown);
    let silent = answering("").await;
    let connector = grpc(folder.path(), silent.address);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    assert_eq!(connector.metrics().timeouts, 1);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_not_connected_to_and_options_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), FakeOptions { ..quick() }).await;
    let url = format!("http://localhost:{}", server.address().port());
    let mut options = grpc_options(folder.path(), &url);
    options.allow = vec!["localhost".into()];
    let connector = GrpcConnector::new("fake", &options, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    assert_eq!((connector.metrics().unreachable, downstream.payments()), (1, 0));
    options.url = "http://evil.example.com".into();
    let error = GrpcConnector::new("fake", &options, Clock::system()).map(|_| ()).unwrap_err();
    assert!(matches!(error, SetupError::Option { key: "url", .. }), "{error}");
    options.url = url;
    std::fs::write(&options.key_file, "short").unwrap();
    let error = GrpcConnector::new("fake", &options, Clock::system()).map(|_| ()).unwrap_err();
    assert!(matches!(error, SetupError::File { key: "key_file", .. }), "{error}");
}
