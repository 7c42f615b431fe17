//! The router: each method of each mounted service once, for both transports.
//!
//! This is the one place where services are mounted. The lists of their methods are generated from the `.proto` files
//! ([`windfall_proto::methods`]): a method that has no HTTP path here does not compile.

pub(crate) mod roles;
pub(crate) mod shape;

use crate::identity::{Call, Role};
use crate::pages::Pages;
use crate::refusal::status_response;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shape::BadShape;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use windfall_proto::methods::{
    self, ActsMethod, ArchiveMethod, AuditsMethod, BackfillsMethod, JobsMethod, Method, Mount, PayoutsMethod,
    RewardsMethod, SendMethod, TimersMethod, TokensMethod, WalletMethod,
};
use windfall_proto::v1::acts_server::{Acts, ActsServer};
use windfall_proto::v1::archive_server::{Archive, ArchiveServer};
use windfall_proto::v1::audits_server::{Audits, AuditsServer};
use windfall_proto::v1::backfills_server::{Backfills, BackfillsServer};
use windfall_proto::v1::jobs_server::{Jobs, JobsServer};
use windfall_proto::v1::payouts_server::{Payouts, PayoutsServer};
use windfall_proto::v1::rewards_server::{Rewards, RewardsServer};
use windfall_proto::v1::send_server::{Send as SendService, SendServer};
use windfall_proto::v1::timers_server::{Timers, TimersServer};
use windfall_proto::v1::tokens_server::{Tokens, TokensServer};
use windfall_proto::v1::wallet_server::{Wallet, WalletServer};

/// The protobuf package of all our services.
pub(crate) const PACKAGE: &str = "windfall.v1";
/// The bytes of the sender's body that a parse error may repeat at most.
const JSON_ERROR_BYTES_MAX: usize = 300;

/// The services of a process, for both transports.
///
/// ```no_run
/// # fn f<S: windfall_proto::v1::send_server::Send>(gateway: S) {
/// let router = windfall_edge::Router::new().send(std::sync::Arc::new(gateway));
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Router {
    routes: Vec<Arc<Route>>,
    tenants: Option<Arc<BTreeSet<String>>>,
    pages: Option<Arc<dyn Pages>>,
}

/// One method.
pub(crate) struct Route {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) http_path: &'static str,
    pub(crate) role: Role,
    json: JsonHandler,
    grpc: GrpcHandler,
}

pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type JsonHandler = Box<dyn Fn(tonic::Request<()>, Bytes) -> Answer<Response<Body>> + Send + Sync>;
pub(crate) type GrpcHandler = Arc<dyn Fn(http::Request<Full<Bytes>>) -> Answer<Response<Body>> + Send + Sync>;

impl Router {
    /// An empty router for callers of any app.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty router for callers of these apps alone. Callers of other apps get PERMISSION_DENIED from every method.
    pub fn of_tenants(tenants: impl IntoIterator<Item = String>) -> Self {
        Self { tenants: Some(Arc::new(tenants.into_iter().collect())), ..Self::default() }
    }

    /// Mounts sending.
    #[must_use]
    pub fn send<S: SendService>(self, service: Arc<S>) -> Self {
        let server = SendServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            SendMethod::SendBonus => "/v1/bonuses/send",
            SendMethod::SendBonusBatch => "/v1/bonuses/send-batch",
        };
        let mut mounting = Mounting { router: self, service, role: roles::send, path, grpc: grpc(server) };
        methods::send(&mut mounting);
        mounting.router
    }

    /// Mounts users' tokens.
    #[must_use]
    pub fn tokens<S: Tokens>(self, service: Arc<S>) -> Self {
        let server = TokensServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            TokensMethod::ListTokens => "/v1/tokens/list",
            TokensMethod::VerifyTokens => "/v1/tokens/verify",
        };
        let mut mounting = Mounting { router: self, service, role: roles::tokens, path, grpc: grpc(server) };
        methods::tokens(&mut mounting);
        mounting.router
    }

    /// Mounts grants.
    #[must_use]
    pub fn rewards<S: Rewards>(self, service: Arc<S>) -> Self {
        let server = RewardsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            RewardsMethod::Grant => "/v1/rewards/grant",
            RewardsMethod::GrantBatch => "/v1/rewards/grant-batch",
            RewardsMethod::GrantAsync => "/v1/rewards/grant-async",
        };
        let mut mounting = Mounting { router: self, service, role: roles::rewards, path, grpc: grpc(server) };
        methods::rewards(&mut mounting);
        mounting.router
    }

    /// Mounts the archive, the budgets, orders and withdrawals, and users' statements.
    #[must_use]
    pub fn archive<S: Archive>(self, service: Arc<S>) -> Self {
        let server = ArchiveServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            ArchiveMethod::ListArchive => "/v1/archive/list",
            ArchiveMethod::GetArchived => "/v1/archive/get",
            ArchiveMethod::ReplayArchived => "/v1/archive/replay",
            ArchiveMethod::ListBudgets => "/v1/budgets/list",
            ArchiveMethod::ListReserved => "/v1/reserved/list",
            ArchiveMethod::ReleaseReserved => "/v1/reserved/release",
            ArchiveMethod::GetOrder => "/v1/orders/get",
            ArchiveMethod::ListHeld => "/v1/withdrawals/held",
            ArchiveMethod::GetLedgerMark => "/v1/ledger/mark",
            ArchiveMethod::AcceptLedger => "/v1/ledger/accept",
            ArchiveMethod::GetStatement => "/v1/statements/get",
            ArchiveMethod::ListWithdrawals => "/v1/withdrawals/list",
        };
        let mut mounting = Mounting { router: self, service, role: roles::archive, path, grpc: grpc(server) };
        methods::archive(&mut mounting);
        mounting.router
    }

    /// Mounts acts of two operators.
    #[must_use]
    pub fn acts<S: Acts>(self, service: Arc<S>) -> Self {
        let server = ActsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            ActsMethod::ProposeAct => "/v1/acts/propose",
            ActsMethod::ListActs => "/v1/acts/list",
            ActsMethod::GetAct => "/v1/acts/get",
            ActsMethod::ApproveAct => "/v1/acts/approve",
            ActsMethod::RefuseAct => "/v1/acts/refuse",
            ActsMethod::SurveyOrders => "/v1/acts/survey",
            ActsMethod::CarryOutAct => "/v1/acts/carry-out",
        };
        let mut mounting = Mounting { router: self, service, role: roles::acts, path, grpc: grpc(server) };
        methods::acts(&mut mounting);
        mounting.router
    }

    /// Mounts users' wallets.
    #[must_use]
    pub fn wallet<S: Wallet>(self, service: Arc<S>) -> Self {
        let server = WalletServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            WalletMethod::GetWallet => "/v1/wallet/get",
            WalletMethod::Withdraw => "/v1/wallet/withdraw",
        };
        let mut mounting = Mounting { router: self, service, role: roles::wallet, path, grpc: grpc(server) };
        methods::wallet(&mut mounting);
        mounting.router
    }

    /// Mounts the payouts that front ends make.
    #[must_use]
    pub fn payouts<S: Payouts>(self, service: Arc<S>) -> Self {
        let server = PayoutsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            PayoutsMethod::ListToPayOut => "/v1/payouts/list",
            PayoutsMethod::AcknowledgePayout => "/v1/payouts/acknowledge",
        };
        let mut mounting = Mounting { router: self, service, role: roles::payouts, path, grpc: grpc(server) };
        methods::payouts(&mut mounting);
        mounting.router
    }

    /// Mounts timers.
    #[must_use]
    pub fn timers<S: Timers>(self, service: Arc<S>) -> Self {
        let server = TimersServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            TimersMethod::Add => "/v1/timers/add",
            TimersMethod::AddBatch => "/v1/timers/add-batch",
            TimersMethod::Update => "/v1/timers/update",
            TimersMethod::Cancel => "/v1/timers/cancel",
            TimersMethod::CancelBatch => "/v1/timers/cancel-batch",
            TimersMethod::Get => "/v1/timers/get",
            TimersMethod::List => "/v1/timers/list",
            TimersMethod::ListDead => "/v1/timers/dead/list",
            TimersMethod::EndDead => "/v1/timers/dead/end",
        };
        let mut mounting = Mounting { router: self, service, role: roles::timers, path, grpc: grpc(server) };
        methods::timers(&mut mounting);
        mounting.router
    }

    /// Mounts backfills of timers.
    #[must_use]
    pub fn backfills<S: Backfills>(self, service: Arc<S>) -> Self {
        let server = BackfillsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            BackfillsMethod::StartBackfill => "/v1/backfills/start",
            BackfillsMethod::GetBackfill => "/v1/backfills/get",
            BackfillsMethod::CancelBackfill => "/v1/backfills/cancel",
        };
        let mut mounting =
            Mounting { router: self, service, role: roles::backfills, path, grpc: grpc(server) };
        methods::backfills(&mut mounting);
        mounting.router
    }

    /// Mounts the auditor of a ledger.
    #[must_use]
    pub fn audits<S: Audits>(self, service: Arc<S>) -> Self {
        let server = AuditsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            AuditsMethod::GetAudit => "/v1/audits/get",
            AuditsMethod::ListDifferences => "/v1/audits/differences/list",
            AuditsMethod::MarkDifference => "/v1/audits/differences/mark",
            AuditsMethod::BeginPayerStatement => "/v1/audits/statements/begin",
            AuditsMethod::AppendPayerLines => "/v1/audits/statements/append",
            AuditsMethod::ComparePayerStatement => "/v1/audits/statements/compare",
            AuditsMethod::ListPayerStatements => "/v1/audits/statements/list",
        };
        let mut mounting = Mounting { router: self, service, role: roles::audits, path, grpc: grpc(server) };
        methods::audits(&mut mounting);
        mounting.router
    }

    /// Mounts jobs.
    #[must_use]
    pub fn jobs<S: Jobs>(self, service: Arc<S>) -> Self {
        let server = JobsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX);
        let path = |method| match method {
            JobsMethod::Put => "/v1/jobs/put",
            JobsMethod::PutMany => "/v1/jobs/put-many",
            JobsMethod::Get => "/v1/jobs/get",
            JobsMethod::List => "/v1/jobs/list",
            JobsMethod::Versions => "/v1/jobs/versions",
            JobsMethod::SetPaused => "/v1/jobs/set-paused",
            JobsMethod::Remove => "/v1/jobs/remove",
            JobsMethod::Run => "/v1/jobs/run",
            JobsMethod::ListRuns => "/v1/jobs/runs/list",
            JobsMethod::GetRun => "/v1/jobs/runs/get",
            JobsMethod::RunAgain => "/v1/jobs/runs/again",
            JobsMethod::Kill => "/v1/jobs/runs/kill",
            JobsMethod::Log => "/v1/jobs/runs/log",
            JobsMethod::ListDead => "/v1/jobs/runs/dead",
            JobsMethod::ListExecutors => "/v1/jobs/executors/list",
            JobsMethod::Register => "/v1/jobs/executors/register",
            JobsMethod::Unregister => "/v1/jobs/executors/unregister",
            JobsMethod::Report => "/v1/jobs/runs/report",
            JobsMethod::Preview => "/v1/jobs/preview",
        };
        let mut mounting = Mounting { router: self, service, role: roles::jobs, path, grpc: grpc(server) };
        methods::jobs(&mut mounting);
        mounting.router
    }

    /// Mounts pages for people, which say by themselves who may see them.
    #[must_use]
    pub fn pages(self, pages: Arc<dyn Pages>) -> Self {
        Self { pages: Some(pages), ..self }
    }

    pub(crate) fn mounted_pages(&self) -> Option<Arc<dyn Pages>> {
        self.pages.clone()
    }

    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// The apps whose callers are served; every app where there is no list.
    pub(crate) fn tenants(&self) -> Option<Arc<BTreeSet<String>>> {
        self.tenants.clone()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes.iter().map(|route| route.http_path)).finish()
    }
}

impl Route {
    pub(crate) fn grpc_path(&self) -> String {
        format!("/{PACKAGE}.{}/{}", self.service, self.method)
    }

    /// Calls a method over HTTP/JSON; a body that is refused here never becomes a message.
    pub(crate) fn answer_json(&self, call: Call, body: Bytes) -> Answer<Response<Body>> {
        if let Err(refused) = shape::check_json(&body).map_err(refusal) {
            return Box::pin(async move { status_response(refused) });
        }
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(call);
        (self.json)(request, body)
    }

    /// Calls a method over gRPC.
    pub(crate) fn answer_grpc(
        &self,
        call: Call,
        mut request: http::Request<Full<Bytes>>,
    ) -> Answer<Response<Body>> {
        request.extensions_mut().insert(call);
        let handler = Arc::clone(&self.grpc);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Whole already, so this waits for nothing and copies nothing.
            let Ok(body) = body.collect().await.map(Collected::to_bytes);
            match shape::check_grpc(&body).map_err(refusal) {
                Ok(()) => handler(http::Request::from_parts(parts, Full::new(body))).await,
                Err(refused) => refused.into_http(),
            }
        })
    }
}

fn refusal(shape: BadShape) -> Status {
    Status::invalid_argument(shape.to_string())
}

/// A service that is being mounted in a [`Router`]: its list of methods is handed to it, so none is forgotten, and the
/// match without a wildcard in `path` gives each its HTTP path.
struct Mounting<S, M> {
    router: Router,
    service: Arc<S>,
    role: fn(M) -> Role,
    path: fn(M) -> &'static str,
    grpc: GrpcHandler,
}

impl<S: Send + Sync + 'static, M: Method> Mount<S, M> for Mounting<S, M> {
    /// The same trait method for both transports. Mounted again, it replaces the one before.
    fn method<Q, R>(&mut self, method: M, call: methods::Call<S, Q, R>)
    where
        Q: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let http_path = (self.path)(method);
        let route = Route {
            service: M::SERVICE,
            method: method.name(),
            http_path,
            role: (self.role)(method),
            json: json(Arc::clone(&self.service), call),
            grpc: Arc::clone(&self.grpc),
        };
        self.router.routes.retain(|mounted| mounted.http_path != http_path);
        self.router.routes.push(Arc::new(route));
    }
}

/// A generated server, with its type forgotten. Its message limit is off: the whole body has been read, within ours.
pub(crate) fn grpc<V>(server: V) -> GrpcHandler
where
    V: Service<http::Request<Full<Bytes>>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    V::Future: Send + 'static,
{
    Arc::new(move |request| {
        let mut server = server.clone();
        Box::pin(async move {
            match server.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}

fn json<S, Q, R>(service: Arc<S>, call: methods::Call<S, Q, R>) -> JsonHandler
where
    S: Send + Sync + 'static,
    Q: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    Box::new(move |request, body| {
        let service = Arc::clone(&service);
        Box::pin(async move {
            let message: Q = match serde_json::from_slice(&body) {
                Ok(message) => message,
                Err(error) => return status_response(not_of_the_form(&error)),
            };
            // Freed before the service works: its memory is the message from now on.
            drop(body);
            match call(service, request.map(|()| message)).await {
                Ok(reply) => match serde_json::to_vec(reply.get_ref()) {
                    Ok(body) => crate::refusal::json_response(StatusCode::OK, body),
                    Err(error) => status_response(Status::internal(format!("the reply is no JSON: {error}"))),
                },
                Err(status) => status_response(status),
            }
        })
    })
}

fn not_of_the_form(error: &serde_json::Error) -> Status {
    let mut message = format!("the body is not of the documented form: {error}");
    if message.len() > JSON_ERROR_BYTES_MAX {
        let end = (0..=JSON_ERROR_BYTES_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    Status::invalid_argument(message)
}
