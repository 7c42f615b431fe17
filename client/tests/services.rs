//! The other clients: for whom they call, what errors mean, and which calls are made again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use windfall_client::{
    ArchiveClient, CallError, ClientOptions, EndUser, GatewayClient, SendBonus, SendError, TokensClient,
    WalletClient, WithdrawError,
};
use windfall_proto::v1::archive_server::{Archive, ArchiveServer};
use windfall_proto::v1::tokens_server::{Tokens, TokensServer};
use windfall_proto::v1::wallet_server::{Wallet, WalletServer};
use windfall_proto::v1::{
    AcceptLedgerReply, AcceptLedgerRequest, GetArchivedReply, GetArchivedRequest, GetLedgerMarkReply,
    GetLedgerMarkRequest, GetOrderReply, GetOrderRequest, GetStatementReply, GetStatementRequest,
    GetWalletReply, GetWalletRequest, ListArchiveReply, ListArchiveRequest, ListBudgetsReply,
    ListBudgetsRequest, ListHeldReply, ListHeldRequest, ListReservedReply, ListReservedRequest,
    ListTokensReply, ListTokensRequest, ListWithdrawalsReply, ListWithdrawalsRequest, ReleaseReservedReply,
    ReleaseReservedRequest, ReplayArchivedReply, ReplayArchivedRequest, SendBonusRequest, VerifyTokensReply,
    VerifyTokensRequest, WithdrawReply, WithdrawRequest,
};

/// Answers every call with the next of these statuses, and with an empty reply when there is none left.
#[derive(Clone, Default)]
struct Fake(Arc<Inner>);

#[derive(Default)]
struct Inner {
    statuses: Mutex<Vec<Status>>,
    calls: AtomicUsize,
    users: Mutex<Vec<(Option<String>, Option<String>)>>,
}

impl Fake {
    fn answer<M, R: Default>(&self, request: &Request<M>) -> Result<Response<R>, Status> {
        self.0.calls.fetch_add(1, SeqCst);
        let header = |name| request.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
        self.0.users.lock().unwrap().push((header("x-windfall-user-token"), header("x-windfall-user")));
        match self.0.statuses.lock().unwrap().pop() {
            Some(status) => Err(status),
            None => Ok(Response::new(R::default())),
        }
    }

    fn say(&self, statuses: &[Status]) {
        *self.0.statuses.lock().unwrap() = statuses.iter().rev().cloned().collect();
        self.0.calls.store(0, SeqCst);
    }

    fn calls(&self) -> usize {
        self.0.calls.load(SeqCst)
    }
}

#[async_trait]
impl Tokens for Fake {
    async fn list_tokens(
        &self,
        request: Request<ListTokensRequest>,
    ) -> Result<Response<ListTokensReply>, Status> {
        self.answer(&request)
    }

    async fn verify_tokens(
        &self,
        request: Request<VerifyTokensRequest>,
    ) -> Result<Response<VerifyTokensReply>, Status> {
        self.answer(&request)
    }
}

#[async_trait]
impl Wallet for Fake {
    async fn get_wallet(
        &self,
        request: Request<GetWalletRequest>,
    ) -> Result<Response<GetWalletReply>, Status> {
        self.answer(&request)
    }

    async fn withdraw(&self, request: Request<WithdrawRequest>) -> Result<Response<WithdrawReply>, Status> {
        self.answer(&request)
    }
}

#[async_trait]
impl Archive for Fake {
    async fn list_archive(
        &self,
        request: Request<ListArchiveRequest>,
    ) -> Result<Response<ListArchiveReply>, Status> {
        self.answer(&request)
    }

    async fn get_archived(
        &self,
        request: Request<GetArchivedRequest>,
    ) -> Result<Response<GetArchivedReply>, Status> {
        self.answer(&request)
    }

    async fn replay_archived(
        &self,
        request: Request<ReplayArchivedRequest>,
    ) -> Result<Response<ReplayArchivedReply>, Status> {
        self.answer(&request)
    }

    async fn list_budgets(
        &self,
        request: Request<ListBudgetsRequest>,
    ) -> Result<Response<ListBudgetsReply>, Status> {
        self.answer(&request)
    }

    async fn list_reserved(
        &self,
        request: Request<ListReservedRequest>,
    ) -> Result<Response<ListReservedReply>, Status> {
        self.answer(&request)
    }

    async fn release_reserved(
        &self,
        request: Request<ReleaseReservedRequest>,
    ) -> Result<Response<ReleaseReservedReply>, Status> {
        self.answer(&request)
    }

    async fn get_order(&self, request: Request<GetOrderRequest>) -> Result<Response<GetOrderReply>, Status> {
        self.answer(&request)
    }

    async fn list_held(&self, request: Request<ListHeldRequest>) -> Result<Response<ListHeldReply>, Status> {
        self.answer(&request)
    }

    async fn get_ledger_mark(
        &self,
        request: Request<GetLedgerMarkRequest>,
    ) -> Result<Response<GetLedgerMarkReply>, Status> {
        self.answer(&request)
    }

    async fn accept_ledger(
        &self,
        request: Request<AcceptLedgerRequest>,
    ) -> Result<Response<AcceptLedgerReply>, Status> {
        self.answer(&request)
    }

    async fn get_statement(
        &self,
        request: Request<GetStatementRequest>,
    ) -> Result<Response<GetStatementReply>, Status> {
        self.answer(&request)
    }

    async fn list_withdrawals(
        &self,
        request: Request<ListWithdrawalsRequest>,
    ) -> Result<Response<ListWithdrawalsReply>, Status> {
        self.answer(&request)
    }
}

/// The fake, where it listens, and what stops it when it is dropped.
async fn serve() -> (Fake, ClientOptions, oneshot::Sender<()>) {
    let fake = Fake::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::builder()
        .add_service(TokensServer::new(fake.clone()))
        .add_service(WalletServer::new(fake.clone()))
        .add_service(ArchiveServer::new(fake.clone()))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), async move {
            stopped.await.ok();
        });
    tokio::spawn(server);
    let options = ClientOptions {
        endpoints: vec![format!("http://{address}")],
        attempt_timeout_ms: 20_000,
        ..ClientOptions::default()
    };
    (fake, options, stop)
}

/// HTTP/2 by hand: takes each call whole, and resets its stream for this reason.
async fn reset_calls(mut stream: TcpStream, reason: u8) -> std::io::Result<()> {
    const DATA: u8 = 0;
    const SETTINGS: u8 = 4;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [high, middle, low, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]).try_into().unwrap()];
        stream.read_exact(&mut payload).await?;
        match (kind, flags & 1) {
            // To be acknowledged.
            (SETTINGS, 0) => stream.write_all(&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]).await?,
            // The end of a call's body.
            (DATA, 1) => {
                let reset = [&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, reason]].concat();
                stream.write_all(&reset).await?;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_call_that_is_reset_may_have_been_done() {
    let (enhance_your_calm, inadequate_security) = (0x0b, 0x0c);
    for reason in [enhance_your_calm, inadequate_security] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(reset_calls(stream, reason));
            }
        });
        for attempts in [1, 2] {
            let options = ClientOptions {
                endpoints: vec![endpoint.clone()],
                attempt_timeout_ms: 20_000,
                attempts,
                ..ClientOptions::default()
            };
            let sent = GatewayClient::open(options.clone()).unwrap();
            let sent = sent.send_bonus(SendBonusRequest::default()).await;
            assert!(matches!(sent, Err(SendError::Unanswered(_))), "{sent:?}");
            let paid = WalletClient::open(options.clone()).unwrap();
            let paid = paid.withdraw(EndUser::Named(1), WithdrawRequest::default()).await;
            assert!(matches!(paid, Err(WithdrawError::Unanswered { .. })), "{paid:?}");
            let replayed = ArchiveClient::open(options).unwrap().replay(1, String::new()).await;
            let Err(CallError::Unanswered(what)) = replayed else { panic!("{replayed:?}") };
            assert!(what.contains("h2 protocol error"), "it was reset, not timed out: {what}");
        }
        server.abort();
    }
}

fn hinted(code: Code) -> Status {
    let mut status = Status::new(code, "later");
    status.metadata_mut().insert("retry-after-ms", 7.into());
    status
}

fn because(reason: &str) -> Status {
    let mut status = Status::new(Code::FailedPrecondition, "w");
    status.metadata_mut().insert("reason", reason.parse().unwrap());
    status
}

#[tokio::test]
async fn the_user_goes_with_the_call_and_is_not_shown() {
    let (fake, options, _stop) = serve().await;
    let client = WalletClient::open(options).unwrap();
    let secret = "eyJhbGciOi.a-users.assertion";
    client.get(EndUser::Signed(secret), GetWalletRequest::default()).await.unwrap();
    client.get(EndUser::Named(42), GetWalletRequest::default()).await.unwrap();
    let users = fake.0.users.lock().unwrap().clone();
    assert_eq!(users, [(Some(secret.into()), None), (None, Some("42".into()))]);
    assert!(!format!("{:?}", EndUser::Signed(secret)).contains(secret));
    let error = client.get(EndUser::Signed("a\nb"), GetWalletRequest::default()).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error}");
    assert_eq!(fake.calls(), 2);
}

#[tokio::test]
async fn what_a_status_means_and_how_often_it_is_asked() {
    let (fake, options, _stop) = serve().await;
    let client = TokensClient::open(options.clone()).unwrap();
    let list = async || client.list(EndUser::Named(1), ListTokensRequest::default()).await;
    let what = || "w".to_owned();
    let finals = [
        (Code::InvalidArgument, CallError::Refused(what())),
        (Code::Unauthenticated, CallError::Denied(what())),
        (Code::PermissionDenied, CallError::Denied(what())),
        (Code::NotFound, CallError::NotFound(what())),
        (Code::Internal, CallError::Unanswered(what())),
    ];
    for (code, meant) in finals {
        fake.say(&[Status::new(code, "w")]);
        assert_eq!(list().await, Err(meant));
        assert_eq!(fake.calls(), 1, "{code:?}");
    }
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Aborted] {
        fake.say(&[Status::new(code, "w"), hinted(code)]);
        assert!(list().await.is_ok(), "{code:?}");
        assert_eq!(fake.calls(), 3);
    }
    let unavailable = Status::new(Code::Unavailable, "w");
    fake.say(&[unavailable.clone(), unavailable.clone(), unavailable.clone()]);
    assert_eq!(list().await, Err(CallError::Unanswered(what())));
    let busy = || hinted(Code::Unavailable);
    fake.say(&[busy(), busy(), busy()]);
    assert_eq!(list().await, Err(CallError::Busy { what: "later".into(), after_ms: 7 }));
    // The last one did nothing; of the first ones nobody knows.
    fake.say(&[unavailable.clone(), unavailable.clone(), busy()]);
    assert!(matches!(list().await, Err(CallError::Unanswered(_))));
    // An answer that does not fit the question is none.
    fake.say(&[]);
    let verified = client.verify(EndUser::Named(1), vec!["a".into()]).await;
    assert!(matches!(verified, Err(CallError::Unanswered(_))), "{verified:?}");

    let archive = ArchiveClient::open(options).unwrap();
    fake.say(&[unavailable]);
    assert!(matches!(archive.replay(1, "me".into()).await, Err(CallError::Unanswered(_))));
    assert_eq!(fake.calls(), 1, "a replay is never made again by itself");
}

#[tokio::test]
async fn what_became_of_a_withdrawal() {
    let (fake, options, _stop) = serve().await;
    let client = WalletClient::open(ClientOptions { attempts: 1, ..options }).unwrap();
    let what = || "w".to_owned();
    let cases = [
        (Status::new(Code::InvalidArgument, "w"), WithdrawError::Refused(what())),
        (Status::new(Code::PermissionDenied, "w"), WithdrawError::Denied(what())),
        (Status::new(Code::FailedPrecondition, "w"), WithdrawError::Short(what())),
        (because("user_frozen"), WithdrawError::Frozen(what())),
        (because("of_a_later_release"), WithdrawError::Short(what())),
        (Status::new(Code::AlreadyExists, "w"), WithdrawError::Taken(what())),
        (Status::new(Code::Internal, "w"), WithdrawError::Unanswered { what: what(), after_ms: 0 }),
        (hinted(Code::Unavailable), WithdrawError::Unanswered { what: "later".into(), after_ms: 7 }),
    ];
    for (status, meant) in cases {
        fake.say(&[status]);
        let answer = client.withdraw(EndUser::Named(1), WithdrawRequest::default()).await;
        assert_eq!(answer, Err(meant));
    }
}
