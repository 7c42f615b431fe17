//! The calls of the store, as they are gathered.

use super::deliveries::{Deliveries, Delivery, Giving};
use crate::gather::Call;
use crate::metrics::QueueCounters;
use crate::room::Room;
use std::sync::Arc;
use windfall_contract::task_queue::{JobId, JobStore, Lease, NewJobs, QueueCounts, QueueName, Take};

/// What has to live as long as a piece is on its way to the store.
pub(crate) type Kept = Box<dyn Send>;

/// Jobs to publish.
pub(super) struct NewPiece {
    pub(super) jobs: NewJobs,
    pub(super) kept: Kept,
}

/// What was taken for one consumer.
pub(super) struct TakenPiece {
    pub(super) deliveries: Deliveries,
    pub(super) is_cut: bool,
    /// Nothing was asked for: there is no memory for the answers.
    pub(super) is_refused: bool,
}

/// Merges what differs in the bodies alone, so that a store writes it at once.
pub(super) fn publishing(store: &Arc<dyn JobStore>) -> Call<NewPiece, Vec<JobId>> {
    let store = Arc::clone(store);
    Box::new(move |shard, items: Vec<NewPiece>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let mut groups: Vec<NewJobs> = Vec::new();
            let mut places = Vec::with_capacity(items.len());
            // Dropped when the store has answered: until then the bodies are in memory.
            let mut kept: Vec<Kept> = Vec::with_capacity(items.len());
            for NewPiece { jobs: mut item, kept: own } in items {
                kept.push(own);
                let same = |group: &NewJobs| {
                    group.queue == item.queue
                        && (group.delay_s, group.ttl_s, group.tries) == (item.delay_s, item.ttl_s, item.tries)
                        && group.is_versioned == item.is_versioned
                        && group.attributes == item.attributes
                };
                // Those that come together are mostly alike; looking further would cost more than it saves.
                let alike = groups.iter().rposition(same).filter(|at| groups.len() - at <= 8);
                let count = item.bodies.len();
                let at = match alike {
                    Some(at) => {
                        groups[at].bodies.append(&mut item.bodies);
                        at
                    }
                    None => {
                        groups.push(item);
                        groups.len() - 1
                    }
                };
                places.push((at, count));
            }
            let ids = store.publish(shard, &groups).await;
            drop(groups);
            drop(kept);
            let ids = ids?;
            let mut ids: Vec<_> = ids.into_iter().map(Vec::into_iter).collect();
            let answer = |(at, count): (usize, usize)| {
                let ids = ids.get_mut(at).map(|ids| ids.by_ref().take(count).collect());
                ids.unwrap_or_default()
            };
            Ok(places.into_iter().map(answer).collect())
        })
    })
}

/// Asks for nothing while the room for answers is full. A shard has one call at a time, so that what is in memory beyond the
/// room is what one call of each shard takes, however many consumers ask.
pub(super) fn taking(
    store: &Arc<dyn JobStore>,
    giving: &Arc<Giving>,
    room: &Arc<Room>,
    counters: &Arc<QueueCounters>,
) -> Call<Take, TakenPiece> {
    let (store, giving, room) = (Arc::clone(store), Arc::clone(giving), Arc::clone(room));
    let counters = Arc::clone(counters);
    Box::new(move |shard, items: Vec<Take>| {
        let (store, giving, room) = (Arc::clone(&store), Arc::clone(&giving), Arc::clone(&room));
        let counters = Arc::clone(&counters);
        Box::pin(async move {
            let piece = |jobs, is_cut, is_refused| {
                let deliveries = Deliveries::new(jobs, &giving, &room);
                TakenPiece { deliveries, is_cut, is_refused }
            };
            if room.is_full() {
                let refused: Vec<TakenPiece> = items.iter().map(|_| piece(Vec::new(), false, true)).collect();
                return Ok(refused);
            }
            let (now_ms, taken) = store.take(shard, &items).await?;
            counters.expired(taken.iter().map(|taken| taken.expired).sum());
            let pieces = items.into_iter().zip(taken).map(|(Take { queue, ttr_s, .. }, taken)| {
                let end_ms = Lease::end_ms(now_ms, ttr_s);
                let delivery = |job| Delivery { queue: queue.clone(), job, now_ms, end_ms };
                let deliveries = taken.jobs.into_iter().map(delivery).collect();
                piece(deliveries, taken.is_cut, false)
            });
            Ok(pieces.collect())
        })
    })
}

pub(super) fn removing(store: &Arc<dyn JobStore>) -> Call<(QueueName, JobId), bool> {
    let store = Arc::clone(store);
    Box::new(move |shard, jobs: Vec<(QueueName, JobId)>| {
        let store = Arc::clone(&store);
        Box::pin(async move { store.remove(shard, &jobs).await })
    })
}

pub(super) fn giving(store: &Arc<dyn JobStore>) -> Call<Lease, ()> {
    let store = Arc::clone(store);
    Box::new(move |shard, leases: Vec<Lease>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            store.give_back(shard, &leases).await?;
            Ok(vec![(); leases.len()])
        })
    })
}

pub(super) fn looking(store: &Arc<dyn JobStore>) -> Call<Vec<QueueName>, Vec<QueueCounts>> {
    let store = Arc::clone(store);
    Box::new(move |shard, pieces: Vec<Vec<QueueName>>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let lengths: Vec<usize> = pieces.iter().map(Vec::len).collect();
            let mut counts = store.look(shard, &pieces.concat()).await?.into_iter();
            Ok(lengths.into_iter().map(|length| counts.by_ref().take(length).collect()).collect())
        })
    })
}
