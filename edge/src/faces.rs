//! What is mounted: each method of each service once, for both faces.

mod shape;

use crate::identity::{Call, Role};
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
use windfall_proto::v1::archive_server::{Archive, ArchiveServer};
use windfall_proto::v1::rewards_server::{Rewards, RewardsServer};
use windfall_proto::v1::send_server::{Send as SendService, SendServer};
use windfall_proto::v1::tokens_server::{Tokens, TokensServer};
use windfall_proto::v1::wallet_server::{Wallet, WalletServer};

/// The protobuf package of all our services.
pub(crate) const PACKAGE: &str = "windfall.v1";
/// What a parse error may repeat of the body that its own sender sent.
const JSON_ERROR_BYTES_MAX: usize = 300;

/// The services of a process, for both faces.
///
/// ```no_run
/// # fn f<S: windfall_proto::v1::send_server::Send>(gateway: S) {
/// let faces = windfall_edge::Faces::new().send(std::sync::Arc::new(gateway));
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Faces {
    routes: Vec<Arc<Route>>,
    tenants: Option<Arc<BTreeSet<String>>>,
}

/// One method.
pub(crate) struct Route {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) http_path: &'static str,
    pub(crate) role: Role,
    tenants: Option<Arc<BTreeSet<String>>>,
    json: JsonHandler,
    grpc: GrpcHandler,
}

pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type JsonHandler = Box<dyn Fn(tonic::Request<()>, Bytes) -> Answer<Response<Body>> + Send + Sync>;
pub(crate) type GrpcHandler = Arc<dyn Fn(http::Request<Full<Bytes>>) -> Answer<Response<Body>> + Send + Sync>;
type Method<S, Q, R> = fn(Arc<S>, tonic::Request<Q>) -> Answer<Result<tonic::Response<R>, Status>>;

impl Faces {
    /// Nothing mounted; for callers of any app.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing mounted; for callers of these apps alone. Those of others get PERMISSION_DENIED from every method.
    pub fn of_tenants(tenants: impl IntoIterator<Item = String>) -> Self {
        Self { tenants: Some(Arc::new(tenants.into_iter().collect())), ..Self::default() }
    }

    /// Mounts sending. Role: send.
    #[must_use]
    pub fn send<S: SendService>(self, service: Arc<S>) -> Self {
        let grpc = grpc(SendServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX));
        let mut mount = Mount { faces: self, service, name: "Send", role: Role::Send, grpc };
        mount.method("SendBonus", "/v1/bonuses/send", |s, q| Box::pin(async move { s.send_bonus(q).await }));
        mount.method("SendBonusBatch", "/v1/bonuses/send-batch", |s, q| {
            Box::pin(async move { s.send_bonus_batch(q).await })
        });
        mount.faces
    }

    /// Mounts users' tokens. Role: verify.
    #[must_use]
    pub fn tokens<S: Tokens>(self, service: Arc<S>) -> Self {
        let grpc = grpc(TokensServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX));
        let mut mount = Mount { faces: self, service, name: "Tokens", role: Role::Verify, grpc };
        mount.method("ListTokens", "/v1/tokens/list", |s, q| Box::pin(async move { s.list_tokens(q).await }));
        mount.method("VerifyTokens", "/v1/tokens/verify", |s, q| {
            Box::pin(async move { s.verify_tokens(q).await })
        });
        mount.faces
    }

    /// Mounts grants. Role: grant.
    #[must_use]
    pub fn rewards<S: Rewards>(self, service: Arc<S>) -> Self {
        let grpc = grpc(RewardsServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX));
        let mut mount = Mount { faces: self, service, name: "Rewards", role: Role::Grant, grpc };
        mount.method("Grant", "/v1/rewards/grant", |s, q| Box::pin(async move { s.grant(q).await }));
        mount.method("GrantBatch", "/v1/rewards/grant-batch", |s, q| {
            Box::pin(async move { s.grant_batch(q).await })
        });
        mount.method("GrantAsync", "/v1/rewards/grant-async", |s, q| {
            Box::pin(async move { s.grant_async(q).await })
        });
        mount.faces
    }

    /// Mounts the archive, the budgets, and what has not ended. Role: operate.
    #[must_use]
    pub fn archive<S: Archive>(self, service: Arc<S>) -> Self {
        let grpc = grpc(ArchiveServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX));
        let mut mount = Mount { faces: self, service, name: "Archive", role: Role::Operate, grpc };
        mount.method("ListArchive", "/v1/archive/list", |s, q| {
            Box::pin(async move { s.list_archive(q).await })
        });
        mount.method("GetArchived", "/v1/archive/get", |s, q| {
            Box::pin(async move { s.get_archived(q).await })
        });
        mount.method("ReplayArchived", "/v1/archive/replay", |s, q| {
            Box::pin(async move { s.replay_archived(q).await })
        });
        mount.method("ListBudgets", "/v1/budgets/list", |s, q| {
            Box::pin(async move { s.list_budgets(q).await })
        });
        mount.method("ListReserved", "/v1/reserved/list", |s, q| {
            Box::pin(async move { s.list_reserved(q).await })
        });
        mount.method("ReleaseReserved", "/v1/reserved/release", |s, q| {
            Box::pin(async move { s.release_reserved(q).await })
        });
        mount
            .method("ListHeld", "/v1/withdrawals/held", |s, q| Box::pin(async move { s.list_held(q).await }));
        mount.faces
    }

    /// Mounts users' wallets. Role: verify.
    #[must_use]
    pub fn wallet<S: Wallet>(self, service: Arc<S>) -> Self {
        let grpc = grpc(WalletServer::from_arc(Arc::clone(&service)).max_decoding_message_size(usize::MAX));
        let mut mount = Mount { faces: self, service, name: "Wallet", role: Role::Verify, grpc };
        mount.method("GetWallet", "/v1/wallet/get", |s, q| Box::pin(async move { s.get_wallet(q).await }));
        mount.method("Withdraw", "/v1/wallet/withdraw", |s, q| Box::pin(async move { s.withdraw(q).await }));
        mount.faces
    }

    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }
}

impl fmt::Debug for Faces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes.iter().map(|route| route.http_path)).finish()
    }
}

impl Route {
    pub(crate) fn grpc_path(&self) -> String {
        format!("/{PACKAGE}.{}/{}", self.service, self.method)
    }

    /// Hands a call over; what is refused here never becomes a message.
    pub(crate) fn answer_json(&self, call: Call, body: Bytes) -> Answer<Response<Body>> {
        let served = self.check_tenant(&call);
        if let Err(refused) = served.and_then(|()| shape::check_json(&body).map_err(refusal)) {
            return Box::pin(async move { status_response(refused) });
        }
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(call);
        (self.json)(request, body)
    }

    /// The same, of gRPC.
    pub(crate) fn answer_grpc(
        &self,
        call: Call,
        mut request: http::Request<Full<Bytes>>,
    ) -> Answer<Response<Body>> {
        let served = self.check_tenant(&call);
        request.extensions_mut().insert(call);
        let handler = Arc::clone(&self.grpc);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Whole already, so this waits for nothing and copies nothing.
            let Ok(body) = body.collect().await.map(Collected::to_bytes);
            match served.and_then(|()| shape::check_grpc(&body).map_err(refusal)) {
                Ok(()) => handler(http::Request::from_parts(parts, Full::new(body))).await,
                Err(refused) => refused.into_http(),
            }
        })
    }

    /// Whether the caller's app is served here at all.
    fn check_tenant(&self, call: &Call) -> Result<(), Status> {
        let tenant = &*call.caller.tenant;
        match &self.tenants {
            Some(served) if !served.contains(tenant) => {
                Err(Status::permission_denied(format!("the app `{tenant}` is not served here")))
            }
            _ => Ok(()),
        }
    }
}

fn refusal(shape: BadShape) -> Status {
    Status::invalid_argument(shape.to_string())
}

/// A service on its way into [`Faces`].
struct Mount<S> {
    faces: Faces,
    service: Arc<S>,
    name: &'static str,
    role: Role,
    grpc: GrpcHandler,
}

impl<S: Send + Sync + 'static> Mount<S> {
    /// The same trait method for both faces. Mounted again, it replaces the one before.
    fn method<Q, R>(&mut self, method: &'static str, http_path: &'static str, call: Method<S, Q, R>)
    where
        Q: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let route = Route {
            service: self.name,
            method,
            http_path,
            role: self.role,
            tenants: self.faces.tenants.clone(),
            json: json(Arc::clone(&self.service), call),
            grpc: Arc::clone(&self.grpc),
        };
        self.faces.routes.retain(|mounted| mounted.http_path != http_path);
        self.faces.routes.push(Arc::new(route));
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

fn json<S, Q, R>(service: Arc<S>, call: Method<S, Q, R>) -> JsonHandler
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
