//! The options of the store of entries on Redis. All limits of this driver live here.

use super::super::checks;
use redis::ConnectionInfo;
use serde::Deserialize;
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_redis_link::{Access, LinkOptions, OpenRedisError, Report, TlsOptions};

/// The pause between two tries while a slot of the cluster moves to another node.
pub(super) const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The numbers that are skipped where another run of a server gave the last ones.
pub(super) const SKIPPED: u64 = 1_000_000;

/// The address of the Redis that keeps jobs and their runs, and its time-outs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisEntriesOptions {
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
    /// The beginning of the hash tag of every key: `{wfj:0012}:e`. 1 to 32 bytes of printable ASCII
    /// without blanks and braces; default `wfj`. Two stores on
    /// one Redis need one each.
    pub prefix: String,
    /// The number of shards, 1 to 1,024, default 64. It is fixed when the store is made: opening it with another
    /// number is an error. An options file does not set it here.
    #[serde(skip, default = "default_shards")]
    pub shards: u16,
    /// The number of connections to each node. All commands of one shard take the same connection. 1 to 64; default 2.
    pub connections: usize,
    /// How long making a connection may take. 1 to 60,000; default 1,000.
    pub connect_timeout_ms: u64,
    /// How long a call may take, everything included. 1 to 60,000, and for processes that send runs at most
    /// [`STORE_TIMEOUT_MAX_MS`](crate::STORE_TIMEOUT_MAX_MS); default 2,000.
    pub call_timeout_ms: u64,
    /// Whether to open a server without an append-only file, which loses all jobs when it restarts. Default `false`.
    pub allow_without_appendonly: bool,
    /// Whether to open a server that evicts keys when its memory is full, which loses jobs without a trace. Default `false`.
    pub allow_eviction: bool,
    /// Whether to refuse servers that do not sync each change to the disk before they answer (`appendfsync always`).
    /// An options file does not set it here. Default `false`.
    #[serde(skip)]
    pub needs_disk_sync: bool,
    /// How the keys begin of entries that no scan has to find, for less work; scans where they would be are refused. An options
    /// file does not set it. Default none; for the store of jobs: [`for_jobs`](Self::for_jobs).
    #[serde(skip)]
    pub unlisted: &'static [&'static [u8]],
    /// How the keys begin of marks, for less work: entries without a value and without a time to wake, which are put and deleted
    /// whatever was there before, and found by scans alone. What is kept of one is its key. An options file does not set it. Default
    /// none; for the store of jobs: [`for_jobs`](Self::for_jobs).
    #[serde(skip)]
    pub marks: &'static [&'static [u8]],
}

const fn default_shards() -> u16 {
    64
}

impl Default for RedisEntriesOptions {
    fn default() -> Self {
        Self {
            urls: vec!["127.0.0.1:6379".into()],
            username: None,
            password: None,
            is_cluster: false,
            tls: None,
            plaintext: false,
            prefix: "wfj".into(),
            shards: default_shards(),
            connections: 2,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 2_000,
            allow_without_appendonly: false,
            allow_eviction: false,
            needs_disk_sync: false,
            unlisted: &[],
            marks: &[],
        }
    }
}

impl std::fmt::Debug for RedisEntriesOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // URLs may hold passwords.
        f.debug_struct("RedisEntriesOptions")
            .field("urls", &self.urls.len())
            .field("username", &self.username)
            .field("is_cluster", &self.is_cluster)
            .field("prefix", &self.prefix)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

impl RedisEntriesOptions {
    /// Options for one server, with the other defaults.
    pub fn at(url: impl Into<String>) -> Self {
        Self { urls: vec![url.into()], ..Self::default() }
    }

    /// Options for a cluster that has these nodes and perhaps more, with the other defaults.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { urls: urls.into_iter().map(Into::into).collect(), is_cluster: true, ..Self::default() }
    }

    /// These options for a store that [`Jobs`](crate::Jobs) alone uses: what jobs never list is not listed, and of what they only
    /// list the key alone is kept.
    #[must_use]
    pub fn for_jobs(self) -> Self {
        Self { unlisted: &crate::book::UNLISTED, marks: &crate::book::MARKS, ..self }
    }

    /// A key of a shard.
    pub(super) fn of_shard(&self, shard: Shard, name: char) -> Vec<u8> {
        format!("{{{}:{:04x}}}:{name}", self.prefix, shard.0).into_bytes()
    }

    /// The counters of a shard, whose name without its last letter begins the names of all its keys.
    pub(super) fn counters(&self, shard: Shard) -> Vec<u8> {
        self.of_shard(shard, 'm')
    }

    /// A key that does not belong to a shard.
    pub(super) fn registry(&self, name: &str) -> Vec<u8> {
        format!("{{{}:names}}:{name}", self.prefix).into_bytes()
    }

    pub(super) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    pub(super) fn check(&self) -> Result<Vec<ConnectionInfo>, OpenRedisError> {
        let (shards_min, shards_max) = checks::SHARDS.into_inner();
        let ranges: [(&str, u64, u64, u64); 6] = [
            ("urls", self.urls.len() as u64, 1, 64),
            ("prefix", self.prefix.len() as u64, 1, 32),
            ("shards", self.shards.into(), shards_min.into(), shards_max.into()),
            ("connections", self.connections as u64, 1, 64),
            ("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000),
            ("call_timeout_ms", self.call_timeout_ms, 1, 60_000),
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
        true => {
            Err("keeps no append-only file, so that a restart loses all jobs; set appendonly yes on the \
                     server, or the option allow_without_appendonly"
                .into())
        }
        false => Ok(()),
    }
}

fn evicts_nothing(report: &Report) -> Result<(), String> {
    let policy = report.value("maxmemory_policy");
    match policy == "noeviction" || policy.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "has maxmemory-policy {policy}, which loses jobs when its memory is full; set \
             maxmemory-policy noeviction on the server, or the option allow_eviction"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_can_lose_jobs_is_refused_unless_allowed_by_name() {
        let good = "aof_enabled:1\r\nloading:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        let judge = |options: &RedisEntriesOptions, text: &str| {
            (options.link().judge)(&Report::from(text.to_owned())).map_err(|what| what.contains("set "))
        };
        let strict = RedisEntriesOptions::default();
        assert_eq!(judge(&strict, good), Ok(()));
        let forgetful = good.replace("aof_enabled:1", "aof_enabled:0");
        let evicting = good.replace("noeviction", "allkeys-lru");
        assert_eq!(judge(&strict, &forgetful), Err(true));
        assert_eq!(judge(&strict, &evicting), Err(true));
        let lax = RedisEntriesOptions { allow_without_appendonly: true, ..strict.clone() };
        assert_eq!((judge(&lax, &forgetful), judge(&lax, &evicting)), (Ok(()), Err(true)));
        let lax = RedisEntriesOptions { allow_eviction: true, ..strict };
        assert_eq!((judge(&lax, &forgetful), judge(&lax, &evicting)), (Err(true), Ok(())));
    }
}
