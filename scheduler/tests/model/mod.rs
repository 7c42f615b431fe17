//! A store, targets and a journal for the scheduler's tests, all on tokio's paused clock.
#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

pub mod broker;
mod store;

pub use store::{ModelStore, START_MS};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::Clock;
use windfall_contract::due::{Added, Fired, Firing, SlotStore, Target, TaskId};
use windfall_scheduler::{
    Class, DispatchOptions, Dispatcher, NewTask, Retry, TargetRules, TenantRules, Tenants, Timers,
    TimersOptions,
};

/// Runs a test on a clock of its own, which moves when nothing else is to do.
pub fn simulate<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// SplitMix64; equal seeds, equal stories.
pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}

/// What a target got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub at_ms: u64,
    pub id: TaskId,
    pub due_ms: u64,
    pub attempt: u32,
    pub number: u64,
}

/// A target that keeps what it gets.
pub struct TestTarget {
    store: Arc<ModelStore>,
    pub got: Mutex<Vec<Delivery>>,
    /// How long each call takes.
    pub takes_ms: AtomicU64,
    pub is_away: AtomicBool,
    /// It is away for the task of this number alone.
    pub is_away_for: Mutex<Option<u64>>,
    /// Tasks that it has room for in one call; 0: all.
    pub room: AtomicU64,
    pub panics: AtomicBool,
    pub refuses: AtomicBool,
    /// One attempt of so many fails, by its task and its number; 0: none.
    pub fails_one_of: AtomicU64,
    pub sizes: Mutex<Vec<usize>>,
}

impl TestTarget {
    pub fn new(store: &Arc<ModelStore>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            got: Mutex::default(),
            takes_ms: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            is_away_for: Mutex::default(),
            room: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            fails_one_of: AtomicU64::new(0),
            sizes: Mutex::default(),
        })
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.got.lock().iter().map(|delivery| delivery.number).collect()
    }

    pub fn distinct(&self) -> usize {
        self.numbers().into_iter().collect::<BTreeSet<_>>().len()
    }
}

#[async_trait]
impl Target for TestTarget {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        self.sizes.lock().push(batch.len());
        let takes_ms = self.takes_ms.load(Ordering::SeqCst);
        let is_away = self.is_away.load(Ordering::SeqCst);
        assert!(!self.panics.load(Ordering::SeqCst), "a test wants it");
        let at_ms = self.store.now_ms();
        let room = self.room.load(Ordering::SeqCst) as usize;
        let mut answers = Vec::new();
        for task in batch {
            if room > 0 && answers.len() >= room {
                answers.push(Fired::Busy("a test wants it".into()));
                continue;
            }
            let number = number_of(&task.payload);
            let fails_one_of = self.fails_one_of.load(Ordering::SeqCst);
            let draw = Rng(number ^ (u64::from(task.attempt) << 40)).draw();
            if is_away || *self.is_away_for.lock() == Some(number) {
                answers.push(Fired::Away("a test wants it".into()));
                continue;
            }
            answers.push(match () {
                () if self.refuses.load(Ordering::SeqCst) => Fired::Refused("never".into()),
                () if fails_one_of > 0 && draw.is_multiple_of(fails_one_of) => {
                    Fired::Failed("a test wants it".into())
                }
                () => Fired::Done,
            });
            let (id, due_ms, attempt) = (task.id, task.due_ms, task.attempt);
            self.got.lock().push(Delivery { at_ms, id, due_ms, attempt, number });
        }
        if takes_ms > 0 {
            tokio::time::sleep(Duration::from_millis(takes_ms)).await;
        }
        answers
    }
}

pub fn payload(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// A payload of any length has a number: its first eight bytes.
pub fn number_of(payload: &[u8]) -> u64 {
    payload.get(..8).map_or(u64::MAX, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

/// One store, some tenants with one target `out` each, and their timers.
pub struct World {
    pub store: Arc<ModelStore>,
    pub timers: Timers,
    pub tenants: Arc<Tenants>,
    pub targets: BTreeMap<String, Arc<TestTarget>>,
}

pub fn rules(class: Class, target: TargetRules) -> TenantRules {
    let targets = [("out".to_owned(), target)].into();
    TenantRules { waiting_max: 10_000_000, adds_per_s: 10_000_000, class, targets }
}

pub fn target_rules(attempts_max: u32) -> TargetRules {
    let retry = Retry::Exponential { attempts_max, first_ms: 100, max_ms: 2_000 };
    TargetRules { retry, ..TargetRules::default() }
}

pub fn clock() -> Clock {
    let start = Instant::now();
    let elapsed_ns = move || u64::try_from(start.elapsed().as_nanos()).unwrap();
    // The clock of the host is an hour off.
    Clock::from_sources(elapsed_ns, move || START_MS - 3_600_000 + elapsed_ns() / 1_000_000)
}

impl World {
    pub fn new(store: ModelStore, tenants: Vec<(&str, TenantRules)>) -> Self {
        let store = Arc::new(store);
        let tenants: BTreeMap<_, _> =
            tenants.into_iter().map(|(name, rules)| (name.to_owned(), rules)).collect();
        let targets = tenants.keys().map(|name| (name.clone(), TestTarget::new(&store))).collect();
        let tenants = Arc::new(Tenants(tenants));
        let timers = Timers::start(
            TimersOptions::default(),
            Arc::clone(&tenants),
            Arc::clone(&store) as Arc<dyn SlotStore>,
            clock(),
        );
        Self { store, timers, tenants, targets }
    }

    /// One tenant, `shop`, with default rules.
    pub fn shop(shards: u16) -> Self {
        Self::new(ModelStore::new(shards, 1, None), vec![("shop", rules(Class::Normal, target_rules(10)))])
    }

    pub fn target(&self) -> &Arc<TestTarget> {
        &self.targets["shop"]
    }

    pub fn dispatcher(&self, instance: &str) -> Dispatcher {
        self.dispatcher_with(instance, DispatchOptions::default())
    }

    pub fn dispatcher_with(&self, instance: &str, options: DispatchOptions) -> Dispatcher {
        let target = |(tenant, target): (&String, &Arc<TestTarget>)| {
            ((tenant.clone(), "out".to_owned()), Arc::clone(target) as Arc<dyn Target>)
        };
        let targets = self.targets.iter().map(target).collect();
        let store = Arc::clone(&self.store) as Arc<dyn SlotStore>;
        Dispatcher::start(options, Arc::clone(&self.tenants), store, targets, instance.to_owned(), clock())
    }

    /// Adds tasks of these numbers, due so long from now.
    pub async fn add(
        &self,
        tenant: &str,
        numbers: std::ops::Range<u64>,
        in_ms: impl Fn(u64) -> i64,
    ) -> Vec<TaskId> {
        let now_ms = self.store.now_ms();
        let new = |number| NewTask {
            target: "out".into(),
            due_ms: now_ms.saturating_add_signed(in_ms(number)),
            key: None,
            payload: payload(number),
        };
        let all: Vec<_> = numbers.map(new).collect();
        let mut ids = Vec::new();
        for call in all.chunks(1_000) {
            for added in self.timers.add(tenant, call.to_vec()).await {
                match added.unwrap() {
                    Added::Stored(id) | Added::Exists(id) => ids.push(id),
                }
            }
        }
        ids
    }
}

pub async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Waits until it is so, at most so long.
pub async fn wait_for(what: &str, within_ms: u64, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_millis(within_ms);
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {within_ms} ms");
        sleep_ms(10).await;
    }
}
