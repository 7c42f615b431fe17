//! The queues and their topics, as the rules in force name them.

use super::options::FanoutOptions;
use super::outbox::{Outbox, TopicKey};
use std::collections::HashMap;
use std::sync::Arc;
use windfall_contract::broker::OpenError;
use windfall_contract::rules::{Ratio, Rules};

/// A queue, by the order in which this process first saw its name. Stays the same when rules change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u16);

/// Which topic of a queue an event tries first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The master.
    Master,
    /// The backup.
    Backup,
}

impl Side {
    /// The other side.
    pub const fn other(self) -> Self {
        match self {
            Self::Master => Self::Backup,
            Self::Backup => Self::Master,
        }
    }
}

/// A queue under the rules in force.
#[derive(Clone)]
pub(super) struct QueueNow {
    master: Arc<Outbox>,
    backup: Arc<Outbox>,
    ratio: Ratio,
}

impl QueueNow {
    pub(super) const fn side(&self, user_id: i64) -> Side {
        if self.ratio.takes_master(user_id) { Side::Master } else { Side::Backup }
    }

    /// Its topics, beginning with the one to try first.
    const fn topics(&self, first: Side) -> [&Arc<Outbox>; 2] {
        match first {
            Side::Master => [&self.master, &self.backup],
            Side::Backup => [&self.backup, &self.master],
        }
    }
}

/// Queues and outboxes in force. Replaced as a whole; ids of queues never change their meaning.
#[derive(Clone, Default)]
pub(super) struct Topology {
    /// The version of the rules; 0 before the first.
    pub(super) version: u64,
    /// Grows with each set of rules that was taken over, also where these have the same version.
    pub(super) serial: u64,
    pub(super) queue_ids: HashMap<String, QueueId>,
    queues: Vec<Option<QueueNow>>,
    /// The outboxes of the topics that the rules name, and those that are draining.
    pub(super) outboxes: Vec<Arc<Outbox>>,
}

impl Topology {
    pub(super) fn queue(&self, id: QueueId) -> Option<&QueueNow> {
        self.queues.get(usize::from(id.0))?.as_ref()
    }

    /// The topics of these queues, in the order of trying, each once.
    pub(super) fn targets(&self, candidates: &[(QueueId, Side)]) -> Box<[Arc<Outbox>]> {
        let mut targets: Vec<Arc<Outbox>> = Vec::with_capacity(candidates.len() * 2);
        for (queue, side) in candidates {
            for topic in self.queue(*queue).into_iter().flat_map(|now| now.topics(*side)) {
                if !targets.iter().any(|known| Arc::ptr_eq(known, topic)) {
                    targets.push(Arc::clone(topic));
                }
            }
        }
        targets.into_boxed_slice()
    }

    /// The topology of `rules`, with the outboxes that there are and new ones for new topics. Outboxes that the rules
    /// name no longer are told so, and stay until they are drained.
    pub(super) fn next(
        &self,
        rules: &Rules,
        options: &FanoutOptions,
        now_ns: u64,
    ) -> Result<Self, OpenError> {
        let mut next = Self { version: rules.version, serial: self.serial + 1, ..self.clone() };
        for name in rules.queues.keys().filter(|name| !self.queue_ids.contains_key(*name)) {
            let id = u16::try_from(next.queue_ids.len()).map(QueueId);
            let id = id.map_err(|_| OpenError::Invalid("more than 65,536 queue names".into()))?;
            next.queue_ids.insert(name.clone(), id);
        }
        // Nothing fails from here on.
        next.queues.clear();
        next.queues.resize_with(next.queue_ids.len(), || None);
        let mut wanted = Vec::new();
        for (name, queue) in &rules.queues {
            let [master, backup] = [&queue.master, &queue.backup].map(|topic| {
                let outbox = next.outbox(topic, rules, options, now_ns);
                wanted.push(Arc::clone(&outbox));
                outbox
            });
            if let Some(id) = next.queue_ids.get(name) {
                next.queues[usize::from(id.0)] = Some(QueueNow { master, backup, ratio: queue.ratio });
            }
        }
        for outbox in &next.outboxes {
            if !wanted.iter().any(|wanted| Arc::ptr_eq(wanted, outbox)) {
                outbox.retire(now_ns);
            }
        }
        Ok(next)
    }

    fn outbox(&mut self, name: &str, rules: &Rules, options: &FanoutOptions, now_ns: u64) -> Arc<Outbox> {
        // Validated rules have the topic; of others, its outbox says that no broker of this name is known.
        let topic = rules.topics.get(name);
        let broker = topic.map_or_else(String::new, |topic| topic.broker.clone());
        let key = TopicKey { broker, name: name.to_owned() };
        let known = self.outboxes.iter().find(|outbox| outbox.key == key && outbox.keep(now_ns));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let partitions = topic.map_or(1, |topic| topic.partitions);
        let made = Arc::new(Outbox::new(key, partitions, options, now_ns));
        self.outboxes.push(Arc::clone(&made));
        made
    }
}
