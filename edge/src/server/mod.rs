//! The server of both transports on one port: it accepts connections, bounds them, and stops in order.

mod accept;
mod connection;
mod counts;
mod listener;
mod local;
mod metrics;
mod newcomers;
mod options;
mod plaintext;
mod stream;
mod tls;
mod watch;

pub use counts::ListenerCounts;
pub use listener::{Guard, GuardedCall, GuardedStream, Life, ListenError, Listener, ListenerLimits, Notice};
pub use local::LocalCalls;
pub use newcomers::{BadPeerNet, PeerNet};
pub use options::{OutOfRange, ServeOptions, TlsOptions};
pub use plaintext::{PlainTextRefused, check_plaintext};
pub use tls::TlsError;

use crate::access::AccessSource;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::openapi::OpenApiError;
use crate::pipeline::RequestPipeline;
use crate::router::Router;
use accept::{Accepted, Acceptor};
use connection::Shared;
use counts::Counts;
use newcomers::Newcomers;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watch::{Times, UnknownLimits, Watch};

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
    /// Keys would cross the network in the clear, and no option allows that by name.
    #[error(transparent)]
    PlainText(#[from] PlainTextRefused),
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
    check_plaintext("listen", options.listen, options.tls.is_some(), options.plaintext)?;
    let Parts { router, access, metrics, health } = parts;
    let tls = options.tls.clone().map(|tls| tls::Tls::new(tls, tls::EITHER)).transpose()?.map(Arc::new);
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
        tracing::warn!(
            %address,
            "serving without TLS, because plaintext is set: keys cross the network in the clear"
        );
    }
    let connections = TaskTracker::new();
    let renewer = shared.tls.clone().map(|tls| tokio::spawn(tls::renew(tls)));
    let newcomers = Newcomers::new(
        options.unauthenticated_connections_max,
        options.unauthenticated_connections_per_peer_max,
        options.trusted_peers.clone(),
        Counts::Server(metrics.clone()),
    );
    let acceptor = Acceptor {
        listener,
        leaving: shared.leaving.clone(),
        connections: connections.clone(),
        places: Arc::new(Semaphore::new(options.connections_max)),
        newcomers: Arc::new(newcomers),
        counts: Counts::Server(metrics),
    };
    let own = Arc::clone(&shared);
    let acceptor = tokio::spawn(acceptor.accept(move |accepted: Accepted| {
        let Accepted { stream, address, cut, newcomer, number } = accepted;
        let watch = Watch::new(cut, Some(newcomer), own.unknown, &own.times, number);
        connection::serve(stream, address, Arc::new(watch), Arc::clone(&own))
    }));
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
