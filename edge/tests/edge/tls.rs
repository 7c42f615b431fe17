//! Client certificates.

use crate::fixture::http::{JSON, Reply, bearer, request_on};
use crate::fixture::{Running, options, start};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::Clock;
use windfall_edge::{Guard, GuardedStream, Life, Listener, ListenerLimits, Notice, ServeOptions, TlsOptions};

const NAMED: &str = "
[[caller]]
name = \"mesh\"
tenant = \"windfall\"
roles = [\"send\"]
cert_name = [\"spiffe://test/rain\", \"rain.test\"]
";

struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

struct Identity {
    cert: CertificateDer<'static>,
    cert_pem: String,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self { pem: cert.pem(), der: cert.der().clone(), issuer: Issuer::new(params, key) }
    }

    fn issue(&self, names: Vec<SanType>) -> Identity {
        self.issue_numbered(names, 1)
    }

    fn issue_numbered(&self, names: Vec<SanType>, number: u64) -> Identity {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.subject_alt_names = names;
        params.serial_number = Some(number.into());
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Identity { cert: cert.der().clone(), cert_pem: cert.pem(), key }
    }
}

/// The list of an authority that has revoked these numbers.
fn revoked(authority: &Authority, numbers: &[u64]) -> String {
    let at = date_time_ymd(2026, 1, 1);
    let one = |number: &u64| RevokedCertParams {
        serial_number: (*number).into(),
        revocation_time: at,
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: at,
        // Out of date: what it revokes stays revoked.
        next_update: date_time_ymd(2026, 1, 2),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: numbers.iter().map(one).collect(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&authority.issuer).unwrap().pem().unwrap()
}

fn dns(name: &str) -> Vec<SanType> {
    vec![SanType::DnsName(name.try_into().unwrap())]
}

fn uri(name: &str) -> Vec<SanType> {
    vec![SanType::URI(name.try_into().unwrap())]
}

async fn serve(folder: &Path, own: &Authority, clients: &Authority, client_cert_required: bool) -> Running {
    serve_with(folder, own, clients, client_cert_required, None).await
}

async fn serve_with(
    folder: &Path,
    own: &Authority,
    clients: &Authority,
    client_cert_required: bool,
    revoked: Option<&str>,
) -> Running {
    let tls = files(folder, own, clients, client_cert_required, revoked);
    start(ServeOptions { tls: Some(tls), ..options() }, NAMED, Clock::system()).await
}

/// The files of a server, in this folder.
fn files(
    folder: &Path,
    own: &Authority,
    clients: &Authority,
    client_cert_required: bool,
    revoked: Option<&str>,
) -> TlsOptions {
    let server = own.issue(dns("localhost"));
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    TlsOptions {
        cert_file: file("cert.pem", &server.cert_pem),
        key_file: file("key.pem", &server.key.serialize_pem()),
        client_ca_file: Some(file("clients.pem", &clients.pem)),
        client_crl_file: revoked.map(|list| file("revoked.pem", list)),
        client_cert_required,
    }
}

async fn connect(
    running: &Running,
    own: &Authority,
    client: Option<&Identity>,
    alpn: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    connect_to(running.server.address(), own, client, alpn).await
}

async fn connect_to(
    address: SocketAddr,
    own: &Authority,
    client: Option<&Identity>,
    alpn: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(own.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let key = PrivateKeyDer::Pkcs8(client.key.serialize_der().into());
            builder.with_client_auth_cert(vec![client.cert.clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn send(stream: TlsStream<TcpStream>, headers: &[(&str, &str)]) -> Reply {
    let headers: Vec<_> = headers.iter().copied().chain([JSON]).collect();
    request_on(stream, "POST", "/v1/bonuses/send", &headers, "{}").await
}

#[tokio::test]
async fn a_certificate_is_a_caller_by_its_name() {
    let (own, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let running = serve(folder.path(), &own, &clients, false).await;
    for names in [dns("rain.test"), uri("spiffe://test/rain"), [dns("other.test"), dns("rain.test")].concat()]
    {
        let client = clients.issue(names.clone());
        let stream = connect(&running, &own, Some(&client), b"http/1.1").await.unwrap();
        let reply = send(stream, &[]).await;
        assert_eq!(reply.json()["token"], "mesh:None", "{names:?}");
    }
    let unknown = clients.issue(dns("stranger.test"));
    let stream = connect(&running, &own, Some(&unknown), b"http/1.1").await.unwrap();
    assert_eq!(send(stream, &[]).await.status, 401);

    // Without one, or with one that is not known, a key is as good as ever; a wrong key is not mended by a certificate.
    let key = bearer(&running.keys.send.text);
    for client in [None, Some(&unknown)] {
        let stream = connect(&running, &own, client, b"http/1.1").await.unwrap();
        assert_eq!(send(stream, &[("authorization", &key)]).await.status, 200);
    }
    let stream = connect(&running, &own, None, b"http/1.1").await.unwrap();
    assert_eq!(send(stream, &[]).await.status, 401);
    let named = clients.issue(dns("rain.test"));
    let stream = connect(&running, &own, Some(&named), b"http/1.1").await.unwrap();
    assert_eq!(send(stream, &[("authorization", "Bearer wrong")]).await.status, 401);
}

#[tokio::test]
async fn a_certificate_of_another_authority_does_not_get_in() {
    let (own, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    for is_required in [false, true] {
        let running = serve(folder.path(), &own, &clients, is_required).await;
        let forged = others.issue(dns("rain.test"));
        assert!(is_shut_out(connect(&running, &own, Some(&forged), b"http/1.1").await).await);
        let is_shut = is_shut_out(connect(&running, &own, None, b"http/1.1").await).await;
        assert_eq!(is_shut, is_required, "without a certificate");
        if is_required {
            let good = clients.issue(dns("rain.test"));
            let stream = connect(&running, &own, Some(&good), b"http/1.1").await.unwrap();
            assert_eq!(send(stream, &[]).await.status, 200);
        }
        crate::fixture::until("it is counted", async || {
            running.metric("windfall_edge_cut_connections_total{reason=\"handshake\"}") >= 1.0
        })
        .await;
    }
}

/// In TLS 1.3 a client learns of it with its first read.
async fn is_shut_out(connected: io::Result<TlsStream<TcpStream>>) -> bool {
    match connected {
        Err(_) => true,
        Ok(mut stream) => {
            let mut byte = [0];
            let read = stream.read(&mut byte);
            matches!(tokio::time::timeout(std::time::Duration::from_millis(300), read).await, Ok(Err(_)))
        }
    }
}

#[tokio::test]
async fn renewed_certificates_are_in_force_and_wrong_ones_are_not() {
    let (old, new, clients) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let running = serve(folder.path(), &old, &clients, false).await;
    assert!(connect(&running, &old, None, b"http/1.1").await.is_ok());
    fs::write(folder.path().join("cert.pem"), "half").unwrap();
    let refused = async || running.metric("windfall_edge_certificates_refused_total") == 1.0;
    let mut waited = 0;
    while !refused().await && waited < 30 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        waited += 1;
    }
    assert!(refused().await);
    assert!(connect(&running, &old, None, b"http/1.1").await.is_ok());
    let renewed = new.issue(dns("localhost"));
    fs::write(folder.path().join("key.pem"), renewed.key.serialize_pem()).unwrap();
    fs::write(folder.path().join("cert.pem"), &renewed.cert_pem).unwrap();
    waited = 0;
    while connect(&running, &new, None, b"http/1.1").await.is_err() && waited < 30 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        waited += 1;
    }
    assert!(connect(&running, &new, None, b"http/1.1").await.is_ok());
    assert!(connect(&running, &old, None, b"http/1.1").await.is_err());
}

/// As Kubernetes replaces a mounted Secret, with calls on new connections all the while: none fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_behind_a_link_that_is_swapped_are_taken_over_under_load() {
    let (old, new, clients) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let mut mount = windfall_tests::Mount::new(&folder.path().join("tls"));
    let publish = |mount: &mut windfall_tests::Mount, own: &Authority| {
        let server = own.issue(dns("localhost"));
        let (cert, key) = (server.cert_pem.clone().into_bytes(), server.key.serialize_pem().into_bytes());
        mount.publish(&[("tls.crt", cert), ("tls.key", key), ("ca.crt", clients.pem.clone().into_bytes())]);
    };
    publish(&mut mount, &old);
    let tls = TlsOptions {
        cert_file: mount.file("tls.crt"),
        key_file: mount.file("tls.key"),
        client_ca_file: Some(mount.file("ca.crt")),
        client_crl_file: None,
        client_cert_required: true,
    };
    let running = start(ServeOptions { tls: Some(tls), ..options() }, NAMED, Clock::system()).await;
    let client = clients.issue(dns("rain.test"));
    // Who trusts both authorities is never refused.
    let call = async || {
        let stream = match connect(&running, &old, Some(&client), b"http/1.1").await {
            Ok(stream) => stream,
            Err(_) => connect(&running, &new, Some(&client), b"http/1.1").await.unwrap(),
        };
        assert_eq!(send(stream, &[]).await.status, 200);
    };
    call().await;
    publish(&mut mount, &new);
    until_long("the new certificate is in force", async || {
        call().await;
        connect(&running, &new, Some(&client), b"http/1.1").await.is_ok()
    })
    .await;
    assert!(connect(&running, &old, Some(&client), b"http/1.1").await.is_err());
    assert_eq!(running.metric("windfall_edge_certificates_refused_total"), 0.0, "no half of it was seen");
    // The same again: the name of the folder is another one each time.
    publish(&mut mount, &old);
    until_long("and back", async || connect(&running, &old, Some(&client), b"http/1.1").await.is_ok()).await;
}

#[tokio::test]
async fn http2_is_chosen_by_alpn_and_plain_text_is_no_tls() {
    let (own, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let running = serve(folder.path(), &own, &clients, false).await;
    let client = clients.issue(uri("spiffe://test/rain"));
    let stream = connect(&running, &own, Some(&client), b"h2").await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post("https://localhost/v1/bonuses/send")
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let (response, mut body) = sender.send_request(request, false).unwrap();
    body.send_data("{}".into(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    connection.abort();

    let plain = TcpStream::connect(running.server.address()).await.unwrap();
    assert_eq!(request_on(plain, "GET", "/health/live", &[], "").await.status, 0);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_its_connection_ends() {
    let (own, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let running = serve_with(folder.path(), &own, &clients, true, Some(&revoked(&clients, &[7]))).await;
    let (good, bad, gone) = (
        clients.issue_numbered(dns("rain.test"), 1),
        clients.issue_numbered(dns("rain.test"), 2),
        clients.issue_numbered(dns("rain.test"), 7),
    );
    assert!(
        is_shut_out(connect(&running, &own, Some(&gone), b"http/1.1").await).await,
        "revoked from the start"
    );
    let mut kept = connect(&running, &own, Some(&good), b"http/1.1").await.unwrap();
    let mut cut = connect(&running, &own, Some(&bad), b"http/1.1").await.unwrap();
    for stream in [&mut kept, &mut cut] {
        call_on(stream).await;
    }
    // What is no list changes nothing.
    fs::write(folder.path().join("revoked.pem"), "half").unwrap();
    until_long("it is refused", async || running.metric("windfall_edge_certificates_refused_total") == 1.0)
        .await;
    for stream in [&mut kept, &mut cut] {
        call_on(stream).await;
    }
    fs::write(folder.path().join("revoked.pem"), revoked(&clients, &[2, 7])).unwrap();
    until_long("its connection is cut", async || {
        running.metric("windfall_edge_cut_connections_total{reason=\"certificate_refused\"}") == 1.0
    })
    .await;
    assert!(matches!(cut.read(&mut [0]).await, Ok(0) | Err(_)));
    assert!(is_shut_out(connect(&running, &own, Some(&bad), b"http/1.1").await).await);
    call_on(&mut kept).await;
    assert_eq!(send(connect(&running, &own, Some(&good), b"http/1.1").await.unwrap(), &[]).await.status, 200);
}

/// Says hello on a connection of a port with a protocol of its own, and keeps it.
async fn hello(mut stream: GuardedStream, mut guard: Guard) {
    let begin_call = guard.calls();
    begin_call().authenticated();
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    while guard.notice().await != Notice::Cut {}
}

async fn hears_hello(stream: io::Result<TlsStream<TcpStream>>) -> TlsStream<TcpStream> {
    let mut stream = stream.unwrap();
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    stream
}

#[tokio::test]
async fn a_port_with_a_protocol_of_its_own_cuts_who_is_revoked_and_speaks_no_http2() {
    let (own, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let tls = files(folder.path(), &own, &clients, true, Some(&revoked(&clients, &[7])));
    let any_port = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any_port, Some(tls), 8, 4 << 10, &ListenerLimits::default()).await.unwrap();
    let (address, counts) = (listener.address(), listener.counts());
    let life = Life {
        connections: TaskTracker::new(),
        leaving: CancellationToken::new(),
        cut: CancellationToken::new(),
    };
    let serving = tokio::spawn(listener.serve(life.clone(), hello));
    let (good, bad) =
        (clients.issue_numbered(dns("rain.test"), 1), clients.issue_numbered(dns("rain.test"), 2));
    assert!(connect_to(address, &own, Some(&good), b"h2").await.is_err());
    let mut kept = hears_hello(connect_to(address, &own, Some(&good), b"http/1.1").await).await;
    let mut cut = hears_hello(connect_to(address, &own, Some(&bad), b"http/1.1").await).await;
    fs::write(folder.path().join("revoked.pem"), revoked(&clients, &[2, 7])).unwrap();
    until_long("its connection is cut", async || counts.cut().get("certificate_refused") == Some(&1)).await;
    assert!(matches!(cut.read(&mut [0]).await, Ok(0) | Err(_)));
    hears_hello(connect_to(address, &own, Some(&good), b"http/1.1").await).await;
    // The other one stays until the port is closed.
    assert!(!life.connections.is_empty());
    life.leaving.cancel();
    life.cut.cancel();
    life.connections.close();
    life.connections.wait().await;
    assert!(matches!(kept.read(&mut [0]).await, Ok(0) | Err(_)));
    assert!(counts.cut().contains_key("stopping"));
    serving.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn whether_a_certificate_is_revoked_must_be_known() {
    let (own, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let running = serve_with(folder.path(), &own, &clients, true, Some(&revoked(&others, &[]))).await;
    let unknown = clients.issue(dns("rain.test"));
    assert!(is_shut_out(connect(&running, &own, Some(&unknown), b"http/1.1").await).await);
}

/// A call on a connection that stays.
async fn call_on(stream: &mut TlsStream<TcpStream>) {
    let call = "POST /v1/bonuses/send HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut bytes = [0; 1024];
    let count = stream.read(&mut bytes).await.unwrap();
    assert!(bytes[..count].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&bytes[..count]));
}

/// Files are looked at every ten seconds.
async fn until_long(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..300 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("never came: {what}");
}
