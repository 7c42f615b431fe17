//! A virtual queue over RocketMQ and Kafka, either way.

use super::ground::{options_of, prefix};
use crate::failover::a_frozen_master_is_passed_by;
use std::sync::Arc;
use windfall_contract::broker::Broker;
use windfall_queue::kafka::{KafkaBroker, KafkaOptions};
use windfall_queue::rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::{KafkaOptions as KafkaServer, Private, RocketMqOptions, Server, Servers};

/// With the topics made, and deadlines as they are by default.
fn rocketmq(server: &Server) -> Arc<dyn Broker> {
    let options = options_of(server);
    let patient = RocketBroker::open(&options).unwrap();
    ["m", "s"].iter().for_each(|topic| patient.ensure_topic(topic, 4).unwrap());
    let timeout_ms = RocketOptions::default().timeout_ms;
    Arc::new(RocketBroker::open(&RocketOptions { timeout_ms, ..options }).unwrap())
}

/// With names of this test's own.
fn kafka(server: &Server) -> Arc<dyn Broker> {
    let prefix = prefix();
    KafkaBroker::open(&KafkaOptions { prefix, ..KafkaOptions::at(server.url()) }).unwrap()
}

fn shared(name: &str) -> Server {
    Servers::from_env_or_start(&[name]).unwrap().server(name).unwrap()
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
