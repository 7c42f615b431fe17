//! The options of a client. Every limit of this crate is here.

use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// The bytes of an answer at most: a full page of the archive.
pub(crate) const ANSWER_MAX_BYTES: usize = 16 << 20;
/// The longest wait between two attempts, whatever the server asks for: longer ones are the caller's decision.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// The first wait between two attempts, where the server says nothing; doubles.
pub(crate) const WAIT_FIRST: Duration = Duration::from_millis(25);

const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach a service.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientOptions {
    /// `https://host:port`, or `http://host:port`: 1 to 64. Calls use them in turn, and each further attempt uses
    /// another one. Default: `http://127.0.0.1:8080`.
    pub endpoints: Vec<String>,
    /// The bearer key of this service. Never shown. Either this, or a certificate.
    pub bearer_key: Option<String>,
    /// Certificates (PEM) that servers are checked against; needed for `https`.
    pub ca_file: Option<PathBuf>,
    /// This service's certificate chain (PEM), with `client_key_file`.
    pub client_cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub client_key_file: Option<PathBuf>,
    /// The name in the servers' certificates, where it is not the endpoints' host.
    pub server_name: Option<String>,
    /// Sends the bearer key over `http` to other machines too: where something else encrypts. Default `false`.
    pub key_in_plain_text: bool,
    /// How long making a connection may take. 1 to 60,000; default 500.
    pub connect_timeout_ms: u64,
    /// How long one attempt may take, connecting included. 1 to 60,000; default 1,000. For withdrawals rather more than
    /// the wallet waits for a payout, or its answer comes with a later attempt.
    pub attempt_timeout_ms: u64,
    /// The number of attempts of one call at most, the first included. 1 to 10; default 3.
    pub attempts: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:8080".into()],
            bearer_key: None,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            server_name: None,
            key_in_plain_text: false,
            connect_timeout_ms: 500,
            attempt_timeout_ms: 1_000,
            attempts: 3,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("endpoints", &self.endpoints)
            .field("bearer_key", &self.bearer_key.as_ref().map(|_| "redacted"))
            .field("ca_file", &self.ca_file)
            .field("client_cert_file", &self.client_cert_file)
            .field("server_name", &self.server_name)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("attempt_timeout_ms", &self.attempt_timeout_ms)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

/// A client could not be made. Nothing was connected yet.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range, or does not fit another. Correct it.
    #[error("option {0}")]
    Option(String),
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The files hold no certificate or key.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

impl ClientOptions {
    /// The first option that is wrong, with what is allowed.
    fn wrong(&self) -> Option<String> {
        let out_of = |name: &str, value: u64, low: u64, high: u64| {
            (!(low..=high).contains(&value)).then(|| format!("{name} = {value}: {low} to {high} is allowed"))
        };
        let endpoints = u64::try_from(self.endpoints.len()).unwrap_or(u64::MAX);
        if self.client_cert_file.is_some() != self.client_key_file.is_some() {
            return Some("client_cert_file and client_key_file come together".into());
        }
        out_of("endpoints: their number", endpoints, 1, 64)
            .or_else(|| out_of("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000))
            .or_else(|| out_of("attempt_timeout_ms", self.attempt_timeout_ms, 1, 60_000))
            .or_else(|| out_of("attempts", self.attempts.into(), 1, 10))
    }

    /// A channel to each endpoint, none of them connected yet. On a runtime.
    pub(crate) fn channels(&self) -> Result<Vec<Channel>, OpenError> {
        if let Some(wrong) = self.wrong() {
            return Err(OpenError::Option(wrong));
        }
        let tls = self.tls()?;
        self.endpoints.iter().map(|url| Ok(self.endpoint(url, tls.as_ref())?.connect_lazy())).collect()
    }

    /// The metadata that goes with every call.
    pub(crate) fn bearer(&self) -> Result<Option<MetadataValue<Ascii>>, OpenError> {
        let Some(key) = &self.bearer_key else { return Ok(None) };
        // The key itself stays out of the error.
        let mut value: MetadataValue<Ascii> = format!("Bearer {key}")
            .parse()
            .map_err(|_| OpenError::Option("bearer_key is not visible ASCII".into()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn endpoint(&self, url: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, OpenError> {
        let wrong = |why: &str| OpenError::Option(format!("endpoints: {url:?} {why}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| wrong(&error.to_string()))?;
        let uri = endpoint.uri().clone();
        let host = uri.host().ok_or_else(|| wrong("has no host"))?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_millis(self.connect_timeout_ms))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        match (uri.scheme_str(), tls) {
            (Some("https"), Some(tls)) => {
                endpoint.tls_config(tls.clone()).map_err(|error| OpenError::Tls(error.to_string()))
            }
            (Some("https"), None) => Err(wrong("needs ca_file")),
            (Some("http"), _) if self.client_cert_file.is_some() => {
                Err(wrong("shows no certificate; use https, or leave client_cert_file out"))
            }
            (Some("http"), _) => {
                if self.bearer_key.is_some() && !self.key_in_plain_text && !is_this_machine(host) {
                    return Err(wrong(
                        "would carry the key in plain text; use https, or set key_in_plain_text",
                    ));
                }
                Ok(endpoint)
            }
            _ => Err(wrong("is neither https:// nor http://")),
        }
    }

    fn tls(&self) -> Result<Option<ClientTlsConfig>, OpenError> {
        let Some(ca_file) = &self.ca_file else { return Ok(None) };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
        if let (Some(cert), Some(key)) = (&self.client_cert_file, &self.client_key_file) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        Ok(Some(tls))
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(|error| OpenError::Read { path: path.to_owned(), error })
}
