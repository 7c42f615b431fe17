//! The faulty broker: each fault does what it says, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{Broker, Delivery, OutRecord, Producer, SendRefused, Tag};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue_faulty::{Faults, Faulty};

const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    broker: Arc<Faulty>,
    ledger: Arc<Ledger>,
    producer: Arc<dyn Producer>,
    _dir: tempfile::TempDir,
}

fn bench(seed: u64, faults: Faults) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let broker = Faulty::new(EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap(), seed);
    broker.ensure_topic("t", 2).unwrap();
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer("t", ledger.clone()).unwrap();
    broker.set("t", faults);
    Bench { broker, ledger, producer, _dir: dir }
}

impl Bench {
    fn send(&self, range: std::ops::Range<u64>) {
        for tag in range {
            let payload = tag.to_be_bytes();
            self.producer.send(Tag(tag), OutRecord { key: &payload, payload: &payload }).unwrap();
        }
    }

    /// How often each number is in the topic.
    async fn written(&self) -> BTreeMap<u64, usize> {
        let records = self.broker.lag("t", "g").await.unwrap().end;
        let mut reader = Reader::new(self.broker.consumer("t", "g").await.unwrap());
        let mut found = BTreeMap::new();
        for record in reader.read(usize::try_from(records).unwrap(), PATIENCE).await.unwrap().values() {
            *found.entry(u64::from_be_bytes(record.payload.as_ref().try_into().unwrap())).or_default() += 1;
        }
        found
    }

    fn wait(&self, reports: usize) {
        let started = Instant::now();
        while self.ledger.reports().len() < reports {
            assert!(started.elapsed() < PATIENCE, "{} of {reports} reported", self.ledger.reports().len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusing_then_hanging_then_well_again() {
    let bench = bench(1, Faults { refuse: true, ..Faults::default() });
    let refused = bench.producer.send(Tag(0), OutRecord { key: b"k", payload: b"p" });
    assert!(matches!(refused, Err(SendRefused::Unavailable(_))), "{refused:?}");

    bench.broker.set("t", Faults { hang: true, ..Faults::default() });
    bench.send(0..100);
    std::thread::sleep(Duration::from_millis(30));
    assert!(bench.ledger.reports().is_empty(), "a hung record was reported");
    assert_eq!(bench.broker.lag("t", "g").await.unwrap().end, 0, "a hung record was written");

    bench.broker.clear("t");
    bench.send(100..200);
    bench.wait(200);
    assert!(bench.ledger.reports().values().all(|reports| *reports == [Delivery::Stored]));
    assert_eq!(bench.written().await, (0..200).map(|tag| (tag, 1)).collect());
}

#[test]
fn closing_while_it_hangs_reports_unknown_and_says_how_many() {
    let bench = bench(1, Faults { hang: true, ..Faults::default() });
    bench.send(0..30);
    let started = Instant::now();
    assert_eq!(bench.producer.close(Duration::from_millis(50)), 30);
    assert!(started.elapsed() < PATIENCE);
    let reports = bench.ledger.reports();
    assert_eq!(reports.len(), 30);
    assert!(reports.values().all(|reports| matches!(reports[..], [Delivery::Unknown(_)])));
    assert_eq!(bench.producer.close(PATIENCE), 0);
}

#[test]
fn what_hangs_is_bounded() {
    let bench = bench(1, Faults { hang: true, ..Faults::default() });
    let payload = vec![0u8; 1 << 20];
    let taken = (0..100)
        .take_while(|tag| bench.producer.send(Tag(*tag), OutRecord { key: b"", payload: &payload }).is_ok())
        .count();
    assert_eq!(taken, 32);
    let refused = bench.producer.send(Tag(100), OutRecord { key: b"", payload: &payload });
    assert_eq!(refused, Err(SendRefused::Full));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_and_the_log_agree_under_every_fault() {
    for seed in 0..4 {
        let faults = Faults {
            duplicate_per_mille: 100,
            lose_answer_per_mille: 100,
            fail_per_mille: 100,
            delay_ms: 0..3,
            reorder: seed % 2 == 0,
            ..Faults::default()
        };
        let bench = bench(seed, faults);
        bench.send(0..1000);
        bench.wait(1000);
        let reports = bench.ledger.reports();
        let written = bench.written().await;
        let (mut failed, mut unknown, mut twice) = (0, 0, 0);
        for (tag, reports) in &reports {
            let copies = written.get(&tag.0).copied().unwrap_or(0);
            match &reports[..] {
                [Delivery::Stored] => assert!(copies >= 1, "seed {seed}: {tag:?} stored {copies} times"),
                [Delivery::Unknown(_)] => unknown += 1,
                [Delivery::Failed(_)] => {
                    failed += 1;
                    assert_eq!(copies, 0, "seed {seed}: {tag:?} failed and is there");
                }
                other => panic!("seed {seed}: {tag:?} was reported {other:?}"),
            }
            twice += usize::from(copies == 2);
        }
        for (what, count) in [("failed", failed), ("unknown", unknown), ("twice", twice)] {
            assert!((50..200).contains(&count), "seed {seed}: {count} of 1000 {what}");
        }
    }
}

#[test]
fn the_same_seed_fails_the_same_records() {
    let failed = |seed| {
        let bench = bench(seed, Faults { fail_per_mille: 300, ..Faults::default() });
        bench.send(0..200);
        assert_eq!(bench.producer.close(PATIENCE), 0);
        let reports = bench.ledger.reports();
        let failed = reports.iter().filter(|(_, reports)| matches!(reports[..], [Delivery::Failed(_)]));
        failed.map(|(tag, _)| tag.0).collect::<Vec<_>>()
    };
    assert_eq!(failed(7), failed(7));
    assert_ne!(failed(7), failed(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_under_faults_loses_nothing_and_commits_in_the_end() {
    for seed in 0..3 {
        let bench = bench(seed, Faults::default());
        bench.send(0..600);
        bench.wait(600);
        bench.broker.set(
            "t",
            Faults {
                poll_error_per_mille: 200,
                rebalance_per_mille: 100,
                commit_error_per_mille: 300,
                lose_commit_answer_per_mille: 300,
                ..Faults::default()
            },
        );
        let mut readers = Vec::new();
        for _ in 0..2 {
            readers.push(Reader::new(bench.broker.consumer("t", "g").await.unwrap()));
        }
        let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
        let started = Instant::now();
        let fetch = windfall_contract::broker::Fetch {
            max_records: 7,
            max_bytes: 1 << 20,
            wait: Duration::from_millis(2),
        };
        let mut turn = 0;
        while bench.broker.lag("t", "g").await.unwrap().records() > 0 {
            assert!(started.elapsed() < PATIENCE, "seed {seed}: {} seen", seen.len());
            for reader in &mut readers {
                for record in reader.poll(fetch).await.unwrap() {
                    let number = u64::from_be_bytes(record.payload.as_ref().try_into().unwrap());
                    *seen.entry(number).or_default() += 1;
                }
                turn += 1;
                // Not after each poll, so that a rebalance finds something uncommitted.
                if turn % 3 == 0 {
                    reader.commit().await.unwrap();
                }
            }
        }
        assert!(seen.keys().copied().eq(0..600), "seed {seed}: {} of 600 seen", seen.len());
        assert!(seen.values().any(|times| *times > 1), "seed {seed}: nothing came twice");
    }
}
