//! One connection: its protocol, its time-outs, and its end.

use super::stream::{PREFACE, Watched, first_bytes};
use super::tls::{Presented, Tls};
use super::watch::{Cut, Times, UnknownLimits, Verdict, Watch};
use crate::authenticate::Peer;
use crate::pipeline::RequestPipeline;
use http::HeaderValue;
use http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often a connection's times are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a connection that was asked to leave may take to say goodbye.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// The bytes that one stream, and one connection, may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// The bytes of answers that wait for a slow reader, per stream.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// What HTTP/2 counts for each header besides its name and value.
const HEADER_EXTRA_BYTES: usize = 32;

/// The state that all connections of a server share.
pub(super) struct Shared {
    pub(super) pipeline: RequestPipeline,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) times: Times,
    pub(super) unknown: UnknownLimits,
    pub(super) header_bytes_max: usize,
    pub(super) headers_max: usize,
    pub(super) streams_max: u32,
    /// Tells connections to take no more calls, and to end when those in flight are answered.
    pub(super) leaving: CancellationToken,
    /// Tells connections to end now.
    pub(super) cut: CancellationToken,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It ended by itself, or the peer closed it.
    Closed,
    /// The server ended it; the text is the reason in the metrics.
    Cut(&'static str),
}

/// What a connection is besides its bytes.
struct Connection {
    peer: Arc<Peer>,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
    /// The client certificate, which may be revoked while the connection is open.
    presented: Option<Presented>,
    is_http2: bool,
}

/// Serves a connection until it ends. Its tasks end with it.
pub(super) async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
) -> Ended {
    let Some(tls) = &shared.tls else {
        let peer = Peer { address, is_tls: false, cert_names: Vec::new() };
        return speak(stream, peer, None, watch, shared).await;
    };
    match handshake(tls, stream, shared.times.header, watch.cut(), &shared.cut).await {
        Err(ended) => ended,
        Ok((stream, presented)) => {
            let cert_names = presented.as_ref().map(Presented::names).unwrap_or_default();
            speak(stream, Peer { address, is_tls: true, cert_names }, presented, watch, shared).await
        }
    }
}

/// Encrypts a connection, unless that takes too long, or something ends it meanwhile.
pub(super) async fn handshake(
    tls: &Tls,
    stream: TcpStream,
    within: Duration,
    own: &Cut,
    all: &CancellationToken,
) -> Result<(TlsStream<TcpStream>, Option<Presented>), Ended> {
    let loaded = tls.loaded();
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(within, loaded.acceptor().accept(stream)) => accepted,
        why = own.ended() => return Err(Ended::Cut(why)),
        () = all.cancelled() => return Err(Ended::Cut("stopping")),
    };
    match accepted {
        Err(_) => Err(Ended::Cut("handshake_too_slow")),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            Err(Ended::Cut("handshake"))
        }
        Ok(Ok(stream)) => {
            let presented = Presented::of(stream.get_ref().1, loaded);
            Ok((stream, presented))
        }
    }
}

/// Serves a stream that is open, and encrypted where it is to be.
pub(super) async fn speak<S>(
    mut stream: S,
    peer: Peer,
    presented: Option<Presented>,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let first = tokio::select! {
        first = tokio::time::timeout(shared.times.header, first_bytes(&mut stream)) => first,
        why = watch.cut().ended() => return Ended::Cut(why),
        () = shared.leaving.cancelled() => return Ended::Closed,
    };
    let first = match first {
        Err(_) => return Ended::Cut("headers_too_slow"),
        Ok(Err(_)) => return Ended::Closed,
        Ok(Ok(first)) => first,
    };
    let is_http2 = first == PREFACE;
    let stream = Watched { first, stream, watch: Arc::clone(&watch), is_http2 };
    let stream = TokioIo::new(stream);
    let mut connection = Connection { peer: Arc::new(peer), watch, shared, presented, is_http2 };
    let service = service_fn({
        let (peer, watch, shared) =
            (Arc::clone(&connection.peer), Arc::clone(&connection.watch), Arc::clone(&connection.shared));
        move |request: http::Request<Incoming>| {
            // Begins when its headers are there, ends when its answer is written.
            let call = watch.begin();
            let (peer, watch, shared) = (Arc::clone(&peer), Arc::clone(&watch), Arc::clone(&shared));
            // In a box, which goes before the answer is written: an answer that nobody reads holds no more than itself.
            Box::pin(async move {
                let mut answer = shared.pipeline.answer(&peer, request, call).await;
                if !is_http2 && watch.should_say_goodbye() {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            })
        }
    });
    if is_http2 {
        let streams = Streams::default();
        let http = http2_builder(&connection.shared, streams.clone()).serve_connection(stream, service);
        let ended = connection.drive(http, http2::Connection::graceful_shutdown).await;
        streams.end().await;
        ended
    } else {
        let http = http1_builder(&connection.shared).serve_connection(stream, service);
        connection.drive(http, http1::Connection::graceful_shutdown).await
    }
}

/// Twice our own limits, so that most of what is over them gets an answer in JSON.
fn http1_builder(shared: &Shared) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.times.header)
        .max_buf_size(shared.header_bytes_max * 2)
        .max_headers(shared.headers_max * 2);
    builder
}

/// Headers within our own limits are within that of HTTP/2, and hardly more: a byte of them may stand for a hundred in
/// memory.
fn http2_builder(shared: &Shared, streams: Streams) -> http2::Builder<Streams> {
    let header_list_bytes_max = shared.header_bytes_max + shared.headers_max * HEADER_EXTRA_BYTES;
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.streams_max)
        .max_header_list_size(u32::try_from(header_list_bytes_max).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        // A peer that opens and resets streams is cut off by h2 itself.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(256)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

impl Connection {
    /// Polls a connection, and watches its times.
    async fn drive<C, E>(&mut self, http: C, leave: fn(Pin<&mut C>)) -> Ended
    where
        C: Future<Output = Result<(), E>>,
        E: std::error::Error,
    {
        let mut http = std::pin::pin!(http);
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut left_at: Option<(Instant, &'static str)> = None;
        let mut is_leaving = false;
        loop {
            let turn = poll_fn(|context| {
                self.watch.begin_turn();
                http.as_mut().poll(context)
            });
            tokio::select! {
                ended = turn => {
                    return match (ended, left_at) {
                        (_, Some((_, why))) => Ended::Cut(why),
                        (Err(error), None) if is_timeout(&error) => Ended::Cut("headers_too_slow"),
                        _ => Ended::Closed,
                    };
                }
                why = self.watch.cut().ended() => return Ended::Cut(why),
                () = self.shared.cut.cancelled() => return Ended::Cut("stopping"),
                () = self.shared.leaving.cancelled(), if !is_leaving => {
                    is_leaving = true;
                    leave(http.as_mut());
                }
                now = every.tick() => match (left_at, self.look(now)) {
                    (_, Verdict::Cut(why)) => return Ended::Cut(why),
                    (None, Verdict::Leave(why)) => {
                        left_at = Some((now, why));
                        leave(http.as_mut());
                    }
                    (Some((at, why)), _) if self.is_gone(now.saturating_duration_since(at)) => {
                        return Ended::Cut(why);
                    }
                    _ => {}
                },
            }
        }
    }

    fn look(&mut self, now: Instant) -> Verdict {
        if let (Some(presented), Some(tls)) = (&mut self.presented, &self.shared.tls)
            && !tls.still_takes(presented)
        {
            return Verdict::Cut("certificate_refused");
        }
        self.watch.begin_late_turn();
        self.watch.judge(now, &self.shared.times, self.is_http2)
    }

    /// Whether a connection that was asked to leave so long ago need not be waited for: it is a newcomer without a call, or goes
    /// on making some. That of a known caller ends by itself, when the peer has heard of it and has read all answers.
    fn is_gone(&self, since: Duration) -> bool {
        since > self.shared.times.call || (since > LEAVE_WITHIN && self.watch.is_idle_newcomer())
    }
}

fn is_timeout(error: &dyn std::error::Error) -> bool {
    // hyper's own type, whichever of its builders made it.
    error.to_string().contains("timeout")
}

/// Runs the streams of an HTTP/2 connection, and ends them with it.
#[derive(Clone, Default)]
struct Streams {
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl Streams {
    async fn end(&self) {
        self.ended.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                _ = stream => {}
                () = ended.cancelled() => {}
            }
        });
    }
}
