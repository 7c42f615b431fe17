//! Accepts connections, those of the services' port as those of a [`Listener`](super::Listener): a place for each, and
//! few places for those on which nobody has shown a key.

use super::connection::Ended;
use super::counts::Counts;
use super::newcomers::{Newcomer, Newcomers};
use super::watch::Cut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The pause after a failed accept (mostly because no file handles are left): trying at once would use up a processor.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How long a connection that was closed to make room may take to end.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// A connection that has a place.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    /// Ends it from outside.
    pub(super) cut: Arc<Cut>,
    pub(super) newcomer: Newcomer,
    pub(super) number: u64,
}

/// Accepts connections. Its task is owned by who started it.
pub(super) struct Acceptor {
    pub(super) listener: TcpListener,
    pub(super) leaving: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) places: Arc<Semaphore>,
    pub(super) newcomers: Arc<Newcomers>,
    pub(super) counts: Counts,
}

impl Acceptor {
    /// Serves each connection in a task of its own. Ends when its owner leaves, which closes the listener.
    pub(super) async fn accept<F, S>(self, serve: F)
    where
        F: Fn(Accepted) -> S + Send + Sync,
        S: Future<Output = Ended> + Send + 'static,
    {
        let mut number: u64 = 0;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = self.leaving.cancelled() => return,
            };
            match accepted {
                Ok((stream, address)) => {
                    number = number.wrapping_add(1);
                    match self.place().await {
                        Some(place) => self.take(stream, address, number, place, &serve),
                        // Closed at once: a full server must not look like a slow one.
                        None => self.counts.cut("too_many"),
                    }
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

    fn take<F, S>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        number: u64,
        place: OwnedSemaphorePermit,
        serve: &F,
    ) where
        F: Fn(Accepted) -> S,
        S: Future<Output = Ended> + Send + 'static,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let cut = Arc::new(Cut::default());
        let newcomer = self.newcomers.admit(address.ip(), Arc::clone(&cut));
        let serving = serve(Accepted { stream, address, cut, newcomer, number });
        let counts = self.counts.clone();
        self.connections.spawn(async move {
            let _place = place;
            let _open = Open::new(&counts);
            match serving.await {
                Ended::Closed => {}
                Ended::Cut(why) => counts.cut(why),
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
struct Open<'a>(&'a Counts);

impl<'a> Open<'a> {
    fn new(counts: &'a Counts) -> Self {
        counts.opened();
        Self(counts)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.closed();
    }
}
