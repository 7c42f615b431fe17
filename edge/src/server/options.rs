//! The options of a server, all in one place, and checked once.

use super::newcomers::PeerNet;
use crate::body::BodyLimits;
use crate::pipeline::Limits;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A server's address, and its limits.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeOptions {
    /// Where to listen. Default: 127.0.0.1:8080. Beyond loopback it needs `tls`, or `plaintext = true`.
    pub listen: SocketAddr,
    /// TLS 1.2 and 1.3. Default: none.
    pub tls: Option<TlsOptions>,
    /// Lets it listen beyond loopback without `tls`, where something else encrypts: keys cross the network in the clear.
    /// Default: false.
    pub plaintext: bool,
    /// The bytes of a request's body at most. 1 KiB to 64 MiB, default 4 MiB.
    pub body_bytes_max: usize,
    /// The bytes of all request bodies in memory together. At least one body; default 256 MiB. The messages that are
    /// parsed from them take a few times that.
    pub bodies_bytes_max: usize,
    /// The bytes of a request's headers and path at most. 4 KiB to 256 KiB, default 32 KiB.
    pub header_bytes_max: usize,
    /// The number of a request's headers at most. 16 to 1,000, default 64.
    pub headers_max: usize,
    /// The time-out of the TLS handshake and of a request's headers, and how long an HTTP/1 connection may be idle. 10
    /// to 300,000, default 15,000.
    pub header_timeout_ms: u64,
    /// The time-out of a whole request body. 10 to 300,000, default 10,000.
    pub body_timeout_ms: u64,
    /// The time-out of the service's answer; a gRPC caller's own deadline counts where it is sooner. 10 to 300,000,
    /// default 30,000.
    pub request_timeout_ms: u64,
    /// How long an HTTP/2 connection may be without a call. 1,000 to 3,600,000, default 300,000.
    pub idle_timeout_ms: u64,
    /// The number of connections. Beyond it a connection without an authenticated call is closed for a new one; where
    /// there is none, the new one is closed at once. 1 to 1,000,000, default 4,096.
    pub connections_max: usize,
    /// The number of connections on which no call has been authenticated yet; each takes up to 350 KiB. Beyond it,
    /// the oldest of the address with the most is closed for a new one. 1 to 1,000,000, default 256.
    pub unauthenticated_connections_max: usize,
    /// The number of such connections of one address (IPv6: of one /64). Beyond it, the oldest of them is closed for
    /// a new one. The default is the half of all, so that no address takes all, and that a proxy in front, which is
    /// the address of all its callers, has room. 1 to 1,000,000, default 128.
    pub unauthenticated_connections_per_peer_max: usize,
    /// The addresses and networks that have no limit of their own, such as proxies in front. Default: none.
    pub trusted_peers: Vec<PeerNet>,
    /// The number of calls in a row without a valid key, after which their connection is closed. 1 to 1,000,000,
    /// default 100.
    pub unauthenticated_calls_max: u32,
    /// How old a connection becomes. It is then closed in order (GOAWAY; `connection: close`), and calls in flight
    /// are answered; the ages are spread over the last tenth. 1,000 to 604,800,000, default 3,600,000.
    pub connection_age_max_ms: u64,
    /// The number of calls at once on one HTTP/2 connection. 1 to 10,000, default 256.
    pub streams_max: u32,
    /// The number of calls in flight over all connections. Those beyond get UNAVAILABLE at once. 1 to 1,000,000,
    /// default 2,048.
    pub calls_max: usize,
    /// Whether anyone may ask for health. Default: only this machine, and callers with a key.
    pub health_open: bool,
    /// How long calls in flight may take when the server stops. 0 to 600,000, default 20,000.
    pub stop_timeout_ms: u64,
}

/// The files of the certificates, PEM. They are checked every 10 seconds: renewed ones are in force for new
/// connections, unusable ones change nothing and are counted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsOptions {
    /// The server's certificate, with its chain.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The authorities of the callers' certificates. Without it, callers can only use keys.
    pub client_ca_file: Option<PathBuf>,
    /// The revocation lists of these authorities (CRL), PEM: one of each authority in a caller's chain, or its
    /// certificates are refused. A connection whose certificate a new list names is cut. A list that is out of date
    /// stays in force. Default: nothing is revoked.
    pub client_crl_file: Option<PathBuf>,
    /// Whether a connection without a client certificate is refused. Default: false, so that callers may have keys.
    #[serde(default)]
    pub client_cert_required: bool,
}

/// An option is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}; it must be between {least} and {most}")]
pub struct OutOfRange {
    key: &'static str,
    value: u64,
    least: u64,
    most: u64,
}

impl OutOfRange {
    /// Checks each key's value against the least and the most that it may be.
    pub(super) fn check(ranges: &[(&'static str, u64, u64, u64)]) -> Result<(), Self> {
        for &(key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(Self { key, value, least, most });
            }
        }
        Ok(())
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            tls: None,
            plaintext: false,
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 256 << 20,
            header_bytes_max: 32 << 10,
            headers_max: 64,
            header_timeout_ms: 15_000,
            body_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            idle_timeout_ms: 300_000,
            connections_max: 4_096,
            unauthenticated_connections_max: 256,
            unauthenticated_connections_per_peer_max: 128,
            trusted_peers: Vec::new(),
            unauthenticated_calls_max: 100,
            connection_age_max_ms: 3_600_000,
            streams_max: 256,
            calls_max: 2_048,
            health_open: false,
            stop_timeout_ms: 20_000,
        }
    }
}

impl ServeOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first key that is.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let ranges = [
            ("body_bytes_max", self.body_bytes_max as u64, 1 << 10, 64 << 20),
            ("bodies_bytes_max", self.bodies_bytes_max as u64, self.body_bytes_max as u64, 1 << 40),
            ("header_bytes_max", self.header_bytes_max as u64, 4 << 10, 256 << 10),
            ("headers_max", self.headers_max as u64, 16, 1_000),
            ("header_timeout_ms", self.header_timeout_ms, 10, 300_000),
            ("body_timeout_ms", self.body_timeout_ms, 10, 300_000),
            ("request_timeout_ms", self.request_timeout_ms, 10, 300_000),
            ("idle_timeout_ms", self.idle_timeout_ms, 1_000, 3_600_000),
            ("connections_max", self.connections_max as u64, 1, 1_000_000),
            ("unauthenticated_connections_max", self.unauthenticated_connections_max as u64, 1, 1_000_000),
            (
                "unauthenticated_connections_per_peer_max",
                self.unauthenticated_connections_per_peer_max as u64,
                1,
                1_000_000,
            ),
            ("unauthenticated_calls_max", u64::from(self.unauthenticated_calls_max), 1, 1_000_000),
            ("connection_age_max_ms", self.connection_age_max_ms, 1_000, 604_800_000),
            ("streams_max", u64::from(self.streams_max), 1, 10_000),
            ("calls_max", self.calls_max as u64, 1, 1_000_000),
            ("stop_timeout_ms", self.stop_timeout_ms, 0, 600_000),
        ];
        OutOfRange::check(&ranges)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            header_bytes_max: self.header_bytes_max,
            headers_max: self.headers_max,
            body: BodyLimits {
                bytes_max: self.body_bytes_max,
                timeout: Duration::from_millis(self.body_timeout_ms),
            },
            bodies_bytes_max: self.bodies_bytes_max,
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            calls_max: self.calls_max,
            is_health_open: self.health_open,
            has_certificates: self.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_a_range_is_named() {
        assert_eq!(ServeOptions::default().check(), Ok(()));
        let wrong = ServeOptions { streams_max: 0, ..Default::default() };
        assert_eq!(
            wrong.check().unwrap_err().to_string(),
            "streams_max is 0; it must be between 1 and 10000"
        );
    }
}
