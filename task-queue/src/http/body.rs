//! Request bodies, bounded in size, in time and in sum (I9).

use crate::room::{Room, Taken};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The memory for the bodies of all calls.
pub(super) struct BodyRoom {
    room: Arc<Room>,
    timeout: Duration,
}

/// A whole body.
pub(super) struct ReadBody {
    pub(super) bytes: Bytes,
    /// The memory that it takes.
    pub(super) room: Taken,
    /// It had not come together with its head, and was waited for.
    pub(super) was_awaited: bool,
}

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyError {
    TooLarge,
    NoRoom,
    Broken,
    TooSlow,
}

impl BodyRoom {
    pub(super) fn new(bytes_max: usize, timeout_ms: u64) -> Arc<Self> {
        Arc::new(Self { room: Room::new(bytes_max), timeout: Duration::from_millis(timeout_ms) })
    }

    /// Reads a whole body of at most so many bytes.
    pub(super) async fn read(
        self: &Arc<Self>,
        body: Incoming,
        bytes_max: usize,
    ) -> Result<ReadBody, BodyError> {
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(BodyError::TooLarge);
        }
        let mut reading = std::pin::pin!(self.read_all(body, bytes_max));
        let whole = |(bytes, room), was_awaited| ReadBody { bytes, room, was_awaited };
        // Most bodies have come together with their heads, and need no timer.
        if let Poll::Ready(read) = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
            return read.map(|read| whole(read, false));
        }
        match tokio::time::timeout(self.timeout, reading).await {
            Ok(read) => read.map(|read| whole(read, true)),
            Err(_) => Err(BodyError::TooSlow),
        }
    }

    async fn read_all(
        self: &Arc<Self>,
        mut body: Incoming,
        bytes_max: usize,
    ) -> Result<(Bytes, Taken), BodyError> {
        let mut taken = self.room.begin();
        let mut first = Bytes::new();
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            // Trailers of a request mean nothing here.
            let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            if data.len() > bytes_max - whole.len().max(first.len()) {
                return Err(BodyError::TooLarge);
            }
            if !taken.grow(data.len()) {
                return Err(BodyError::NoRoom);
            }
            // Most bodies come in one piece, which needs no copy.
            if first.is_empty() && whole.is_empty() {
                first = data;
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&first);
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok((if whole.is_empty() { first } else { whole.freeze() }, taken))
    }
}
