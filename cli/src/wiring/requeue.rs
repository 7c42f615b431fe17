//! Where records go that a consumer requeues: the candidate queues of their route, through the fan-out.

use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_consumer::{Done, RequeueOutcome, RequeueRecord, RequeueSink};
use windfall_queue_virtual::{Fanout, PendingRecord, QueueId, Side, Undelivered};

/// How long a record is offered to its queues before it goes to the spill log.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requeues records by the routes in force.
pub struct RequeueToQueues {
    fanout: Arc<Fanout>,
    rules: LiveRules,
}

impl RequeueToQueues {
    /// To these queues.
    pub const fn new(fanout: Arc<Fanout>, rules: LiveRules) -> Self {
        Self { fanout, rules }
    }

    /// The candidate queues of a record; every queue where no route takes it, for it must stay somewhere.
    fn candidates(&self, record: &RequeueRecord) -> Vec<(QueueId, Side)> {
        let rules = self.rules.current();
        let names: Vec<&String> = match rules.route(&record.activity, &record.scene, &record.bonus_type) {
            Some(route) => route.requeue.iter().collect(),
            None => rules.queues.keys().collect(),
        };
        names
            .into_iter()
            .filter_map(|name| {
                let queue = self.fanout.queue(name)?;
                Some((queue, self.fanout.side(queue, record.first_user_id)?))
            })
            .collect()
    }
}

impl RequeueSink for RequeueToQueues {
    fn requeue(&self, record: RequeueRecord, done: Done) {
        let candidates = self.candidates(&record);
        self.fanout.submit(&candidates, Box::new(RequeueParcel { record, done }));
    }
}

struct RequeueParcel {
    record: RequeueRecord,
    done: Done,
}

impl PendingRecord for RequeueParcel {
    fn key(&self) -> &[u8] {
        &self.record.key
    }

    fn payload(&self) -> &[u8] {
        &self.record.payload
    }

    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn delivered(self: Box<Self>) {
        // I3: the original is finished by this call alone.
        (self.done)(RequeueOutcome::Stored);
    }

    fn undelivered(self: Box<Self>, _why: Undelivered) {
        (self.done)(RequeueOutcome::Refused);
    }
}
