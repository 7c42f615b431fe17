//! What a call of `send_bonus` costs, all told: CPU time of the whole process divided by calls, with pump, fan-out,
//! a producer that copies the bytes and acknowledges from a thread of its own, and a token store that takes all.
//!
//! `cargo run --release --example send -p windfall-sdk -- [calls] [threads] [pack]`
#![allow(clippy::cast_precision_loss, clippy::unwrap_used)] // a measurement

use async_trait::async_trait;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_config::rules::Rules;
use windfall_proto::v1::{Bonus, SendBonusRequest, User as WireUser};
use windfall_queue::contract::{
    Broker, Consumer, Delivery, DeliverySink, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_queue::virtual_queue::{Clock, Fanout, FanoutOptions};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SendError, SpoolMode, User};
use windfall_store::contract::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_token::KeyRing;

const RULES: &str = r#"
version = 1
types = ["cash"]
[topics.a]
broker = "a"
partitions = 8
[topics.b]
broker = "b"
partitions = 8
[queues.q]
master = "a"
backup = "b"
ratio = 50
[[routes]]
type = "*"
queue = "q"
[limits.global]
rate_per_s = 1
burst = 1
[limits.default]
rate_per_s = 1
burst = 1
[end]
"#;

/// Copies each record and says that it is stored.
struct NullBroker;

type Records = SyncSender<(Tag, Vec<u8>)>;

struct NullProducer {
    records: parking_lot::Mutex<Option<Records>>,
    driver: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

#[async_trait]
impl Broker for NullBroker {
    fn ensure_topic(&self, _topic: &str, _partitions: u32) -> Result<(), OpenError> {
        Ok(())
    }

    fn producer(&self, _topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let (records, inbox) = sync_channel::<(Tag, Vec<u8>)>(4096);
        let driver = std::thread::spawn(move || {
            for (tag, record) in inbox {
                black_box(record);
                sink.delivered(tag, Delivery::Stored);
            }
        });
        Ok(Arc::new(NullProducer { records: Some(records).into(), driver: Some(driver).into() }))
    }

    async fn consumer(&self, _topic: &str, _group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        Err(OpenError::Invalid("nothing is kept".into()))
    }

    async fn lag(&self, _topic: &str, _group: &str) -> Result<Lag, OpenError> {
        Ok(Lag::default())
    }
}

impl Producer for NullProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let records = self.records.lock();
        let records = records.as_ref().ok_or(SendRefused::Closed)?;
        records.try_send((tag, record.payload.to_vec())).map_err(|_| SendRefused::Full)
    }

    fn close(&self, _timeout: Duration) -> usize {
        drop(self.records.lock().take());
        if let Some(driver) = self.driver.lock().take() {
            driver.join().unwrap();
        }
        0
    }
}

/// Takes every token and keeps none.
struct NullStore;

#[async_trait]
impl TokenStore for NullStore {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        black_box(batch);
        Ok(())
    }
    async fn remove(&self, _batch: &[TokenKey]) -> Result<(), Unavailable> {
        Ok(())
    }
    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        Ok(vec![None; keys.len()])
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

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let calls = arguments.next().unwrap_or(4_000_000);
    let threads = arguments.next().unwrap_or(1);
    let pack_events_max = u32::try_from(arguments.next().unwrap_or(256)).unwrap();

    let directory = tempfile::tempdir().unwrap();
    let rules = LiveRules::fixed(Rules::parse(RULES, None).unwrap());
    let brokers: BTreeMap<String, Arc<dyn Broker>> =
        ["a", "b"].map(|name| (name.to_owned(), Arc::new(NullBroker) as Arc<dyn Broker>)).into();
    let clock = Clock::system();
    let fanout =
        Arc::new(Fanout::open(&rules.current(), brokers, FanoutOptions::default(), clock.clone()).unwrap());
    let options = SdkOptions {
        pack_events_max,
        spool: SpoolMode::Process(directory.path().to_owned()),
        ..SdkOptions::default()
    };
    let parts = SdkParts {
        keys: KeyRing::ephemeral().unwrap(),
        rules,
        fanout: Arc::clone(&fanout),
        tokens: Some(Arc::new(NullStore)),
        clock,
    };
    let (sdk, _) = Sdk::init(options, parts).unwrap();
    let rain = RedPacketRain::new(&sdk, "spring-2027", "cash").unwrap();

    let typed = |user_id: i64| {
        let prize = Prize { amount: 888, description: "red packet" };
        retried(|| rain.send(1, User::id(user_id), 0, prize).map(drop));
    };
    measure("typed helper, warming up", calls / 4, threads, typed);
    measure("typed helper", calls, threads, typed);
    measure("send_bonus with a fresh request", calls, threads, |user_id| {
        let request = request(user_id);
        retried(|| sdk.send_bonus(&request).map(drop));
    });
    let made: Vec<_> = (1..=1000).map(request).collect();
    measure("send_bonus", calls, threads, |user_id| {
        let request = &made[usize::try_from(user_id).unwrap() % made.len()];
        retried(|| sdk.send_bonus(request).map(drop));
    });
    latencies("typed helper", calls / 4, typed);

    let report = sdk.close(Duration::from_secs(10));
    println!("{report:?} {:?}", sdk.stats());
    fanout.close(Duration::from_secs(10));
}

/// Calls again while the spool is full, as a caller would, and counts nothing of it out.
fn retried(mut call: impl FnMut() -> Result<(), SendError>) {
    while let Err(error) = call() {
        assert_eq!(error, SendError::SpoolFull);
        std::thread::yield_now();
    }
}

fn request(user_id: i64) -> SendBonusRequest {
    SendBonusRequest {
        trade_no: format!("spring-2027/rain/0000000001/cash/{user_id}/0"),
        user: Some(WireUser { user_id, ..WireUser::default() }),
        activity: "spring-2027".into(),
        scene: "red-packet-rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount: 888, description: "red packet".into() }),
        ..SendBonusRequest::default()
    }
}

fn cpu_ns() -> i64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec * 1_000_000_000 + spent.tv_nsec
}

fn measure(what: &str, calls: u64, threads: u64, call: impl Fn(i64) + Sync) {
    let each = i64::try_from(calls / threads).unwrap();
    let (cpu, wall) = (cpu_ns(), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..i64::try_from(threads).unwrap() {
            let call = &call;
            scope.spawn(move || (0..each).for_each(|number| call(thread * each + number + 1)));
        }
    });
    let cpu = (cpu_ns() - cpu) as f64 / calls as f64;
    let wall = wall.elapsed().as_nanos() as f64 / calls as f64;
    println!("{what:32} {cpu:7.0} ns of CPU a call, {wall:7.0} ns of wall time a call, {threads} thread(s)");
}

fn latencies(what: &str, calls: u64, call: impl Fn(i64)) {
    let mut seen: Vec<u128> = (1..=i64::try_from(calls).unwrap())
        .map(|user_id| {
            let before = Instant::now();
            call(user_id);
            before.elapsed().as_nanos()
        })
        .collect();
    seen.sort_unstable();
    let at = |permille: usize| seen[(seen.len() - 1) * permille / 1000];
    println!("{what:32} p50 {} ns, p99 {} ns, p99.9 {} ns", at(500), at(990), at(999));
}
