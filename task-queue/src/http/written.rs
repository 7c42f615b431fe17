//! The body of an answer, written in pieces, so that a caller who does not read it is noticed.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// The bytes that are handed over at once.
const PIECE_BYTES: usize = 32 << 10;

/// When the answer that is being written was begun, by the monotonic clock in nanoseconds; 0 where none is.
#[derive(Clone, Default)]
pub(super) struct Writing(Arc<AtomicU64>);

impl Writing {
    pub(super) fn begin(&self, now_ns: u64) {
        self.0.store(now_ns.max(1), Relaxed);
    }

    /// Whether it takes longer than so many nanoseconds.
    pub(super) fn is_longer(&self, most_ns: u64, now_ns: u64) -> bool {
        match self.0.load(Relaxed) {
            0 => false,
            begun_ns => now_ns.saturating_sub(begun_ns) > most_ns,
        }
    }
}

/// What is left of an answer's body.
pub(super) struct Written {
    rest: Full<Bytes>,
    left: Bytes,
    writing: Writing,
}

impl Written {
    pub(super) fn new(body: Full<Bytes>, writing: Writing) -> Self {
        Self { rest: body, left: Bytes::new(), writing }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.writing.0.store(0, Relaxed);
    }
}

impl Body for Written {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            match Pin::new(&mut self.rest).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.left = data,
                    Err(_) => return Poll::Ready(None),
                },
                other => return other,
            }
        }
        let end = PIECE_BYTES.min(self.left.len());
        let piece = self.left.split_to(end);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64 + self.rest.size_hint().lower())
    }
}
