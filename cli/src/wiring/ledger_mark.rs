//! Keeps the ledger's mark while the process runs, and says in its health where the ledger went back in time.

use super::background::{Background, Tasks};
use crate::drivers::LedgerMark;
use std::sync::Arc;
use std::time::Duration;
use windfall_edge::{Health, Need};
use windfall_reward_service::{MarkKeeper, RewardHandle};

/// The pause between two looks at what is known of the mark.
const EVERY: Duration = Duration::from_millis(500);
/// How long the last mark of a process may take.
const LAST: Duration = Duration::from_secs(5);

/// The keeper of the mark, and the tasks that run it.
pub struct KeptMark {
    keeper: MarkKeeper,
    /// Keeps it until the process has granted what it had.
    keeping: Background,
}

impl KeptMark {
    /// Keeps the mark of this service's ledger. Returns it with the task that tells of it in the health.
    pub fn start(
        mark: LedgerMark,
        tasks: &Tasks,
        health: &Health,
        rewards: &RewardHandle,
    ) -> (Self, Background) {
        let LedgerMark { guard, stores, every_ms } = mark;
        let keeper = MarkKeeper::new(rewards.clone(), guard, stores, every_ms);
        let own = keeper.clone();
        let keeping = tasks.spawn("ledger's mark", move || own.clone().run());
        let part = Arc::new(health.part("ledger's mark", Need::Weak));
        let rewards = rewards.clone();
        let telling = tasks.spawn("looks at the ledger's mark", move || {
            let (part, rewards) = (Arc::clone(&part), rewards.clone());
            async move {
                loop {
                    match rewards.guard().map(|guard| (guard.state().behind, guard.stops_payouts())) {
                        Some((Some(behind), _)) => part.is_missing(format!("payouts are stopped: {behind}")),
                        Some((None, true)) => {
                            part.is_missing(
                                "payouts are stopped: a place of the ledger's mark could not be read yet"
                                    .to_owned(),
                            );
                        }
                        _ => part.is_there(),
                    }
                    tokio::time::sleep(EVERY).await;
                }
            }
        });
        (Self { keeper, keeping }, telling)
    }

    /// Makes the last mark, when nothing is granted any more: the next start finds all of it.
    pub async fn close(mut self) {
        self.keeping.end().await;
        match tokio::time::timeout(LAST, self.keeper.pass()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the last mark of the ledger was not made"),
            Err(_) => tracing::debug!("the last mark of the ledger took too long"),
        }
    }
}
