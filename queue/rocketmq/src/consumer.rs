//! The driver of a consumer: a member of a group, as the contract defines it.

use super::engine::Engine;
use super::member::Member;
use super::registry::Seat;
use super::tasks;
use async_trait::async_trait;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use windfall_contract::broker::{
    Acks, Change, Commit, CommitError, Consumer, Epoch, Fetch, PollError, Polled, Position,
};

pub(super) struct RocketConsumer {
    member: Arc<Member>,
    engine: Arc<Engine>,
    instances: u32,
    announced: bool,
    /// The member's tasks; `None` once it leaves.
    tasks: Option<Tasks>,
}

struct Tasks {
    receiving: Vec<JoinHandle<()>>,
    extending: AbortHandle,
    seat: Seat,
}

impl RocketConsumer {
    pub(super) fn start(engine: Arc<Engine>, member: Arc<Member>, seat: Seat) -> Self {
        let streams = 0..member.options.receive_streams;
        let receiving =
            streams.map(|stream| engine.spawn(tasks::receive(Arc::clone(&member), stream))).collect();
        let extending = engine.spawn(tasks::extend(Arc::clone(&member))).abort_handle();
        let instances = member.options.instances;
        let tasks = Some(Tasks { receiving, extending, seat });
        Self { member, engine, instances, announced: false, tasks }
    }

    /// Leaves in the background; the receiver hears when everything held has been given back.
    fn leave(&mut self) -> Option<oneshot::Receiver<()>> {
        let Tasks { receiving, extending, mut seat } = self.tasks.take()?;
        let (given_back, receiver) = oneshot::channel();
        self.member.stop();
        let member = Arc::clone(&self.member);
        // The threads stay until this is done, even if the broker's handle goes first.
        let engine = Arc::clone(&self.engine);
        let leaving = async move {
            let mut count = tasks::give_back(&member).await;
            // Nobody listens where the consumer was dropped.
            given_back.send(()).ok();
            for stream in receiving {
                // It ends with the request that it is in; what that still brings is given back too.
                stream.await.ok();
            }
            count += tasks::give_back(&member).await;
            // Only now: cut off half-way, an extension would leave its record neither ours nor anybody's.
            extending.abort();
            if let Err(error) = member.client.close().await {
                tracing::debug!(topic = member.topic, %error, "left without a word");
            }
            seat.leave(count);
            drop(engine);
        };
        // Owned by the engine, and bounded by the deadlines of its calls.
        drop(self.engine.spawn(leaving));
        Some(receiver)
    }
}

#[async_trait]
impl Consumer for RocketConsumer {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        self.member.polled(fetch);
        let mut polled = Polled::default();
        if !self.announced {
            self.announced = true;
            let (partition, epoch) = (self.member.partition, self.member.epoch);
            polled.changes.push(Change::Assigned { partition, epoch, next_offset: 0 });
            // Nothing may be awaited between this and the return: a dropped poll has taken nothing.
            return Ok(polled);
        }
        let end = Instant::now() + fetch.wait;
        let sleep = {
            // The caller's runtime need not have a clock.
            let _clock = self.engine.handle().enter();
            tokio::time::sleep_until(end)
        };
        tokio::pin!(sleep);
        loop {
            let arrived = self.member.arrived.notified();
            tokio::pin!(arrived);
            // From here on a wake-up is not missed.
            arrived.as_mut().enable();
            {
                let mut state = self.member.state.lock();
                if !state.paused {
                    polled.records = state.held.take(fetch, self.member.partition, self.member.epoch);
                }
                if !polled.records.is_empty() {
                    break;
                }
                if Instant::now() >= end {
                    let trouble = state.trouble.clone().filter(|_| fetch.max_records > 0 && !state.paused);
                    return trouble.map_or(Ok(polled), |what| Err(PollError::Unavailable(what)));
                }
            }
            tokio::select! {
                () = arrived => {}
                () = &mut sleep => {}
            }
        }
        // There is room for more.
        self.member.wanted.notify_waiters();
        Ok(polled)
    }

    async fn commit(&mut self, _commits: &[Commit]) -> Result<(), CommitError> {
        Ok(())
    }

    fn acks(&self) -> Acks {
        Acks::Each
    }

    async fn finish(&mut self, records: &[Position]) -> Result<(), CommitError> {
        let ours = |record: &&Position| {
            record.partition == self.member.partition && record.epoch == self.member.epoch
        };
        let offsets: Vec<u64> = records.iter().filter(ours).map(|record| record.offset).collect();
        if offsets.is_empty() {
            return Ok(());
        }
        // A task of its own, bounded by its deadline: dropped half-way, it would leave records neither extended nor
        // acknowledged.
        let finishing = self.engine.spawn(tasks::finish(Arc::clone(&self.member), offsets));
        finishing.await.unwrap_or_else(|died| Err(CommitError::Unavailable(died.to_string())))
    }

    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        if partition == self.member.partition && epoch == self.member.epoch {
            self.member.state.lock().paused = paused;
            self.member.wanted.notify_waiters();
        }
    }

    fn partitions(&self) -> u32 {
        self.instances
    }

    async fn close(mut self: Box<Self>) {
        if let Some(given_back) = self.leave() {
            // An error means that the threads are gone; then nothing is left to wait for.
            given_back.await.ok();
        }
    }
}

impl Drop for RocketConsumer {
    fn drop(&mut self) {
        // After `close` there is nothing left to do.
        drop(self.leave());
    }
}
