//! Signed records, from outside: somebody who can write to the brokers' topics, and has no key, has nothing granted. // I12
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, Tag};
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_signing::{KeyFile, LiveRing, QueueTag, Ring, Signer};
use windfall_tests::{Ground, Run, Service, plain, scratch};

/// Who the process is, and another sender whose keys the test has.
const PROCESS: &str = "process";
const MALL: &str = "mall";
const TENANT: &str = "windfall";
const USER: i64 = 42;
const THIEF: i64 = 666;
/// 1,000,000 yuan.
const LOOT: i64 = 100_000_000;

const RULES: &str = r#"version = VERSION
types = ["cash", "coin"]
[topics]
cash-a = { broker = "a", partitions = 2 }
cash-b = { broker = "b", partitions = 2 }
coins-a = { broker = "a", partitions = 1 }
coins-b = { broker = "b", partitions = 1 }
[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 100
[queues.coins]
master = "coins-a"
backup = "coins-b"
ratio = 100
[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash", "coins"]
[[routes]]
type = "coin"
queue = "coins"
requeue = ["coins", "cash"]
[limits.global]
rate_per_s = 100000
burst = 10000
[limits.default]
rate_per_s = 50000
burst = 5000
[limits.types.coin]
rate_per_s = 50000
burst = 5000
fuse = "FUSE"
[end]
"#;

struct Stage {
    dir: PathBuf,
    options: PathBuf,
}

impl Stage {
    fn new(dir: &Path) -> Self {
        let own = Self { dir: dir.to_owned(), options: dir.join("windfall.toml") };
        let mut file = KeyFile::create(&own.ring_file(), PROCESS, true, 1).unwrap();
        // 2 is the mall's next one, 3 signs.
        [2, 3].iter().for_each(|id| assert_eq!(file.add(MALL, false, 1).unwrap(), *id));
        file.promote(3).unwrap();
        own.rules(1, "closed");
        let text = format!(
            "rules = {{ file = {:?} }}\n[signing]\nkeys = {:?}\nsender = {PROCESS:?}\n[signing.topics]\n\
             coins-b = \"accept\"\n",
            dir.join("rules.toml"),
            own.ring_file()
        );
        std::fs::write(&own.options, text).unwrap();
        own
    }

    fn ring_file(&self) -> PathBuf {
        self.dir.join("signing.toml")
    }

    fn rules(&self, version: u64, fuse: &str) {
        let text = RULES.replace("VERSION", &version.to_string()).replace("FUSE", fuse);
        std::fs::write(self.dir.join("rules.toml"), text).unwrap();
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn start(&self) -> Service {
        let words =
            ["serve", "--dev", "--log", "info", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
        let words = words.into_iter().chain([self.options.as_os_str(), OsStr::new("--data")]);
        Service::start(words, self.data().as_os_str())
    }

    /// Signs as the mall does that has this file.
    fn signed(&self, file: &Path, tenant: &str, queue: &str, record: &[u8]) -> Vec<u8> {
        let ring = LiveRing::new(Ring::load(file).unwrap());
        Signer::new(&ring, MALL, tenant).unwrap().sign_record(record, QueueTag::of(queue)).unwrap()
    }

    fn good(&self, trade_no: &str) -> Vec<u8> {
        self.signed(&self.ring_file(), TENANT, "cash", &record_of("cash", trade_no, USER, 1))
    }

    /// Writes to a topic with nothing but a broker's client.
    fn write(&self, broker: &str, topic: &str, records: &[Vec<u8>]) {
        let folder = self.data().join("brokers").join(broker);
        let broker = open(&folder);
        let producer = broker.producer(topic, Arc::new(Stored)).unwrap();
        for (tag, payload) in (0..).zip(records) {
            // One key, so that the good ones lie behind the others.
            producer.send(Tag(tag), OutRecord { key: b"key", payload }).unwrap();
        }
        assert_eq!(producer.close(Duration::from_secs(60)), 0);
    }
}

/// A process that has just ended may hold the files for a moment.
fn open(folder: &Path) -> Arc<EmbeddedBroker> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match EmbeddedBroker::open(folder, &EmbeddedOptions::default()) {
            Ok(broker) => return broker,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Stored;

impl DeliverySink for Stored {
    fn delivered(&self, _: Tag, delivery: Delivery) {
        assert!(matches!(delivery, Delivery::Stored), "{delivery:?}");
    }
}

fn record_of(bonus_type: &str, trade_no: &str, user_id: i64, amount: i64) -> Vec<u8> {
    let event = EventRef {
        trade_no,
        user_id,
        app_id: TENANT,
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type,
        amount,
        ..EventRef::default()
    };
    let mut bytes = Vec::new();
    event.encode([], &mut bytes);
    record::build(Head { bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count: 1 }, [&bytes[..]])
}

fn credited(service: &Service, user_id: i64, bonus_type: &str) -> i64 {
    let wallet = service.post("wallet-front", Some(user_id), "/v1/wallet/get", &json!({}));
    assert_eq!(wallet.status, 200, "{wallet:?}");
    let balances = wallet.body["balances"].as_array().cloned().unwrap_or_default();
    let own = balances.iter().find(|own| own["bonus_type"] == bonus_type);
    own.map_or(0, |own| own["credited"].as_str().unwrap_or("0").parse().unwrap())
}

fn send(service: &Service, bonus_type: &str, trade_no: &str) {
    let body = json!({
        "trade_no": trade_no, "user": {"user_id": USER}, "activity": "spring-2027", "scene": "red-packet-rain",
        "bonus": {"type": bonus_type, "amount": 1},
    });
    let answer = service.post("activity", None, "/v1/bonuses/send", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The sum of a metric over its series that have this text in their labels.
fn metric(service: &Service, name: &str, label: &str) -> u64 {
    let key = [("authorization", format!("Bearer {}", service.keys["operator"]))];
    let Value::String(text) = service.send("GET", "/metrics", &key, b"").body else { panic!("no text") };
    let of_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    let sum: f64 =
        text.lines().filter(of_it).map(|line| value(line).unwrap_or_else(|| panic!("{line}"))).sum();
    format!("{sum:.0}").parse().unwrap()
}

fn unverified(service: &Service) -> Vec<Value> {
    let body = json!({"reason": "unverified"});
    let page = service.post("operator", None, "/v1/archive/list", &body);
    assert_eq!(page.status, 200, "{page:?}");
    page.body["entries"].as_array().cloned().unwrap_or_default()
}

fn wait_for(what: &str, service: &Service, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}\n{}", service.said());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_writes_to_a_topic_without_a_key_has_nothing_granted_and_holds_nobody_up() {
    let dir = scratch();
    let stage = Stage::new(dir.path());
    let service = stage.start();
    send(&service, "cash", "first");
    wait_for("a reward of the process's own", &service, || credited(&service, USER, "cash") == 1);
    assert_eq!(service.stop().code, Some(0));

    let ring = stage.ring_file();
    let loot = record_of("cash", "loot", THIEF, LOOT);
    // Its secret is in the wrong hands, and it is destroyed.
    let leaked = stage.signed(&ring, TENANT, "cash", &record_of("cash", "leaked", THIEF, LOOT));
    let mut file = KeyFile::open(&ring).unwrap();
    file.promote(2).unwrap();
    file.destroy(3).unwrap();
    drop(file);
    let mut changed = stage.signed(&ring, TENANT, "cash", &record_of("cash", "changed", THIEF, 1));
    *changed.last_mut().unwrap() ^= 1;
    let bad = [
        ("unsigned", loot.clone()),
        ("destroyed_key", leaked),
        ("forged", changed),
        ("forged", stage.signed(&ring, "another-tenant", "cash", &loot)),
        ("wrong_queue", stage.signed(&ring, TENANT, "coins", &record_of("coin", "copied", USER, 7))),
        ("malformed", b"\xff\xff".to_vec()),
    ];
    let records: Vec<Vec<u8>> = (0..)
        .zip(&bad)
        .flat_map(|(n, (_, record))| [record.clone(), stage.good(&format!("good/{n}"))])
        .collect();
    stage.write("a", "cash-a", &records);
    let service = stage.start();
    let all = 1 + i64::try_from(bad.len()).unwrap();
    wait_for("the good ones behind them", &service, || credited(&service, USER, "cash") == all);
    wait_for("the bad ones in the archive", &service, || unverified(&service).len() == bad.len());
    for (reason, _) in &bad {
        let label = format!("reason=\"{reason}\"");
        let expected = bad.iter().filter(|(own, _)| own == reason).count() as u64;
        assert_eq!(metric(&service, "windfall_unverified_records_total", &label), expected, "{reason}");
    }
    // An operator who replays all of it grants none of it, but for what the mall did sign, for another queue.
    for entry in unverified(&service) {
        let body = json!({"id": entry["id"], "actor": "ann"});
        let replayed = service.post("operator", None, "/v1/archive/replay", &body);
        assert_eq!(replayed.status, 200, "{replayed:?}");
    }
    assert_eq!(credited(&service, THIEF, "cash"), 0);
    assert_eq!(credited(&service, USER, "coin"), 7, "the mall's own reward, once");
    assert_eq!(service.stop().code, Some(0));
}

/// A sender's file of keys was replaced before that of the consumer: its records wait, and are granted when it follows.
#[test]
fn a_record_whose_key_the_consumer_does_not_have_yet_is_granted_when_it_comes() {
    let dir = scratch();
    let stage = Stage::new(dir.path());
    let service = stage.start();
    assert_eq!(service.stop().code, Some(0));
    let newer = dir.path().join("newer.toml");
    std::fs::copy(stage.ring_file(), &newer).unwrap();
    let mut file = KeyFile::open(&newer).unwrap();
    let id = file.add(MALL, false, 2).unwrap();
    file.promote(id).unwrap();
    drop(file);
    let late = stage.signed(&newer, TENANT, "cash", &record_of("cash", "late", USER, 5));
    stage.write("a", "cash-a", &[late, stage.good("behind")]);
    let service = stage.start();
    wait_for("what is behind it", &service, || credited(&service, USER, "cash") == 1);
    assert_eq!(metric(&service, "windfall_unverified_records_total", ""), 0, "it waits");
    std::fs::rename(&newer, stage.ring_file()).unwrap();
    wait_for("the late one", &service, || credited(&service, USER, "cash") == 6);
    assert_eq!(unverified(&service), Vec::<Value>::new());
    assert_eq!(service.stop().code, Some(0));
}

/// What a consumer writes back is signed by it and granted in its turn; foreign writers have a topic that takes what they
/// write, and no other does.
#[test]
fn requeued_records_are_granted_and_unsigned_ones_only_where_the_options_name_their_topic() {
    let dir = scratch();
    let stage = Stage::new(dir.path());
    // Coins are diverted: each goes back to a queue, and round again.
    stage.rules(1, "divert");
    let service = stage.start();
    (0..5).for_each(|n| send(&service, "coin", &format!("coin/{n}")));
    wait_for("copies of copies", &service, || metric(&service, "windfall_requeued_events_total", "") >= 15);
    assert_eq!(service.stop().code, Some(0));
    for (topic, broker) in [("coins-b", "b"), ("coins-a", "a")] {
        let foreign = record_of("coin", &format!("foreign/{topic}"), USER, 100);
        stage.write(broker, topic, &[foreign]);
    }
    stage.rules(2, "closed");
    let service = stage.start();
    wait_for("copies and the foreign coin", &service, || credited(&service, USER, "coin") == 105);
    wait_for("the refused one", &service, || unverified(&service).len() == 1);
    assert_eq!(metric(&service, "windfall_unverified_records_total", "reason=\"unsigned\""), 1);
    assert_eq!(metric(&service, "windfall_unsigned_records_total", "coins-b"), 1);
    assert_eq!(service.stop().code, Some(0));
}

/// Nothing listens there, which a start does not depend on.
const KAFKA: &str = "[brokers.a.kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n\
                     [brokers.b.kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n";

/// Whoever reaches Kafka could have rewards granted by a process that verifies nothing.
#[test]
fn on_kafka_a_process_starts_with_keys_or_with_the_word_and_is_refused_without_both() {
    let callers = [("activity", "send")];
    let dir = scratch();
    let one = format!("{KAFKA}[signing.topics]\ncash-a = \"accept\"\n");
    let ground = Ground::new(dir.path(), &callers, &one);
    for role in ["sdk-gateway", "consumer", "reward-service"] {
        let run = Run::new(plain()).args([role, "--listen", "127.0.0.1:0", "--config"]).arg(ground.options());
        let ended = run.arg("--data").arg(dir.path().join(role)).end();
        assert_eq!(ended.code, Some(2), "{role}: {ended}");
        // The topic that is accepted by name is not among them.
        let named = "signing.keys is missing, and other processes can write to";
        let is_told = ended.stderr.contains(named) && ended.stderr.contains("granted: cash-b on b. ");
        assert!(is_told, "{role}: {ended}");
    }

    let dir = scratch();
    let word = format!("{KAFKA}[signing]\nunsigned = \"accept\"\n");
    let ground = Ground::new(dir.path(), &callers, &word);
    let gateway = ground.start("sdk-gateway");
    send(&gateway, "cash", "unsigned");
    assert!(gateway.said().contains("records are not signed"), "{}", gateway.said());
    gateway.kill();
    let consumer = ground.start_unready("consumer");
    assert!(consumer.said().contains("records are not verified"), "{}", consumer.said());
    consumer.kill();

    let dir = scratch();
    let ground = Ground::new(dir.path(), &callers, KAFKA).with_signing();
    let gateway = ground.start("sdk-gateway");
    send(&gateway, "cash", "signed");
    assert!(!gateway.said().contains("records are not signed"), "{}", gateway.said());
    gateway.kill();
}
