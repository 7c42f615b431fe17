//! What an operator may choose, and how it becomes librdkafka's settings.

use rdkafka::ClientConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use windfall_contract::broker::OpenError;
use windfall_tls::{Security, TlsError, TlsOptions};

/// How a Kafka cluster is reached and used. Defaults suit packs of events; what is left out has its default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaOptions {
    /// `host:port` of one broker or more, with commas between. No default.
    pub bootstrap_servers: String,
    /// Put before the names of all topics and groups, so that several installations share a cluster. Default none.
    pub prefix: String,
    /// Named in the broker's logs and quotas. Default `windfall`.
    pub client_id: String,
    /// TLS to the brokers, each of which must bear the name that it is known by; there is no `server_name` here. Default:
    /// none, which only brokers on this machine are reached without, also by what the cluster names them.
    pub tls: Option<TlsOptions>,
    /// The password of `tls.key_file`. Default none.
    pub tls_key_password: Option<Secret>,
    /// Whether plain text may leave this machine. Default false.
    pub plaintext: bool,
    /// The credentials for SASL. Default none.
    pub sasl: Option<Sasl>,
    /// How long opening a producer or a consumer, or a question, waits for a cluster that is away before it is
    /// `Unavailable`. The connection is tried on meanwhile, so asking again goes on where the last try ended. 10 to
    /// 300,000; default 1,000.
    pub connect_timeout_ms: u32,
    /// How long a request waits for its answer before the connection is given up. 1,000 to 60,000; default 5,000.
    pub request_timeout_ms: u32,

    /// Packs compress to a third, at the cost of CPU time on both sides. Default none.
    pub compression: Compression,
    /// How long the producer gathers records before it sends them. Packs have waited already. 0 to 1,000; default 1.
    pub linger_ms: u32,
    /// Bytes of one batch to one partition at most. 16 KiB to 16 MiB; default 1 MiB.
    pub batch_bytes: u32,
    /// The largest payload; topics that this driver makes take it. 1 MiB to 64 MiB; default 2 MiB.
    pub record_bytes_max: u32,
    /// Records that a topic's producer may have unreported; `Full` beyond. 1 to 1,000,000; default 65,536.
    pub unreported_records_max: u32,
    /// KiB of records that a topic's producer may have unreported; `Full` beyond. 1,024 to 2,000,000; default 65,536.
    pub unreported_kib_max: u32,
    /// The time without an answer after which a record is reported, as `Failed` if it was never sent and else as
    /// `Unknown`. The fan-out sends a copy elsewhere after its own `delivery_timeout_ms` (3,000), so this bounds
    /// only what a frozen broker stores late, as duplicates. 1,000 to 300,000; default 10,000.
    pub delivery_timeout_ms: u32,

    /// The time of silence after which a member loses its partitions. The broker allows 6,000 to 1,800,000 by default;
    /// default 10,000.
    pub session_timeout_ms: u32,
    /// How often a member says that it lives, and at the latest hears of a rebalance. 100 to a third of the
    /// session time-out; default 1,000.
    pub heartbeat_ms: u32,
    /// A member whose `poll` is not called for so long loses its partitions, and so does one that was told of a
    /// revocation and does not poll again. From the session time-out to 3,600,000; default 60,000.
    pub poll_interval_max_ms: u32,
    /// With this name, followed by `-0`, `-1` … for the members of one group in this process, a member that is back
    /// within the session time-out keeps its partitions: no rebalance at a restart. It must be unique to the process.
    /// Default none.
    pub static_member_id: Option<String>,
    /// Bytes of one partition that a fetch brings at most; a larger record comes all the same. 16 KiB to 64 MiB;
    /// default 1 MiB.
    pub fetch_bytes: u32,
    /// KiB that a consumer reads ahead: once inside librdkafka, and up to twice in the driver while partitions are
    /// paused. 256 to 1,000,000; default 8,192.
    pub prefetch_kib: u32,
    /// How long the broker may hold a fetch that has nothing to bring. 1 to 10,000; default 100.
    pub fetch_wait_ms: u32,
    /// How often the topic is looked at for new partitions, and for whether it was created anew. 100 to 900,000; default 10,000.
    pub metadata_refresh_ms: u32,

    /// Copies of each partition of topics that this driver makes; −1 is the broker's default. Default −1.
    pub replication: i32,
    /// Copies that must hold a record before it is `Stored`, of topics that this driver makes. Default the broker's.
    pub min_insync_replicas: Option<u32>,
    /// How long topics that this driver makes keep a record (`retention.ms`): Kafka deletes it then, read or not.
    /// Longer than any outage, pause or fuse may last. An hour (3,600,000) or more, or −1 for ever; default 30 days
    /// (2,592,000,000). A topic that keeps records for less is opened with a warning.
    pub retention_ms: i64,
    /// Bytes that a partition of topics that this driver makes keeps (`retention.bytes`): Kafka deletes the oldest
    /// beyond, read or not. 1 GiB or more, or −1 for no limit; default −1: a full disk refuses records, and nothing
    /// is lost by that.
    pub retention_bytes: i64,
    /// Further settings of librdkafka, as they are. Those that the options above stand for, those on which the contract
    /// depends, and those of TLS (`ssl.*` but for ciphers, curves and signatures) are refused.
    pub librdkafka: BTreeMap<String, String>,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            bootstrap_servers: String::new(),
            prefix: String::new(),
            client_id: "windfall".into(),
            tls: None,
            tls_key_password: None,
            plaintext: false,
            sasl: None,
            connect_timeout_ms: 1_000,
            request_timeout_ms: 5_000,
            compression: Compression::None,
            linger_ms: 1,
            batch_bytes: 1 << 20,
            record_bytes_max: 2 << 20,
            unreported_records_max: 65_536,
            unreported_kib_max: 65_536,
            delivery_timeout_ms: 10_000,
            session_timeout_ms: 10_000,
            heartbeat_ms: 1_000,
            poll_interval_max_ms: 60_000,
            static_member_id: None,
            fetch_bytes: 1 << 20,
            prefetch_kib: 8_192,
            fetch_wait_ms: 100,
            metadata_refresh_ms: 10_000,
            replication: -1,
            min_insync_replicas: None,
            retention_ms: 30 * 24 * 3_600_000,
            retention_bytes: -1,
            librdkafka: BTreeMap::new(),
        }
    }
}

/// A name and a password.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    /// How the password is sent.
    pub mechanism: Mechanism,
    /// The user's name.
    pub username: String,
    /// The user's password.
    pub password: Secret,
}

/// How a password is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Mechanism {
    /// In clear text: with TLS only.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Salted and hashed with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Salted and hashed with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// A secret text that is not printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("***")
    }
}

/// How batches are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4, which is fast.
    Lz4,
    /// Zstandard, which compresses to fewer bytes.
    Zstd,
}

/// Settings that options stand for, or on which the contract depends.
const OWNED: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "compression.codec",
    "compression.type",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "fetch.message.max.bytes",
    "fetch.wait.max.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "linger.ms",
    "log.queue",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "partitioner",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "session.timeout.ms",
    "socket.timeout.ms",
    "topic.metadata.refresh.interval.ms",
    "transactional.id",
];

/// The settings of TLS that are left to operators: none of them makes a broker trusted.
const TLS_FREE: &[&str] = &["ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"];

/// Whether a setting could change which brokers are trusted, or what is shown to them.
fn is_of_tls(key: &str) -> bool {
    let is_ssl = key.starts_with("ssl.") || key.starts_with("ssl_");
    (is_ssl && !TLS_FREE.contains(&key)) || key == "enable.ssl.certificate.verification"
}

/// What a batch and its records cost beside payloads and keys.
pub(super) const OVERHEAD_BYTES: u32 = 16 << 10;

impl KafkaOptions {
    /// Options with all defaults but the address.
    pub fn at(bootstrap_servers: &str) -> Self {
        Self { bootstrap_servers: bootstrap_servers.into(), ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let invalid = |what: String| Err(OpenError::Invalid(format!("kafka: {what}")));
        if self.bootstrap_servers.split(',').all(|one| one.trim().is_empty()) {
            return invalid("bootstrap_servers is empty; it wants host:port of a broker".into());
        }
        for (name, value, low, high) in [
            ("connect_timeout_ms", self.connect_timeout_ms, 10, 300_000),
            ("request_timeout_ms", self.request_timeout_ms, 1_000, 60_000),
            ("linger_ms", self.linger_ms, 0, 1_000),
            ("batch_bytes", self.batch_bytes, 16 << 10, 16 << 20),
            ("record_bytes_max", self.record_bytes_max, 1 << 20, 64 << 20),
            ("unreported_records_max", self.unreported_records_max, 1, 1_000_000),
            ("unreported_kib_max", self.unreported_kib_max, 1_024, 2_000_000),
            ("delivery_timeout_ms", self.delivery_timeout_ms, 1_000, 300_000),
            ("session_timeout_ms", self.session_timeout_ms, 1_000, 1_800_000),
            ("heartbeat_ms", self.heartbeat_ms, 100, self.session_timeout_ms / 3),
            ("poll_interval_max_ms", self.poll_interval_max_ms, self.session_timeout_ms, 3_600_000),
            ("fetch_bytes", self.fetch_bytes, 16 << 10, 64 << 20),
            ("prefetch_kib", self.prefetch_kib, 256, 1_000_000),
            ("fetch_wait_ms", self.fetch_wait_ms, 1, 10_000),
            ("metadata_refresh_ms", self.metadata_refresh_ms, 100, 900_000),
        ] {
            if value < low || value > high {
                return invalid(format!("{name} = {value}: {low} to {high} is allowed"));
            }
        }
        for (name, value, low) in [
            ("retention_ms", self.retention_ms, 3_600_000),
            ("retention_bytes", self.retention_bytes, 1 << 30),
        ] {
            if value != -1 && value < low {
                return invalid(format!("{name} = {value}: {low} or more is allowed, or -1 for no limit"));
            }
        }
        if self.delivery_timeout_ms <= self.linger_ms {
            return invalid("delivery_timeout_ms must be more than linger_ms".into());
        }
        if let Some(owned) = self.librdkafka.keys().find(|key| OWNED.contains(&key.as_str())) {
            return invalid(format!(
                "librdkafka.\"{owned}\" is set by the driver: use the option that stands for it"
            ));
        }
        if let Some(key) = self.librdkafka.keys().find(|key| is_of_tls(key)) {
            return invalid(format!(
                "librdkafka.\"{key}\" cannot be set: `tls` says which brokers are trusted, and their certificates are always \
                 verified"
            ));
        }
        self.check_address()?;
        if let Some(tls) = &self.tls {
            tls.check().map_err(|error| OpenError::Invalid(format!("kafka: {error}")))?;
        }
        if self.tls.as_ref().is_some_and(|tls| tls.server_name.is_some()) {
            return invalid(
                "tls.server_name cannot be set: each broker must bear the name that it is known by (advertised.listeners)"
                    .into(),
            );
        }
        Ok(())
    }

    fn check_security(&self) -> Result<(), TlsError> {
        let security = Security::new(self.tls.as_ref(), self.plaintext)?;
        let mut servers = self.bootstrap_servers.split(',').map(str::trim).filter(|one| !one.is_empty());
        servers.try_for_each(|one| security.allow_address("Kafka", one))
    }

    /// Checks whether the brokers may be reached like this. Reads no files, and connects to nothing.
    ///
    /// # Errors
    /// [`OpenError::Invalid`].
    pub fn check_address(&self) -> Result<(), OpenError> {
        self.check_security().map_err(|error| OpenError::Invalid(format!("kafka: {error}")))
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms.into())
    }

    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms.into())
    }

    pub(super) fn poll_interval_max(&self) -> Duration {
        Duration::from_millis(self.poll_interval_max_ms.into())
    }

    pub(super) fn topic(&self, topic: &str) -> String {
        format!("{}{topic}", self.prefix)
    }

    /// The Kafka group of one topic, so that members of one topic do not rebalance another's.
    pub(super) fn group(&self, topic: &str, group: &str) -> String {
        format!("{}{group}.{topic}", self.prefix)
    }

    /// The settings that every client has.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in &self.librdkafka {
            config.set(key, value);
        }
        config.set("bootstrap.servers", &self.bootstrap_servers);
        config.set("client.id", &self.client_id);
        config.set("socket.timeout.ms", self.request_timeout_ms.to_string());
        config.set("topic.metadata.refresh.interval.ms", self.metadata_refresh_ms.to_string());
        self.security(&mut config);
        // A cluster that is back is used again at once, not after librdkafka's 10 s.
        for (key, value) in [("reconnect.backoff.ms", "50"), ("reconnect.backoff.max.ms", "1000")] {
            if !self.librdkafka.contains_key(key) {
                config.set(key, value);
            }
        }
        config
    }

    fn security(&self, config: &mut ClientConfig) {
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            let files = [
                ("ssl.ca.location", &tls.ca_file),
                ("ssl.certificate.location", &tls.cert_file),
                ("ssl.key.location", &tls.key_file),
            ];
            for (key, file) in files {
                if let Some(file) = file {
                    config.set(key, text(file));
                }
            }
            if let Some(Secret(password)) = &self.tls_key_password {
                config.set("ssl.key.password", password);
            }
            config.set("ssl.endpoint.identification.algorithm", "https");
        }
        if let Some(sasl) = &self.sasl {
            let mechanism = match sasl.mechanism {
                Mechanism::Plain => "PLAIN",
                Mechanism::ScramSha256 => "SCRAM-SHA-256",
                Mechanism::ScramSha512 => "SCRAM-SHA-512",
            };
            config.set("sasl.mechanisms", mechanism);
            config.set("sasl.username", &sasl.username);
            config.set("sasl.password", &sasl.password.0);
        }
    }

    /// The settings of a topic's producer.
    pub(super) fn producer(&self, record_bytes_max: usize) -> ClientConfig {
        let mut config = self.client();
        // I2: a record is stored when all copies in sync have it; and in order, and once, as long as the process lives.
        config.set("acks", "all");
        config.set("enable.idempotence", "true");
        // As Java's default does, so that other producers agree where a key lives.
        config.set("partitioner", "murmur2_random");
        let message_bytes = record_bytes_max.saturating_add(OVERHEAD_BYTES as usize);
        config.set("message.max.bytes", message_bytes.to_string());
        config.set("batch.size", self.batch_bytes.to_string());
        config.set("linger.ms", self.linger_ms.to_string());
        config.set("queue.buffering.max.messages", self.unreported_records_max.to_string());
        config.set("queue.buffering.max.kbytes", self.unreported_kib_max.to_string());
        config.set("message.timeout.ms", self.delivery_timeout_ms.to_string());
        config.set("request.timeout.ms", self.request_timeout_ms.to_string());
        let compression = match self.compression {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        };
        config.set("compression.type", compression);
        config
    }

    /// The settings of a client that asks for a group's offsets and is no member of it.
    pub(super) fn observer(&self, group: &str) -> ClientConfig {
        let mut config = self.client();
        config.set("group.id", group);
        config.set("enable.auto.commit", "false");
        config.set("allow.auto.create.topics", "false");
        config
    }

    /// The settings of a group's member, the `member`-th of it in this process.
    pub(super) fn consumer(&self, group: &str, member: usize) -> ClientConfig {
        let mut config = self.observer(group);
        // I3: only what the caller commits is committed.
        config.set("enable.auto.offset.store", "false");
        // An offset out of range is a loss, which is reported and not ignored.
        config.set("auto.offset.reset", "error");
        config.set("partition.assignment.strategy", "cooperative-sticky");
        if let Some(id) = &self.static_member_id {
            config.set("group.instance.id", format!("{id}-{member}"));
        }
        config.set("session.timeout.ms", self.session_timeout_ms.to_string());
        config.set("heartbeat.interval.ms", self.heartbeat_ms.to_string());
        config.set("max.poll.interval.ms", self.poll_interval_max_ms.to_string());
        config.set("max.partition.fetch.bytes", self.fetch_bytes.to_string());
        config.set("queued.max.messages.kbytes", self.prefetch_kib.to_string());
        config.set("fetch.wait.max.ms", self.fetch_wait_ms.to_string());
        // Else a full read-ahead buffer stops the fetch for a whole second.
        if !self.librdkafka.contains_key("fetch.queue.backoff.ms") {
            config.set("fetch.queue.backoff.ms", "10");
        }
        config
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |options: KafkaOptions| options.check().unwrap_err().to_string();
        assert!(refused(KafkaOptions::default()).contains("bootstrap_servers is empty"));
        let options = KafkaOptions { heartbeat_ms: 9_000, ..KafkaOptions::at("127.0.0.1:1") };
        assert!(refused(options).contains("heartbeat_ms = 9000: 100 to 3333 is allowed"));
        let owned = [("acks".to_owned(), "1".to_owned())].into();
        let options = KafkaOptions { librdkafka: owned, ..KafkaOptions::at("127.0.0.1:1") };
        assert!(refused(options).contains("librdkafka.\"acks\" is set by the driver"));
        let options = KafkaOptions { retention_ms: 60_000, ..KafkaOptions::at("127.0.0.1:1") };
        assert!(refused(options).contains("retention_ms = 60000: 3600000 or more is allowed"));
        let tls = TlsOptions { ca_file: Some("/nowhere/ca.pem".into()), ..TlsOptions::default() };
        let options = KafkaOptions { tls: Some(tls), ..KafkaOptions::at("127.0.0.1:1") };
        assert!(refused(options).contains("/nowhere/ca.pem"));
        let tls = TlsOptions { server_name: Some("kafka".into()), ..TlsOptions::default() };
        assert!(refused(KafkaOptions { tls: Some(tls), ..KafkaOptions::at("a:1") }).contains("server_name"));
    }

    #[test]
    fn brokers_elsewhere_are_reached_by_tls_or_by_name_in_plain_text() {
        let at = "127.0.0.1:1, kafka:9092";
        let refused = KafkaOptions::at(at).check().unwrap_err().to_string();
        assert!(refused.contains("Kafka at kafka is not on this machine"), "{refused}");
        assert!(KafkaOptions { plaintext: true, ..KafkaOptions::at(at) }.check().is_ok());
        let tls = Some(TlsOptions::default());
        assert!(KafkaOptions { tls: tls.clone(), ..KafkaOptions::at(at) }.check().is_ok());
        let both = KafkaOptions { tls, plaintext: true, ..KafkaOptions::at(at) };
        assert!(both.check().unwrap_err().to_string().contains("contradict"));
    }

    #[test]
    fn a_setting_that_weakens_tls_is_refused() {
        let with = |key: &str| {
            let librdkafka = [(key.to_owned(), "false".to_owned())].into();
            let tls = Some(TlsOptions::default());
            KafkaOptions { librdkafka, tls, ..KafkaOptions::at("kafka:9092") }.check()
        };
        for key in [
            "enable.ssl.certificate.verification",
            "ssl.ca.certificate.stores",
            "ssl.ca.location",
            "ssl.ca.pem",
            "ssl.certificate.location",
            "ssl.certificate.pem",
            "ssl.certificate.verify_cb",
            "ssl.crl.location",
            "ssl.endpoint.identification.algorithm",
            "ssl.engine.id",
            "ssl.engine.location",
            "ssl.key.location",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.location",
            "ssl.keystore.password",
            "ssl.providers",
            "ssl_ca",
            "ssl_certificate",
            "ssl_engine_callback_data",
            "ssl_key",
        ] {
            let refused = with(key).unwrap_err().to_string();
            assert!(refused.contains(&format!("librdkafka.\"{key}\" cannot be set")), "{refused}");
        }
        for key in TLS_FREE {
            assert_eq!(with(key), Ok(()), "{key}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let sasl =
            Sasl { mechanism: Mechanism::Plain, username: "u".into(), password: Secret("rain".into()) };
        let options = KafkaOptions { sasl: Some(sasl), ..KafkaOptions::at("127.0.0.1:1") };
        assert!(!format!("{options:?}").contains("rain"));
    }
}
