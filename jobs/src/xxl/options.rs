//! The options of client and server, and what may be wrong with them. All limits that an operator sets live here.

use super::rules::BadNetwork;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use windfall_edge::{ListenerLimits, OutOfRange, PlainTextRefused, TlsOptions, check_plaintext};

/// How executors are called.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientOptions {
    /// The time for a connection, with name resolution and TLS. 50 to 60,000, default 1,000; less than
    /// `call_timeout_ms`, so that a host which does not answer is known not to have the run.
    pub connect_timeout_ms: u64,
    /// The time from a connection's start to the whole answer, and for a free place before it. 100 to 300,000, default
    /// 3,000. An executor only queues a run before it answers.
    pub call_timeout_ms: u64,
    /// Calls at a time. 1 to 1,000,000, default 2,048.
    pub calls_max: usize,
    /// Calls at a time to one executor, so that one that hangs does not take all places. 1 to 100,000, default 128; a
    /// Java executor has 200 threads for them.
    pub calls_per_executor_max: usize,
    /// How long an unused connection is kept. 100 to 85,000, default 60,000: executors close theirs after 90 s.
    pub idle_timeout_ms: u64,
    /// The bytes of an answer that are read. 1 KiB to 16 MiB, default 64 KiB.
    pub answer_max_bytes: usize,
    /// The bytes of an answer with log lines that are read. 64 KiB to 256 MiB, default 16 MiB. The protocol gives all
    /// lines from one on, so the lines of a run that wrote more cannot be read.
    pub log_max_bytes: usize,
    /// Executors that are remembered. 1 to 1,000,000, default 20,000.
    pub executors_max: usize,
    /// A file with the certificate authorities for `https://` (PEM). None: the system's.
    pub ca_file: Option<PathBuf>,
}

/// Where executors register and report, and the limits.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Where it listens. Default 127.0.0.1:8080. Beyond loopback it needs `tls`, or `plaintext = true`.
    pub listen: SocketAddr,
    /// TLS 1.2 and 1.3; the files are followed. Executors are then told `https://…` as the scheduler's address, and trust its
    /// certificate by the authorities of their Java. Default: none.
    pub tls: Option<TlsOptions>,
    /// Lets it listen beyond loopback without TLS, where something else encrypts: access tokens and parameters of runs cross
    /// the network in the clear. Default false.
    pub plaintext: bool,
    /// The age of connections, and the bounds of those on which nobody has shown an access token.
    pub connections: ListenerLimits,
    /// Lets it listen beyond loopback without an access token. Whoever reaches it can then register executors, which get the
    /// parameters of runs, and report results. Default false.
    pub allow_without_token: bool,
    /// Connections; those beyond are closed at once. 1 to 1,000,000, default 20,000.
    pub connections_max: usize,
    /// The time for a request's head, and how long a connection may be idle. 100 to 3,600,000, default 75,000.
    pub idle_timeout_ms: u64,
    /// The time for a request's body, and for the caller to read its answer. 100 to 300,000, default 10,000.
    pub body_timeout_ms: u64,
    /// The bytes of one body. 64 KiB to 256 MiB, default 16 MiB. An executor reports all results that wait in one call,
    /// each with a message of up to 50,000 characters; it repeats a report that is refused as it was, for ever.
    pub body_max_bytes: usize,
    /// The bytes of all bodies in memory. At least `body_max_bytes`, default 256 MiB. A call beyond is told to come
    /// again.
    pub bodies_max_bytes: usize,
    /// The time for a registration or a report to be durable. 100 to 300,000, default 10,000. An executor waits 3 s and
    /// repeats a report after 30.
    pub admin_timeout_ms: u64,
}

/// What is wrong with an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongOption {
    /// A number is too small or too large.
    #[error("{key} is {value}, but only {least} to {most} is allowed")]
    OutOfRange {
        /// The option.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// An entry of the list of networks is none.
    #[error("allow: {0}")]
    Network(#[from] BadNetwork),
    /// The certificate authorities cannot be read.
    #[error("ca_file: {0}")]
    Authorities(String),
    /// Whoever reaches the address could register executors and report results.
    #[error(
        "listen is {0}, which others can reach; set an access token, listen on a loopback address, or set \
         allow_without_token: whoever reaches it can register executors and report results"
    )]
    NoToken(SocketAddr),
    /// A bound of connections is out of its range.
    #[error("connections.{0}")]
    Connections(OutOfRange),
    /// Access tokens and parameters would cross the network in the clear.
    #[error(transparent)]
    PlainText(#[from] PlainTextRefused),
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout_ms: 1_000,
            call_timeout_ms: 3_000,
            calls_max: 2_048,
            calls_per_executor_max: 128,
            idle_timeout_ms: 60_000,
            answer_max_bytes: 64 << 10,
            log_max_bytes: 16 << 20,
            executors_max: 20_000,
            ca_file: None,
        }
    }
}

impl ClientOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`WrongOption`] names the first one that is wrong.
    pub fn check(&self) -> Result<(), WrongOption> {
        let connect_most = 60_000.min(self.call_timeout_ms.saturating_sub(1));
        in_ranges(&[
            ("call_timeout_ms", self.call_timeout_ms, 100, 300_000),
            ("connect_timeout_ms", self.connect_timeout_ms, 50, connect_most),
            ("calls_max", self.calls_max as u64, 1, 1_000_000),
            ("calls_per_executor_max", self.calls_per_executor_max as u64, 1, 100_000),
            ("idle_timeout_ms", self.idle_timeout_ms, 100, 85_000),
            ("answer_max_bytes", self.answer_max_bytes as u64, 1 << 10, 16 << 20),
            ("log_max_bytes", self.log_max_bytes as u64, 64 << 10, 256 << 20),
            ("executors_max", self.executors_max as u64, 1, 1_000_000),
        ])
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            tls: None,
            plaintext: false,
            connections: ListenerLimits::default(),
            allow_without_token: false,
            connections_max: 20_000,
            idle_timeout_ms: 75_000,
            body_timeout_ms: 10_000,
            body_max_bytes: 16 << 20,
            bodies_max_bytes: 256 << 20,
            admin_timeout_ms: 10_000,
        }
    }
}

impl ServerOptions {
    /// Refuses to serve others than this machine without an access token, unless the options allow it by name.
    ///
    /// # Errors
    /// [`WrongOption::NoToken`].
    pub fn check_token(&self, has_token: bool) -> Result<(), WrongOption> {
        match has_token || self.allow_without_token || self.listen.ip().is_loopback() {
            true => Ok(()),
            false => Err(WrongOption::NoToken(self.listen)),
        }
    }

    /// Checks the ranges, and that nothing crosses the network in the clear unless the options allow it by name.
    ///
    /// # Errors
    /// [`WrongOption`] names the first one that is wrong.
    pub fn check(&self) -> Result<(), WrongOption> {
        self.connections.check().map_err(WrongOption::Connections)?;
        check_plaintext("listen", self.listen, self.tls.is_some(), self.plaintext)?;
        in_ranges(&[
            ("connections_max", self.connections_max as u64, 1, 1_000_000),
            ("idle_timeout_ms", self.idle_timeout_ms, 100, 3_600_000),
            ("body_timeout_ms", self.body_timeout_ms, 100, 300_000),
            ("body_max_bytes", self.body_max_bytes as u64, 64 << 10, 256 << 20),
            ("bodies_max_bytes", self.bodies_max_bytes as u64, self.body_max_bytes as u64, 1 << 40),
            ("admin_timeout_ms", self.admin_timeout_ms, 100, 300_000),
        ])
    }
}

fn in_ranges(ranges: &[(&'static str, u64, u64, u64)]) -> Result<(), WrongOption> {
    for &(key, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            return Err(WrongOption::OutOfRange { key, value, least, most });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_a_connection_takes_less_than_a_call() {
        assert_eq!(ClientOptions::default().check(), Ok(()));
        assert_eq!(ServerOptions::default().check(), Ok(()));
        let slow = ClientOptions { connect_timeout_ms: 3_000, ..ClientOptions::default() };
        let wrong = slow.check().unwrap_err().to_string();
        assert_eq!(wrong, "connect_timeout_ms is 3000, but only 50 to 2999 is allowed");
        let small = ServerOptions { bodies_max_bytes: 1 << 20, ..ServerOptions::default() };
        assert!(small.check().is_err());
        assert!(serde_json::from_str::<ClientOptions>(r#"{"calls":1}"#).is_err());
        let read: ServerOptions = serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).unwrap();
        assert_eq!(read.connections_max, 20_000);
    }

    #[test]
    fn without_a_token_others_are_served_only_where_the_options_allow_it_by_name() {
        let at =
            |address: [u8; 4]| ServerOptions { listen: (address, 7780).into(), ..ServerOptions::default() };
        assert_eq!(at([127, 0, 0, 1]).check_token(false), Ok(()));
        for others in [[0, 0, 0, 0], [10, 0, 0, 7]] {
            assert_eq!(at(others).check_token(true), Ok(()));
            let refused = at(others).check_token(false).unwrap_err();
            assert_eq!(refused, WrongOption::NoToken((others, 7780).into()));
            assert!(refused.to_string().contains("set an access token"), "{refused}");
            assert!(refused.to_string().contains("allow_without_token"), "{refused}");
            let allowed = ServerOptions { allow_without_token: true, ..at(others) };
            assert_eq!(allowed.check_token(false), Ok(()));
        }
    }

    #[test]
    fn beyond_this_machine_it_needs_tls_or_leave_by_name() {
        let open = ServerOptions { listen: ([10, 0, 0, 7], 7780).into(), ..ServerOptions::default() };
        let refused = open.check().unwrap_err().to_string();
        assert!(refused.starts_with("listen 10.0.0.7:7780 is not on this machine"), "{refused}");
        let tls = TlsOptions {
            cert_file: "cert.pem".into(),
            key_file: "key.pem".into(),
            client_ca_file: None,
            client_crl_file: None,
            client_cert_required: false,
        };
        let encrypted = ServerOptions { tls: Some(tls), ..open.clone() };
        assert_eq!(encrypted.check(), Ok(()));
        assert_eq!(ServerOptions { plaintext: true, ..open }.check(), Ok(()));
        let both = ServerOptions { plaintext: true, ..encrypted }.check();
        assert_eq!(both, Err(WrongOption::PlainText(PlainTextRefused::Contradiction)));
        let connections = ListenerLimits { unauthenticated_calls_max: 0, ..ListenerLimits::default() };
        let wrong =
            ServerOptions { connections, ..ServerOptions::default() }.check().unwrap_err().to_string();
        assert!(wrong.starts_with("connections.unauthenticated_calls_max is 0"), "{wrong}");
    }
}
