//! What every broker driver offers, and what callers may rely on. The conformance suite checks each sentence.
//! The traits are shaped for real brokers: an acknowledgement is asynchronous and comes for batches, a lost answer is
//! [`Delivery::Unknown`], partitions move between instances, offsets have gaps.

use crate::finished::Finished;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The caller's own number for a record, by which it recognises the report of its delivery. Drivers do not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// A record to write. The driver copies what it keeps before `send` returns.
#[derive(Debug, Clone, Copy)]
pub struct OutRecord<'a> {
    /// The partition key. Records with equal keys go to the same partition, whichever producer sends them and whenever,
    /// and those of one producer keep the order of sending. Under [`Acks::Each`] the key is stored with the record and
    /// promises neither.
    pub key: &'a [u8],
    /// The bytes, up to the driver's limit (at least 1 MiB).
    pub payload: &'a [u8],
}

/// A record was not taken. Nothing of it is stored and no delivery follows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendRefused {
    /// The driver's own buffer is full. Try another topic, or this one in a moment.
    #[error("the producer's buffer is full")]
    Full,
    /// The payload is larger than this broker takes; it will never be taken.
    #[error("a record of {bytes} bytes is larger than the {max} that the broker takes")]
    TooLarge {
        /// The record's size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The broker refuses, or cannot be reached. Try another topic.
    #[error("the broker refuses: {0}")]
    Unavailable(String),
    /// `close` was called.
    #[error("the producer is closed")]
    Closed,
}

/// The outcome of a record that `send` took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Stored, as durably as the driver's options say.
    Stored,
    /// Certainly not stored.
    Failed(String),
    /// No answer in time: stored or not, nobody knows. A copy that is sent to another topic may be a duplicate.
    Unknown(String),
}

/// Receives a producer's reports. It is called from the driver's own thread, so it must be quick and must not block.
pub trait DeliverySink: Send + Sync {
    /// Reports the outcome of the record that was sent with `tag`: exactly one call for each `send` that returned Ok,
    /// unless the producer is dropped without `close`.
    fn delivered(&self, tag: Tag, delivery: Delivery);
}

/// Writes to one topic. Any number of threads may call it.
pub trait Producer: Send + Sync {
    /// Takes a record for sending. Never blocks and never waits for a network.
    ///
    /// # Errors
    /// [`SendRefused`]: no delivery follows.
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused>;

    /// The same with headers, names and values, beside the record. A broker that has no headers stores the record
    /// without them.
    ///
    /// # Errors
    /// [`SendRefused`]: no delivery follows.
    fn send_with_headers(
        &self,
        tag: Tag,
        record: OutRecord<'_>,
        _headers: &[(&str, &[u8])],
    ) -> Result<(), SendRefused> {
        self.send(tag, record)
    }

    /// Takes no more records and waits until all taken ones have been reported, at most `timeout`. Those still
    /// open then are reported as `Unknown`. Returns how many were. A second call returns 0 at once. Blocks.
    fn close(&self, timeout: Duration) -> usize;
}

/// One assignment of a partition to this consumer. Grows with each assignment of that partition to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A record that was read.
#[derive(Debug, Clone)]
pub struct InRecord {
    /// Its partition.
    pub partition: u32,
    /// The assignment it was read under.
    pub epoch: Epoch,
    /// Its offset: grows within a partition, may have gaps.
    pub offset: u64,
    /// The partition key it was written with; empty where it had none.
    pub key: Bytes,
    /// The bytes.
    pub payload: Bytes,
}

/// A partition came or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A partition is assigned. Its records follow, from the group's committed offset on.
    Assigned {
        /// The partition.
        partition: u32,
        /// Its epoch from now on.
        epoch: Epoch,
        /// The offset that is read next.
        next_offset: u64,
    },
    /// All records of it below `next_offset` that have not been brought were finished before ([`Commit::finished`]).
    /// They will not be brought.
    Passed {
        /// The partition.
        partition: u32,
        /// Its epoch.
        epoch: Epoch,
        /// The lowest offset that may still come.
        next_offset: u64,
    },
    /// A partition is revoked when `poll` is called again: until then `commit` still works for it, afterwards it is
    /// fenced.
    Revoked {
        /// The partition.
        partition: u32,
        /// The epoch that ends.
        epoch: Epoch,
    },
}

/// What one `poll` brought. Changes come before the records: handle them first, in order.
#[derive(Debug, Clone, Default)]
pub struct Polled {
    /// Assignments and revocations.
    pub changes: Vec<Change>,
    /// Records, in offset order within each partition.
    pub records: Vec<InRecord>,
}

/// How much one `poll` may bring, and how long it may wait.
#[derive(Debug, Clone, Copy)]
pub struct Fetch {
    /// The number of records at most; 0 brings changes only.
    pub max_records: usize,
    /// The number of payload bytes at most; the first record is brought whatever its size.
    pub max_bytes: usize,
    /// Returns empty after this long without a record.
    pub wait: Duration,
}

/// A commit of one partition: everything below `next_offset` is finished, and so are some offsets beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The partition.
    pub partition: u32,
    /// The assignment under which its records were read.
    pub epoch: Epoch,
    /// The offset to read next.
    pub next_offset: u64,
    /// What is finished beyond it, and was brought under this assignment. Whoever is assigned the partition next is
    /// not brought these records, as far as the broker keeps so much: about 4,000 bytes, from the lowest offset on.
    /// A record that was written later at such an offset is another one, and is brought. Each commit replaces what the
    /// last one said; what this consumer itself was spared need not be said again.
    pub finished: Finished,
}

/// Reading failed. The consumer stays usable: poll again after a pause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// The broker cannot be reached just now.
    #[error("the broker cannot be read: {0}")]
    Unavailable(String),
    /// A record is damaged in the store and cannot be delivered.
    #[error("partition {partition} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Which partition.
        partition: u32,
        /// The first offset that cannot be read.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Records that this group has not read are gone: deleted by the broker's retention, or lost with the end of a
    /// log. Said once; the consumer goes on by itself.
    #[error(
        "partition {partition} has lost the records from offset {from} up to {to}: {what}; reading goes on at {resumes_at}"
    )]
    Lost {
        /// Which partition.
        partition: u32,
        /// The first offset that is gone.
        from: u64,
        /// The offset after the last one that is known to be gone.
        to: u64,
        /// The offset that is read next. Where a driver cannot say since when a log is another one, it reads all of
        /// it again.
        resumes_at: u64,
        /// What happened to them.
        what: String,
    },
}

/// How a broker is told what is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// By one position per partition, with [`Consumer::commit`]: everything below it is finished (Kafka, embedded).
    Prefix,
    /// Record by record, with [`Consumer::finish`] (RocketMQ). There is no position, and `commit` does nothing.
    /// The partition is a share of the topic that this consumer was given, and the offset is a count that the consumer
    /// keeps itself: a record that is delivered again has a new offset. What is not finished is kept hidden from other
    /// members for as long as `poll` is called, and is given back by `close`, by a drop, or when the polls stop.
    Each,
}

/// Names a record that a consumer has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Its partition.
    pub partition: u32,
    /// The assignment it was read under.
    pub epoch: Epoch,
    /// Its offset.
    pub offset: u64,
}

/// A commit did not happen, or nobody knows whether it did. Committing again is harmless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The broker cannot be reached just now.
    #[error("the broker takes no commit: {0}")]
    Unavailable(String),
}

/// Reads one topic as a member of a group.
#[async_trait]
pub trait Consumer: Send {
    /// Brings changes and records. It is cancel-safe: a call that is dropped before it is ready has taken nothing.
    ///
    /// # Errors
    /// [`PollError`]; poll again after a pause.
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError>;

    /// Stores how far each partition is finished. Commits of an epoch that is over, or below what is committed,
    /// are ignored in silence (I3): the partition's new owner decides now. A commit that waits in a queue is checked
    /// against the epochs once more when it is stored.
    ///
    /// # Errors
    /// [`CommitError`]; none or some of them are stored.
    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError>;

    /// How this broker is told what is finished: by `commit` or by `finish`. Never changes.
    fn acks(&self) -> Acks {
        Acks::Prefix
    }

    /// Under [`Acks::Each`]: these records are finished and must not come again. Records of an epoch that is over, and
    /// unknown ones, are ignored in silence. The call may be repeated.
    ///
    /// # Errors
    /// [`CommitError`]; none or some of them are stored. Finish them again; until then they stay hidden.
    async fn finish(&mut self, records: &[Position]) -> Result<(), CommitError> {
        debug_assert!(
            records.is_empty() || self.acks() == Acks::Prefix,
            "a driver with Acks::Each needs finish"
        );
        Ok(())
    }

    /// Stops (`true`) or resumes (`false`) bringing records of a partition. It lasts until the epoch ends, and a call
    /// with an epoch that is over is ignored in silence: a pause that was decided before a rebalance must not stop the
    /// partition after it, when nobody would resume it.
    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool);

    /// The number of the topic's partitions, owned by this consumer or not.
    fn partitions(&self) -> u32;

    /// Whether the broker may delete records of this topic before they are read, as far as the driver knows: by an
    /// age or a size that is less than its options ask for.
    fn may_delete_unread(&self) -> bool {
        false
    }

    /// Leaves the group. Commit before it.
    async fn close(self: Box<Self>);
}

/// How far a group is in one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// Records written so far, over all partitions.
    pub end: u64,
    /// Records that the group has committed, over all partitions.
    pub committed: u64,
}

impl Lag {
    /// Records written and not yet committed.
    pub const fn records(self) -> u64 {
        self.end.saturating_sub(self.committed)
    }
}

/// A broker, a topic or a group could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The options are wrong; trying again does not help.
    #[error("{0}")]
    Invalid(String),
    /// The broker has no such topic or group, as far as it knows just now. It may be created later.
    #[error("{0}")]
    Absent(String),
    /// Another process holds the data.
    #[error("{0} is in use by another process")]
    InUse(String),
    /// The data was written by a newer version of Windfall.
    #[error("{place} has format version {found}; this build reads up to {known}")]
    Newer {
        /// What was opened.
        place: String,
        /// The version found.
        found: u32,
        /// The newest that is understood.
        known: u32,
    },
    /// The data cannot be read.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// What was opened.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("{place}: {what}")]
    Io {
        /// What was opened.
        place: String,
        /// The system's answer.
        what: String,
    },
    /// The broker cannot be reached.
    #[error("the broker cannot be reached: {0}")]
    Unavailable(String),
}

/// A broker: makes producers and consumers of its topics.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Makes sure that a topic exists with at least `partitions` partitions. It never removes partitions. This call and
    /// `producer` may block: do not call them on an async thread.
    /// Where the cluster cannot be reached, this call, `producer` and `consumer` answer [`OpenError::Unavailable`]
    /// within about a second, or within the few seconds that their options set, and leave nothing behind: the caller
    /// may try again as often as it wants.
    ///
    /// # Errors
    /// [`OpenError`].
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError>;

    /// A producer of a topic, which reports to `sink`.
    ///
    /// # Errors
    /// [`OpenError`]; the topic must exist, else it is [`OpenError::Absent`].
    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError>;

    /// What may lose records of a topic that were reported stored: a sentence for each such setting, as far as the driver
    /// can tell. The topic must exist. It may block, as `producer` may.
    ///
    /// # Errors
    /// [`OpenError`].
    fn hazards(&self, _topic: &str) -> Result<Vec<String>, OpenError> {
        Ok(Vec::new())
    }

    /// A consumer of a topic, a new member of `group`. Its first assignment comes by `poll`.
    ///
    /// # Errors
    /// [`OpenError`]; the topic must exist, else it is [`OpenError::Absent`].
    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError>;

    /// How far `group` is in `topic`.
    ///
    /// # Errors
    /// [`OpenError`].
    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError>;
}
