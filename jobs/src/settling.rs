//! Writes how attempts to send runs ended, as many together as have come meanwhile, each shard by itself: one that does not
//! answer holds up no other.

use crate::core::Core;
use crate::transition::{Became, Event, by_shard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windfall_contract::due::Shard;

/// Outcomes that wait in the queue.
pub(crate) const SETTLE_MAX: usize = 2_000;
/// Outcomes that wait for their shards; beyond it nothing more is taken from the queue.
const WAITING_MAX: usize = 20_000;
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How long an outcome is kept while the store does not answer. What happened to its run is found out by leases and reports.
const KEPT_FOR_MS: u64 = 60_000;

/// Writes outcomes until the queue is closed and all is written.
pub(crate) async fn settle(core: Arc<Core>, mut events: mpsc::Receiver<Event>) {
    let (mut batch, mut waiting, mut count) = (Vec::new(), BTreeMap::<Shard, Vec<Event>>::new(), 0);
    let (mut writers, mut busy, mut is_ended) = (JoinSet::new(), BTreeSet::new(), false);
    loop {
        let free: Vec<Shard> = waiting.keys().filter(|shard| !busy.contains(*shard)).copied().collect();
        for shard in free {
            if let Some(events) = waiting.remove(&shard) {
                count -= events.len();
                busy.insert(shard);
                writers.spawn(write(Arc::clone(&core), shard, events));
            }
        }
        tokio::select! {
            Some(ended) = writers.join_next() => match ended {
                Ok(shard) => drop(busy.remove(&shard)),
                Err(error) => {
                    tracing::error!(%error, "outcomes of runs were not written");
                    // Nobody says whose they were: whoever is busy is waited for no longer.
                    busy.clear();
                }
            },
            taken = events.recv_many(&mut batch, SETTLE_MAX), if !is_ended && count < WAITING_MAX => {
                is_ended = taken == 0;
                for (shard, more) in by_shard(&core, std::mem::take(&mut batch)) {
                    count += more.len();
                    waiting.entry(shard).or_default().extend(more);
                }
            }
            else => return,
        }
    }
}

/// Writes the outcomes of one shard, again and again where the store does not answer.
async fn write(core: Arc<Core>, shard: Shard, mut events: Vec<Event>) -> Shard {
    let began_ns = core.clock.monotonic_ns();
    loop {
        let mut failed = Vec::new();
        for (event, became) in events.iter().zip(core.happened(shard, events.clone()).await) {
            if let Became::Failed(error) = became {
                core.store_failed("the outcome of a run cannot be written now", &error);
                failed.push(event.clone());
            }
        }
        let waited_ms = core.clock.monotonic_ns().saturating_sub(began_ns) / 1_000_000;
        if failed.is_empty() || waited_ms > KEPT_FOR_MS {
            return shard;
        }
        events = failed;
        tokio::time::sleep(RETRY_AFTER).await;
    }
}
