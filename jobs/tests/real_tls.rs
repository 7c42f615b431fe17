//! The store of entries on a Redis that takes TLS alone and demands a client certificate: each kind of call, and what is refused.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::entries::{self, Fixture};
use windfall_contract::entries::EntryStore;
use windfall_jobs::store::redis::{OpenRedisError, RedisEntries, RedisEntriesOptions};
use windfall_redis_link::TlsOptions;
use windfall_servers::{Authority, Pair, Private, RedisOptions as ServerOptions, Tls, Validity};

/// What a busy machine may take for an error that comes at once.
const PATIENCE: Duration = Duration::from_secs(60);

struct Redis(RedisEntriesOptions);

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        "redis by tls"
    }

    async fn open(&self) -> Result<Arc<dyn EntryStore>, String> {
        let store = RedisEntries::open(self.0.clone()).await.map_err(|error| error.to_string())?;
        Ok(store)
    }

    async fn beside(&self, _open: &Arc<dyn EntryStore>) -> Result<Arc<dyn EntryStore>, String> {
        self.open().await
    }

    async fn wait_ms(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn clock_back_ms(&self, _ms: u64) -> bool {
        false
    }
}

/// A server with certificates of this authority, and the options by which it is reached.
fn start(ours: &Authority) -> (Private, RedisEntriesOptions) {
    let tls = Tls { requires_client: true, ..ours.tls().unwrap() };
    let server = Private::start_by_tls(ServerOptions::default(), &tls).unwrap();
    assert!(server.url().starts_with("rediss://"), "{}", server.url());
    let options = RedisEntriesOptions {
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        tls: Some(trusting(ours, Some(&tls.client))),
        ..RedisEntriesOptions::at(server.url())
    };
    (server, options)
}

fn trusting(authority: &Authority, client: Option<&Pair>) -> TlsOptions {
    TlsOptions {
        ca_file: Some(authority.ca_file()),
        cert_file: client.map(|pair| pair.cert_file.clone()),
        key_file: client.map(|pair| pair.key_file.clone()),
        server_name: None,
    }
}

async fn refused(options: RedisEntriesOptions) -> OpenRedisError {
    let began = Instant::now();
    let error = RedisEntries::open(options).await.map(drop).unwrap_err();
    println!("{:?}: {error}", began.elapsed());
    assert!(began.elapsed() < PATIENCE, "it took {:?}: {error}", began.elapsed());
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn each_kind_of_call_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, options) = start(&Authority::make(folder.path()).unwrap());
    // Random calls of each kind, with restarts in between.
    entries::run_model(&Redis(options), 5, 100).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn who_cannot_be_trusted_is_refused_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::make(&folder.path().join("ours")).unwrap();
    let other = Authority::make(&folder.path().join("other")).unwrap();
    let (server, good) = start(&ours);
    let with = |tls: TlsOptions| RedisEntriesOptions { tls: Some(tls), ..good.clone() };

    // A server of another authority than the one that is trusted.
    let theirs = TlsOptions { ca_file: Some(other.ca_file()), ..good.tls.clone().unwrap() };
    let error = refused(with(theirs)).await;
    let said = error.to_string();
    assert!(matches!(error, OpenRedisError::Untrusted { .. }) && !error.may_pass(), "{said}");
    assert!(said.contains("no authority that is trusted here"), "{said}");
    // A client without a certificate, and one with a certificate of another authority.
    let said = refused(with(trusting(&ours, None))).await.to_string();
    assert!(said.contains("client certificate") && said.contains("tls.cert_file"), "{said}");
    let stranger = other.sign("client", &["windfall"], Validity::InForce).unwrap();
    let said = refused(with(trusting(&ours, Some(&stranger)))).await.to_string();
    assert!(said.contains("client certificate"), "{said}");
    // Plain text to the port that takes TLS.
    let urls = vec![server.address("main").unwrap().to_owned()];
    let said = refused(RedisEntriesOptions { urls, tls: None, ..good.clone() }).await.to_string();
    assert!(said.contains("it takes TLS alone (set tls)"), "{said}");
    // The server was well all the time.
    RedisEntries::open(good).await.unwrap();
}
