//! A bucket behind a port that takes TLS alone and demands a client certificate: each kind of call, and what is refused. The
//! port is one of this process, in front of a real S3 server, as a load balancer is.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, copy, copy_bidirectional, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use windfall_far::S3Options;
use windfall_servers::{Authority, Pair, Private, Spec, Tls, Validity};
use windfall_tls::TlsOptions;

/// What a busy machine may take for an error that comes after a few tries.
const PATIENCE: Duration = Duration::from_secs(60);

fn certificates(path: &std::path::Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

fn acceptor(tls: &Tls) -> TlsAcceptor {
    let provider = Arc::new(default_provider());
    let mut roots = RootCertStore::empty();
    certificates(&tls.ca_file).into_iter().for_each(|one| roots.add(one).unwrap());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            certificates(&tls.server.cert_file),
            PrivateKeyDer::from_pem_file(&tls.server.key_file).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Takes TLS in front of a server, and answers with its port.
async fn in_front(tls: &Tls, server: &str) -> u16 {
    let (acceptor, server) = (acceptor(tls), server.to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, server) = (acceptor.clone(), server.clone());
            tokio::spawn(async move {
                match acceptor.accept(stream).into_fallible().await {
                    Ok(mut stream) => {
                        let mut server = TcpStream::connect(server).await.unwrap();
                        copy_bidirectional(&mut stream, &mut server).await.ok();
                    }
                    // What the client sends is read to its end: else the connection is reset, and the alert is lost.
                    Err((_, mut stream)) => {
                        stream.shutdown().await.ok();
                        copy(&mut stream, &mut sink()).await.ok();
                    }
                }
            });
        }
    });
    port
}

struct Ground {
    // Dropped with the test.
    server: Private,
    ours: Authority,
    other: Authority,
    client: Pair,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Ground {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ours = Authority::make(&folder.path().join("ours")).unwrap();
        let other = Authority::make(&folder.path().join("other")).unwrap();
        let tls = ours.tls().unwrap();
        let server = spawn_blocking(|| Private::start(Spec::S3).unwrap()).await.unwrap();
        let port = in_front(&tls, server.address("main").unwrap()).await;
        Self { server, ours, other, client: tls.client, port, _folder: folder }
    }

    /// A bucket by this scheme, and TLS by these options.
    fn bucket(&self, scheme: &str, tls: Option<TlsOptions>) -> Arc<dyn ObjectStore> {
        let setting = |key: &str| self.server.setting(key).unwrap().to_owned();
        let options = S3Options {
            endpoint: format!("{scheme}://127.0.0.1:{}", self.port),
            bucket: setting("bucket"),
            region: setting("region"),
            prefix: "far".to_owned(),
            access_key_id: setting("access_key_id"),
            secret_access_key: setting("secret_access_key"),
            tls,
            plaintext: false,
        };
        options.objects().unwrap()
    }
}

fn trusting(authority: &Authority, client: Option<&Pair>) -> Option<TlsOptions> {
    Some(TlsOptions {
        ca_file: Some(authority.ca_file()),
        cert_file: client.map(|pair| pair.cert_file.clone()),
        key_file: client.map(|pair| pair.key_file.clone()),
        server_name: None,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn each_kind_of_call_is_answered() {
    let ground = Ground::new().await;
    let objects = ground.bucket("https", trusting(&ground.ours, Some(&ground.client)));
    let (small, large) = (Path::from("manifest/1"), Path::from("segments/1"));
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    objects.put_opts(&small, PutPayload::from_static(b"0123456789"), create.clone()).await.unwrap();
    let again = objects.put_opts(&small, PutPayload::from_static(b"other"), create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    assert_eq!(objects.get(&small).await.unwrap().bytes().await.unwrap(), "0123456789");
    assert_eq!(objects.get_range(&small, 2..5).await.unwrap(), "234");
    let (first, rest) = (vec![1_u8; 8 << 20], vec![2_u8; 1_000]);
    let end = u64::try_from(first.len()).unwrap();
    let mut upload = objects.put_multipart(&large).await.unwrap();
    upload.put_part(first.into()).await.unwrap();
    upload.put_part(rest.clone().into()).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(objects.head(&large).await.unwrap().size, end + 1_000);
    assert_eq!(objects.get_range(&large, end..end + 1_000).await.unwrap(), rest);
    let list = async || objects.list(None).try_collect::<Vec<_>>().await.unwrap().len();
    assert_eq!(list().await, 2);
    objects.delete(&large).await.unwrap();
    assert_eq!(list().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn who_cannot_be_trusted_is_refused_on_either_side() {
    let ground = Ground::new().await;
    let path = Path::from("manifest/1");
    let good = ground.bucket("https", trusting(&ground.ours, Some(&ground.client)));
    good.put(&path, PutPayload::from_static(b"one")).await.unwrap();
    let refused = async |objects: Arc<dyn ObjectStore>| {
        let began = Instant::now();
        let error = objects.get(&path).await.map(drop).unwrap_err();
        println!("{:?}: {error}", began.elapsed());
        assert!(began.elapsed() < PATIENCE, "it took {:?}: {error}", began.elapsed());
        // Neither an answer of the server, nor one that says that the object is not there.
        assert!(matches!(error, Error::Generic { .. }), "{error:?}");
        error.to_string()
    };
    // A server of another authority than the one that is trusted.
    let said = refused(ground.bucket("https", trusting(&ground.other, Some(&ground.client)))).await;
    assert!(said.contains("no authority that is trusted here"), "{said}");
    // Plain text to the port that takes TLS.
    let said = refused(ground.bucket("http", None)).await;
    assert!(said.contains("s3.endpoint must begin with https://"), "{said}");
    // A client without a certificate, and one with a certificate of another authority. The alert may come before or after
    // the request was sent, so only that they are refused is certain.
    refused(ground.bucket("https", trusting(&ground.ours, None))).await;
    let stranger = ground.other.sign("client", &["windfall"], Validity::InForce).unwrap();
    refused(ground.bucket("https", trusting(&ground.ours, Some(&stranger)))).await;
    // The server was well all the time.
    assert_eq!(good.get(&path).await.unwrap().bytes().await.unwrap(), "one");
}
