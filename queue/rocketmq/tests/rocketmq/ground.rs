//! The server that tests share, and what they all do with it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{Broker, Delivery, Fetch, InRecord, OutRecord, Producer, SendRefused, Tag};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::{Private, RocketMqOptions, Server, Servers};

/// Where a server is, with names of this test's own.
pub struct Ground {
    pub options: RocketOptions,
}

/// Names of one test's own.
pub fn prefix() -> String {
    static TESTS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let test = TESTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    format!("t{}-{now}-{test}-", std::process::id())
}

pub fn options_of(server: &Server) -> RocketOptions {
    RocketOptions {
        endpoints: vec![server.url().to_owned()],
        admin: vec![server.address("broker").unwrap().to_owned()],
        prefix: prefix(),
        // A fresh JVM on a busy machine takes its time.
        timeout_ms: 10_000,
        connect_timeout_ms: 20_000,
        receive_wait_ms: 500,
        ..RocketOptions::default()
    }
}

impl Ground {
    pub async fn shared() -> Self {
        let shared = || {
            let servers = Servers::from_env_or_start(&["rocketmq"]).unwrap();
            options_of(&servers.server("rocketmq").unwrap())
        };
        let options = tokio::task::spawn_blocking(shared).await.unwrap();
        warm(&options).await;
        Self { options }
    }
}

/// The first record through a server, at the pace of a JVM that loads its classes on a busy machine: twenty checks that begin
/// all at once would each wait for that in vain.
async fn warm(options: &RocketOptions) {
    let patient = RocketOptions { timeout_ms: 60_000, connect_timeout_ms: 60_000, ..options.clone() };
    let broker = RocketBroker::open(&patient).unwrap();
    broker.ensure_topic("first", 1).unwrap();
    let mut first = reader(&broker, "first", "first").await;
    write(&broker, "first", 0..1).await;
    assert_eq!(first.read(1, Duration::from_secs(60)).await.unwrap().len(), 1);
    first.commit().await.unwrap();
    first.close().await;
}

/// A server that this test alone may kill.
pub async fn private(options: RocketMqOptions) -> (Arc<Private>, RocketOptions) {
    let start = || {
        let server = Private::start(options).unwrap();
        let options = options_of(&server);
        (Arc::new(server), options)
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// Does something to a server off the async threads.
pub async fn steer<T: Send + 'static>(
    server: &Arc<Private>,
    what: impl FnOnce(&Server) -> T + Send + 'static,
) -> T {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || what(&server)).await.unwrap()
}

pub async fn reader(broker: &RocketBroker, topic: &str, group: &str) -> Reader {
    Reader::new(broker.consumer(topic, group).await.unwrap())
}

pub fn send(producer: &dyn Producer, number: u64) {
    send_payload(producer, number, &number.to_be_bytes());
}

fn send_payload(producer: &dyn Producer, number: u64, payload: &[u8]) {
    let started = Instant::now();
    loop {
        match producer.send(Tag(number), OutRecord { key: &number.to_be_bytes(), payload }) {
            Ok(()) => return,
            Err(SendRefused::Full | SendRefused::Unavailable(_))
                if started.elapsed() < Duration::from_secs(60) =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// Writes records `range`; all are stored.
pub async fn write(broker: &RocketBroker, topic: &str, range: Range<u64>) {
    let records = range.map(|number| (number, number.to_be_bytes().to_vec()));
    write_all(broker, topic, records.collect()).await;
}

/// Writes records with these payloads; all are stored.
pub async fn write_payloads(broker: &RocketBroker, topic: &str, payloads: Vec<Vec<u8>>) {
    write_all(broker, topic, (0..).zip(payloads).collect()).await;
}

async fn write_all(broker: &RocketBroker, topic: &str, records: Vec<(u64, Vec<u8>)>) {
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer(topic, ledger.clone()).unwrap();
    let wanted: BTreeMap<_, _> =
        records.iter().map(|(number, _)| (Tag(*number), vec![Delivery::Stored])).collect();
    tokio::task::spawn_blocking(move || {
        records.iter().for_each(|(number, payload)| send_payload(&*producer, *number, payload));
        assert_eq!(producer.close(Duration::from_secs(60)), 0);
    })
    .await
    .unwrap();
    assert_eq!(ledger.reports(), wanted, "not all are stored once");
}

/// What one poll brings.
pub async fn drain(reader: &mut Reader, wait: Duration) -> Vec<InRecord> {
    reader.poll(Fetch { max_records: 256, max_bytes: 8 << 20, wait }).await.unwrap()
}

pub fn number_of(record: &InRecord) -> u64 {
    u64::from_be_bytes(record.payload[..].try_into().unwrap())
}
