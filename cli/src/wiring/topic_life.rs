//! The lives of topics: active while queues name them, draining while the rules have them read, gone when nothing is
//! left.
//!
//! Which topics there are stands in the rules, in one document of one version for the whole fleet, so that a process
//! that starts reads the same ones as those that run. A process that saw a topic vanish from the rules reads it on by
//! itself until it is empty, and says so.

use super::topic_consumer::TopicKey;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::metrics::{Metric, MetricKind};

/// A topic counts as empty when nothing was left in it for so long: longer than every process takes to follow the
/// rules, and than a record is on its way from a sender that did not know them yet.
pub const EMPTY_FOR: Duration = Duration::from_secs(120);

/// The state of a topic in the rules, and what is left in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicLife {
    /// The rules write to it.
    Active,
    /// No process writes to it any more.
    Old {
        /// Whether the rules have it drained.
        is_named: bool,
        /// Records that are left; `None` until its broker says so.
        left: Option<u64>,
        /// Since when nothing is left.
        empty_since: Option<Instant>,
    },
}

impl TopicLife {
    /// Named by the rules as draining, and not looked at yet.
    pub const fn draining() -> Self {
        Self::Old { is_named: true, left: None, empty_since: None }
    }

    /// Whether nothing was left for long enough.
    pub fn is_empty(self, now: Instant) -> bool {
        matches!(self, Self::Old { empty_since: Some(since), .. } if now.duration_since(since) >= EMPTY_FOR)
    }
}

/// The lives of all topics that a process reads.
#[derive(Debug, Clone, Default)]
pub struct TopicLives(BTreeMap<TopicKey, TopicLife>);

impl TopicLives {
    /// Takes over what the rules say; the topics that they do not name any more stay as old ones.
    pub fn follow(&mut self, named: BTreeMap<TopicKey, TopicLife>) {
        for (key, life) in &mut self.0 {
            if named.contains_key(key) {
                continue;
            }
            let (left, empty_since) = match *life {
                TopicLife::Old { is_named: false, .. } => continue,
                TopicLife::Old { left, empty_since, .. } => (left, empty_since),
                TopicLife::Active => (None, None),
            };
            if empty_since.is_none() {
                tracing::error!(
                    topic = key.name,
                    broker = key.broker,
                    "the rules have forgotten a topic in which records may be left; this process reads it until it is \
                     empty, but none that starts now does: put it into [[draining]]"
                );
            }
            *life = TopicLife::Old { is_named: false, left, empty_since };
        }
        for (key, life) in named {
            match (self.0.get_mut(&key), life) {
                (Some(TopicLife::Old { is_named, .. }), TopicLife::Old { .. }) => *is_named = true,
                (Some(known), life) if *known == life => {}
                (known, life) => {
                    let (topic, broker) = (&key.name, &key.broker);
                    match (known, life) {
                        (None, TopicLife::Active) => tracing::info!(topic, broker, "a topic is read"),
                        (_, TopicLife::Active) => {
                            tracing::info!(topic, broker, "a topic is written to again")
                        }
                        (_, TopicLife::Old { .. }) => {
                            tracing::info!(topic, broker, "a topic drains: it is read until it is empty");
                        }
                    }
                    self.0.insert(key, life);
                }
            }
        }
    }

    /// Every topic.
    pub fn keys(&self) -> impl Iterator<Item = &TopicKey> {
        self.0.keys()
    }

    /// The draining topics.
    pub fn old(&self) -> impl Iterator<Item = &TopicKey> {
        self.0.iter().filter(|(_, life)| **life != TopicLife::Active).map(|(key, _)| key)
    }

    /// Notes what is left in a topic; `None`: its broker does not say, so it is not known to be empty.
    pub fn looked(&mut self, key: &TopicKey, found: Option<u64>, now: Instant) {
        let Some(TopicLife::Old { left, empty_since, .. }) = self.0.get_mut(key) else { return };
        let was_empty = empty_since.is_some_and(|since| now.duration_since(since) >= EMPTY_FOR);
        *left = found;
        match found {
            Some(0) => {
                let since = *empty_since.get_or_insert(now);
                if !was_empty && now.duration_since(since) >= EMPTY_FOR {
                    tracing::info!(
                        topic = key.name,
                        broker = key.broker,
                        "a topic has drained: nothing is left in it"
                    );
                }
            }
            _ => *empty_since = None,
        }
    }

    /// Takes out the topics that the rules do not name and in which nothing is left.
    pub fn take_gone(&mut self, now: Instant) -> Vec<TopicKey> {
        let is_gone =
            |life: &TopicLife| matches!(life, TopicLife::Old { is_named: false, .. }) && life.is_empty(now);
        let gone: Vec<_> =
            self.0.iter().filter(|(_, life)| is_gone(life)).map(|(key, _)| key.clone()).collect();
        for key in &gone {
            tracing::info!(topic = key.name, broker = key.broker, "a topic is gone: it is not read any more");
            self.0.remove(key);
        }
        gone
    }

    /// How metrics name a topic: by its name, and by its broker too where it is the old one of two.
    pub fn label(&self, key: &TopicKey) -> String {
        let is_old = self.0.get(key).is_some_and(|life| *life != TopicLife::Active);
        match is_old && self.0.keys().any(|other| other.name == key.name && other.broker != key.broker) {
            true => format!("{}@{}", key.name, key.broker),
            false => key.name.clone(),
        }
    }
}

/// The metrics of draining topics.
pub const METRICS: &[Metric<TopicLives>] = &[
    Metric {
        name: "windfall_draining_topic_records",
        help: "Records left in a topic that nobody writes to any more; one whose broker does not say is missing",
        kind: MetricKind::Gauge,
        labels: &["topic", "broker"],
        read: |lives, each| {
            for (key, life) in &lives.0 {
                if let TopicLife::Old { left: Some(left), .. } = life {
                    each(&[&key.name, &key.broker], *left);
                }
            }
        },
    },
    Metric {
        name: "windfall_draining_topic_named",
        help: "1 for a draining topic that the rules name, 0 for one that they have forgotten while it was read",
        kind: MetricKind::Gauge,
        labels: &["topic", "broker"],
        read: |lives, each| {
            for (key, life) in &lives.0 {
                if let TopicLife::Old { is_named, .. } = life {
                    each(&[&key.name, &key.broker], u64::from(*is_named));
                }
            }
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, broker: &str) -> TopicKey {
        TopicKey { broker: broker.to_owned(), name: name.to_owned() }
    }

    fn named(topics: &[(TopicKey, TopicLife)]) -> BTreeMap<TopicKey, TopicLife> {
        topics.iter().cloned().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_moved_is_read_on_the_old_broker_until_it_was_empty_for_long() {
        let (old, new) = (key("cash", "a"), key("cash", "b"));
        let mut lives = TopicLives::default();
        lives.follow(named(&[(old.clone(), TopicLife::Active)]));
        assert_eq!(lives.old().count(), 0);
        let moved = named(&[(new.clone(), TopicLife::Active), (old.clone(), TopicLife::draining())]);
        lives.follow(moved.clone());
        assert_eq!(lives.keys().count(), 2);
        assert_eq!((lives.label(&old), lives.label(&new)), ("cash@a".to_owned(), "cash".to_owned()));
        lives.looked(&old, Some(50_000), Instant::now());
        tokio::time::advance(EMPTY_FOR * 2).await;
        // It stays while the rules name it, whatever is left.
        lives.looked(&old, Some(0), Instant::now());
        tokio::time::advance(EMPTY_FOR).await;
        lives.looked(&old, Some(0), Instant::now());
        assert!(lives.0[&old].is_empty(Instant::now()) && lives.take_gone(Instant::now()).is_empty());
        // Somebody says that it is gone, and it is.
        lives.follow(named(&[(new.clone(), TopicLife::Active)]));
        assert_eq!(lives.take_gone(Instant::now()), [old]);
        assert_eq!(lives.keys().collect::<Vec<_>>(), [&new]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_the_rules_forget_is_read_while_anything_may_be_left() {
        let topic = key("cash", "a");
        let mut lives = TopicLives::default();
        lives.follow(named(&[(topic.clone(), TopicLife::Active)]));
        lives.follow(BTreeMap::new());
        for left in [Some(3), Some(0), None, Some(0)] {
            lives.looked(&topic, left, Instant::now());
            tokio::time::advance(EMPTY_FOR - Duration::from_secs(1)).await;
            assert!(lives.take_gone(Instant::now()).is_empty(), "{left:?}");
        }
        // It comes back, empty or not.
        lives.follow(named(&[(topic.clone(), TopicLife::Active)]));
        tokio::time::advance(EMPTY_FOR * 2).await;
        assert!(lives.take_gone(Instant::now()).is_empty());
        assert_eq!(lives.old().count(), 0);
    }
}
