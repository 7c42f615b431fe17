//! The client against a gateway: what is said arrives, what breaks is told for what it is.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Status};
use windfall_client::{ClientOptions, GatewayClient, OpenError, SendBonus, SendError};
use windfall_edge::{Call, Caller, Role};
use windfall_proto::order::Invalid;
use windfall_proto::v1::send_server::SendServer;
use windfall_proto::v1::{Bonus, SendBonusReply, SendBonusRequest};
use windfall_sdk::rpc::Gateway;

const KEY: &str = "wfk_not-a-real-key";

/// An SDK that answers by order number, and may hang the first times.
#[derive(Default)]
struct Fake {
    errors: BTreeMap<String, SendError>,
    hangs: AtomicUsize,
    calls: AtomicUsize,
    taken: Mutex<Vec<String>>,
}

/// A handle of it: what a gateway is given.
struct Shared(Arc<Fake>);

#[async_trait]
impl SendBonus for Shared {
    async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError> {
        self.0.calls.fetch_add(1, SeqCst);
        if let Some(error) = self.0.errors.get(&request.trade_no) {
            return Err(error.clone());
        }
        self.0.taken.lock().unwrap().push(request.trade_no.clone());
        // Taken, and the answer is lost.
        if self.0.hangs.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            std::future::pending::<()>().await;
        }
        Ok(SendBonusReply { token: format!("token of {}", request.trade_no) })
    }

    async fn send_bonus_batch(&self, _: Vec<SendBonusRequest>) -> Vec<Result<SendBonusReply, SendError>> {
        unreachable!("the gateway sends one by one")
    }
}

/// Stands in for the edge: the key is there, or the call is refused.
fn identify(mut request: Request<()>) -> Result<Request<()>, Status> {
    let expected = format!("Bearer {KEY}");
    match request.metadata().get("authorization") {
        Some(key) if key.as_bytes() == expected.as_bytes() => {}
        Some(_) => return Err(Status::unauthenticated("the key is not known")),
        None if request.peer_certs().is_some_and(|certs| !certs.is_empty()) => {}
        None => return Err(Status::unauthenticated("give a key")),
    }
    let caller = Caller {
        name: "rain".into(),
        tenant: "acme".into(),
        roles: [Role::Send].into(),
        timers_of: Default::default(),
    };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    Ok(request)
}

/// A server that stops when this is dropped.
struct Running {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

async fn serve(sdk: &Arc<Fake>, tls: Option<ServerTlsConfig>) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::new([("acme".to_owned(), Shared(sdk.clone()))].into());
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    let server = server.add_service(SendServer::with_interceptor(gateway, identify));
    tokio::spawn(server.serve_with_incoming_shutdown(TcpIncoming::from(listener), async move {
        stopped.await.ok();
    }));
    Running { address, _stop: stop }
}

fn options(endpoints: &[SocketAddr]) -> ClientOptions {
    ClientOptions {
        endpoints: endpoints.iter().map(|address| format!("http://{address}")).collect(),
        bearer_key: Some(KEY.into()),
        attempt_timeout_ms: 20_000,
        ..ClientOptions::default()
    }
}

fn request(trade_no: &str) -> SendBonusRequest {
    SendBonusRequest {
        trade_no: trade_no.into(),
        activity: "a".into(),
        scene: "s".into(),
        bonus: Some(Bonus { r#type: "t".into(), ..Bonus::default() }),
        ..SendBonusRequest::default()
    }
}

fn no_route() -> SendError {
    SendError::NoRoute { activity: "a".into(), scene: "s".into(), bonus_type: "t".into() }
}

#[tokio::test]
async fn what_the_sdk_says_means_the_same_at_the_other_end() {
    let invalid = SendError::invalid("trade_no", Invalid::Empty);
    let other = SendError::OtherApp { named: "x".into(), own: "acme".into() };
    let cases = [
        (invalid.clone(), SendError::Refused(invalid.to_string())),
        (other.clone(), SendError::Refused(other.to_string())),
        (no_route(), no_route()),
        (SendError::SpoolFull, SendError::Busy(SendError::SpoolFull.to_string())),
        (SendError::Mint("m".into()), SendError::Busy(SendError::Mint("m".into()).to_string())),
        (SendError::Refused("r".into()), SendError::Refused("refused: r".into())),
    ];
    let named = cases.iter().enumerate().map(|(nth, (error, _))| (format!("bad-{nth}"), error.clone()));
    let sdk = Arc::new(Fake { errors: named.collect(), ..Fake::default() });
    let server = serve(&sdk, None).await;
    let client = GatewayClient::open(ClientOptions { attempts: 1, ..options(&[server.address]) }).unwrap();

    assert_eq!(client.send_bonus(request("good")).await.unwrap().token, "token of good");
    let mut requests = vec![request("good")];
    requests.extend((0..cases.len()).map(|nth| request(&format!("bad-{nth}"))));
    let batch = client.send_bonus_batch(requests.clone()).await;
    assert_eq!(batch[0].as_ref().unwrap().token, "token of good");
    for ((said, meant), (request, answer)) in cases.iter().zip(requests[1..].iter().zip(&batch[1..])) {
        assert_eq!(client.send_bonus(request.clone()).await.as_ref(), Err(meant));
        assert_eq!(answer.as_ref(), Err(meant), "in a batch");
        assert_eq!(said.is_worth_retrying(), meant.is_worth_retrying());
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_at_last_unknown() {
    let sdk = Arc::new(Fake { hangs: AtomicUsize::new(2), ..Fake::default() });
    let server = serve(&sdk, None).await;
    let options = ClientOptions { attempt_timeout_ms: 300, ..options(&[server.address]) };
    let client = GatewayClient::open(options).unwrap();
    assert_eq!(client.send_bonus(request("lost")).await.unwrap().token, "token of lost");
    assert_eq!(*sdk.taken.lock().unwrap(), ["lost"; 3], "the same order, three times");

    sdk.hangs.store(usize::MAX, SeqCst);
    let error = client.send_bonus(request("gone")).await.unwrap_err();
    assert!(matches!(error, SendError::Unanswered(_)) && error.is_worth_retrying(), "{error}");
    let batch = client.send_bonus_batch(vec![request("gone-1"), request("gone-2")]).await;
    assert!(batch.iter().all(|answer| matches!(answer, Err(SendError::Unanswered(_)))), "{batch:?}");
}

#[tokio::test]
async fn a_gateway_that_is_away_is_no_answer_and_another_one_takes_over() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let started = Instant::now();
    let client = GatewayClient::open(options(&[nobody])).unwrap();
    let error = client.send_bonus(request("x")).await.unwrap_err();
    assert!(matches!(error, SendError::Unanswered(_)), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60));

    let sdk = Arc::new(Fake::default());
    let server = serve(&sdk, None).await;
    let client = GatewayClient::open(options(&[nobody, server.address])).unwrap();
    for nth in 0..6 {
        client.send_bonus(request(&format!("order-{nth}"))).await.unwrap();
    }
    assert_eq!(sdk.calls.load(SeqCst), 6);
}

#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_no_word_that_nothing_was_taken() {
    let taking = Arc::new(Fake { hangs: AtomicUsize::new(usize::MAX), ..Fake::default() });
    let errors = [("full".to_owned(), SendError::SpoolFull), ("lost".to_owned(), no_route())];
    let refusing = Arc::new(Fake { errors: errors.into(), ..Fake::default() });
    let (first, second) = (serve(&taking, None).await, serve(&refusing, None).await);
    for order in ["full", "lost"] {
        let options = ClientOptions {
            attempts: 2,
            attempt_timeout_ms: 300,
            ..options(&[first.address, second.address])
        };
        let client = GatewayClient::open(options).unwrap();
        let error = client.send_bonus(request(order)).await.unwrap_err();
        assert!(matches!(error, SendError::Unanswered(_)) && error.is_worth_retrying(), "{error}");
        // The next call begins with the other one: its refusal stands until an attempt is lost.
        assert!(!matches!(client.send_bonus(request(order)).await, Ok(_) | Err(SendError::Refused(_))));
        let batch = client.send_bonus_batch(vec![request(order)]).await;
        assert!(batch.iter().all(|answer| matches!(answer, Err(SendError::Unanswered(_)))), "{batch:?}");
    }
    assert!(!taking.taken.lock().unwrap().is_empty());

    // Where there was no connection, nothing was sent, and the refusal stands.
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let client = GatewayClient::open(options(&[nobody, second.address])).unwrap();
    assert_eq!(client.send_bonus(request("lost")).await, Err(no_route()));
}

#[tokio::test]
async fn large_batches_go_in_parts_and_come_back_in_order() {
    let errors = [("order-700".to_owned(), no_route())].into();
    let sdk = Arc::new(Fake { errors, ..Fake::default() });
    let server = serve(&sdk, None).await;
    let client = GatewayClient::open(options(&[server.address])).unwrap();
    let answers =
        client.send_bonus_batch((0..1_300).map(|nth| request(&format!("order-{nth}"))).collect()).await;
    assert_eq!(answers.len(), 1_300);
    for (nth, answer) in answers.into_iter().enumerate() {
        match nth {
            700 => assert_eq!(answer, Err(no_route())),
            nth => assert_eq!(answer.unwrap().token, format!("token of order-{nth}")),
        }
    }
    // Fat ones, too: 300 of 10 KiB.
    let fat = |nth| SendBonusRequest {
        extension: [("k".to_owned(), "v".repeat(10_240))].into(),
        ..request(&format!("fat-{nth}"))
    };
    let answers = client.send_bonus_batch((0..300).map(fat).collect()).await;
    assert!(answers.iter().all(Result::is_ok) && answers.len() == 300);
    assert_eq!(client.send_bonus_batch(vec![]).await, []);
}

#[tokio::test]
async fn a_wrong_key_is_final_and_never_shown() {
    let sdk = Arc::new(Fake::default());
    let server = serve(&sdk, None).await;
    let secret = "wfk_another-secret";
    let options = ClientOptions { bearer_key: Some(secret.into()), ..options(&[server.address]) };
    assert!(!format!("{options:?}").contains(secret));
    let client = GatewayClient::open(options.clone()).unwrap();
    let error = client.send_bonus(request("x")).await.unwrap_err();
    assert!(matches!(error, SendError::Refused(_)) && !error.is_worth_retrying(), "{error}");
    assert!(!format!("{error:?} {client:?}").contains(secret));
    assert_eq!(sdk.calls.load(SeqCst), 0);

    let bad = ClientOptions { bearer_key: Some(format!("{secret}\n")), ..options };
    let error = GatewayClient::open(bad).unwrap_err().to_string();
    assert!(!error.contains(secret), "{error}");
}

#[tokio::test]
async fn options_that_cannot_be_are_refused() {
    let good = || ClientOptions { bearer_key: Some(KEY.into()), ..ClientOptions::default() };
    let at = |url: &str| ClientOptions { endpoints: vec![url.into()], ..good() };
    let bad = [
        ClientOptions { endpoints: vec![], ..good() },
        ClientOptions { attempts: 0, ..good() },
        ClientOptions { attempt_timeout_ms: 0, ..good() },
        ClientOptions { client_cert_file: Some("cert.pem".into()), ..good() },
        at("http://10.0.0.7:7070"),
        at("https://10.0.0.7:7070"),
        at("ftp://127.0.0.1"),
        at("127.0.0.1:7070"),
        at("no address"),
    ];
    for options in bad {
        let refused = GatewayClient::open(options.clone());
        assert!(matches!(refused, Err(OpenError::Option(_))), "{options:?}: {refused:?}");
    }
    let good = [at("http://[::1]:7070"), at("http://localhost:7070"), good()];
    assert!(good.into_iter().all(|options| GatewayClient::open(options).is_ok()));
    let plain = ClientOptions { key_in_plain_text: true, ..at("http://10.0.0.7:7070") };
    assert!(GatewayClient::open(plain).is_ok());
    assert!(toml::from_str::<ClientOptions>("endpoint = 'http://127.0.0.1:1'").is_err());
}

#[tokio::test]
async fn a_certificate_is_as_good_as_a_key_and_strangers_are_not_trusted() {
    let authority = Authority::new();
    let (server_cert, server_key) = authority.issue("gateway.test");
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(server_cert, server_key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    let sdk = Arc::new(Fake::default());
    let server = serve(&sdk, Some(tls)).await;

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let (cert, key) = authority.issue("rain.test");
    let options = ClientOptions {
        endpoints: vec![format!("https://{}", server.address)],
        bearer_key: None,
        ca_file: file("ca.pem", &authority.pem()),
        client_cert_file: file("cert.pem", &cert),
        client_key_file: file("key.pem", &key),
        server_name: Some("gateway.test".into()),
        attempts: 1,
        connect_timeout_ms: 20_000,
        ..options(&[])
    };
    let client = GatewayClient::open(options.clone()).unwrap();
    assert_eq!(client.send_bonus(request("x")).await.unwrap().token, "token of x");

    let stranger = Authority::new();
    let distrusted = [
        ClientOptions { ca_file: file("other-ca.pem", &stranger.pem()), ..options.clone() },
        ClientOptions { server_name: Some("another.test".into()), ..options.clone() },
        ClientOptions { client_cert_file: None, client_key_file: None, ..options.clone() },
    ];
    for options in distrusted {
        let error = GatewayClient::open(options).unwrap().send_bonus(request("y")).await.unwrap_err();
        assert!(matches!(error, SendError::Unanswered(_)), "{error}");
    }
    assert_eq!(sdk.calls.load(SeqCst), 1);
    let missing = ClientOptions { ca_file: Some(folder.path().join("none.pem")), ..options };
    assert!(matches!(GatewayClient::open(missing), Err(OpenError::Read { .. })));
}

/// Issues certificates for this test alone.
struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Self { issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    fn issue(&self, name: &str) -> (String, String) {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }
}
