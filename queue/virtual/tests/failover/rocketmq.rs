//! A virtual queue over RocketMQ and Kafka, either way.

use super::{a_frozen_master_is_passed_by, prefix, shared};
use std::sync::Arc;
use windfall_contract::broker::Broker;
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::{KafkaOptions as KafkaServer, Private, RocketMqOptions, Server};

/// With the topics made, and deadlines as they are by default.
fn rocketmq(server: &Server) -> Arc<dyn Broker> {
    let options = RocketOptions {
        endpoints: vec![server.url().to_owned()],
        admin: vec![server.address("broker").unwrap().to_owned()],
        prefix: prefix(),
        // A fresh JVM on a busy machine takes its time.
        timeout_ms: 10_000,
        connect_timeout_ms: 20_000,
        receive_wait_ms: 500,
        ..RocketOptions::default()
    };
    let patient = RocketBroker::open(&options).unwrap();
    ["m", "s"].iter().for_each(|topic| patient.ensure_topic(topic, 4).unwrap());
    let RocketOptions { timeout_ms, connect_timeout_ms, .. } = RocketOptions::default();
    Arc::new(RocketBroker::open(&RocketOptions { timeout_ms, connect_timeout_ms, ..options }).unwrap())
}

/// With names of this test's own.
fn kafka(server: &Server) -> Arc<dyn Broker> {
    let prefix = prefix();
    KafkaBroker::open(&KafkaOptions { prefix, ..KafkaOptions::at(server.url()) }).unwrap()
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn frozen_rocketmq_behind_it_kafka() {
    let master = Private::start(RocketMqOptions::default()).unwrap();
    a_frozen_master_is_passed_by(&master, rocketmq(&master), kafka(&shared("kafka")));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn frozen_kafka_behind_it_rocketmq() {
    let master = Private::start(KafkaServer::default()).unwrap();
    a_frozen_master_is_passed_by(&master, kafka(&master), rocketmq(&shared("rocketmq")));
}
