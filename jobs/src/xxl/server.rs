//! The listener that executors register and report at: it bounds connections, and stops in order.

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
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::Clock;

/// The pause after a failed accept (mostly because no file handles are left).
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
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
    connections: TaskTracker,
    leaving: CancellationToken,
    cut: CancellationToken,
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
        let failed = |error| StartError::Listen { address: options.listen, error };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let bodies = BodyRoom::new(options.bodies_max_bytes, options.body_max_bytes, options.body_timeout_ms);
        let (leaving, cut) = (CancellationToken::new(), CancellationToken::new());
        let api = Arc::new(Api {
            doors,
            rules,
            clock,
            bodies,
            admin_timeout: Duration::from_millis(options.admin_timeout_ms),
            calls: TaskTracker::new(),
            cut: cut.clone(),
            counters: Counters::default(),
        });
        let connections = TaskTracker::new();
        let acceptor = Acceptor {
            api: Arc::clone(&api),
            places: Arc::new(Semaphore::new(options.connections_max)),
            options,
            connections: connections.clone(),
            leaving: leaving.clone(),
            cut: cut.clone(),
        };
        let acceptor = tokio::spawn(acceptor.run(listener));
        Ok(Self { api, address, connections, leaving, cut, acceptor })
    }

    /// Where it listens, with the real port where the options said 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counted since it was started.
    pub fn stats(&self) -> ServerStats {
        self.api.counters.snapshot()
    }

    /// Reads what it counted, for as long as anybody asks.
    pub fn read_stats(&self) -> impl Fn() -> ServerStats + Send + Sync + use<> {
        let api = Arc::clone(&self.api);
        move || api.counters.snapshot()
    }

    /// Stops: accepts nothing more, and lets calls in flight finish until the deadline. Executors repeat what was cut.
    pub async fn close(self, deadline: Duration) -> Closed {
        self.leaving.cancel();
        self.connections.close();
        self.api.calls.close();
        let ended = async || tokio::join!(self.connections.wait(), self.api.calls.wait());
        let is_done = tokio::time::timeout(deadline, ended()).await.is_ok();
        let cut = if is_done { 0 } else { self.connections.len().max(self.api.calls.len()) };
        self.cut.cancel();
        ended().await;
        Closed { cut }
    }
}

impl Drop for XxlServer {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.leaving.cancel();
        self.cut.cancel();
    }
}

/// Owned by an [`XxlServer`]; ends when it leaves, which closes the listener.
struct Acceptor {
    api: Arc<Api>,
    options: ServerOptions,
    places: Arc<Semaphore>,
    connections: TaskTracker,
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
            let stream = match accepted {
                Ok((stream, _)) => stream,
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
            let serving = self.serve(stream);
            self.connections.spawn(async move {
                let _place = place;
                serving.await;
            });
        }
    }

    /// Serves a connection until it ends.
    fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + use<> {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(self.options.idle_timeout_ms))
            .max_buf_size(HEAD_MAX_BYTES)
            .max_headers(HEADERS_MAX);
        let api = Arc::clone(&self.api);
        let service = service_fn(move |request| {
            let api = Arc::clone(&api);
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        let stream = StallGuard::new(stream, Duration::from_millis(self.options.body_timeout_ms));
        let (leaving, cut) = (self.leaving.clone(), self.cut.clone());
        async move {
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
                    () = leaving.cancelled(), if !is_leaving => {
                        is_leaving = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}
