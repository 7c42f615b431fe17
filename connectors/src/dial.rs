//! Connects to one downstream, over TCP or TLS, and looks at the address that it is really connected to.
//!
//! A name may resolve to another address each time (DNS rebinding), so the check is made on the very address that
//! is dialled and once more on the socket's peer, for every connection. Both connectors get their connections from
//! here, which is why the HTTP one is made of hyper's client and not of a larger library that dials by itself.

use crate::allow::AllowList;
use crate::options::{SetupError, WireOptions, read_file};
use crate::target::Target;
use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use windfall_contract::Clock;
use windfall_contract::connector::PayAnswer;

/// The number of a name's addresses that are tried, at most.
const ADDRESSES_MAX: usize = 8;

/// No connection: nothing of a request was written, so nothing was paid by it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("connections failed; none is tried for {after_ms} ms")]
    Paused { after_ms: u64 },
    #[error("{host} cannot be resolved: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("{host} resolves to {address}, which is not allowed")]
    Forbidden { host: String, address: SocketAddr },
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("no connection in time")]
    Timeout,
}

impl DialError {
    /// Finds this error among the causes of a client library's error.
    pub fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    /// The answer for an order: this call has certainly not paid it.
    pub fn answer(&self, pause_ms: u64) -> PayAnswer {
        match self {
            Self::Paused { after_ms } => PayAnswer::Busy { after_ms: *after_ms },
            _ => PayAnswer::Retry { after_ms: pause_ms },
        }
    }
}

/// Dials one downstream.
#[derive(Clone)]
pub(crate) struct Dialer(Arc<Inner>);

struct Inner {
    target: Target,
    allow: AllowList,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    connect_timeout: Duration,
    pause_ms: u64,
    /// 0 while connections succeed, else the time from which the next one may be tried.
    paused_until_ms: AtomicI64,
    clock: Clock,
}

impl Dialer {
    /// A dialer that offers this protocol (ALPN) where there is TLS.
    pub fn new(
        target: Target,
        allow: AllowList,
        wire: &WireOptions,
        protocol: &'static [u8],
        clock: Clock,
    ) -> Result<Self, SetupError> {
        let tls = if target.tls { Some(tls(&target, wire, protocol)?) } else { None };
        Ok(Self(Arc::new(Inner {
            target,
            allow,
            tls,
            connect_timeout: Duration::from_millis(wire.connect_timeout_ms),
            pause_ms: wire.pause_ms,
            paused_until_ms: AtomicI64::new(0),
            clock,
        })))
    }

    async fn dial(self) -> Result<TokioIo<Conn>, DialError> {
        let inner = &*self.0;
        inner.pass()?;
        let opened = tokio::time::timeout(inner.connect_timeout, inner.open()).await;
        let opened = opened.unwrap_or(Err(DialError::Timeout));
        let until_ms = match &opened {
            Ok(_) => 0,
            Err(error) => {
                tracing::warn!(host = inner.target.host, %error, "a downstream cannot be reached");
                inner.pause_end_ms()
            }
        };
        inner.paused_until_ms.store(until_ms, Ordering::Relaxed);
        Ok(TokioIo::new(Conn(opened?)))
    }
}

impl Inner {
    fn pause_end_ms(&self) -> i64 {
        // Never 0, which is no pause.
        self.clock.wall_ms().saturating_add(i64::try_from(self.pause_ms).unwrap_or(i64::MAX)).max(1)
    }

    /// Lets every call through while connections succeed, and one probe per pause while they fail.
    fn pass(&self) -> Result<(), DialError> {
        let until_ms = self.paused_until_ms.load(Ordering::Relaxed);
        if until_ms == 0 {
            return Ok(());
        }
        // More than a pause is left only where the clock was set back: that must not lock the downstream out.
        let left_ms = u64::try_from(until_ms.saturating_sub(self.clock.wall_ms())).unwrap_or(0);
        if (1..=self.pause_ms).contains(&left_ms) {
            return Err(DialError::Paused { after_ms: left_ms });
        }
        let next_ms = self.pause_end_ms();
        self.paused_until_ms
            .compare_exchange(until_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| DialError::Paused { after_ms: self.pause_ms })
    }

    async fn open(&self) -> Result<Box<dyn Io>, DialError> {
        let host = &self.target.host;
        let resolved = tokio::net::lookup_host((host.as_str(), self.target.port)).await;
        let resolved = resolved.map_err(|source| DialError::Resolve { host: host.clone(), source })?;
        let mut last = DialError::Resolve { host: host.clone(), source: io::ErrorKind::NotFound.into() };
        for address in resolved.take(ADDRESSES_MAX) {
            if !self.allow.address(address.ip()) {
                last = DialError::Forbidden { host: host.clone(), address };
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => last = DialError::Connect(error),
            }
        }
        Err(last)
    }

    async fn secure(&self, stream: TcpStream) -> Result<Box<dyn Io>, DialError> {
        let address = stream.peer_addr().map_err(DialError::Connect)?;
        if !self.allow.address(address.ip()) {
            return Err(DialError::Forbidden { host: self.target.host.clone(), address });
        }
        stream.set_nodelay(true).map_err(DialError::Connect)?;
        let Some((connector, name)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let stream = connector.connect(name.clone(), stream).await.map_err(DialError::Tls)?;
        Ok(Box::new(stream))
    }
}

/// TLS 1.2 and 1.3 with ring; the downstream's certificate is checked against the system's authorities or the
/// operator's own.
fn tls(
    target: &Target,
    wire: &WireOptions,
    protocol: &'static [u8],
) -> Result<(TlsConnector, ServerName<'static>), SetupError> {
    let mut roots = RootCertStore::empty();
    match &wire.ca_file {
        Some(path) => {
            let bad = |error: &dyn std::fmt::Display| SetupError::file("wire.ca_file", path, error);
            let pem = read_file("wire.ca_file", path)?;
            for one in CertificateDer::pem_slice_iter(&pem) {
                roots.add(one.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
            }
            if roots.is_empty() {
                return Err(bad(&"holds no certificate"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let what = "the system has no certificate authorities; name a file of your own";
                return Err(SetupError::option("wire.ca_file", what));
            }
        }
    }
    let broken = |error: &dyn std::fmt::Display| SetupError::option("url", error.to_string());
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from(target.host.clone()).map_err(|error| broken(&error))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Conn>;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Dials its own target, whatever the URL of a request says.
    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// TCP, with TLS or without.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An open connection.
pub(crate) struct Conn(Box<dyn Io>);

impl Connection for Conn {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn dialer(now_ms: &Arc<AtomicU64>) -> Dialer {
        let allow = AllowList::parse(&["127.0.0.1"]).unwrap();
        // Nobody listens on port 1.
        let target = Target { tls: false, host: "127.0.0.1".into(), port: 1 };
        let clock = Arc::clone(now_ms);
        let clock = Clock::from_unix_ms(move || clock.load(Ordering::SeqCst));
        Dialer::new(target, allow, &WireOptions::default(), b"", clock).unwrap()
    }

    async fn pause_of(dialer: &Dialer) -> Option<u64> {
        match dialer.clone().dial().await {
            Err(DialError::Paused { after_ms }) => Some(after_ms),
            Err(DialError::Connect(_)) => None,
            other => panic!("{:?}", other.map(|_| ())),
        }
    }

    #[tokio::test]
    async fn while_connections_fail_one_a_pause_is_tried() {
        let now_ms = Arc::new(AtomicU64::new(1_000_000));
        let dialer = dialer(&now_ms);
        assert_eq!(pause_of(&dialer).await, None);
        assert_eq!(pause_of(&dialer).await, Some(500));
        now_ms.fetch_add(499, Ordering::SeqCst);
        assert_eq!(pause_of(&dialer).await, Some(1));
        now_ms.fetch_add(1, Ordering::SeqCst);
        // Two at once: the second waits for what the first finds.
        assert!(dialer.0.pass().is_ok());
        assert!(matches!(dialer.0.pass(), Err(DialError::Paused { after_ms: 500 })));
        now_ms.store(0, Ordering::SeqCst);
        assert_eq!(pause_of(&dialer).await, None, "a clock set back does not lock the downstream out");
    }
}
