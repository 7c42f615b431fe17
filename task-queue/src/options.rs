//! The options of the API, and what may be wrong with them. All limits of the API live here.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use windfall_edge::{ListenerLimits, OutOfRange, PlainTextRefused, TlsOptions, check_plaintext};

/// The jobs of one bulk call at most.
pub const BULK_JOBS_MAX: usize = 64;
/// The jobs of one call that consumes at most.
pub const CONSUME_COUNT_MAX: u64 = 100;
/// The queues that one call consumes from at most.
pub const CONSUME_QUEUES_MAX: usize = 32;
/// The attributes of a job at most; a job with more is refused.
pub const ATTRIBUTES_MAX: usize = 16;
/// The bytes of an attribute's name at most; the rest is cut.
pub const ATTRIBUTE_KEY_MAX_BYTES: usize = 32;
/// The bytes of an attribute's value at most; the rest is cut.
pub const ATTRIBUTE_VALUE_MAX_BYTES: usize = 128;
/// The fewest characters of a token that its maker chooses.
pub const TOKEN_MIN_BYTES: usize = 20;
/// The most characters of a token, and of its description.
pub const TOKEN_MAX_BYTES: usize = 256;

/// Where the API listens, and its limits.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiOptions {
    /// Where the queue API listens. Default 127.0.0.1:7777. Beyond loopback it needs `tls`, or `plaintext = true`.
    pub listen: SocketAddr,
    /// Where the admin API listens. Default 127.0.0.1:7778. The same holds for it.
    pub admin_listen: SocketAddr,
    /// TLS 1.2 and 1.3, for both APIs; the files are followed. Default: none.
    pub tls: Option<TlsOptions>,
    /// Lets both APIs listen beyond loopback without TLS, where something else encrypts: tokens and passwords cross the network
    /// in the clear. Default false.
    pub plaintext: bool,
    /// The age of connections, and the bounds of those on which nobody has shown a token or an account. Each API has them for
    /// itself.
    pub connections: ListenerLimits,
    /// Passwords by name for the admin API (basic authentication). None: whoever reaches the address may use it, which
    /// only a loopback address allows. They are never shown.
    pub accounts: BTreeMap<String, String>,
    /// Connections of the queue API; those beyond are closed at once. 1 to 1,000,000, default 20,000. The admin API has 64 of
    /// its own.
    pub connections_max: usize,
    /// The time for a request's head, and how long a connection may be idle; up to two seconds more. 100 to 3,600,000, default
    /// 75,000.
    pub idle_timeout_ms: u64,
    /// The time for a request's body, and for the caller to read its answer. 100 to 300,000, default 30,000.
    pub body_timeout_ms: u64,
    /// The bytes of all request bodies in memory, and as many again of answers to consumers. At least 16 MiB, default 256 MiB.
    /// A call beyond is told to come again (503).
    pub bodies_bytes_max: usize,
    /// The bytes of one bulk call. 1 MiB to 64 MiB, default 16 MiB.
    pub bulk_bytes_max: usize,
    /// Consumers that wait for a job at a time, of each pool. 1 to 1,000,000, default 10,000. One more is told to come
    /// again (503).
    pub polls_max: usize,
    /// The same with one token in one namespace. Default 2,000. One more is told to come again (429).
    pub polls_of_token_max: usize,
    /// The longest poll in seconds; a longer timeout is cut to it. 1 to 3,600, default 600.
    pub poll_max_s: u32,
    /// Queues of each pool that the metrics show by name, those that are used first; the rest is counted together, and what
    /// waits in it is not shown. One that was empty and unused for five minutes makes room for another. 0 to 10,000, default
    /// 200.
    pub metrics_queues_max: usize,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7777).into(),
            admin_listen: (Ipv4Addr::LOCALHOST, 7778).into(),
            tls: None,
            plaintext: false,
            connections: ListenerLimits::default(),
            accounts: BTreeMap::new(),
            connections_max: 20_000,
            idle_timeout_ms: 75_000,
            body_timeout_ms: 30_000,
            bodies_bytes_max: 256 << 20,
            bulk_bytes_max: 16 << 20,
            polls_max: 10_000,
            polls_of_token_max: 2_000,
            poll_max_s: 600,
            metrics_queues_max: 200,
        }
    }
}

impl std::fmt::Debug for ApiOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiOptions")
            .field("listen", &self.listen)
            .field("admin_listen", &self.admin_listen)
            .field("accounts", &self.accounts.len())
            .finish_non_exhaustive()
    }
}

/// An option cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongOption {
    /// It is out of its range.
    #[error("{key} is {value}, but only {least} to {most} is allowed")]
    OutOfRange {
        /// Which option.
        key: &'static str,
        /// What it is.
        value: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// The admin API would be open to the network.
    #[error(
        "admin_listen is {0}, which others can reach; name accounts, or listen on a loopback address: whoever reaches \
         the admin API can read all tokens"
    )]
    OpenAdmin(SocketAddr),
    /// A bound of connections is out of its range.
    #[error("connections.{0}")]
    Connections(OutOfRange),
    /// Tokens and passwords would cross the network in the clear.
    #[error(transparent)]
    PlainText(#[from] PlainTextRefused),
}

impl ApiOptions {
    /// Checks them.
    ///
    /// # Errors
    /// [`WrongOption`] names the first one that is wrong.
    pub fn check(&self) -> Result<(), WrongOption> {
        let ranges: [(&'static str, u64, u64, u64); 9] = [
            ("connections_max", self.connections_max as u64, 1, 1_000_000),
            ("idle_timeout_ms", self.idle_timeout_ms, 100, 3_600_000),
            ("body_timeout_ms", self.body_timeout_ms, 100, 300_000),
            ("bodies_bytes_max", self.bodies_bytes_max as u64, 16 << 20, 1 << 40),
            ("bulk_bytes_max", self.bulk_bytes_max as u64, 1 << 20, 64 << 20),
            ("polls_max", self.polls_max as u64, 1, 1_000_000),
            ("polls_of_token_max", self.polls_of_token_max as u64, 1, 1_000_000),
            ("poll_max_s", self.poll_max_s.into(), 1, 3_600),
            ("metrics_queues_max", self.metrics_queues_max as u64, 0, 10_000),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(WrongOption::OutOfRange { key, value, least, most });
            }
        }
        if self.accounts.is_empty() && !self.admin_listen.ip().is_loopback() {
            return Err(WrongOption::OpenAdmin(self.admin_listen));
        }
        self.connections.check().map_err(WrongOption::Connections)?;
        for (option, address) in [("listen", self.listen), ("admin_listen", self.admin_listen)] {
            check_plaintext(option, address, self.tls.is_some(), self.plaintext)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_an_admin_api_without_accounts_stays_at_home() {
        assert_eq!(ApiOptions::default().check(), Ok(()));
        let admin_listen = SocketAddr::from(([0, 0, 0, 0], 7778));
        let open = ApiOptions { admin_listen, ..ApiOptions::default() };
        assert_eq!(open.check(), Err(WrongOption::OpenAdmin(admin_listen)));
        let accounts = BTreeMap::from([("ops".to_owned(), "secret".to_owned())]);
        let closed = ApiOptions { accounts, plaintext: true, ..open };
        assert_eq!(closed.check(), Ok(()));
        assert!(!format!("{closed:?}").contains("secret"));
        let wrong = ApiOptions { poll_max_s: 0, ..ApiOptions::default() };
        assert_eq!(wrong.check().unwrap_err().to_string(), "poll_max_s is 0, but only 1 to 3600 is allowed");
        let connections = ListenerLimits { header_timeout_ms: 9, ..ListenerLimits::default() };
        let wrong = ApiOptions { connections, ..ApiOptions::default() }.check().unwrap_err().to_string();
        assert!(wrong.starts_with("connections.header_timeout_ms is 9"), "{wrong}");
    }

    #[test]
    fn beyond_this_machine_an_api_needs_tls_or_leave_by_name() {
        let others = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        let accounts = BTreeMap::from([("ops".to_owned(), "secret".to_owned())]);
        let queue = ApiOptions { listen: others(7777), ..ApiOptions::default() };
        let admin = ApiOptions { admin_listen: others(7778), accounts, ..ApiOptions::default() };
        let tls = TlsOptions {
            cert_file: "cert.pem".into(),
            key_file: "key.pem".into(),
            client_ca_file: None,
            client_crl_file: None,
            client_cert_required: false,
        };
        for (open, named) in [(queue, "listen 0.0.0.0:7777"), (admin, "admin_listen 0.0.0.0:7778")] {
            let refused = open.check().unwrap_err().to_string();
            assert!(refused.starts_with(named) && refused.contains("plaintext = true"), "{refused}");
            assert_eq!(ApiOptions { plaintext: true, ..open.clone() }.check(), Ok(()));
            let encrypted = ApiOptions { tls: Some(tls.clone()), ..open };
            assert_eq!(encrypted.check(), Ok(()));
            let both = ApiOptions { plaintext: true, ..encrypted }.check();
            assert_eq!(both, Err(WrongOption::PlainText(PlainTextRefused::Contradiction)));
        }
    }
}
