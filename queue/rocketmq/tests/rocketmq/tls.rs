//! TLS to a proxy and its broker, whose certificate an authority of our own has signed.

use super::ground::{options_of, reader, write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windfall_conformance::broker::Ledger;
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions, TlsOptions};
use windfall_servers::{Authority, Private, RocketMqOptions, Tls, Validity};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn own_authority() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let pair = ours.sign("proxy", &["proxy.test"], Validity::InForce).unwrap();
    let tls = Tls { server: pair.clone(), ..ours.tls().unwrap() };
    let start = move || Private::start_by_tls(RocketMqOptions::default(), &tls).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let options = options_of(&server);
    let with = |ca_file: PathBuf, name: Option<&str>| {
        let server_name = name.map(str::to_owned);
        let tls = TlsOptions { ca_file: Some(ca_file), server_name, ..TlsOptions::default() };
        RocketOptions { tls: Some(tls), ..options.clone() }
    };
    let right = RocketBroker::open(&with(ours.ca_file(), Some("proxy.test"))).unwrap();
    right.ensure_topic("sealed", 2).unwrap();
    write(&right, "sealed", 0..50).await;
    let mut reader = reader(&right, "sealed", "g").await;
    reader.read(50, Duration::from_secs(60)).await.unwrap();
    reader.commit().await.unwrap();
    // Another authority, and a name that the certificate does not bear: no connection, neither to the proxy nor to the
    // broker.
    for wrong in [with(other.ca_file(), Some("proxy.test")), with(ours.ca_file(), None)] {
        let wrong = RocketBroker::open(&RocketOptions { timeout_ms: 1_000, ..wrong }).unwrap();
        let error = wrong.producer("sealed", Arc::new(Ledger::default())).err().unwrap();
        println!("{error}");
        let named = |what: &str| what.contains(&options.endpoints[0]) && what.contains("certificate");
        assert!(matches!(&error, OpenError::Unavailable(what) if named(what)), "{error:?}");
    }
    // A file without a certificate: named before any connection.
    let error = RocketBroker::open(&with(pair.key_file, None)).map(drop).unwrap_err();
    assert!(matches!(&error, OpenError::Invalid(what) if what.contains("proxy.key")), "{error:?}");
}
