//! Orders over HTTP: to the fake server, and to servers made by hand that do what no server should.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{
    PAUSE_MS, SECRET, answering, book, by_hand, grpc, http, http_options, order, quick, read_request, server,
};
use tokio::io::AsyncWriteExt;
use windfall_connectors::fake::Trouble;
use windfall_connectors::fake::{FakeBook, FakeOptions};
use windfall_connectors::signature::{HEADER, HEADER_V2, SKEW_MS, Signed, SigningKey, verify, verify_v2};
use windfall_connectors::{HttpConnector, SetupError};
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer};

#[tokio::test]
async fn an_order_is_paid_once_and_everybody_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = server(folder.path(), quick()).await;
    let connector = http(folder.path(), server.address());
    assert_eq!(connector.name(), "fake");
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Paid);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid);
    let mut other = order("a");
    other.amount = 2;
    assert!(matches!(connector.pay(other).await, PayAnswer::Refused(why) if why.contains("another")));
    let metrics = connector.metrics();
    assert_eq!((metrics.paid, metrics.already_paid, metrics.refused, metrics.latency.count), (1, 1, 1, 3));
    assert_eq!(metrics.answers().iter().map(|(_, count)| count).sum::<u64>(), 3);
    let stats = server.stats();
    assert_eq!((stats.http, stats.grpc, stats.forbidden), (3, 0, 0));
    server.stop().await;
    let book = FakeBook::read(book(folder.path())).unwrap();
    assert_eq!(book.len(), 1);
    assert_eq!((book[0].user_id, book[0].amount), (7, 1));
}

/// A withdrawal's key has a blank, and no activity and scene.
#[tokio::test]
async fn a_withdrawal_is_paid_out_once() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), quick()).await;
    let mut payout = order("withdrawal w-1");
    (payout.activity, payout.scene) = ("", "");
    let url = format!("http://{}/{{activity}}/{{scene}}", server.address());
    let connector = HttpConnector::new("fake", &http_options(folder.path(), &url), Clock::system()).unwrap();
    assert_eq!(connector.pay(payout).await, PayAnswer::Paid);
    assert_eq!(grpc(folder.path(), server.address()).pay(payout).await, PayAnswer::AlreadyPaid);
    assert_eq!(downstream.payments(), 1);
}

#[tokio::test]
async fn over_its_rate_it_is_busy_and_failing_it_asks_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeOptions { rate_per_s: 1, burst: 1, ..quick() };
    let (server, downstream) = server(folder.path(), fake).await;
    let connector = http(folder.path(), server.address());
    let mut busy = 0;
    for nth in 0..5 {
        if let PayAnswer::Busy { after_ms } = connector.pay(order(&format!("a{nth}"))).await {
            assert!((1..=2_000).contains(&after_ms), "{after_ms}");
            busy += 1;
        }
    }
    assert!(busy >= 2, "{busy}");
    drop(server);
    downstream.set_faults(1_000, 0);
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = support::server(folder.path(), quick()).await;
    downstream.set_faults(1_000, 0);
    let connector = http(folder.path(), server.address());
    assert_eq!(connector.pay(order("b")).await, PayAnswer::Retry { after_ms: 20 });
    assert_eq!(downstream.payments(), 0);
}

#[tokio::test]
async fn paid_and_badly_answered_is_unknown_and_then_already_paid() {
    for trouble in Trouble::ALL {
        let folder = tempfile::tempdir().unwrap();
        let (server, downstream) = server(folder.path(), quick()).await;
        let connector = http(folder.path(), server.address());
        server.set_trouble(Some(trouble), 1_000);
        let began = Instant::now();
        assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "{trouble}");
        assert!(began.elapsed() < Duration::from_secs(60), "{trouble} took {:?}", began.elapsed());
        assert_eq!((downstream.payments(), server.stats().troubled), (1, 1), "{trouble}");
        server.set_trouble(None, 0);
        assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid, "{trouble}");
        let metrics = connector.metrics();
        assert_eq!((metrics.unknown, metrics.already_paid), (1, 1), "{trouble}");
        assert_eq!(metrics.timeouts, u64::from(trouble == Trouble::Stalled), "{trouble}");
        server.stop().await;
        assert_eq!(FakeBook::read(book(folder.path())).unwrap().len(), 1, "{trouble}");
    }
}

#[tokio::test]
async fn a_payment_whose_answer_is_lost_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), FakeOptions { hang_ms: 50, ..quick() }).await;
    downstream.set_faults(0, 1_000);
    let connector = http(folder.path(), server.address());
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    assert_eq!(connector.metrics().broken, 1);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid);
}

/// One after the other: each answer, what it is taken for, and whether the next call finds the connector well.
#[tokio::test]
async fn what_no_server_should_answer_is_unknown() {
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let paid = r#"{"outcome":"paid"}"#;
    let large = format!("{{\"outcome\":\"paid\",\"x\":\"{}\"}}", "x".repeat(70_000));
    let many = "x: y\r\n".repeat(100);
    let chunked = "transfer-encoding: chunked\r\n";
    for (name, answer) in [
        ("no HTTP", "nonsense\r\n\r\n".to_owned()),
        ("HTTP 0.9", paid.to_owned()),
        ("an empty answer", format!("{json}content-length: 0\r\n\r\n")),
        ("a large body", format!("{json}content-length: {}\r\n\r\n{large}", large.len())),
        ("a large body in chunks", format!("{json}{chunked}\r\n{:x}\r\n{large}\r\n0\r\n\r\n", large.len())),
        ("less than it announced", format!("{json}content-length: 500\r\n\r\n{paid}")),
        ("two lengths", format!("{json}content-length: 18\r\ncontent-length: 19\r\n\r\n{paid}")),
        ("bad chunks", format!("{json}{chunked}\r\nzz\r\n{paid}\r\n0\r\n\r\n")),
        ("many fields", format!("{json}{many}content-length: 18\r\n\r\n{paid}")),
        ("a huge field", format!("{json}x: {}\r\ncontent-length: 18\r\n\r\n{paid}", "y".repeat(40_000))),
        (
            "a wrong type",
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 18\r\n\r\n{paid}"),
        ),
        ("no type", format!("HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n{paid}")),
        ("compressed", format!("{json}content-encoding: gzip\r\ncontent-length: 18\r\n\r\n{paid}")),
        (
            "accepted",
            format!(
                "HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{paid}"
            ),
        ),
        (
            "moved",
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ),
        ("a failure", "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("not found", "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n".to_owned()),
        (
            "switching",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_owned(),
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let by_hand = answering(answer).await;
        let connector = http(folder.path(), by_hand.address);
        assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "{name}");
        assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "{name}");
        assert_eq!(connector.metrics().unknown, 2, "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let by_hand = answering(format!("{json}content-length: 18\r\n\r\n{paid}")).await;
    assert_eq!(http(folder.path(), by_hand.address).pay(order("a")).await, PayAnswer::Paid);
}

#[tokio::test]
async fn what_never_ends_is_given_up_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    for (name, begin, again) in [
        ("silence", "", ""),
        ("a slow head", head, "x: y\r\n"),
        ("interim answers", "", "HTTP/1.1 103 Early Hints\r\n\r\n"),
        ("a slow body", &format!("{head}\r\n"), " "),
        ("slow chunks", &format!("{head}transfer-encoding: chunked\r\n\r\n"), "1\r\n \r\n"),
    ] {
        let (begin, again) = (Arc::<str>::from(begin), Arc::<str>::from(again));
        let by_hand = by_hand(move |mut stream| {
            let (begin, again) = (Arc::clone(&begin), Arc::clone(&again));
            async move {
                read_request(&mut stream).await;
                let mut sent = stream.write_all(begin.as_bytes()).await;
                while sent.is_ok() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    sent = stream.write_all(again.as_bytes()).await;
                }
            }
        })
        .await;
        let connector = http(folder.path(), by_hand.address);
        let began = Instant::now();
        assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "{name}");
        assert!((1_000..60_000).contains(&began.elapsed().as_millis()), "{name}: {:?}", began.elapsed());
        assert_eq!(connector.metrics().timeouts, 1, "{name}");
    }
}

/// Sockets that are closed with what they hold unread send a reset.
#[tokio::test]
async fn a_connection_that_breaks_is_unknown_and_none_at_all_is_not_paid() {
    let folder = tempfile::tempdir().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let after = {
        let calls = Arc::clone(&calls);
        by_hand(move |mut stream| {
            let calls = Arc::clone(&calls);
            async move {
                read_request(&mut stream).await;
                calls.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await
    };
    let connector = http(folder.path(), after.address);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "never sent twice by itself");
    // Accepted and reset before anything was read: it may have been read.
    let at_once = by_hand(|stream| async move { drop(stream) }).await;
    let connector = http(folder.path(), at_once.address);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    let nobody = at_once.address;
    drop(at_once);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let connector = http(folder.path(), nobody);
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    assert!(matches!(connector.pay(order("a")).await, PayAnswer::Busy { after_ms: 1..=PAUSE_MS }));
    tokio::time::sleep(Duration::from_millis(PAUSE_MS + 50)).await;
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    let metrics = connector.metrics();
    assert_eq!((metrics.unreachable, metrics.retry, metrics.busy, metrics.unknown), (2, 2, 1, 0));
}

/// A server that closes idle connections: the next order finds out and takes another connection, without doubt.
#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let one_each = by_hand(|mut stream| async move {
        read_request(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{\"outcome\":\"paid\"}";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let connector = http(folder.path(), one_each.address);
    for nth in 0..20 {
        assert_eq!(connector.pay(order(&format!("a{nth}"))).await, PayAnswer::Paid);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connections are used again, and those that are idle are no more than the options say.
#[tokio::test]
async fn idle_connections_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (open, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let server = {
        let (open, accepted) = (Arc::clone(&open), Arc::clone(&accepted));
        by_hand(move |mut stream| {
            let (open, accepted) = (Arc::clone(&open), Arc::clone(&accepted));
            async move {
                open.fetch_add(1, Ordering::SeqCst);
                accepted.fetch_add(1, Ordering::SeqCst);
                let answer =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n";
                while read_request(&mut stream).await.is_some() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    stream.write_all(br#"{"outcome":"paid"}"#).await.unwrap();
                }
                open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await
    };
    let mut options = http_options(folder.path(), &format!("http://{}/", server.address));
    options.wire.idle_max = 4;
    let connector = HttpConnector::new("fake", &options, Clock::system()).unwrap();
    for nth in 0..20 {
        assert_eq!(connector.pay(order(&format!("a{nth}"))).await, PayAnswer::Paid);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "one after the other, they take one connection");
    let names: Vec<String> = (0..32).map(|nth| format!("b{nth}")).collect();
    let all = futures_util::future::join_all(names.iter().map(|name| connector.pay(order(name)))).await;
    assert!(all.iter().all(|answer| *answer == PayAnswer::Paid), "{all:?}");
    for _ in 0..200 {
        if open.load(Ordering::SeqCst) <= 4 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} connections stay open", open.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_name_that_leads_to_an_address_that_is_not_allowed_is_not_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let inside = by_hand(move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { drop(stream) }
    })
    .await;
    let mut options = http_options(folder.path(), &format!("http://localhost:{}/pay", inside.address.port()));
    options.allow = vec!["localhost".into()];
    let connector = HttpConnector::new("fake", &options, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    assert_eq!((connector.metrics().unreachable, seen.load(Ordering::SeqCst)), (1, 0));
    options.allow.push("127.0.0.0/8".into());
    let connector = HttpConnector::new("fake", &options, Clock::system()).unwrap();
    connector.pay(order("a")).await;
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_request_is_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let (sent, mut received) = tokio::sync::mpsc::channel(1);
    let by_hand = by_hand(move |mut stream| {
        let sent = sent.clone();
        async move {
            let request = read_request(&mut stream).await.unwrap();
            sent.send(request).await.unwrap();
        }
    })
    .await;
    let connector = http(folder.path(), by_hand.address);
    connector.pay(order("rain-1-42")).await;
    let request = received.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/badge/pay?from=windfall HTTP/1.1\r\n"), "{head}");
    for field in [
        &format!("host: {}", by_hand.address),
        "idempotency-key: rain-1-42",
        "content-type: application/json",
        "accept-encoding: identity",
        "windfall-signature: v1;key=k1;time=",
        "windfall-signature-v2: v2;key=k1;time=",
    ] {
        assert!(head.contains(&format!("\r\n{field}")), "{field} in {head}");
    }
    let expected = r#"{"trade_no":"rain-1-42","user_id":"7","activity":"spring-2027","scene":"rain","#;
    assert_eq!(body, format!(r#"{expected}"bonus_type":"badge","amount":"1"}}"#));
}

/// Old payers verify version 1, new ones version 2, and who has ended version 1 sends none.
#[tokio::test]
async fn both_versions_of_the_signature_verify_until_the_older_one_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (sent, mut received) = tokio::sync::mpsc::channel(2);
    let by_hand = by_hand(move |mut stream| {
        let sent = sent.clone();
        async move {
            let request = read_request(&mut stream).await.unwrap();
            sent.send(request).await.unwrap();
        }
    })
    .await;
    let mut options = http_options(folder.path(), &format!("http://{}/pay", by_hand.address));
    let keys = [SigningKey::new("k1", SECRET.as_bytes()).unwrap()];
    for signature_v1 in [true, false] {
        options.signature_v1 = signature_v1;
        HttpConnector::new("fake", &options, Clock::system()).unwrap().pay(order("rain-1-42")).await;
        let request = received.recv().await.unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let (body, now_ms) = (body.as_bytes(), Clock::system().wall_ms());
        assert_eq!(value(HEADER).is_some(), signature_v1, "{head}");
        if let Some(header) = value(HEADER) {
            assert_eq!(verify(&keys, header, "POST", "/pay", body, now_ms, SKEW_MS), Ok(()));
        }
        let (host, path_and_query) = (by_hand.address.to_string(), "/pay");
        let signed =
            Signed { method: "POST", host: &host, path_and_query, idempotency_key: "rain-1-42", body };
        assert_eq!(verify_v2(&keys, value(HEADER_V2).unwrap(), &signed, now_ms, SKEW_MS), Ok(()));
    }
}

#[tokio::test]
async fn the_fake_checks_signatures_keys_and_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), quick()).await;
    let mut options = http_options(folder.path(), &format!("http://{}/", server.address()));
    options.key_id = "k2".into();
    let connector = HttpConnector::new("fake", &options, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown);
    options.key_id = "k1".into();
    let late = Clock::from_unix_ms(|| Clock::system().unix_ms() - 301_000);
    let connector = HttpConnector::new("fake", &options, late).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Unknown, "a clock that is 301 s late");
    let early = Clock::from_unix_ms(|| Clock::system().unix_ms() + 290_000);
    let connector = HttpConnector::new("fake", &options, early).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Paid, "290 s are allowed");
    assert_eq!((server.stats().forbidden, downstream.payments()), (2, 1));
}

#[tokio::test]
async fn options_are_checked_when_it_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let good = http_options(folder.path(), "http://127.0.0.1:1/");
    let refused = |change: fn(&mut windfall_connectors::HttpOptions)| {
        let mut options = good.clone();
        change(&mut options);
        HttpConnector::new("fake", &options, Clock::system()).map(|_| ()).unwrap_err()
    };
    assert!(matches!(refused(|o| o.allow = vec![]), SetupError::Option { key: "url", .. }));
    assert!(matches!(refused(|o| o.allow = vec!["*".into()]), SetupError::Allow(_)));
    assert!(matches!(refused(|o| o.wire.plaintext = false), SetupError::Option { key: "url", .. }));
    assert!(matches!(refused(|o| o.wire.timeout_ms = 0), SetupError::Option { key: "wire.timeout_ms", .. }));
    assert!(matches!(refused(|o| o.wire.idle_max = 5_000), SetupError::Option { key: "wire.idle_max", .. }));
    assert!(matches!(refused(|o| o.key_id = "a b".into()), SetupError::Key(_)));
    assert!(matches!(
        refused(|o| o.secret_file = "/none".into()),
        SetupError::File { key: "secret_file", .. }
    ));
    std::fs::write(folder.path().join("short"), "short").unwrap();
    let mut options = good.clone();
    options.secret_file = folder.path().join("short");
    let error = HttpConnector::new("fake", &options, Clock::system()).map(|_| ()).unwrap_err();
    assert!(matches!(error, SetupError::Key(_)), "{error}");
    assert!(HttpConnector::new("fake", &good, Clock::system()).is_ok());
    let text =
        "url = \"https://a.example/\"\nallow = [\"a.example\"]\nkey_id = \"k\"\nsecret_file = \"/s\"\n";
    let read: windfall_connectors::HttpOptions = toml::from_str(text).unwrap();
    assert_eq!(read.wire, windfall_connectors::WireOptions::default());
    assert!(toml::from_str::<windfall_connectors::HttpOptions>(&format!("{text}more = 1\n")).is_err());
}
