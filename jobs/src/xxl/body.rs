//! Bodies of requests, bounded in size, in time and in sum (I9).

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most bodies are smaller than a piece.
const PIECE_BYTES: usize = 4 << 10;
/// How much of a body that nobody wants is read, and for how long.
const DISCARDED_MAX_BYTES: usize = 64 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The memory for the bodies of all calls, in pieces.
pub(super) struct BodyRoom {
    pieces: Arc<Semaphore>,
    bytes_max: usize,
    timeout: Duration,
}

/// A body, with its place in the room until it is dropped.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body is too large")]
    TooLarge,
    #[error("too many bodies are read at the same time; come again")]
    NoRoom,
    #[error("the body did not come in time")]
    TooSlow,
    #[error("the body ended before its length")]
    Broken,
}

impl BodyRoom {
    pub(super) fn new(room_bytes: usize, bytes_max: usize, timeout_ms: u64) -> Self {
        let pieces = (room_bytes / PIECE_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            pieces: Arc::new(Semaphore::new(pieces)),
            bytes_max,
            timeout: Duration::from_millis(timeout_ms),
        }
    }

    /// Reads a whole body. One without a length may grow to the most that is allowed, and takes that much room.
    pub(super) async fn read(&self, body: Incoming) -> Result<Body, BodyError> {
        let most = hyper::body::Body::size_hint(&body).upper().and_then(|upper| usize::try_from(upper).ok());
        let most = match most {
            Some(length) if length > self.bytes_max => return Err(BodyError::TooLarge),
            Some(length) => length,
            None => self.bytes_max,
        };
        let pieces = u32::try_from(most.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        let place = Arc::clone(&self.pieces).try_acquire_many_owned(pieces).map_err(|_| BodyError::NoRoom)?;
        match tokio::time::timeout(self.timeout, Limited::new(body, self.bytes_max).collect()).await {
            Ok(Ok(whole)) => Ok(Body { bytes: whole.to_bytes(), _place: place }),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
            Ok(Err(_)) => Err(BodyError::Broken),
            Err(_) => Err(BodyError::TooSlow),
        }
    }
}

/// Reads a small body that nobody wants, without keeping it; a larger or slower one is left.
pub(super) async fn discard(mut body: Incoming) {
    let reading = async {
        let mut left = DISCARDED_MAX_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { return };
            left = rest;
        }
    };
    // What is still missing then is left, too.
    tokio::time::timeout(DISCARD_TIMEOUT, reading).await.ok();
}
