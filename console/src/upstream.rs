//! The services that the console calls, by the APIs that everybody calls: over TCP, with TLS or without, or in this process.

use crate::options::{ANSWER_BYTES_MAX, METRICS_BYTES_MAX, OptionError, SCRAPE_TIMEOUT, ServiceAt};
use crate::samples::followed_lines;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use windfall_edge::LocalCalls;
use zeroize::Zeroizing;

/// The header by which a front end names a user.
const USER: &str = "x-windfall-user";

/// A process that the console calls.
pub(crate) struct Upstream {
    pub(crate) name: String,
    route: Route,
    timeout: Duration,
    /// The paths that it serves; none before it has said, and for this process, which is asked for everything.
    paths: Mutex<Option<Arc<HashSet<String>>>>,
}

enum Route {
    Local(OnceLock<LocalCalls>),
    Remote(Remote),
}

struct Remote {
    host: String,
    port: u16,
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A call of a service.
pub(crate) struct Asked<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) key: &'a str,
    /// The user that it is about, where the caller names one.
    pub(crate) user: Option<&'a str>,
    pub(crate) body: Bytes,
}

/// What a service answered.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// A call that has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was sent.
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, io::Error),
    /// It may have been done.
    #[error(
        "{0} did not answer in time: whether the call took effect is not known; look before you ask again"
    )]
    TimedOut(String),
    /// It may have been done.
    #[error(
        "the answer of {0} broke off: whether the call took effect is not known; look before you ask again"
    )]
    Broken(String),
    /// It was done.
    #[error("the answer of {0} is too long for the console")]
    TooLong(String),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Upstream {
    /// This process, whose server is named later, by [`Upstream::attach`].
    pub(crate) fn local(name: &str, timeout: Duration) -> Self {
        Self { name: name.into(), route: Route::Local(OnceLock::new()), timeout, paths: Mutex::default() }
    }

    /// Another process.
    pub(crate) fn remote(at: &ServiceAt, timeout: Duration) -> Result<Self, OptionError> {
        let instead = "use https, or set key_in_plain_text where something else encrypts";
        Self::by_itself(at, timeout, instead)
            .map_err(|what| OptionError::Wrong(format!("services.{}: {what}", at.name)))
    }

    pub(crate) fn attach(&self, calls: &LocalCalls) {
        if let Route::Local(own) = &self.route {
            own.get_or_init(|| calls.clone());
        }
    }

    /// Whether it is this process.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.route, Route::Local(_))
    }

    /// Whether it serves a path, as far as is known.
    pub(crate) fn serves(&self, path: &str) -> bool {
        match (&self.route, &*self.paths.lock()) {
            (Route::Local(_), _) => true,
            (Route::Remote(_), paths) => paths.as_ref().is_some_and(|paths| paths.contains(path)),
        }
    }

    /// Whether it has said which paths it serves. This process is not asked.
    pub(crate) fn is_known(&self) -> bool {
        self.paths.lock().is_some()
    }

    /// Asks for the paths that it serves.
    pub(crate) async fn learn_paths(&self, key: &str) -> Result<(), CallError> {
        let asked = Asked { method: Method::GET, path: "/openapi.json", key, user: None, body: Bytes::new() };
        let called = self.call(asked).await?;
        let document: serde_json::Value = serde_json::from_slice(&called.body).unwrap_or_default();
        // What it said before stays where it says nothing.
        if let Some(paths) = document["paths"].as_object() {
            *self.paths.lock() = Some(Arc::new(paths.keys().cloned().collect()));
        }
        Ok(())
    }

    /// The same for [`Reader`](crate::Reader). `instead` is what to do where keys would go in the clear.
    pub(crate) fn by_itself(at: &ServiceAt, timeout: Duration, instead: &str) -> Result<Self, String> {
        let route = Route::Remote(Remote::new(at, instead)?);
        Ok(Self { name: at.name.clone(), route, timeout, paths: Mutex::default() })
    }

    /// Those of its metrics that the console follows, in Prometheus' text.
    pub(crate) async fn metrics(&self, key: &str) -> Result<String, String> {
        let asked = Asked { method: Method::GET, path: "/metrics", key, user: None, body: Bytes::new() };
        let scraping = tokio::time::timeout(SCRAPE_TIMEOUT, self.call_up_to(asked, METRICS_BYTES_MAX));
        let called =
            scraping.await.map_err(|_| format!("no metrics within {} s", SCRAPE_TIMEOUT.as_secs()))?;
        let called = called.map_err(|error| error.to_string())?;
        if called.status != StatusCode::OK {
            return Err(format!(
                "it answers {} to /metrics; the console's key needs the role observe",
                called.status
            ));
        }
        let text = std::str::from_utf8(&called.body).map_err(|_| "its metrics are not text")?;
        Ok(followed_lines(text))
    }

    /// Calls it.
    pub(crate) async fn call(&self, asked: Asked<'_>) -> Result<Called, CallError> {
        self.call_up_to(asked, ANSWER_BYTES_MAX).await
    }

    /// Calls it, and takes no more than so many bytes of its answer.
    pub(crate) async fn call_up_to(&self, asked: Asked<'_>, bytes_max: usize) -> Result<Called, CallError> {
        let unreachable = |error| CallError::Unreachable(self.name.clone(), error);
        let connecting = tokio::time::timeout(self.timeout, self.route.connect()).await;
        let stream =
            connecting.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?.map_err(unreachable)?;
        let request = self.request(asked).map_err(|error| unreachable(io::Error::other(error)))?;
        let exchange = exchange(stream, request, bytes_max);
        match tokio::time::timeout(self.timeout, exchange).await {
            Err(_) => Err(CallError::TimedOut(self.name.clone())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(CallError::TooLong(self.name.clone())),
            Ok(Err(error)) => {
                tracing::debug!(service = self.name, %error, "a call of the console broke off");
                Err(CallError::Broken(self.name.clone()))
            }
            Ok(Ok(called)) => Ok(called),
        }
    }

    fn request(&self, asked: Asked<'_>) -> Result<Request<Full<Bytes>>, http::Error> {
        let authority = match &self.route {
            Route::Local(_) => "localhost",
            Route::Remote(remote) => &remote.authority,
        };
        let bearer = Zeroizing::new(format!("Bearer {}", asked.key));
        let mut bearer = HeaderValue::from_str(&bearer)?;
        bearer.set_sensitive(true);
        let mut request = Request::builder()
            .method(asked.method)
            .uri(asked.path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, bearer);
        if let Some(user) = asked.user {
            request = request.header(USER, user);
        }
        request.body(Full::new(asked.body))
    }
}

impl Route {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Local(calls) => match calls.get().and_then(LocalCalls::connect) {
                Some(stream) => Ok(Box::new(stream)),
                None => Err(io::ErrorKind::NotConnected.into()),
            },
            Self::Remote(remote) => {
                let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await?;
                stream.set_nodelay(true)?;
                match &remote.tls {
                    None => Ok(Box::new(stream)),
                    Some((tls, name)) => Ok(Box::new(tls.connect(name.clone(), stream).await?)),
                }
            }
        }
    }
}

impl Remote {
    fn new(at: &ServiceAt, instead: &str) -> Result<Self, String> {
        let uri: Uri = at.url.parse().map_err(|_| format!("{} is no URL", at.url))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("the url must begin with https:// or http://".into()),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err("the url must be a host and a port alone".into());
        }
        let (Some(authority), Some(host)) = (uri.authority(), uri.host()) else {
            return Err("the url has no host".into());
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !is_tls && !is_here && !at.key_in_plain_text {
            return Err(format!("keys would cross the network in the clear; {instead}"));
        }
        let tls = match is_tls {
            true => Some((
                TlsConnector::from(Arc::new(tls_config(at.ca_file.as_deref())?)),
                ServerName::try_from(at.server_name.clone().unwrap_or_else(|| host.clone()))
                    .map_err(|error| error.to_string())?,
            )),
            false => None,
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { host, port, authority: authority.to_string(), tls })
    }
}

fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let bad = |error: &dyn std::fmt::Display| format!("ca_file {}: {error}", path.display());
            for one in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
                roots.add(one.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err("there are no certificate authorities; name a ca_file".into());
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// One request and its answer, on a connection of their own.
async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<Called, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut asking = std::pin::pin!(async move {
        let answer = sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, bytes_max).collect().await?.to_bytes();
        Ok(Called { status: head.status, body })
    });
    tokio::select! {
        done = &mut asking => done,
        // The answer may have come whole before the end of the connection.
        _ended = connection => asking.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_leave_the_machine_in_the_clear() {
        let at = |url: &str, key_in_plain_text| ServiceAt {
            name: "a".into(),
            url: url.into(),
            ca_file: None,
            server_name: None,
            key_in_plain_text,
        };
        let check = |at: &ServiceAt| Remote::new(at, "").map(|remote| (remote.host, remote.port));
        assert_eq!(check(&at("http://127.0.0.1:8080", false)).unwrap(), ("127.0.0.1".into(), 8080));
        assert_eq!(check(&at("http://[::1]:8080", false)).unwrap(), ("::1".into(), 8080));
        assert_eq!(check(&at("http://10.0.0.1", true)).unwrap(), ("10.0.0.1".into(), 80));
        for (url, named) in [
            ("http://10.0.0.1:8080", "in the clear"),
            ("http://localhost.example.com:1", "in the clear"),
            ("ftp://127.0.0.1", "https://"),
            ("127.0.0.1:8080", "https://"),
            ("http://127.0.0.1/path", "alone"),
        ] {
            let refused = Remote::new(&at(url, false), "").err().unwrap();
            assert!(refused.contains(named), "{url}: {refused}");
        }
    }
}
