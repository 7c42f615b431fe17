//! Consumer processes that join, leave and are killed every few seconds while events keep coming: nothing is lost,
//! nothing is credited twice, what is delivered twice is bounded, and the fleet keeps its limit all the while.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test may panic")]

#[path = "real_churn/member.rs"]
mod member;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, SendRefused, Tag};
use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
use windfall_ledger::LedgerReader;
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_servers::Servers;
use windfall_tests::{AboutMoney, Seed, scratch};

const TOPIC: &str = "rain";
const GROUP: &str = "reward";
const PARTITIONS: u32 = 12;
const EVENTS_PER_S: u64 = 20_000;
const PACK: u32 = 100;
/// What the fleet may pass a second: more than comes, so that a backlog goes away.
const RATE_PER_S: u64 = 30_000;
const BURST: u32 = 3_000;
const MEMBERS_MAX: usize = 4;
const CHANGE_EVERY: Duration = Duration::from_secs(5);
/// The last records must be in within this long.
const PATIENCE: Duration = Duration::from_secs(180);

pub fn rules() -> Rules {
    let limit = Limit { rate_per_s: RATE_PER_S, burst: BURST };
    let of_type = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
    Rules {
        version: 1,
        bonus_types: vec!["cash".into()],
        draining: Vec::new(),
        topics: [].into(),
        queues: [].into(),
        routes: Vec::new(),
        limits: Limits { global: limit, types: [("cash".to_owned(), of_type)].into() },
        budgets: Vec::new(),
        caps: [].into(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: Pacing { grant_batch: 1_000, ..Pacing::default() },
    }
}

/// Not a test of its own: the process that the next test starts, stops and kills.
#[test]
fn member_process() {
    if let Ok(kafka) = std::env::var(member::KAFKA) {
        member::run(&kafka);
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_fleet_that_churns_loses_nothing_pays_once_and_keeps_its_limit() {
    // Two minutes by hand (CHURN_S=120), less where each commit is tested.
    let rain = Duration::from_secs(std::env::var("CHURN_S").map_or(30, |text| text.parse().unwrap()));
    let mut seed = Seed::new("churn");
    let servers = Servers::from_env_or_start(&["kafka", "postgres"]).unwrap();
    let (kafka, postgres) = (servers.server("kafka").unwrap(), servers.server("postgres").unwrap());
    let run = format!("{:x}", std::process::id());
    let dir = scratch();
    let broker = member::broker(kafka.url(), &run);
    broker.ensure_topic(TOPIC, PARTITIONS).unwrap();
    let events = rain.as_secs() * EVENTS_PER_S;
    let pouring = {
        let broker = Arc::clone(&broker);
        std::thread::spawn(move || pour(&*broker, events))
    };
    let start = |number: usize| start(kafka.url(), postgres.url(), &run, dir.path(), number);
    let (mut members, mut started, mut changes) = (vec![start(0), start(1)], 2, 0_u64);
    let began = Instant::now();
    while !pouring.is_finished() {
        std::thread::sleep(CHANGE_EVERY);
        changes += 1;
        let joins = members.len() < 2 || members.len() < MEMBERS_MAX && seed.below(2) == 0;
        if joins {
            members.push(start(started));
            started += 1;
        } else {
            let gone = members.remove(usize::try_from(seed.below(members.len() as u64)).unwrap());
            if seed.below(2) == 0 { kill(gone) } else { leave(gone) }
        }
    }
    pouring.join().unwrap();
    let poured = began.elapsed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let end = Instant::now();
    while runtime.block_on(broker.lag(TOPIC, GROUP)).unwrap().records() > 0 {
        assert!(end.elapsed() < PATIENCE, "the lag does not go to 0");
        std::thread::sleep(Duration::from_millis(200));
    }
    members.into_iter().for_each(leave);
    let ledger = LedgerReader::connect(postgres.url(), &member::ledger_options(&run)).unwrap();
    let sums = ledger.reconcile().unwrap();
    let about = AboutMoney;
    assert!(sums.is_clean(), "{sums:?}");
    assert_eq!((sums.orders, sums.transfers), (events, events), "orders and transfers");
    drop(about);
    let mut admitted = admitted(dir.path());
    let delivered: u64 = admitted.iter().map(|(_, count)| count).sum();
    let twice = delivered - events;
    let most = most_in_a_second(&mut admitted);
    println!(
        "{events} events in {poured:.0?}, {changes} changes of the fleet: {twice} delivered twice, at most {most} \
         admitted in a second at {RATE_PER_S}/s and a burst of {BURST}"
    );
    // A member that is killed had a second of its share in hand or uncommitted at most; one that leaves, nothing.
    assert!(twice <= changes * EVENTS_PER_S * 2, "{twice} events were delivered twice");
    assert!(most <= RATE_PER_S + u64::from(BURST), "{most} events in a second");
}

#[derive(Default)]
struct Stored(AtomicU64);

impl DeliverySink for Stored {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        assert_eq!(delivery, Delivery::Stored, "record {}", tag.0);
        self.0.fetch_add(1, Relaxed);
    }
}

/// Writes `events` events at an even pace.
fn pour(broker: &dyn Broker, events: u64) {
    let stored = Arc::new(Stored::default());
    let producer = broker.producer(TOPIC, Arc::clone(&stored) as _).unwrap();
    let began = Instant::now();
    let mut payload = Vec::new();
    for first in (0..events).step_by(PACK as usize) {
        let due = Duration::from_micros(first * 1_000_000 / EVENTS_PER_S);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        payload.clear();
        let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: PACK };
        head.encode(&mut payload);
        for number in first..first + u64::from(PACK) {
            let trade_no = format!("churn/{number}");
            let event = EventRef {
                trade_no: &trade_no,
                user_id: i64::try_from(1 + number % 10_000).unwrap(),
                app_id: "churn",
                activity: "spring",
                scene: "rain",
                bonus_type: "cash",
                amount: 1,
                ..EventRef::default()
            };
            let mut bytes = Vec::new();
            event.encode([], &mut bytes);
            record::push_event(&mut payload, &bytes);
        }
        let record = OutRecord { key: &first.to_be_bytes(), payload: &payload };
        while let Err(refused) = producer.send(Tag(first), record) {
            assert_eq!(refused, SendRefused::Full);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(producer.close(Duration::from_secs(60)), 0);
    assert_eq!(stored.0.load(Relaxed), events / u64::from(PACK));
}

fn start(kafka: &str, postgres: &str, run: &str, dir: &Path, number: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "member_process", "--nocapture"])
        .env(member::KAFKA, kafka)
        .env(member::POSTGRES, postgres)
        .env(member::RUN, run)
        .env(member::DIR, dir)
        .env(member::NUMBER, number.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(mut member: Child) {
    member.kill().unwrap();
    member.wait().unwrap();
}

fn leave(mut member: Child) {
    drop(member.stdin.take());
    assert!(member.wait().unwrap().success(), "a member did not leave in order");
}

/// What all members admitted: when (ns), how many events.
fn admitted(dir: &Path) -> Vec<(u128, u64)> {
    let logs = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("admitted-"));
    let line = |line: &str| {
        let (at, count) = line.split_once(' ').unwrap();
        (at.parse().unwrap(), count.parse().unwrap())
    };
    logs.flat_map(|path| std::fs::read_to_string(path).unwrap().lines().map(line).collect::<Vec<_>>())
        .collect()
}

/// The most events that any window of one second saw.
fn most_in_a_second(admitted: &mut [(u128, u64)]) -> u64 {
    admitted.sort_unstable();
    let (mut most, mut sum, mut oldest) = (0, 0, 0);
    for at in 0..admitted.len() {
        sum += admitted[at].1;
        while admitted[at].0 - admitted[oldest].0 >= 1_000_000_000 {
            sum -= admitted[oldest].1;
            oldest += 1;
        }
        most = most.max(sum);
    }
    most
}
