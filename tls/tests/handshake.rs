//! Connections to a server in this process: which are made, and why others are not.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use windfall_servers::{Authority, Pair, Validity};
use windfall_tls::{HandshakeError, TlsOptions, explain};

/// No test waits for this where all is well.
const PATIENCE: Duration = Duration::from_secs(60);

struct Ground {
    folder: TempDir,
    ours: Authority,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ours = Authority::make(&folder.path().join("ours")).unwrap();
        Self { folder, ours }
    }

    fn other(&self) -> Authority {
        Authority::make(&self.folder.path().join("other")).unwrap()
    }

    fn trusting(&self) -> TlsOptions {
        TlsOptions { ca_file: Some(self.ours.ca_file()), ..TlsOptions::default() }
    }
}

fn with_client(options: TlsOptions, pair: &Pair) -> TlsOptions {
    TlsOptions { cert_file: Some(pair.cert_file.clone()), key_file: Some(pair.key_file.clone()), ..options }
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

/// Answers each connection with a letter, by these certificates; with authorities, clients need a certificate.
async fn serve(pair: &Pair, client_ca: Option<PathBuf>) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            certificates(&path).into_iter().for_each(|one| roots.add(one).unwrap());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&pair.key_file).unwrap();
    let acceptor =
        TlsAcceptor::from(Arc::new(builder.with_single_cert(certificates(&pair.cert_file), key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                stream.write_all(b"y").await.ok();
                stream.shutdown().await.ok();
            }
        }
    });
    port
}

/// Connects and reads the letter; what went wrong otherwise.
async fn said(options: &TlsOptions, host: &str, port: u16) -> Result<(), String> {
    let work = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut stream = options.connect(host, stream).await.map_err(|error| error.to_string())?;
        let mut letter = [0];
        let read = stream.read_exact(&mut letter).await.map(drop);
        read.map_err(|error: io::Error| explain(&error).unwrap_or_else(|| error.to_string()))
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap()
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_its_name_and_its_time() {
    let ground = Ground::new();
    let good = ground.ours.sign("good", &["127.0.0.1", "db.test"], Validity::InForce).unwrap();
    let port = serve(&good, None).await;
    let trusting = ground.trusting();
    for host in ["127.0.0.1", "db.test"] {
        assert_eq!(said(&trusting, host, port).await, Ok(()));
    }
    let elsewhere = said(&trusting, "other.test", port).await.unwrap_err();
    assert!(
        elsewhere.contains("another name than other.test") && elsewhere.contains("db.test"),
        "{elsewhere}"
    );
    let named = TlsOptions { server_name: Some("db.test".into()), ..trusting.clone() };
    assert_eq!(said(&named, "other.test", port).await, Ok(()), "the options name it");
    let other = TlsOptions { ca_file: Some(ground.other().ca_file()), ..TlsOptions::default() };
    let stranger = said(&other, "127.0.0.1", port).await.unwrap_err();
    assert!(stranger.contains("no authority that is trusted here"), "{stranger}");
    let old = ground.ours.sign("old", &["127.0.0.1"], Validity::Expired).unwrap();
    let expired = said(&trusting, "127.0.0.1", serve(&old, None).await).await.unwrap_err();
    assert!(expired.contains("has expired"), "{expired}");
}

#[tokio::test]
async fn a_server_that_demands_a_client_certificate_gets_one_or_says_so() {
    let ground = Ground::new();
    let good = ground.ours.sign("good", &["127.0.0.1"], Validity::InForce).unwrap();
    let port = serve(&good, Some(ground.ours.ca_file())).await;
    let client = ground.ours.sign("client", &["windfall"], Validity::InForce).unwrap();
    assert_eq!(said(&with_client(ground.trusting(), &client), "127.0.0.1", port).await, Ok(()));
    let without = said(&ground.trusting(), "127.0.0.1", port).await.unwrap_err();
    assert!(without.contains("demands a client certificate; set tls.cert_file"), "{without}");
    let stranger = ground.other().sign("client", &["windfall"], Validity::InForce).unwrap();
    let refused = said(&with_client(ground.trusting(), &stranger), "127.0.0.1", port).await.unwrap_err();
    assert!(refused.contains("refuses the client certificate"), "{refused}");
}

#[tokio::test]
async fn renewed_files_are_in_force_with_the_next_connection() {
    let ground = Ground::new();
    let good = ground.ours.sign("good", &["127.0.0.1"], Validity::InForce).unwrap();
    let port = serve(&good, Some(ground.ours.ca_file())).await;
    let ours = ground.ours.sign("client", &["windfall"], Validity::InForce).unwrap();
    let theirs = ground.other().sign("client", &["windfall"], Validity::InForce).unwrap();
    let folder = ground.folder.path();
    let (cert, key) = (folder.join("tls.pem"), folder.join("tls.key"));
    let put = |pair: &Pair| {
        std::fs::copy(&pair.cert_file, &cert).unwrap();
        std::fs::copy(&pair.key_file, &key).unwrap();
    };
    let options = with_client(ground.trusting(), &Pair { cert_file: cert.clone(), key_file: key.clone() });
    put(&theirs);
    assert!(said(&options, "127.0.0.1", port).await.is_err());
    put(&ours);
    assert_eq!(said(&options, "127.0.0.1", port).await, Ok(()));
    // A certificate without its key, as between two writes: an error that names the files, and no connection.
    std::fs::copy(&theirs.key_file, &key).unwrap();
    let torn = said(&options, "127.0.0.1", port).await.unwrap_err();
    assert!(torn.contains("tls.cert_file and tls.key_file cannot be used"), "{torn}");
}

#[tokio::test]
async fn what_speaks_no_tls_is_no_server_and_nothing_is_sent_to_it_in_plain_text() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 3];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(b"-ERR Protocol error\r\n").await.unwrap();
        hello
    });
    let ground = Ground::new();
    let refused = said(&ground.trusting(), "127.0.0.1", port).await.unwrap_err();
    assert!(refused.contains("speaks no TLS"), "{refused}");
    assert_eq!(answering.await.unwrap()[..2], [22, 3], "a handshake record of TLS, and nothing else");
}

#[tokio::test]
async fn a_server_that_hangs_up_is_lost_and_not_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let ground = Ground::new();
    let error = ground.trusting().connect("127.0.0.1", stream).await.map(drop).unwrap_err();
    assert!(matches!(error, HandshakeError::Lost(_)), "{error}");
}

#[test]
fn the_authorities_of_the_system_are_read_where_no_file_is_named() {
    let read = TlsOptions::default().config().map(drop).map_err(|error| error.to_string());
    // A bare image has none.
    assert!(read.is_ok() || read.unwrap_err().contains("set tls.ca_file"));
}
