//! The producer's loop: batches, several under way at once.

use super::producer::{Shared, Work};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;
use windfall_rocketmq::Client;

/// Ends when it is aborted; then what is under way is dropped, and `close` has reported it.
pub(super) async fn run(shared: Arc<Shared>, client: Arc<Client>, topic: String) {
    let mut flying = JoinSet::new();
    loop {
        while flying.try_join_next().is_some() {}
        while flying.len() >= shared.options.batches_in_flight {
            flying.join_next().await;
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
