//! TLS to a proxy whose certificate an authority of our own has signed.

use super::ground::{private, reader, write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use windfall_conformance::broker::Ledger;
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::RocketMqOptions;

fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority `NAME.pem`, and a server's `NAME.server.pem` and `.key`, of the name `proxy.test` alone.
fn authority(folder: &Path, name: &str) {
    std::fs::write(folder.join("names"), "subjectAltName=DNS:proxy.test\n").unwrap();
    openssl(
        folder,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        ),
    );
    openssl(
        folder,
        &format!(
            "req -newkey rsa:2048 -nodes -subj /CN=proxy.test -keyout {name}.server.key -out {name}.csr"
        ),
    );
    openssl(
        folder,
        &format!(
            "x509 -req -days 2 -in {name}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial -extfile names -out {name}.server.pem"
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn own_authority() {
    let folder = tempfile::tempdir().unwrap();
    authority(folder.path(), "ours");
    authority(folder.path(), "other");
    let file = |name: &str| folder.path().join(name);
    let path = |name: &str| file(name).display().to_string().into();
    let (_server, options) = private(RocketMqOptions {
        proxy_properties: vec![
            ("tlsTestModeEnable".into(), false.into()),
            ("tlsKeyPath".into(), path("ours.server.key")),
            ("tlsCertPath".into(), path("ours.server.pem")),
        ],
        ..RocketMqOptions::default()
    })
    .await;
    let with = |ca: &str, name: Option<&str>| RocketOptions {
        ca_file: Some(file(ca)),
        server_name: name.map(str::to_owned),
        ..options.clone()
    };
    let right = RocketBroker::open(&with("ours.pem", Some("proxy.test"))).unwrap();
    right.ensure_topic("sealed", 2).unwrap();
    write(&right, "sealed", 0..50).await;
    let mut reader = reader(&right, "sealed", "g").await;
    reader.read(50, Duration::from_secs(60)).await.unwrap();
    reader.commit().await.unwrap();
    // Another authority, and a name that the certificate does not bear: no connection.
    for wrong in [with("other.pem", Some("proxy.test")), with("ours.pem", None)] {
        let wrong = RocketBroker::open(&RocketOptions { timeout_ms: 1_000, ..wrong }).unwrap();
        let error = wrong.producer("sealed", Arc::new(Ledger::default())).err().unwrap();
        println!("{error}");
        let named = |what: &str| what.contains(&options.endpoints[0]) && what.contains("certificate");
        assert!(matches!(&error, OpenError::Unavailable(what) if named(what)), "{error:?}");
    }
    // A file without a certificate: named before any connection.
    let wrong = RocketBroker::open(&with("ours.key", None)).unwrap();
    let error = wrong.producer("sealed", Arc::new(Ledger::default())).err().unwrap();
    assert!(matches!(&error, OpenError::Invalid(what) if what.contains("ours.key")), "{error:?}");
}
