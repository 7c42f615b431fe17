//! The options of the store of jobs on Redis. All limits of this driver live here.

use crate::checks;
use redis::ConnectionInfo;
use serde::Deserialize;
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::FAR_REMOVALS_MAX;
use windfall_redis_link::{Access, LinkOptions, OpenRedisError, Report, TlsOptions};

/// The pause between two tries while a slot of the cluster moves to another node.
pub(super) const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The entries that one take looks at, at most.
pub(super) const LOOKED_MAX: usize = 2_000;
/// The leases that one call sees to.
pub(super) const TENDED_MAX: usize = 500;
/// About how many queues one sweep looks at, and how many jobs of each it forgets at most.
pub(super) const SWEPT: (usize, usize) = (50, 100);

/// The address of the Redis that keeps jobs, and its time-outs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisJobsOptions {
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
    /// The beginning of the hash tag of every key: `{wfq:0003}:…`. 1 to 32 bytes of printable ASCII without blanks and
    /// braces; default `wfq`. Pools on one Redis need one each.
    pub prefix: String,
    /// The number of shards, 1 to 256, default 8: the number of a cluster's masters that share the work at most. It is
    /// fixed when the store is made: opening it with another number is an error.
    pub shards: u16,
    /// The number of connections to each node. All commands of one shard take the same connection. 1 to 64; default 2.
    pub connections: usize,
    /// How long making a connection may take. 1 to 60,000; default 1,000.
    pub connect_timeout_ms: u64,
    /// How long a call may take, everything included. 1 to 60,000; default 2,000.
    pub call_timeout_ms: u64,
    /// Whether to open a server without an append-only file, which loses all jobs when it restarts. Default `false`.
    pub allow_without_appendonly: bool,
    /// Whether to open a server that evicts keys when its memory is full, which loses jobs without a trace. Default
    /// `false`.
    pub allow_eviction: bool,
    /// How many deletions of far jobs are remembered at a time, each shard its part: a week and more for each. Beyond that
    /// deletions of jobs that are not there are refused. 1 to 100,000,000, default 1,000,000.
    pub far_removals_max: u64,
}

impl Default for RedisJobsOptions {
    fn default() -> Self {
        Self {
            urls: vec!["127.0.0.1:6379".into()],
            username: None,
            password: None,
            is_cluster: false,
            tls: None,
            plaintext: false,
            prefix: "wfq".into(),
            shards: 8,
            connections: 2,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 2_000,
            allow_without_appendonly: false,
            allow_eviction: false,
            far_removals_max: FAR_REMOVALS_MAX,
        }
    }
}

impl std::fmt::Debug for RedisJobsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // URLs may hold passwords.
        f.debug_struct("RedisJobsOptions")
            .field("urls", &self.urls.len())
            .field("username", &self.username)
            .field("is_cluster", &self.is_cluster)
            .field("prefix", &self.prefix)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

impl RedisJobsOptions {
    /// Options for one server, with the other defaults.
    pub fn at(url: impl Into<String>) -> Self {
        Self { urls: vec![url.into()], ..Self::default() }
    }

    /// Options for a cluster that has these nodes and perhaps more, with the other defaults.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { urls: urls.into_iter().map(Into::into).collect(), is_cluster: true, ..Self::default() }
    }

    /// Whether both name the same jobs: the same prefix on a server that both name. Two databases of a server and two names
    /// of a host are seen as different.
    pub fn is_same_store(&self, other: &Self) -> bool {
        let place = |url: &str| {
            let url = url.split_once("://").map_or(url, |(_, rest)| rest);
            url.rsplit_once('@').map_or(url, |(_, place)| place).trim_end_matches('/').to_owned()
        };
        let places: Vec<String> = other.urls.iter().map(|url| place(url)).collect();
        self.prefix == other.prefix && self.urls.iter().any(|url| places.contains(&place(url)))
    }

    /// The counter of a shard's jobs, whose name without its last letter begins the names of all its keys.
    pub(super) fn counter(&self, shard: Shard) -> Vec<u8> {
        format!("{{{}:{:04x}}}:s", self.prefix, shard.0).into_bytes()
    }

    /// A key that does not belong to a shard.
    pub(super) fn registry(&self, name: &str) -> Vec<u8> {
        format!("{{{}:names}}:{name}", self.prefix).into_bytes()
    }

    pub(super) fn far_removals_of_shard(&self) -> u64 {
        self.far_removals_max.div_ceil(self.shards.into())
    }

    pub(super) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    pub(super) fn check(&self) -> Result<Vec<ConnectionInfo>, OpenRedisError> {
        let (shards_min, shards_max) = checks::SHARDS.into_inner();
        let ranges: [(&str, u64, u64, u64); 7] = [
            ("urls", self.urls.len() as u64, 1, 64),
            ("prefix", self.prefix.len() as u64, 1, 32),
            ("shards", self.shards.into(), shards_min.into(), shards_max.into()),
            ("connections", self.connections as u64, 1, 64),
            ("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000),
            ("call_timeout_ms", self.call_timeout_ms, 1, 60_000),
            ("far_removals_max", self.far_removals_max, 1, checks::FAR_REMOVALS_MAX),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(OpenRedisError::Invalid(format!(
                    "{name}: {value}, but {low} to {high} is allowed"
                )));
            }
        }
        if self.prefix.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'{' || byte == b'}') {
            return Err(OpenRedisError::Invalid(format!(
                "prefix: {:?}, but printable ASCII without braces is allowed",
                self.prefix
            )));
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
        let judge: fn(&Report) -> Result<(), String> =
            match (self.allow_without_appendonly, self.allow_eviction) {
                (false, false) => |report| keeps_a_file(report).and_then(|()| evicts_nothing(report)),
                (false, true) => keeps_a_file,
                (true, false) => evicts_nothing,
                (true, true) => |_| Ok(()),
            };
        LinkOptions {
            is_cluster: self.is_cluster,
            security: self.access().security(),
            connections: self.connections,
            pipeline_requests: 250,
            connect_timeout: Duration::from_millis(self.connect_timeout_ms),
            call_timeout: self.call_timeout(),
            judge,
        }
    }
}

fn keeps_a_file(report: &Report) -> Result<(), String> {
    match report.value("aof_enabled") == "0" && report.value("loading") == "0" {
        true => Err("keeps no append-only file, so that a restart loses all jobs that wait; set appendonly yes on the \
                     server, or the option allow_without_appendonly"
            .into()),
        false => Ok(()),
    }
}

fn evicts_nothing(report: &Report) -> Result<(), String> {
    let policy = report.value("maxmemory_policy");
    match policy == "noeviction" || policy.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "has maxmemory-policy {policy}, which loses jobs that wait when its memory is full; set maxmemory-policy \
             noeviction on the server, or the option allow_eviction"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_prefix_on_a_server() {
        let one = RedisJobsOptions::at("redis://user:pass@10.0.0.5:6379/");
        let same = RedisJobsOptions::cluster(["10.0.0.4:6379", "10.0.0.5:6379"]);
        assert!(one.is_same_store(&same) && same.is_same_store(&one));
        let other = RedisJobsOptions { prefix: "other".into(), ..same };
        assert!(!one.is_same_store(&other));
        assert!(!one.is_same_store(&RedisJobsOptions::at("10.0.0.6:6379")));
        assert!(!one.is_same_store(&RedisJobsOptions::at("10.0.0.5:6379/1")));
    }

    #[test]
    fn a_server_that_can_lose_jobs_is_refused_unless_allowed_by_name() {
        let good = "aof_enabled:1\r\nloading:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        let judge = |options: &RedisJobsOptions, text: &str| {
            (options.link().judge)(&Report::from(text.to_owned())).map_err(|what| what.contains("set "))
        };
        let strict = RedisJobsOptions::default();
        assert_eq!(judge(&strict, good), Ok(()));
        assert_eq!(judge(&strict, &good.replace("aof_enabled:1", "aof_enabled:0")), Err(true));
        assert_eq!(judge(&strict, &good.replace("noeviction", "allkeys-lru")), Err(true));
        let lax = RedisJobsOptions { allow_eviction: true, ..strict };
        assert_eq!(judge(&lax, &good.replace("noeviction", "allkeys-lru")), Ok(()));
    }
}
