//! TLS with an authority of one's own, for both connectors.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use support::{ByHand, PAUSE_MS, by_hand, grpc_options, http_options, order, quick, server};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use windfall_connectors::{GrpcConnector, HttpConnector};
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer};

/// Ends TLS in front of a plain server. Its certificate, for `localhost` alone, is written to this file.
async fn tls_in_front_of(inner: SocketAddr, certificate: &Path) -> ByHand {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(certificate, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    by_hand(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut outer) = acceptor.accept(stream).await else { return };
            let mut inner = TcpStream::connect(inner).await.unwrap();
            tokio::io::copy_bidirectional(&mut outer, &mut inner).await.ok();
        }
    })
    .await
}

#[tokio::test]
async fn both_speak_tls_with_a_downstream_that_the_authority_vouches_for_and_with_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (server, downstream) = server(folder.path(), quick()).await;
    let own = folder.path().join("own.pem");
    let tls = tls_in_front_of(server.address(), &own).await;
    let port = tls.address.port();

    let mut http = http_options(folder.path(), &format!("https://localhost:{port}/pay"));
    http.wire.plaintext = false;
    http.wire.ca_file = Some(own.clone());
    let mut grpc = grpc_options(folder.path(), &format!("https://localhost:{port}"));
    grpc.wire = http.wire.clone();
    let connector = HttpConnector::new("fake", &http, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::Paid);
    let connector = GrpcConnector::new("fake", &grpc, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("a")).await, PayAnswer::AlreadyPaid);

    // Another authority, and a name that the certificate does not have.
    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(folder.path().join("other.pem"), other.cert.pem()).unwrap();
    let mut wrong_authority = http.clone();
    wrong_authority.wire.ca_file = Some(folder.path().join("other.pem"));
    let mut wrong_name = http.clone();
    wrong_name.url = format!("https://127.0.0.1:{port}/pay");
    for options in [wrong_authority, wrong_name] {
        let connector = HttpConnector::new("fake", &options, Clock::system()).unwrap();
        assert_eq!(connector.pay(order("b")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
        assert_eq!(connector.metrics().unreachable, 1);
    }
    grpc.wire.ca_file = Some(folder.path().join("other.pem"));
    let connector = GrpcConnector::new("fake", &grpc, Clock::system()).unwrap();
    assert_eq!(connector.pay(order("b")).await, PayAnswer::Retry { after_ms: PAUSE_MS });
    assert_eq!(downstream.payments(), 1);

    std::fs::write(&own, "nothing").unwrap();
    assert!(HttpConnector::new("fake", &http, Clock::system()).is_err());
}
