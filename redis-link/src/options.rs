//! The options of the connections, and the errors of opening them. All limits of the connections live here.

use super::server::Report;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use std::time::Duration;
use windfall_tls::{Security, TlsError, TlsOptions};

/// The number of a cluster's nodes that are known at most.
pub(crate) const NODES_MAX: usize = 1_000;
/// The number of redirections that one call follows before it gives up.
pub(crate) const REDIRECTS_MAX: usize = 8;
/// The first pause between two tries to connect; it doubles until [`BACKOFF_MAX`].
pub(crate) const BACKOFF_FIRST: Duration = Duration::from_millis(25);
/// The longest pause between two tries to connect. It is short although no call waits for it: calls fail at once
/// meanwhile.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How often an idle connection is probed.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The pause between two requests for the cluster's slot map.
pub(crate) const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// The oldest Redis that has what drivers use: `NX` and `GT` of `PEXPIREAT`, listpack hashes.
pub(crate) const VERSION_MIN: (u32, u32) = (7, 0);

/// The kind of server, in refusals.
pub(crate) const SERVER: &str = "Redis";
/// How an address asks for TLS.
const TLS_SCHEME: &str = "rediss://";

/// How connections are made and used.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Whether the addresses are of a Redis Cluster.
    pub is_cluster: bool,
    /// What protects the connections, also those to nodes that a cluster names ([`Access::security`]).
    pub security: Security,
    /// The number of connections to each node. All commands of one key take the same connection.
    pub connections: usize,
    /// The number of requests in one pipeline at most; more go as several, one behind the other without waiting.
    pub pipeline_requests: usize,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long a call may take: a connection that is silent for longer is given up.
    pub call_timeout: Duration,
    /// What in a server's report speaks against it, with the remedy. Asked for each new connection: a server that was
    /// away may come back as another one.
    pub judge: fn(&Report) -> Result<(), String>,
}

/// There is no answer of a master, or none in time: what was sent may be done or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// A driver on Redis could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenRedisError {
    /// An option is out of its range; correct it.
    #[error("{0}")]
    Invalid(String),
    /// Nothing answers there, or not in time. Check the address, or open it in the background.
    #[error("Redis at {place} cannot be reached: {what}")]
    Unreachable {
        /// The address.
        place: String,
        /// What happened.
        what: String,
    },
    /// A Redis that cannot be used just now: a replica, one that loads its data, a cluster that is down or without
    /// slots. Check the address, or open it in the background.
    #[error("Redis at {place} cannot be used now: {what}")]
    NotNow {
        /// The address.
        place: String,
        /// What is wrong, and the remedy.
        what: String,
    },
    /// The server wants another user or password, or the user lacks a right.
    #[error("Redis at {place} refuses the credentials: {what}; check username and password")]
    Credentials {
        /// The address.
        place: String,
        /// The server's answer.
        what: String,
    },
    /// The server cannot be trusted, refuses this client's certificate, or speaks no TLS. Correct certificates or options.
    #[error("Redis at {place} cannot be spoken to by TLS: {what}")]
    Untrusted {
        /// The address.
        place: String,
        /// What is wrong, and the remedy.
        what: String,
    },
    /// What answers there is no Redis.
    #[error("what answers at {place} is not Redis: {what}; check the port")]
    NotRedis {
        /// The address.
        place: String,
        /// What it answered.
        what: String,
    },
    /// A Redis that does not suit the driver; the text says what to change.
    #[error("Redis at {place}: {what}")]
    Unsuited {
        /// The address.
        place: String,
        /// What is wrong, and the remedy.
        what: String,
    },
}

impl OpenRedisError {
    /// Whether the same attempt may succeed later though nobody changes an option.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotNow { .. })
    }
}

impl From<TlsError> for OpenRedisError {
    fn from(error: TlsError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Where a Redis is and how it is reached, as the options of each driver have it.
#[derive(Clone, Copy)]
pub struct Access<'o> {
    /// `redis://[user[:password]@]host:port[/database]`, `rediss://…` for TLS, or `host:port`.
    pub urls: &'o [String],
    /// The user in place of the one in the URLs.
    pub username: Option<&'o str>,
    /// The password in place of the one in the URLs.
    pub password: Option<&'o str>,
    /// Whether the addresses are of a Redis Cluster.
    pub is_cluster: bool,
    /// TLS. `rediss://` alone means TLS with the defaults.
    pub tls: Option<&'o TlsOptions>,
    /// Whether plain text may leave this machine.
    pub plaintext: bool,
}

impl Access<'_> {
    /// What protects the connections. [`Access::addresses`] says whether the options are right.
    pub fn security(&self) -> Security {
        match (self.tls, self.plaintext) {
            (Some(tls), _) => Security::Tls(tls.clone()),
            (None, _) if self.urls.iter().any(|url| url.starts_with(TLS_SCHEME)) => {
                Security::Tls(TlsOptions::default())
            }
            (None, true) => Security::Plaintext,
            (None, false) => Security::Local,
        }
    }

    /// Reads the addresses, and checks whether they may be reached like this.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`].
    pub fn addresses(&self) -> Result<Vec<ConnectionInfo>, OpenRedisError> {
        if !self.is_cluster && self.urls.len() != 1 {
            return Err(OpenRedisError::Invalid(
                "urls: a single server has one address; set is_cluster for a cluster".into(),
            ));
        }
        let security = self.security();
        Security::new(security.tls(), self.plaintext)?;
        self.urls.iter().enumerate().map(|(at, url)| self.address(at, url, &security)).collect()
    }

    fn address(&self, at: usize, url: &str, security: &Security) -> Result<ConnectionInfo, OpenRedisError> {
        // The URL itself may hold a password.
        let wrong = |what: &str| {
            let form = "redis://[user[:password]@]host:port[/database] is allowed, and rediss:// for TLS";
            OpenRedisError::Invalid(format!("urls[{at}] {what}; {form}"))
        };
        // What protects the connection is not the client's business, but ours.
        let plain = url.strip_prefix(TLS_SCHEME).unwrap_or(url);
        let whole = if plain.contains("://") { plain.to_owned() } else { format!("redis://{plain}") };
        let info = whole.into_connection_info().map_err(|_| wrong("is no address of a Redis"))?;
        let ConnectionAddr::Tcp(host, _) = info.addr() else {
            return Err(wrong("is a socket file, which this build does not connect to"));
        };
        security.allow(SERVER, host)?;
        if self.is_cluster && info.redis_settings().db() != 0 {
            return Err(wrong("names a database, and a cluster has none"));
        }
        let mut settings = info.redis_settings().clone();
        if let Some(username) = self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = self.password {
            settings = settings.set_password(password);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(urls: &[&str], tls: Option<&TlsOptions>, plaintext: bool) -> Result<Security, String> {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        let is_cluster = urls.len() > 1;
        let access = Access { urls: &urls, username: None, password: None, is_cluster, tls, plaintext };
        access.addresses().map(|_| access.security()).map_err(|error| error.to_string())
    }

    #[test]
    fn only_servers_on_this_machine_are_spoken_to_in_plain_text_unless_it_is_allowed_by_name() {
        assert_eq!(said(&["127.0.0.1:6379"], None, false), Ok(Security::Local));
        assert_eq!(said(&["redis://localhost:1", "redis://[::1]:2"], None, false), Ok(Security::Local));
        let refused = said(&["redis://:hush@10.0.0.5:6379"], None, false).unwrap_err();
        assert!(refused.starts_with("Redis at 10.0.0.5 is not on this machine"), "{refused}");
        assert!(refused.contains("plaintext = true") && !refused.contains("hush"), "{refused}");
        assert!(said(&["127.0.0.1:1", "redis:1"], None, false).is_err(), "one of several");
        assert_eq!(said(&["redis:6379"], None, true), Ok(Security::Plaintext));
    }

    #[test]
    fn tls_is_asked_for_by_the_options_or_by_the_address() {
        let tls = TlsOptions { server_name: Some("redis.test".into()), ..TlsOptions::default() };
        assert_eq!(said(&["redis:6379"], Some(&tls), false), Ok(Security::Tls(tls.clone())));
        assert_eq!(said(&["rediss://u:p@redis:6379/2"], Some(&tls), false), Ok(Security::Tls(tls.clone())));
        let default = Security::Tls(TlsOptions::default());
        assert_eq!(said(&["rediss://redis:6379"], None, false), Ok(default.clone()));
        assert_eq!(said(&["rediss://a:1", "b:1"], None, false), Ok(default), "all nodes or none");
        for tls in [Some(&tls), None] {
            let refused = said(&["rediss://redis:6379"], tls, true).unwrap_err();
            assert!(refused.contains("contradict"), "{refused}");
        }
    }
}
