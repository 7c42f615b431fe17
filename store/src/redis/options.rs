//! The options of the store on Redis, and the errors of opening it. All limits of this backend live here.

use redis::ConnectionInfo;
use serde::Deserialize;
use std::time::Duration;
use windfall_redis_link::{Access, LinkOptions, OpenRedisError, Report, TlsOptions};

/// The number of a user's tokens that a page is made from at most: reading more names would hold Redis up.
pub(super) const LISTED_MAX: i64 = 100_000;

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
    /// TLS to the server, to all nodes of a cluster. `rediss://` in `urls` alone is TLS with the defaults. Default: none,
    /// which only servers on this machine are reached without.
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine. Default `false`.
    pub plaintext: bool,
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
            tls: None,
            plaintext: false,
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
        self.access().addresses()
    }

    /// Checks whether the server may be reached like this. Reads no files, and connects to nothing.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`].
    pub fn check_address(&self) -> Result<(), OpenRedisError> {
        self.access().addresses().map(drop)
    }

    fn access(&self) -> Access<'_> {
        Access {
            urls: &self.urls,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            is_cluster: self.is_cluster,
            tls: self.tls.as_ref(),
            plaintext: self.plaintext,
        }
    }

    pub(super) fn link(&self) -> LinkOptions {
        LinkOptions {
            is_cluster: self.is_cluster,
            security: self.access().security(),
            connections: self.connections,
            pipeline_requests: self.pipeline_users,
            connect_timeout: Duration::from_millis(self.connect_timeout_ms),
            call_timeout: self.call_timeout(),
            judge: if self.allow_eviction { |_| Ok(()) } else { keeps_tokens },
        }
    }
}

fn keeps_tokens(report: &Report) -> Result<(), String> {
    let policy = report.value("maxmemory_policy");
    if report.value("maxmemory") != "0" && !matches!(policy, "noeviction" | "volatile-ttl" | "") {
        return Err(format!(
            "has maxmemory-policy {policy}, which evicts tokens of rewards that are still on their way; set \
             noeviction or volatile-ttl, or allow_eviction"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_evicts_tokens_is_refused_unless_allowed() {
        let judge = |text: &str| keeps_tokens(&Report::from(text.to_owned()));
        let full = "maxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert!(judge(full).is_err_and(|what| what.contains("allkeys-lru")));
        assert_eq!(judge(&full.replace("allkeys-lru", "volatile-ttl")), Ok(()));
        assert_eq!(judge(&full.replace("maxmemory:9", "maxmemory:0")), Ok(()));
        let allowed = RedisOptions { allow_eviction: true, ..RedisOptions::default() };
        assert_eq!((allowed.link().judge)(&Report::from(full.to_owned())), Ok(()));
    }
}
