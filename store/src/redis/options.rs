//! The options of the store on Redis, and the errors of opening it. All limits of this backend live here.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo};
use serde::Deserialize;
use std::time::Duration;

/// The number of a user's tokens that a page is made from at most: reading more order numbers would hold Redis up.
pub(super) const LISTED_MAX: i64 = 100_000;
/// The number of a cluster's nodes that are known at most.
pub(super) const NODES_MAX: usize = 1_000;
/// The number of redirections that one call follows before it gives up.
pub(super) const REDIRECTS_MAX: usize = 8;
/// The first pause between two tries to connect; it doubles until [`BACKOFF_MAX`].
pub(super) const BACKOFF_FIRST: Duration = Duration::from_millis(25);
/// The longest pause between two tries to connect. It is short although no call waits for it: calls fail at once
/// meanwhile.
pub(super) const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How often an idle connection is probed.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The pause between two requests for the cluster's slot map.
pub(super) const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// The oldest Redis that has `NX` and `GT` of `PEXPIREAT`, and listpack hashes.
pub(super) const VERSION_MIN: (u32, u32) = (7, 0);

/// The address of the Redis that keeps the tokens, and its time-outs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host:port[/database]`, or `host:port`. Of a single server: its address. Of a
    /// cluster: one node or more to learn the others from. 1 to 64; default `127.0.0.1:6379`.
    pub urls: Vec<String>,
    /// The user in place of the one in the URLs; for the other nodes of a cluster too.
    pub username: Option<String>,
    /// The password in place of the one in the URLs. It is never shown.
    pub password: Option<String>,
    /// Whether the addresses are of a Redis Cluster. Default `false`.
    pub is_cluster: bool,
    /// The prefix of every key, before the user id. 1 to 64 bytes of printable ASCII without blanks and braces; default
    /// `windfall:tokens:`.
    pub prefix: String,
    /// The number of connections to each node. All commands of one user take the same connection. 1 to 64; default 2.
    pub connections: usize,
    /// The number of users in one pipeline at most; a larger batch goes as several, one behind the other without
    /// waiting. 1 to 10,000; default 250.
    pub pipeline_users: usize,
    /// The number of calls that run at a time; more are `Unavailable` at once (I9). 1 to 4096; default 64.
    pub max_calls: usize,
    /// How long making a connection may take. 1 to 60,000; default 1,000.
    pub connect_timeout_ms: u64,
    /// How long a call may take, everything included. 1 to 60,000; default 400: below what callers wait for a weak
    /// dependency.
    pub call_timeout_ms: u64,
    /// Whether to open a server that may evict tokens before they expire. Default `false`, since tokens would vanish
    /// from wallets while their rewards are still to be credited.
    pub allow_eviction: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            urls: vec!["127.0.0.1:6379".into()],
            username: None,
            password: None,
            is_cluster: false,
            prefix: "windfall:tokens:".into(),
            connections: 2,
            pipeline_users: 250,
            max_calls: 64,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 400,
            allow_eviction: false,
        }
    }
}

/// The store could not be opened.
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
    /// A Redis that cannot keep tokens just now: a replica, one that loads its data, a cluster that is down or without
    /// slots. Check the address, or open it in the background.
    #[error("Redis at {place} cannot keep tokens now: {what}")]
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
    /// What answers there is no Redis.
    #[error("what answers at {place} is not Redis: {what}; check the port")]
    NotRedis {
        /// The address.
        place: String,
        /// What it answered.
        what: String,
    },
    /// A Redis on which tokens cannot be kept; the text says what to change.
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

impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // URLs may hold passwords.
        f.debug_struct("RedisOptions")
            .field("urls", &self.urls.len())
            .field("username", &self.username)
            .field("is_cluster", &self.is_cluster)
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("call_timeout_ms", &self.call_timeout_ms)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// Options for one server, with the other defaults.
    pub fn at(url: impl Into<String>) -> Self {
        Self { urls: vec![url.into()], ..Self::default() }
    }

    /// Options for a cluster that has these nodes and perhaps more, with the other defaults.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { urls: urls.into_iter().map(Into::into).collect(), is_cluster: true, ..Self::default() }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(super) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    /// Checks the ranges, and reads the addresses.
    pub(super) fn check(&self) -> Result<Vec<ConnectionInfo>, OpenRedisError> {
        let invalid = |what: String| Err(OpenRedisError::Invalid(what));
        let ranges = [
            ("urls", self.urls.len(), 1, 64),
            ("connections", self.connections, 1, 64),
            ("pipeline_users", self.pipeline_users, 1, 10_000),
            ("max_calls", self.max_calls, 1, 4096),
            ("prefix", self.prefix.len(), 1, 64),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return invalid(format!("{name}: {value}, but {low} to {high} is allowed"));
            }
        }
        for (name, value) in
            [("connect_timeout_ms", self.connect_timeout_ms), ("call_timeout_ms", self.call_timeout_ms)]
        {
            if !(1..=60_000).contains(&value) {
                return invalid(format!("{name}: {value}, but 1 to 60000 is allowed"));
            }
        }
        // Braces would put all users of a cluster into one slot.
        if self.prefix.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'{' || byte == b'}') {
            return invalid(format!(
                "prefix: {:?}, but printable ASCII without braces is allowed",
                self.prefix
            ));
        }
        if !self.is_cluster && self.urls.len() != 1 {
            return invalid("urls: a single server has one address; set is_cluster for a cluster".into());
        }
        self.urls.iter().enumerate().map(|(at, url)| self.server(at, url)).collect()
    }

    fn server(&self, at: usize, url: &str) -> Result<ConnectionInfo, OpenRedisError> {
        // The URL itself may hold a password.
        let wrong = |what: &str| {
            let form = "redis://[user[:password]@]host:port[/database] is allowed";
            OpenRedisError::Invalid(format!("urls[{at}] {what}; {form}"))
        };
        let url = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
        let info = url.into_connection_info().map_err(|_| wrong("is no address of a Redis"))?;
        if !matches!(info.addr(), redis::ConnectionAddr::Tcp(..)) {
            return Err(wrong("asks for TLS or a socket file, which this build does not have"));
        }
        if self.is_cluster && info.redis_settings().db() != 0 {
            return Err(wrong("names a database, and a cluster has none"));
        }
        Ok(self.with_settings(info))
    }

    /// Adds the settings that every connection has, to whichever node.
    fn with_settings(&self, info: ConnectionInfo) -> ConnectionInfo {
        let mut settings = info.redis_settings().clone();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true))
    }
}
