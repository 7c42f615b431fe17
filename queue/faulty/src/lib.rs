//! A broker that misbehaves on demand: a decorator over any other, for tests and the demo.
//!
//! Each topic has its own [`Faults`], changed while everything runs. Chances are drawn from a seed, in the order of
//! the calls of each producer and consumer, so a run with the same calls sees the same faults; only the interleaving
//! of threads is not the seed's. Without faults it passes everything on and keeps the contract.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, SendRefused, Tag};
//! use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
//! use windfall_queue_faulty::{Faults, Faulty};
//! # struct Nowhere;
//! # impl DeliverySink for Nowhere { fn delivered(&self, _: Tag, _: Delivery) {} }
//! # let sink = std::sync::Arc::new(Nowhere);
//! let broker = Faulty::new(EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default())?, 7);
//! broker.ensure_topic("master", 1)?;
//! let producer = broker.producer("master", sink)?;
//! let record = OutRecord { key: b"order-1", payload: b"bonus" };
//!
//! broker.set("master", Faults { refuse: true, ..Faults::default() });
//! assert!(matches!(producer.send(Tag(1), record), Err(SendRefused::Unavailable(_))));
//! broker.clear("master");
//! assert_eq!(producer.send(Tag(1), record), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod consumer;
mod producer;

use self::consumer::FaultyConsumer;
use self::producer::{FaultyProducer, Held};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use windfall_contract::broker::{Broker, Consumer, DeliverySink, Lag, OpenError, Producer};

/// The faults of one topic. By default there are none. Chances are per mille of calls; 1000 is always.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// `send` is refused as `Unavailable`.
    pub refuse: bool,
    /// `send` takes records, but nothing is written or reported until this ends; then all of it is. Each producer holds
    /// at most 65,536 records or 32 MiB; `Full` beyond.
    pub hang: bool,
    /// Each record is written so many milliseconds late, drawn from this range; empty is not at all.
    pub delay_ms: Range<u64>,
    /// Chance that a record is written twice (and reported once).
    pub duplicate_per_mille: u16,
    /// Chance that a record is written, but reported `Unknown`.
    pub lose_answer_per_mille: u16,
    /// Chance that a record is not written and reported `Failed`.
    pub fail_per_mille: u16,
    /// Reports come up to 5 ms late and out of order.
    pub reorder: bool,
    /// Chance that a poll fails as `Unavailable`, having taken nothing.
    pub poll_error_per_mille: u16,
    /// Chance that a poll revokes all partitions; the next one joins anew and reads from what is committed.
    pub rebalance_per_mille: u16,
    /// Chance that a commit fails and stores nothing.
    pub commit_error_per_mille: u16,
    /// Chance that a commit is stored, but reported as failed.
    pub lose_commit_answer_per_mille: u16,
}

/// The decorator. Reached by topic; its producers and consumers may outlive it.
pub struct Faulty {
    inner: Arc<dyn Broker>,
    seed: u64,
    topics: Mutex<HashMap<String, Arc<TopicFaults>>>,
    /// Numbers producers and consumers, so that each has its own random sequence.
    made: AtomicU64,
}

/// One topic's faults, and whom to wake when they change.
#[derive(Default)]
struct TopicFaults {
    faults: Mutex<Faults>,
    producers: Mutex<Vec<Weak<Held>>>,
}

impl Faulty {
    /// A decorator over `inner` whose chances follow from `seed`.
    pub fn new(inner: Arc<dyn Broker>, seed: u64) -> Arc<Self> {
        Arc::new(Self { inner, seed, topics: Mutex::default(), made: AtomicU64::new(0) })
    }

    /// Sets what goes wrong in `topic` from now on, for its producers and consumers, present and future.
    pub fn set(&self, topic: &str, faults: Faults) {
        let entry = self.topic(topic);
        *entry.faults.lock() = faults;
        let mut producers = entry.producers.lock();
        producers.retain(|producer| producer.upgrade().is_some_and(|held| held.wake()));
    }

    /// Ends all faults of `topic`: what hung or waits is now written and reported.
    pub fn clear(&self, topic: &str) {
        self.set(topic, Faults::default());
    }

    fn topic(&self, topic: &str) -> Arc<TopicFaults> {
        self.topics.lock().entry(topic.to_owned()).or_default().clone()
    }

    fn dice(&self) -> Dice {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Dice(self.seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }
}

#[async_trait]
impl Broker for Faulty {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        self.inner.ensure_topic(topic, partitions)
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let entry = self.topic(topic);
        let producer = FaultyProducer::open(&*self.inner, topic, entry.clone(), sink, self.dice())?;
        entry.producers.lock().push(producer.held());
        Ok(Arc::new(producer))
    }

    fn hazards(&self, topic: &str) -> Result<Vec<String>, OpenError> {
        self.inner.hazards(topic)
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        let (entry, dice) = (self.topic(topic), self.dice());
        Ok(Box::new(FaultyConsumer::open(self.inner.clone(), topic, group, entry, dice).await?))
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        self.inner.lag(topic, group).await
    }
}

/// A small random sequence: SplitMix64 (Steele, Lea, Flood, 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// True with a chance of `per_mille` in a thousand. Always draws, so that one chance does not shift another.
    fn hits(&mut self, per_mille: u16) -> bool {
        self.next() % 1000 < u64::from(per_mille)
    }

    /// A number from the range; its start if it is empty.
    fn within(&mut self, range: &Range<u64>) -> u64 {
        let drawn = self.next();
        match range.end.checked_sub(range.start) {
            Some(width @ 1..) => range.start + drawn % width,
            _ => range.start,
        }
    }
}
