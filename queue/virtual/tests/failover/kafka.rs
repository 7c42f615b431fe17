//! A virtual queue over two Kafka clusters.

use super::{a_frozen_master_is_passed_by, prefix, shared};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_servers::{KafkaOptions as ServerOptions, Private};

/// Small buffers, so that they are full now and then.
fn options(servers: &str) -> KafkaOptions {
    KafkaOptions {
        prefix: prefix(),
        metadata_refresh_ms: 500,
        unreported_kib_max: 4_096,
        ..KafkaOptions::at(servers)
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_frozen_kafka_behind_it_kafka() {
    let master = Private::start(ServerOptions::default()).unwrap();
    let one = KafkaBroker::open(&options(master.url())).unwrap();
    let two = KafkaBroker::open(&options(shared("kafka2").url())).unwrap();
    a_frozen_master_is_passed_by(&master, one, two);
}
