//! What an operator may choose, with defaults that fit a server with its own defaults.

use serde::Deserialize;
use std::time::Duration;
use windfall_contract::broker::OpenError;
use windfall_rocketmq_wire::{ClientOptions, Credentials};
use windfall_tls::{Security, TlsError, TlsOptions};

/// A secret text that is never printed.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(word: impl Into<String>) -> Self {
        Self(word.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// How RocketMQ is reached and used.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RocketOptions {
    /// Proxies as `host:port` of their gRPC ports, tried in turn. At least one.
    pub endpoints: Vec<String>,
    /// Brokers as `host:port` of their own (remoting) ports, all of them: for what gRPC cannot say. With it, missing
    /// topics and groups are made, a new group begins at a topic's first record, and `lag` answers. Default none.
    pub admin: Vec<String>,
    /// Put before the names of topics and groups. Default empty.
    pub prefix: String,
    /// RocketMQ's own namespace. Default empty.
    pub namespace: String,
    /// The user's access key, where the server asks for one; it needs `secret_key`. Default none.
    pub access_key: Option<String>,
    /// The user's secret key. Default none.
    pub secret_key: Option<Secret>,
    /// TLS to the proxies, and to the brokers of `admin`. Default: none, which only those on this machine are reached
    /// without.
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine. Default false.
    pub plaintext: bool,
    /// Deadline of each call in ms: a server that stands still is noticed after so long. 100 to 60,000, default 3,000.
    pub timeout_ms: u64,
    /// How long opening a producer or a consumer waits for a proxy that is away before it is `Unavailable`; one that is
    /// slower than this to say where a topic lies is never opened. 10 to 300,000, default 3,000.
    pub connect_timeout_ms: u64,
    /// How long a record waits for others to share a batch, in ms. 0 to 1,000, default 2.
    pub linger_ms: u64,
    /// The number of records in a batch at most. 1 to 4,096, default 256.
    pub batch_records: usize,
    /// The bytes of a batch at most; the broker must take messages as large (its `maxMessageSize`, 4 MiB by default).
    /// 64 KiB to 4 MiB, default 768 KiB.
    pub batch_bytes: usize,
    /// The number of batches that a producer has in flight at once. 1 to 64, default 8.
    pub batches_in_flight: usize,
    /// Records of a producer not yet reported; `Full` beyond. 1 to 16 Mi, default 65,536.
    pub max_unreported_records: usize,
    /// Bytes of a producer's records not yet reported; `Full` beyond. 1 MiB to 1 GiB, default 64 MiB.
    pub max_unreported_bytes: usize,
    /// The largest payload taken; the broker must take messages as large. 1 MiB to 4 MiB, default 1 MiB.
    pub max_record_bytes: usize,
    /// How long a record stays hidden from other members unless it is extended, in ms: after a member's death its
    /// records come to others so much later. The server's default minimum is 10,000. 1,000 to 3,600,000, default
    /// 30,000.
    pub invisible_ms: u64,
    /// The number of a consumer's requests that wait for records at once. 1 to 64, default 4.
    pub receive_streams: usize,
    /// The number of records that a request brings at most; the broker allows no more than 32. 1 to 32, default 32.
    pub receive_records: u16,
    /// How long such a request waits at the server, in ms. The server's default minimum is 5,000. 100 to 20,000,
    /// default 5,000.
    pub receive_wait_ms: u64,
    /// Records that a consumer holds ready for the next poll; never more than twice what the last poll asked for.
    /// 1 to 65,536, default 2,048.
    pub prefetch_records: usize,
    /// Bytes of the records held ready; each stream may exceed it by one request. 64 KiB to 1 GiB, default 16 MiB.
    pub prefetch_bytes: usize,
    /// The number of acknowledgements in one request. 1 to 1,024, default 128.
    pub ack_records: usize,
    /// The time without a poll, in ms, after which unfinished records are no longer extended and come to others. 1,000
    /// to 3,600,000, default 30,000.
    pub session_timeout_ms: u64,
    /// The number of consumer instances of a group among which its limits are divided: each counts as the owner of one
    /// of so many partitions. No more instances than this may run. 1 to 10,000, default 1.
    pub instances: u32,
    /// Threads of this driver. 1 to 16, default 2.
    pub threads: usize,
}

impl Default for RocketOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            admin: Vec::new(),
            prefix: String::new(),
            namespace: String::new(),
            access_key: None,
            secret_key: None,
            tls: None,
            plaintext: false,
            timeout_ms: 3_000,
            connect_timeout_ms: 3_000,
            linger_ms: 2,
            batch_records: 256,
            batch_bytes: 768 << 10,
            batches_in_flight: 8,
            max_unreported_records: 65_536,
            max_unreported_bytes: 64 << 20,
            max_record_bytes: 1 << 20,
            invisible_ms: 30_000,
            receive_streams: 4,
            receive_records: 32,
            receive_wait_ms: 5_000,
            prefetch_records: 2_048,
            prefetch_bytes: 16 << 20,
            ack_records: 128,
            session_timeout_ms: 30_000,
            instances: 1,
            threads: 2,
        }
    }
}

impl RocketOptions {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let within = [
            ("timeout_ms", self.timeout_ms, 100, 60_000),
            ("connect_timeout_ms", self.connect_timeout_ms, 10, 300_000),
            ("linger_ms", self.linger_ms, 0, 1_000),
            ("batch_records", self.batch_records as u64, 1, 4_096),
            ("batch_bytes", self.batch_bytes as u64, 64 << 10, 4 << 20),
            ("batches_in_flight", self.batches_in_flight as u64, 1, 64),
            ("max_unreported_records", self.max_unreported_records as u64, 1, 16 << 20),
            ("max_unreported_bytes", self.max_unreported_bytes as u64, 1 << 20, 1 << 30),
            ("max_record_bytes", self.max_record_bytes as u64, 1 << 20, 4 << 20),
            ("invisible_ms", self.invisible_ms, 1_000, 3_600_000),
            ("receive_streams", self.receive_streams as u64, 1, 64),
            ("receive_records", self.receive_records.into(), 1, 32),
            ("receive_wait_ms", self.receive_wait_ms, 100, 20_000),
            ("prefetch_records", self.prefetch_records as u64, 1, 65_536),
            ("prefetch_bytes", self.prefetch_bytes as u64, 64 << 10, 1 << 30),
            ("ack_records", self.ack_records as u64, 1, 1_024),
            ("session_timeout_ms", self.session_timeout_ms, 1_000, 3_600_000),
            ("instances", self.instances.into(), 1, 10_000),
            ("threads", self.threads as u64, 1, 16),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenError::Invalid(format!("{name} is {value}; it may be {low} to {high}")));
            }
        }
        if self.access_key.is_some() != self.secret_key.is_some() {
            return Err(OpenError::Invalid("access_key and secret_key come together or not at all".into()));
        }
        self.check_address()?;
        if let Some(tls) = &self.tls {
            tls.check().map_err(|error| OpenError::Invalid(error.to_string()))?;
        }
        self.client().check().map_err(|error| OpenError::Invalid(error.to_string()))
    }

    fn check_security(&self) -> Result<(), TlsError> {
        let security = Security::new(self.tls.as_ref(), self.plaintext)?;
        self.endpoints.iter().chain(&self.admin).try_for_each(|one| security.allow_address("RocketMQ", one))
    }

    /// Checks whether the servers may be reached like this. Reads no files, and connects to nothing.
    ///
    /// # Errors
    /// [`OpenError::Invalid`].
    pub fn check_address(&self) -> Result<(), OpenError> {
        self.check_security().map_err(|error| OpenError::Invalid(error.to_string()))
    }

    pub(super) fn client(&self) -> ClientOptions {
        ClientOptions {
            endpoints: self.endpoints.clone(),
            namespace: self.namespace.clone(),
            credentials: self.credentials(),
            tls: self.tls.clone(),
            timeout: self.timeout(),
        }
    }

    pub(super) fn credentials(&self) -> Option<Credentials> {
        let (access_key, Secret(secret_key)) = self.access_key.clone().zip(self.secret_key.clone())?;
        Some(Credentials { access_key, secret_key })
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(super) fn invisible(&self) -> Duration {
        Duration::from_millis(self.invisible_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let fine = RocketOptions { endpoints: vec!["localhost:8081".into()], ..RocketOptions::default() };
        assert_eq!(fine.check(), Ok(()));
        let said =
            |options: RocketOptions| options.check().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said(RocketOptions::default()).contains("endpoints"));
        assert!(
            said(RocketOptions { receive_records: 33, ..fine.clone() }).contains("receive_records is 33")
        );
        assert!(said(RocketOptions { access_key: Some("a".into()), ..fine.clone() }).contains("secret_key"));
        let remote = |admin: &str| RocketOptions { admin: vec![admin.into()], ..fine.clone() };
        assert!(said(remote("broker:10911")).contains("RocketMQ at broker is not on this machine"));
        assert_eq!(said(RocketOptions { plaintext: true, ..remote("broker:10911") }), "");
        assert_eq!(said(RocketOptions { tls: Some(TlsOptions::default()), ..remote("broker:10911") }), "");
        let secret = RocketOptions { secret_key: Some(Secret::new("rain")), ..fine };
        assert!(!format!("{secret:?}").contains("rain"));
    }
}
