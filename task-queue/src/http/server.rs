//! The listeners of both APIs: what is said on their connections, and how they stop in order. How connections are accepted,
//! encrypted and bounded is the same as at the services' port ([`Listener`]).

use super::admin::{Admin, logged_path};
use super::answers::{self, Answer};
use super::api::Api;
use super::body::BodyRoom;
use super::written::{Awaited, Turns, Written};
use crate::metrics::QueueCounters;
use crate::options::{ApiOptions, WrongOption};
use crate::queues::{FarJobs, PollLimits, Queues};
use crate::room::Room;
use crate::tokens::Tokens;
use http::header::CONNECTION;
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::Clock;
use windfall_contract::task_queue::{JobStore, QueueTokens};
use windfall_edge::{Guard, GuardedCall, GuardedStream, Life, ListenError, Listener, ListenerCounts, Notice};

/// The connections of the admin API at most.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How often a connection is looked at, at least.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The bytes of a request's head at most.
const HEAD_MAX_BYTES: usize = 64 << 10;
/// The headers of a request at most.
const HEADERS_MAX: usize = 128;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_MAX_BYTES: usize = 128;

/// What a pool is made of.
pub struct PoolParts {
    /// The store in which the pool keeps its jobs.
    pub store: Arc<dyn JobStore>,
    /// The tokens by which callers may use the pool.
    pub tokens: Arc<dyn QueueTokens>,
    /// Where jobs of the pool wait that are due much later; without it all of them wait in `store`.
    pub far: Option<FarJobs>,
}

/// A pool that works.
pub(super) struct Pool {
    pub(super) queues: Queues,
    pub(super) tokens: Tokens,
    counters: Arc<QueueCounters>,
}

/// It could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option cannot be.
    #[error(transparent)]
    Option(#[from] WrongOption),
    /// A port cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Connections that still had calls at the deadline, and were cut.
    pub connections_cut: usize,
}

/// Makes the text of `/metrics`.
type MetricsText = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What both APIs share.
pub(super) struct Shared {
    pub(super) api: Api,
    pub(super) clock: Clock,
    pub(super) metrics: OnceLock<MetricsText>,
    pub(super) logs_access: AtomicBool,
    ids: RandomState,
    next_id: AtomicU64,
}

/// The task queues of a process, with their APIs. Dropped, it ends at once.
pub struct TaskQueues {
    shared: Arc<Shared>,
    api_address: SocketAddr,
    admin_address: SocketAddr,
    listeners: Vec<(&'static str, Arc<ListenerCounts>)>,
    life: Life,
    acceptors: Vec<JoinHandle<()>>,
}

/// Listens on both addresses, and answers from now on. Must be called within a tokio runtime.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub async fn start(
    options: ApiOptions,
    pools: BTreeMap<String, PoolParts>,
    clock: Clock,
) -> Result<TaskQueues, StartError> {
    options.check()?;
    let api_listener = listen(&options, options.listen, options.connections_max).await?;
    // Those of the queue API leave room for the operator who wants to know what goes on.
    let admin_listener = listen(&options, options.admin_listen, ADMIN_CONNECTIONS_MAX).await?;
    let limits = PollLimits { all_max: options.polls_max, token_max: options.polls_of_token_max };
    let answers = Room::new(options.bodies_bytes_max);
    let open = |(name, parts): (String, PoolParts)| {
        let counters = QueueCounters::new(options.metrics_queues_max);
        let queues =
            Queues::start(parts.store, parts.far, Arc::clone(&counters), limits, Arc::clone(&answers));
        (name, Pool { queues, tokens: Tokens::new(parts.tokens, clock.clone()), counters })
    };
    let pools = pools.into_iter().map(open).collect();
    let bodies = BodyRoom::new(options.bodies_bytes_max, options.body_timeout_ms);
    let shared = Arc::new(Shared {
        api: Api { options, pools, bodies },
        clock,
        metrics: OnceLock::new(),
        logs_access: AtomicBool::new(false),
        ids: RandomState::new(),
        next_id: AtomicU64::new(0),
    });
    let life = Life {
        connections: TaskTracker::new(),
        leaving: CancellationToken::new(),
        cut: CancellationToken::new(),
    };
    let (api_address, admin_address) = (api_listener.address(), admin_listener.address());
    let listeners =
        vec![("task_queue", api_listener.counts()), ("task_queue_admin", admin_listener.counts())];
    let spawn = |listener: Listener, is_admin: bool| {
        let (life, shared) = (life.clone(), Arc::clone(&shared));
        let speak = move |stream, guard| serve(stream, guard, Arc::clone(&shared), is_admin);
        tokio::spawn(listener.serve(life, speak))
    };
    let acceptors = vec![spawn(api_listener, false), spawn(admin_listener, true)];
    Ok(TaskQueues { shared, api_address, admin_address, listeners, life, acceptors })
}

async fn listen(
    options: &ApiOptions,
    address: SocketAddr,
    connections_max: usize,
) -> Result<Listener, ListenError> {
    let tls = options.tls.clone();
    Listener::bind(address, tls, connections_max, HEAD_MAX_BYTES, &options.connections).await
}

impl TaskQueues {
    /// Where the queue API listens, with the real port where the options said 0.
    pub const fn api_address(&self) -> SocketAddr {
        self.api_address
    }

    /// Where the admin API listens.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// What the port of each API counts, by name.
    pub fn listeners(&self) -> Vec<(&'static str, Arc<ListenerCounts>)> {
        self.listeners.clone()
    }

    /// The counters of each pool.
    pub fn counters(&self) -> Vec<(String, Arc<QueueCounters>)> {
        let pools = self.shared.api.pools.iter();
        pools.map(|(name, pool)| (name.clone(), Arc::clone(&pool.counters))).collect()
    }

    /// Says what `/metrics` of the admin API shows; the first call counts.
    pub fn show_metrics(&self, text: impl Fn() -> Option<String> + Send + Sync + 'static) {
        // Who comes second shows the same process.
        self.shared.metrics.set(Box::new(text)).ok();
    }

    /// Stops: accepts nothing more, ends polls with nothing, lets calls in flight finish until the deadline.
    pub async fn close(self, deadline: Duration) -> Closed {
        let began = Instant::now();
        let Life { connections, leaving, cut } = &self.life;
        leaving.cancel();
        for pool in self.shared.api.pools.values() {
            pool.queues.leave();
        }
        connections.close();
        let left = deadline.saturating_sub(began.elapsed());
        let is_done = tokio::time::timeout(left, connections.wait()).await.is_ok();
        let connections_cut = if is_done { 0 } else { connections.len() };
        cut.cancel();
        connections.wait().await;
        for pool in self.shared.api.pools.values() {
            pool.queues.close().await;
        }
        Closed { connections_cut }
    }
}

impl Drop for TaskQueues {
    fn drop(&mut self) {
        self.acceptors.iter().for_each(JoinHandle::abort);
        self.life.leaving.cancel();
        self.life.cut.cancel();
    }
}

/// Serves a connection until it ends.
async fn serve(stream: GuardedStream, mut guard: Guard, shared: Arc<Shared>, is_admin: bool) {
    let mut builder = http1::Builder::new();
    // Looks see to the time for a head: a timer for each call costs more than reading it.
    builder.header_read_timeout(None).max_buf_size(HEAD_MAX_BYTES).max_headers(HEADERS_MAX);
    let (peer, begin_call) = (guard.peer(), guard.calls());
    let (turns, clock) = (Turns::default(), shared.clock.clone());
    let write_max_ns = shared.api.options.body_timeout_ms * 1_000_000;
    let idle = Duration::from_millis(shared.api.options.idle_timeout_ms);
    let idle_max_ns = shared.api.options.idle_timeout_ms * 1_000_000;
    let mut awaited = Awaited::new(turns.clone(), clock.monotonic_ns());
    let own = turns.clone();
    let service = service_fn(move |request| {
        let (shared, turns) = (Arc::clone(&shared), own.clone());
        let call = begin_call();
        turns.call_begins();
        async move {
            let mut answer = shared.answer(request, peer, is_admin, &call).await;
            let (room, now_ns) = (answers::kept(&mut answer), shared.clock.monotonic_ns());
            Ok::<Response<Written>, Infallible>(answer.map(|body| turns.answer(body, room, now_ns)))
        }
    });
    let mut looks = tokio::time::interval(LOOK_EVERY.min(idle));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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
            _ = looks.tick() => {
                let now_ns = clock.monotonic_ns();
                if turns.reads_longer(write_max_ns, now_ns) {
                    tracing::debug!(%peer, "a caller does not read its answer");
                    return;
                }
                if awaited.is_longer(idle_max_ns, now_ns) {
                    tracing::debug!(%peer, "a caller does not send a request");
                    return;
                }
            }
        }
    }
}

impl Shared {
    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
        is_admin: bool,
        call: &GuardedCall,
    ) -> Answer {
        let id = self.request_id(&request);
        let log = self.logs_access.load(Relaxed).then(|| {
            // The query may hold a token.
            let path = request.uri().path();
            let path = if is_admin { logged_path(path) } else { path.into() };
            (request.method().clone(), path.into_owned(), self.clock.monotonic_ns())
        });
        let mut answer = match is_admin {
            true => Admin(self).answer(request, call).await,
            false => self.api.answer(request, call).await,
        };
        if let Some((method, path, began_ns)) = log {
            let took_us = self.clock.monotonic_ns().saturating_sub(began_ns) / 1_000;
            let status = answer.status().as_u16();
            tracing::info!(%peer, %method, path, status, took_us, id = id.to_str().unwrap_or(""), "access");
        }
        answer.headers_mut().insert(REQUEST_ID, id);
        if call.is_last() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    /// The caller's own where it has one, so that its logs and ours speak of the same.
    fn request_id(&self, request: &Request<Incoming>) -> HeaderValue {
        let own = request.headers().get(REQUEST_ID);
        let fits = |id: &&HeaderValue| (1..=REQUEST_ID_MAX_BYTES).contains(&id.len());
        if let Some(own) = own.filter(fits) {
            return own.clone();
        }
        let mut hasher = self.ids.build_hasher();
        hasher.write_u64(self.next_id.fetch_add(1, Relaxed));
        hasher.finish().into()
    }
}
