//! Executors behind `https://`.

use super::{app, here, patient, token};
use crate::xxl::{CallError, ClientOptions, Executor, ExecutorAddress, WrongOption, XxlClient};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

/// Answers every connection once, by TLS.
async fn serve(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> u16 {
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4_096];
            let read = stream.read(&mut head).await.unwrap();
            assert!(head[..read].starts_with(b"POST /beat HTTP/1.1\r\n"));
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{\"code\":200}";
            stream.write_all(answer).await.ok();
            stream.shutdown().await.ok();
        }
    });
    port
}

#[tokio::test]
async fn certificates_are_checked_against_the_operators_authorities() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let port = serve(vec![made.cert.der().clone()], key).await;
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, made.cert.pem()).unwrap();
    let address = ExecutorAddress::parse(&format!("https://127.0.0.1:{port}")).unwrap();
    let executor = Executor { app: app(), address };

    let trusting = ClientOptions { ca_file: Some(ca_file), ..patient() };
    let trusting = XxlClient::new(trusting, Some(&token()), here()).unwrap();
    trusting.beat(&executor).await.unwrap();

    let doubting = XxlClient::new(patient(), Some(&token()), here()).unwrap();
    let error = doubting.beat(&executor).await.unwrap_err();
    assert!(matches!(&error, CallError::NotSent { reason, .. } if reason.contains("no TLS")), "{error}");

    let missing = ClientOptions { ca_file: Some(folder.path().join("none.pem")), ..patient() };
    let refused = XxlClient::new(missing, None, here());
    assert!(matches!(refused.err(), Some(WrongOption::Authorities(_))));
}
