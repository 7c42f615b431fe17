//! The router: what the strategies remember, and what they choose.

use super::Strategy;
use super::generations::Generations;
use super::hash::{hash, mix, score};
use super::history::{History, below, best, in_turn};
use super::load::{FAILURE_MS, Load};
use parking_lot::Mutex;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most fallbacks of a choice.
pub const FALLBACKS_MAX: usize = 3;

/// The parts of the memory, each with a lock of its own.
const PARTS: usize = 64;

/// How much a router remembers. A figure out of its bounds counts as the nearest that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterOptions {
    /// The memory of jobs in entries: one per job, and for `least_frequently_used` and `least_recently_used` one more per
    /// executor of the job. An entry takes about 24 bytes, and each job 100 bytes. 6,400 to 100,000,000, default 1,000,000:
    /// 20,000 jobs with 24 executors each, twice.
    pub history_entries_max: usize,
    /// The executors whose load is remembered, about 150 bytes each. 6,400 to 10,000,000, default 100,000.
    pub executors_max: usize,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self { history_entries_max: 1_000_000, executors_max: 100_000 }
    }
}

/// A run that needs an executor.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The number of the job.
    pub job: u64,
    /// The routing key of `consistent_hash`, for instance the run's parameters; the job's number if it is missing.
    pub key: Option<&'a str>,
    /// The strategy of the job.
    pub strategy: Strategy,
    /// The time, for `least_loaded`.
    pub now_ms: u64,
}

/// Who gets a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Nobody is alive.
    None,
    /// This address.
    One {
        /// The address.
        address: Arc<str>,
        /// Who is next if it certainly did not get the run, best first; [`FALLBACKS_MAX`] at most. A send that timed out
        /// may have arrived: then a fallback would run the job twice.
        fallbacks: Vec<Arc<str>>,
    },
    /// The first of these that answers a heartbeat.
    FirstThatBeats(Vec<Arc<str>>),
    /// The first of these that says it is idle for the job.
    FirstThatIsIdle(Vec<Arc<str>>),
    /// Each of these.
    All(Vec<Shard>),
}

/// An address and its share of a broadcast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The address.
    pub address: Arc<str>,
    /// Its position, from 0 on.
    pub index: usize,
    /// How many there are.
    pub total: usize,
}

/// Chooses executors. It is shared by all threads; the [module](super) says what each strategy does.
pub struct Router {
    histories: Vec<Mutex<Generations<u64, History>>>,
    loads: Vec<Mutex<Generations<Arc<str>, Load>>>,
    /// The state of SplitMix64.
    random: AtomicU64,
}

impl Router {
    /// A router that has seen nothing. Two routers with the same seed choose alike, if one thread asks them the same.
    #[must_use]
    pub fn new(options: RouterOptions, seed: u64) -> Self {
        let history_entries = options.history_entries_max.clamp(6_400, 100_000_000) / PARTS;
        let executors = options.executors_max.clamp(6_400, 10_000_000) / PARTS;
        Self {
            histories: (0..PARTS).map(|_| Mutex::new(Generations::new(history_entries))).collect(),
            loads: (0..PARTS).map(|_| Mutex::new(Generations::new(executors))).collect(),
            random: AtomicU64::new(seed),
        }
    }

    /// Chooses who gets a run. `alive` must be sorted, without duplicates.
    #[must_use]
    pub fn choose(&self, request: &Request<'_>, alive: &[Arc<str>]) -> Choice {
        debug_assert!(alive.is_sorted(), "the addresses of executors are sorted");
        if alive.is_empty() {
            return Choice::None;
        }
        let count = FALLBACKS_MAX + 1;
        let positions = match request.strategy {
            Strategy::First => in_turn(0, alive.len(), count),
            Strategy::Last => (0..alive.len()).rev().take(count).collect(),
            Strategy::Random => in_turn(below(self.random(), alive.len()), alive.len(), count),
            Strategy::Round => {
                self.with_history(request.job, |history, random| history.round(alive, random, count))
            }
            Strategy::LeastFrequentlyUsed => {
                self.with_history(request.job, |history, random| history.least_frequent(alive, random, count))
            }
            Strategy::LeastRecentlyUsed => {
                self.with_history(request.job, |history, random| history.least_recent(alive, random, count))
            }
            Strategy::ConsistentHash => by_score(request, alive, count),
            Strategy::LeastLoaded => self.less_loaded(alive, request.now_ms, count),
            Strategy::Failover => return Choice::FirstThatBeats(alive.to_vec()),
            Strategy::Busyover => return Choice::FirstThatIsIdle(alive.to_vec()),
            Strategy::ShardingBroadcast => return broadcast(alive),
        };
        let mut addresses = positions.into_iter().filter_map(|at| alive.get(at)).map(Arc::clone);
        match addresses.next() {
            Some(address) => Choice::One { address, fallbacks: addresses.collect() },
            None => Choice::None,
        }
    }

    /// An executor was sent a run, whatever the strategy.
    pub fn sent(&self, address: &str, now_ms: u64) {
        self.with_load(address, |load| load.sent(now_ms));
    }

    /// An executor answered a run that it was sent.
    pub fn answered(&self, address: &str, took_ms: u64, now_ms: u64) {
        self.with_load(address, |load| load.done(took_ms, now_ms));
    }

    /// A run that an executor was sent failed, or was not answered in time.
    pub fn failed(&self, address: &str, took_ms: u64, now_ms: u64) {
        self.with_load(address, |load| load.done(took_ms.max(FAILURE_MS), now_ms));
    }

    /// An executor has left for good, with whatever it had in flight.
    pub fn forget(&self, address: &str) {
        let forgotten = self.part_of(address).lock().take(address);
        drop(forgotten);
    }

    /// How many runs an executor has in flight.
    #[must_use]
    pub fn in_flight(&self, address: &str) -> u32 {
        self.part_of(address).lock().get(address).map_or(0, Load::in_flight)
    }

    #[cfg(test)]
    pub(super) fn history_entries(&self) -> usize {
        self.histories.iter().map(|part| part.lock().cost()).sum()
    }

    #[cfg(test)]
    pub(super) fn executors(&self) -> usize {
        self.loads.iter().map(|part| part.lock().cost()).sum()
    }

    fn with_history(&self, job: u64, choose: impl FnOnce(&mut History, u64) -> Vec<usize>) -> Vec<usize> {
        let Some(part) = self.histories.get(part(mix(job))) else { return Vec::new() };
        let random = self.random();
        let (positions, forgotten) =
            part.lock().with(&job, || (job, History::new()), |history| choose(history, random));
        drop(forgotten);
        positions
    }

    fn with_load(&self, address: &str, change: impl FnOnce(&mut Load)) {
        let ((), forgotten) =
            self.part_of(address).lock().with(address, || (address.into(), Load::default()), change);
        drop(forgotten);
    }

    /// The less loaded one of two that are drawn, then the other, then those behind them.
    fn less_loaded(&self, alive: &[Arc<str>], now_ms: u64, count: usize) -> Vec<usize> {
        let first = below(self.random(), alive.len());
        if alive.len() == 1 {
            return vec![first];
        }
        // Any but the first: the same draw from one fewer, counted from behind the first.
        let second = (first + 1 + below(self.random(), alive.len() - 1)) % alive.len();
        let score = |at: usize| {
            alive.get(at).map_or(f64::MAX, |address| {
                self.part_of(address).lock().get(&**address).map_or(1.0, |load| load.score(now_ms))
            })
        };
        let (better, worse) = if score(second) < score(first) { (second, first) } else { (first, second) };
        let others = in_turn(first, alive.len(), count + 1).into_iter();
        let others = others.filter(|at| *at != better && *at != worse);
        [better, worse].into_iter().chain(others).take(count).collect()
    }

    fn part_of(&self, address: &str) -> &Mutex<Generations<Arc<str>, Load>> {
        &self.loads[part(hash(address.as_bytes()))]
    }

    /// SplitMix64.
    fn random(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        mix(self.random.fetch_add(step, Ordering::Relaxed).wrapping_add(step))
    }
}

/// Rendezvous hashing.
fn by_score(request: &Request<'_>, alive: &[Arc<str>], count: usize) -> Vec<usize> {
    let key_hash = match request.key {
        Some(key) => hash(key.as_bytes()),
        None => hash(request.job.to_string().as_bytes()),
    };
    let scores = alive.iter().enumerate().map(|(at, address)| (score(address, key_hash), at));
    best(scores, count, |one, other| one.0 > other.0).into_iter().map(|(_, at)| at).collect()
}

fn broadcast(alive: &[Arc<str>]) -> Choice {
    let total = alive.len();
    let shards = alive.iter().enumerate();
    let shards = shards.map(|(index, address)| Shard { address: Arc::clone(address), index, total });
    Choice::All(shards.collect())
}

fn part(hash: u64) -> usize {
    below(hash, PARTS)
}
