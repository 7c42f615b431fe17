//! The listener that executors register and report at: what is said on its connections, and how it stops in order. How they
//! are accepted, encrypted and bounded is the same as at the services' port ([`Listener`]).

use super::admin::Admin;
use super::api::{Api, Counters, ServerStats};
use super::body::BodyRoom;
use super::options::{ServerOptions, WrongOption};
use super::rules::AddressRules;
use super::stall::StallGuard;
use super::token::AccessToken;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::Clock;
use windfall_edge::{Guard, GuardedStream, Life, ListenError, Listener, ListenerCounts, Notice};

/// The bytes of a request's head at most.
const HEAD_MAX_BYTES: usize = 16 << 10;
/// The headers of a request at most.
const HEADERS_MAX: usize = 64;

/// It could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option cannot be.
    #[error(transparent)]
    Option(#[from] WrongOption),
    /// The port cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Connections that still had calls at the deadline, and were cut, and calls that went on without one.
    pub cut: usize,
}

/// Who takes the calls that carry a token.
pub struct Door {
    /// The token. None: calls are taken whatever they carry, so there is no other door.
    pub token: Option<AccessToken>,
    /// Takes them.
    pub admin: Arc<dyn Admin>,
}

/// Takes registrations and reports of executors by HTTP, under any prefix. Dropped, it ends at once.
pub struct XxlServer {
    api: Arc<Api>,
    address: SocketAddr,
    counts: Arc<ListenerCounts>,
    life: Life,
    acceptor: JoinHandle<()>,
}

impl XxlServer {
    /// Listens, and answers from now on. Must be called within a tokio runtime.
    ///
    /// Without a token it takes calls of everybody, and listens on loopback alone unless the options allow more.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(
        options: ServerOptions,
        token: Option<AccessToken>,
        rules: AddressRules,
        admin: Arc<dyn Admin>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(options, vec![Door { token, admin }], rules, clock).await
    }

    /// The same for several tenants, each with a token of its own.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start_with(
        options: ServerOptions,
        doors: Vec<Door>,
        rules: AddressRules,
        clock: Clock,
    ) -> Result<Self, StartError> {
        options.check()?;
        for door in &doors {
            options.check_token(door.token.is_some())?;
            if door.token.as_ref().is_some_and(AccessToken::is_sample) {
                tracing::warn!("the access token is the one of XXL-JOB's samples, which everybody knows");
            }
        }
        let tls = options.tls.clone();
        let limits = &options.connections;
        let listener =
            Listener::bind(options.listen, tls, options.connections_max, HEAD_MAX_BYTES, limits).await?;
        let (address, counts) = (listener.address(), listener.counts());
        let bodies = BodyRoom::new(options.bodies_max_bytes, options.body_max_bytes, options.body_timeout_ms);
        let life = Life {
            connections: TaskTracker::new(),
            leaving: CancellationToken::new(),
            cut: CancellationToken::new(),
        };
        let api = Arc::new(Api {
            doors,
            rules,
            clock,
            bodies,
            admin_timeout: Duration::from_millis(options.admin_timeout_ms),
            calls: TaskTracker::new(),
            cut: life.cut.clone(),
            counters: Counters::default(),
        });
        let own = Arc::clone(&api);
        let times = Times {
            idle: Duration::from_millis(options.idle_timeout_ms),
            body: Duration::from_millis(options.body_timeout_ms),
        };
        let speak = move |stream, guard| serve(stream, guard, Arc::clone(&own), times);
        let acceptor = tokio::spawn(listener.serve(life.clone(), speak));
        Ok(Self { api, address, counts, life, acceptor })
    }

    /// Where it listens, with the real port where the options said 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counted since it was started.
    pub fn stats(&self) -> ServerStats {
        self.api.counters.read()
    }

    /// Reads what it counted, for as long as anybody asks.
    pub fn read_stats(&self) -> impl Fn() -> ServerStats + Send + Sync + use<> {
        let api = Arc::clone(&self.api);
        move || api.counters.read()
    }

    /// What its port counts.
    pub fn port_counts(&self) -> Arc<ListenerCounts> {
        Arc::clone(&self.counts)
    }

    /// Stops: accepts nothing more, and lets calls in flight finish until the deadline. Executors repeat what was cut.
    pub async fn close(self, deadline: Duration) -> Closed {
        self.life.leaving.cancel();
        self.life.connections.close();
        self.api.calls.close();
        let ended = async || tokio::join!(self.life.connections.wait(), self.api.calls.wait());
        let is_done = tokio::time::timeout(deadline, ended()).await.is_ok();
        let cut = if is_done { 0 } else { self.life.connections.len().max(self.api.calls.len()) };
        self.life.cut.cancel();
        ended().await;
        Closed { cut }
    }
}

impl Drop for XxlServer {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.life.leaving.cancel();
        self.life.cut.cancel();
    }
}

/// The times of a connection.
#[derive(Clone, Copy)]
struct Times {
    idle: Duration,
    body: Duration,
}

/// Serves a connection until it ends.
async fn serve(stream: GuardedStream, mut guard: Guard, api: Arc<Api>, times: Times) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(times.idle)
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEADERS_MAX);
    let begin_call = guard.calls();
    let service = service_fn(move |request| {
        let (api, call) = (Arc::clone(&api), begin_call());
        async move { Ok::<_, Infallible>(api.answer(request, &call).await) }
    });
    let stream = StallGuard::new(stream, times.body);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            notice = guard.notice() => match notice {
                Notice::Cut => return,
                Notice::Leave => connection.as_mut().graceful_shutdown(),
            },
        }
    }
}
