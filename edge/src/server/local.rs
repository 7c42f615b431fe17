//! Calls of a server from its own process: without a socket, through every check that a call from this machine passes.

use super::connection::{self, Shared};
use super::watch::{Cut, Watch};
use crate::authenticate::Peer;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use tokio::io::DuplexStream;
use tokio_util::task::TaskTracker;

/// The bytes that are on their way in one direction at most.
const BUFFER_BYTES: usize = 64 << 10;

/// Opens connections to a server of this process. They speak HTTP/1 or HTTP/2 in plain text, whatever the server's socket
/// speaks, and the server ends them when it stops. The limits of connections are for those from outside.
#[derive(Clone)]
pub struct LocalCalls {
    // What calls the server may belong to it.
    shared: Weak<Shared>,
    connections: TaskTracker,
}

impl LocalCalls {
    pub(super) fn new(shared: &Arc<Shared>, connections: &TaskTracker) -> Self {
        Self { shared: Arc::downgrade(shared), connections: connections.clone() }
    }

    /// A new connection; none when the server has ended.
    pub fn connect(&self) -> Option<DuplexStream> {
        let shared = self.shared.upgrade()?;
        let (near, far) = tokio::io::duplex(BUFFER_BYTES);
        let peer = Peer { address: (Ipv4Addr::LOCALHOST, 0).into(), is_tls: false, cert_names: Vec::new() };
        let watch = Watch::new(Arc::new(Cut::default()), None, shared.unknown, &shared.times, 0);
        self.connections.spawn(async move {
            connection::speak(far, peer, None, Arc::new(watch), shared).await;
        });
        Some(near)
    }
}

impl fmt::Debug for LocalCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCalls").finish_non_exhaustive()
    }
}
