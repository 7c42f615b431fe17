//! Rules in an etcd that takes TLS: changed, followed, and what is refused.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use windfall_config::ChangeRules as _;
use windfall_config::etcd::{EtcdOptions, EtcdRulesStore, EtcdSource, TlsOptions};
use windfall_servers::{Authority, Pair, Private, Spec, Tls, Validity};

const SAMPLE: &str = include_str!("../samples/rules.toml");
/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

fn options(url: &str, ca_file: PathBuf) -> EtcdOptions {
    EtcdOptions {
        endpoints: vec![url.to_owned()],
        tls: Some(TlsOptions { ca_file: Some(ca_file), ..TlsOptions::default() }),
        start_timeout_ms: 10_000,
        call_timeout_ms: 10_000,
        ..EtcdOptions::default()
    }
}

fn with_client(options: EtcdOptions, pair: &Pair) -> EtcdOptions {
    let tls = options.tls.unwrap();
    let tls =
        TlsOptions { cert_file: Some(pair.cert_file.clone()), key_file: Some(pair.key_file.clone()), ..tls };
    EtcdOptions { tls: Some(tls), ..options }
}

/// Why rules cannot be followed, and changed, in the same words.
fn refused(options: &EtcdOptions) -> String {
    let began = Instant::now();
    let followed = EtcdSource::open(options.clone(), None, || 7).map(drop).unwrap_err().to_string();
    let changed = EtcdRulesStore::new(options.clone(), None).unwrap().show().unwrap_err();
    println!("{:?}: {followed}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}: {followed}", began.elapsed());
    assert!(followed.contains(&options.endpoints[0]), "{followed}");
    format!("{followed} // {changed}")
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn rules_are_changed_and_followed_also_when_the_server_was_away() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path()).unwrap();
    let tls = Tls { requires_client: true, ..authority.tls().unwrap() };
    let server = Private::start_by_tls(Spec::Etcd, &tls).unwrap();
    assert!(server.url().starts_with("https://"), "{}", server.url());
    let options = with_client(options(server.url(), authority.ca_file()), &tls.client);
    let store = EtcdRulesStore::new(options.clone(), None).unwrap();
    store.set(SAMPLE, "ann", "first", 1).unwrap();
    let (live, source) = EtcdSource::open(options, None, || 7).unwrap();
    let first = live.current().version;
    server.kill().unwrap();
    server.start().unwrap();
    let changed = format!("{}\n# again\n", store.show().unwrap());
    store.set(&changed, "ann", "again", 2).unwrap();
    let end = Instant::now() + PATIENCE;
    while live.current().version == first {
        assert!(Instant::now() < end, "the change is not followed");
        thread::sleep(Duration::from_millis(20));
    }
    source.close();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_cannot_be_trusted_is_refused_with_the_server_and_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let tls = Tls { requires_client: true, ..ours.tls().unwrap() };
    let server = Private::start_by_tls(Spec::Etcd, &tls).unwrap();
    let good = with_client(options(server.url(), ours.ca_file()), &tls.client);

    let said = refused(&with_client(options(server.url(), other.ca_file()), &tls.client));
    assert!(said.matches("no authority that is trusted here").count() == 2, "{said}");
    let named = TlsOptions { server_name: Some("etcd.test".into()), ..good.tls.clone().unwrap() };
    let said = refused(&EtcdOptions { tls: Some(named), ..good.clone() });
    assert!(said.contains("another name than etcd.test"), "{said}");
    let said = refused(&options(server.url(), ours.ca_file()));
    assert!(said.contains("client certificate"), "{said}");
    let expired =
        Tls { server: ours.sign("old", &["127.0.0.1"], Validity::Expired).unwrap(), ..ours.tls().unwrap() };
    let old = Private::start_by_tls(Spec::Etcd, &expired).unwrap();
    let said = refused(&options(old.url(), ours.ca_file()));
    assert!(said.contains("has expired"), "{said}");

    // Plain text to a server that takes TLS, and TLS to one that takes plain text.
    let plain = format!("http://{}", server.address("main").unwrap());
    let said = refused(&EtcdOptions { tls: None, endpoints: vec![plain], ..good.clone() });
    assert!(said.contains("takes TLS alone"), "{said}");
    let bare = Private::start(Spec::Etcd).unwrap();
    let said = refused(&EtcdOptions { endpoints: vec![bare.address("main").unwrap().to_owned()], ..good });
    assert!(said.contains("takes TLS") || said.contains("speaks no TLS"), "{said}");
}
