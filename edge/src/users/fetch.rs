//! One bounded GET request, for the users' keys.

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The time-out of the whole exchange, from the look-up of the name to the last byte.
const TIMEOUT: Duration = Duration::from_secs(3);
const BODY_BYTES_MAX: usize = 256 << 10;

/// Gets one address.
pub(crate) struct Fetcher {
    host: String,
    port: u16,
    request_target: String,
    authority: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Why a fetch failed. The last keys stay in use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("no connection: {0}")]
    Connect(#[from] std::io::Error),
    #[error("broken exchange: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("no request can be made: {0}")]
    Request(#[from] http::Error),
    #[error("answered {0}; redirects are not followed")]
    Status(http::StatusCode),
    #[error("the body is broken or longer than {BODY_BYTES_MAX} bytes")]
    Body,
}

/// Checks an address: it must be `https`, or `http` to this machine, with a host and nothing secret in it.
pub(crate) fn check_url(url: &str) -> Result<Uri, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "is no address; give https://host/path")?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("has no host; give https://host/path")?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("has a user in it; give https://host/path");
    }
    let is_local = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if is_local => Ok(uri),
        _ => Err("is not https: whoever sits on the way could hand us keys; give https://host/path"),
    }
}

impl Fetcher {
    pub(crate) fn new(url: Uri, ca_file: Option<&Path>) -> Result<Self, String> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_tls = url.scheme_str() == Some("https");
        let tls = if is_tls {
            let name = ServerName::try_from(host.clone()).map_err(|error| format!("jwks_url: {error}"))?;
            Some((connector(ca_file)?, name))
        } else {
            None
        };
        let authority = url.authority().map_or("", |authority| authority.as_str());
        Ok(Self {
            port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            request_target: url.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            authority: HeaderValue::from_str(authority).map_err(|error| format!("jwks_url: {error}"))?,
            host,
            tls,
        })
    }

    pub(crate) async fn get(&self) -> Result<Bytes, FetchError> {
        tokio::time::timeout(TIMEOUT, self.connect_and_get()).await.map_err(|_| FetchError::Timeout)?
    }

    async fn connect_and_get(&self) -> Result<Bytes, FetchError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            Some((connector, name)) => self.exchange(connector.connect(name.clone(), stream).await?).await,
            None => self.exchange(stream).await,
        }
    }

    async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<Bytes, FetchError> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(self.request_target.as_str())
            .header(header::HOST, self.authority.clone())
            .header(header::ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            if response.status() != http::StatusCode::OK {
                return Err(FetchError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
            body.map(|body| body.to_bytes()).map_err(|_| FetchError::Body)
        };
        let mut exchange = std::pin::pin!(exchange);
        // Both here, in one task: nothing outlives the fetch.
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = connection => {
                ended?;
                exchange.await
            }
        }
    }
}

fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| format!("jwks_ca_file {}: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
    }
    if roots.is_empty() {
        return Err("no certificate to check jwks_url's server against; give jwks_ca_file".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_by_https_or_from_this_machine() {
        for good in ["https://id.example/jwks", "http://127.0.0.1:9/k", "http://[::1]:9/k", "https://h:8443"]
        {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/jwks", "ftp://h/x", "https://user@h/x", "/jwks", "", "file:///etc/x"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
