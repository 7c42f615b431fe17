//! Jobs on their way to a consumer.

use crate::gather::Gather;
use crate::room::{Room, Taken};
use std::sync::Arc;
use windfall_contract::task_queue::{Lease, QueueName, TAKE_BYTES_MAX, TakenJob};

/// What gives jobs back.
pub(super) type Giving = Gather<Lease, ()>;

/// A job that is on its way to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) queue: QueueName,
    pub(crate) job: TakenJob,
    /// The store's clock when it was taken.
    pub(crate) now_ms: u64,
    /// When the lease ends that was taken with it.
    pub(super) end_ms: u64,
}

impl Delivery {
    /// About what it takes in an answer: its body in base64, and the rest.
    pub(crate) fn answer_bytes(&self) -> usize {
        300 + self.job.body.len() * 4 / 3
    }
}

/// Jobs that were taken. Wherever they are dropped before somebody has claimed them, they are given back: their consumer
/// has gone.
pub(crate) struct Deliveries {
    jobs: Vec<Delivery>,
    giving: Arc<Giving>,
    /// The memory of the answer that they will be.
    room: Taken,
}

impl Deliveries {
    /// Takes of the room also where there is none: they are leased already.
    pub(super) fn new(jobs: Vec<Delivery>, giving: &Arc<Giving>, room: &Arc<Room>) -> Self {
        let mut room = room.begin();
        room.grow(jobs.iter().map(Delivery::answer_bytes).sum());
        Self { jobs, giving: Arc::clone(giving), room }
    }

    pub(crate) fn jobs(&self) -> &[Delivery] {
        &self.jobs
    }

    /// Whether the consumer gets no more with this call: it wanted so many, or the bodies are as long as an answer may be.
    pub(super) fn is_enough(&self, count: usize) -> bool {
        let bytes: usize = self.jobs.iter().map(|delivery| delivery.job.body.len()).sum();
        self.jobs.len() >= count || bytes >= TAKE_BYTES_MAX
    }

    pub(super) fn add(&mut self, mut others: Self) {
        self.jobs.append(&mut others.jobs);
        self.room.absorb(&mut others.room);
    }

    /// The answer goes out now; what is returned is to live as long as it is in memory.
    pub(super) fn claim(mut self) -> Taken {
        self.jobs.clear();
        self.room.split_off()
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        for Delivery { queue, job, end_ms, .. } in self.jobs.drain(..) {
            let lease = Lease { queue, id: job.id, end_ms };
            // A store that is too busy gets it back when its lease ends.
            self.giving.send(Some(job.id.shard()), lease, 64).ok();
        }
    }
}
