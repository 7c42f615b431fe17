//! Adds by a queue: a task is written to a topic first, so that its caller has an Ok while the store is away, and is taken from
//! there into the store.
//!
//! ```text
//! caller ─► AddQueue::write ─► QueueWriter: master or backup topic ─► Ok
//!                                    │
//!            reader (one per topic) ◄┘ ─► by shard: SlotStore::add_once ─► after a while, if the server still has it: commit
//!                   └─► file of records set aside: whatever cannot be stored
//! ```
//!
//! A queue may bring the same record any number of times: written to both topics after a lost answer, read again after a crash
//! or a commit that failed, read again on purpose after a server of the store has lost its last second. What makes all this
//! harmless is the store, which knows for a while which keys were used ([`SlotStore::add_once`]). So whenever it is open what
//! became of a record, it is stored again.
//!
//! A record names the store that it is for by a random id, which the store itself keeps. The consumer group has this id in its
//! name, so that the schedulers of two stores never share a group, whatever their options are.
//!
//! Where a process has keys, it signs what it writes, and takes only what a known key has signed ([`AddSignatures`]): whoever can
//! write to a topic and has no key adds nothing (I12).
//!
//! `record`: the bytes. `signatures`: who may bring an add in. `reader`: the loop of a topic; `reader/origin`: what of it is
//! verified, and when; `lane`: what waits for a shard; `partition`: what is finished; `health`: what readiness shows of a topic.
//! `taker`: what surrounds the readers. `set_aside`: the file for people. `options`: all limits.

mod health;
mod lane;
mod options;
mod partition;
mod reader;
mod record;
mod set_aside;
mod signatures;
mod stats;
mod taker;

pub use options::AddQueueOptions;
pub use set_aside::{SetAside, SetAsideTimer, read_set_aside};
pub use signatures::{ADD_SIGNATURE_BYTES, AddSignatures, NotVerified};
pub use stats::AddQueueStats;

#[cfg(feature = "fuzzing")]
pub(crate) use record::again;

use crate::task::NewTask;
use crate::tenants::Tenants;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use record::QueuedAdd;
use set_aside::SetAsideFile;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::due::{SlotStore, TaskKey};

/// Writes records to the topics of a queue.
#[async_trait]
pub trait QueueWriter: Send + Sync {
    /// Writes records, each with its partition key: one answer for each, in order, within `timeout` or soon after it. Ok: a
    /// broker has stored the record.
    async fn write(&self, records: Vec<(Bytes, Bytes)>, timeout: Duration) -> Vec<Result<(), NotWritten>>;
}

/// No broker has said that it has stored a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotWritten {
    /// No broker was given it.
    #[error("the queue takes nothing now: {0}")]
    Refused(String),
    /// A broker may have it or not.
    #[error("no broker has answered in time: {0}")]
    Unknown(String),
}

/// A topic that adds are taken from.
#[derive(Clone)]
pub struct QueueTopic {
    /// Its name.
    pub name: String,
    /// The broker that it lies on.
    pub broker: Arc<dyn Broker>,
    /// The partitions that it has at least; it is made where it is missing.
    pub partitions: u32,
}

/// What a queue of adds is made of.
pub struct AddQueueParts {
    /// Its options.
    pub options: AddQueueOptions,
    /// Whose tasks are taken.
    pub tenants: Arc<Tenants>,
    /// Where they go.
    pub store: Arc<dyn SlotStore>,
    /// Writes to the topics.
    pub writer: Arc<dyn QueueWriter>,
    /// What adds are signed and verified with. Without it every add is taken, whoever wrote it.
    pub signatures: Option<Arc<dyn AddSignatures>>,
    /// All topics that may have records of the queue.
    pub topics: Vec<QueueTopic>,
    /// The process's own folder: for the id of the store, and for records that are set aside.
    pub folder: PathBuf,
    /// The clock that records are dated by.
    pub clock: Clock,
}

/// The queue of adds of a store. Clones share one.
#[derive(Clone)]
pub struct AddQueue(Arc<Own>);

struct Own {
    inner: Arc<Inner>,
    stop: watch::Sender<bool>,
    running: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Inner {
    options: AddQueueOptions,
    tenants: Arc<Tenants>,
    store: Arc<dyn SlotStore>,
    writer: Arc<dyn QueueWriter>,
    signatures: Option<Arc<dyn AddSignatures>>,
    topics: Vec<Arc<QueueTopic>>,
    folder: PathBuf,
    clock: Clock,
    stats: Arc<AddQueueStats>,
    identity: Mutex<Identity>,
    set_aside: SetAsideFile,
    is_closing: AtomicBool,
    /// What does not work now, by its name.
    troubles: Mutex<BTreeMap<String, String>>,
}

/// What is known of the id of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// Nothing: nothing can be written, for nobody would take it.
    Unknown,
    /// An option says it, or an earlier start has learnt it.
    Assumed(u64),
    /// The store has said it.
    Known(u64),
    /// The store says another one than the option.
    Mistyped { option: u64, own: u64 },
}

/// A task was not written to the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    /// Nothing was written.
    Not(String),
    /// It may be written or not.
    Unknown(String),
    /// It takes nothing any more.
    Closing,
}

/// A task whose key is known to be there.
pub(crate) struct KeyedTask {
    pub task: NewTask,
    pub key: TaskKey,
}

impl AddQueue {
    /// Starts as tasks of the current tokio runtime. Never waits and never fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(parts: AddQueueParts) -> Self {
        let AddQueueParts { options, tenants, store, writer, signatures, topics, folder, clock } = parts;
        let identity = options.store_id.or_else(|| taker::noted_id(&folder));
        let inner = Arc::new(Inner {
            set_aside: SetAsideFile::new(&folder, options.set_aside_bytes_max),
            options,
            tenants,
            store,
            writer,
            signatures,
            topics: topics.into_iter().map(Arc::new).collect(),
            folder,
            clock,
            stats: Arc::default(),
            identity: Mutex::new(identity.map_or(Identity::Unknown, Identity::Assumed)),
            is_closing: AtomicBool::new(false),
            troubles: Mutex::default(),
        });
        let (stop, stopping) = watch::channel(false);
        let running = tokio::spawn(taker::run(Arc::clone(&inner), stopping));
        Self(Arc::new(Own { inner, stop, running: Mutex::new(Some(running)) }))
    }

    /// What was written, taken and set aside.
    pub fn stats(&self) -> Arc<AddQueueStats> {
        Arc::clone(&self.0.inner.stats)
    }

    /// Whether adds can be written, and are taken.
    ///
    /// # Errors
    /// What does not work now.
    pub fn check(&self) -> Result<(), String> {
        let identity = *self.0.inner.identity.lock();
        if let Identity::Mistyped { .. } | Identity::Unknown = identity {
            return Err(identity.refusal());
        }
        let troubles = self.0.inner.troubles.lock();
        match troubles.iter().next() {
            Some((name, what)) => Err(format!("{name}: {what}")),
            None => Ok(()),
        }
    }

    pub(crate) fn is_default_of(&self, tenant: &str) -> bool {
        self.0.inner.options.default_for.contains(tenant)
    }

    fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.0.inner.options.write_timeout_ms)
    }

    /// Writes tasks: one answer for each, in order.
    pub(crate) async fn write(&self, tenant: &str, tasks: Vec<KeyedTask>) -> Vec<Result<(), QueueRefusal>> {
        let inner = &self.0.inner;
        let count = tasks.len();
        if inner.is_closing.load(Ordering::Relaxed) {
            return vec![Err(QueueRefusal::Closing); count];
        }
        let identity = *inner.identity.lock();
        let (Identity::Assumed(store) | Identity::Known(store)) = identity else {
            return vec![Err(QueueRefusal::Not(identity.refusal())); count];
        };
        let written_ms = inner.clock.unix_ms();
        let signatures = inner.signatures.as_ref().filter(|_| inner.options.sign);
        let record = |KeyedTask { task, key }: KeyedTask| -> Result<(Bytes, Bytes), String> {
            let partition_key = Bytes::from([tenant.as_bytes(), &[0], key.as_bytes()].concat());
            let NewTask { target, due_ms, payload, .. } = task;
            let add =
                QueuedAdd { store, written_ms, due_ms, tenant: tenant.to_owned(), target, key, payload };
            let record = match signatures {
                Some(own) => add.encode_signed(|covered| own.sign(covered))?,
                None => add.encode(),
            };
            Ok((partition_key, record))
        };
        // Nothing goes out unsigned that is to be signed.
        let records = match tasks.into_iter().map(record).collect::<Result<Vec<_>, String>>() {
            Ok(records) => records,
            Err(what) => return vec![Err(QueueRefusal::Not(format!("it cannot be signed: {what}"))); count],
        };
        let mut answers = inner.writer.write(records, self.write_timeout()).await;
        answers.resize_with(count, || Err(NotWritten::Unknown("an answer is missing".into())));
        let answer = |answer: Result<(), NotWritten>| match answer {
            Ok(()) => {
                inner.stats.written.add(1);
                Ok(())
            }
            Err(NotWritten::Refused(what)) => {
                inner.stats.not_written.add(1);
                Err(QueueRefusal::Not(what))
            }
            Err(NotWritten::Unknown(what)) => {
                inner.stats.write_unknown.add(1);
                Err(QueueRefusal::Unknown(what))
            }
        };
        answers.into_iter().map(answer).collect()
    }

    /// Takes no more calls, and no more records from the topics; waits for what is being stored, at most `deadline`. What was
    /// read and is not finished is read again by whoever reads next.
    pub async fn close(&self, deadline: Duration) {
        self.0.inner.is_closing.store(true, Ordering::Relaxed);
        self.0.stop.send_replace(true);
        let Some(mut running) = self.0.running.lock().take() else { return };
        if tokio::time::timeout(deadline, &mut running).await.is_err() {
            tracing::warn!("the queue of adds was not done in time; its last records are read again");
            running.abort();
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().take() {
            running.abort();
        }
    }
}

impl Identity {
    fn refusal(self) -> String {
        match self {
            Self::Mistyped { option, own } => format!(
                "scheduler.queue.store_id is {option:016x}, but the store's own id is {own:016x}: correct it or leave it out"
            ),
            Self::Unknown | Self::Assumed(_) | Self::Known(_) => {
                "this process has not learnt the id of its store yet, because it has not reached it; set \
                 scheduler.queue.store_id for a process that starts while the store is away"
                    .into()
            }
        }
    }
}

impl Inner {
    /// Notes what does not work now, or that it works; returns whether it was no trouble before.
    fn is_troubled(&self, name: &str, what: Option<String>) -> bool {
        let mut troubles = self.troubles.lock();
        let before = match what {
            Some(what) => troubles.insert(name.to_owned(), what),
            None => troubles.remove(name),
        };
        before.is_none()
    }

    /// Writes to the file of records set aside; says so where that cannot be done.
    async fn write_set_aside(self: &Arc<Self>, entries: Vec<SetAside>) -> bool {
        let inner = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            inner.set_aside.append(&entries).map(|()| entries).map_err(|error| error.to_string())
        });
        match written.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(entries) => {
                self.is_troubled("records set aside", None);
                for entry in entries {
                    let key = entry.timer.as_ref().map_or("", |timer| &timer.key);
                    tracing::warn!(
                        topic = entry.topic,
                        partition = entry.partition,
                        offset = entry.offset,
                        reason = entry.reason,
                        key,
                        "a record of the queue of adds was set aside; its timer does not fire"
                    );
                }
                true
            }
            Err(what) => {
                tracing::error!(what, "records of the queue of adds cannot be set aside; they are held");
                self.is_troubled("records set aside", Some(what));
                false
            }
        }
    }
}

/// Ready when it is to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An owner that is gone wants nothing any more.
    let _gone_or_told = stop.wait_for(|is_stopping| *is_stopping).await.is_ok();
}
