//! A port beside that of the services, for a protocol of its own over HTTP/1.1.
//!
//! Its connections are accepted, encrypted, bounded and aged by the code of the services' port. What is said on them is its
//! owner's affair, who says of each call when it has shown a key.

use super::TlsOptions;
use super::accept::{Accepted, Acceptor};
use super::connection::{Ended, LEAVE_WITHIN, handshake};
use super::counts::{Counts, ListenerCounts};
use super::newcomers::{Newcomers, PeerNet};
use super::options::OutOfRange;
use super::stream::Watched;
use super::tls::{self, Presented, Tls, TlsError};
use super::watch::{OnWatch, Times, UnknownLimits, Verdict, Watch};
use crate::pipeline::Held;
use bytes::Bytes;
use serde::Deserialize;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often a connection's times and its certificate are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The bytes of bodies that are read from a connection without a key, besides headers.
const UNKNOWN_BYTES: usize = 64 << 10;

/// The bounds of a port's connections. The names are those of the options of the services' port.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerLimits {
    /// The time-out of the TLS handshake, and how long a connection without an authenticated call may be idle. 10 to
    /// 300,000, default 15,000.
    pub header_timeout_ms: u64,
    /// The number of connections on which no call has been authenticated yet. Beyond it, the oldest of the address with
    /// the most is closed for a new one. 1 to 1,000,000, default 256.
    pub unauthenticated_connections_max: usize,
    /// The number of such connections of one address (IPv6: of one /64). Beyond it, the oldest of them is closed for a
    /// new one. 1 to 1,000,000, default 128.
    pub unauthenticated_connections_per_peer_max: usize,
    /// The addresses and networks that have no limit of their own, such as proxies in front. Default: none.
    pub trusted_peers: Vec<PeerNet>,
    /// The number of calls in a row without a valid key, after which their connection is closed. 1 to 1,000,000,
    /// default 100.
    pub unauthenticated_calls_max: u32,
    /// How old a connection becomes; its next answer is then the last one (`connection: close`). The ages are spread
    /// over the last tenth. 1,000 to 604,800,000, default 3,600,000.
    pub connection_age_max_ms: u64,
}

/// A port that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
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
}

/// A port that is open. Connections wait until it [serves](Self::serve).
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    connections_max: usize,
    newcomers: Arc<Newcomers>,
    shared: Arc<Shared>,
}

/// What ends the connections of a port. It may be that of several ports.
#[derive(Debug, Clone)]
pub struct Life {
    /// The tasks of its connections.
    pub connections: TaskTracker,
    /// Closes the port, and lets calls in flight finish.
    pub leaving: CancellationToken,
    /// Ends them at once.
    pub cut: CancellationToken,
}

/// What all connections share.
struct Shared {
    tls: Option<Arc<Tls>>,
    times: Times,
    unknown: UnknownLimits,
    counts: Arc<ListenerCounts>,
}

/// Says when a connection has to end. Who serves it holds this as long as it is open.
pub struct Guard {
    peer: SocketAddr,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
    /// The client certificate, which may be revoked while the connection is open.
    presented: Option<Presented>,
    leaving: CancellationToken,
    cut: CancellationToken,
    looks: Interval,
    /// Since when it has been asked to leave by itself, and why.
    left_at: Option<(Instant, &'static str)>,
    is_leaving: bool,
    why: Arc<OnceLock<&'static str>>,
}

/// How a connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// After the call in flight.
    Leave,
    /// Now.
    Cut,
}

/// A call on a connection; it ends when this is dropped.
pub struct GuardedCall {
    held: OnWatch,
    watch: Arc<Watch>,
}

/// The bytes of a connection. Until a call of it has shown a key, few of them are read.
pub struct GuardedStream(Watched<Wire>);

/// Plain or encrypted.
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            header_timeout_ms: 15_000,
            unauthenticated_connections_max: 256,
            unauthenticated_connections_per_peer_max: 128,
            trusted_peers: Vec::new(),
            unauthenticated_calls_max: 100,
            connection_age_max_ms: 3_600_000,
        }
    }
}

impl ListenerLimits {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first key that is.
    pub fn check(&self) -> Result<(), OutOfRange> {
        OutOfRange::check(&[
            ("header_timeout_ms", self.header_timeout_ms, 10, 300_000),
            ("unauthenticated_connections_max", self.unauthenticated_connections_max as u64, 1, 1_000_000),
            (
                "unauthenticated_connections_per_peer_max",
                self.unauthenticated_connections_per_peer_max as u64,
                1,
                1_000_000,
            ),
            ("unauthenticated_calls_max", u64::from(self.unauthenticated_calls_max), 1, 1_000_000),
            ("connection_age_max_ms", self.connection_age_max_ms, 1_000, 604_800_000),
        ])
    }
}

impl Listener {
    /// Opens a port; its certificates are read. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(
        address: SocketAddr,
        tls: Option<TlsOptions>,
        connections_max: usize,
        head_bytes_max: usize,
        limits: &ListenerLimits,
    ) -> Result<Self, ListenError> {
        let tls = tls.map(|tls| Tls::new(tls, tls::HTTP1)).transpose()?.map(Arc::new);
        let counts = Arc::new(ListenerCounts::new(tls.clone()));
        let failed = |error| ListenError::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let ms = Duration::from_millis;
        let times = Times {
            header: ms(limits.header_timeout_ms),
            // Who is known may be idle, and read its answers, as long as the protocol's own server lets it.
            idle: Duration::MAX,
            call: Duration::MAX,
            age: ms(limits.connection_age_max_ms),
        };
        let unknown = UnknownLimits {
            calls_max: limits.unauthenticated_calls_max,
            bytes_max: head_bytes_max * 2 + UNKNOWN_BYTES,
        };
        let newcomers = Newcomers::new(
            limits.unauthenticated_connections_max,
            limits.unauthenticated_connections_per_peer_max,
            limits.trusted_peers.clone(),
            Counts::Listener(Arc::clone(&counts)),
        );
        let shared = Arc::new(Shared { tls, times, unknown, counts });
        Ok(Self { listener, address, connections_max, newcomers: Arc::new(newcomers), shared })
    }

    /// Where it listens, with the real port where the options said 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counts.
    pub fn counts(&self) -> Arc<ListenerCounts> {
        Arc::clone(&self.shared.counts)
    }

    /// Accepts connections until its life says that it leaves, and has `serve` speak on each of them. Follows its
    /// certificates meanwhile. Its task is owned by the caller.
    pub async fn serve<F, S>(self, life: Life, serve: F)
    where
        F: Fn(GuardedStream, Guard) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let Life { connections, leaving, cut } = life;
        let counts = Counts::Listener(Arc::clone(&self.shared.counts));
        let acceptor = Acceptor {
            listener: self.listener,
            leaving: leaving.clone(),
            connections,
            places: Arc::new(Semaphore::new(self.connections_max)),
            newcomers: self.newcomers,
            counts,
        };
        let (shared, serve) = (self.shared, Arc::new(serve));
        let tls = shared.tls.clone();
        let accepting = acceptor.accept(move |accepted| {
            let (shared, serve) = (Arc::clone(&shared), Arc::clone(&serve));
            // Its own ones: each call looks at them, and all connections would wait for one lock.
            let (leaving, cut) = (leaving.child_token(), cut.child_token());
            async move {
                match shared.guard(accepted, leaving, cut).await {
                    Err(ended) => ended,
                    Ok((stream, guard)) => {
                        let why = Arc::clone(&guard.why);
                        serve(stream, guard).await;
                        why.get().copied().map_or(Ended::Closed, Ended::Cut)
                    }
                }
            }
        });
        match tls {
            None => accepting.await,
            Some(tls) => tokio::select! {
                () = accepting => {}
                () = tls::renew(tls) => {}
            },
        }
    }
}

impl Shared {
    /// Encrypts a connection where that is asked for, and sets a guard on it.
    async fn guard(
        self: Arc<Self>,
        accepted: Accepted,
        leaving: CancellationToken,
        cut: CancellationToken,
    ) -> Result<(GuardedStream, Guard), Ended> {
        let Accepted { stream, address: peer, cut: own, newcomer, number } = accepted;
        let watch = Arc::new(Watch::new(own, Some(newcomer), self.unknown, &self.times, number));
        let (stream, presented) = match &self.tls {
            None => (Wire::Plain(stream), None),
            Some(tls) => {
                let (stream, presented) =
                    handshake(tls, stream, self.times.header, watch.cut(), &cut).await?;
                (Wire::Tls(Box::new(stream)), presented)
            }
        };
        let own = Arc::clone(&watch);
        let stream = Watched { first: Bytes::new(), stream, watch: own, is_http2: false };
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let guard = Guard {
            peer,
            watch,
            shared: self,
            presented,
            leaving,
            cut,
            looks,
            left_at: None,
            is_leaving: false,
            why: Arc::default(),
        };
        Ok((GuardedStream(stream), guard))
    }
}

impl Guard {
    /// The other side's address.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Begins calls of this connection, for as long as it is open.
    pub fn calls(&self) -> impl Fn() -> GuardedCall + Send + Sync + use<> {
        let watch = Arc::clone(&self.watch);
        move || GuardedCall { held: watch.begin(), watch: Arc::clone(&watch) }
    }

    /// Waits until the connection has to end: because another one needs its place, its certificate was revoked, nobody
    /// shows a key on it, or the process stops. It may be asked again after [`Notice::Leave`], and be dropped at any time.
    pub async fn notice(&mut self) -> Notice {
        loop {
            tokio::select! {
                why = self.watch.cut().ended() => return self.ended(why),
                () = self.cut.cancelled() => return self.ended("stopping"),
                () = self.leaving.cancelled(), if !self.is_leaving => {
                    self.is_leaving = true;
                    return Notice::Leave;
                }
                now = self.looks.tick() => {
                    if let Some(notice) = self.look(now) {
                        return notice;
                    }
                }
            }
        }
    }

    fn look(&mut self, now: Instant) -> Option<Notice> {
        let is_refused = match (&mut self.presented, &self.shared.tls) {
            (Some(presented), Some(tls)) => !tls.still_takes(presented),
            _ => false,
        };
        if is_refused {
            return Some(self.ended("certificate_refused"));
        }
        match (self.left_at, self.watch.judge(now, &self.shared.times, false)) {
            (_, Verdict::Cut(why)) => Some(self.ended(why)),
            (None, Verdict::Leave(why)) => {
                self.left_at = Some((now, why));
                self.why.get_or_init(|| why);
                Some(Notice::Leave)
            }
            (Some((at, why)), _)
                if now.saturating_duration_since(at) > LEAVE_WITHIN && self.watch.is_idle_newcomer() =>
            {
                Some(self.ended(why))
            }
            _ => None,
        }
    }

    /// Notes why; the first reason counts.
    fn ended(&self, why: &'static str) -> Notice {
        self.why.get_or_init(|| why);
        Notice::Cut
    }
}

impl GuardedCall {
    /// The call has shown a key, or needs none: from the first time on the connection need not make room for others.
    pub fn authenticated(&self) {
        self.held.authenticated();
    }

    /// Whether its answer should be the connection's last one: say so in it (`connection: close`).
    pub fn is_last(&self) -> bool {
        self.watch.should_say_goodbye()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_a_range_is_named() {
        assert_eq!(ListenerLimits::default().check(), Ok(()));
        let wrong = ListenerLimits { connection_age_max_ms: 999, ..ListenerLimits::default() };
        let wrong = wrong.check().unwrap_err().to_string();
        assert_eq!(wrong, "connection_age_max_ms is 999; it must be between 1000 and 604800000");
    }
}
