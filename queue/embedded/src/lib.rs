//! A broker inside the process, on files: fjall below, one owner process at a time.
//!
//! What was reported [`Stored`](windfall_contract::broker::Delivery::Stored) is there after `kill -9`; with
//! [`Fsync::EachBatch`] also after the machine died. A directory belongs to one process; a second one gets
//! [`OpenError::InUse`].
//!
//! **Retention.** A record is kept until every group of its topic has committed past it, then deleted in the
//! background, whole chunks at a time. A topic without a group keeps everything. A group exists from its first
//! consumer on, for good, and starts at the oldest record kept.
//!
//! **Groups** live in this process: a member that never polls keeps its partitions until it is dropped, as there is
//! no session to run out. A record read shares its memory with up to 64 KiB of its neighbours; copy what is kept.
//!
//! **After a failed write** (a full disk, say) the journal's state is unknown: open records are reported
//! `Unknown`, sends are refused as `Unavailable`, and the directory must be opened again.
//!
//! **Damage** is reported, never skipped: by `open` where the log ends earlier than it once did or cannot be
//! read, by `poll` where a record cannot.
//!
//! **Where to read.** A record goes from `producer` (its limits) into `pending` (what a producer has taken and not yet
//! reported), and waits in `write_queue` until the one `writer` writes it. `storage` has the files and `ends` their
//! second witness, `topic` and `group` what is known in memory. `reader` fills a consumer's `prefetch`, which
//! `consumer` empties; `cleanup` deletes what every group has committed. Each of these files owns its state.
//!
//! **Not here:** replication, more than one process, transactions. What runs on several machines uses Kafka or
//! RocketMQ.
//!
//! # Write and read
//! ```
//! # let dir = tempfile::tempdir()?;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use windfall_contract::broker::{Broker, Change, Commit, Delivery, DeliverySink, Fetch, OutRecord, Tag};
//! use windfall_contract::finished::Finished;
//! use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
//!
//! /// Learns the outcome of each record that `send` took.
//! struct Print;
//! impl DeliverySink for Print {
//!     fn delivered(&self, tag: Tag, delivery: Delivery) {
//!         println!("{tag:?}: {delivery:?}");
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # runtime.block_on(async {
//! let broker = EmbeddedBroker::open(dir.path(), &EmbeddedOptions::default())?;
//! broker.ensure_topic("rewards", 4)?;
//! let producer = broker.producer("rewards", Arc::new(Print))?;
//! producer.send(Tag(1), OutRecord { key: b"order-1", payload: b"a pack of events" })?;
//! assert_eq!(producer.close(Duration::from_secs(5)), 0);
//!
//! let mut consumer = broker.consumer("rewards", "grants").await?;
//! let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_secs(5) };
//! let record = loop {
//!     // Changes come before records: what is mine, and from which offset on.
//!     let polled = consumer.poll(fetch).await?;
//!     for change in polled.changes {
//!         assert!(matches!(change, Change::Assigned { next_offset: 0, .. }));
//!     }
//!     if let Some(record) = polled.records.into_iter().next() {
//!         break record;
//!     }
//! };
//! assert_eq!(record.payload, "a pack of events");
//! // Finished: the group will not get it again.
//! let (next_offset, finished) = (record.offset + 1, Finished::default());
//! let commit = Commit { partition: record.partition, epoch: record.epoch, next_offset, finished };
//! consumer.commit(&[commit]).await?;
//! assert_eq!(broker.lag("rewards", "grants").await?.records(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chunk;
mod cleanup;
mod consumer;
mod ends;
mod group;
mod options;
mod pending;
mod prefetch;
mod producer;
mod reader;
mod state;
mod storage;
mod topic;
mod write_queue;
mod writer;

pub use options::{EmbeddedOptions, Fsync};

use self::consumer::EmbeddedConsumer;
use self::ends::{EndsFile, Witness};
use self::group::{Group, Loss, Start};
use self::producer::EmbeddedProducer;
use self::state::{BrokerState, OpenBroker};
use self::storage::{Extent, ReadError, Storage, TopicRow, io, open_error};
use self::topic::{MAX_PARTITIONS, Partition, Topic};
use self::write_queue::WriteQueue;
use self::writer::Writer;
use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use windfall_contract::broker::{Broker, Consumer, DeliverySink, Lag, OpenError, Producer};

/// The length in bytes of a topic's or a group's name at most.
const MAX_NAME_BYTES: usize = 249;

/// The embedded broker. Its files stay open as long as it, or a producer or consumer of it, is alive.
pub struct EmbeddedBroker {
    broker: Arc<OpenBroker>,
}

impl EmbeddedBroker {
    /// Opens the broker in `dir`, creating it if there is none.
    ///
    /// # Errors
    /// [`OpenError`]: `InUse` by another owner, `Newer` or `Damaged` files, `Io` where the directory cannot be
    /// written, `Invalid` options.
    pub fn open(dir: &Path, options: &EmbeddedOptions) -> Result<Arc<Self>, OpenError> {
        options.check()?;
        let place = dir.display().to_string();
        let storage = Storage::open(dir, options)?;
        let (mut ends, witness) = EndsFile::open(dir).map_err(|error| io(&place, &error))?;
        let topics = load(&storage, &witness, &place, options)?;
        let found = topics.values().flat_map(|topic| {
            let id = topic.id;
            (0u32..).zip(topic.ends()).map(move |(partition, end)| ((id, partition), end))
        });
        ends.settle(found).map_err(|error| io(&place, &error))?;
        let state = Arc::new(BrokerState {
            place: place.clone(),
            options: options.clone(),
            storage,
            topics: RwLock::new(topics),
            write_queue: WriteQueue::new(),
            readers: AtomicUsize::new(0),
        });
        let writer = Writer::new(state.clone(), ends);
        let writer = std::thread::Builder::new()
            .name("queue-write".into())
            .spawn(move || writer.run())
            .map_err(|error| io(&place, &error))?;
        Ok(Arc::new(Self { broker: OpenBroker::new(state, writer) }))
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        check_name("topic", topic)?;
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            let what = format!("topic {topic:?}: {partitions} partitions; it may have 1 to {MAX_PARTITIONS}");
            return Err(OpenError::Invalid(what));
        }
        let state = &self.broker.state;
        let mut topics = state.topics.write();
        let known = topics.get(topic).cloned();
        let has = known.as_ref().map_or(0, |known| known.count());
        if u32::try_from(has).is_ok_and(|has| has >= partitions) {
            return Ok(());
        }
        let next_id = topics.values().map(|topic| topic.id + 1).max().unwrap_or(0);
        let row = TopicRow { id: known.as_ref().map_or(next_id, |known| known.id), partitions };
        state.storage.put_topic(topic, row).map_err(|error| open_error(&state.place, error))?;
        let entry = known.unwrap_or_else(|| {
            let groups = Mutex::default();
            Arc::new(Topic { id: row.id, partitions: RwLock::default(), groups })
        });
        let fresh = (has..partitions as usize).map(|_| Partition::new(Extent { low: 0, end: 0 }));
        entry.partitions.write().extend(fresh);
        for group in entry.groups.lock().values() {
            group.grow(partitions as usize);
        }
        topics.insert(topic.to_owned(), entry);
        Ok(())
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let topic = self.broker.state.topic(topic)?;
        Ok(Arc::new(EmbeddedProducer::new(self.broker.clone(), topic, sink)))
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        check_name("group", group)?;
        let state = &self.broker.state;
        let topic = state.topic(topic)?;
        let (entry, fresh) = {
            let mut groups = topic.groups.lock();
            let known = groups.get(group).cloned();
            let fresh = known.is_none();
            let entry =
                known.unwrap_or_else(|| Arc::new(Group::new(group, topic.lows().into_iter().map(Start::at))));
            groups.insert(group.to_owned(), entry.clone());
            (entry, fresh)
        };
        if fresh {
            // From now on nothing is deleted that this group has not committed, restarts or not.
            let all: Vec<_> = (0u32..).zip(entry.committed()).map(|(partition, _)| partition).collect();
            state
                .write_queue
                .commit(topic.id, &entry, &all)
                .await
                .map_err(|what| OpenError::Io { place: state.place.clone(), what })?;
        }
        Ok(Box::new(EmbeddedConsumer::join(self.broker.clone(), topic, entry)?))
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        Ok(self.broker.state.topic(topic)?.lag(group))
    }
}

/// Reads all topics and groups, and checks each partition's end against its witness.
fn load(
    storage: &Storage,
    witness: &Witness,
    place: &str,
    options: &EmbeddedOptions,
) -> Result<BTreeMap<String, Arc<Topic>>, OpenError> {
    let read = |error: ReadError| match error {
        ReadError::Damaged(what) => OpenError::Damaged { place: place.into(), what },
        ReadError::Io(what) => OpenError::Io { place: place.into(), what },
    };
    let mut topics = BTreeMap::new();
    let mut missing = witness.ends.clone();
    for (name, row) in storage.topics().map_err(read)? {
        let mut partitions = Vec::new();
        for index in 0..row.partitions {
            let extent = storage.extent(row.id, index).map_err(read)?;
            missing.retain(|place, end| *place != (row.id, index) || *end > extent.end);
            partitions.push(Partition::new(extent));
        }
        let topic = Topic { id: row.id, partitions: RwLock::new(partitions), groups: Mutex::default() };
        let kept: Vec<_> = topic.lows().into_iter().zip(topic.ends()).collect();
        for (group, committed) in storage.groups(row.id).map_err(read)? {
            let mut starts = Vec::new();
            for (index, (low, end)) in (0u32..).zip(&kept) {
                let map = storage.map(row.id, &group, index).map_err(read)?;
                starts.push(Start::found(committed.get(&index).copied(), *low, *end).with(&map, *end));
            }
            correct(storage, row.id, &group, &starts).map_err(read)?;
            let starts = starts.into_iter().map(|(start, _)| start);
            topic.groups.lock().insert(group.clone(), Arc::new(Group::new(&group, starts)));
        }
        topics.insert(name, Arc::new(topic));
    }
    if let Some(((topic, partition), end)) = missing.first_key_value() {
        let what = format!("topic number {topic}, partition {partition} no longer reaches offset {end}");
        if witness.same_boot || options.fsync == Fsync::EachBatch {
            return Err(OpenError::Damaged { place: place.into(), what });
        }
        tracing::warn!(place, what, "records were lost with the machine: fsync is off");
    }
    Ok(topics)
}

/// Stores where a group goes on that has lost records, and what its map may still say, before anything new is written:
/// else, once the log is as long as it was, its new records would be passed over as if they had been read.
fn correct(storage: &Storage, topic: u32, group: &str, starts: &[(Start, bool)]) -> Result<(), ReadError> {
    let mut batch = storage.synced_batch(starts.len());
    for (partition, (start, forgets)) in (0u32..).zip(starts) {
        if let Some(Loss { from, to, what }) = &start.lost {
            tracing::error!(
                topic,
                group,
                partition,
                from,
                to,
                what,
                "records were lost before they were read"
            );
            storage.put_commit(&mut batch, topic, group, (partition, start.committed));
        }
        if *forgets {
            storage.put_map(&mut batch, topic, group, partition, &start.finished);
        }
    }
    if starts.iter().any(|(start, forgets)| start.lost.is_some() || *forgets) {
        batch.commit().map_err(storage::read_error)?;
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), OpenError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let problem = format!("a {what}'s name has 1 to {MAX_NAME_BYTES} bytes; {name:?} has {}", name.len());
        return Err(OpenError::Invalid(problem));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of ranges, some of which have one")]
mod tests {
    use super::*;
    use std::time::Duration;
    use windfall_contract::broker::{Change, Delivery, Fetch, OutRecord, PollError, Tag};
    use windfall_contract::finished::Finished;

    struct Deaf;
    impl DeliverySink for Deaf {
        fn delivered(&self, _: Tag, _: Delivery) {}
    }

    fn write(broker: &EmbeddedBroker, records: u64) {
        let producer = broker.producer("t", Arc::new(Deaf)).unwrap();
        for number in 0..records {
            producer.send(Tag(number), OutRecord { key: b"k", payload: &number.to_be_bytes() }).unwrap();
        }
        assert_eq!(producer.close(Duration::from_secs(20)), 0);
    }

    /// A machine died without `fsync`: what a group has committed, and its map, outlive the end of the log. New
    /// records are written there, the process dies again, and none of them may be taken for what was finished.
    #[tokio::test]
    async fn a_log_that_lost_its_end_is_a_loss_and_hides_nothing_that_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::default();
        {
            let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
            broker.ensure_topic("t", 1).unwrap();
            write(&broker, 10);
            drop(broker.consumer("t", "ahead").await.unwrap());
            drop(broker.consumer("t", "beyond").await.unwrap());
        }
        {
            let storage = Storage::open(dir.path(), &options).unwrap();
            let mut batch = storage.synced_batch(2);
            storage.put_commit(&mut batch, 0, "ahead", (0, 30));
            storage.put_map(&mut batch, 0, "beyond", 0, &Finished::of([5..25]));
            batch.commit().unwrap();
        }
        {
            let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
            write(&broker, 40);
        }
        let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
        let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_secs(1) };
        for (group, expected) in
            [("ahead", (10..50).collect::<Vec<_>>()), ("beyond", (0..5).chain(10..50).collect())]
        {
            let mut consumer = broker.consumer("t", group).await.unwrap();
            let mut offsets = Vec::new();
            while offsets.len() < expected.len() {
                let polled = consumer.poll(fetch).await.unwrap();
                assert!(!polled.changes.is_empty() || !polled.records.is_empty(), "{group}: {offsets:?}");
                offsets.extend(polled.records.iter().map(|record| record.offset));
            }
            assert_eq!(offsets, expected, "{group}");
        }
    }

    #[tokio::test]
    async fn a_loss_is_told_to_who_is_assigned_the_partition() {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::default();
        {
            let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
            broker.ensure_topic("t", 1).unwrap();
            write(&broker, 10);
            drop(broker.consumer("t", "g").await.unwrap());
        }
        {
            let storage = Storage::open(dir.path(), &options).unwrap();
            let mut batch = storage.synced_batch(1);
            storage.put_commit(&mut batch, 0, "g", (0, 30));
            batch.commit().unwrap();
        }
        let broker = EmbeddedBroker::open(dir.path(), &options).unwrap();
        let mut consumer = broker.consumer("t", "g").await.unwrap();
        let fetch = Fetch { max_records: 100, max_bytes: 1 << 20, wait: Duration::from_millis(100) };
        let polled = consumer.poll(fetch).await.unwrap();
        assert!(matches!(polled.changes[..], [Change::Assigned { next_offset: 10, .. }]));
        let lost = consumer.poll(fetch).await.unwrap_err();
        assert!(
            matches!(lost, PollError::Lost { partition: 0, from: 10, to: 30, resumes_at: 10, .. }),
            "{lost}"
        );
        assert!(consumer.poll(fetch).await.unwrap().records.is_empty(), "told once");
    }
}
