//! The ledger in a PostgreSQL that takes TLS alone: the suite, and what is refused.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_ledger::{
    Auditor, Ledger, LedgerReader, OpenError, PostgresOptions, Sealer, TlsOptions, Unbudgeted,
};
use windfall_servers::{Authority, Pair, PostgresOptions as ServerOptions, Private, Tls, Validity};

struct Schemas {
    url: String,
    tls: TlsOptions,
    next: AtomicU32,
}

struct Schema {
    url: String,
    options: PostgresOptions,
}

impl Fixture for Schemas {
    fn fresh(&self) -> Result<Box<dyn Place>, Box<dyn std::error::Error>> {
        let schema = format!("ledger_{}", self.next.fetch_add(1, Ordering::Relaxed));
        let options = PostgresOptions { schema, tls: Some(self.tls.clone()), ..PostgresOptions::default() };
        Ok(Box::new(Schema { url: self.url.clone(), options }))
    }
}

impl Place for Schema {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        Ledger::connect(&self.url, &PostgresOptions { unbudgeted, ..self.options.clone() })
    }

    fn reader(&self) -> Result<LedgerReader, OpenError> {
        LedgerReader::connect(&self.url, &self.options)
    }

    fn sealer(&self) -> Result<Sealer, OpenError> {
        Sealer::connect(&self.url, &self.options)
    }

    fn auditor(&self) -> Result<Auditor, OpenError> {
        Auditor::connect(&self.url, &self.options)
    }
}

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions { ca_file: Some(authority.ca_file()), ..TlsOptions::default() }
}

fn with_client(tls: TlsOptions, pair: &Pair) -> TlsOptions {
    TlsOptions { cert_file: Some(pair.cert_file.clone()), key_file: Some(pair.key_file.clone()), ..tls }
}

fn open(url: &str, tls: Option<TlsOptions>) -> Result<(), OpenError> {
    let began = Instant::now();
    let options = PostgresOptions { tls, ..PostgresOptions::default() };
    let opened = Ledger::connect(url, &options).map(drop);
    if let Err(error) = &opened {
        println!("{:?}: {error}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}: {error}", began.elapsed());
    }
    opened
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn it_passes_the_suite_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path()).unwrap();
    let server = Private::start_by_tls(ServerOptions::default(), &authority.tls().unwrap()).unwrap();
    ledger::run(&Schemas {
        url: server.url().to_owned(),
        tls: trusting(&authority),
        next: AtomicU32::new(0),
    });
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_cannot_be_trusted_is_refused_with_the_server_and_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let server = Private::start_by_tls(ServerOptions::default(), &ours.tls().unwrap()).unwrap();
    let untrusted = |url: &str, tls: TlsOptions, cause: &str| {
        let error = open(url, Some(tls)).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, OpenError::Untrusted { .. }) && !error.may_pass(), "{said}");
        assert!(said.starts_with("PostgreSQL at 127.0.0.1:") && said.contains(cause), "{said}");
    };
    open(server.url(), Some(trusting(&ours))).unwrap();
    untrusted(server.url(), trusting(&other), "no authority that is trusted here");
    let named = TlsOptions { server_name: Some("db.test".into()), ..trusting(&ours) };
    untrusted(server.url(), named, "another name than db.test");
    let expired =
        Tls { server: ours.sign("old", &["127.0.0.1"], Validity::Expired).unwrap(), ..ours.tls().unwrap() };
    let old = Private::start_by_tls(ServerOptions::default(), &expired).unwrap();
    untrusted(old.url(), trusting(&ours), "has expired");

    // TLS to a server that takes none: no fallback.
    let plain = Private::start(ServerOptions::default()).unwrap();
    untrusted(plain.url(), trusting(&ours), "the server takes no TLS");
    open(plain.url(), None).unwrap();
    // Plain text to a server that takes TLS alone.
    let bare = server.url().split('?').next().unwrap();
    let said = open(bare, None).unwrap_err().to_string();
    assert!(said.contains("perhaps it takes TLS alone (set tls)"), "{said}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_client_certificate_is_shown_where_the_server_demands_one() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let tls = Tls { requires_client: true, ..ours.tls().unwrap() };
    let server = Private::start_by_tls(ServerOptions::default(), &tls).unwrap();
    open(server.url(), Some(with_client(trusting(&ours), &tls.client))).unwrap();
    let said = open(server.url(), Some(trusting(&ours))).unwrap_err().to_string();
    assert!(said.contains("client certificate") && said.contains("tls.cert_file"), "{said}");
    let stranger = other.sign("client", &["windfall"], Validity::InForce).unwrap();
    let said = open(server.url(), Some(with_client(trusting(&ours), &stranger))).unwrap_err().to_string();
    assert!(said.contains("client certificate"), "{said}");
}
