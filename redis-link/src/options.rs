//! The options of the connections, and the errors of opening them. All limits of the connections live here.

use super::server::Report;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo};
use std::time::Duration;

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

/// How connections are made and used.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Whether the addresses are of a Redis Cluster.
    pub is_cluster: bool,
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

/// Reads addresses: `redis://[user[:password]@]host:port[/database]`, or `host:port`. User and password, where they are
/// given, take the place of those in the addresses.
///
/// # Errors
/// [`OpenRedisError::Invalid`].
pub fn addresses(
    urls: &[String],
    username: Option<&str>,
    password: Option<&str>,
    is_cluster: bool,
) -> Result<Vec<ConnectionInfo>, OpenRedisError> {
    if !is_cluster && urls.len() != 1 {
        return Err(OpenRedisError::Invalid(
            "urls: a single server has one address; set is_cluster for a cluster".into(),
        ));
    }
    let read = |(at, url): (usize, &String)| {
        let info = address(at, url, is_cluster)?;
        let mut settings = info.redis_settings().clone();
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
    };
    urls.iter().enumerate().map(read).collect()
}

fn address(at: usize, url: &str, is_cluster: bool) -> Result<ConnectionInfo, OpenRedisError> {
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
    if is_cluster && info.redis_settings().db() != 0 {
        return Err(wrong("names a database, and a cluster has none"));
    }
    Ok(info)
}
