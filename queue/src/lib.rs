//! Queues: how records get into topics and out of them, whatever broker is below.
//!
//! - [`contract`]: what producers and consumers offer. Shaped for real brokers: acknowledgements come later and in
//!   batches, an answer may be lost, partitions move, offsets have gaps. Read it first.
//! - [`embedded`]: a broker inside the process, on files; survives `kill -9`.
//! - `kafka` (feature `kafka`) and `rocketmq` (feature `rocketmq`): drivers of real brokers.
//! - [`virtual_queue`]: a master and a backup topic as one place to send to, with a breaker and retries.
//! - [`faulty`]: a decorator that refuses, hangs, loses answers, delivers twice, by a seed; for tests and the demo.
//! - [`drivers`]: the list of broker kinds; a new one is a folder and one line.
//! - [`conformance`]: the checks that every driver passes, faults or not.
//!
//! It knows nothing of rewards: a record is a key and bytes. When a record is finished, and what is done with one
//! that fails, is the consumer's business (`windfall-consumer`).
//!
//! # Write and read
//! ```
//! # let dir = tempfile::tempdir()?;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use windfall_contract::broker::{Broker, Change, Commit, Delivery, DeliverySink, Fetch, OutRecord, Tag};
//! use windfall_queue::embedded::{EmbeddedBroker, EmbeddedOptions};
//!
//! /// Learns the fate of each record that `send` took.
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
//! let next_offset = record.offset + 1;
//! consumer.commit(&[Commit { partition: record.partition, epoch: record.epoch, next_offset }]).await?;
//! assert_eq!(broker.lag("rewards", "grants").await?.records(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod conformance;
pub mod drivers;
pub mod embedded;
pub mod faulty;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "rocketmq")]
pub mod rocketmq;
pub mod virtual_queue;
