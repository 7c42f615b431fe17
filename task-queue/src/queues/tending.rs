//! What has to be done though nobody calls: leases that end, jobs that expire, polls for what others publish.

use super::Inner;
use crate::metrics::Measured;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{QueueCounts, QueueName};

/// The pause between two looks for polls: a job that another process publishes is found within it.
const POLL_EVERY: Duration = Duration::from_millis(40);
/// The pause between two looks at leases.
const TEND_EVERY: Duration = Duration::from_millis(200);
/// The pause between two looks for jobs that have expired where nobody takes them.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// The queues that one look for polls asks for.
const POLLED_AT_ONCE: usize = 512;
/// The calls in a row that one shard may need.
const TEND_CALLS_MAX: usize = 100;
/// The sweeps of a shard in a row, as long as they find something.
const SWEEP_CALLS_MAX: usize = 20;
/// The pause before a task that has panicked begins again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The pages of a shard's queues that one look for queues reads at most: what is left is read by the looks after it.
const QUEUES_PAGES_MAX: usize = 8;
/// The pause between two looks for what the metrics show.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// Runs until its owner ends it. Errors of the store are counted, and met by the next look.
pub(super) async fn keep(inner: Arc<Inner>) {
    loop {
        let mut tasks = JoinSet::new();
        tasks.spawn(poll(Arc::clone(&inner)));
        tasks.spawn(measure(Arc::clone(&inner)));
        // Each shard has its own, so that one that does not answer holds up no other one.
        for shard in inner.shards() {
            tasks.spawn(tend(Arc::clone(&inner), shard));
            tasks.spawn(sweep(Arc::clone(&inner), shard));
        }
        // None of them ends but by a panic: leases have to end all the same.
        if let Some(Err(error)) = tasks.join_next().await {
            tracing::error!(%error, "what keeps the task queues has stopped, and begins again");
        }
        inner.counters.store_failed();
        drop(tasks);
        sleep(AGAIN_AFTER).await;
    }
}

async fn poll(inner: Arc<Inner>) {
    let mut last: Option<QueueName> = None;
    loop {
        // No two processes look at the same time for long.
        sleep(POLL_EVERY + jitter(&inner)).await;
        let queues = inner.polls.queues(last.as_ref(), POLLED_AT_ONCE);
        if queues.is_empty() {
            continue;
        }
        last = queues.last().cloned();
        match inner.look(&queues).await {
            Ok(looks) => {
                for (at, queue) in queues.iter().enumerate() {
                    let ready: u64 = looks.iter().map(|(_, counts)| counts[at].ready).sum();
                    inner.polls.wake(queue, usize::try_from(ready).unwrap_or(usize::MAX));
                }
            }
            Err(_) => inner.counters.store_failed(),
        }
    }
}

async fn tend(inner: Arc<Inner>, shard: Shard) {
    loop {
        let began = Instant::now();
        for _ in 0..TEND_CALLS_MAX {
            let tended = inner.store.tend(shard).await;
            inner.health.note(shard, tended.is_ok());
            match tended {
                Ok(tended) => {
                    inner.counters.tended(&tended);
                    if !tended.is_cut {
                        break;
                    }
                }
                Err(_) => {
                    inner.counters.store_failed();
                    break;
                }
            }
        }
        sleep(TEND_EVERY.saturating_sub(began.elapsed()).max(TEND_EVERY / 4) + jitter(&inner)).await;
    }
}

async fn sweep(inner: Arc<Inner>, shard: Shard) {
    let mut cursor = 0;
    loop {
        // Again at once while there is something to forget: queues that are used once come as fast as jobs.
        for _ in 0..SWEEP_CALLS_MAX {
            match inner.store.sweep(shard, cursor).await {
                Ok(swept) => {
                    cursor = swept.cursor;
                    inner.counters.swept(shard, &swept);
                    if swept.expired + swept.forgotten == 0 {
                        break;
                    }
                }
                Err(_) => {
                    inner.counters.store_failed();
                    break;
                }
            }
        }
        sleep(SWEEP_EVERY + jitter(&inner)).await;
    }
}

/// Keeps the gauges of the queues that are shown.
async fn measure(inner: Arc<Inner>) {
    let mut cursors = BTreeMap::new();
    loop {
        sleep(GAUGES_EVERY + jitter(&inner)).await;
        find_queues(&inner, &mut cursors).await;
        measure_once(&inner).await;
    }
}

/// Shows the queues that this process was never asked for: those that timers alone publish to, and what an earlier
/// process has left. `cursors` says where the next look goes on in each shard: there may be very many, since each answer to a
/// synchronous job has a queue of its own.
async fn find_queues(inner: &Inner, cursors: &mut BTreeMap<Shard, u64>) {
    for shard in inner.shards().filter(|shard| inner.is_asked(*shard)) {
        let cursor = cursors.entry(shard).or_default();
        for _ in 0..QUEUES_PAGES_MAX {
            if !inner.counters.has_room() {
                return;
            }
            match inner.store.queues(shard, *cursor).await {
                Ok((next, queues)) => {
                    *cursor = next;
                    inner.counters.show(queues);
                }
                Err(_) => {
                    inner.counters.store_failed();
                    break;
                }
            }
            // All were read.
            if *cursor == 0 {
                break;
            }
        }
    }
}

async fn measure_once(inner: &Inner) {
    let queues = inner.counters.shown();
    for part in queues.chunks(POLLED_AT_ONCE) {
        let Ok(looks) = inner.look(part).await else {
            inner.counters.store_failed();
            break;
        };
        let mut all: Vec<Measured> = vec![Measured::default(); part.len()];
        for (_, counts) in &looks {
            all.iter_mut().zip(counts).for_each(|(own, counts)| own.counts += *counts);
        }
        let all_answered = looks.len() == usize::from(inner.store.shards());
        let is_whole = add_oldest(inner, part, &looks, &mut all).await && all_answered;
        part.iter().zip(&all).for_each(|(queue, own)| inner.counters.measured(queue, own, is_whole));
    }
    inner.counters.make_room();
    inner.counters.polls(inner.polls.count());
}

/// Finds for how long the job that comes next of each queue has been ready. Whether all shards that have one have answered.
async fn add_oldest(
    inner: &Inner,
    queues: &[QueueName],
    looks: &[(Shard, Vec<QueueCounts>)],
    all: &mut [Measured],
) -> bool {
    let mut is_whole = true;
    for (shard, counts) in looks {
        let asked: Vec<usize> = (0..queues.len()).filter(|at| counts[*at].ready > 0).collect();
        if asked.is_empty() {
            continue;
        }
        let names: Vec<QueueName> = asked.iter().map(|at| queues[*at].clone()).collect();
        match inner.store.ready_for_ms(*shard, &names).await {
            Ok(found) => asked.iter().zip(found).for_each(|(at, ready_ms)| {
                let own = &mut all[*at].oldest_ready_ms;
                *own = (*own).max(ready_ms.unwrap_or(0));
            }),
            Err(_) => {
                is_whole = false;
                inner.counters.store_failed();
            }
        }
    }
    is_whole
}

/// 0 to 15 ms.
fn jitter(inner: &Inner) -> Duration {
    Duration::from_millis(u64::from(inner.random_of(16)))
}

#[cfg(test)]
mod tests {
    use super::super::{PollLimits, Queues};
    use super::*;
    use crate::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
    use crate::metrics::QueueCounters;
    use crate::room::Room;
    use windfall_contract::Clock;
    use windfall_contract::task_queue::{JobStore, NewJobs};

    fn jobs(queue: &str) -> NewJobs {
        NewJobs {
            queue: QueueName::new("n", queue).unwrap(),
            delay_s: 0,
            ttl_s: 0,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: vec!["x".into()],
        }
    }

    /// Name and ready jobs of each queue that the metrics show.
    fn shown(counters: &QueueCounters) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        counters.each_waiting(|_, queue, gauges| all.push((queue.to_owned(), gauges.ready)));
        all.sort();
        all
    }

    /// A queue that timers alone publish to had no metrics, so that no alert and no scaling from zero saw its jobs.
    #[tokio::test]
    async fn queues_that_this_process_was_never_asked_for_are_measured_too() {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedJobsOptions { shards: 2, ..EmbeddedJobsOptions::default() };
        let store = EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap();
        let limits = PollLimits { all_max: 1, token_max: 1 };
        let queues =
            Queues::start(Arc::clone(&store) as _, None, QueueCounters::new(2), limits, Room::new(1 << 20));
        let look = async || {
            find_queues(&queues.inner, &mut BTreeMap::new()).await;
            measure_once(&queues.inner).await;
            shown(&queues.inner.counters)
        };
        assert_eq!(look().await, []);
        let answer = "01ARYZ6S41TSV4RRFFQ69G5FAV";
        store.publish(Shard(0), &[jobs("timers"), jobs(answer)]).await.unwrap();
        store.publish(Shard(1), &[jobs("timers")]).await.unwrap();
        assert_eq!(look().await, [("timers".to_owned(), 2)], "an answer to a job has no metrics of its own");
        store.publish(Shard(1), &[jobs("b"), jobs("c"), jobs("d")]).await.unwrap();
        assert_eq!(look().await.len(), 2, "no more than an option says");
        queues.close().await;
    }
}
