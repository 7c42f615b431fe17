//! The server of both transports on one port: it accepts connections, bounds them, and stops in order.

mod connection;
mod local;
mod metrics;
mod newcomers;
mod options;
mod stream;
mod tls;
mod watch;

pub use local::LocalCalls;
pub use newcomers::{BadPeerNet, PeerNet};
pub use options::{OutOfRange, ServeOptions, TlsOptions};
pub use tls::TlsError;

use crate::access::AccessSource;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::openapi::OpenApiError;
use crate::pipeline::RequestPipeline;
use crate::router::Router;
use connection::{Ended, Shared};
use newcomers::Newcomers;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watch::{Cut, Times, UnknownLimits, Watch};

/// The pause after a failed accept (mostly because no file handles are left): trying at once would use up a processor.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How long a connection that was closed to make room may take to end.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// The bytes of bodies and of frames that are read from a connection without a key, besides headers.
const UNKNOWN_BYTES: usize = 64 << 10;

/// The parts that a server needs besides its options.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The services.
    pub router: Router,
    /// The access rules.
    pub access: AccessSource,
    /// The metrics that count calls, and that `/metrics` shows.
    pub metrics: Metrics,
    /// The health that `/health/ready` and gRPC's health service report.
    pub health: Health,
}

/// A server that runs. Dropping it stops it at once, with calls in flight.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    health: Health,
    connections: TaskTracker,
    acceptor: JoinHandle<()>,
    renewer: Option<JoinHandle<()>>,
    stop_timeout: Duration,
}

/// A server that could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An option is out of its range: correct it.
    #[error(transparent)]
    Options(#[from] OutOfRange),
    /// TLS cannot be set up: correct the certificates.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        error: io::Error,
    },
    /// The OpenAPI document cannot be made, which is a fault in this build.
    #[error(transparent)]
    OpenApi(#[from] OpenApiError),
}

/// How a server stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// The number of connections that still had calls at the deadline, and were cut: their callers ask again.
    pub connections_cut: usize,
}

/// Listens, and answers from now on. Must be called within a tokio runtime.
///
/// # Errors
/// [`ServeError`]; nothing runs then.
pub async fn serve(options: &ServeOptions, parts: Parts) -> Result<Server, ServeError> {
    options.check()?;
    let Parts { router, access, metrics, health } = parts;
    let tls = options.tls.clone().map(tls::Tls::new).transpose()?.map(Arc::new);
    metrics::export(&metrics, &access, tls.as_ref());
    let pipeline = RequestPipeline::new(options.limits(), &router, access, metrics.clone(), health.clone())?;
    let ms = Duration::from_millis;
    let shared = Arc::new(Shared {
        pipeline,
        tls,
        times: Times {
            header: ms(options.header_timeout_ms),
            idle: ms(options.idle_timeout_ms),
            // The users' keys, the body, the service, and as long for the answer as for the body.
            call: ms(options.request_timeout_ms * 2 + options.body_timeout_ms * 2),
            age: ms(options.connection_age_max_ms),
        },
        unknown: UnknownLimits {
            calls_max: options.unauthenticated_calls_max,
            bytes_max: options.header_bytes_max * 2 + UNKNOWN_BYTES,
        },
        header_bytes_max: options.header_bytes_max,
        headers_max: options.headers_max,
        streams_max: options.streams_max,
        leaving: CancellationToken::new(),
        cut: CancellationToken::new(),
    });
    let address = options.listen;
    let failed = |error| ServeError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    if options.tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(%address, "serving without TLS: keys cross the network in the clear");
    }
    let connections = TaskTracker::new();
    let renewer = shared.tls.clone().map(|tls| tokio::spawn(tls::renew(tls)));
    let newcomers = Newcomers::new(
        options.unauthenticated_connections_max,
        options.unauthenticated_connections_per_peer_max,
        options.trusted_peers.clone(),
        metrics.clone(),
    );
    let acceptor = Acceptor {
        listener,
        shared: Arc::clone(&shared),
        connections: connections.clone(),
        places: Arc::new(Semaphore::new(options.connections_max)),
        newcomers: Arc::new(newcomers),
        metrics,
    };
    let acceptor = tokio::spawn(acceptor.accept());
    let stop_timeout = ms(options.stop_timeout_ms);
    Ok(Server { address, shared, health, connections, acceptor, renewer, stop_timeout })
}

impl Server {
    /// The address where it listens, with the real port where the options said 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A way to call this server from its own process, without a socket.
    pub fn local_calls(&self) -> LocalCalls {
        LocalCalls::new(&self.shared, &self.connections)
    }

    /// Holds readiness back, or releases it. See [`Health::ready`].
    pub fn ready(&self, is_ready: bool) {
        self.health.ready(is_ready);
    }

    /// Stops: not ready, accepts nothing more, says goodbye on each connection (GOAWAY; `connection: close`), lets
    /// calls in flight finish until the deadline, then cuts them.
    pub async fn stop(self) -> Stopped {
        self.ready(false);
        self.shared.leaving.cancel();
        self.connections.close();
        let is_done = tokio::time::timeout(self.stop_timeout, self.connections.wait()).await.is_ok();
        let connections_cut = if is_done { 0 } else { self.connections.len() };
        self.shared.cut.cancel();
        self.connections.wait().await;
        Stopped { connections_cut }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.acceptor.abort();
        if let Some(renewer) = &self.renewer {
            renewer.abort();
        }
        self.shared.leaving.cancel();
        self.shared.cut.cancel();
    }
}

/// Accepts connections. Its task is owned by a [`Server`].
struct Acceptor {
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: TaskTracker,
    places: Arc<Semaphore>,
    newcomers: Arc<Newcomers>,
    metrics: Metrics,
}

impl Acceptor {
    /// Ends when the server leaves, which closes the listener.
    async fn accept(self) {
        let mut number: u64 = 0;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = self.shared.leaving.cancelled() => return,
            };
            match accepted {
                Ok((stream, address)) => {
                    number = number.wrapping_add(1);
                    self.take(stream, address, number).await;
                    // What came before shows its key, if it has one, before it has to make room.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn take(&self, stream: TcpStream, address: SocketAddr, number: u64) {
        // Closed at once: a full server must not look like a slow one.
        let Some(place) = self.place().await else {
            self.metrics.connection_cut("too_many");
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let cut = Arc::new(Cut::default());
        let newcomer = self.newcomers.admit(address.ip(), Arc::clone(&cut));
        let watch = Watch::new(cut, Some(newcomer), self.shared.unknown, &self.shared.times, number);
        let (shared, metrics) = (Arc::clone(&self.shared), self.metrics.clone());
        self.connections.spawn(async move {
            let _place = place;
            let _open = Open::new(&metrics);
            match connection::serve(stream, address, Arc::new(watch), shared).await {
                Ended::Closed => {}
                Ended::Cut(why) => metrics.connection_cut(why),
            }
        });
    }

    /// A place among all connections, for which one without a key makes room.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        if !self.newcomers.make_room() {
            return None;
        }
        let place = Arc::clone(&self.places).acquire_owned();
        tokio::time::timeout(ROOM_WITHIN, place).await.ok()?.ok()
    }
}

/// Counts an open connection, also when a service's panic ends it.
struct Open<'a>(&'a Metrics);

impl<'a> Open<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.connections().inc();
        Self(metrics)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections().dec();
    }
}
