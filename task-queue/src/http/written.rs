//! Whose turn it is on a connection, and the body of an answer, written in pieces, so that a caller who does not send its
//! request, or does not read its answer, is noticed without a timer for each call.

use crate::room::Taken;
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

/// Whose turn it is on a connection.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Turn>);

#[derive(Default)]
struct Turn {
    /// Calls that have begun, and answers that have been written: odd while a call goes on, even while its next one is awaited.
    count: AtomicU64,
    /// When the answer that is being written was begun, by the monotonic clock in nanoseconds; 0 where none is.
    writing_ns: AtomicU64,
}

impl Turns {
    /// A request's head has come.
    pub(super) fn call_begins(&self) {
        self.0.count.fetch_add(1, Relaxed);
    }

    /// The body of the answer, which ends the call when it is dropped, and gives its memory back.
    pub(super) fn answer(self, body: Full<Bytes>, room: Option<Arc<Taken>>, now_ns: u64) -> Written {
        self.0.writing_ns.store(now_ns.max(1), Relaxed);
        Written { rest: body, left: Bytes::new(), turns: self, _room: room }
    }

    /// Whether the caller has been reading its answer for longer than so many nanoseconds.
    pub(super) fn reads_longer(&self, most_ns: u64, now_ns: u64) -> bool {
        match self.0.writing_ns.load(Relaxed) {
            0 => false,
            begun_ns => now_ns.saturating_sub(begun_ns) > most_ns,
        }
    }
}

/// For how long the head of a request has been awaited, as far as somebody looks from time to time.
pub(super) struct Awaited {
    turns: Turns,
    seen: u64,
    since_ns: u64,
}

impl Awaited {
    pub(super) const fn new(turns: Turns, now_ns: u64) -> Self {
        Self { turns, seen: 0, since_ns: now_ns }
    }

    /// Whether one has been awaited for so many nanoseconds, up to one look more.
    pub(super) fn is_longer(&mut self, most_ns: u64, now_ns: u64) -> bool {
        let count = self.turns.0.count.load(Relaxed);
        if count % 2 == 1 || count != self.seen {
            (self.seen, self.since_ns) = (count, now_ns);
            return false;
        }
        now_ns.saturating_sub(self.since_ns) >= most_ns
    }
}

/// What is left of an answer's body.
pub(super) struct Written {
    rest: Full<Bytes>,
    left: Bytes,
    turns: Turns,
    _room: Option<Arc<Taken>>,
}

impl Drop for Written {
    fn drop(&mut self) {
        self.turns.0.writing_ns.store(0, Relaxed);
        self.turns.0.count.fetch_add(1, Relaxed);
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
