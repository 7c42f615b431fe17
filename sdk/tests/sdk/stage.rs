//! An SDK between two scripted brokers and a scripted token store.

use async_trait::async_trait;
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::{
    Broker, Consumer, Delivery, DeliverySink, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_contract::rules::DrainingTopic;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_proto::v1::{Bonus, BonusEvent, BonusEventBatch, SendBonusRequest, User};
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_sdk::Signer;
use windfall_sdk::{Inherited, Sdk, SdkOptions, SdkParts, SpoolMode};
use windfall_token::KeyRing;

/// The bound after which a test has failed, however busy the machine is.
pub const MINUTE: Duration = Duration::from_secs(60);

/// What a broker does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Store,
    Refuse,
    /// Takes it and says nothing.
    Hang,
    Panic,
}

/// A broker: keeps what it stores, in one list for all its topics.
pub struct Scripted {
    pub mood: Mutex<Mood>,
    pub records: Mutex<Vec<(String, Vec<u8>)>>,
    /// While held, no topic can be opened.
    pub door: Mutex<()>,
    /// Whether the broker cannot be reached.
    pub is_away: AtomicBool,
    /// Topics that take records and say nothing, whatever the mood, until they are taken out again.
    pub hung_topics: Mutex<BTreeSet<String>>,
}

impl Scripted {
    pub fn new(mood: Mood) -> Arc<Self> {
        Arc::new(Self {
            mood: Mutex::new(mood),
            records: Mutex::default(),
            door: Mutex::new(()),
            is_away: AtomicBool::new(false),
            hung_topics: Mutex::default(),
        })
    }
}

struct Handle(Arc<Scripted>);

#[async_trait]
impl Broker for Handle {
    fn ensure_topic(&self, _topic: &str, _partitions: u32) -> Result<(), OpenError> {
        drop(self.0.door.lock());
        Ok(())
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        if self.0.is_away.load(SeqCst) {
            return Err(OpenError::Unavailable("scripted".into()));
        }
        let (reports, inbox) = sync_channel::<(Tag, Delivery)>(1 << 16);
        let reporter = std::thread::spawn(move || {
            for (tag, delivery) in inbox {
                sink.delivered(tag, delivery);
            }
        });
        Ok(Arc::new(ScriptedProducer {
            topic: topic.to_owned(),
            broker: Arc::clone(&self.0),
            state: Mutex::new(Some((reports, reporter))),
            silent: Mutex::default(),
        }))
    }

    async fn consumer(&self, _topic: &str, _group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        Err(OpenError::Invalid("scripted topics are not read".into()))
    }

    async fn lag(&self, _topic: &str, _group: &str) -> Result<Lag, OpenError> {
        Ok(Lag::default())
    }
}

type Reporting = (SyncSender<(Tag, Delivery)>, JoinHandle<()>);

struct ScriptedProducer {
    topic: String,
    broker: Arc<Scripted>,
    state: Mutex<Option<Reporting>>,
    silent: Mutex<Vec<Tag>>,
}

impl Producer for ScriptedProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let state = self.state.lock();
        let Some((reports, _)) = state.as_ref() else { return Err(SendRefused::Closed) };
        let is_hung = self.broker.hung_topics.lock().contains(&self.topic);
        let mood = *self.broker.mood.lock();
        match if is_hung { Mood::Hang } else { mood } {
            Mood::Panic => panic!("scripted"),
            Mood::Refuse => Err(SendRefused::Unavailable("scripted".into())),
            Mood::Hang => {
                self.silent.lock().push(tag);
                Ok(())
            }
            Mood::Store => {
                self.broker.records.lock().push((self.topic.clone(), record.payload.to_vec()));
                reports.send((tag, Delivery::Stored)).unwrap();
                Ok(())
            }
        }
    }

    fn close(&self, _timeout: Duration) -> usize {
        let Some((reports, reporter)) = self.state.lock().take() else { return 0 };
        let silent = std::mem::take(&mut *self.silent.lock());
        for tag in &silent {
            reports.send((*tag, Delivery::Unknown("closed".into()))).unwrap();
        }
        drop(reports);
        reporter.join().unwrap();
        silent.len()
    }
}

/// Both by the names that [`rules`] call them.
pub fn brokers(a: &Arc<Scripted>, b: &Arc<Scripted>) -> BTreeMap<String, Arc<dyn Broker>> {
    [("a", a), ("b", b)]
        .map(|(name, broker)| (name.to_owned(), Arc::new(Handle(Arc::clone(broker))) as Arc<dyn Broker>))
        .into()
}

/// A token store that is up or down.
#[derive(Default)]
pub struct Tokens {
    pub is_down: AtomicBool,
    pub hangs: AtomicBool,
    /// How often a write is still to panic.
    pub panics: AtomicU32,
    pub held: Mutex<BTreeMap<(i64, String), String>>,
}

#[async_trait]
impl TokenStore for Tokens {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        if self.hangs.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        let panics = self.panics.load(SeqCst);
        self.panics.store(panics.saturating_sub(1), SeqCst);
        assert!(panics == 0, "scripted");
        if self.is_down.load(SeqCst) {
            return Err(Unavailable("scripted".into()));
        }
        let mut held = self.held.lock();
        for put in batch {
            held.insert((put.user_id, put.name.to_string()), put.token.to_string());
        }
        Ok(())
    }
    async fn remove(&self, _batch: &[TokenKey]) -> Result<(), Unavailable> {
        Ok(())
    }
    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let held = self.held.lock();
        let one = |key: &TokenKey| held.get(&(key.user_id, key.name.to_string()));
        Ok(keys.iter().map(|key| one(key).map(|text| text.as_str().into())).collect())
    }
    async fn list(
        &self,
        _user_id: i64,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        Ok(vec![])
    }
}

/// Rules with these queues (name, ratio; topics `name-a` and `name-b`) and routes (activity, queue) for all types.
pub fn rules(version: u64, queues: &[(&str, u8)], routes: &[(&str, &str)]) -> String {
    let mut text = format!("version = {version}\ntypes = [\"cash\", \"coin\"]\n");
    for (name, ratio) in queues {
        for side in ["a", "b"] {
            text += &format!("[topics.{name}-{side}]\nbroker = \"{side}\"\npartitions = 4\n");
        }
        text += &format!("[queues.{name}]\nmaster = \"{name}-a\"\nbackup = \"{name}-b\"\nratio = {ratio}\n");
    }
    for (activity, queue) in routes {
        text += &format!("[[routes]]\nactivity = \"{activity}\"\ntype = \"*\"\nqueue = \"{queue}\"\n");
    }
    text +=
        "[limits.global]\nrate_per_s = 1\nburst = 1\n[limits.default]\nrate_per_s = 1\nburst = 1\n[end]\n";
    text
}

/// One queue `q` that takes everything of activity `spring`.
pub fn one_queue() -> String {
    rules(1, &[("q", 100)], &[("spring", "q")])
}

pub struct Stage {
    pub sdk: Sdk,
    pub inherited: Inherited,
    pub fanout: Arc<Fanout>,
    pub a: Arc<Scripted>,
    pub b: Arc<Scripted>,
    pub tokens: Arc<Tokens>,
    pub ring: KeyRing,
    rules: LiveRules,
    applier: windfall_config::Applier,
}

/// Impatient, so that tests are quick.
pub fn quick() -> FanoutOptions {
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

impl Stage {
    pub fn open(setup: impl Into<Setup>, text: &str) -> Self {
        Self::with_brokers(setup, text, Mood::Store)
    }

    pub fn with_brokers(setup: impl Into<Setup>, text: &str, mood: Mood) -> Self {
        Self::with_clock(setup, text, mood, Clock::system())
    }

    pub fn with_clock(setup: impl Into<Setup>, text: &str, mood: Mood, clock: Clock) -> Self {
        Self::with_signer(setup, text, mood, clock, None)
    }

    pub fn with_signer(
        setup: impl Into<Setup>,
        text: &str,
        mood: Mood,
        clock: Clock,
        signer: Option<Signer>,
    ) -> Self {
        let Setup { options, spool } = setup.into();
        let (a, b) = (Scripted::new(mood), Scripted::new(mood));
        let brokers = brokers(&a, &b);
        let (live, applier) = LiveRules::adjustable(windfall_config::parse_rules(text, None).unwrap(), None);
        let fanout = Arc::new(Fanout::open(&live.current(), brokers, quick(), clock.clone()).unwrap());
        assert!(fanout.wait_until_open(MINUTE));
        let ring = KeyRing::ephemeral().unwrap();
        let tokens = Arc::new(Tokens::default());
        let parts = SdkParts {
            spool,
            keys: ring.clone(),
            signer,
            rules: live.clone(),
            fanout: Arc::clone(&fanout),
            tokens: Some(Arc::clone(&tokens) as Arc<dyn TokenStore>),
            clock,
        };
        let (sdk, inherited) = Sdk::init(options, parts).unwrap();
        Self { sdk, inherited, fanout, a, b, tokens, ring, rules: live, applier }
    }

    /// Changes the rules, and waits until their topics are ready.
    pub fn change_rules(&self, text: &str) {
        self.apply_rules(text);
        assert!(self.fanout.wait_until_open(MINUTE));
    }

    /// Changes the rules, and waits until they are in force.
    pub fn apply_rules(&self, text: &str) {
        // As `windfall rules set` does: what the new rules no longer write to is read until it is empty.
        let forgotten = windfall_config::parse_rules(text, None).unwrap().forgotten(&self.rules.current());
        let draining: String = forgotten
            .iter()
            .map(|old| {
                let DrainingTopic { topic, broker, partitions } = old;
                format!(
                    "[[draining]]\ntopic = \"{topic}\"\nbroker = \"{broker}\"\npartitions = {partitions}\n"
                )
            })
            .collect();
        let text = text.replacen("[end]", &format!("{draining}[end]"), 1);
        self.applier.apply(text.as_bytes(), 1).unwrap();
        let version = windfall_config::parse_rules(&text, None).unwrap().version;
        wait_until("the rules are in force", || self.sdk.stats().rules_version == version);
    }

    /// What the brokers have: topic and record.
    pub fn records(&self) -> Vec<(String, BonusEventBatch)> {
        let both = [&self.a, &self.b];
        let all = both.iter().flat_map(|broker| broker.records.lock().clone());
        all.map(|(topic, bytes)| (topic, BonusEventBatch::decode(&*bytes).unwrap())).collect()
    }

    pub fn events(&self) -> Vec<BonusEvent> {
        self.records().into_iter().flat_map(|(_, batch)| batch.events).collect()
    }

    /// Order numbers that arrived, sorted.
    pub fn arrived(&self) -> Vec<String> {
        let mut all: Vec<_> = self.events().into_iter().map(|event| event.trade_no).collect();
        all.sort();
        all
    }

    pub fn wait_for_events(&self, count: usize) {
        wait_until("the events have arrived", || self.events().len() >= count);
    }

    /// Ends everything, as a process does that takes its leave.
    pub fn end(self) {
        self.sdk.close_blocking(Duration::from_secs(60));
        self.fanout.close(Duration::from_secs(1));
    }

    /// Ends with what it holds still in the spool.
    pub fn break_off(self) {
        self.sdk.close_blocking(Duration::ZERO);
        self.fanout.close(Duration::ZERO);
    }
}

pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    assert!(comes_true(done), "not in a minute: {what}");
}

/// Whether it is so within a minute.
pub fn comes_true(is_so: impl Fn() -> bool) -> bool {
    let until = Instant::now() + MINUTE;
    while !is_so() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// What a call returns that must not wait for what the test holds up meanwhile. One that waits for it has failed after a minute.
pub fn comes_back<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = sync_channel(1);
    let calling = std::thread::spawn(move || drop(done.send(call())));
    let answer = answer.recv_timeout(MINUTE).unwrap_or_else(|error| panic!("{what}: {error}"));
    calling.join().unwrap();
    answer
}

/// A clock that stands until the test moves it: its milliseconds, and the clock that reads them.
pub fn standing_clock() -> (Arc<AtomicU64>, Clock) {
    let now_ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let read = Arc::clone(&now_ms);
    (now_ms, Clock::from_unix_ms(move || read.load(SeqCst)))
}

pub fn request(trade_no: &str, user_id: i64) -> SendBonusRequest {
    SendBonusRequest {
        trade_no: trade_no.into(),
        user: Some(User { user_id, ..User::default() }),
        activity: "spring".into(),
        scene: "rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount: 888, description: "压岁钱".into() }),
        ..SendBonusRequest::default()
    }
}

/// How a stage's SDK gathers, and where it keeps events: in memory unless a test says otherwise.
pub struct Setup {
    pub options: SdkOptions,
    pub spool: SpoolMode,
}

impl From<SdkOptions> for Setup {
    fn from(options: SdkOptions) -> Self {
        Self { options, spool: SpoolMode::LossyMemory }
    }
}

/// With a small spool on files.
pub fn on_file(root: &Path) -> Setup {
    let options = SdkOptions { spool_bytes: 4 << 20, ..SdkOptions::default() };
    Setup { options, spool: SpoolMode::Process(root.to_owned()) }
}
