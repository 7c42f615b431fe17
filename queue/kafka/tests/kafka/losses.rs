//! Records that are gone before they were read, topics that may lose some, and restarts that bring nothing twice.

use super::{PATIENCE, options, prefix, shared};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{
    Broker, Change, Commit, Consumer, Epoch, Fetch, InRecord, OpenError, OutRecord, PollError, Tag,
};
use windfall_contract::finished::Finished;
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};

fn admin(servers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", servers).create().unwrap()
}

/// A topic `t` of one partition with so many records.
fn written(options: &KafkaOptions, records: u64) -> Arc<KafkaBroker> {
    let broker = KafkaBroker::open(options).unwrap();
    broker.ensure_topic("t", 1).unwrap();
    let producer = broker.producer("t", Arc::new(Ledger::default())).unwrap();
    for number in 0..records {
        let bytes = number.to_be_bytes();
        while producer.send(Tag(number), OutRecord { key: &bytes, payload: &bytes }).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(producer.close(PATIENCE), 0);
    broker
}

/// What group `g` has committed of `t`, by whoever did it.
fn commit_as_somebody(options: &KafkaOptions, offset: i64) {
    let client: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &options.bootstrap_servers)
        .set("group.id", format!("{}g.t", options.prefix))
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&format!("{}t", options.prefix), 0, Offset::Offset(offset)).unwrap();
    client.commit(&list, CommitMode::Sync).unwrap();
}

/// Deletes the records of topic `t` below an offset, as retention does.
async fn delete_below(options: &KafkaOptions, offset: i64) {
    let mut below = TopicPartitionList::new();
    below.add_partition_offset(&format!("{}t", options.prefix), 0, Offset::Offset(offset)).unwrap();
    admin(&options.bootstrap_servers).delete_records(&below, &AdminOptions::new()).await.unwrap();
}

/// Deletes topic `t`, waits until it is gone, and makes it anew with so many records.
async fn created_anew(options: &KafkaOptions, records: u64) -> Arc<KafkaBroker> {
    let topic = format!("{}t", options.prefix);
    admin(&options.bootstrap_servers).delete_topics(&[&topic], &AdminOptions::new()).await.unwrap();
    let options = options.clone();
    let made = tokio::task::spawn_blocking(move || {
        let client = group_client(&options);
        let started = Instant::now();
        loop {
            let metadata = client.fetch_metadata(Some(topic.as_str()), PATIENCE).unwrap();
            if metadata.topics().iter().all(|found| found.error().is_some()) {
                return written(&options, records);
            }
            assert!(started.elapsed() < PATIENCE, "the topic is still there");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    made.await.unwrap()
}

/// Reads until the loss is said, and then so many records.
async fn loss_and(broker: &KafkaBroker, records: usize) -> (PollError, Vec<u64>) {
    let mut consumer = broker.consumer("t", "g").await.unwrap();
    let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_millis(50) };
    let (mut loss, mut offsets) = (None, Vec::new());
    let started = Instant::now();
    while loss.is_none() || offsets.len() < records {
        assert!(started.elapsed() < PATIENCE, "{loss:?}, then {offsets:?}");
        match consumer.poll(fetch).await {
            Ok(polled) => offsets.extend(polled.records.iter().map(|record| record.offset)),
            Err(lost @ PollError::Lost { .. }) => loss = Some(lost),
            Err(PollError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    consumer.close().await;
    (loss.unwrap(), offsets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn records_that_retention_deleted_are_a_loss() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("retention"));
    let made = options.clone();
    let broker = tokio::task::spawn_blocking(move || {
        let broker = written(&made, 50);
        commit_as_somebody(&made, 5);
        broker
    });
    let broker = broker.await.unwrap();
    delete_below(&options, 20).await;
    let (loss, offsets) = loss_and(&broker, 30).await;
    assert!(matches!(loss, PollError::Lost { partition: 0, from: 5, to: 20, resumes_at: 20, .. }), "{loss}");
    assert_eq!(offsets, (20..50).collect::<Vec<_>>());
}

/// The group has never committed, so that its position says nothing of the records that are gone. The next member of the
/// group is not told once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_retention_took_before_the_first_read_is_reported() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("unread"));
    let made = options.clone();
    let broker = tokio::task::spawn_blocking(move || written(&made, 30)).await.unwrap();
    delete_below(&options, 10).await;
    let (loss, offsets) = loss_and(&broker, 20).await;
    assert!(matches!(loss, PollError::Lost { partition: 0, from: 0, to: 10, resumes_at: 10, .. }), "{loss}");
    assert_eq!(offsets, (10..30).collect::<Vec<_>>());
    let mut next = Reader::new(broker.consumer("t", "g").await.unwrap());
    assert_eq!(next.read(20, PATIENCE).await.unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_log_that_is_shorter_than_what_was_committed_is_read_again() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("cut-off"));
    let broker = tokio::task::spawn_blocking(move || {
        let broker = written(&options, 10);
        commit_as_somebody(&options, 1_000);
        broker
    });
    let broker = broker.await.unwrap();
    let (loss, offsets) = loss_and(&broker, 10).await;
    assert!(
        matches!(loss, PollError::Lost { partition: 0, from: 10, to: 1_000, resumes_at: 0, .. }),
        "{loss}"
    );
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_topic_that_may_lose_records_is_named_and_a_compacted_one_refused() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("kept"));
    let broker = KafkaBroker::open(&options).unwrap();
    let making = Arc::clone(&broker);
    tokio::task::spawn_blocking(move || making.ensure_topic("ours", 1).unwrap()).await.unwrap();
    let named = |name: &str| format!("{}{name}", options.prefix);
    let (brief, compact) = (named("brief"), named("compact"));
    let topics = [
        NewTopic::new(&brief, 1, TopicReplication::Fixed(1)).set("retention.ms", "3600000"),
        NewTopic::new(&compact, 1, TopicReplication::Fixed(1)).set("cleanup.policy", "compact"),
    ];
    admin(&servers).create_topics(&topics, &AdminOptions::new()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!broker.consumer("ours", "g").await.unwrap().may_delete_unread());
    assert!(broker.consumer("brief", "g").await.unwrap().may_delete_unread());
    let refused = broker.consumer("compact", "g").await.err();
    assert!(matches!(&refused, Some(OpenError::Invalid(what)) if what.contains("compacted")), "{refused:?}");
    let refused =
        tokio::task::spawn_blocking(move || broker.producer("compact", Arc::new(Ledger::default())).err());
    assert!(matches!(refused.await.unwrap(), Some(OpenError::Invalid(_))));
}

/// A name, and which offsets are finished.
type Lanes = (&'static str, fn(u64) -> bool);

/// Looks like chance.
fn mixed(number: u64) -> u64 {
    let first = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    second ^ (second >> 31)
}

/// Reads all that comes until nothing has come for a while.
async fn rest(consumer: &mut Box<dyn Consumer>) -> (Vec<InRecord>, Option<Epoch>, u64) {
    let fetch = Fetch { max_records: 4_096, max_bytes: 16 << 20, wait: Duration::from_millis(100) };
    let (mut records, mut epoch, mut next) = (Vec::new(), None, 0);
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_secs(4) {
        let polled = consumer.poll(fetch).await.unwrap();
        if !polled.records.is_empty() || !polled.changes.is_empty() {
            last = Instant::now();
        }
        for change in polled.changes {
            match change {
                Change::Assigned { epoch: now, next_offset, .. } => (epoch, next) = (Some(now), next_offset),
                Change::Passed { next_offset, .. } => next = next_offset,
                Change::Revoked { .. } => epoch = None,
            }
        }
        next = polled.records.last().map_or(next, |record| record.offset + 1);
        records.extend(polled.records);
    }
    (records, epoch, next)
}

/// 100,000 records are finished behind one that hangs, and the process dies: a consumer that is dropped without a word
/// is to the broker what one that was killed is, but for the session that it leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_is_finished_behind_one_that_hangs_is_not_delivered_again() {
    const RECORDS: u64 = 100_000;
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let lanes: [Lanes; 3] = [
        ("all others", |_| true),
        ("every second", |offset| offset.is_multiple_of(2)),
        ("an even mix", |offset| mixed(offset).is_multiple_of(2)),
    ];
    for (name, is_finished) in lanes {
        let options = KafkaOptions { unreported_kib_max: 65_536, ..options(&servers, prefix("hangs")) };
        let made = options.clone();
        let broker = tokio::task::spawn_blocking(move || written(&made, RECORDS + 1)).await.unwrap();
        let mut consumer = broker.consumer("t", "g").await.unwrap();
        let (records, epoch, _) = rest(&mut consumer).await;
        assert_eq!(records.len() as u64, RECORDS + 1);
        let finished = (1..=RECORDS).filter(|offset| is_finished(*offset));
        let finished: Vec<_> = finished.map(|offset| offset..offset + 1).collect();
        let finished = Finished::of(finished);
        let commit =
            Commit { partition: 0, epoch: epoch.unwrap(), next_offset: 0, finished: finished.clone() };
        consumer.commit(&[commit]).await.unwrap();
        drop(consumer);
        let mut consumer = broker.consumer("t", "g").await.unwrap();
        let (again, epoch, next) = rest(&mut consumer).await;
        let spared = RECORDS + 1 - again.len() as u64;
        println!(
            "{name}: {} of {RECORDS} finished behind one; {spared} ({} %) are not delivered again",
            finished.count(),
            spared * 100 / finished.count()
        );
        assert_eq!(again[0].offset, 0);
        let offsets: std::collections::BTreeSet<_> = again.iter().map(|record| record.offset).collect();
        assert!(
            (0..=RECORDS).all(|offset| offsets.contains(&offset) || finished.contains(offset)),
            "a record is lost"
        );
        assert!(spared * 100 / finished.count() >= 20, "{name}: {spared}");
        // The one that hung is finished, and the rest: nothing stays.
        assert_eq!(next, RECORDS + 1);
        let finished = Finished::default();
        let commit = Commit { partition: 0, epoch: epoch.unwrap(), next_offset: next, finished };
        consumer.commit(&[commit]).await.unwrap();
        assert_eq!(broker.lag("t", "g").await.unwrap().records(), 0);
        consumer.close().await;
    }
}

/// A member stands at 20 and polls nothing, while the topic is deleted, created anew, and filled beyond 20: librdkafka
/// would go on at 20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_topic_that_was_created_anew_is_read_from_its_beginning() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("anew"));
    let made = options.clone();
    let broker = tokio::task::spawn_blocking(move || written(&made, 20)).await.unwrap();
    let mut reader = Reader::new(broker.consumer("t", "g").await.unwrap());
    assert_eq!(reader.read(20, PATIENCE).await.unwrap().len(), 20);
    reader.commit().await.unwrap();
    let broker = created_anew(&options, 50).await;
    let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_millis(50) };
    let (mut loss, mut epoch, mut offsets) = (None, None, Vec::new());
    let started = Instant::now();
    while loss.is_none() || offsets.len() < 50 {
        assert!(started.elapsed() < PATIENCE, "{loss:?}, then {offsets:?}");
        match reader.consumer().poll(fetch).await {
            Ok(polled) => {
                for change in polled.changes {
                    match change {
                        // What was brought before it counts for nothing.
                        Change::Revoked { .. } => offsets.clear(),
                        Change::Assigned { epoch: now, .. } => epoch = Some(now),
                        Change::Passed { .. } => {}
                    }
                }
                offsets.extend(polled.records.iter().map(|record| record.offset));
            }
            Err(lost @ PollError::Lost { .. }) => loss = Some(lost),
            Err(PollError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let loss = loss.unwrap();
    assert!(matches!(loss, PollError::Lost { partition: 0, from: 20, resumes_at: 0, .. }), "{loss}");
    assert_eq!(offsets, (0..50).collect::<Vec<_>>());
    let finished = Finished::default();
    let commit = Commit { partition: 0, epoch: epoch.unwrap(), next_offset: 50, finished };
    reader.consumer().commit(&[commit]).await.unwrap();
    assert_eq!(broker.lag("t", "g").await.unwrap().records(), 0);
    reader.close().await;
}

/// The topic is deleted and made again, and its new records have the offsets of finished ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_topic_that_is_made_again_has_other_records() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let options = options(&servers, prefix("again"));
    let made = options.clone();
    let broker = tokio::task::spawn_blocking(move || written(&made, 100)).await.unwrap();
    let mut consumer = broker.consumer("t", "g").await.unwrap();
    let (_, epoch, _) = rest(&mut consumer).await;
    let finished = Finished::of(std::iter::once(1..100));
    let commit = Commit { partition: 0, epoch: epoch.unwrap(), next_offset: 0, finished };
    consumer.commit(&[commit]).await.unwrap();
    consumer.close().await;
    let metadata = committed_metadata(&options);
    assert!(metadata.starts_with("wf:"), "{metadata}");
    let broker = created_anew(&options, 100).await;
    // Kafka forgets the group's offset with the topic; one who keeps it, or writes it back, must hide nothing.
    write_back(&options, &metadata);
    assert_eq!(committed_metadata(&options), metadata);
    let (loss, offsets) = loss_and(&broker, 100).await;
    assert!(matches!(loss, PollError::Lost { partition: 0, from: 0, to: 1, resumes_at: 0, .. }), "{loss}");
    assert_eq!(offsets, (0..100).collect::<Vec<_>>());
}

fn group_client(options: &KafkaOptions) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &options.bootstrap_servers);
    config.set("group.id", format!("{}g.t", options.prefix)).create().unwrap()
}

fn committed_metadata(options: &KafkaOptions) -> String {
    let mut list = TopicPartitionList::new();
    list.add_partition(&format!("{}t", options.prefix), 0);
    let found = group_client(options).committed_offsets(list, PATIENCE).unwrap();
    found.elements()[0].metadata().to_owned()
}

fn write_back(options: &KafkaOptions, metadata: &str) {
    let mut list = TopicPartitionList::new();
    let mut place = list.add_partition(&format!("{}t", options.prefix), 0);
    place.set_offset(Offset::Offset(0)).unwrap();
    place.set_metadata(metadata);
    group_client(options).commit(&list, CommitMode::Sync).unwrap();
}
