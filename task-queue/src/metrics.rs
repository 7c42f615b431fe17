//! What is counted: by queue for as many queues as an option says, by pool for all.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{JobId, QueueCounts, QueueName, Swept, Tended};

/// The buckets of the time from publishing to taking, in milliseconds; one more is for what took longer.
pub const WAIT_BUCKETS_MS: [u64; 14] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000];
const BUCKETS: usize = WAIT_BUCKETS_MS.len() + 1;
/// The looks in a row that find a queue empty and unused, after which its place is free for another one.
const IDLE_LOOKS: u64 = 60;

windfall_contract::declare_metrics! {
    /// What a queue has counted.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct QueueStats counted by QueueNumbers {
        counter "windfall_taskqueue_produced_jobs_total" "Jobs that were published" {
            /// Jobs that were published.
            pub produced: u64,
        }
        counter "windfall_taskqueue_consumed_jobs_total" "Jobs that were handed to a consumer, each time" {
            /// Jobs that were handed to a consumer.
            pub consumed: u64,
        }
    }
}

windfall_contract::declare_metrics! {
    /// What waits in a queue.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct QueueGauges counted by GaugeNumbers {
        gauge "windfall_taskqueue_jobs" ["state"] "Jobs that wait, by what they wait for; looked at every few seconds" {
            /// Jobs whose delay has not ended.
            pub delayed: u64 as "delayed",
            /// Jobs that may be taken.
            pub ready: u64 as "ready",
            /// Jobs in the dead letter.
            pub dead: u64 as "dead",
        }
        gauge "windfall_taskqueue_oldest_ready_milliseconds" "For how long the job that comes next has been ready; looked at every few seconds" {
            /// For how long the job that comes next has been ready, 0 where none is.
            pub oldest_ready_ms: u64,
        }
    }
}

windfall_contract::declare_metrics! {
    /// What a pool has counted.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct PoolStats counted by PoolNumbers {
        counter "windfall_taskqueue_ended_leases_total" ["then"] "Leases that ended without an acknowledgement, by what became of the job" {
            /// Jobs that are ready again.
            pub again: u64 as "again",
            /// Jobs that are in the dead letter.
            pub dead: u64 as "dead",
            /// Jobs whose ttl had ended.
            pub expired: u64 as "expired",
        }
        counter "windfall_taskqueue_expired_jobs_total" "Jobs whose ttl ended at the head of their queue before anybody took them" {
            /// Jobs whose ttl ended while they waited.
            pub expired_waiting: u64,
        }
        counter "windfall_taskqueue_store_errors_total" "Calls of the store that failed beside requests" {
            /// Calls of the store that failed.
            pub store_errors: u64,
        }
        gauge "windfall_taskqueue_polls" "Consumers that wait for a job" {
            /// Consumers that wait.
            pub polls: u64,
        }
        gauge "windfall_taskqueue_far_removals" "Deletions of far jobs that the store remembers, each for a week after its job was due" {
            /// Deletions of far jobs that are remembered.
            pub far_removals: u64,
        }
        counter "windfall_taskqueue_refused_far_removals_total" "Deletions that were refused, because the store remembers too many of far jobs" {
            /// Deletions that were refused.
            pub refused_far_removals: u64,
        }
    }
}

/// How long jobs of a queue had been there when they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimes {
    /// Jobs by bucket, each without those of the buckets before it.
    pub buckets: [u64; BUCKETS],
    /// The sum of all times, in milliseconds.
    pub sum_ms: u64,
}

/// What the shards of a store hold of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) counts: QueueCounts,
    /// For how long the job that comes next has been ready, 0 where none is.
    pub(crate) oldest_ready_ms: u64,
}

/// The counters of a pool.
pub struct QueueCounters {
    queues_max: usize,
    by_queue: RwLock<HashMap<QueueName, Arc<OfQueue>>>,
    /// All queues beyond `queues_max`.
    others: Arc<OfQueue>,
    pool: PoolNumbers,
    /// The deletions of far jobs that each shard remembers.
    far_removals: Mutex<BTreeMap<Shard, u64>>,
}

#[derive(Default)]
struct OfQueue {
    numbers: QueueNumbers,
    gauges: GaugeNumbers,
    buckets: [AtomicU64; BUCKETS],
    sum_ms: AtomicU64,
    /// What it had counted when it was looked at last.
    counted: AtomicU64,
    /// The looks in a row since then that found nothing in it, and nothing counted.
    idle_looks: AtomicU64,
}

impl QueueCounters {
    /// Counts so many queues by themselves, those that come first.
    pub(crate) fn new(queues_max: usize) -> Arc<Self> {
        Arc::new(Self {
            queues_max,
            by_queue: RwLock::default(),
            others: Arc::default(),
            pool: PoolNumbers::default(),
            far_removals: Mutex::default(),
        })
    }

    /// Calls `each` with namespace, queue, counts and times of each queue; what is counted together has empty names.
    pub fn each_queue(&self, mut each: impl FnMut(&str, &str, &QueueStats, &WaitTimes)) {
        for (name, own) in self.by_queue.read().iter() {
            each(name.namespace(), name.queue(), &own.numbers.read(), &own.times());
        }
        let (others, times) = (self.others.numbers.read(), self.others.times());
        if others.produced + others.consumed > 0 {
            each("", "", &others, &times);
        }
    }

    /// Calls `each` with namespace, queue and what waits, of each queue that is looked at. Nobody looks at those that are
    /// counted together.
    pub fn each_waiting(&self, mut each: impl FnMut(&str, &str, &QueueGauges)) {
        for (name, own) in self.by_queue.read().iter() {
            each(name.namespace(), name.queue(), &own.gauges.read());
        }
    }

    /// The numbers of all queues together.
    pub fn pool(&self) -> PoolStats {
        self.pool.read()
    }

    fn of(&self, queue: &QueueName) -> Arc<OfQueue> {
        {
            let all = self.by_queue.read();
            if let Some(own) = all.get(queue) {
                return Arc::clone(own);
            }
            if all.len() >= self.queues_max || is_answer(queue) {
                return Arc::clone(&self.others);
            }
        }
        let mut all = self.by_queue.write();
        if all.len() >= self.queues_max && !all.contains_key(queue) {
            return Arc::clone(&self.others);
        }
        Arc::clone(all.entry(queue.clone()).or_default())
    }

    pub(crate) fn produced(&self, queue: &QueueName, jobs: usize) {
        self.of(queue).numbers.produced.fetch_add(jobs as u64, Relaxed);
    }

    pub(crate) fn consumed(&self, queue: &QueueName, waited_ms: u64) {
        let own = self.of(queue);
        own.numbers.consumed.fetch_add(1, Relaxed);
        let at = WAIT_BUCKETS_MS.iter().position(|end_ms| waited_ms <= *end_ms).unwrap_or(BUCKETS - 1);
        own.buckets[at].fetch_add(1, Relaxed);
        own.sum_ms.fetch_add(waited_ms, Relaxed);
    }

    /// Whether another queue can be counted by itself.
    pub(crate) fn has_room(&self) -> bool {
        self.by_queue.read().len() < self.queues_max
    }

    /// Counts these queues by themselves too, as far as there is room.
    pub(crate) fn show(&self, queues: Vec<QueueName>) {
        let queues: Vec<QueueName> = queues.into_iter().filter(|queue| !is_answer(queue)).collect();
        let mut all = self.by_queue.write();
        for queue in queues {
            if all.len() >= self.queues_max {
                break;
            }
            all.entry(queue).or_default();
        }
    }

    /// The queues whose jobs are counted by themselves.
    pub(crate) fn shown(&self) -> Vec<QueueName> {
        self.by_queue.read().keys().cloned().collect()
    }

    /// Shows what the shards hold that have answered. Where one did not, no number goes down: what it holds is missing, and
    /// alerts would end and workers go while its jobs wait.
    pub(crate) fn measured(&self, queue: &QueueName, measured: &Measured, is_whole: bool) {
        let by_queue = self.by_queue.read();
        let Some(own) = by_queue.get(queue) else { return };
        let Measured { counts, oldest_ready_ms } = *measured;
        own.looked(is_whole && counts == QueueCounts::default());
        for (gauge, value) in [
            (&own.gauges.ready, counts.ready),
            (&own.gauges.delayed, counts.delayed),
            (&own.gauges.dead, counts.dead),
            (&own.gauges.oldest_ready_ms, oldest_ready_ms),
        ] {
            match is_whole {
                true => gauge.store(value, Relaxed),
                false => _ = gauge.fetch_max(value, Relaxed),
            }
        }
    }

    /// Where there is no room for another queue, makes room by the queues that have long been empty and unused: one of them
    /// that is used again is counted anew.
    pub(crate) fn make_room(&self) {
        let mut all = self.by_queue.write();
        if all.len() >= self.queues_max {
            all.retain(|_, own| own.idle_looks.load(Relaxed) < IDLE_LOOKS);
        }
    }

    pub(crate) fn tended(&self, tended: &Tended) {
        self.pool.again.fetch_add(tended.again, Relaxed);
        self.pool.dead.fetch_add(tended.dead, Relaxed);
        self.pool.expired.fetch_add(tended.expired, Relaxed);
    }

    /// Jobs that somebody who wanted to take them found over.
    pub(crate) fn expired(&self, jobs: u64) {
        self.pool.expired_waiting.fetch_add(jobs, Relaxed);
    }

    pub(crate) fn swept(&self, shard: Shard, swept: &Swept) {
        self.pool.expired_waiting.fetch_add(swept.expired, Relaxed);
        let mut by_shard = self.far_removals.lock();
        by_shard.insert(shard, swept.far_removals);
        self.pool.far_removals.store(by_shard.values().sum(), Relaxed);
    }

    pub(crate) fn far_removal_refused(&self) {
        self.pool.refused_far_removals.fetch_add(1, Relaxed);
    }

    pub(crate) fn store_failed(&self) {
        self.pool.store_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn polls(&self, count: usize) {
        self.pool.polls.store(count as u64, Relaxed);
    }
}

impl OfQueue {
    fn looked(&self, is_empty: bool) {
        let counted = self.numbers.produced.load(Relaxed) + self.numbers.consumed.load(Relaxed);
        match self.counted.swap(counted, Relaxed) == counted && is_empty {
            true => _ = self.idle_looks.fetch_add(1, Relaxed),
            false => self.idle_looks.store(0, Relaxed),
        }
    }

    fn times(&self) -> WaitTimes {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Relaxed));
        WaitTimes { buckets, sum_ms: self.sum_ms.load(Relaxed) }
    }
}

/// The answer to a synchronous job comes in a queue of its own, which is named like the job and used once.
fn is_answer(queue: &QueueName) -> bool {
    queue.queue().parse::<JobId>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_beyond_the_limit_are_counted_together() {
        let counters = QueueCounters::new(2);
        for queue in ["a", "01ARYZ6S41TSV4RRFFQ69G5FAV", "b", "d", "a"] {
            counters.produced(&QueueName::new("n", queue).unwrap(), 1);
        }
        counters.consumed(&QueueName::new("n", "b").unwrap(), 3_000);
        let mut seen = Vec::new();
        counters.each_queue(|_, queue, stats, times| {
            seen.push((queue.to_owned(), stats.produced, times.buckets.iter().sum::<u64>()));
        });
        seen.sort();
        assert_eq!(seen, [(String::new(), 2, 0), ("a".into(), 2, 0), ("b".into(), 1, 1)]);
    }

    /// The queues that came first kept their places for the life of the process: alerts and scaling saw no other one.
    #[test]
    fn a_queue_that_has_long_been_empty_and_unused_makes_room_for_another_one() {
        let counters = QueueCounters::new(2);
        let [gone, used, new] = ["gone", "used", "new"].map(|queue| QueueName::new("n", queue).unwrap());
        let empty = Measured::default();
        counters.produced(&gone, 1);
        for look in 0..=IDLE_LOOKS {
            counters.produced(&used, 1);
            for queue in [&gone, &used] {
                counters.measured(queue, &empty, true);
            }
            counters.make_room();
            assert_eq!(counters.has_room(), look == IDLE_LOOKS, "{look}");
        }
        counters.show(vec![new.clone()]);
        let counts = QueueCounts { ready: 7, ..QueueCounts::default() };
        counters.measured(&new, &Measured { counts, oldest_ready_ms: 5 }, true);
        counters.measured(&gone, &Measured { counts, oldest_ready_ms: 5 }, true);
        let mut seen = Vec::new();
        counters.each_waiting(|_, queue, gauges| seen.push((queue.to_owned(), gauges.ready)));
        seen.sort();
        assert_eq!(seen, [("new".to_owned(), 7), ("used".to_owned(), 0)]);
        // One of which a part is not known is not empty, nor one in which something waits.
        for measured in [(empty, false), (Measured { counts, oldest_ready_ms: 0 }, true)] {
            for _ in 0..=2 * IDLE_LOOKS {
                counters.measured(&new, &measured.0, measured.1);
                counters.measured(&used, &measured.0, measured.1);
                counters.make_room();
            }
            assert!(!counters.has_room());
        }
    }

    /// Those that are counted together had gauges that were always 0, whatever waited in them.
    #[test]
    fn what_is_counted_together_has_no_gauges() {
        let counters = QueueCounters::new(0);
        counters.produced(&QueueName::new("n", "q").unwrap(), 3);
        let (mut counted, mut waiting) = (0, 0);
        counters.each_queue(|_, _, stats, _| counted += stats.produced);
        counters.each_waiting(|_, _, _| waiting += 1);
        assert_eq!((counted, waiting), (3, 0));
    }
}
