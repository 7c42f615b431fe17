//! Requests to the cluster and its controller: whether it can be reached, which topics it has, a group's lag, and new
//! topics.

use super::local::Local;
use super::options::{KafkaOptions, OVERHEAD_BYTES};
use super::watch::Watch;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Lag, OpenError};

/// How long the first try to reach the cluster waits before it looks for errors that no try will mend. Each next one
/// waits twice as long.
const LOOK: Duration = Duration::from_millis(250);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// A client that is no member of any group, but may ask for a group's offsets. It connects in the background, and again
/// when the cluster was away.
pub(super) struct Observer {
    group: String,
    /// Made when the cluster is first asked, because it connects to brokers that the cluster names.
    client: OnceLock<BaseConsumer<Watch>>,
    /// Who says first whether all brokers are on this machine, where plain text must not leave it.
    local: Option<Local>,
    options: Arc<KafkaOptions>,
}

impl Observer {
    /// Makes the client; with `local`, when the brokers have been judged. It needs no cluster, and reports options that
    /// librdkafka refuses.
    pub(super) fn new(
        options: &Arc<KafkaOptions>,
        group: &str,
        local: Option<Local>,
    ) -> Result<Self, OpenError> {
        let observer =
            Self { group: group.to_owned(), client: OnceLock::new(), local, options: Arc::clone(options) };
        if observer.local.is_none() {
            observer.client()?;
        }
        Ok(observer)
    }

    /// The client. It connects by itself, so where plain text must not leave this machine the brokers are judged before.
    fn client(&self) -> Result<&BaseConsumer<Watch>, OpenError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let config = self.options.observer(&self.group);
        let client = config.create_with_context(Watch::default()).map_err(configured)?;
        Ok(self.client.get_or_init(|| client))
    }

    /// How many partitions the topic has; `None` where there is no such topic. Does not wait long for a cluster that
    /// is away, and refuses brokers that may not be reached.
    pub(super) fn partitions(&self, topic: &str) -> Result<Option<u32>, OpenError> {
        if let Some(local) = &self.local {
            local.judge(&self.options)?;
        }
        let client = self.client()?;
        tried(
            &self.options,
            client.context(),
            |wait| partitions_of(client, topic, wait),
            || drop(client.poll(Duration::ZERO)),
        )
    }

    /// The number of partitions of a topic, which must exist.
    pub(super) fn existing(&self, topic: &str) -> Result<u32, OpenError> {
        let absent = || {
            OpenError::Absent(format!("kafka at {} has no topic `{topic}`", self.options.bootstrap_servers))
        };
        self.partitions(topic)?.ok_or_else(absent)
    }

    /// On how many brokers the least replicated partition of a topic, which must exist, is to be.
    pub(super) fn copies(&self, topic: &str) -> Result<usize, OpenError> {
        self.existing(topic)?;
        let metadata = self.client()?.client().fetch_metadata(Some(topic), self.options.request_timeout());
        let metadata = metadata.map_err(|error| unreachable(&error))?;
        let found = metadata.topics().iter().filter(|found| found.name() == topic);
        let copies = found.flat_map(|found| found.partitions()).map(|one| one.replicas().len()).min();
        copies.ok_or_else(|| OpenError::Unavailable(format!("kafka: topic `{topic}` has no partitions now")))
    }

    /// The lag of `group`, which must be the client's, in the topic. The caller has had the brokers judged.
    pub(super) fn lag(&self, topic: &str, partitions: u32) -> Result<Lag, OpenError> {
        let (client, timeout) = (self.client()?, self.options.request_timeout());
        let mut asked = TopicPartitionList::new();
        for partition in 0..partitions {
            asked.add_partition(topic, i32::try_from(partition).unwrap_or(i32::MAX));
        }
        let committed = client.committed_offsets(asked, timeout).map_err(|error| unreachable(&error))?;
        let mut lag = Lag::default();
        for place in committed.elements() {
            // Else a partition whose offset is not known would count as one that has none.
            place.error().map_err(|error| unreachable(&error))?;
            let (low, high) = client
                .fetch_watermarks(topic, place.partition(), timeout)
                .map_err(|error| unreachable(&error))?;
            // Where nothing is committed, or something outside of the log, reading starts at what is still kept.
            let at = match place.offset() {
                Offset::Offset(at) if (low..=high).contains(&at) => at,
                _ => low,
            };
            lag.end += u64::try_from(high).unwrap_or(0);
            lag.committed += u64::try_from(at).unwrap_or(0);
        }
        Ok(lag)
    }
}

/// Asks until there is an answer, the cluster turns us away, or the patience of the options is over. `hand_over` hands the
/// client's errors to the watch.
pub(super) fn tried<T>(
    options: &KafkaOptions,
    watch: &Watch,
    ask: impl Fn(Duration) -> Result<T, KafkaError>,
    hand_over: impl Fn(),
) -> Result<T, OpenError> {
    // What an earlier try met may be over.
    watch.forget();
    let (patience, servers) = (options.connect_timeout(), &options.bootstrap_servers);
    let (started, mut wait) = (Instant::now(), LOOK);
    loop {
        let left = patience.saturating_sub(started.elapsed());
        let error = match ask(wait.min(left)) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        hand_over();
        if let Some(what) = watch.hopeless() {
            return Err(OpenError::Invalid(format!("kafka at {servers} turns us away: {what}")));
        }
        match unreachable(&error) {
            OpenError::Unavailable(_) if started.elapsed() < patience => {
                wait = (wait * 2).min(patience.max(LOOK));
                // Some failures come at once.
                std::thread::sleep(PAUSE.min(patience.saturating_sub(started.elapsed())));
            }
            OpenError::Unavailable(what) => {
                let what = watch.last().unwrap_or(what);
                return Err(OpenError::Unavailable(format!(
                    "kafka at {servers}, after {patience:?}: {what}"
                )));
            }
            other => return Err(other),
        }
    }
}

/// How many partitions the topic has; `None` where there is no such topic.
pub(super) fn partitions_of<C: rdkafka::consumer::ConsumerContext>(
    client: &BaseConsumer<C>,
    topic: &str,
    timeout: Duration,
) -> Result<Option<u32>, KafkaError> {
    let metadata = client.client().fetch_metadata(Some(topic), timeout)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(None) };
    match found.error().map(RDKafkaErrorCode::from) {
        None | Some(RDKafkaErrorCode::LeaderNotAvailable) => {
            Ok(u32::try_from(found.partitions().len()).ok().filter(|count| *count > 0))
        }
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Ok(None),
        Some(other) => Err(KafkaError::MetadataFetch(other)),
    }
}

/// Makes the topic, or more partitions of it, and waits until every partition has a leader.
pub(super) fn ensure_topic(observer: &Observer, topic: &str, partitions: u32) -> Result<(), OpenError> {
    let options = &observer.options;
    let found = observer.partitions(topic)?;
    if found.is_some_and(|found| found >= partitions) {
        return Ok(());
    }
    let admin: AdminClient<DefaultClientContext> = options.client().create().map_err(configured)?;
    let timeout = options.request_timeout().max(options.connect_timeout());
    let waits = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let count = |partitions: u32| {
        i32::try_from(partitions)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| OpenError::Invalid(format!("topic `{topic}` with {partitions} partitions")))
    };
    let results = if found.is_none() {
        let bytes_max = (options.record_bytes_max + OVERHEAD_BYTES).to_string();
        let min_insync = options.min_insync_replicas.map(|copies| copies.to_string());
        let (age, size) = (options.retention_ms.to_string(), options.retention_bytes.to_string());
        let mut new = NewTopic::new(topic, count(partitions)?, TopicReplication::Fixed(options.replication))
            .set("max.message.bytes", &bytes_max)
            .set("cleanup.policy", "delete")
            .set("retention.ms", &age)
            .set("retention.bytes", &size);
        if let Some(copies) = &min_insync {
            new = new.set("min.insync.replicas", copies);
        }
        block_on(admin.create_topics([&new], &waits))
    } else {
        let wanted = usize::try_from(count(partitions)?).unwrap_or(usize::MAX);
        block_on(admin.create_partitions([&NewPartitions::new(topic, wanted)], &waits))
    };
    for result in results.map_err(|error| unreachable(&error))? {
        match result {
            // Somebody else was faster.
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists | RDKafkaErrorCode::InvalidPartitions)) => {}
            Err((_, code)) => {
                let what = format!("kafka does not make topic `{topic}`: {code}");
                let is_final = is_final(code) || code == RDKafkaErrorCode::InvalidConfig;
                return Err(if is_final { OpenError::Invalid(what) } else { OpenError::Unavailable(what) });
            }
        }
    }
    await_leaders(observer, topic, partitions, timeout)
}

fn await_leaders(
    observer: &Observer,
    topic: &str,
    partitions: u32,
    timeout: Duration,
) -> Result<(), OpenError> {
    let started = Instant::now();
    let wanted = usize::try_from(partitions).unwrap_or(usize::MAX);
    loop {
        let metadata =
            observer.client()?.client().fetch_metadata(Some(topic), observer.options.request_timeout());
        let led = metadata.as_ref().map(|metadata| {
            let topics = metadata.topics().iter().filter(|found| found.name() == topic);
            topics.flat_map(|found| found.partitions()).filter(|one| one.leader() >= 0).count()
        });
        match led {
            Ok(led) if led >= wanted => return Ok(()),
            Ok(led) if started.elapsed() > timeout => {
                return Err(OpenError::Unavailable(format!(
                    "topic `{topic}`: {led} of {partitions} partitions have a leader after {timeout:?}"
                )));
            }
            Err(error) if started.elapsed() > timeout => return Err(unreachable(error)),
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The error for settings that librdkafka does not take.
pub(super) fn configured(error: KafkaError) -> OpenError {
    OpenError::Invalid(format!("kafka: {error}"))
}

pub(super) fn unreachable(error: &KafkaError) -> OpenError {
    let what = format!("kafka: {error}");
    if error.rdkafka_error_code().is_some_and(is_final) {
        OpenError::Invalid(what)
    } else {
        OpenError::Unavailable(what)
    }
}

/// Whether the same request would fail again.
fn is_final(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::InvalidTopic
            | Code::InvalidGroupId
            | Code::PolicyViolation
            | Code::UnsupportedVersion
            | Code::UnsupportedFeature
    )
}

/// Waits for a future of librdkafka's, which ends by itself in time and needs no runtime.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
