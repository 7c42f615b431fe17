//! A server that is killed, or stands still.

use super::ground::{drain, number_of, private, reader, send, steer, write};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::broker::Ledger;
use windfall_contract::broker::{Broker, CommitError, Delivery, Position, Tag};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::RocketMqOptions;

/// Proxy and broker killed and started again under load: what was reported stored is read, each record is reported
/// once, and both directions work again soon after the route is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn killed() {
    let (server, options) = private(RocketMqOptions::default()).await;
    let broker = Arc::new(RocketBroker::open(&RocketOptions { invisible_ms: 5_000, ..options }).unwrap());
    broker.ensure_topic("kill", 8).unwrap();
    write(&broker, "kill", 1_000_000..1_000_100).await;
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("kill", ledger.clone()).unwrap();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sending = {
        let (stop, sent, producer) = (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&producer));
        tokio::task::spawn_blocking(move || {
            while !stop.load(Ordering::Relaxed) {
                send(&*producer, sent.fetch_add(1, Ordering::Relaxed));
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let mut reader = reader(&broker, "kill", "g").await;
    let mut seen = BTreeSet::new();
    let mut read_some = async |seen: &mut BTreeSet<u64>| {
        seen.extend(drain(&mut reader, Duration::from_millis(100)).await.iter().map(number_of));
        // May fail while the server is away; then it is done again.
        reader.commit().await.ok();
    };
    let patience = Instant::now() + Duration::from_secs(90);
    while seen.len() < 1000 {
        assert!(Instant::now() < patience, "{} of 1000 records", seen.len());
        read_some(&mut seen).await;
    }
    steer(&server, |server| server.kill().unwrap()).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    steer(&server, |server| server.start().unwrap()).await;
    let back = Instant::now();
    // New ones, so that old ones that were read ahead do not count.
    let newest = sent.load(Ordering::Relaxed);
    while seen.range(newest..900_000).next().is_none() {
        assert!(back.elapsed() < Duration::from_secs(90), "nothing new is read");
        read_some(&mut seen).await;
    }
    let took = back.elapsed();
    println!("a new record is read {took:?} after the start");
    stop.store(true, Ordering::Relaxed);
    sending.await.unwrap();
    let open = tokio::task::spawn_blocking(move || producer.close(Duration::from_secs(60))).await.unwrap();
    assert_eq!(open, 0);
    let reports = ledger.reports();
    assert_eq!(reports.len() as u64, sent.load(Ordering::Relaxed), "each record is reported");
    assert!(reports.values().all(|reports| reports.len() == 1), "each record is reported once");
    let fate = |wanted: fn(&Delivery) -> bool| reports.values().filter(|reports| wanted(&reports[0])).count();
    println!(
        "{} stored, {} failed, {} unknown",
        fate(|one| *one == Delivery::Stored),
        fate(|one| matches!(one, Delivery::Failed(_))),
        fate(|one| matches!(one, Delivery::Unknown(_)))
    );
    let stored: BTreeSet<u64> = reports
        .iter()
        .filter(|(_, reports)| reports[0] == Delivery::Stored)
        .map(|(Tag(tag), _)| *tag)
        .collect();
    let patience = Instant::now() + Duration::from_secs(90);
    while !stored.is_subset(&seen) {
        assert!(
            Instant::now() < patience,
            "{} stored records were never read",
            stored.difference(&seen).count()
        );
        read_some(&mut seen).await;
    }
    // 5 s on a quiet machine; a fresh JVM among many is slow in everything.
    assert!(took < Duration::from_secs(15), "back only after {took:?}");
}

/// A server that stands still for 10 s: nothing that was called stored is lost, each record is reported once, what is
/// held stays ours or comes again, and an acknowledgement without an answer is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn frozen() {
    let (server, options) = private(RocketMqOptions::default()).await;
    RocketBroker::open(&options).unwrap().ensure_topic("freeze", 8).unwrap();
    let options = RocketOptions { timeout_ms: 3_000, invisible_ms: 5_000, ..options };
    let broker = RocketBroker::open(&options).unwrap();
    let mut consumer = broker.consumer("freeze", "g").await.unwrap();
    write(&broker, "freeze", 0..200).await;
    let fetch = |wait| windfall_contract::broker::Fetch { max_records: 256, max_bytes: 8 << 20, wait };
    let mut held = Vec::new();
    let started = Instant::now();
    while held.len() < 200 && started.elapsed() < Duration::from_secs(60) {
        held.extend(consumer.poll(fetch(Duration::from_millis(100))).await.unwrap().records);
    }
    assert_eq!(held.len(), 200);
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("freeze", ledger.clone()).unwrap();
    steer(&server, |server| server.freeze().unwrap()).await;
    let frozen = Instant::now();
    for number in 200..300 {
        send(&*producer, number);
    }
    let position = |record: &windfall_contract::broker::InRecord| Position {
        partition: record.partition,
        epoch: record.epoch,
        offset: record.offset,
    };
    let positions: Vec<_> = held.iter().map(position).collect();
    // No answer: nobody knows, so not Ok.
    let unanswered = consumer.finish(&positions).await;
    assert!(matches!(unanswered, Err(CommitError::Unavailable(_))), "{unanswered:?}");
    // Noticed after the deadline of a call.
    let started = Instant::now();
    while ledger.reports().len() < 100 && started.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let unknown = ledger.reports().values().all(|one| matches!(one[..], [Delivery::Unknown(_)]));
    assert!(unknown && ledger.reports().len() == 100, "a record's fate was called certain");
    let rest = Duration::from_secs(10).saturating_sub(frozen.elapsed());
    tokio::time::sleep(rest).await;
    steer(&server, |server| server.thaw().unwrap()).await;
    let thawed = Instant::now();
    let mut finished = false;
    let (mut sent, mut seen) = (300, BTreeSet::new());
    // What was sent meanwhile was stored or not, nobody knows. What is called stored comes; what comes again is a
    // duplicate.
    let mut stored = BTreeSet::new();
    while !(finished && stored.len() >= 100 && stored.is_subset(&seen)) {
        assert!(
            thawed.elapsed() < Duration::from_secs(60),
            "finished: {finished}, {} stored, {} seen",
            stored.len(),
            seen.len()
        );
        if stored.len() < 100 && ledger.reports().len() as u64 == sent - 200 {
            (sent..sent + 100).for_each(|number| send(&*producer, number));
            sent += 100;
        }
        let reports = ledger.reports();
        let known = reports.iter().filter(|(_, one)| one[..] == [Delivery::Stored]);
        stored.extend(known.map(|(Tag(tag), _)| *tag));
        finished = finished || consumer.finish(&positions).await.is_ok();
        let records = match consumer.poll(fetch(Duration::from_millis(100))).await {
            Ok(polled) => polled.records,
            Err(_) => Vec::new(),
        };
        seen.extend(records.iter().map(number_of));
        let positions: Vec<_> = records.iter().map(position).collect();
        consumer.finish(&positions).await.ok();
    }
    let late = seen.range(200..300).count();
    println!("all is well {:?} after the thaw; {late} of 100 that nobody knew of came", thawed.elapsed());
    assert!(ledger.reports().values().all(|one| one.len() == 1), "reported twice");
    drop(producer);
    drop(consumer);
    // In the end nothing is left.
    let mut last = reader(&broker, "freeze", "g").await;
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(9) {
        if !drain(&mut last, Duration::from_millis(100)).await.is_empty() {
            last.commit().await.unwrap();
            quiet = Instant::now();
        }
    }
    assert_eq!(broker.lag("freeze", "g").await.unwrap().records(), 0);
}

/// Proxy and broker apart, as they are at scale: what is held is extended and finished for good there too, and the
/// broker alone may be killed. This broker makes groups by itself, as brokers do by default, with 16 redeliveries: ours
/// must be there before anybody asks for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn broker_apart() {
    let (server, options) = private(RocketMqOptions {
        separate_broker: true,
        broker_properties: vec![("autoCreateSubscriptionGroup".into(), "true".into())],
        ..RocketMqOptions::default()
    })
    .await;
    let broker = RocketBroker::open(&RocketOptions { invisible_ms: 3_000, ..options }).unwrap();
    broker.ensure_topic("apart", 4).unwrap();
    let mut holder = reader(&broker, "apart", "g").await;
    write(&broker, "apart", 0..50).await;
    holder.read(50, Duration::from_secs(60)).await.unwrap();
    let mut other = reader(&broker, "apart", "g").await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(8) {
        assert!(drain(&mut holder, Duration::from_millis(50)).await.is_empty(), "came to its holder again");
        assert!(drain(&mut other, Duration::from_millis(50)).await.is_empty(), "came to another");
    }
    holder.commit().await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        assert!(drain(&mut other, Duration::from_millis(100)).await.is_empty(), "came again though finished");
    }
    holder.close().await;

    steer(&server, |server| server.part("broker").unwrap().kill().unwrap()).await;
    // The proxy answers for a broker that is gone.
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("apart", ledger.clone()).unwrap();
    (50..60).for_each(|number| send(&*producer, number));
    tokio::time::sleep(Duration::from_secs(1)).await;
    steer(&server, |server| server.part("broker").unwrap().start().unwrap()).await;
    let back = Instant::now();
    let mut next = 60;
    let mut seen = BTreeSet::new();
    let mut stored = BTreeSet::new();
    while stored.is_empty() || !stored.is_subset(&seen) {
        let (open, sent) = (ledger.reports().len() as u64 + 50 < next, stored.len());
        assert!(back.elapsed() < Duration::from_secs(90), "open: {open}, {sent} stored, {} seen", seen.len());
        if stored.is_empty() && !open {
            send(&*producer, next);
            next += 1;
        }
        let reports = ledger.reports();
        stored.extend(
            reports.iter().filter(|(_, one)| one[..] == [Delivery::Stored]).map(|(Tag(tag), _)| *tag),
        );
        seen.extend(drain(&mut other, Duration::from_millis(100)).await.iter().map(number_of));
        other.commit().await.unwrap();
    }
    println!("a new record is stored and read {:?} after the broker's start", back.elapsed());
    assert!(ledger.reports().values().all(|one| one.len() == 1), "reported twice");
}
