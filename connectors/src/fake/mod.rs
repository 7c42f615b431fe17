//! A downstream to try a connector or a reward service on: [`FakeDownstream`] in process, and [`FakeServer`], which
//! serves its book over HTTP and gRPC on one port. Nothing here is real money.
//!
//! It checks what a real one must: signature or bearer key, method, size, and that the header's key is the body's.
//! Told to, it pays and then answers badly ([`Trouble`]), which is what a connector must survive.

mod downstream;
mod serve;
mod trouble;

pub use downstream::{FakeBook, FakeDownstream, FakeOptions, FakePayment};
pub use trouble::{Trouble, UnknownTrouble};

use crate::signature::{SKEW_MS, SigningKey};
use serve::Shared;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windfall_contract::Clock;

/// Options of the server; [`FakeOptions`] are those of the downstream behind it.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where it listens. Default 127.0.0.1, a free port.
    pub listen: SocketAddr,
    /// Keys that may sign HTTP requests. None: HTTP is refused, but for `open`.
    pub signing_keys: Vec<SigningKey>,
    /// The bearer key of gRPC calls. None: gRPC is refused, but for `open`.
    pub bearer_key: Option<String>,
    /// Takes requests that are not signed and calls without a key. Default false.
    pub open: bool,
    /// How far the signer's clock may be off, in ms. Default 300,000.
    pub skew_ms: u64,
    /// Connections at once, 1 to 65,536. Default 1,024. More wait to be accepted.
    pub connections_max: usize,
    /// What it does to its answers. Default nothing.
    pub trouble: Option<Trouble>,
    /// The number of answers in 1,000 that are troubled. Default 1,000.
    pub trouble_per_mille: u32,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 0).into(),
            signing_keys: Vec::new(),
            bearer_key: None,
            open: false,
            skew_ms: SKEW_MS,
            connections_max: 1_024,
            trouble: None,
            trouble_per_mille: 1_000,
        }
    }
}

/// What it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Requests over HTTP.
    pub http: u64,
    /// Calls over gRPC.
    pub grpc: u64,
    /// Requests and calls that were refused for a signature or a key.
    pub forbidden: u64,
    /// Answers that were troubled.
    pub troubled: u64,
}

/// A running server. When it is dropped it ends at once; it is better to call [`FakeServer::stop`].
pub struct FakeServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl FakeServer {
    /// Listens and serves.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start(
        options: ServerOptions,
        downstream: Arc<FakeDownstream>,
        clock: Clock,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(options, downstream, clock));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve::accept(listener, Arc::clone(&shared), stopped));
        Ok(Self { address, shared, stop, task })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does to its answers from now on: so many of 1,000.
    pub fn set_trouble(&self, trouble: Option<Trouble>, per_mille: u32) {
        self.shared.set_trouble(trouble, per_mille);
    }

    /// The counters of the server.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Ends it: open connections are cut.
    pub async fn stop(mut self) {
        // The task may have ended.
        self.stop.send(true).ok();
        (&mut self.task).await.ok();
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
