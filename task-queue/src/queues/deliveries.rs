//! Jobs on their way to a consumer.

use crate::gather::Gather;
use std::sync::Arc;
use windfall_contract::task_queue::{Lease, QueueName, TakenJob};

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

/// Jobs that were taken. Wherever they are dropped before somebody has claimed them, they are given back: their consumer
/// has gone.
pub(crate) struct Deliveries {
    jobs: Vec<Delivery>,
    giving: Arc<Giving>,
}

impl Deliveries {
    pub(super) fn new(jobs: Vec<Delivery>, giving: &Arc<Giving>) -> Self {
        Self { jobs, giving: Arc::clone(giving) }
    }

    pub(crate) fn jobs(&self) -> &[Delivery] {
        &self.jobs
    }

    pub(super) fn add(&mut self, mut others: Self) {
        self.jobs.append(&mut others.jobs);
    }

    /// The answer goes out now.
    pub(crate) fn claim(mut self) {
        self.jobs.clear();
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
