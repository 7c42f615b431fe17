//! Real servers on loopback, for tests, measurements and the demo: Kafka, RocketMQ, Redis, PostgreSQL,
//! etcd and S3, without Docker.
//!
//! Redis, PostgreSQL and etcd are the machine's own packages (`./dev up` installs them); Kafka and
//! RocketMQ are fetched once from Maven Central; the S3 server is a program of this repository, which cargo builds. Heaps are
//! small, ports free ones, data throw-away.
//!
//! [`Servers`] is a set of named servers in a state folder, shared by every process that reads its state file, and
//! alive until [`Servers::down`]. [`Private`] is one server that ends with its value: for tests that kill
//! or freeze it. Both give [`Server`], which knows its addresses and can be frozen, killed and started
//! again on the same ports and data.
//!
//! ```no_run
//! use windfall_servers::{KafkaOptions, Private, Servers};
//!
//! let servers = Servers::from_env_or_start(&["kafka", "redis"])?;
//! let bootstrap = servers.server("kafka")?.url().to_owned();
//!
//! let broker = Private::start(KafkaOptions::default())?;
//! broker.freeze()?;
//! broker.thaw()?;
//! broker.kill()?;
//! broker.start()?;
//! # Ok::<(), windfall_servers::Error>(())
//! ```
//!
//! With [`Servers::up_by_tls`] and [`Private::start_by_tls`] servers take TLS, by certificates of an [`Authority`] of their own:
//! Redis, PostgreSQL, etcd, Kafka and RocketMQ. Setting `ca` is the file that clients trust, `client_cert` and `client_key` are
//! what they may show.
//!
//! It is not for production: no replicas, no passwords worth the name. Every call blocks; in async code
//! use it before the runtime starts or in `spawn_blocking`.
//!
//! A process is only ever signalled when its id, start time and boot are those that were written down
//! when it was started; see `process`.

mod authority;
mod error;
mod jars;
mod kinds;
mod lock;
mod ports;
mod process;
mod ready;
mod rocketmq_admin;
mod server;
mod servers;
mod spec;
mod state;

pub use authority::{Authority, Pair, Tls, Validity};
pub use error::Error;
pub use rocketmq_admin::TopicKind;
pub use server::{Activity, Private, Server};
pub use servers::{STATE_VARIABLE, Servers};
pub use spec::{KafkaOptions, PostgresOptions, PostgresOrigin, RedisOptions, RocketMqOptions, Spec};

/// The folder of RocketMQ's jars, for tests that look into them; fetches them the first time.
///
/// # Errors
/// [`Error`]: no Maven, or nothing to be had from it.
pub fn rocketmq_jars() -> Result<std::path::PathBuf, Error> {
    jars::ROCKETMQ.folder(&servers::home())
}

/// The folder of the jars of Kafka's command-line tools, such as `org.apache.kafka.tools.AclCommand`; fetches them the first time.
///
/// # Errors
/// [`Error`]: no Maven, or nothing to be had from it.
pub fn kafka_tools_jars() -> Result<std::path::PathBuf, Error> {
    jars::KAFKA_TOOLS.folder(&servers::home())
}

/// The folders of the jars of XXL-JOB's executors, 2.4 and 3.3; fetches them the first time.
///
/// # Errors
/// [`Error`]: no Maven, or nothing to be had from it.
pub fn xxl_job_jars() -> Result<[std::path::PathBuf; 2], Error> {
    let [two, three] = &jars::XXL_JOB;
    Ok([two.folder(&servers::home())?, three.folder(&servers::home())?])
}

/// Progress that a person waits for; to standard error, so that `--json` stays clean.
fn say(text: &str) {
    eprintln!("windfall-servers: {text}");
}
