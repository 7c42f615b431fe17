//! The queue of adds of a scheduler, on a virtual queue of its own.

mod signatures;

use super::parts::Brokers;
use super::signing::SigningKeys;
use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use signatures::SignedAdds;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_contract::rules::{Limit, Limits, Pacing, Queue, Ratio, Revocations, Rules, Topic};
use windfall_queue_virtual::{Fanout, FanoutOptions, PendingRecord, QueueId, Side, Undelivered};
use windfall_scheduler::{
    AddQueue, AddQueueOptions, AddQueueParts, AddSignatures, NotWritten, QueueTopic, QueueWriter, Tenants,
};

/// What the virtual queue is called.
const QUEUE: &str = "timers";

/// The queue of adds as the options have it.
#[derive(Debug, Clone)]
pub struct AddQueuePart {
    /// How it is written and read.
    pub options: AddQueueOptions,
    /// The topic that adds are written to.
    pub master: AddTopic,
    /// The topic that they are written to while the master's broker is away.
    pub backup: AddTopic,
    /// The process's own folder for it.
    pub folder: PathBuf,
}

/// A topic of the queue of adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddTopic {
    /// The broker's name.
    pub broker: String,
    /// The topic.
    pub topic: String,
    /// The partitions that it has at least.
    pub partitions: u32,
}

/// A running queue of adds, and what writes to it.
pub struct RunningAddQueue {
    /// The queue.
    pub queue: AddQueue,
    /// Writes to its topics.
    pub fanout: Arc<Fanout>,
}

impl RunningAddQueue {
    /// Starts it. Waits for no broker. Where there are signing keys, adds are signed and verified. // I12
    pub fn start(
        part: AddQueuePart,
        tenants: &Arc<Tenants>,
        store: &Arc<dyn SlotStore>,
        brokers: &Brokers,
        signing: Option<&SigningKeys>,
        clock: &Clock,
    ) -> Result<Self> {
        let AddQueuePart { options, master, backup, folder } = part;
        let topic = |at: &AddTopic| {
            let broker = brokers.get(&at.broker);
            let broker = broker
                .with_context(|| format!("the broker {} of the queue of adds is not open", at.broker))?;
            let (name, partitions) = (at.topic.clone(), at.partitions);
            Ok::<_, anyhow::Error>(QueueTopic { name, broker: Arc::clone(broker), partitions })
        };
        let topics = vec![topic(&master)?, topic(&backup)?];
        let fanout = fanout_options(options.write_timeout_ms);
        let fanout = Fanout::open(&rules(&master, &backup), brokers.clone(), fanout, clock.clone())
            .map(Arc::new)
            .context("the queue of adds cannot be opened")?;
        let id = fanout.queue(QUEUE).context("the queue of adds has no topics")?;
        let writer = Arc::new(FanoutWriter { fanout: Arc::clone(&fanout), queue: id });
        let queue = AddQueue::start(AddQueueParts {
            options,
            tenants: Arc::clone(tenants),
            store: Arc::clone(store),
            writer,
            signatures: signing.map(|keys| Arc::new(SignedAdds::new(keys.clone())) as Arc<dyn AddSignatures>),
            topics,
            folder,
            clock: clock.clone(),
        });
        Ok(Self { queue, fanout })
    }

    /// Ends it: what was taken is stored, what was given is written.
    pub async fn close(self, deadline: Duration) {
        self.queue.close(deadline / 2).await;
        let closing = tokio::task::spawn_blocking(move || self.fanout.close(deadline / 2));
        if let Err(error) = closing.await {
            tracing::error!(%error, "closing the topics of the queue of adds has panicked");
        }
    }
}

/// A master that does not answer has half of the time, so that the backup has the other half.
fn fanout_options(write_timeout_ms: u64) -> FanoutOptions {
    let default = FanoutOptions::default();
    let delivery_timeout_ms = (write_timeout_ms / 2).clamp(100, default.delivery_timeout_ms);
    FanoutOptions { delivery_timeout_ms, ..default }
}

/// A virtual queue as the live rules would have it; nothing but queue and topics is read of them.
fn rules(master: &AddTopic, backup: &AddTopic) -> Rules {
    let topic =
        |at: &AddTopic| (at.topic.clone(), Topic { broker: at.broker.clone(), partitions: at.partitions });
    let queue = Queue { master: master.topic.clone(), backup: backup.topic.clone(), ratio: Ratio::ALL };
    Rules {
        version: 1,
        bonus_types: Vec::new(),
        topics: [topic(master), topic(backup)].into(),
        draining: Vec::new(),
        queues: [(QUEUE.to_owned(), queue)].into(),
        routes: Vec::new(),
        limits: Limits { global: Limit { rate_per_s: 1, burst: 1 }, types: BTreeMap::new() },
        budgets: Vec::new(),
        caps: BTreeMap::new(),
        pacing: Pacing::default(),
        revocations: Revocations::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
    }
}

struct FanoutWriter {
    fanout: Arc<Fanout>,
    queue: QueueId,
}

#[async_trait]
impl QueueWriter for FanoutWriter {
    async fn write(&self, records: Vec<(Bytes, Bytes)>, timeout: Duration) -> Vec<Result<(), NotWritten>> {
        let submit = |(key, payload)| {
            let (done, written) = oneshot::channel();
            let pending = PendingAdd { key, payload, patience: timeout, done };
            self.fanout.submit(&[(self.queue, Side::Master)], Box::new(pending));
            written
        };
        let written: Vec<_> = records.into_iter().map(submit).collect();
        let mut answers = Vec::with_capacity(written.len());
        for written in written {
            // A record that was dropped may be in flight.
            let dropped = |_| Err(NotWritten::Unknown("its sender has ended".into()));
            answers.push(written.await.unwrap_or_else(dropped));
        }
        answers
    }
}

struct PendingAdd {
    key: Bytes,
    payload: Bytes,
    patience: Duration,
    done: oneshot::Sender<Result<(), NotWritten>>,
}

impl PendingRecord for PendingAdd {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.patience)
    }

    fn delivered(self: Box<Self>) {
        // A caller that has gone does not want its answer.
        self.done.send(Ok(())).ok();
    }

    fn undelivered(self: Box<Self>, why: Undelivered) {
        let what = why.to_string();
        let outcome = match why {
            Undelivered::Full | Undelivered::NoQueue | Undelivered::TooLarge => NotWritten::Refused(what),
            // A broker may have it whose answer got lost.
            Undelivered::Closed | Undelivered::PatienceOver => NotWritten::Unknown(what),
        };
        self.done.send(Err(outcome)).ok();
    }
}

#[cfg(test)]
mod tests;
