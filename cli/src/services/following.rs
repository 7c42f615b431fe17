//! Takes over new rules where no SDK does: queues, ratios and topics of the fan-out.

use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use windfall_config::LiveRules;
use windfall_queue_virtual::Fanout;

/// Between two attempts to take over the same rules.
const RETRY: Duration = Duration::from_secs(1);

/// Follows until it is dropped.
pub struct FollowRules(AbortHandle);

impl FollowRules {
    /// Starts following. Without it a process would go on writing to topics that nobody reads any more.
    pub fn start(rules: &LiveRules, fanout: Arc<Fanout>) -> Self {
        let mut changes = rules.subscribe();
        let task = tokio::spawn(async move {
            loop {
                let now = Arc::clone(&changes.borrow_and_update());
                let version = now.version;
                let own = Arc::clone(&fanout);
                // Opening a topic may wait for its broker.
                let taken = tokio::task::spawn_blocking(move || own.apply(&now)).await;
                let refused = match taken {
                    Ok(Ok(())) => {
                        if changes.changed().await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(panicked) => panicked.to_string(),
                };
                tracing::warn!(refused, version, "rules not taken over yet; trying again");
                // Sooner, if there are others by then.
                tokio::time::timeout(RETRY, changes.changed()).await.ok();
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for FollowRules {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::dev;
    use std::collections::BTreeMap;
    use windfall_contract::Clock;
    use windfall_contract::broker::Broker;
    use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
    use windfall_queue_virtual::FanoutOptions;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_queue_that_new_rules_bring_is_open_without_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let broker = EmbeddedBroker::open(&folder.path().join(name), &EmbeddedOptions::default());
            (name.to_owned(), broker.unwrap() as Arc<dyn Broker>)
        };
        let brokers: BTreeMap<_, _> = ["a", "b"].map(open).into();
        let (rules, applier) =
            LiveRules::adjustable(windfall_config::parse_rules(dev::RULES, None).unwrap(), None);
        let fanout = Fanout::open(&rules.current(), brokers, FanoutOptions::default(), Clock::system());
        let fanout = Arc::new(fanout.unwrap());
        let following = FollowRules::start(&rules, Arc::clone(&fanout));
        assert!(fanout.queue("late").is_none());

        let late = "[queues.late]\nmaster = \"cash-a\"\nbackup = \"cash-b\"\nratio = 90\n\n[[routes]]";
        let text = dev::RULES.replacen("version = 1", "version = 2", 1).replacen("[[routes]]", late, 1);
        applier.apply(text.as_bytes(), 1).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while fanout.queue("late").is_none() {
            assert!(std::time::Instant::now() < until, "the new queue is not open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(following);
        tokio::task::spawn_blocking(move || fanout.close(Duration::ZERO)).await.unwrap();
    }
}
