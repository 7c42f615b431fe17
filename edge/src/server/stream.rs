//! The bytes of a connection: which protocol they begin, and how fast a newcomer is read.

use super::watch::{Reading, Watch};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The bytes that an HTTP/2 connection begins with.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads until the bytes differ from HTTP/2's preface, or are all of it: a peer that sends one byte and waits is
/// within the same time-out as one that sends its headers slowly.
pub(super) async fn first_bytes<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Bytes> {
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

/// A stream whose first bytes were read already, and which is read only as its [`Watch`] allows.
///
/// What is not read stays in the system's buffers, whose size does not depend on the peer.
pub(super) struct Watched<S> {
    pub(super) first: Bytes,
    pub(super) stream: S,
    pub(super) watch: Arc<Watch>,
    pub(super) is_http2: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..count]);
            self.first.advance(count);
            return Poll::Ready(Ok(()));
        }
        let bytes = match self.watch.reading(self.is_http2, context) {
            Reading::All => return Pin::new(&mut self.stream).poll_read(context, buffer),
            Reading::Later => return Poll::Pending,
            Reading::Piece(bytes) => bytes.min(buffer.remaining()),
        };
        let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(bytes));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
        let count = piece.filled().len();
        buffer.advance(count);
        self.watch.has_read(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
