//! Timers to a topic, on a broker that refuses, hangs and loses answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{
    Broker, Consumer, DeliverySink, Fetch, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_contract::due::{Fired, Firing, Target, TaskKey};
use windfall_proto::v1::FiredTimer;
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue_faulty::{Faults, Faulty};
use windfall_scheduler_service::{TopicChecks, TopicOptions, TopicTarget};

const TOPIC: &str = "reminders";

struct Desk {
    broker: Arc<Faulty>,
    target: TopicTarget,
    _dir: tempfile::TempDir,
}

fn desk(timeout_ms: u64) -> Desk {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    let broker = Faulty::new(inner, 7);
    let (checks, headers) = (TopicChecks::Warn, false);
    let options = TopicOptions { topic: TOPIC.into(), partitions: 2, timeout_ms, checks, headers };
    let target = TopicTarget::new(Arc::clone(&broker) as Arc<dyn Broker>, options, Clock::system());
    Desk { broker, target, _dir: dir }
}

fn firing(nth: u32) -> Firing {
    Firing {
        id: format!("0001-01c3a2f0-{nth:08x}").parse().unwrap(),
        tenant: "marketing".into(),
        key: (nth == 0).then(|| TaskKey::new(b"coupon-7").unwrap()),
        due_ms: 1_795_345_200_000,
        attempt: 1,
        payload: Bytes::from(format!("payload {nth}")),
    }
}

impl Desk {
    async fn fire(&self, count: u32) -> Vec<Fired> {
        self.target.fire((0..count).map(firing).collect()).await
    }

    /// Everything that is in the topic, by record key.
    async fn written(&self) -> Vec<(Bytes, FiredTimer)> {
        let mut consumer = self.broker.consumer(TOPIC, "reader").await.unwrap();
        let mut found = Vec::new();
        let fetch = Fetch { max_records: 1_000, max_bytes: 1 << 20, wait: Duration::from_millis(200) };
        let mut quiet = 0;
        while quiet < 3 {
            let polled = consumer.poll(fetch).await.unwrap();
            quiet = if polled.records.is_empty() { quiet + 1 } else { 0 };
            let records = polled.records.into_iter();
            found.extend(records.map(|record| (record.key, FiredTimer::decode(record.payload).unwrap())));
        }
        consumer.close().await;
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_is_done_when_its_record_is_stored_with_id_time_attempt_and_payload() {
    let desk = desk(10_000);
    assert_eq!(desk.fire(3).await, vec![Fired::Done; 3]);
    let mut written = desk.written().await;
    written.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
    let keys: Vec<_> = written.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    assert_eq!(keys, ["coupon-7", "0001-01c3a2f0-00000001", "0001-01c3a2f0-00000002"]);
    let expected = FiredTimer {
        id: "0001-01c3a2f0-00000000".into(),
        tenant: "marketing".into(),
        key: "coupon-7".into(),
        due_ms: 1_795_345_200_000,
        attempt: 1,
        payload: b"payload 0".to_vec(),
    };
    assert_eq!(written[0].1, expected);
    desk.target.close(Duration::from_secs(5)).await;
}

/// A broker whose topics may lose what they have stored until they are mended, and which keeps the headers that it gets.
struct Weak {
    inner: Arc<EmbeddedBroker>,
    is_mended: AtomicBool,
    headers: Arc<Mutex<Vec<(String, String)>>>,
}

struct Heading(Arc<dyn Producer>, Arc<Mutex<Vec<(String, String)>>>);

#[async_trait]
impl Broker for Weak {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        self.inner.ensure_topic(topic, partitions)
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        Ok(Arc::new(Heading(self.inner.producer(topic, sink)?, Arc::clone(&self.headers))))
    }

    fn hazards(&self, _: &str) -> Result<Vec<String>, OpenError> {
        Ok(match self.is_mended.load(SeqCst) {
            true => vec![],
            false => vec!["a partition has 1 replicas, and 3 are wanted".into()],
        })
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        self.inner.consumer(topic, group).await
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        self.inner.lag(topic, group).await
    }
}

impl Producer for Heading {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        self.0.send(tag, record)
    }

    fn send_with_headers(
        &self,
        tag: Tag,
        record: OutRecord<'_>,
        headers: &[(&str, &[u8])],
    ) -> Result<(), SendRefused> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.1.lock().extend(headers.iter().map(|(name, value)| ((*name).to_owned(), text(value))));
        self.0.send(tag, record)
    }

    fn close(&self, timeout: Duration) -> usize {
        self.0.close(timeout)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_lose_records_is_refused_warned_of_or_not_looked_at_as_set() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default()).unwrap();
    let broker = Arc::new(Weak { inner, is_mended: AtomicBool::new(false), headers: Arc::default() });
    let target = |checks| {
        let options =
            TopicOptions { topic: TOPIC.into(), partitions: 2, timeout_ms: 10_000, checks, headers: true };
        TopicTarget::new(Arc::clone(&broker) as Arc<dyn Broker>, options, Clock::system())
    };
    let (off, warn, refuse) =
        (target(TopicChecks::Off), target(TopicChecks::Warn), target(TopicChecks::Refuse));
    assert_eq!(off.hazards().await.unwrap().len(), 0);
    assert_eq!(warn.hazards().await.unwrap().len(), 1);
    assert_eq!(off.fire(vec![firing(0)]).await, [Fired::Done]);
    assert_eq!(warn.fire(vec![firing(0)]).await, [Fired::Done]);
    let refused = refuse.fire(vec![firing(0), firing(1)]).await;
    let [Fired::Away(why), Fired::Away(_)] = &refused[..] else { panic!("{refused:?}") };
    assert!(why.contains("1 replicas") && why.contains("checks"), "{why}");
    // It is looked at again, and taken when it is mended; no attempt was spent.
    broker.is_mended.store(true, SeqCst);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while refuse.fire(vec![firing(1)]).await != [Fired::Done] {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let headers = broker.headers.lock().clone();
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(headers.len(), 9);
    assert_eq!(
        headers[..3],
        [
            own("windfall-timer-id", "0001-01c3a2f0-00000000"),
            own("windfall-timer-due-ms", "1795345200000"),
            own("windfall-timer-attempt", "1"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_fails_among_others_counts_as_an_attempt() {
    let desk = desk(10_000);
    desk.broker.set(TOPIC, Faults { fail_per_mille: 500, ..Faults::default() });
    let fates = desk.fire(200).await;
    let failed = fates.iter().filter(|fate| matches!(fate, Fired::Failed(_))).count();
    let done = fates.iter().filter(|fate| **fate == Fired::Done).count();
    assert!(failed > 50 && done > 50 && failed + done == 200, "{failed} {done}");
    assert_eq!(desk.written().await.len(), done);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_broker_stores_nothing_no_attempt_is_spent() {
    let desk = desk(10_000);
    assert_eq!(desk.fire(1).await, [Fired::Done]);
    for faults in [
        Faults { refuse: true, ..Faults::default() },
        Faults { fail_per_mille: 1_000, ..Faults::default() },
        Faults { lose_answer_per_mille: 1_000, ..Faults::default() },
    ] {
        desk.broker.set(TOPIC, faults.clone());
        let fates = desk.fire(3).await;
        assert!(
            fates.iter().all(|fate| matches!(fate, Fired::Away(_) | Fired::Busy(_))),
            "{faults:?}: {fates:?}"
        );
    }
    desk.broker.clear(TOPIC);
    assert_eq!(desk.fire(3).await, vec![Fired::Done; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_is_waited_for_as_long_as_the_options_say() {
    let desk = desk(200);
    desk.broker.ensure_topic(TOPIC, 2).unwrap();
    desk.broker.set(TOPIC, Faults { hang: true, ..Faults::default() });
    let fates = tokio::time::timeout(Duration::from_secs(20), desk.fire(2)).await.unwrap();
    let [Fired::Away(why), Fired::Away(_)] = &fates[..] else { panic!("{fates:?}") };
    assert!(why.contains("within 200 ms"), "{why}");
    // What hung is written after all; the next attempts are not confused by its late reports.
    desk.broker.clear(TOPIC);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while desk.fire(2).await != vec![Fired::Done; 2] {
        assert!(std::time::Instant::now() < until);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_never_takes_is_refused_for_good() {
    let desk = desk(10_000);
    let huge = Firing { payload: vec![7; 64 << 20].into(), ..firing(1) };
    let fates = desk.target.fire(vec![firing(0), huge, firing(2)]).await;
    assert!(
        matches!(&fates[..], [Fired::Done, Fired::Refused(why), Fired::Done] if why.contains("larger")),
        "{fates:?}"
    );
}
