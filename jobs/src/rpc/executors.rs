//! Calls executors that implement `windfall.v1.Executor`.

use super::address::host_and_port;
use super::batches::Peer;
use crate::executors::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
use crate::runs::Sent;
use crate::xxl::dial::{DialError, Dialer};
use crate::xxl::{AccessToken, AddressRules, WrongOption};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};
use windfall_proto::v1;
use windfall_proto::v1::executor_client::ExecutorClient;

/// Executors that are remembered.
const PEERS_MAX: usize = 20_000;
/// The time after which a silent connection with calls is asked for a sign of life; it is closed when none comes.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a log's answer at most.
const ANSWER_MAX_BYTES: usize = 16 << 20;

/// How executors are called over gRPC.
#[derive(Debug, Clone, Copy)]
pub struct GrpcOptions {
    /// The time for a connection. Less than `call_timeout_ms`, so that a host which does not answer is known not to have a run.
    pub connect_timeout_ms: u64,
    /// The time from a call's start to its answer. An executor only takes runs before it answers, or ends short ones.
    pub call_timeout_ms: u64,
    /// How long runs for one executor are gathered. 0 hands each over by itself.
    pub linger_ms: u64,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self { connect_timeout_ms: 1_000, call_timeout_ms: 2_000, linger_ms: 2 }
    }
}

/// Calls executors at addresses `grpc://host:port`. Runs for one executor that come within a moment go in one call.
///
/// A value is for executors of one tenant's app; [`of`](ExecutorCalls::of) gives that of another one.
#[derive(Clone)]
pub struct GrpcExecutors {
    shared: Arc<Shared>,
    tenant: String,
    app: String,
}

struct Shared {
    options: GrpcOptions,
    dialer: Dialer,
    tokens: BTreeMap<String, MetadataValue<Ascii>>,
    peers: Mutex<HashMap<PeerName, Arc<Peer>>>,
    calls: TaskTracker,
}

/// An executor: connections are of one tenant and app each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PeerName {
    tenant: String,
    app: String,
    address: String,
}

impl GrpcExecutors {
    /// Calls that carry the token of the executor's tenant, if it has one, and go where the rules permit. Connects to nothing yet.
    ///
    /// # Errors
    /// [`WrongOption`] names the option.
    pub fn new(
        options: GrpcOptions,
        tokens: &BTreeMap<String, AccessToken>,
        rules: AddressRules,
    ) -> Result<Self, WrongOption> {
        let dialer = Dialer::new(rules, None, options.connect_timeout_ms)?;
        let bearer = |token: &AccessToken| token.bearer();
        let tokens = tokens.iter().filter_map(|(tenant, token)| Some((tenant.clone(), bearer(token)?)));
        let shared = Shared {
            options,
            dialer,
            tokens: tokens.collect(),
            peers: Mutex::default(),
            calls: TaskTracker::new(),
        };
        Ok(Self { shared: Arc::new(shared), tenant: String::new(), app: String::new() })
    }

    fn peer(&self, address: &str) -> Result<Arc<Peer>, String> {
        let name =
            PeerName { tenant: self.tenant.clone(), app: self.app.clone(), address: address.to_owned() };
        let mut peers = self.shared.peers.lock();
        if let Some(known) = peers.get(&name) {
            return Ok(Arc::clone(known));
        }
        if peers.len() >= PEERS_MAX {
            peers.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if peers.len() >= PEERS_MAX {
            return Err(format!("{PEERS_MAX} executors have calls"));
        }
        let place = host_and_port(address).ok_or_else(|| format!("`{address}` is no grpc:// address"))?;
        let endpoint = Endpoint::from_shared(format!("http://{place}"))
            .map_err(|error| format!("`{address}` is no address: {error}"))?
            .http2_keep_alive_interval(PROBE_AFTER)
            .keep_alive_timeout(PROBE_WAIT);
        let channel = endpoint.connect_with_connector_lazy(self.shared.dialer.clone());
        let client = ExecutorClient::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES);
        let bearer = self.shared.tokens.get(&self.tenant).cloned();
        let peer = Peer::new(client, self.app.clone(), bearer, self.shared.options);
        let peer = Arc::new(peer);
        peers.insert(name, Arc::clone(&peer));
        Ok(peer)
    }

    /// Makes one call; the error says what happened.
    async fn ask<Q, R, F>(
        &self,
        address: &str,
        message: Q,
        call: impl FnOnce(ExecutorClient<tonic::transport::Channel>, Request<Q>) -> F,
    ) -> Result<R, AskError>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let peer = self.peer(address)?;
        let asked = call(peer.client(), peer.request(message));
        let timeout = Duration::from_millis(self.shared.options.call_timeout_ms);
        match tokio::time::timeout(timeout, asked).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(match status.code() {
                Code::Unimplemented
                | Code::NotFound
                | Code::InvalidArgument
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::PermissionDenied
                | Code::Unauthenticated => AskError::Refused(said(&status)),
                _ => AskError::NoAnswer(said(&status)),
            }),
            Err(_) => Err(AskError::NoAnswer(format!("no answer within {} ms", timeout.as_millis()))),
        }
    }
}

/// What a status says to people.
pub(super) fn said(status: &Status) -> String {
    match DialError::find(status) {
        Some(dial) => dial.to_string(),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}

#[async_trait]
impl ExecutorCalls for GrpcExecutors {
    fn of(&self, tenant: &str, app: &str) -> Option<Arc<dyn ExecutorCalls>> {
        Some(Arc::new(Self {
            shared: Arc::clone(&self.shared),
            tenant: tenant.to_owned(),
            app: app.to_owned(),
        }))
    }

    async fn run(&self, address: &str, call: RunCall) -> Sent {
        match self.peer(address) {
            Ok(peer) => peer.run(call, &self.shared.calls).await,
            Err(why) => Sent::NotSent(why),
        }
    }

    async fn is_alive(&self, address: &str) -> bool {
        let message = v1::BeatRequest { app: self.app.clone() };
        let beat =
            self.ask(address, message, |mut client, request| async move { client.beat(request).await });
        beat.await.is_ok()
    }

    async fn is_idle(&self, address: &str, job: u64) -> bool {
        let message = v1::IdleBeatRequest { app: self.app.clone(), job };
        let beat =
            self.ask(address, message, |mut client, request| async move { client.idle_beat(request).await });
        beat.await.is_ok_and(|reply| reply.is_idle)
    }

    async fn kill(&self, address: &str, job: u64, run: u64) -> Result<(), AskError> {
        let message = v1::KillJobRequest { app: self.app.clone(), job, run };
        let kill =
            self.ask(address, message, |mut client, request| async move { client.kill(request).await });
        kill.await.map(drop)
    }

    async fn log(&self, address: &str, call: LogCall) -> Result<LogLines, AskError> {
        let LogCall { run, due_ms, from_line, .. } = call;
        let message = v1::ReadLogRequest { app: self.app.clone(), run, due_ms, from_line };
        let log = self.ask(address, message, |mut client, request| async move { client.log(request).await });
        let v1::RunLogReply { text, next_line, is_end } = log.await?;
        Ok(LogLines { text, next_line, is_end })
    }
}

#[cfg(test)]
mod tests;
