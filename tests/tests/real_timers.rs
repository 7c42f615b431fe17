//! Two schedulers on one Redis: one is killed, one is frozen and thawed, Redis is killed while timers fire, and both are
//! restarted in order. The callers' own journal is held against what the target received. And timers to Kafka.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_client::{CallError, ClientOptions, TimersClient};
use windfall_proto::v1::{
    AddTimersRequest, CancelTimersRequest, ListDeadTimersRequest, ListTimersRequest, NewTimer, TimerChange,
    TimerName, add_timer_result, cancel_timer_result,
};
use windfall_servers::{Private, RedisOptions, Servers};
use windfall_tests::{Deliveries, Ground, Service, now_ms, receiver, scratch};

/// A dead process's shards are taken over within five seconds, on a machine that has nothing else to do.
const TAKEN_OVER_MS: u64 = 5_000 + 3_000;
const PATIENCE: Duration = Duration::from_secs(90);
/// What was fired so long before a crash may not be noted: `finish_every_ms`, a call, and a slow machine.
const UNNOTED_MS: u64 = 1_500;
const BATCH: u64 = 30;

/// Schedulers whose timers lie in one Redis.
struct Schedulers {
    ground: Ground,
    ports: [u16; 2],
}

impl Schedulers {
    /// `scheduler` are lines of the options file. A callback may be signed with the file `secret` of the directory.
    fn new(dir: &Path, scheduler: &str) -> Self {
        fs::write(dir.join("secret"), "0123456789abcdef0123456789abcdef").unwrap();
        // Callers know the processes by address, also after a restart.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.each_ref().map(|listener| listener.local_addr().unwrap().port());
        Self { ground: Ground::new(dir, &[("timers", "schedule")], scheduler), ports }
    }

    fn start(&self, nth: usize) -> Service {
        let listen = format!("127.0.0.1:{}", self.ports[nth]);
        self.ground.start_with(
            "scheduler",
            &["--log", "warn", "--listen", &listen],
            &format!("data-{nth}"),
            true,
        )
    }

    /// A client of one process that asks once, so that its caller knows of each call that had no answer.
    fn client(&self, nth: usize) -> TimersClient {
        let options = ClientOptions {
            endpoints: vec![format!("http://127.0.0.1:{}", self.ports[nth])],
            bearer_key: Some(self.ground.keys["timers"].clone()),
            attempt_timeout_ms: 3_000,
            attempts: 1,
            ..ClientOptions::default()
        };
        TimersClient::open(options).unwrap()
    }
}

/// What a caller knows of a timer.
#[derive(Debug, Clone)]
struct Entry {
    id: String,
    due_ms: u64,
    /// An add had no answer, and was repeated: there may be two timers, where the first one had fired by then.
    is_doubtful: bool,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fires,
    Cancelled,
    /// The cancel of this timer came so late, or was repeated so late, that there was no such timer any more.
    Either,
}

type Journal = BTreeMap<String, Entry>;

/// Adds timers and cancels some, through the process that answered last, until it is told to end.
struct Caller {
    clients: [TimersClient; 2],
    now_at: usize,
    journal: Arc<Mutex<Journal>>,
    is_over: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
}

impl Caller {
    async fn run(mut self) {
        while !self.is_over.load(SeqCst) {
            let first = self.next.fetch_add(BATCH, SeqCst);
            let begun_ms = now_ms();
            let timer = |nth: u64| NewTimer {
                target: "hook".into(),
                due_ms: begun_ms + 300 + nth * 797 % 3_500,
                key: format!("t-{nth}"),
                payload: format!("t-{nth}").into_bytes(),
            };
            let added = self.add((first..first + BATCH).map(timer).collect()).await;
            let is_cancelled = |nth: usize, entry: &Entry| {
                nth.is_multiple_of(5) && !entry.is_doubtful && entry.due_ms > begun_ms + 1_000
            };
            let cancels = added.iter().enumerate().filter(|(nth, (_, entry))| is_cancelled(*nth, entry));
            let cancels: Vec<_> = cancels.map(|(_, (key, _))| key.clone()).collect();
            self.journal.lock().extend(added);
            self.cancel(cancels).await;
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }

    fn turn(&mut self) {
        self.now_at = 1 - self.now_at;
    }

    /// Adds until each has its answer.
    async fn add(&mut self, mut timers: Vec<NewTimer>) -> Journal {
        let (mut added, mut is_doubtful) = (Journal::new(), false);
        while !timers.is_empty() {
            let request = AddTimersRequest { timers: timers.clone(), ..Default::default() };
            match self.clients[self.now_at].add_batch(request).await {
                Ok(results) => {
                    assert_eq!(results.len(), timers.len());
                    let mut left = Vec::new();
                    for (timer, result) in timers.into_iter().zip(results) {
                        match result.result.unwrap() {
                            add_timer_result::Result::Added(reply) => {
                                let (id, due_ms) = (reply.id, timer.due_ms);
                                let entry = Entry { id, due_ms, is_doubtful, fate: Fate::Fires };
                                added.insert(timer.key, entry);
                            }
                            add_timer_result::Result::Failure(_) => left.push(timer),
                        }
                    }
                    timers = left;
                }
                // Refused as a whole, by a process that is not there or ends.
                Err(CallError::Busy { .. } | CallError::Unanswered(_)) => {}
                Err(error) => panic!("{error}"),
            }
            if !timers.is_empty() {
                is_doubtful = true;
                self.turn();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        added
    }

    /// Cancels until each has its answer.
    async fn cancel(&mut self, mut keys: Vec<String>) {
        while !keys.is_empty() {
            let id = |key: &String| TimerName { id: self.journal.lock()[key].id.clone(), key: String::new() };
            let request = CancelTimersRequest { timers: keys.iter().map(id).collect(), ..Default::default() };
            match self.clients[self.now_at].cancel_batch(request).await {
                Ok(results) => {
                    let mut left = Vec::new();
                    for (key, result) in keys.into_iter().zip(results) {
                        let cancel_timer_result::Result::Changed(reply) = result.result.unwrap() else {
                            left.push(key);
                            continue;
                        };
                        let fate = match reply.change() {
                            TimerChange::Done | TimerChange::AlreadyCancelled => Fate::Cancelled,
                            TimerChange::TooLate => Fate::Fires,
                            _ => Fate::Either,
                        };
                        self.journal.lock().get_mut(&key).unwrap().fate = fate;
                    }
                    keys = left;
                }
                Err(CallError::Busy { .. } | CallError::Unanswered(_)) => {}
                Err(error) => panic!("{error}"),
            }
            if !keys.is_empty() {
                self.turn();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Deliveries by the key of their timer: when each came, and under which id.
fn by_key(deliveries: &Deliveries) -> BTreeMap<String, Vec<(u64, String)>> {
    let mut found = BTreeMap::<String, Vec<_>>::new();
    for (time_ms, body) in deliveries.lock().iter() {
        let payload = STANDARD.decode(body["payload"].as_str().unwrap()).unwrap();
        let id = body["id"].as_str().unwrap().to_owned();
        found.entry(String::from_utf8(payload).unwrap()).or_default().push((*time_ms, id));
    }
    found
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A time in which what was fired may fire again, and why.
struct Crash {
    what: &'static str,
    from_ms: u64,
    to_ms: u64,
}

/// Holds the journal against the deliveries; returns how many were repeated.
fn check(journal: &Journal, fired: &BTreeMap<String, Vec<(u64, String)>>, crashes: &[Crash]) -> usize {
    for (key, entry) in journal {
        let came = fired.get(key).map_or(&[][..], Vec::as_slice);
        match entry.fate {
            Fate::Fires => assert!(!came.is_empty(), "{key} is lost: {entry:?}"),
            Fate::Cancelled => assert!(came.is_empty(), "{key} fired after its cancel: {entry:?}, {came:?}"),
            Fate::Either => {}
        }
    }
    let mut repeated = BTreeMap::<&str, usize>::new();
    for (key, came) in fired {
        let entry = journal.get(key).unwrap_or_else(|| panic!("nobody added {key}"));
        let mut first_of = BTreeMap::<&str, u64>::new();
        for (time_ms, id) in came {
            assert!(*time_ms >= entry.due_ms, "{key} came {} ms early", entry.due_ms - time_ms);
            assert!(*id == entry.id || entry.is_doubtful, "{key} has two ids: {entry:?}, {came:?}");
            let Some(first_ms) = first_of.insert(id, *time_ms) else { continue };
            let explains = |crash: &&Crash| (crash.from_ms..=crash.to_ms).contains(&first_ms);
            let crash = crashes.iter().find(explains);
            let crash =
                crash.unwrap_or_else(|| panic!("{key} is repeated, and no crash explains it: {came:?}"));
            *repeated.entry(crash.what).or_default() += 1;
        }
    }
    println!("{} timers, repeated: {repeated:?}", journal.len());
    repeated.values().sum()
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn two_schedulers_on_one_redis_lose_nothing_whatever_is_killed_frozen_and_restarted() {
    let (redis, dir, (hook, deliveries)) =
        (Private::start(RedisOptions::default()).unwrap(), scratch(), receiver());
    let secret = dir.path().join("secret");
    let scheduler = format!(
        "[scheduler]\nshards = 16\nstore = {{ redis = {{ urls = [{:?}] }} }}\n\
         [scheduler.tenants.windfall.targets.hook.to.http]\nurl = \"http://{hook}/fired\"\n\
         allow = [\"127.0.0.1\"]\nkey_id = \"test\"\nsecret_file = {secret:?}\nwire = {{ plaintext = true }}\n",
        redis.url()
    );
    let schedulers = Schedulers::new(dir.path(), &scheduler);
    let (one, two) = (schedulers.start(0), schedulers.start(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let journal = Arc::<Mutex<Journal>>::default();
    let (is_over, next) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicU64>::default());
    let _in_runtime = runtime.enter();
    let callers = [0, 1].map(|now_at| {
        let (journal, is_over, next) = (Arc::clone(&journal), Arc::clone(&is_over), Arc::clone(&next));
        let clients = [0, 1].map(|nth| schedulers.client(nth));
        runtime.spawn(Caller { clients, now_at, journal, is_over, next }.run())
    });
    wait_for("the first timers", || by_key(&deliveries).len() > 200);

    // Killed: the other one has all shards within five seconds.
    let killed_ms = now_ms();
    one.kill();
    rest(5_500);
    let mut crashes = vec![Crash { what: "kill", from_ms: killed_ms - UNNOTED_MS, to_ms: killed_ms + 500 }];
    let one = schedulers.start(0);
    rest(1_500);

    // Frozen, past the end of its leases, and thawed: what it had handed over and not noted is repeated, at both ends.
    let frozen_ms = now_ms();
    two.freeze();
    rest(6_000);
    two.thaw();
    let thawed_ms = now_ms();
    rest(2_500);
    crashes.push(Crash { what: "freeze", from_ms: frozen_ms - UNNOTED_MS, to_ms: thawed_ms + 2_000 });

    // Redis, in the middle of firing: what its clients note and add has no answer for a second.
    let redis_ms = now_ms();
    redis.kill().unwrap();
    rest(1_000);
    redis.start().unwrap();
    rest(4_500);
    crashes.push(Crash { what: "redis", from_ms: redis_ms - UNNOTED_MS, to_ms: now_ms() - 500 });

    // A rolling restart repeats nothing: no crash explains anything from here on.
    let restarted = |nth: usize, service: Service| {
        let ended = service.stop();
        assert_eq!(ended.code, Some(0), "{ended}");
        let service = schedulers.start(nth);
        rest(1_500);
        service
    };
    let services = [restarted(0, one), restarted(1, two)];

    is_over.store(true, SeqCst);
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    let journal: Journal = journal.lock().clone();
    // Every timer that was not cancelled comes; the check names those that do not.
    let until = Instant::now() + PATIENCE;
    let is_there = |fired: &BTreeMap<_, _>| {
        journal.iter().all(|(key, entry)| entry.fate != Fate::Fires || fired.contains_key(key))
    };
    while Instant::now() < until && !is_there(&by_key(&deliveries)) {
        rest(50);
    }
    // A repeat that nobody asked for would come now.
    rest(1_000);
    let fired = by_key(&deliveries);
    check(&journal, &fired, &crashes);
    let count = |fate| journal.values().filter(|entry| entry.fate == fate).count();
    let (cancelled, unknown) = (count(Fate::Cancelled), count(Fate::Either));
    assert!(journal.len() > 2_000 && cancelled > 100, "{} timers, {cancelled} cancelled", journal.len());
    assert!(unknown < cancelled / 4, "{unknown} cancels found no timer");
    let was_due = |entry: &&Entry| (killed_ms - 1_000..killed_ms + 5_000).contains(&entry.due_ms);
    let late = journal
        .iter()
        .filter(|(_, entry)| was_due(entry))
        .filter_map(|(key, entry)| Some(fired.get(key)?.first()?.0.saturating_sub(entry.due_ms)));
    let late_ms = late.max().unwrap();
    println!("{cancelled} cancelled; at most {late_ms} ms late after the kill");
    assert!(late_ms <= TAKEN_OVER_MS, "{late_ms} ms late after the kill");

    let client = schedulers.client(0);
    let left = runtime.block_on(client.list(ListTimersRequest::default())).unwrap().timers;
    let dead = runtime.block_on(client.list_dead(ListDeadTimersRequest::default())).unwrap().timers;
    assert!(left.is_empty() && dead.is_empty(), "{left:?}, {dead:?}");
    for service in services {
        let ended = service.stop();
        assert_eq!(ended.code, Some(0), "{ended}");
    }
}

/// A cluster of a tenant's own: the live rules do not name it. It has one broker, and so one replica of each partition.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_topic_of_a_tenants_own_cluster_gets_timers_with_headers_or_is_refused_as_set() {
    let servers = Servers::from_env_or_start(&["kafka"]).unwrap();
    let (kafka, dir) = (servers.server("kafka").unwrap(), scratch());
    let name = |topic: &str| format!("timers-{:x}-{topic}", std::process::id());
    let target = |topic: &str, rest: &str| {
        format!(
            "[scheduler.tenants.windfall.targets.{topic}]\n\
             to = {{ topic = {{ broker = \"own\", topic = {topic:?}, partitions = 1, {rest} }} }}\n"
        )
    };
    let scheduler = format!(
        "[brokers]\na = \"embedded\"\nb = \"embedded\"\n\
         own = {{ kafka = {{ bootstrap_servers = {:?}, prefix = {:?} }} }}\n{}{}",
        kafka.url(),
        name(""),
        target("loose", "headers = true"),
        target("strict", "checks = \"refuse\"")
    );
    let schedulers = Schedulers::new(dir.path(), &scheduler);
    let service = schedulers.start(0);
    let part = "timers' topic strict on own";
    let weak = service.ready_until(PATIENCE, |answer| answer.body["missing"][part].is_string());
    let why = weak.body["missing"][part].as_str().unwrap();
    let all = ["1 replicas, and 3 are wanted", "min.insync.replicas is 1", "checks"];
    assert!(weak.status == 200 && all.iter().all(|what| why.contains(what)), "{weak:?}");
    let due_ms = now_ms() + 200;
    let add = |target: &str| {
        let timer = json!({"timer": {"target": target, "due_ms": due_ms, "key": target, "payload": "eA=="}});
        let added = service.post("timers", None, "/v1/timers/add", &timer);
        assert_eq!(added.status, 200, "{added:?}");
        added.body["id"].as_str().unwrap().to_owned()
    };
    let ids = [add("loose"), add("strict")];
    let reader: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", kafka.url())
        .set("group.id", name("reader"))
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    reader.subscribe(&[&name("loose")]).unwrap();
    let until = Instant::now() + PATIENCE;
    let record = loop {
        assert!(Instant::now() < until, "the timer never came");
        if let Some(Ok(record)) = reader.poll(Duration::from_millis(200)) {
            break record.detach();
        }
    };
    assert_eq!(record.key(), Some(&b"loose"[..]));
    let headers: BTreeMap<_, _> = record.headers().unwrap().iter().map(|one| (one.key, one.value)).collect();
    let due = due_ms.to_string();
    let expected = [
        ("windfall-timer-attempt", Some(&b"1"[..])),
        ("windfall-timer-due-ms", Some(due.as_bytes())),
        ("windfall-timer-id", Some(ids[0].as_bytes())),
    ];
    assert_eq!(headers, expected.into());
    // The other one waits, spends no attempt, and is written nowhere.
    rest(1_500);
    let kept = service.post("timers", None, "/v1/timers/get", &json!({"key": "strict"}));
    assert_eq!((kept.status, kept.body["timer"]["id"].as_str()), (200, Some(&*ids[1])), "{kept:?}");
    let written = reader.fetch_watermarks(&name("strict"), 0, PATIENCE).unwrap();
    assert_eq!(written, (0, 0));
    let said = service.said();
    let told = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!((told("a topic of timers may lose"), told(part)), (1, 1), "{said}");
    assert_eq!(service.stop().code, Some(0));
}
