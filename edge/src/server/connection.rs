//! One connection: its protocol, its time-outs, and its end.

use super::tls::{self, Tls};
use crate::authenticate::Peer;
use crate::pipeline::RequestPipeline;
use bytes::{Buf, Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often a connection's times are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a connection that was asked to leave may take to say goodbye.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// The bytes that an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes that one stream, and one connection, may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// The bytes of answers that wait for a slow reader, per stream.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// The state that all connections of a server share.
pub(super) struct Shared {
    pub(super) pipeline: RequestPipeline,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) times: Times,
    pub(super) header_bytes_max: usize,
    pub(super) headers_max: usize,
    pub(super) streams_max: u32,
    /// Tells connections to take no more calls, and to end when those in flight are answered.
    pub(super) leaving: CancellationToken,
    /// Tells connections to end now.
    pub(super) cut: CancellationToken,
}

/// The time-outs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    /// The time-out of a whole call, with its body in and its answer out.
    pub(super) call: Duration,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It ended by itself, or the peer closed it.
    Closed,
    /// The peer was too slow; the text names the time-out.
    TooSlow(&'static str),
    /// TLS failed: no certificate, a wrong one, no TLS at all.
    Handshake,
    /// The server stopped, and its deadline passed.
    Cut,
}

/// Serves a connection until it ends. Its tasks end with it.
pub(super) async fn serve(stream: TcpStream, address: SocketAddr, shared: Arc<Shared>) -> Ended {
    let Some(tls) = &shared.tls else {
        return speak(stream, Peer { address, is_tls: false, cert_names: Vec::new() }, shared).await;
    };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(shared.times.header, tls.acceptor().accept(stream)) => accepted,
        () = shared.cut.cancelled() => return Ended::Cut,
    };
    match accepted {
        Err(_) => Ended::TooSlow("handshake_too_slow"),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            Ended::Handshake
        }
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let cert_names = certificate.map(tls::names).unwrap_or_default();
            speak(stream, Peer { address, is_tls: true, cert_names }, shared).await
        }
    }
}

/// Serves a stream that is open, and encrypted where it is to be.
pub(super) async fn speak<S>(mut stream: S, peer: Peer, shared: Arc<Shared>) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let first = tokio::select! {
        first = tokio::time::timeout(shared.times.header, first_bytes(&mut stream)) => first,
        () = shared.leaving.cancelled() => return Ended::Closed,
    };
    let first = match first {
        Err(_) => return Ended::TooSlow("headers_too_slow"),
        Ok(Err(_)) => return Ended::Closed,
        Ok(Ok(first)) => first,
    };
    let is_http2 = first == PREFACE;
    let stream = TokioIo::new(Rewound { first, stream });
    let watch = Arc::new(Watch::new());
    let peer = Arc::new(peer);
    let service = service_fn({
        let (watch, shared) = (Arc::clone(&watch), Arc::clone(&shared));
        move |request: http::Request<Incoming>| {
            // Begins when its headers are there, ends when its answer is written.
            let call = watch.begin();
            let (peer, shared) = (Arc::clone(&peer), Arc::clone(&shared));
            async move { Ok::<_, Infallible>(shared.pipeline.answer(&peer, request, call).await) }
        }
    });
    if is_http2 {
        let streams = Streams::default();
        let connection = http2_builder(&shared, streams.clone()).serve_connection(stream, service);
        let ended = drive(connection, http2::Connection::graceful_shutdown, &watch, &shared).await;
        streams.end().await;
        ended
    } else {
        let connection = http1_builder(&shared).serve_connection(stream, service);
        drive(connection, http1::Connection::graceful_shutdown, &watch, &shared).await
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

fn http2_builder(shared: &Shared, streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.streams_max)
        .max_header_list_size(u32::try_from(shared.header_bytes_max * 2).unwrap_or(u32::MAX))
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

/// Polls a connection, and watches its times.
async fn drive<C, E>(connection: C, leave: fn(Pin<&mut C>), watch: &Watch, shared: &Shared) -> Ended
where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
{
    let mut connection = std::pin::pin!(connection);
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left_at: Option<(Instant, &'static str)> = None;
    let mut is_leaving = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                return match (ended, left_at) {
                    (_, Some((_, why))) => Ended::TooSlow(why),
                    (Err(error), None) if is_timeout(&error) => Ended::TooSlow("headers_too_slow"),
                    _ => Ended::Closed,
                };
            }
            () = shared.cut.cancelled() => return Ended::Cut,
            () = shared.leaving.cancelled(), if !is_leaving => {
                is_leaving = true;
                leave(connection.as_mut());
            }
            now = every.tick() => match (left_at, watch.judge(now, &shared.times)) {
                (_, Verdict::Cut(why)) => return Ended::TooSlow(why),
                (None, Verdict::Leave(why)) => {
                    left_at = Some((now, why));
                    leave(connection.as_mut());
                }
                (Some((at, why)), _) if now.duration_since(at) > LEAVE_WITHIN && watch.is_idle() => {
                    return Ended::TooSlow(why);
                }
                _ => {}
            },
        }
    }
}

fn is_timeout(error: &dyn std::error::Error) -> bool {
    // hyper's own type, whichever of its builders made it.
    error.to_string().contains("timeout")
}

/// The calls of a connection, and when it last had one.
struct Watch(Mutex<Calls>);

struct Calls {
    next: u64,
    /// The begin of each call, by its number, so the first is the oldest.
    begun: BTreeMap<u64, Instant>,
    quiet_since: Instant,
}

enum Verdict {
    Keep,
    Leave(&'static str),
    Cut(&'static str),
}

/// A call on a connection; it ends when this is dropped.
struct OnWatch {
    watch: Arc<Watch>,
    number: u64,
}

impl Watch {
    fn new() -> Self {
        Self(Mutex::new(Calls { next: 0, begun: BTreeMap::new(), quiet_since: Instant::now() }))
    }

    fn begin(self: &Arc<Self>) -> OnWatch {
        let mut calls = self.0.lock();
        let number = calls.next;
        calls.next += 1;
        calls.begun.insert(number, Instant::now());
        OnWatch { watch: Arc::clone(self), number }
    }

    fn is_idle(&self) -> bool {
        self.0.lock().begun.is_empty()
    }

    /// A connection that has never had a call has as long as for headers; one whose oldest call is not done with
    /// everything that a call may take is read too slowly.
    fn judge(&self, now: Instant, times: &Times) -> Verdict {
        let calls = self.0.lock();
        match calls.begun.first_key_value() {
            Some((_, begun)) if now.duration_since(*begun) > times.call => Verdict::Cut("answer_too_slow"),
            Some(_) => Verdict::Keep,
            None if calls.next == 0 && now.duration_since(calls.quiet_since) > times.header => {
                Verdict::Leave("headers_too_slow")
            }
            None if now.duration_since(calls.quiet_since) > times.idle => Verdict::Leave("idle"),
            None => Verdict::Keep,
        }
    }
}

impl Drop for OnWatch {
    fn drop(&mut self) {
        let mut calls = self.watch.0.lock();
        calls.begun.remove(&self.number);
        calls.quiet_since = Instant::now();
    }
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

/// Reads until the bytes differ from HTTP/2's preface, or are all of it: a peer that sends one byte and waits is
/// within the same time-out as one that sends its headers slowly.
async fn first_bytes<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Bytes> {
    let mut first = BytesMut::with_capacity(PREFACE.len());
    loop {
        let mut rest = (&mut *stream).take((PREFACE.len() - first.len()) as u64);
        if rest.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first.len() == PREFACE.len() || !PREFACE.starts_with(&first) {
            return Ok(first.freeze());
        }
    }
}

/// A stream whose first bytes were read already.
struct Rewound<S> {
    first: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }
}
