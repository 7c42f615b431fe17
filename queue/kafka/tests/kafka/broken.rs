//! Brokers that freeze, die, turn us away; records that are not ours.

use super::{PATIENCE, options, prefix, shared};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{Broker, Delivery, Fetch, OpenError, OutRecord, Producer, SendRefused, Tag};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions, Mechanism, Sasl, Secret, TlsOptions};
use windfall_servers::{KafkaOptions as ServerOptions, Private};

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends and says how long the slowest call took, and which tags were taken.
fn send_all(producer: &dyn Producer, tags: std::ops::Range<u64>, taken: &mut BTreeSet<u64>) -> Duration {
    let mut slowest = Duration::ZERO;
    for tag in tags {
        let bytes = tag.to_be_bytes();
        let began = Instant::now();
        match producer.send(Tag(tag), OutRecord { key: &bytes, payload: &bytes }) {
            Ok(()) => drop(taken.insert(tag)),
            Err(SendRefused::Full | SendRefused::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

fn numbers(records: &[windfall_contract::broker::InRecord]) -> BTreeSet<u64> {
    records.iter().map(|record| u64::from_be_bytes(record.payload.as_ref().try_into().unwrap())).collect()
}

/// Everything in a topic.
fn read_all(broker: &Arc<KafkaBroker>, topic: &str) -> Vec<windfall_contract::broker::InRecord> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let end = broker.lag(topic, "check").await.unwrap().end;
        let mut reader = Reader::new(broker.consumer(topic, "check").await.unwrap());
        let seen = reader.read(usize::try_from(end).unwrap(), PATIENCE).await.unwrap();
        reader.close().await;
        seen.into_values().collect()
    })
}

/// Frozen, thawed, killed, restarted: no call blocks, each tag is reported once, `Stored` is stored, `Failed` is not.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_producer_outlives_its_broker() {
    let server = Private::start(ServerOptions::default()).unwrap();
    let options = KafkaOptions { delivery_timeout_ms: 2_000, ..options(server.url(), prefix("broken")) };
    let broker = KafkaBroker::open(&options).unwrap();
    broker.ensure_topic("t", 3).unwrap();
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("t", ledger.clone()).unwrap();
    let mut taken = BTreeSet::new();
    send_all(&*producer, 0..2_000, &mut taken);
    wait_until("the first records", || ledger.reports().len() == taken.len());

    server.freeze().unwrap();
    let frozen = Instant::now();
    let slowest = send_all(&*producer, 2_000..6_000, &mut taken);
    println!("slowest send to a frozen broker: {slowest:?}");
    // It is thawed after them: they have not waited for its answers.
    assert!(frozen.elapsed() < PATIENCE, "4,000 sends took {:?}, one of them {slowest:?}", frozen.elapsed());
    wait_until("reports of a frozen broker", || ledger.reports().len() == taken.len());
    println!("all of it was reported {:?} after the freeze", frozen.elapsed());
    server.thaw().unwrap();
    let stored_since = |from: u64| {
        ledger.reports().iter().any(|(tag, report)| tag.0 >= from && report[0] == Delivery::Stored)
    };
    let mut next = 6_000;
    wait_until("work after the thaw", || {
        send_all(&*producer, next..next + 100, &mut taken);
        next += 100;
        std::thread::sleep(Duration::from_millis(50));
        stored_since(6_000)
    });

    send_all(&*producer, next..next + 3_000, &mut taken);
    server.kill().unwrap();
    next += 3_000;
    send_all(&*producer, next..next + 3_000, &mut taken);
    server.start().unwrap();
    next += 3_000;
    let back = next;
    wait_until("work after the restart", || {
        send_all(&*producer, next..next + 100, &mut taken);
        next += 100;
        std::thread::sleep(Duration::from_millis(50));
        stored_since(back)
    });
    producer.close(PATIENCE);

    let reports = ledger.reports();
    assert!(reports.keys().map(|tag| tag.0).eq(taken.iter().copied()), "each taken one is reported");
    assert!(reports.values().all(|report| report.len() == 1), "and once");
    let there = numbers(&read_all(&broker, "t"));
    let mut counts = BTreeMap::new();
    for (tag, report) in &reports {
        let name = match report[0] {
            Delivery::Stored => "stored",
            Delivery::Failed(_) => "failed",
            Delivery::Unknown(_) => "unknown",
        };
        *counts.entry((name, there.contains(&tag.0))).or_insert(0) += 1;
    }
    println!("(report, is there): {counts:?}");
    assert_eq!(counts.get(&("stored", false)), None, "reported stored, and lost");
    assert_eq!(counts.get(&("failed", true)), None, "reported failed, and stored");
}

/// While the broker is frozen, `close` ends in time and accounts for each record.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn closing_on_a_frozen_broker_is_bounded() {
    let server = Private::start(ServerOptions::default()).unwrap();
    let broker = KafkaBroker::open(&options(server.url(), prefix("frozen"))).unwrap();
    broker.ensure_topic("t", 3).unwrap();
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("t", ledger.clone()).unwrap();
    let mut taken = BTreeSet::new();
    send_all(&*producer, 0..100, &mut taken);
    wait_until("the first records", || ledger.reports().len() == 100);
    server.freeze().unwrap();
    send_all(&*producer, 100..600, &mut taken);
    let began = Instant::now();
    let open = producer.close(Duration::from_millis(500));
    println!("closed after {:?}, {open} open", began.elapsed());
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert_eq!(open, 500, "it has waited until they were given up");
    let reports = ledger.reports();
    let unknown = |report: &Vec<Delivery>| matches!(report[..], [Delivery::Unknown(_)]);
    assert_eq!(reports.values().filter(|report| unknown(report)).count(), 500);
    assert_eq!(reports.len(), 600);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn who_is_let_in_and_who_is_not() {
    let server = Private::start(ServerOptions { tls: true, sasl: true, properties: vec![] }).unwrap();
    let opened = |options: &KafkaOptions| {
        let began = Instant::now();
        // The handle needs no cluster; the first question does.
        let outcome = KafkaBroker::open(options).and_then(|broker| match broker.ensure_topic("door", 1) {
            Err(OpenError::Absent(_)) => Ok(()),
            asked => asked,
        });
        println!("{outcome:?} after {:?}", began.elapsed());
        assert!(began.elapsed() < PATIENCE);
        outcome
    };
    let tls = TlsOptions { ca_file: Some(server.setting("ca").unwrap().into()), ..TlsOptions::default() };
    let sasl = |mechanism, password: &str| Sasl {
        mechanism,
        username: server.setting("user").unwrap().into(),
        password: Secret(password.into()),
    };
    let password = server.setting("password").unwrap();
    let base = |of: &str| KafkaOptions {
        connect_timeout_ms: 20_000,
        ..options(server.address(of).unwrap(), prefix("door"))
    };
    let both = KafkaOptions {
        tls: Some(tls.clone()),
        sasl: Some(sasl(Mechanism::ScramSha512, password)),
        ..base("sasl_tls")
    };
    assert_eq!(opened(&both), Ok(()));
    let broker = KafkaBroker::open(&both).unwrap();
    broker.ensure_topic("t", 2).unwrap();
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("t", ledger.clone()).unwrap();
    send_all(&*producer, 0..100, &mut BTreeSet::new());
    assert_eq!(producer.close(PATIENCE), 0);
    assert_eq!(numbers(&read_all(&broker, "t")), (0..100).collect());
    assert_eq!(opened(&KafkaOptions { tls: Some(tls), ..base("tls") }), Ok(()));
    let plain = KafkaOptions { sasl: Some(sasl(Mechanism::Plain, password)), ..base("sasl") };
    assert_eq!(opened(&plain), Ok(()));

    let wrong = KafkaOptions { sasl: Some(sasl(Mechanism::ScramSha256, "snow")), ..base("sasl") };
    assert!(matches!(opened(&wrong), Err(OpenError::Invalid(what)) if what.contains("uthentication")));
    let strangers = KafkaOptions { tls: Some(TlsOptions::default()), ..base("tls") };
    assert!(matches!(opened(&strangers), Err(OpenError::Invalid(what)) if what.contains("certificate")));
    let nobody = KafkaOptions { connect_timeout_ms: 1_000, ..KafkaOptions::at("127.0.0.1:1") };
    assert!(matches!(opened(&nobody), Err(OpenError::Unavailable(what)) if what.contains("127.0.0.1:1")));
    let no_topic = broker.producer("absent", Arc::new(Ledger::default())).err().unwrap();
    assert!(matches!(&no_topic, OpenError::Absent(what) if what.contains("absent")), "{no_topic}");
}

/// What others write to a topic comes as it is: nothing sticks.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn strange_records_come_as_they_are() {
    let servers = shared("kafka");
    let options = KafkaOptions { record_bytes_max: 16 << 20, ..options(&servers, prefix("strange")) };
    let broker = KafkaBroker::open(&options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let raw: BaseProducer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", &servers)
        .set("message.max.bytes", "16000000")
        .create()
        .unwrap();
    let topic = format!("{}t", options.prefix);
    let huge = vec![7u8; 10 << 20];
    raw.send(BaseRecord::<(), [u8]>::to(&topic).payload(&b"\xff\xfe garbage"[..])).unwrap();
    raw.send(BaseRecord::<[u8], ()>::to(&topic).key(&b"tombstone"[..])).unwrap();
    raw.send(BaseRecord::<(), ()>::to(&topic)).unwrap();
    raw.send(BaseRecord::<[u8], [u8]>::to(&topic).key(&b"huge"[..]).payload(&huge)).unwrap();
    raw.send(BaseRecord::<[u8], [u8]>::to(&topic).key(&b""[..]).payload(&b""[..])).unwrap();
    raw.send(BaseRecord::<[u8], [u8]>::to(&topic).key(&b"last"[..]).payload(&b"ours"[..])).unwrap();
    raw.flush(PATIENCE).unwrap();
    let records = read_all(&broker, "t");
    let sizes: Vec<_> = records.iter().map(|record| (record.key.len(), record.payload.len())).collect();
    assert_eq!(sizes, [(0, 10), (9, 0), (0, 0), (4, 10 << 20), (0, 0), (4, 4)]);
}

/// Members join, leave and are dropped while records flow: all of them come, and in the end all is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_storm_of_members_loses_nothing() {
    const RECORDS: u64 = 6_000;
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("storm"));
    let (broker, producer) = tokio::task::spawn_blocking(move || {
        let broker = KafkaBroker::open(&options).unwrap();
        broker.ensure_topic("t", 6).unwrap();
        let producer = broker.producer("t", Arc::new(Ledger::default())).unwrap();
        (broker, producer)
    })
    .await
    .unwrap();
    let sender = tokio::task::spawn_blocking(move || {
        for tag in 0..RECORDS {
            send_all(&*producer, tag..tag + 1, &mut BTreeSet::new());
            if tag % 10 == 0 {
                std::thread::sleep(Duration::from_millis(15));
            }
        }
        assert_eq!(producer.close(PATIENCE), 0);
    });
    let (mut readers, mut seen, mut twice) = (Vec::new(), BTreeSet::new(), 0);
    let started = Instant::now();
    let mut turn = 0;
    let mut last_change = Instant::now();
    loop {
        if readers.is_empty() || (last_change.elapsed() > Duration::from_millis(900) && !sender.is_finished())
        {
            last_change = Instant::now();
            turn += 1;
            if readers.len() < 1 + turn % 3 {
                readers.push(Reader::new(broker.consumer("t", "g").await.unwrap()));
            } else if readers.len() > 1 {
                let leaver: Reader = readers.remove(0);
                if turn % 2 == 0 { leaver.close().await } else { drop(leaver) }
            }
        }
        for reader in &mut readers {
            let fetch = Fetch { max_records: 50, max_bytes: 1 << 20, wait: Duration::from_millis(5) };
            for number in numbers(&reader.poll(fetch).await.unwrap()) {
                twice += u64::from(!seen.insert(number));
            }
            reader.commit().await.unwrap();
        }
        if seen.len() as u64 == RECORDS && broker.lag("t", "g").await.unwrap().records() == 0 {
            break;
        }
        assert!(started.elapsed() < 2 * PATIENCE, "{} of {RECORDS} records", seen.len());
    }
    sender.await.unwrap();
    println!("{turn} changes of members, {twice} records came twice");
}

/// A member that is told to hold everything while one of its partitions goes to another, and has room again before it
/// comes back, reads it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_partition_that_went_while_all_was_held_is_read_when_it_is_back() {
    const RECORDS: u64 = 2_000;
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = KafkaOptions { prefetch_kib: 256, ..options(&servers, prefix("held")) };
    let broker = tokio::task::spawn_blocking(move || {
        let broker = KafkaBroker::open(&options).unwrap();
        broker.ensure_topic("t", 4).unwrap();
        let producer = broker.producer("t", Arc::new(Ledger::default())).unwrap();
        for number in 0..RECORDS {
            let mut payload = vec![0; 2_048];
            payload[..8].copy_from_slice(&number.to_be_bytes());
            let key = number.to_be_bytes();
            while producer.send(Tag(number), OutRecord { key: &key, payload: &payload }).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(producer.close(PATIENCE), 0);
        broker
    })
    .await
    .unwrap();
    let fetch = |max_records| Fetch { max_records, max_bytes: 1 << 20, wait: Duration::from_millis(5) };
    let number = |record: &windfall_contract::broker::InRecord| {
        u64::from_be_bytes(record.payload[..8].try_into().unwrap())
    };
    let mut first = Reader::new(broker.consumer("t", "g").await.unwrap());
    let mut seen = BTreeSet::new();
    let started = Instant::now();
    while seen.is_empty() {
        assert!(started.elapsed() < PATIENCE, "nothing comes");
        seen.extend(first.poll(fetch(1)).await.unwrap().iter().map(number));
    }
    // It takes nothing more, and is told to hold.
    let full = Instant::now();
    while full.elapsed() < Duration::from_secs(4) {
        first.poll(fetch(0)).await.unwrap();
    }
    let mut second = Reader::new(broker.consumer("t", "g").await.unwrap());
    let mut of_second = 0;
    while of_second == 0 {
        assert!(started.elapsed() < PATIENCE * 2, "the second gets nothing");
        first.poll(fetch(0)).await.unwrap();
        of_second += second.poll(fetch(1)).await.unwrap().len();
    }
    // Room again, while those are away; then they come back, with nothing committed.
    for _ in 0..20 {
        seen.extend(first.poll(fetch(100)).await.unwrap().iter().map(number));
    }
    second.close().await;
    while seen.len() < usize::try_from(RECORDS).unwrap() {
        assert!(started.elapsed() < PATIENCE * 3, "{} of {RECORDS} were read", seen.len());
        seen.extend(first.poll(fetch(100)).await.unwrap().iter().map(number));
    }
    first.close().await;
}

/// A port of this machine may lead to a cluster elsewhere, whose brokers clients are then told to connect to.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn brokers_that_a_cluster_names_on_another_machine_are_refused_without_tls() {
    let advertised = "PLAINTEXT://kafka-2.invalid:9092".to_owned();
    let properties = vec![("advertised.listeners".to_owned(), advertised)];
    let server = Private::start(ServerOptions { properties, ..ServerOptions::default() }).unwrap();
    let broker = KafkaBroker::open(&options(server.url(), prefix("elsewhere"))).unwrap();
    for _ in 0..2 {
        match broker.ensure_topic("t", 1) {
            Err(OpenError::Invalid(what)) => {
                assert!(what.contains("kafka-2.invalid is not on this machine"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
}
