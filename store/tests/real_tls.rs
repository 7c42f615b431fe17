//! The token store on Redis servers that take TLS: the contract, and what is refused.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::tokens::{self, Fixture};
use windfall_contract::tokens::{NEVER, TokenPut, TokenStore};
use windfall_redis_link::TlsOptions;
use windfall_servers::{Authority, Pair, Private, RedisOptions as ServerOptions, Spec, Tls, Validity};
use windfall_store::redis::{OpenRedisError, RedisOptions, RedisStore};

struct Redis(RedisOptions);

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        "redis by tls"
    }

    async fn open(&self) -> Result<Arc<dyn TokenStore>, String> {
        let store = RedisStore::open(self.0.clone()).await.map_err(|error| error.to_string())?;
        Ok(store)
    }
}

fn patient(options: RedisOptions, authority: &Authority) -> RedisOptions {
    let tls = TlsOptions { ca_file: Some(authority.ca_file()), ..TlsOptions::default() };
    RedisOptions { call_timeout_ms: 20_000, connect_timeout_ms: 20_000, tls: Some(tls), ..options }
}

async fn refused(options: RedisOptions) -> OpenRedisError {
    let began = Instant::now();
    let error = RedisStore::open(options).await.map(drop).unwrap_err();
    println!("{:?}: {error}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}: {error}", began.elapsed());
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path()).unwrap();
    let server = Private::start_by_tls(ServerOptions::default(), &authority.tls().unwrap()).unwrap();
    assert!(server.url().starts_with("rediss://"), "{}", server.url());
    let failed = tokens::run(&Redis(patient(RedisOptions::at(server.url()), &authority))).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_cluster_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path()).unwrap();
    let cluster = Private::start_by_tls(Spec::RedisCluster, &authority.tls().unwrap()).unwrap();
    // One address is enough to learn the others, which are reached by TLS as well.
    let first = cluster.url().split(',').next().unwrap();
    let options = patient(RedisOptions::cluster([first]), &authority);
    let failed = tokens::run(&Redis(options)).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_cannot_be_trusted_is_refused_with_the_server_and_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let server = Private::start_by_tls(ServerOptions::default(), &ours.tls().unwrap()).unwrap();
    let good = patient(RedisOptions::at(server.url()), &ours);
    let untrusted = |error: OpenRedisError, cause: &str| {
        let said = error.to_string();
        assert!(matches!(error, OpenRedisError::Untrusted { .. }) && !error.may_pass(), "{said}");
        assert!(said.starts_with("Redis at 127.0.0.1:") && said.contains(cause), "{said}");
    };
    untrusted(refused(patient(good.clone(), &other)).await, "no authority that is trusted here");
    let named = TlsOptions { server_name: Some("redis.test".into()), ..good.tls.clone().unwrap() };
    untrusted(
        refused(RedisOptions { tls: Some(named), ..good.clone() }).await,
        "another name than redis.test",
    );
    // By the authorities of the system.
    let system = RedisOptions { tls: None, ..good.clone() };
    let said = refused(system).await.to_string();
    assert!(said.contains("no authority"), "{said}");
    let expired =
        Tls { server: ours.sign("old", &["127.0.0.1"], Validity::Expired).unwrap(), ..ours.tls().unwrap() };
    let old = Private::start_by_tls(ServerOptions::default(), &expired).unwrap();
    untrusted(refused(patient(RedisOptions::at(old.url()), &ours)).await, "has expired");

    // Plain text to the port for TLS, and TLS to the port for plain text.
    let plain = RedisOptions { tls: None, ..RedisOptions::at(server.address("main").unwrap()) };
    let said = refused(plain).await.to_string();
    assert!(said.contains("it takes TLS alone (set tls)"), "{said}");
    let wrong = RedisOptions {
        connect_timeout_ms: 1_000,
        ..patient(RedisOptions::at(server.address("plain").unwrap()), &ours)
    };
    let said = refused(wrong).await.to_string();
    assert!(said.contains("takes TLS") || said.contains("speaks no TLS"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_client_certificate_is_shown_where_the_server_demands_one() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let tls = Tls { requires_client: true, ..ours.tls().unwrap() };
    let server = Private::start_by_tls(ServerOptions::default(), &tls).unwrap();
    let without = patient(RedisOptions::at(server.url()), &ours);
    let with = |pair: &Pair| {
        let tls = without.tls.clone().unwrap();
        let tls = TlsOptions {
            cert_file: Some(pair.cert_file.clone()),
            key_file: Some(pair.key_file.clone()),
            ..tls
        };
        RedisOptions { tls: Some(tls), ..without.clone() }
    };
    let store = RedisStore::open(with(&tls.client)).await.unwrap();
    let put = TokenPut { user_id: 7, name: "a".into(), token: "AQAB".into(), expires_at_ms: NEVER };
    store.put(&[put]).await.unwrap();
    let said = refused(without.clone()).await.to_string();
    assert!(said.contains("client certificate") && said.contains("tls.cert_file"), "{said}");
    let said =
        refused(with(&other.sign("client", &["windfall"], Validity::InForce).unwrap())).await.to_string();
    assert!(said.contains("client certificate"), "{said}");
}

/// The promise of time limits holds for TLS as well: a server that takes the connection and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_frozen_server_costs_one_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path()).unwrap();
    let server = Private::start_by_tls(ServerOptions::default(), &authority.tls().unwrap()).unwrap();
    let options =
        RedisOptions { call_timeout_ms: 1_000, ..patient(RedisOptions::at(server.url()), &authority) };
    let store = RedisStore::open(options.clone()).await.unwrap();
    server.freeze().unwrap();
    let put = TokenPut { user_id: 7, name: "a".into(), token: "AQAB".into(), expires_at_ms: NEVER };
    assert!(store.put(std::slice::from_ref(&put)).await.is_err());
    // And one that is opened now ends by the time that making a connection may take.
    let error = refused(RedisOptions { connect_timeout_ms: 1_000, ..options }).await;
    assert!(error.may_pass() && error.to_string().contains("no TLS connection in time"), "{error}");
    server.thaw().unwrap();
    let end = Instant::now() + Duration::from_secs(90);
    while store.put(std::slice::from_ref(&put)).await.is_err() {
        assert!(Instant::now() < end, "it is not connected again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
