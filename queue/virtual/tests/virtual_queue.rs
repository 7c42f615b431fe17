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
use windfall_queue_virtual::{
    Fanout, FanoutOptions, PendingRecord, Side, TopicState, TopicStatus, Undelivered,
};

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
    /// What `producer` answers, other than a producer.
    trouble: Mutex<Option<Trouble>>,
    producers: Mutex<Vec<Arc<ScriptedProducer>>>,
}

/// Why a topic cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Away,
    /// Only the topic of this name.
    Invalid(&'static str),
    Panic,
}

impl Scripted {
    /// Closes every producer behind the fan-out's back.
    fn close_producers(&self) {
        for producer in self.producers.lock().drain(..) {
            producer.close(Duration::ZERO);
        }
    }

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
        match *self.trouble.lock() {
            Some(Trouble::Away) => return Err(OpenError::Unavailable("scripted".into())),
            Some(Trouble::Invalid(name)) if name == topic => {
                return Err(OpenError::Invalid("scripted".into()));
            }
            Some(Trouble::Panic) => panic!("scripted"),
            Some(Trouble::Invalid(_)) | None => {}
        }
        self.opened.fetch_add(1, SeqCst);
        let (reports, inbox) = std::sync::mpsc::sync_channel::<(Tag, Delivery)>(1024);
        let reporter = std::thread::spawn(move || {
            for (tag, delivery) in inbox {
                sink.delivered(tag, delivery);
            }
        });
        let producer = Arc::new(ScriptedProducer {
            topic: self.topic(topic),
            reports: Mutex::new(Some(reports)),
            reporter: Mutex::new(Some(reporter)),
        });
        self.producers.lock().push(Arc::clone(&producer));
        Ok(producer)
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
    fanout: Arc<Fanout>,
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
        draining: Vec::new(),
        topics: [("m", "a"), ("n", "a"), ("s", "b")]
            .map(|(name, broker)| (name.into(), topic(broker)))
            .into(),
        queues: [("one".into(), queue("m", "s")), ("two".into(), queue("n", "s"))].into(),
        routes: vec![],
        limits: rules::Limits { global: rules::Limit { rate_per_s: 1, burst: 1 }, types: BTreeMap::new() },
        budgets: vec![],
        caps: Default::default(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
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
        open_backoff_max_ms: 100,
        ..FanoutOptions::default()
    }
}

fn stage(options: FanoutOptions) -> Stage {
    let stage = unopened(options, &rules(100), |_, _| ());
    assert!(stage.fanout.wait_until_open(PATIENCE));
    stage
}

/// The bound after which a test has failed, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a call returns that must not wait for a broker which the test holds up meanwhile. One that waits for it has failed.
fn comes_back<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = std::sync::mpsc::sync_channel(1);
    let calling = std::thread::spawn(move || drop(done.send(call())));
    let answer = answer.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
    calling.join().unwrap();
    answer
}

/// A stage whose brokers `script` prepares, and for whose topics nobody has waited.
fn unopened(options: FanoutOptions, rules: &Rules, script: impl FnOnce(&Scripted, &Scripted)) -> Stage {
    let (a, b) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    script(&a, &b);
    on_brokers(options, rules, a, b, Clock::system())
}

/// A stage whose topics are open, and whose clock stands until the test moves it: the clock's milliseconds come with it.
fn stage_on_a_standing_clock(options: FanoutOptions) -> (Stage, Arc<AtomicU64>) {
    let now_ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let read = Arc::clone(&now_ms);
    let clock = Clock::from_unix_ms(move || read.load(SeqCst));
    let stage = on_brokers(options, &rules(100), Arc::default(), Arc::default(), clock);
    for (broker, topic) in [("a", "m"), ("a", "n"), ("b", "s")] {
        stage.wait_for_state(broker, topic, Some(TopicState::Ready));
    }
    (stage, now_ms)
}

fn on_brokers(
    options: FanoutOptions,
    rules: &Rules,
    a: Arc<Scripted>,
    b: Arc<Scripted>,
    clock: Clock,
) -> Stage {
    let brokers: BTreeMap<String, Arc<dyn Broker>> =
        [("a".to_owned(), Arc::clone(&a) as Arc<dyn Broker>), ("b".to_owned(), Arc::clone(&b) as _)].into();
    let fanout = Arc::new(Fanout::open(rules, brokers, options, clock).unwrap());
    Stage { fanout, a, b, fates: Arc::default() }
}

impl Stage {
    fn send(&self, number: u32, patience: Option<Duration>) {
        self.send_to("one", number, patience);
    }

    fn send_to(&self, queue: &str, number: u32, patience: Option<Duration>) {
        let queue = self.fanout.queue(queue).unwrap();
        let side = self.fanout.side(queue, 7).unwrap();
        let payload = number.to_be_bytes().to_vec();
        let letter = TestRecord { payload, patience, fates: Arc::clone(&self.fates) };
        self.fanout.submit(&[(queue, side)], Box::new(letter));
    }

    fn wait_for(&self, fates: usize) {
        let until = Instant::now() + PATIENCE;
        while self.fates.known() < fates {
            assert!(Instant::now() < until, "{} of {fates} fates known", self.fates.known());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn status(&self, broker: &str, topic: &str) -> Option<TopicStatus> {
        self.fanout.topics().into_iter().find(|status| status.broker == broker && status.topic == topic)
    }

    fn wait_for_state(&self, broker: &str, topic: &str, state: Option<TopicState>) {
        let until = Instant::now() + PATIENCE;
        while self.status(broker, topic).map(|status| status.state) != state {
            assert!(Instant::now() < until, "{broker}/{topic} is not {state:?}: {:?}", self.fanout.topics());
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
    let (stage, now_ms) = stage_on_a_standing_clock(quick());
    *stage.master().mood.lock() = Mood::Refuse;
    for number in 0..500 {
        stage.send(number, None);
    }
    stage.wait_for(500);
    assert_eq!(stage.backup().stored.lock().len(), 500);
    let asked = stage.master().asked.load(SeqCst);
    assert!(asked < 20, "an open breaker is probed, not hammered: {asked} tries");
    *stage.master().mood.lock() = Mood::Store;
    now_ms.fetch_add(60, SeqCst);
    for number in 500..510 {
        stage.send(number, None);
    }
    stage.wait_for(510);
    assert!(!stage.master().stored.lock().is_empty(), "a master that is back is used again");
}

#[test]
fn a_hung_master_delays_only_what_it_holds() {
    let (stage, now_ms) = stage_on_a_standing_clock(quick());
    *stage.master().mood.lock() = Mood::Hang;
    for number in 0..10 {
        stage.send(number, None);
    }
    // It has been silent for longer than `hang_ms`, and no answer is overdue yet.
    now_ms.fetch_add(80, SeqCst);
    stage.send(10, None);
    stage.wait_for(1);
    assert_eq!(stage.fates.delivered.lock()[0], 10_u32.to_be_bytes(), "the newcomer passed the hung ones");
    now_ms.fetch_add(100, SeqCst);
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
    stage.wait_for(13);
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
    let options = FanoutOptions { records_max: 3, delivery_timeout_ms: 60_000, hang_ms: 50_000, ..quick() };
    let stage = stage(options);
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
    let fanout = Arc::clone(&stage.fanout);
    // If each waited for the broker, for half a second only, they would take more than a minute.
    comes_back("new rules wait for a broker", move || {
        (2..152).for_each(|version| fanout.apply(&rules_with(version, "new")).unwrap());
    });
    for number in 0..20 {
        stage.send(number, None);
        stage.send_to("new", number, None);
    }
    stage.wait_for(40);
    assert_eq!(
        stage.b.topic("new-s").stored.lock().len(),
        20,
        "the other topic of the new queue works at once"
    );
    assert_eq!(stage.status("a", "new-m").unwrap().state, TopicState::Opening);
    drop(door);
    stage.wait_for_state("a", "new-m", Some(TopicState::Ready));
    stage.send_to("new", 20, None);
    stage.wait_for(41);
    assert_eq!(stage.a.topic("new-m").stored.lock().len(), 1);
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
    let mut all = rules(100);
    for (name, version) in names.iter().zip(2..) {
        for topic in [stage.a.topic(&format!("{name}-m")), stage.b.topic(&format!("{name}-s"))] {
            *topic.mood.lock() = Mood::Fail;
        }
        let Rules { topics, queues, .. } = rules_with(version, name);
        all.version = version;
        all.topics.extend(topics);
        all.queues.extend(queues);
        stage.fanout.apply(&all).unwrap();
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

#[test]
fn a_broker_that_is_away_at_the_start_is_taken_up_when_it_comes() {
    let away = |a: &Scripted, _: &Scripted| *a.trouble.lock() = Some(Trouble::Away);
    let stage = unopened(quick(), &rules(100), away);
    for number in 0..20 {
        stage.send(number, None);
    }
    stage.wait_for(20);
    assert_eq!(stage.backup().stored.lock().len(), 20);
    // With waits that doubled for ever, so many tries would take a quarter of an hour.
    let until = Instant::now() + PATIENCE;
    while stage.status("a", "m").unwrap().open_failures < 15 {
        assert!(Instant::now() < until, "{:?}", stage.fanout.topics());
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = stage.status("a", "m").unwrap();
    assert_eq!(status.state, TopicState::Opening);
    assert!(status.reason.unwrap().contains("scripted") && !status.is_invalid);
    *stage.a.trouble.lock() = None;
    stage.wait_for_state("a", "m", Some(TopicState::Ready));
    stage.send(20, None);
    stage.wait_for(21);
    assert_eq!(stage.master().stored.lock().len(), 1);
}

#[test]
fn with_every_broker_away_records_wait_and_none_is_lost() {
    let away = |a: &Scripted, b: &Scripted| {
        *a.trouble.lock() = Some(Trouble::Away);
        *b.trouble.lock() = Some(Trouble::Panic);
    };
    let stage = unopened(quick(), &rules(100), away);
    for number in 0..50 {
        stage.send(number, None);
    }
    let until = Instant::now() + PATIENCE;
    while stage.fanout.stats().driver_panics == 0 {
        assert!(Instant::now() < until, "a driver that panics is not counted");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(stage.fates.known(), 0);
    *stage.b.trouble.lock() = None;
    stage.wait_for(50);
    assert_eq!(stage.fates.delivered.lock().len(), 50);
}

#[test]
fn a_broker_that_never_answers_holds_up_neither_start_nor_end() {
    let (a, b) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    let door = a.door.lock();
    let (own_a, own_b) = (Arc::clone(&a), Arc::clone(&b));
    // Twelve of each: with ten seconds for one, as a start once took, they would take two minutes.
    let stages = comes_back("a start waits for a broker", move || {
        let open = |_| on_brokers(quick(), &rules(100), own_a.clone(), own_b.clone(), Clock::system());
        (0..12).map(open).collect::<Vec<_>>()
    });
    stages[0].fanout.apply(&rules_with(2, "new")).unwrap();
    stages[0].send_to("new", 1, None);
    stages[0].wait_for(1);
    let fanouts: Vec<_> = stages.iter().map(|stage| Arc::clone(&stage.fanout)).collect();
    let undelivered: usize = comes_back("an end waits for a broker", move || {
        fanouts.iter().map(|fanout| fanout.close(Duration::from_millis(100)).undelivered).sum()
    });
    assert_eq!(undelivered, 0);
    drop(door);
}

#[test]
fn a_topic_that_its_broker_calls_invalid_refuses_nothing_else_and_is_tried_again_with_other_rules() {
    let invalid = |a: &Scripted, _: &Scripted| *a.trouble.lock() = Some(Trouble::Invalid("m"));
    let stage = unopened(quick(), &rules(100), invalid);
    stage.wait_for_state("a", "n", Some(TopicState::Ready));
    stage.send(1, None);
    stage.send_to("two", 2, None);
    stage.wait_for(2);
    let status = stage.status("a", "m").unwrap();
    assert!(status.is_invalid && status.state == TopicState::Opening, "{status:?}");
    assert_eq!(status.open_failures, 1, "it is not hammered");
    *stage.a.trouble.lock() = None;
    stage.fanout.apply(&rules(100)).unwrap();
    stage.wait_for_state("a", "m", Some(TopicState::Ready));
}

#[test]
fn a_topic_on_a_broker_that_the_options_do_not_name_is_shown_and_the_others_work() {
    let mut odd = rules(100);
    odd.topics.get_mut("m").unwrap().broker = "nowhere".into();
    let stage = unopened(quick(), &odd, |_, _| ());
    stage.send(1, None);
    stage.wait_for(1);
    let status = stage.status("nowhere", "m").unwrap();
    assert!(status.is_invalid && status.reason.unwrap().contains("`nowhere`"));
}

/// A topic is a broker's name and its own: rules that name another broker used to change nothing for a topic that was
/// open already.
#[test]
fn a_topic_that_moves_is_opened_there_and_its_old_outbox_stays_until_it_holds_nothing() {
    let stage = stage(FanoutOptions { delivery_timeout_ms: 60_000, hang_ms: 50_000, ..quick() });
    let old = stage.master();
    *old.mood.lock() = Mood::Hang;
    stage.send(1, None);
    let mut moved = rules(100);
    moved.version = 2;
    moved.topics.get_mut("m").unwrap().broker = "b".into();
    stage.fanout.apply(&moved).unwrap();
    stage.wait_for_state("b", "m", Some(TopicState::Ready));
    stage.send(2, None);
    stage.wait_for(1);
    assert_eq!(*stage.b.topic("m").stored.lock(), [2_u32.to_be_bytes()]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(stage.status("a", "m").unwrap().state, TopicState::Draining, "it holds a record");
    // Back again: the same outbox goes on.
    moved.version = 3;
    moved.topics.get_mut("m").unwrap().broker = "a".into();
    stage.fanout.apply(&moved).unwrap();
    assert_eq!(stage.status("a", "m").unwrap().state, TopicState::Ready);
    stage.wait_for_state("b", "m", None);
    let opened = stage.a.opened.load(SeqCst);
    assert_eq!(opened, 2, "its producer was kept");
    assert_eq!(stage.fates.known(), 1, "what it holds is still its");
    stage.fanout.close(Duration::from_millis(50));
    assert_eq!(stage.fates.known(), 2);
}

#[test]
fn what_a_removed_topic_holds_goes_elsewhere_when_its_answer_is_overdue() {
    let stage = stage(quick());
    *stage.master().mood.lock() = Mood::Hang;
    stage.send(1, None);
    let mut other = rules(100);
    other.version = 2;
    other.topics.insert("z".into(), rules::Topic { broker: "a".into(), partitions: 1 });
    other.queues.get_mut("one").unwrap().master = "z".into();
    stage.fanout.apply(&other).unwrap();
    stage.wait_for(1);
    assert_eq!(stage.fates.delivered.lock().len(), 1);
    let copies = stage.a.topic("z").stored.lock().len() + stage.backup().stored.lock().len();
    assert_eq!(copies, 1, "it took a topic of the new rules");
    stage.wait_for_state("a", "m", None);
}

/// Consumers of a queue that is gone stop when they have read what is there: nothing may be written to it any more.
#[test]
fn a_record_that_waits_for_a_queue_that_goes_is_given_back() {
    let stage = stage(quick());
    stage.fanout.apply(&rules_with(2, "new")).unwrap();
    assert!(stage.fanout.wait_until_open(PATIENCE));
    for topic in [stage.a.topic("new-m"), stage.b.topic("new-s")] {
        *topic.mood.lock() = Mood::Refuse;
    }
    stage.send_to("new", 1, None);
    let mut without = rules(100);
    without.version = 3;
    stage.fanout.apply(&without).unwrap();
    stage.wait_for(1);
    assert_eq!(stage.fates.undelivered.lock()[0].1, Undelivered::NoQueue);
    stage.wait_for_state("a", "new-m", None);
    stage.wait_for_state("b", "new-s", None);
}

#[test]
fn a_producer_that_its_driver_closed_is_replaced() {
    let stage = stage(quick());
    stage.send(1, None);
    stage.wait_for(1);
    stage.a.close_producers();
    stage.send(2, None);
    stage.wait_for(2);
    let until = Instant::now() + PATIENCE;
    while stage.a.opened.load(SeqCst) < 3 {
        assert!(Instant::now() < until, "{:?}", stage.fanout.topics());
        std::thread::sleep(Duration::from_millis(1));
    }
    stage.wait_for_state("a", "m", Some(TopicState::Ready));
    std::thread::sleep(Duration::from_millis(60));
    stage.send(3, None);
    stage.wait_for(3);
    assert_eq!(stage.master().stored.lock().len(), 2);
}

#[test]
fn an_open_breaker_says_since_when_and_why() {
    let (stage, now_ms) = stage_on_a_standing_clock(quick());
    let opened_ms = now_ms.fetch_add(5_000, SeqCst);
    *stage.master().mood.lock() = Mood::Refuse;
    for number in 0..10 {
        stage.send(number, None);
    }
    stage.wait_for(10);
    now_ms.fetch_add(30, SeqCst);
    let status = stage.status("a", "m").unwrap();
    assert_eq!((status.state, status.reason.as_deref()), (TopicState::BreakerOpen, Some("scripted")));
    assert_eq!(status.since_ms, opened_ms + 5_000);
    assert_eq!(stage.status("b", "s").unwrap().state, TopicState::Ready);
}

/// The records of a queue whose brokers are both away used to take all of the fan-out's room.
#[test]
fn a_queue_whose_brokers_are_away_leaves_the_others_their_room() {
    let stage = stage(FanoutOptions { records_max: 800, ..quick() });
    // `one` is on `m` and `s`, `apart` on topics of its own.
    stage.fanout.apply(&rules_with(2, "apart")).unwrap();
    assert!(stage.fanout.wait_until_open(PATIENCE));
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Hang;
    }
    for number in 0..1_000 {
        stage.send(number, None);
    }
    let refused = stage.fates.undelivered.lock().len();
    assert!(refused > 200, "{refused} of 1,000 were given back");
    assert!(stage.fates.undelivered.lock().iter().all(|(_, why)| *why == Undelivered::Full));
    for number in 0..5_000 {
        stage.send_to("apart", number, None);
        while stage.fanout.stats().pending_records > 500 {
            std::thread::yield_now();
        }
    }
    stage.wait_for(5_000 + refused);
    assert_eq!(stage.fates.undelivered.lock().len(), refused, "none of the other queue was refused");
}

/// A record that panics once when the fan-out's own thread asks for its key.
struct Grenade {
    is_armed: AtomicU64,
    dropped: Arc<AtomicU64>,
}

impl PendingRecord for Grenade {
    fn key(&self) -> &[u8] {
        let is_retry = std::thread::current().name() == Some("windfall-fanout");
        assert!(!is_retry || self.is_armed.swap(0, SeqCst) == 0, "scripted");
        b"key"
    }
    fn payload(&self) -> &[u8] {
        b"grenade"
    }
    fn delivered(self: Box<Self>) {}
    fn undelivered(self: Box<Self>, _: Undelivered) {}
}

impl Drop for Grenade {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_retry_thread_starts_again_after_a_panic_and_keeps_no_room_for_what_it_dropped() {
    let stage = stage(FanoutOptions { breaker_failures: 1_000, ..quick() });
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Refuse;
    }
    let dropped = Arc::new(AtomicU64::new(0));
    let queue = stage.fanout.queue("one").unwrap();
    for number in 0..20 {
        if number % 5 == 0 {
            let grenade = Grenade { is_armed: AtomicU64::new(1), dropped: Arc::clone(&dropped) };
            stage.fanout.submit(&[(queue, Side::Master)], Box::new(grenade));
        }
        stage.send(number, None);
    }
    let until = Instant::now() + PATIENCE;
    while dropped.load(SeqCst) < 4 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    for topic in [stage.master(), stage.backup()] {
        *topic.mood.lock() = Mood::Store;
    }
    stage.wait_for(20);
    assert_eq!(stage.fates.delivered.lock().len(), 20);
    let stats = stage.fanout.stats();
    assert_eq!((stats.retry_panics, stats.pending_records), (4, 0));
}
