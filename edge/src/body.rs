//! Request bodies, which are bounded in size, in time and in sum (I9), and answer bodies, which hold their call's place
//! until they are written.

use crate::metrics::Metrics;
use crate::refusal::{Reason, Refusal};
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tonic::Status;
use tonic::body::Body;

/// The bytes that are allocated before a byte has come, whatever length is declared.
const FIRST_BYTES_MAX: usize = 64 << 10;
/// The bytes that are written at once.
const PIECE_BYTES: usize = 32 << 10;

/// The memory for the bodies of all calls.
#[derive(Clone)]
pub(crate) struct BodyRoom {
    used: Arc<AtomicUsize>,
    bytes_max: usize,
    metrics: Metrics,
}

/// Bytes that are taken from the room, and given back when this is dropped.
pub(crate) struct Taken {
    room: BodyRoom,
    bytes: usize,
}

/// The limits of one body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: usize,
    pub(crate) timeout: Duration,
}

impl BodyRoom {
    pub(crate) fn new(bytes_max: usize, metrics: Metrics) -> Self {
        Self { used: Arc::default(), bytes_max, metrics }
    }

    /// Reads a whole body. A body that is too slow, too long or broken is refused, and the rest of it is
    /// never read.
    pub(crate) async fn read(&self, body: Incoming, limits: BodyLimits) -> Result<(Bytes, Taken), Refusal> {
        let declared = body_hint(&body);
        if declared > limits.bytes_max as u64 {
            return Err(too_large(limits.bytes_max));
        }
        match tokio::time::timeout(limits.timeout, self.read_all(body, declared, limits.bytes_max)).await {
            Ok(read) => read,
            Err(_) => Err(Refusal::new(Reason::BodyTooSlow, "the body did not come in time")),
        }
    }

    async fn read_all(
        &self,
        mut body: Incoming,
        declared: u64,
        bytes_max: usize,
    ) -> Result<(Bytes, Taken), Refusal> {
        let mut taken = Taken { room: self.clone(), bytes: 0 };
        let first = usize::try_from(declared).unwrap_or(FIRST_BYTES_MAX).min(FIRST_BYTES_MAX);
        let mut whole = BytesMut::with_capacity(first);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::new(Reason::BodyBroken, "the body broke off"))?;
            // Trailers of a request mean nothing here.
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > bytes_max - whole.len() {
                return Err(too_large(bytes_max));
            }
            taken.grow(data.len())?;
            whole.extend_from_slice(&data);
        }
        Ok((whole.freeze(), taken))
    }
}

fn body_hint(body: &Incoming) -> u64 {
    http_body::Body::size_hint(body).lower()
}

fn too_large(bytes_max: usize) -> Refusal {
    Refusal::new(Reason::BodyTooLarge, format!("the body is longer than {bytes_max} bytes"))
}

impl Taken {
    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let room = &self.room;
        let used = room.used.fetch_add(bytes, Relaxed).saturating_add(bytes);
        // Counted either way: dropping gives back what was added.
        self.bytes += bytes;
        room.metrics.body_bytes_in_flight().inc_by(as_gauge(bytes));
        if used > room.bytes_max {
            let full = Refusal::new(Reason::NoMemory, "too many bytes of bodies are in flight; call again");
            return Err(full.retry_after_ms(200));
        }
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Relaxed);
        self.room.metrics.body_bytes_in_flight().dec_by(as_gauge(self.bytes));
    }
}

fn as_gauge(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// An answer's body that keeps something until it is written, or nobody wants it any more. It goes out in pieces:
/// hyper takes a piece whole, however slowly the peer reads, and would take a whole answer so.
pub(crate) struct Holding<T> {
    body: Body,
    piece: Bytes,
    _held: T,
}

impl<T> Holding<T> {
    pub(crate) fn new(body: Body, held: T) -> Self {
        Self { body, piece: Bytes::new(), _held: held }
    }
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.piece.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.piece = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let size = self.piece.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, piece) = (self.body.size_hint(), self.piece.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + piece);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + piece);
        }
        whole
    }
}
