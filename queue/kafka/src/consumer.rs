//! A member of a group, as the caller sees it. Only the thread ([`super::thread`]) uses librdkafka.

use super::committer::Committer;
use super::shared::Shared;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use windfall_contract::broker::{Commit, CommitError, Consumer, Epoch, Fetch, PollError, Polled};

/// How long leaving the group may take: librdkafka waits 5 s for the broker's answer.
const LEAVE: Duration = Duration::from_secs(6);

pub(super) struct KafkaConsumer {
    pub(super) shared: Arc<Shared>,
    pub(super) committer: Committer,
    pub(super) request_timeout: Duration,
    pub(super) may_delete_unread: bool,
    /// Receives when the thread has left the group.
    pub(super) left: Option<oneshot::Receiver<()>>,
    /// The member's number; when it is dropped, this process may use the number again.
    pub(super) _member: super::Membership,
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        let until = Instant::now() + fetch.wait;
        if self.shared.state.lock().begin_poll() {
            self.shared.ordered.notify_one();
        }
        loop {
            let (taken, has_room) = {
                let mut state = self.shared.state.lock();
                let was_full = !state.has_room();
                (state.take(fetch), was_full && state.has_room())
            };
            if has_room {
                self.shared.ordered.notify_one();
            }
            if let Some(result) = taken {
                return result;
            }
            if timeout_at(until, self.shared.arrived.notified()).await.is_err() {
                return Ok(Polled::default());
            }
        }
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError> {
        let counted = self.shared.state.lock().commits(commits);
        if counted.is_empty() {
            return Ok(());
        }
        let answer = self.committer.commit(counted)?;
        match timeout(self.request_timeout, answer).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(CommitError::Unavailable("the consumer was restarted meanwhile".into())),
            Err(_) => Err(CommitError::Unavailable("no answer in time".into())),
        }
    }

    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        self.shared.state.lock().pause(partition, epoch, paused);
        self.shared.ordered.notify_one();
    }

    fn partitions(&self) -> u32 {
        self.shared.state.lock().partitions
    }

    fn may_delete_unread(&self) -> bool {
        self.may_delete_unread
    }

    async fn close(mut self: Box<Self>) {
        self.end();
        if let Some(left) = self.left.take()
            && timeout(LEAVE, left).await.is_err()
        {
            tracing::warn!("kafka: the group was not left in time; the broker will notice");
        }
    }
}

impl KafkaConsumer {
    fn end(&self) {
        self.shared.state.lock().is_closing = true;
        self.shared.ordered.notify_one();
    }
}

impl Drop for KafkaConsumer {
    /// The thread leaves the group by itself; nobody waits for it here, which may be an async thread.
    fn drop(&mut self) {
        self.end();
    }
}
