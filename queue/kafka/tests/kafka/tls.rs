//! A broker that takes TLS and demands a client certificate: a check of each kind of call, and what is refused.

use super::conforms::Kafka;
use super::{PATIENCE, options};
use std::time::Instant;
use windfall_conformance::broker::run_one;
use windfall_contract::broker::{Broker as _, OpenError};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions, TlsOptions};
use windfall_servers::{Authority, KafkaOptions as ServerOptions, Pair, Private, Tls, Validity};

/// Why a topic cannot be made.
fn refused(options: &KafkaOptions) -> OpenError {
    let began = Instant::now();
    // The handle needs no cluster; the first question does.
    let outcome = KafkaBroker::open(options).and_then(|broker| broker.ensure_topic("door", 1));
    println!("{outcome:?} after {:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE, "{outcome:?}");
    outcome.unwrap_err()
}

fn trusting(authority: &Authority, client: Option<&Pair>) -> TlsOptions {
    TlsOptions {
        ca_file: Some(authority.ca_file()),
        cert_file: client.map(|pair| pair.cert_file.clone()),
        key_file: client.map(|pair| pair.key_file.clone()),
        server_name: None,
    }
}

/// One broker for all of it: it takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn who_is_trusted_is_served_and_others_are_refused_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let tls = Tls { requires_client: true, ..ours.tls().unwrap() };
    let client = tls.client.clone();
    let start = move || Private::start_by_tls(ServerOptions::default(), &tls).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let with = |tls: Option<TlsOptions>| KafkaOptions {
        tls,
        ..options(server.address("tls").unwrap(), String::new())
    };

    // They make a topic, write, read, commit and ask for the lag.
    let fixture = Kafka::new(with(Some(trusting(&ours, Some(&client)))), "tls");
    for check in ["reports_once", "lag_counts"] {
        let began = Instant::now();
        run_one(&fixture, check).await.unwrap();
        println!("{check}: {:?}", began.elapsed());
    }

    // A broker of another authority than the one that is trusted.
    let theirs = with(Some(trusting(&other, Some(&client))));
    let stranger = other.sign("client", &["windfall"], Validity::InForce).unwrap();
    // A client without a certificate, one with a certificate of another authority, and plain text to the port that takes
    // TLS: librdkafka tries again until the time for connecting is over, so these are side by side.
    let tried = [Some(trusting(&ours, None)), Some(trusting(&ours, Some(&stranger))), None]
        .map(|tls| KafkaOptions { connect_timeout_ms: 2_000, ..with(tls) });
    tokio::task::spawn_blocking(move || {
        let error = refused(&theirs);
        assert!(matches!(&error, OpenError::Invalid(what) if what.contains("certificate")), "{error:?}");
        std::thread::scope(|scope| {
            for options in &tried {
                scope.spawn(move || {
                    let error = refused(options);
                    let said = error.to_string();
                    // What the broker says in the end depends on which of the two hangs up first.
                    let is_of_tls = matches!(error, OpenError::Invalid(_) | OpenError::Unavailable(_));
                    assert!(is_of_tls && said.contains(&options.bootstrap_servers), "{said}");
                });
            }
        });
    })
    .await
    .unwrap();
}
