//! The virtual queues of a process: opened by the rules in force, kept at them, and how far their consumers are.

use super::GROUP;
use super::background::{Background, Tasks};
use super::parts::Brokers;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Lag;
use windfall_contract::rules::Rules;
use windfall_queue_virtual::{Fanout, FanoutOptions};

/// The pause between two attempts to take over the same rules.
const RETRY: Duration = Duration::from_secs(1);
/// A broker that takes longer to say how far a group is counts as silent.
const LAG_PATIENCE: Duration = Duration::from_secs(3);

/// Opens the queues of the rules in force. Waits for brokers.
pub fn open(rules: &LiveRules, brokers: &Brokers, clock: &Clock) -> Result<Arc<Fanout>> {
    block_in_place(|| {
        Fanout::open(&rules.current(), brokers.clone(), FanoutOptions::default(), clock.clone())
    })
    .map(Arc::new)
    .context("the queues cannot be opened")
}

/// How far the group is in each topic of the rules; `None` where the broker does not say just now.
pub async fn lag(rules: &Rules, brokers: &Brokers) -> BTreeMap<String, Option<Lag>> {
    let mut found = BTreeMap::new();
    for (name, topic) in &rules.topics {
        if let Some(broker) = brokers.get(&topic.broker) {
            let answered = tokio::time::timeout(LAG_PATIENCE, broker.lag(name, GROUP)).await;
            found.insert(name.clone(), answered.ok().and_then(Result::ok));
        }
    }
    found
}

/// Takes over new rules where no SDK does: queues, ratios and topics. Without it a process would go on writing to
/// topics that nobody reads any more.
pub fn follow(tasks: &Tasks, rules: &LiveRules, fanout: Arc<Fanout>) -> Background {
    let rules = rules.clone();
    tasks.spawn("queues", move || keep_applied(rules.clone(), Arc::clone(&fanout)))
}

async fn keep_applied(rules: LiveRules, fanout: Arc<Fanout>) {
    let mut changes = rules.subscribe();
    loop {
        let now = Arc::clone(&changes.borrow_and_update());
        let version = now.version;
        let own = Arc::clone(&fanout);
        // Opening a topic may wait for its broker.
        let taken = tokio::task::spawn_blocking(move || own.apply(&now)).await;
        let refused = match taken {
            Ok(Ok(())) => {
                if changes.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
            Err(ended) => ended.to_string(),
        };
        tracing::warn!(refused, version, "rules not taken over yet; trying again");
        // Sooner, if there are others by then.
        tokio::time::timeout(RETRY, changes.changed()).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::dev;
    use windfall_contract::broker::Broker;
    use windfall_edge::Health;
    use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_queue_that_new_rules_bring_is_open_without_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let broker = EmbeddedBroker::open(&folder.path().join(name), &EmbeddedOptions::default());
            (name.to_owned(), broker.unwrap() as Arc<dyn Broker>)
        };
        let brokers: Brokers = ["a", "b"].map(open).into();
        let (rules, applier) =
            LiveRules::adjustable(windfall_config::parse_rules(dev::RULES, None).unwrap(), None);
        let fanout = Fanout::open(&rules.current(), brokers, FanoutOptions::default(), Clock::system());
        let fanout = Arc::new(fanout.unwrap());
        let following = follow(&Tasks::new(Health::new()), &rules, Arc::clone(&fanout));
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
