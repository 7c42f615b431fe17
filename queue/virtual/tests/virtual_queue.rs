//! The virtual queue over brokers that refuse, hang, lose answers and come back.
#![allow(clippy::unwrap_used)] // a test

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::broker::{
    Broker, Consumer, Delivery, DeliverySink, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_contract::rules::{self, Ratio, Rules};
use windfall_queue_virtual::{Fanout, FanoutOptions, PendingRecord, Side, Undelivered};

/// What a scripted topic does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Store,
    Refuse,
    /// Takes it and says nothing.
    Hang,
    /// Stores it, then says that it does not know.
    LoseAnswer,
    Fail,
    /// Stores it and says so long after the delivery time-out.
    Late,
}

struct Topic {
    mood: Mutex<Mood>,
    stored: Mutex<Vec<Vec<u8>>>,
    asked: AtomicU64,
    silent: Mutex<Vec<Tag>>,
}

#[derive(Default)]
struct Scripted {
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
    opened: AtomicU64,
    /// While held, no topic can be opened.
    door: Mutex<()>,
}

impl Scripted {
    fn topic(&self, name: &str) -> Arc<Topic> {
        let fresh = || {
            Arc::new(Topic {
                mood: Mutex::new(Mood::Store),
                stored: Mutex::default(),
                asked: AtomicU64::new(0),
                silent: Mutex::default(),
            })
        };
        Arc::clone(self.topics.lock().entry(name.to_owned()).or_insert_with(fresh))
    }
}

#[async_trait]
impl Broker for Scripted {
    fn ensure_topic(&self, topic: &str, _partitions: u32) -> Result<(), OpenError> {
        drop(self.door.lock());
        self.topic(topic);
        Ok(())
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        self.opened.fetch_add(1, SeqCst);
        let (reports, inbox) = std::sync::mpsc::sync_channel::<(Tag, Delivery)>(1024);
        let reporter = std::thread::spawn(move || {
            for (tag, delivery) in inbox {
                sink.delivered(tag, delivery);
            }
        });
        Ok(Arc::new(ScriptedProducer {
            topic: self.topic(topic),
            reports: Mutex::new(Some(reports)),
            reporter: Mutex::new(Some(reporter)),
        }))
    }

    async fn consumer(&self, _topic: &str, _group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        Err(OpenError::Invalid("scripted topics are not read".into()))
    }

    async fn lag(&self, _topic: &str, _group: &str) -> Result<Lag, OpenError> {
        Ok(Lag::default())
    }
}

struct ScriptedProducer {
    topic: Arc<Topic>,
    reports: Mutex<Option<std::sync::mpsc::SyncSender<(Tag, Delivery)>>>,
    reporter: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Producer for ScriptedProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        self.topic.asked.fetch_add(1, SeqCst);
        let reports = self.reports.lock();
        let Some(reports) = reports.as_ref() else { return Err(SendRefused::Closed) };
        let mood = *self.topic.mood.lock();
        if matches!(mood, Mood::Store | Mood::LoseAnswer | Mood::Late) {
            self.topic.stored.lock().push(record.payload.to_vec());
        }
        let delivery = match mood {
            Mood::Refuse => return Err(SendRefused::Unavailable("scripted".into())),
            Mood::Hang => {
                self.topic.silent.lock().push(tag);
                return Ok(());
            }
            Mood::Late => {
                let reports = reports.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(400));
                    // The stage may be gone by then.
                    drop(reports.send((tag, Delivery::Stored)));
                });
                return Ok(());
            }
            Mood::Store => Delivery::Stored,
            Mood::LoseAnswer => Delivery::Unknown("scripted".into()),
            Mood::Fail => Delivery::Failed("scripted".into()),
        };
        reports.send((tag, delivery)).unwrap();
        Ok(())
    }

    fn close(&self, _timeout: Duration) -> usize {
        let Some(reports) = self.reports.lock().take() else { return 0 };
        let silent = std::mem::take(&mut *self.topic.silent.lock());
        for tag in &silent {
            reports.send((*tag, Delivery::Unknown("closed".into()))).unwrap();
        }
        drop(reports);
        self.reporter.lock().take().unwrap().join().unwrap();
        silent.len()
    }
}

#[derive(Default)]
struct Fates {
    delivered: Mutex<Vec<Vec<u8>>>,
    undelivered: Mutex<Vec<(Vec<u8>, Undelivered)>>,
}

impl Fates {
    fn known(&self) -> usize {
        self.delivered.lock().len() + self.undelivered.lock().len()
    }
}

struct TestRecord {
    payload: Vec<u8>,
    patience: Option<Duration>,
    fates: Arc<Fates>,
}

impl PendingRecord for TestRecord {
    fn key(&self) -> &[u8] {
        &self.payload
    }
    fn payload(&self) -> &[u8] {
        &self.payload
    }
    fn patience(&self) -> Option<Duration> {
        self.patience
    }
    fn delivered(self: Box<Self>) {
        self.fates.delivered.lock().push(self.payload);
    }
    fn undelivered(self: Box<Self>, why: Undelivered) {
        self.fates.undelivered.lock().push((self.payload, why));
    }
}

struct Stage {
    fanout: Fanout,
    a: Arc<Scripted>,
    b: Arc<Scripted>,
    fates: Arc<Fates>,
}

fn rules(ratio: u8) -> Rules {
    let topic = |broker: &str| rules::Topic { broker: broker.into(), partitions: 4 };
    let queue = |master: &str, backup: &str| rules::Queue {
        master: master.into(),
        backup: backup.into(),
        ratio: Ratio::new(ratio).unwrap(),
    };
    Rules {
        version: 1,
        bonus_types: vec!["cash".into()],
        topics: [("m", "a"), ("n", "a"), ("s", "b")]
            .map(|(name, broker)| (name.into(), topic(broker)))
            .into(),
        queues: [("one".into(), queue("m", "s")), ("two".into(), queue("n", "s"))].into(),
        routes: vec![],
        limits: rules::Limits { global: rules::Limit { rate_per_s: 1, burst: 1 }, types: BTreeMap::new() },
        budgets: vec![],
        caps: Default::default(),
        revocations: Default::default(),
        pacing: rules::Pacing {
            hold_max_ms: 500,
            deadline_ms: 10_000,
            requeue_delay_ms: 200,
            requeue_delay_max_ms: 30_000,
            max_failures: 16,
            grant_batch: 1000,
            in_hand_max: 8192,
            lane_events_max: 65_536,
            lane_bytes_max: 1 << 25,
        },
    }
}

fn quick() -> FanoutOptions {
    FanoutOptions {
        delivery_timeout_ms: 150,
        hang_ms: 60,
        backoff_first_ms: 5,
        backoff_max_ms: 40,
        breaker_probe_ms: 40,
        ..FanoutOptions::default()
    }
}

fn stage(options: FanoutOptions) -> Stage {
    let (a, b) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    let brokers: BTreeMap<String, Arc<dyn Broker>> =
        [("a".to_owned(), Arc::clone(&a) as Arc<dyn Broker>), ("b".to_owned(), Arc::clone(&b) as _)].into();
    let fanout = Fanout::open(&rules(100), brokers, options, Clock::system()).unwrap();
    Stage { fanout, a, b, fates: Arc::default() }
}

impl Stage {
    fn send(&self, number: u32, patience: Option<Duration>) {
        let queue = self.fanout.queue("one").unwrap();
        let side = self.fanout.side(queue, 7).unwrap();
        let payload = number.to_be_bytes().to_vec();
        let letter = TestRecord { payload, patience, fates: Arc::clone(&self.fates) };
        self.fanout.submit(&[(queue, side)], Box::new(letter));
    }

    fn wait_for(&self, fates: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.fates.known() < fates {
            assert!(Instant::now() < until, "{} of {fates} fates known", self.fates.known());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn master(&self) -> Arc<Topic> {
        self.a.topic("m")
    }

    fn backup(&self) -> Arc<Topic> {
        self.b.topic("s")
    }
}

#[test]
fn the_ratio_picks_the_side_by_user_and_changes_live() {
    let stage = stage(quick());
    let queue = stage.fanout.queue("one").unwrap();
    assert_eq!(stage.fanout.side(queue, 99), Some(Side::Master));
    stage.fanout.apply(&rules(30)).unwrap();
    for (user_id, side) in [(29, Side::Master), (30, Side::Backup), (130, Side::Backup), (-1, Side::Backup)] {
        let wanted = if user_id == 130 { Side::Backup } else { side };
        assert_eq!(stage.fanout.side(queue, user_id), Some(wanted), "user {user_id}");
    }
}

#[test]
fn a_topic_of_two_queues_has_one_producer() {
    let stage = stage(quick());
    assert_eq!(stage.a.opened.load(SeqCst), 2);
    assert_eq!(stage.b.opened.load(SeqCst), 1);
    stage.fanout.apply(&rules(30)).unwrap();
    assert_eq!(stage.b.opened.load(SeqCst), 1, "open topics are kept when rules change");
}

#[test]
fn a_refusing_master_costs_one_look_and_soon_none() {
    let stage = stage(quick());
    *stage.master().mood.lock() = Mood::Refuse;
    for number in 0..500 {
        stage.send(number, None);
    }
    stage.wait_for(500);
    assert_eq!(stage.backup().stored.lock().len(), 500);
    let asked = stage.master().asked.load(SeqCst);
    assert!(asked < 20, "an open breaker is probed, not hammered: {asked} tries");
    *stage.master().mood.lock() = Mood::Store;
    std::thread::sleep(Duration::from_millis(60));
    for number in 500..510 {
        stage.send(number, None);
    }
    stage.wait_for(510);
    assert!(!stage.master().stored.lock().is_empty(), "a master that is back is used again");
}

#[test]
fn a_hung_master_delays_only_what_it_holds() {
    let stage = stage(quick());
    *stage.master().mood.lock() = Mood::Hang;
    for number in 0..10 {
        stage.send(number, None);
    }
    std::thread::sleep(Duration::from_millis(80));
    stage.send(10, None);
    stage.wait_for(1);
    assert_eq!(stage.fates.delivered.lock()[0], 10_u32.to_be_bytes(), "the newcomer passed the hung ones");
    stage.wait_for(11);
    assert_eq!(stage.backup().stored.lock().len(), 11);
}

#[test]
fn a_lost_answer_leads_to_a_copy_not_to_a_loss() {
    let stage = stage(quick());
    *stage.master().mood.lock() = Mood::LoseAnswer;
    stage.send(1, None);
    stage.wait_for(1);
    assert_eq!(stage.master().stored.lock().len() + stage.backup().stored.lock().len(), 2);
    assert_eq!(stage.fates.delivered.lock().len(), 1, "its owner hears of it once");
}

#[test]
fn when_all_refuse_it_waits_until_one_is_back() {
    let stage = stage(quick());
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Refuse;
    }
    for number in 0..20 {
        stage.send(number, None);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(stage.fates.known(), 0);
    *stage.backup().mood.lock() = Mood::Store;
    stage.wait_for(20);
    assert_eq!(stage.fates.delivered.lock().len(), 20);
}

#[test]
fn impatient_records_come_back() {
    let stage = stage(quick());
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Fail;
    }
    stage.send(1, Some(Duration::from_millis(50)));
    stage.wait_for(1);
    assert_eq!(stage.fates.undelivered.lock()[0].1, Undelivered::PatienceOver);
    assert_eq!(stage.fanout.stats().pending_records, 0);
}

#[test]
fn close_says_what_it_could_not_deliver_and_loses_no_record() {
    let stage = stage(FanoutOptions { delivery_timeout_ms: 60_000, hang_ms: 50_000, ..quick() });
    // Else what the master holds would be saved through the backup at the last moment.
    *stage.backup().mood.lock() = Mood::Refuse;
    *stage.master().mood.lock() = Mood::Hang;
    for number in 0..7 {
        stage.send(number, None);
    }
    *stage.master().mood.lock() = Mood::Store;
    for number in 7..20 {
        stage.send(number, None);
    }
    let report = stage.fanout.close(Duration::from_millis(100));
    assert_eq!(report.undelivered, 7);
    assert_eq!(stage.fates.delivered.lock().len(), 13);
    stage.send(20, None);
    assert_eq!(stage.fates.undelivered.lock().len(), 8);
    assert!(stage.fates.undelivered.lock().iter().all(|(_, why)| *why == Undelivered::Closed));
    assert_eq!(stage.fanout.close(Duration::from_secs(1)).undelivered, 0);
}

#[test]
fn a_full_fan_out_gives_back_at_once() {
    let stage = stage(FanoutOptions { records_max: 3, ..quick() });
    *stage.master().mood.lock() = Mood::Hang;
    for number in 0..5 {
        stage.send(number, None);
    }
    let full = stage.fates.undelivered.lock().iter().filter(|(_, why)| *why == Undelivered::Full).count();
    assert_eq!(full, 2);
}

/// Whatever moods the two topics go through, every record has exactly one fate, and what was reported delivered
/// is stored somewhere.
#[test]
fn random_moods_lose_nothing() {
    for seed in 1..=4_u64 {
        let stage = stage(quick());
        let mut state = seed;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let moods = [Mood::Store, Mood::Refuse, Mood::Hang, Mood::LoseAnswer, Mood::Fail, Mood::Store];
        for number in 0..400 {
            if number % 10 == 0 {
                let topic = if random() % 2 == 0 { stage.master() } else { stage.backup() };
                *topic.mood.lock() = moods[usize::try_from(random() % 6).unwrap()];
                std::thread::sleep(Duration::from_millis(random() % 8));
            }
            stage.send(number, None);
        }
        for topic in [stage.master(), stage.backup()] {
            *topic.mood.lock() = Mood::Store;
        }
        stage.wait_for(400);
        let mut delivered = stage.fates.delivered.lock().clone();
        delivered.sort();
        delivered.dedup();
        assert_eq!(delivered.len(), 400, "seed {seed}: one fate each");
        let stored: std::collections::BTreeSet<_> =
            stage.master().stored.lock().iter().chain(stage.backup().stored.lock().iter()).cloned().collect();
        assert!(delivered.iter().all(|payload| stored.contains(payload)), "seed {seed}");
    }
}

/// Rules with one more queue, `extra`, on topics of its own.
fn rules_with(version: u64, extra: &str) -> Rules {
    let mut rules = rules(100);
    rules.version = version;
    for (name, broker) in [(format!("{extra}-m"), "a"), (format!("{extra}-s"), "b")] {
        rules.topics.insert(name, rules::Topic { broker: broker.into(), partitions: 4 });
    }
    let (master, backup) = (format!("{extra}-m"), format!("{extra}-s"));
    rules.queues.insert(extra.to_owned(), rules::Queue { master, backup, ratio: Ratio::ALL });
    rules
}

#[test]
fn a_broker_that_is_slow_to_open_a_topic_stops_nobody() {
    let stage = stage(quick());
    let door = stage.a.door.lock();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| stage.fanout.apply(&rules_with(2, "new")));
        std::thread::sleep(Duration::from_millis(20));
        for number in 0..20 {
            stage.send(number, None);
        }
        stage.wait_for(20);
        assert!(!opening.is_finished());
        drop(door);
        opening.join().unwrap().unwrap();
    });
    assert!(stage.fanout.queue("new").is_some());
}

#[test]
fn rules_that_come_late_do_not_undo_newer_ones() {
    let stage = stage(quick());
    stage.fanout.apply(&rules_with(7, "new")).unwrap();
    stage.fanout.apply(&rules(30)).unwrap();
    let queue = stage.fanout.queue("new").unwrap();
    assert_eq!(stage.fanout.side(queue, 99), Some(Side::Master), "version 1 came after version 7");
}

#[test]
fn records_for_topics_just_opened_are_retried_too() {
    let stage = stage(quick());
    let names: Vec<_> = (2..40_u32).map(|version| format!("q{version}")).collect();
    for (name, version) in names.iter().zip(2..) {
        for topic in [stage.a.topic(&format!("{name}-m")), stage.b.topic(&format!("{name}-s"))] {
            *topic.mood.lock() = Mood::Fail;
        }
        stage.fanout.apply(&rules_with(version, name)).unwrap();
        let queue = stage.fanout.queue(name).unwrap();
        let letter =
            TestRecord { payload: name.clone().into(), patience: None, fates: Arc::clone(&stage.fates) };
        stage.fanout.submit(&[(queue, Side::Master)], Box::new(letter));
    }
    for name in &names {
        *stage.b.topic(&format!("{name}-s")).mood.lock() = Mood::Store;
    }
    stage.wait_for(names.len());
    assert_eq!(stage.fates.delivered.lock().len(), names.len());
}

/// Both topics take it and then fail it, while other records keep the breakers closed: it used to go round and
/// round as fast as the brokers answered, and its patience never ended.
#[test]
fn a_record_that_fails_everywhere_is_tried_with_backoff_and_given_back() {
    let stage = stage(FanoutOptions { breaker_failures: 1_000, ..quick() });
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Fail;
    }
    stage.send(1, Some(Duration::from_millis(200)));
    stage.wait_for(1);
    assert_eq!(stage.fates.undelivered.lock()[0].1, Undelivered::PatienceOver);
    let asked = stage.master().asked.load(SeqCst) + stage.backup().asked.load(SeqCst);
    assert!(asked < 40, "{asked} tries in 200 ms");
}

/// With one time-out for ever, brokers that take longer would be sent the same record again and again.
#[test]
fn brokers_slower_than_the_time_out_get_there_in_the_end() {
    let stage = stage(FanoutOptions { hang_ms: 10_000, ..quick() });
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Late;
    }
    stage.send(1, None);
    stage.wait_for(1);
    assert_eq!(stage.fates.delivered.lock().len(), 1);
    let copies = stage.master().stored.lock().len() + stage.backup().stored.lock().len();
    assert!(copies <= 4, "{copies} copies");
}

#[test]
fn patience_ends_when_answers_stay_away_too() {
    let stage = stage(quick());
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Hang;
    }
    stage.send(1, Some(Duration::from_millis(100)));
    stage.wait_for(1);
    assert_eq!(stage.fates.undelivered.lock()[0].1, Undelivered::PatienceOver);
}

#[test]
fn options_out_of_range_are_named() {
    let brokers: BTreeMap<String, Arc<dyn Broker>> = BTreeMap::new();
    let options = FanoutOptions { hang_ms: 1, ..quick() };
    let refused = Fanout::open(&rules(100), brokers, options, Clock::system()).err().unwrap();
    assert!(refused.to_string().contains("hang_ms = 1: 50 to 60000"), "{refused}");
}
