//! Connects to executors, over TCP or TLS, and looks at each address that it really connects to.
//!
//! A name may resolve to another address each time, so the check is made on the very address that is dialled, for every
//! connection.

use super::options::WrongOption;
use super::rules::AddressRules;
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// The number of a name's addresses that are tried, at most.
const ADDRESSES_MAX: usize = 8;

/// No connection: nothing of a request was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the host cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error("requests to {0} are not allowed")]
    Forbidden(SocketAddr),
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("no connection within {0} ms")]
    Timeout(u128),
}

impl DialError {
    /// Finds this error among the causes of a client library's error.
    pub(crate) fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// Dials executors.
#[derive(Clone)]
pub(crate) struct Dialer(Arc<Inner>);

struct Inner {
    rules: AddressRules,
    tls: TlsConnector,
    timeout: Duration,
}

impl Dialer {
    pub(crate) fn new(
        rules: AddressRules,
        ca_file: Option<&Path>,
        timeout_ms: u64,
    ) -> Result<Self, WrongOption> {
        let tls = tls(ca_file).map_err(WrongOption::Authorities)?;
        Ok(Self(Arc::new(Inner { rules, tls, timeout: Duration::from_millis(timeout_ms) })))
    }

    async fn dial(self, uri: Uri) -> Result<TokioIo<Conn>, DialError> {
        let inner = &*self.0;
        let opened = tokio::time::timeout(inner.timeout, inner.open(&uri)).await;
        opened.unwrap_or(Err(DialError::Timeout(inner.timeout.as_millis()))).map(TokioIo::new)
    }
}

impl Inner {
    async fn open(&self, uri: &Uri) -> Result<Conn, DialError> {
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let resolved = tokio::net::lookup_host((host, port)).await.map_err(DialError::Resolve)?;
        let mut last = DialError::Resolve(io::ErrorKind::NotFound.into());
        for address in resolved.take(ADDRESSES_MAX) {
            if !self.rules.permit(address.ip()) {
                last = DialError::Forbidden(address);
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream, is_tls.then_some(host)).await,
                Err(error) => last = DialError::Connect(error),
            }
        }
        Err(last)
    }

    async fn secure(&self, stream: TcpStream, tls_host: Option<&str>) -> Result<Conn, DialError> {
        stream.set_nodelay(true).map_err(DialError::Connect)?;
        let Some(host) = tls_host else { return Ok(Conn::Plain(stream)) };
        let no_name = |_| DialError::Tls(io::ErrorKind::InvalidInput.into());
        let name = ServerName::try_from(host.to_owned()).map_err(no_name)?;
        let stream = self.tls.connect(name, stream).await.map_err(DialError::Tls)?;
        Ok(Conn::Tls(Box::new(stream)))
    }
}

/// TLS 1.2 and 1.3 with ring; certificates are checked against the operator's authorities or the system's.
fn tls(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let bad = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
            let pem = std::fs::read(path).map_err(|error| bad(&error))?;
            for one in CertificateDer::pem_slice_iter(&pem) {
                roots.add(one.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
            }
            if roots.is_empty() {
                return Err(bad(&"it holds no certificate"));
            }
        }
        // A system without any can call executors by http:// all the same.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Conn>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Conn>, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}

/// An open connection.
pub(crate) enum Conn {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Conn {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
