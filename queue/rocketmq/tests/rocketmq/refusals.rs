//! Wrong addresses, names, groups, credentials: a clear error that names place and remedy.

use super::ground::{Ground, private, reader, write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::Ledger;
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions, Secret};
use windfall_rocketmq_wire::admin::Admin;
use windfall_servers::RocketMqOptions;

fn said<T>(outcome: Result<T, OpenError>) -> OpenError {
    outcome.err().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there() {
    let options =
        RocketOptions { endpoints: vec!["127.0.0.1:1".into()], timeout_ms: 300, ..RocketOptions::default() };
    let broker = RocketBroker::open(&options).unwrap();
    let started = Instant::now();
    let error = said(broker.producer("t", Arc::new(Ledger::default())));
    assert!(matches!(&error, OpenError::Unavailable(what) if what.contains("127.0.0.1:1")), "{error}");
    let error = said(broker.consumer("t", "g").await);
    assert!(matches!(&error, OpenError::Unavailable(what) if what.contains("127.0.0.1:1")), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let error = said(broker.ensure_topic("no.dots", 1));
    assert!(matches!(&error, OpenError::Invalid(what) if what.contains("no.dots")), "{error}");
}

/// How many threads and files this process has.
fn belongings() -> (usize, usize) {
    let count = |place: &str| std::fs::read_dir(place).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// A server that is away is opened again and again, until it is back: each try is short and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_may_be_tried_for_ever() {
    // It accepts connections, and says nothing: a frozen server.
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = frozen.local_addr().unwrap().to_string();
    let options =
        RocketOptions { endpoints: vec![place], connect_timeout_ms: 1_000, ..RocketOptions::default() };
    let broker = Arc::new(RocketBroker::open(&options).unwrap());
    let started = Instant::now();
    let error = said(broker.producer("t", Arc::new(Ledger::default())));
    assert!(matches!(error, OpenError::Unavailable(_)), "{error}");
    let error = said(broker.consumer("t", "g").await);
    assert!(matches!(error, OpenError::Unavailable(_)), "{error}");
    println!("a frozen server: two tries took {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());

    let round = |count: usize| {
        let tries = (0..count).map(|number| {
            let broker = Arc::clone(&broker);
            async move {
                let error = if number % 2 == 0 {
                    let opening = move || said(broker.producer("t", Arc::new(Ledger::default())));
                    tokio::task::spawn_blocking(opening).await.unwrap()
                } else {
                    said(broker.consumer("t", "g").await)
                };
                assert!(matches!(error, OpenError::Unavailable(_)), "{error}");
            }
        });
        futures_util::future::join_all(tries.collect::<Vec<_>>())
    };
    round(100).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (_, files) = belongings();
    for _ in 0..9 {
        round(100).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (_, after) = belongings();
    println!("files before and after 900 tries: {files}, {after}");
    assert!(after < files + 20, "{files} files have become {after}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn names_and_groups() {
    let ground = Ground::shared().await;
    let with = RocketBroker::open(&ground.options).unwrap();
    let without = RocketBroker::open(&RocketOptions { admin: Vec::new(), ..ground.options.clone() }).unwrap();
    let prefix = &ground.options.prefix;

    // Without the brokers' ports nothing is made, and the command that makes it is named.
    let error = said(without.ensure_topic("absent", 4));
    assert!(matches!(&error, OpenError::Absent(what) if what.contains("mqadmin updateTopic")), "{error}");
    let error = said(without.producer("absent", Arc::new(Ledger::default())));
    assert!(
        matches!(&error, OpenError::Absent(what) if what.contains(&format!("{prefix}absent"))),
        "{error}"
    );
    with.ensure_topic("present", 4).unwrap();
    without.ensure_topic("present", 4).unwrap();
    let error = said(without.lag("present", "g").await);
    assert!(matches!(&error, OpenError::Invalid(what) if what.contains("admin")), "{error}");

    // A group that is absent, or that gives a record up too early, is refused: rewards would end as dead letters.
    let error = said(without.consumer("present", "none").await);
    assert!(matches!(&error, OpenError::Absent(what) if what.contains("mqadmin updateSubGroup")), "{error}");
    let admin = Admin::new(&ground.options.admin[0], None, None, Duration::from_secs(10));
    admin.put_group(&format!("{prefix}hasty"), 16).await.unwrap();
    for broker in [&with, &without] {
        let error = said(broker.consumer("present", "hasty").await);
        assert!(matches!(&error, OpenError::Invalid(what) if what.contains("16 redeliveries")), "{error}");
    }
    // Made with one, used without.
    write(&with, "present", 0..20).await;
    drop(with.consumer("present", "patient").await.unwrap());
    let mut patient = None;
    let started = Instant::now();
    while patient.is_none() && started.elapsed() < Duration::from_secs(60) {
        // The proxy sees a new group a second later.
        patient = without.consumer("present", "patient").await.ok();
    }
    let mut patient = windfall_conformance::broker::Reader::new(patient.unwrap());
    patient.read(20, Duration::from_secs(60)).await.unwrap();

    // A topic for messages in order takes no batches.
    let error = said(
        RocketBroker::open(&RocketOptions { prefix: String::new(), ..ground.options.clone() })
            .unwrap()
            .ensure_topic("", 1),
    );
    assert!(matches!(error, OpenError::Invalid(_)), "{error}");
}

/// A server that asks who we are.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn credentials() {
    let user = r#"{"username":"rain","password":"festival"}"#;
    let inner = r#"{"accessKey":"rain","secretKey":"festival"}"#;
    let text = |value: &str| value.into();
    let proxy = [
        ("authenticationEnabled", true.into()),
        (
            "authenticationProvider",
            text("org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"),
        ),
        (
            "authenticationMetadataProvider",
            text("org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"),
        ),
        ("initAuthenticationUser", text(user)),
        ("innerClientAuthenticationCredentials", text(inner)),
    ];
    let broker = [
        ("authenticationEnabled", "true"),
        (
            "authenticationProvider",
            "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
        ),
        (
            "authenticationMetadataProvider",
            "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
        ),
        ("initAuthenticationUser", user),
        ("innerClientAuthenticationCredentials", inner),
    ];
    let (_server, options) = private(RocketMqOptions {
        proxy_properties: proxy.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        broker_properties: broker.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..RocketMqOptions::default()
    })
    .await;
    let known = |secret: &str| RocketOptions {
        access_key: Some("rain".into()),
        secret_key: Some(Secret::new(secret)),
        ..options.clone()
    };
    let right = RocketBroker::open(&known("festival")).unwrap();
    right.ensure_topic("secret", 2).unwrap();
    write(&right, "secret", 0..10).await;
    reader(&right, "secret", "g").await.read(10, Duration::from_secs(60)).await.unwrap();
    for wrong in [known("guess"), options.clone()] {
        let wrong = RocketBroker::open(&RocketOptions { admin: Vec::new(), ..wrong }).unwrap();
        for error in [
            said(wrong.producer("secret", Arc::new(Ledger::default()))),
            said(wrong.consumer("secret", "g").await),
        ] {
            assert!(matches!(&error, OpenError::Invalid(_)), "{error:?}");
            println!("{error}");
        }
    }
    let error = said(RocketBroker::open(&known("guess")).unwrap().ensure_topic("other", 2));
    println!("{error}");
    assert!(matches!(&error, OpenError::Invalid(_)), "{error:?}");
}
