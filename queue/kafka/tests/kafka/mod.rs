mod away;
mod broken;
mod conforms;
mod losses;
mod rights;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use windfall_queue_kafka::KafkaOptions;
use windfall_servers::Servers;

/// The machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The address of the shared broker.
pub fn shared(name: &str) -> String {
    Servers::from_env_or_start(&[name]).unwrap().server(name).unwrap().url().to_owned()
}

/// A prefix of this run's own.
pub fn prefix(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    format!("{what}-{}-{since}-{}.", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Options for tests: quick rebalances, and small buffers, so that they are full now and then.
pub fn options(servers: &str, prefix: String) -> KafkaOptions {
    KafkaOptions {
        prefix,
        connect_timeout_ms: 20_000,
        session_timeout_ms: 6_000,
        heartbeat_ms: 200,
        metadata_refresh_ms: 500,
        fetch_wait_ms: 20,
        unreported_kib_max: 4_096,
        ..KafkaOptions::at(servers)
    }
}
