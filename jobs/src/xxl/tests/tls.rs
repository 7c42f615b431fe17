//! Executors behind `https://`, and executors that register by TLS.

use super::{PATIENCE, app, here, patient, token};
use crate::xxl::fake::FakeAdmin;
use crate::xxl::{
    CallError, ClientOptions, Executor, ExecutorAddress, ServerOptions, StartError, WrongOption, XxlClient,
    XxlServer,
};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use windfall_contract::Clock;
use windfall_edge::TlsOptions;

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

#[tokio::test]
async fn an_executor_registers_by_tls_and_not_in_plain_text() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert_file, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert_file, made.cert.pem()).unwrap();
    std::fs::write(&key_file, made.signing_key.serialize_pem()).unwrap();
    let (client_ca_file, client_crl_file) = (None, None);
    let tls =
        TlsOptions { cert_file, key_file, client_ca_file, client_crl_file, client_cert_required: false };
    let options =
        ServerOptions { listen: ([127, 0, 0, 1], 0).into(), tls: Some(tls), ..ServerOptions::default() };
    let admin = Arc::new(FakeAdmin::default());
    let server = XxlServer::start(options.clone(), Some(token()), here(), admin.clone(), Clock::system());
    let server = server.await.unwrap();

    let body =
        r#"{"registryGroup":"EXECUTOR","registryKey":"mails","registryValue":"https://127.0.0.1:9999/"}"#;
    let call = format!(
        "POST /api/registry HTTP/1.1\r\nhost: h\r\nconnection: close\r\nXXL-JOB-ACCESS-TOKEN: s3cret-token\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut plain = TcpStream::connect(server.address()).await.unwrap();
    plain.write_all(call.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, plain.read_to_end(&mut read)).await.expect("it is closed").ok();
    assert!(!String::from_utf8_lossy(&read).contains("HTTP/1.1"), "{read:?}");
    assert!(admin.seen().registered.is_empty());

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("it is answered").ok();
    let answer = String::from_utf8_lossy(&read);
    assert!(answer.contains(r#""code":200"#), "{answer}");
    assert_eq!(admin.seen().registered.len(), 1);
    server.close(PATIENCE).await;

    std::fs::remove_file(folder.path().join("key.pem")).unwrap();
    let refused = XxlServer::start(options, Some(token()), here(), admin, Clock::system()).await;
    assert!(matches!(refused.err(), Some(StartError::Listen(windfall_edge::ListenError::Tls(_)))));
}
