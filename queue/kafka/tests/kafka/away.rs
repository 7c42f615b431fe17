//! Clusters that are away, and come.

use super::{PATIENCE, options, prefix};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{Broker, OpenError, OutRecord, Tag};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_servers::{KafkaOptions as ServerOptions, Private};

/// How many threads and files this process has.
fn belongings() -> (usize, usize) {
    let count = |place: &str| std::fs::read_dir(place).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// Nobody listens, or whoever listens says nothing: opening the handle needs neither, each try is short, and a
/// thousand of them leave nothing behind.
#[test]
fn a_cluster_that_is_away_may_be_tried_for_ever() {
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let frozen = frozen.local_addr().unwrap().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for servers in ["127.0.0.1:1", &frozen] {
        // A handle that waited for its cluster would take five minutes.
        let patient = KafkaOptions { connect_timeout_ms: 300_000, ..KafkaOptions::at(servers) };
        let began = Instant::now();
        drop(KafkaBroker::open(&patient).unwrap());
        println!("{servers}: the handle took {:?}", began.elapsed());
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        let broker = KafkaBroker::open(&KafkaOptions::at(servers)).unwrap();
        let tries: [&dyn Fn() -> Option<OpenError>; 4] = [
            &|| broker.producer("t", Arc::new(Ledger::default())).err(),
            &|| runtime.block_on(broker.consumer("t", "g")).err(),
            &|| broker.ensure_topic("t", 1).err(),
            &|| runtime.block_on(broker.lag("t", "g")).err(),
        ];
        for (number, one) in tries.into_iter().enumerate() {
            let began = Instant::now();
            let error = one();
            println!("{servers}, {number}: {error:?} after {:?}", began.elapsed());
            assert!(matches!(error, Some(OpenError::Unavailable(_))), "{error:?}");
            assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        }
        drop(broker);
        let options = KafkaOptions { connect_timeout_ms: 10, ..KafkaOptions::at(servers) };
        let broker = KafkaBroker::open(&options).unwrap();
        let try_all = |times: usize| {
            for number in 0..times {
                let error = match number % 2 {
                    0 => broker.producer("t", Arc::new(Ledger::default())).err(),
                    _ => runtime.block_on(broker.consumer("t", "g")).err(),
                };
                assert!(matches!(error, Some(OpenError::Unavailable(_))), "{error:?}");
            }
        };
        try_all(20);
        let before = belongings();
        try_all(1_000);
        let after = belongings();
        println!("{servers}: threads and files before and after 1,000 tries: {before:?}, {after:?}");
        assert!(after.0 <= before.0 + 4 && after.1 <= before.1 + 8, "{before:?} have become {after:?}");
    }
}

/// A cluster that starts after us, and one that was killed and comes back, by who tries now and then.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_cluster_that_comes_is_taken_up() {
    let server = Private::start(ServerOptions::default()).unwrap();
    let options = KafkaOptions { connect_timeout_ms: 1_000, ..options(server.url(), prefix("away")) };
    {
        let patient = KafkaOptions { connect_timeout_ms: 20_000, ..options.clone() };
        KafkaBroker::open(&patient).unwrap().ensure_topic("t", 1).unwrap();
    }
    server.kill().unwrap();
    let broker = KafkaBroker::open(&options).unwrap();
    assert!(matches!(
        broker.producer("t", Arc::new(Ledger::default())).err(),
        Some(OpenError::Unavailable(_))
    ));
    server.start().unwrap();
    let back = Instant::now();
    let ledger = Arc::new(Ledger::default());
    let producer = loop {
        match broker.producer("t", ledger.clone()) {
            Ok(producer) => break producer,
            Err(error) => {
                assert!(!matches!(error, OpenError::Invalid(_)), "{error}");
                assert!(back.elapsed() < PATIENCE, "{error}");
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    };
    let opened = back.elapsed();
    producer.send(Tag(1), OutRecord { key: b"k", payload: b"p" }).unwrap();
    while ledger.reports().is_empty() {
        assert!(back.elapsed() < PATIENCE, "no report");
        std::thread::sleep(Duration::from_millis(10));
    }
    let stored = back.elapsed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut reader = Reader::new(broker.consumer("t", "g").await.unwrap());
        reader.read(1, PATIENCE).await.unwrap();
        println!("after the return: opened {opened:?}, stored {stored:?}, read {:?}", back.elapsed());
        reader.close().await;
    });
}
