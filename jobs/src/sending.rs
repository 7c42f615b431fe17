//! Sends runs to executors and targets, side by side, within a bound, and writes how that went.

use crate::calling::{put_off_one, ready, to_executor, to_target};
use crate::core::Core;
use crate::outbox::{Queued, Tickets};
use crate::runs::LEASE_MS;
use crate::settling::{SETTLE_MAX, settle};
use crate::transition::Event;
use crate::waiting::{Destinations, Place, Waiting, Work, tickets};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Runs that are taken from the queue at once.
const BATCH_MAX: usize = 256;
/// A run that has waited here for so long is put off: it was not sent, and that is written well before its lease is over.
const WAIT_MAX_MS: u64 = LEASE_MS / 2;
/// How often it is looked for runs that have waited too long.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where it is said how runs were sent.
pub(crate) type Settling = mpsc::Sender<Event>;

/// Sends what comes through the queue until it is to close, then what it still has, and waits for all calls.
pub(crate) async fn run(core: Arc<Core>, mut queue: Tickets, closing: CancellationToken) {
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    // In a set, so that it ends with this task.
    let mut settler = JoinSet::new();
    settler.spawn(settle(Arc::clone(&core), settled));
    let calls = Arc::new(Semaphore::new(core.options.calls_max));
    let mut tasks = JoinSet::<Option<Place>>::new();
    let (mut batch, mut waiting) = (Vec::new(), Waiting::default());
    let mut open = Destinations::new(core.options.calls_max);
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_ended = false;
    while !is_ended || waiting.len() > 0 {
        tokio::select! {
            biased;
            () = closing.cancelled(), if !is_ended && !queue.is_closed() => {
                core.outbox.close();
                queue.close();
            }
            Some(ended) = tasks.join_next() => match ended {
                Ok(destination) => destination.iter().for_each(|destination| waiting.release(destination)),
                // Panics of calls are caught, and nobody else ends them.
                Err(error) => tracing::error!(%error, "the sending of a run has ended without an outcome"),
            },
            _ = looks.tick() => {
                let old = take_old(&core, &mut waiting);
                if !old.is_empty() {
                    let settling = settling.clone();
                    tasks.spawn(async move {
                        put_off(old, &settling).await;
                        None
                    });
                }
            }
            // All that comes has room.
            taken = queue.recv_many(&mut batch, BATCH_MAX), if !is_ended => {
                is_ended = taken == 0;
                waiting.push(batch.drain(..));
            }
            Ok(permit) = Arc::clone(&calls).acquire_owned(), if waiting.has_ready() => {
                let Some(work) = waiting.pop() else { continue };
                let destination = work.destination();
                match open.take(destination.clone()) {
                    Some(place) => {
                        let (core, settling) = (Arc::clone(&core), settling.clone());
                        tasks.spawn(async move {
                            // Also after a panic, whoever waits for a place at the destination is to have it.
                            if AssertUnwindSafe(go(work, &core, &settling)).catch_unwind().await.is_err() {
                                // The run's lease ends, and its sending is counted: it is not repeated for ever.
                                core.stats.panics.add(1);
                                tracing::error!("the sending of a run has panicked");
                            }
                            drop((place, permit));
                            Some(destination)
                        });
                    }
                    None => waiting.hold(destination, work),
                }
            }
        }
        core.stats.waiting.set(u64::try_from(queue.len() + waiting.len()).unwrap_or(u64::MAX));
    }
    while tasks.join_next().await.is_some() {}
    drop(settling);
    while let Some(ended) = settler.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "what was sent of jobs' runs cannot be written any more");
        }
    }
}

fn take_old(core: &Core, waiting: &mut Waiting) -> Vec<Queued> {
    let before_ns = core.clock.monotonic_ns().checked_sub(WAIT_MAX_MS * 1_000_000);
    before_ns.map_or_else(Vec::new, |before_ns| waiting.take_old(before_ns))
}

/// Their room is given back when they are on their way to be written: so no more come than can be put off.
async fn put_off(queued: Vec<Queued>, settling: &Settling) {
    for Queued { ticket, .. } in &queued {
        put_off_one(settling, ticket, "it has waited too long for its turn").await;
    }
}

async fn go(work: Work, core: &Core, settling: &Settling) {
    match work {
        Work::Executor(queued, app, handler) => {
            for ticket in ready(core, tickets(vec![*queued]), settling).await {
                to_executor(core, ticket, app.clone(), &handler, settling).await;
            }
        }
        Work::Target(tenant, name, queued) => {
            let tickets = ready(core, tickets(queued), settling).await;
            if !tickets.is_empty() {
                to_target(core, (tenant, name), tickets, settling).await;
            }
        }
    }
}
