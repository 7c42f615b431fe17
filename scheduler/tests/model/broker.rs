//! A broker in memory, with one member in each group, and a writer that can lose answers and write copies.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_contract::broker::*;
use windfall_scheduler::{NotWritten, QueueTopic, QueueWriter};

const PARTITIONS: usize = 4;

#[derive(Default)]
struct Topic {
    partitions: [Vec<(Bytes, Bytes)>; PARTITIONS],
    committed: BTreeMap<String, [u64; PARTITIONS]>,
}

/// Topics by name.
#[derive(Default)]
pub struct MemoryBroker {
    topics: Mutex<BTreeMap<String, Topic>>,
    /// Nothing can be polled or committed.
    pub is_away: AtomicBool,
    epochs: AtomicU64,
}

impl MemoryBroker {
    pub fn append(&self, topic: &str, key: Bytes, payload: Bytes) {
        let hash = key.iter().fold(7_usize, |hash, byte| hash.wrapping_mul(31) + usize::from(*byte));
        let mut topics = self.topics.lock();
        topics.entry(topic.into()).or_default().partitions[hash % PARTITIONS].push((key, payload));
    }

    pub fn groups(&self, topic: &str) -> Vec<String> {
        let topics = self.topics.lock();
        topics.get(topic).map(|topic| topic.committed.keys().cloned().collect()).unwrap_or_default()
    }

    pub fn committed(&self, topic: &str) -> u64 {
        let topics = self.topics.lock();
        topics.get(topic).map_or(0, |topic| topic.committed.values().flatten().sum())
    }

    pub fn written(&self, topic: &str) -> usize {
        self.topics.lock().get(topic).map_or(0, |topic| topic.partitions.iter().map(Vec::len).sum())
    }

    /// Lets all groups read all topics again.
    pub fn rewind(&self) {
        self.topics.lock().values_mut().for_each(|topic| {
            topic.committed.values_mut().for_each(|committed| *committed = [0; PARTITIONS]);
        });
    }
}

/// The broker with consumers, which keep it.
pub struct Shared(Arc<MemoryBroker>);

impl Shared {
    pub fn topic(broker: &Arc<MemoryBroker>, name: &str) -> QueueTopic {
        QueueTopic { name: name.into(), broker: Arc::new(Self(Arc::clone(broker))), partitions: 4 }
    }
}

#[async_trait]
impl Broker for Shared {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        let _any = partitions;
        self.0.topics.lock().entry(topic.into()).or_default();
        Ok(())
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let _unused = (topic, sink);
        Err(OpenError::Unavailable("the writer appends by itself".into()))
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        let epoch = Epoch(u32::try_from(self.0.epochs.fetch_add(1, SeqCst)).unwrap());
        let committed = {
            let mut topics = self.0.topics.lock();
            let topic = topics.entry(topic.into()).or_default();
            *topic.committed.entry(group.into()).or_default()
        };
        let (topic, group) = (topic.to_owned(), group.to_owned());
        let broker = Arc::clone(&self.0);
        Ok(Box::new(Member { broker, topic, group, epoch, next: committed, paused: false, is_new: true }))
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        let _unused = (topic, group);
        Ok(Lag::default())
    }
}

struct Member {
    broker: Arc<MemoryBroker>,
    topic: String,
    group: String,
    epoch: Epoch,
    next: [u64; PARTITIONS],
    paused: bool,
    is_new: bool,
}

#[async_trait]
impl Consumer for Member {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        if self.broker.is_away.load(SeqCst) {
            return Err(PollError::Unavailable("a test wants it".into()));
        }
        let mut polled = Polled::default();
        if std::mem::take(&mut self.is_new) {
            for (partition, next_offset) in (0..).zip(self.next) {
                polled.changes.push(Change::Assigned { partition, epoch: self.epoch, next_offset });
            }
            return Ok(polled);
        }
        {
            let topics = self.broker.topics.lock();
            let topic = &topics[&self.topic];
            for (number, records) in (0..).zip(&topic.partitions) {
                let next = &mut self.next[number];
                while let Some((key, payload)) = records.get(usize::try_from(*next).unwrap())
                    && polled.records.len() < fetch.max_records
                    && !self.paused
                {
                    let (key, payload) = (key.clone(), payload.clone());
                    let partition = u32::try_from(number).unwrap();
                    polled.records.push(InRecord {
                        partition,
                        epoch: self.epoch,
                        offset: *next,
                        key,
                        payload,
                    });
                    *next += 1;
                }
            }
        }
        if polled.records.is_empty() {
            tokio::time::sleep(fetch.wait).await;
        }
        Ok(polled)
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError> {
        let mut topics = self.broker.topics.lock();
        let committed = topics.get_mut(&self.topic).unwrap().committed.get_mut(&self.group).unwrap();
        for commit in commits {
            let own = &mut committed[usize::try_from(commit.partition).unwrap()];
            *own = commit.next_offset.max(*own);
        }
        Ok(())
    }

    fn pause(&mut self, _: u32, _: Epoch, paused: bool) {
        self.paused = paused;
    }

    fn partitions(&self) -> u32 {
        4
    }

    async fn close(self: Box<Self>) {}
}

/// Writes to the first topic.
pub struct TestWriter {
    pub broker: Arc<MemoryBroker>,
    pub topics: Vec<String>,
    /// Each record is written to all topics, and to each of them twice.
    pub copies: AtomicBool,
    /// Records are written, and nobody says so.
    pub loses_answers: AtomicBool,
    pub refuses: AtomicBool,
}

impl TestWriter {
    pub fn new(broker: &Arc<MemoryBroker>, topics: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            broker: Arc::clone(broker),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            copies: AtomicBool::new(false),
            loses_answers: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl QueueWriter for TestWriter {
    async fn write(&self, records: Vec<(Bytes, Bytes)>, _: Duration) -> Vec<Result<(), NotWritten>> {
        let write = |(key, payload): (Bytes, Bytes)| {
            if self.refuses.load(SeqCst) {
                return Err(NotWritten::Refused("a test wants it".into()));
            }
            let (topics, times) = match self.copies.load(SeqCst) {
                true => (&self.topics[..], 2),
                false => (&self.topics[..1], 1),
            };
            for topic in topics.iter().flat_map(|topic| std::iter::repeat_n(topic, times)) {
                self.broker.append(topic, key.clone(), payload.clone());
            }
            match self.loses_answers.load(SeqCst) {
                true => Err(NotWritten::Unknown("a test wants it".into())),
                false => Ok(()),
            }
        };
        records.into_iter().map(write).collect()
    }
}
