//! Which queues there are and which topics stand behind them, as the rules in force say.

use super::health::Health;
use super::options::FanoutOptions;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use windfall_contract::broker::{Broker, DeliverySink, OpenError, Producer};
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
    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Self::Master => Self::Backup,
            Self::Backup => Self::Master,
        }
    }
}

/// One queue as it is now.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueNow {
    master: usize,
    backup: usize,
    ratio: Ratio,
}

impl QueueNow {
    pub(super) const fn side(&self, user_id: i64) -> Side {
        if self.ratio.takes_master(user_id) { Side::Master } else { Side::Backup }
    }

    /// Its topics, the one to try first first.
    pub(super) const fn topics(&self, first: Side) -> [usize; 2] {
        match first {
            Side::Master => [self.master, self.backup],
            Side::Backup => [self.backup, self.master],
        }
    }
}

/// A topic of this process: opened once, kept until the end, used by every queue that names it.
pub(super) struct TopicNow {
    pub(super) name: String,
    pub(super) producer: Arc<dyn Producer>,
    pub(super) health: Health,
}

/// Queues and topics in force. Replaced as a whole; indices of topics and queues never change their meaning.
#[derive(Clone, Default)]
pub(super) struct Topology {
    /// Of the rules; 0 before the first.
    pub(super) version: u64,
    pub(super) queue_ids: HashMap<String, QueueId>,
    pub(super) queues: Vec<Option<QueueNow>>,
    pub(super) topics: Vec<Arc<TopicNow>>,
}

impl Topology {
    pub(super) fn queue(&self, id: QueueId) -> Option<QueueNow> {
        self.queues.get(usize::from(id.0)).copied().flatten()
    }

    /// The topology of `rules`, with the topics that are open already and those that it opens.
    pub(super) fn next(
        &self,
        rules: &Rules,
        brokers: &BTreeMap<String, Arc<dyn Broker>>,
        sink: &Arc<dyn DeliverySink>,
        options: &FanoutOptions,
    ) -> Result<Self, OpenError> {
        let mut next = Self { version: rules.version, ..self.clone() };
        for queue in &mut next.queues {
            *queue = None;
        }
        for (name, queue) in &rules.queues {
            let master = next.open_topic(&queue.master, rules, brokers, sink, options)?;
            let backup = next.open_topic(&queue.backup, rules, brokers, sink, options)?;
            let id = match next.queue_ids.get(name) {
                Some(id) => *id,
                None => {
                    let id = u16::try_from(next.queues.len())
                        .map(QueueId)
                        .map_err(|_| OpenError::Invalid("more than 65,536 queue names".into()))?;
                    next.queues.push(None);
                    next.queue_ids.insert(name.clone(), id);
                    id
                }
            };
            next.queues[usize::from(id.0)] = Some(QueueNow { master, backup, ratio: queue.ratio });
        }
        Ok(next)
    }

    fn open_topic(
        &mut self,
        name: &str,
        rules: &Rules,
        brokers: &BTreeMap<String, Arc<dyn Broker>>,
        sink: &Arc<dyn DeliverySink>,
        options: &FanoutOptions,
    ) -> Result<usize, OpenError> {
        if let Some(at) = self.topics.iter().position(|topic| topic.name == name) {
            return Ok(at);
        }
        let topic = rules
            .topics
            .get(name)
            .ok_or_else(|| OpenError::Invalid(format!("the rules have no topic `{name}`")))?;
        let broker = brokers.get(&topic.broker).ok_or_else(|| {
            OpenError::Invalid(format!(
                "topic `{name}` is on broker `{}`, which the options do not name",
                topic.broker
            ))
        })?;
        broker.ensure_topic(name, topic.partitions)?;
        let producer = broker.producer(name, Arc::clone(sink))?;
        let health = Health::new(options);
        self.topics.push(Arc::new(TopicNow { name: name.to_owned(), producer, health }));
        Ok(self.topics.len() - 1)
    }
}
