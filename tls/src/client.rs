//! Connections by rustls, with ring.
//!
//! The files are read anew for each connection, so certificates are renewed without a restart.

use crate::explain::explain;
use crate::options::{TlsError, TlsOptions, read, wrong};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A connection that TLS protects.
pub struct TlsStream<S> {
    stream: tokio_rustls::client::TlsStream<S>,
    refusal: Refusal,
}

/// What the server said by TLS after the handshake, where it refused the connection only then: TLS 1.3 looks at the client's
/// certificate when the client has finished. For users whose own errors lose it.
#[derive(Debug, Clone, Default)]
pub struct Refusal(Arc<OnceLock<String>>);

impl Refusal {
    /// The refusal, where there is one.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl<S> TlsStream<S> {
    /// What the server will say, where it refuses the connection.
    pub fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, to);
        if let Poll::Ready(Err(error)) = &read
            && let Some(said) = explain(error)
        {
            self.refusal.0.get_or_init(|| said);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
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
}

/// A connection could not be protected.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// A file cannot be used, or the server's name.
    #[error(transparent)]
    Options(#[from] TlsError),
    /// The server is not to be trusted, refuses this client, or speaks no TLS. It does not pass by itself.
    #[error("{0}")]
    Refused(String),
    /// The connection was lost meanwhile.
    #[error("the connection was lost during the TLS handshake: {0}")]
    Lost(io::Error),
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Lost(error) => error,
            other => Self::other(other),
        }
    }
}

impl TlsOptions {
    /// Protects a connection to `host`. The caller limits its time.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.name(host)?;
        let own = self.clone();
        let config = tokio::task::spawn_blocking(move || own.config());
        let config = config.await.map_err(|error| HandshakeError::Lost(io::Error::other(error)))??;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        match connecting.await {
            Ok(stream) => Ok(TlsStream { stream, refusal: Refusal::default() }),
            Err(error) => Err(match explain(&error) {
                Some(said) => HandshakeError::Refused(said),
                None => HandshakeError::Lost(error),
            }),
        }
    }

    /// Why the server at an address (`host:port`) cannot be spoken to by TLS, for clients whose own errors lose it. Connects,
    /// and waits for what the server has to say after the handshake. `None` where nothing is wrong with TLS, and where that is
    /// not known within this time.
    pub async fn probe(&self, address: &str, within: Duration) -> Option<String> {
        let probe = async {
            let stream = TcpStream::connect(address).await.ok()?;
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            match self.connect(host, stream).await {
                Ok(mut stream) => {
                    // An error says what is asked for, and all else says nothing.
                    stream.read(&mut [0]).await.err().and_then(|error| explain(&error))
                }
                Err(HandshakeError::Lost(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Some("it hung up during the handshake; check that this port takes TLS".into())
                }
                Err(HandshakeError::Lost(_)) => None,
                Err(refused) => Some(refused.to_string()),
            }
        };
        tokio::time::timeout(within, probe).await.ok().flatten()
    }

    /// The settings of a connection: the files as they are now. Blocks.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn config(&self) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unusable(error.to_string()))?
            .with_root_certificates(self.authorities()?);
        match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => {
                let chain = certificates("cert_file", cert)?;
                let text = read("key_file", key)?;
                let key =
                    PrivateKeyDer::from_pem_slice(&text).map_err(|error| wrong("key_file", key, &error))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| TlsError::Unusable(error.to_string()))
            }
            (None, None) => Ok(builder.with_no_client_auth()),
            _ => Err(TlsError::Pair),
        }
    }

    /// The name that the certificate of a server at `host` must bear.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let bare = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name);
        ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))
    }

    fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.ca_file {
            Some(path) => {
                for certificate in certificates("ca_file", path)? {
                    roots.add(certificate).map_err(|error| wrong("ca_file", path, &error))?;
                }
            }
            // What of them cannot be read is not trusted, and the rest is.
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        if roots.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(roots) }
    }
}

fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(option, path)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| wrong(option, path, &error))?;
    if all.is_empty() { Err(wrong(option, path, &"holds no certificate in PEM")) } else { Ok(all) }
}
