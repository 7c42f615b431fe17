//! The producer's loop: batches, several under way at once.

use super::producer::{Shared, Work};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{JoinError, JoinSet};
use windfall_rocketmq_wire::Client;

/// Ends when it is aborted; then what is under way is dropped, and `close` has reported it.
pub(super) async fn run(shared: Arc<Shared>, client: Arc<Client>, topic: String) {
    let mut flying = JoinSet::new();
    loop {
        while let Some(landed) = flying.try_join_next() {
            look(landed, &topic);
        }
        while flying.len() >= shared.options.batches_in_flight
            && let Some(landed) = flying.join_next().await
        {
            look(landed, &topic);
        }
        match shared.next(Instant::now()) {
            Work::Send(number, messages) => {
                let (shared, client, topic) = (Arc::clone(&shared), Arc::clone(&client), topic.clone());
                flying.spawn(async move {
                    let answer = client.send_batch(&topic, messages).await;
                    shared.answered(number, answer);
                });
            }
            Work::WaitForRecords => shared.filled.notified().await,
            Work::WaitUntil(due) => {
                tokio::select! {
                    () = shared.filled.notified() => {}
                    () = tokio::time::sleep_until(due.into()) => {}
                }
            }
        }
    }
}

/// A batch dies only of its sink.
fn look(landed: Result<(), JoinError>, topic: &str) {
    if let Err(died) = landed {
        tracing::error!(topic, %died, "the reports of a batch came to an end half-way");
    }
}
