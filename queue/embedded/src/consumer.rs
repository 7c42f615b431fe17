//! A member of a group: changes from the group, records from the read-ahead.

use super::group::{Group, MemberId};
use super::prefetch::Prefetch;
use super::reader;
use super::state::OpenBroker;
use super::topic::Topic;
use async_trait::async_trait;
use std::sync::Arc;
use std::thread::JoinHandle;
use windfall_contract::broker::{
    Change, Commit, CommitError, Consumer, Epoch, Fetch, OpenError, PollError, Polled,
};

/// A consumer as callers hold it. Dropping it leaves the group.
pub(super) struct EmbeddedConsumer {
    broker: Arc<OpenBroker>,
    topic: Arc<Topic>,
    group: Arc<Group>,
    member: MemberId,
    prefetch: Arc<Prefetch>,
    reader: Option<JoinHandle<()>>,
}

impl EmbeddedConsumer {
    pub(super) fn join(
        broker: Arc<OpenBroker>,
        topic: Arc<Topic>,
        group: Arc<Group>,
    ) -> Result<Self, OpenError> {
        let state = &broker.state;
        let prefetch = Arc::new(Prefetch::new(state.options.prefetch_bytes));
        let reader = reader::start(state.clone(), topic.clone(), prefetch.clone()).map_err(|error| {
            OpenError::Io { place: state.place.clone(), what: format!("no reader thread: {error}") }
        })?;
        let member = group.join(prefetch.clone());
        Ok(Self { broker, topic, group, member, prefetch, reader: Some(reader) })
    }

    /// Gathers what is there now, without waiting. Nothing is lost if the caller's future is dropped, since this
    /// returns at once.
    fn gather(&self, fetch: Fetch) -> Result<Option<Polled>, PollError> {
        let changes = self.group.take_changes(self.member);
        for change in &changes {
            match *change {
                Change::Assigned { partition, epoch, next_offset } => {
                    self.prefetch.add(partition, epoch, next_offset, self.group.finished(partition));
                }
                Change::Passed { .. } => {}
                Change::Revoked { partition, .. } => self.prefetch.remove(partition),
            }
        }
        if !changes.is_empty() {
            // Nothing was read yet of what is new, and a failure can wait for the next poll.
            return Ok(Some(Polled { changes, records: Vec::new() }));
        }
        if let Some(loss) = self.group.take_loss(self.member) {
            return Err(loss);
        }
        let polled = self.prefetch.take(fetch)?;
        Ok((!polled.records.is_empty() || !polled.changes.is_empty()).then_some(polled))
    }
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        self.group.release(self.member);
        let wait = tokio::time::sleep(fetch.wait);
        tokio::pin!(wait);
        loop {
            let notified = self.prefetch.ready.notified();
            if let Some(polled) = self.gather(fetch)? {
                return Ok(polled);
            }
            tokio::select! {
                () = notified => {}
                () = &mut wait => return Ok(self.gather(fetch)?.unwrap_or_default()),
            }
        }
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError> {
        // I3
        let moved = self.group.commit(self.member, commits, &self.topic.ends());
        let write_queue = &self.broker.state.write_queue;
        write_queue.commit(self.topic.id, &self.group, &moved).await.map_err(CommitError::Unavailable)
    }

    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        self.prefetch.pause(partition, epoch, paused);
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.topic.count()).unwrap_or(u32::MAX)
    }

    async fn close(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        self.group.leave(self.member);
        self.prefetch.close();
        if let Some(reader) = self.reader.take()
            && reader.join().is_err()
        {
            tracing::error!("a queue reader thread panicked");
        }
    }
}
