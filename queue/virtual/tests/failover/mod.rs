//! A virtual queue whose master stands still for 10 s, whatever the brokers.

mod kafka;
mod rocketmq;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::rules::{self, Ratio, Rules};
use windfall_queue_virtual::{Fanout, FanoutOptions, PendingRecord, Side, Undelivered};
use windfall_servers::{Private, Server, Servers};

/// A server that all tests share.
fn shared(name: &str) -> Server {
    Servers::from_env_or_start(&[name]).unwrap().server(name).unwrap()
}

/// What one test puts before the names of its topics and groups.
fn prefix() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    format!("over-{}-{since}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[derive(Default)]
struct Fates {
    /// When each was sent, and how long it took.
    delivered: Mutex<Vec<(Instant, Duration)>>,
    undelivered: Mutex<Vec<Undelivered>>,
}

struct TestRecord {
    payload: Vec<u8>,
    sent: Instant,
    fates: Arc<Fates>,
}

impl PendingRecord for TestRecord {
    fn key(&self) -> &[u8] {
        &self.payload[..8]
    }
    fn payload(&self) -> &[u8] {
        &self.payload
    }
    fn patience(&self) -> Option<Duration> {
        None
    }
    fn delivered(self: Box<Self>) {
        self.fates.delivered.lock().push((self.sent, self.sent.elapsed()));
    }
    fn undelivered(self: Box<Self>, why: Undelivered) {
        self.fates.undelivered.lock().push(why);
    }
}

fn rules() -> Rules {
    let topic = |broker: &str| rules::Topic { broker: broker.into(), partitions: 4 };
    let queue = rules::Queue { master: "m".into(), backup: "s".into(), ratio: Ratio::new(100).unwrap() };
    Rules {
        version: 1,
        bonus_types: vec!["cash".into()],
        draining: Vec::new(),
        topics: [("m".into(), topic("one")), ("s".into(), topic("two"))].into(),
        queues: [("q".into(), queue)].into(),
        routes: vec![],
        limits: rules::Limits { global: rules::Limit { rate_per_s: 1, burst: 1 }, types: BTreeMap::new() },
        budgets: vec![],
        caps: Default::default(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: rules::Pacing::default(),
    }
}

/// Everything arrives, and what was in flight at the freeze does not wait for its end, 10 s later.
fn a_frozen_master_is_passed_by(server: &Private, master: Arc<dyn Broker>, backup: Arc<dyn Broker>) {
    let brokers: BTreeMap<_, _> = [("one".to_owned(), master), ("two".to_owned(), backup)].into();
    let fanout = Fanout::open(&rules(), brokers, FanoutOptions::default(), Clock::system()).unwrap();
    assert!(fanout.wait_until_open(Duration::from_secs(30)), "{:?}", fanout.topics());
    let queue = fanout.queue("q").unwrap();
    let fates = Arc::new(Fates::default());
    let mut slowest = Duration::ZERO;
    let mut sent = 0u64;
    let mut run = |time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            for _ in 0..4 {
                let mut payload = vec![3; 8_000];
                payload[..8].copy_from_slice(&sent.to_be_bytes());
                let began = Instant::now();
                let letter = TestRecord { payload, sent: began, fates: Arc::clone(&fates) };
                fanout.submit(&[(queue, Side::Master)], Box::new(letter));
                slowest = slowest.max(began.elapsed());
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    run(Duration::from_secs(2));
    let frozen = Instant::now();
    server.freeze().unwrap();
    run(Duration::from_secs(10));
    server.thaw().unwrap();
    run(Duration::from_secs(2));
    let report = fanout.close(Duration::from_secs(60));
    let delivered = fates.delivered.lock();
    let of_freeze = delivered.iter().filter(|(at, _)| *at + Duration::from_secs(1) > frozen);
    let longest = of_freeze.map(|(_, took)| *took).max().unwrap();
    println!("{sent} records, slowest submit {slowest:?}, slowest delivery {longest:?}");
    assert_eq!(report.undelivered, 0);
    assert_eq!((delivered.len() as u64, fates.undelivered.lock().len()), (sent, 0));
    assert!(longest < Duration::from_secs(9), "in flight at the freeze: {longest:?}");
}
