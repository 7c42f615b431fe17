//! What may be started, and with which settings.

use serde::{Deserialize, Serialize};

use crate::Error;

/// One kind of server with its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spec {
    /// Apache Kafka 4.3.1, broker and controller in one process (KRaft).
    Kafka(KafkaOptions),
    /// Apache RocketMQ 5.5.0: name server, broker and proxy.
    RocketMq(RocketMqOptions),
    /// The Redis of this machine.
    Redis(RedisOptions),
    /// Three Redis masters in one cluster.
    RedisCluster,
    /// The PostgreSQL of this machine.
    Postgres(PostgresOptions),
    /// The etcd of this machine.
    Etcd,
    /// An S3 server that keeps its one bucket in a folder; settings `bucket`, `region`, `access_key_id` and
    /// `secret_access_key`. Cargo builds it: package `windfall-s3-server`.
    S3,
}

/// How a Kafka broker is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KafkaOptions {
    /// Listens for TLS too: address `tls`, file `ca`; with `sasl` also address `sasl_tls`.
    pub tls: bool,
    /// Listens for logins too: address `sasl`, settings `user` and `password`, by PLAIN, SCRAM-SHA-256 or
    /// SCRAM-SHA-512.
    pub sasl: bool,
    /// More lines of `server.properties`; a later line wins over ours.
    pub properties: Vec<(String, String)>,
}

/// How RocketMQ is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RocketMqOptions {
    /// The broker is a process of its own (`-pm cluster`), part `broker`, so that a test can end it alone.
    /// Otherwise it lives inside the part `proxy`, which is smaller and starts sooner.
    pub separate_broker: bool,
    /// More lines of `broker.conf`; a later line wins over ours.
    pub broker_properties: Vec<(String, String)>,
    /// More entries of `rmq-proxy.json`, over ours.
    pub proxy_properties: Vec<(String, serde_json::Value)>,
}

/// How Redis is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisOptions {
    /// Clients must send it. Default: none.
    pub password: Option<String>,
    /// Keeps an append-only file, so that a restart keeps the data. Default: yes.
    pub appendonly: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { password: None, appendonly: true }
    }
}

/// How PostgreSQL is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresOptions {
    /// More lines of `postgresql.conf`, over ours. `fsync` and `synchronous_commit` are on, as in production.
    pub settings: Vec<(String, String)>,
    /// Where its data come from. Default: it begins empty.
    #[serde(default)]
    pub origin: PostgresOrigin,
}

/// Where the data of a PostgreSQL server come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PostgresOrigin {
    /// It begins empty.
    #[default]
    Empty,
    /// A base backup of the server with this URL, restored: it goes its own way from there.
    BackupOf(String),
    /// A base backup of the server with this URL, which it follows by streaming replication as `standby` until it is
    /// promoted (`SELECT pg_promote()`).
    StandbyOf(String),
}

impl PostgresOptions {
    /// A standby of the server with this URL. The server waits for it where its settings have
    /// `synchronous_standby_names = 'standby'`.
    #[must_use]
    pub fn standby_of(url: &str) -> Self {
        Self { origin: PostgresOrigin::StandbyOf(url.to_owned()), ..Self::default() }
    }

    /// What a backup of the server with this URL restores, taken now.
    #[must_use]
    pub fn backup_of(url: &str) -> Self {
        Self { origin: PostgresOrigin::BackupOf(url.to_owned()), ..Self::default() }
    }
}

impl Spec {
    /// The names that [`Spec::named`] knows.
    pub const NAMES: [&str; 7] = ["kafka", "rocketmq", "redis", "redis-cluster", "postgres", "etcd", "s3"];

    /// The servers that `./dev up` starts when no name is given.
    pub const ALL: [&str; 6] = ["kafka", "kafka2", "rocketmq", "redis", "postgres", "etcd"];

    /// The kind that a server's name says, with its default options: `kafka2` is a second Kafka.
    ///
    /// # Errors
    /// [`Error::UnknownName`].
    pub fn named(name: &str) -> Result<Self, Error> {
        if name.strip_prefix("s3").is_some_and(|more| more.bytes().all(|byte| byte.is_ascii_digit())) {
            return Ok(Self::S3);
        }
        Ok(match name.trim_end_matches(|letter: char| letter.is_ascii_digit()) {
            "kafka" => Self::Kafka(KafkaOptions::default()),
            "rocketmq" => Self::RocketMq(RocketMqOptions::default()),
            "redis" => Self::Redis(RedisOptions::default()),
            "redis-cluster" => Self::RedisCluster,
            "postgres" => Self::Postgres(PostgresOptions::default()),
            "etcd" => Self::Etcd,
            _ => return Err(Error::UnknownName { name: name.to_owned() }),
        })
    }

    /// The name of a server of this kind when it is the only one.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "kafka",
            Self::RocketMq(_) => "rocketmq",
            Self::Redis(_) => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Postgres(_) => "postgres",
            Self::Etcd => "etcd",
            Self::S3 => "s3",
        }
    }
}

impl From<KafkaOptions> for Spec {
    fn from(options: KafkaOptions) -> Self {
        Self::Kafka(options)
    }
}

impl From<RocketMqOptions> for Spec {
    fn from(options: RocketMqOptions) -> Self {
        Self::RocketMq(options)
    }
}

impl From<RedisOptions> for Spec {
    fn from(options: RedisOptions) -> Self {
        Self::Redis(options)
    }
}

impl From<PostgresOptions> for Spec {
    fn from(options: PostgresOptions) -> Self {
        Self::Postgres(options)
    }
}
