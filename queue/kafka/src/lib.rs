//! The driver of Kafka, by librdkafka.
//! - [`KafkaOptions`]: the cluster's address, the credentials, and what may be tuned.
//! - [`KafkaBroker`]: the [`Broker`] of one cluster. A topic's producer is one idempotent client (acks=all) and one
//!   thread; a consumer is one member of a group, one thread that reads ahead, and one that commits.
//!
//! What it adds to librdkafka: a record's tag comes back in its report, exactly once, even when the producer is
//! closed before the broker answered; a partition is given back only when the caller has polled again after it was
//! told, so that its last commit counts; a caller that takes nothing does not keep a rebalance waiting; a fatal error
//! is followed by a new client instead of silence.
//! It does not use transactions. Delivery is at least once; the ledger credits each order once.
//! Each group of Windfall is one Kafka group per topic, `<prefix><group>.<topic>`, so that members of one topic do
//! not rebalance another's.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use windfall_contract::broker::Broker;
//! use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
//!
//! let broker = KafkaBroker::open(&KafkaOptions::at("127.0.0.1:9092"))?;
//! broker.ensure_topic("rewards", 10)?;
//! # Ok(())
//! # }
//! ```

mod cluster;
mod committer;
mod consumer;
mod finished;
mod local;
mod native;
mod options;
mod producer;
mod shared;
mod start;
mod thread;
mod topic;
mod watch;

pub use self::options::{Compression, KafkaOptions, Mechanism, Sasl, Secret};
pub use windfall_tls::TlsOptions;

use self::cluster::Observer;
use self::committer::Committer;
use self::consumer::KafkaConsumer;
use self::local::Local;
use self::producer::KafkaProducer;
use self::shared::Shared;
use self::thread::Reader;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::oneshot;
use windfall_contract::broker::{Broker, Consumer, DeliverySink, Lag, OpenError, Producer};

/// One Kafka cluster.
pub struct KafkaBroker {
    options: Arc<KafkaOptions>,
    /// Kept, so that each try to open something goes on with the connections of the last.
    observer: Arc<Observer>,
    members: Arc<Mutex<HashMap<String, HashSet<usize>>>>,
    lost_assignments: Arc<AtomicU64>,
}

impl KafkaBroker {
    /// Checks the options, and begins to connect in the background. Needs no cluster: what is opened next says
    /// whether it is there, and whether it turns us away.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for options that cannot work: out of range, a file that is not there or holds no
    /// certificate.
    pub fn open(options: &KafkaOptions) -> Result<Arc<Self>, OpenError> {
        options.check()?;
        let options = Arc::new(options.clone());
        let observer = Arc::new(Observer::new(&options, "windfall-open", Local::new(&options)?)?);
        Ok(Arc::new(Self { options, observer, members: Arc::default(), lost_assignments: Arc::default() }))
    }

    /// How often the cluster has taken partitions away from a member of this process at once, because it had counted the
    /// member as gone, or because the member had to join its group anew. The member's last commits may be void then, and
    /// the records come again. The counter outlives the broker.
    pub fn lost_assignments(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lost_assignments)
    }
}

#[async_trait]
impl Broker for KafkaBroker {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        cluster::ensure_topic(&self.observer, &self.options.topic(topic), partitions)
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let topic = self.options.topic(topic);
        self.observer.existing(&topic)?;
        let settings = topic::settings(&self.options, &topic)?;
        Ok(Arc::new(KafkaProducer::open(&self.options, &topic, settings.record_bytes_max, sink)?))
    }

    fn hazards(&self, topic: &str) -> Result<Vec<String>, OpenError> {
        let topic = self.options.topic(topic);
        topic::hazards(&self.options, &topic, self.observer.copies(&topic)?)
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        let (group, topic) = (self.options.group(topic, group), self.options.topic(topic));
        let member = Membership::next(&self.members, &group);
        let (options, observer) = (Arc::clone(&self.options), Arc::clone(&self.observer));
        let lost_assignments = Arc::clone(&self.lost_assignments);
        let opened = blocking(move || {
            let partitions = observer.existing(&topic)?;
            open_consumer(&options, &topic, partitions, &group, member, lost_assignments)
        });
        Ok(Box::new(opened.await?))
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        let (group, topic) = (self.options.group(topic, group), self.options.topic(topic));
        let (options, observer) = (Arc::clone(&self.options), Arc::clone(&self.observer));
        blocking(move || {
            let partitions = observer.existing(&topic)?;
            Observer::new(&options, &group, None)?.lag(&topic, partitions)
        })
        .await
    }
}

fn open_consumer(
    options: &KafkaOptions,
    topic: &str,
    partitions: u32,
    group: &str,
    member: Membership,
    lost_assignments: Arc<AtomicU64>,
) -> Result<KafkaConsumer, OpenError> {
    let settings = topic::settings(options, topic)?;
    let prefetch_bytes = usize::try_from(options.prefetch_kib).unwrap_or(usize::MAX).saturating_mul(1024);
    let shared = Arc::new(Shared::new(partitions, prefetch_bytes));
    let current = Arc::new(Mutex::new(None));
    let (left, has_left) = oneshot::channel();
    let reader = Reader {
        shared: Arc::clone(&shared),
        topic: topic.to_owned(),
        config: options.consumer(group, member.number),
        poll_interval_max: options.poll_interval_max(),
        request_timeout: options.request_timeout(),
        metadata_refresh: std::time::Duration::from_millis(options.metadata_refresh_ms.into()),
        prefetch_bytes,
        lost_assignments,
        current: Arc::clone(&current),
        left,
    };
    let committer = Committer::start(topic, current, Arc::clone(&shared))?;
    let first = reader.connect().map_err(cluster::configured)?;
    let name = format!("read-{topic}");
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || reader.run(first))
        .map_err(|error| OpenError::Io { place: name, what: error.to_string() })?;
    Ok(KafkaConsumer {
        shared,
        committer,
        request_timeout: options.request_timeout(),
        left: Some(has_left),
        may_delete_unread: !settings.hazards.is_empty(),
        _member: member,
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|died| Err(OpenError::Unavailable(format!("opening was cut off: {died}"))))
}

/// A member's number in its group within this process: the lowest that is free, so that a restart finds the same.
struct Membership {
    all: Arc<Mutex<HashMap<String, HashSet<usize>>>>,
    group: String,
    number: usize,
}

impl Membership {
    fn next(all: &Arc<Mutex<HashMap<String, HashSet<usize>>>>, group: &str) -> Self {
        let mut groups = all.lock();
        let taken = groups.entry(group.to_owned()).or_default();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or(usize::MAX);
        taken.insert(number);
        drop(groups);
        Self { all: Arc::clone(all), group: group.to_owned(), number }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(taken) = self.all.lock().get_mut(&self.group) {
            taken.remove(&self.number);
        }
    }
}
