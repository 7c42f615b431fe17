//! The listeners of both APIs: they accept connections, bound them, and stop in order.

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
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::Clock;
use windfall_contract::task_queue::{JobStore, QueueTokens};

/// The connections of the admin API at most.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// The pause after a failed accept (mostly because no file handles are left).
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
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
    /// Its jobs.
    pub store: Arc<dyn JobStore>,
    /// Its tokens.
    pub tokens: Arc<dyn QueueTokens>,
    /// Where its jobs wait that are due much later; without it all of them wait in `store`.
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
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        error: io::Error,
    },
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
    connections: TaskTracker,
    leaving: CancellationToken,
    cut: CancellationToken,
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
    let api_listener = listen(options.listen).await?;
    let admin_listener = listen(options.admin_listen).await?;
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
    let places = Semaphore::new(options.connections_max);
    let shared = Arc::new(Shared {
        api: Api { options, pools, bodies },
        clock,
        metrics: OnceLock::new(),
        logs_access: AtomicBool::new(false),
        ids: RandomState::new(),
        next_id: AtomicU64::new(0),
    });
    let connections = TaskTracker::new();
    let (leaving, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut acceptors = Vec::new();
    let (api_address, admin_address) = (api_listener.1, admin_listener.1);
    // Those of the queue API leave room for the operator who wants to know what goes on.
    let admin_places = Semaphore::new(ADMIN_CONNECTIONS_MAX);
    let listeners = [(api_listener.0, false, places), (admin_listener.0, true, admin_places)];
    for (listener, is_admin, places) in listeners {
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            is_admin,
            connections: connections.clone(),
            places: Arc::new(places),
            leaving: leaving.clone(),
            cut: cut.clone(),
        };
        acceptors.push(tokio::spawn(acceptor.run(listener)));
    }
    Ok(TaskQueues { shared, api_address, admin_address, connections, leaving, cut, acceptors })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error| StartError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
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
        self.leaving.cancel();
        for pool in self.shared.api.pools.values() {
            pool.queues.leave();
        }
        self.connections.close();
        let left = deadline.saturating_sub(began.elapsed());
        let is_done = tokio::time::timeout(left, self.connections.wait()).await.is_ok();
        let connections_cut = if is_done { 0 } else { self.connections.len() };
        self.cut.cancel();
        self.connections.wait().await;
        for pool in self.shared.api.pools.values() {
            pool.queues.close().await;
        }
        Closed { connections_cut }
    }
}

impl Drop for TaskQueues {
    fn drop(&mut self) {
        self.acceptors.iter().for_each(JoinHandle::abort);
        self.leaving.cancel();
        self.cut.cancel();
    }
}

/// Owned by a [`TaskQueues`]; ends when it leaves, which closes the listener.
struct Acceptor {
    shared: Arc<Shared>,
    is_admin: bool,
    connections: TaskTracker,
    places: Arc<Semaphore>,
    leaving: CancellationToken,
    cut: CancellationToken,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.leaving.cancelled() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            // Closed at once: a full server must not look like a slow one.
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { continue };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no TCP_NODELAY");
            }
            let serving = serve(
                stream,
                peer,
                Arc::clone(&self.shared),
                self.is_admin,
                // Its own ones: each call looks at them, and all connections would wait for one lock.
                self.leaving.child_token(),
                self.cut.child_token(),
            );
            self.connections.spawn(async move {
                let _place = place;
                serving.await;
            });
        }
    }
}

/// Serves a connection until it ends.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    is_admin: bool,
    leaving: CancellationToken,
    cut: CancellationToken,
) {
    let mut builder = http1::Builder::new();
    // Looks see to the time for a head: a timer for each call costs more than reading it.
    builder.header_read_timeout(None).max_buf_size(HEAD_MAX_BYTES).max_headers(HEADERS_MAX);
    let (turns, clock) = (Turns::default(), shared.clock.clone());
    let write_max_ns = shared.api.options.body_timeout_ms * 1_000_000;
    let idle = Duration::from_millis(shared.api.options.idle_timeout_ms);
    let idle_max_ns = shared.api.options.idle_timeout_ms * 1_000_000;
    let mut awaited = Awaited::new(turns.clone(), clock.monotonic_ns());
    let own = turns.clone();
    let service = service_fn(move |request| {
        let (shared, turns) = (Arc::clone(&shared), own.clone());
        turns.call_begins();
        async move {
            let mut answer = shared.answer(request, peer, is_admin).await;
            let (room, now_ns) = (answers::kept(&mut answer), shared.clock.monotonic_ns());
            Ok::<Response<Written>, Infallible>(answer.map(|body| turns.answer(body, room, now_ns)))
        }
    });
    let mut looks = tokio::time::interval(LOOK_EVERY.min(idle));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut is_leaving = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            () = cut.cancelled() => return,
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
            () = leaving.cancelled(), if !is_leaving => {
                is_leaving = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr, is_admin: bool) -> Answer {
        let id = self.request_id(&request);
        let log = self.logs_access.load(Relaxed).then(|| {
            // The query may hold a token.
            let path = request.uri().path();
            let path = if is_admin { logged_path(path) } else { path.into() };
            (request.method().clone(), path.into_owned(), self.clock.monotonic_ns())
        });
        let mut answer = match is_admin {
            true => Admin(self).answer(request).await,
            false => self.api.answer(request).await,
        };
        if let Some((method, path, began_ns)) = log {
            let took_us = self.clock.monotonic_ns().saturating_sub(began_ns) / 1_000;
            let status = answer.status().as_u16();
            tracing::info!(%peer, %method, path, status, took_us, id = id.to_str().unwrap_or(""), "access");
        }
        answer.headers_mut().insert(REQUEST_ID, id);
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
