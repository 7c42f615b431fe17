//! A virtual queue over two clusters.

use super::{options, prefix, shared};
use crate::failover;
use windfall_queue::kafka::KafkaBroker;
use windfall_servers::{KafkaOptions as ServerOptions, Private};

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_frozen_master_is_passed_by() {
    let master = Private::start(ServerOptions::default()).unwrap();
    let one = KafkaBroker::open(&options(master.url(), prefix("over"))).unwrap();
    let two = KafkaBroker::open(&options(&shared("kafka2"), prefix("over"))).unwrap();
    failover::a_frozen_master_is_passed_by(&master, one, two);
}
