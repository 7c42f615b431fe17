//! Writes how attempts to send runs ended, as many together as have come meanwhile, each shard by itself: one that does not
//! answer holds up no other. What cannot be written now is put aside for a moment, so that it holds up nothing of its shard.

use crate::core::Core;
use crate::transition::{Became, Event, by_shard};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windfall_contract::due::Shard;
use windfall_contract::entries::EntryError;

/// Outcomes that wait in the queue.
pub(crate) const SETTLE_MAX: usize = 2_000;
/// Outcomes that wait for their shards; beyond it nothing more is taken from the queue.
const WAITING_MAX: usize = 20_000;
/// Outcomes that wait for one shard. What comes beyond it is found out by leases and reports.
const SHARD_MAX: usize = 5_000;
/// The wait after an outcome could not be written for the first time; it doubles, up to the longest one.
const AGAIN_FIRST_MS: u64 = 100;
const AGAIN_MOST_MS: u64 = 800;
/// How long an outcome is kept while the store does not answer. What happened to its run is found out by leases and reports.
const KEPT_FOR_MS: u64 = 60_000;

/// An outcome that waits to be written.
struct Pending {
    event: Event,
    since_ns: u64,
    not_before_ns: u64,
    tries: u32,
}

/// What waits for one shard.
#[derive(Default)]
struct Shelf {
    pending: Vec<Pending>,
    /// How many are being written.
    in_flight: usize,
}

/// Writes outcomes until the queue is closed and all is written.
pub(crate) async fn settle(core: Arc<Core>, mut events: mpsc::Receiver<Event>) {
    let (mut batch, mut shelves) = (Vec::new(), BTreeMap::<Shard, Shelf>::new());
    let (mut writers, mut is_ended) = (JoinSet::new(), false);
    loop {
        let now_ns = core.clock.monotonic_ns();
        for (shard, shelf) in &mut shelves {
            let due = shelf.take_due(now_ns);
            if !due.is_empty() {
                writers.spawn(write(Arc::clone(&core), *shard, due));
            }
        }
        let count: usize = shelves.values().map(Shelf::len).sum();
        let next_ns = shelves.values().filter_map(Shelf::next_ns).min();
        let pause = Duration::from_nanos(next_ns.unwrap_or(now_ns).saturating_sub(now_ns));
        tokio::select! {
            Some(ended) = writers.join_next() => match ended {
                Ok((shard, failed)) => {
                    let shelf: &mut Shelf = shelves.entry(shard).or_default();
                    shelf.in_flight = 0;
                    shelf.pending.extend(failed);
                    if shelf.pending.is_empty() {
                        shelves.remove(&shard);
                    }
                }
                // Its panics are caught, and nobody else ends it.
                Err(error) => tracing::error!(%error, "outcomes of runs were not written"),
            },
            taken = events.recv_many(&mut batch, SETTLE_MAX), if !is_ended && count < WAITING_MAX => {
                is_ended = taken == 0;
                for (shard, more) in by_shard(&core, std::mem::take(&mut batch)) {
                    shelves.entry(shard).or_default().add(&core, shard, more);
                }
            }
            // A timer may go off a little early.
            () = tokio::time::sleep(pause.max(Duration::from_millis(1))), if next_ns.is_some() => {}
            else => return,
        }
    }
}

impl Shelf {
    /// How many it holds, with those that are being written: they may come back.
    const fn len(&self) -> usize {
        self.pending.len() + self.in_flight
    }

    fn add(&mut self, core: &Core, shard: Shard, events: Vec<Event>) {
        let now_ns = core.clock.monotonic_ns();
        let room = SHARD_MAX.saturating_sub(self.len());
        let lost = events.len().saturating_sub(room);
        if lost > 0 {
            core.stats.store_failed.add(1);
            tracing::error!(shard = shard.0, lost, "outcomes of runs are left to leases and reports");
        }
        let pending = |event| Pending { event, since_ns: now_ns, not_before_ns: now_ns, tries: 0 };
        self.pending.extend(events.into_iter().take(room).map(pending));
    }

    /// What is to be written now; the shelf is busy until that has ended.
    fn take_due(&mut self, now_ns: u64) -> Vec<Pending> {
        if self.in_flight > 0 {
            return Vec::new();
        }
        let (due, held) =
            std::mem::take(&mut self.pending).into_iter().partition(|one| one.not_before_ns <= now_ns);
        self.pending = held;
        let due: Vec<Pending> = due;
        self.in_flight = due.len();
        due
    }

    fn next_ns(&self) -> Option<u64> {
        self.pending.iter().filter(|_| self.in_flight == 0).map(|one| one.not_before_ns).min()
    }
}

/// Writes outcomes of one shard once: those that may be written later.
async fn write(core: Arc<Core>, shard: Shard, pending: Vec<Pending>) -> (Shard, Vec<Pending>) {
    let (pending, became) = written(&core, shard, pending).await;
    let failed = became.iter().find_map(|became| match became {
        Became::Failed(error) => Some(error.clone()),
        Became::Written(_) | Became::Stays => None,
    });
    if let Some(error) = failed {
        core.store_failed("outcomes of runs cannot be written now", &error);
    }
    let now_ns = core.clock.monotonic_ns();
    let again = |(mut one, became): (Pending, Became)| {
        let Became::Failed(error) = became else { return None };
        let waited_ms = now_ns.saturating_sub(one.since_ns) / 1_000_000;
        if matches!(error, EntryError::Unusable(_)) || waited_ms > KEPT_FOR_MS {
            tracing::error!(run = one.event.number.0, %error, "the outcome of a run is left to leases and reports");
            return None;
        }
        let wait_ms = AGAIN_MOST_MS.min(AGAIN_FIRST_MS << one.tries.min(10));
        one.not_before_ns = now_ns.saturating_add(wait_ms * 1_000_000);
        one.tries += 1;
        Some(one)
    };
    (shard, pending.into_iter().zip(became).filter_map(again).collect())
}

/// Writes outcomes of one shard, all together; where that ends by a panic, one by one, so that only the one to blame is lost.
async fn written(core: &Core, shard: Shard, pending: Vec<Pending>) -> (Vec<Pending>, Vec<Became>) {
    let events = pending.iter().map(|one| one.event.clone()).collect();
    if let Ok(became) = AssertUnwindSafe(core.happened(shard, events)).catch_unwind().await {
        return (pending, became);
    }
    let (mut left, mut all) = (Vec::with_capacity(pending.len()), Vec::with_capacity(pending.len()));
    for one in pending {
        match AssertUnwindSafe(core.happened(shard, vec![one.event.clone()])).catch_unwind().await {
            Ok(became) => {
                all.extend(became);
                left.push(one);
            }
            Err(_) => {
                core.stats.panics.add(1);
                let run = one.event.number.0;
                tracing::error!(
                    run,
                    "what writes the outcome of a run has panicked: it is left to leases and reports"
                );
            }
        }
    }
    (left, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobsOptions;
    use crate::runs::RunNumber;
    use crate::testing::Fleet;
    use crate::transition::Happened;

    #[tokio::test(start_paused = true)]
    async fn what_is_being_written_counts_as_waiting() {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        let mut shelf = Shelf::default();
        let add = |shelf: &mut Shelf, count: usize| {
            let event = Event { number: RunNumber(1_024), happened: Happened::Woken, read: None };
            shelf.add(fleet.core(), Shard(0), vec![event; count]);
        };
        add(&mut shelf, SHARD_MAX - 1);
        let writing = shelf.take_due(fleet.clock.monotonic_ns());
        assert_eq!((writing.len(), shelf.pending.len(), shelf.len()), (SHARD_MAX - 1, 0, SHARD_MAX - 1));
        add(&mut shelf, 10);
        assert_eq!((shelf.pending.len(), shelf.len()), (1, SHARD_MAX));
    }
}
