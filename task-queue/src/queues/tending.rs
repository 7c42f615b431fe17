//! What has to be done though nobody calls: leases that end, jobs that expire, polls for what others publish.

use super::Inner;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use windfall_contract::task_queue::QueueName;

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
/// The pause between two looks for what the metrics show.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// Runs until its owner ends it. Errors of the store are counted, and met by the next look.
pub(super) async fn keep(inner: Arc<Inner>) {
    tokio::join!(poll(&inner), tend(&inner), sweep(&inner), measure(&inner));
}

async fn poll(inner: &Inner) {
    let mut last: Option<QueueName> = None;
    loop {
        // No two processes look at the same time for long.
        sleep(POLL_EVERY + jitter(inner)).await;
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

async fn tend(inner: &Inner) {
    loop {
        let began = Instant::now();
        for shard in inner.shards() {
            for _ in 0..TEND_CALLS_MAX {
                match inner.store.tend(shard).await {
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
        }
        sleep(TEND_EVERY.saturating_sub(began.elapsed()).max(TEND_EVERY / 4) + jitter(inner)).await;
    }
}

async fn sweep(inner: &Inner) {
    let mut cursors = vec![0; usize::from(inner.store.shards())];
    loop {
        for shard in inner.shards() {
            let cursor = &mut cursors[usize::from(shard.0)];
            match inner.store.sweep(shard, *cursor).await {
                Ok(swept) => {
                    *cursor = swept.cursor;
                    inner.counters.swept(swept.expired);
                }
                Err(_) => inner.counters.store_failed(),
            }
        }
        sleep(SWEEP_EVERY + jitter(inner)).await;
    }
}

/// Keeps the gauges of the queues that are shown.
async fn measure(inner: &Inner) {
    loop {
        sleep(GAUGES_EVERY + jitter(inner)).await;
        let queues = inner.counters.shown();
        for part in queues.chunks(POLLED_AT_ONCE) {
            let Ok(looks) = inner.look(part).await else {
                inner.counters.store_failed();
                break;
            };
            for (at, queue) in part.iter().enumerate() {
                let mut all = windfall_contract::task_queue::QueueCounts::default();
                looks.iter().for_each(|(_, counts)| all += counts[at]);
                inner.counters.measured(queue, &all);
            }
        }
        inner.counters.polls(inner.polls.count());
    }
}

/// 0 to 15 ms.
fn jitter(inner: &Inner) -> Duration {
    Duration::from_millis(u64::from(inner.random_of(16)))
}
