//! The producer's loop: batches, several in flight at once.

use super::pending::{PendingRecords, Work};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{JoinError, JoinSet};
use windfall_rocketmq_wire::Client;

/// Ends when it is aborted; then what is in flight is dropped, and `close` has reported it.
pub(super) async fn run(pending: Arc<PendingRecords>, client: Arc<Client>, topic: String) {
    let mut batches = JoinSet::new();
    loop {
        while let Some(ended) = batches.try_join_next() {
            check(ended, &topic);
        }
        while batches.len() >= pending.options.batches_in_flight
            && let Some(ended) = batches.join_next().await
        {
            check(ended, &topic);
        }
        match pending.next(Instant::now()) {
            Work::Send(number, messages) => {
                let (pending, client, topic) = (Arc::clone(&pending), Arc::clone(&client), topic.clone());
                batches.spawn(async move {
                    let answer = client.send_batch(&topic, messages).await;
                    pending.answered(number, answer);
                });
            }
            Work::WaitForRecords => pending.filled.notified().await,
            Work::WaitUntil(due) => {
                tokio::select! {
                    () = pending.filled.notified() => {}
                    () = tokio::time::sleep_until(due.into()) => {}
                }
            }
        }
    }
}

/// A batch fails only where its sink panics.
fn check(ended: Result<(), JoinError>, topic: &str) {
    if let Err(died) = ended {
        tracing::error!(topic, %died, "the reports of a batch came to an end half-way");
    }
}
