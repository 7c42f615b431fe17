//! A topic's producer: one librdkafka client, and the thread that brings its reports.
//!
//! A record's tag travels through librdkafka as its opaque word, so a report costs neither a future nor a look-up.
//! A client that has met a fatal error is replaced.

use super::cluster;
use super::options::KafkaOptions;
use super::watch::{self, Watch};
use parking_lot::{Condvar, Mutex, RwLock};
use rdkafka::ClientContext;
use rdkafka::bindings::{rd_kafka_message_status, rd_kafka_msg_status_t};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, OwnedHeaders};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Delivery, DeliverySink, OpenError, OutRecord, Producer, SendRefused, Tag};

/// How long the thread waits for reports before it looks whether it should end. Reports are handled as they come. The
/// client spins through the last millisecond of each wait, so a short one costs a good part of a processor.
const LOOK: Duration = Duration::from_millis(100);
/// How long it waits at a time for what is still open when it ends.
const FLUSH: Duration = Duration::from_millis(10);
/// How long librdkafka may take to give back what was purged. It takes no network for that.
const PURGE: Duration = Duration::from_secs(2);
/// The wait before a client is made anew after one could not be made.
const RENEW: Duration = Duration::from_secs(1);

type Client = BaseProducer<Reports>;

pub(super) struct KafkaProducer {
    topic: String,
    record_bytes_max: usize,
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What senders, `close` and the thread share.
struct Core {
    client: RwLock<Arc<Client>>,
    reports: Arc<Counts>,
    closed: AtomicBool,
    ending: Mutex<Ending>,
    ended: Condvar,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    No,
    /// The thread is to end, and to wait for answers until this moment.
    By(Instant),
    /// It has ended, with so many records unanswered.
    Done(usize),
}

/// Counts of one producer, over all its clients.
struct Counts {
    sink: Arc<dyn DeliverySink>,
    /// Records that are taken, or being taken, and not yet reported.
    open: AtomicUsize,
    /// Whether `close` waits no longer: a record that is reported now was open at its end.
    late: AtomicBool,
    /// The records reported since then.
    unanswered: AtomicUsize,
    watch: Watch,
}

/// Receives the delivery reports of a client.
struct Reports(Arc<Counts>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        watch::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.watch.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        let counts = &self.0;
        let delivery = if counts.late.load(SeqCst) {
            counts.unanswered.fetch_add(1, SeqCst);
            Delivery::Unknown("the producer was closed before an answer came".into())
        } else {
            match result {
                Ok(_) => Delivery::Stored,
                Err((error, message)) if certainly_not_stored(message) => Delivery::Failed(error.to_string()),
                Err((error, _)) => Delivery::Unknown(error.to_string()),
            }
        };
        counts.sink.delivered(Tag(tag as u64), delivery);
        // Last: when `close` sees none open, every owner has heard.
        counts.open.fetch_sub(1, SeqCst);
    }
}

/// What librdkafka knows of a message that was not acknowledged: whether it was never sent, or refused.
#[allow(unsafe_code, reason = "rdkafka has no safe call for it")]
fn certainly_not_stored(message: &BorrowedMessage<'_>) -> bool {
    // SAFETY: the message is borrowed from a delivery report, so the pointer is valid; the call only reads it.
    let status = unsafe { rd_kafka_message_status(message.ptr()) };
    status == rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED
}

impl KafkaProducer {
    pub(super) fn open(
        options: &KafkaOptions,
        topic: &str,
        record_bytes_max: usize,
        sink: Arc<dyn DeliverySink>,
    ) -> Result<Self, OpenError> {
        let counts = Arc::new(Counts {
            sink,
            open: AtomicUsize::new(0),
            late: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            watch: Watch::default(),
        });
        let config = options.producer(record_bytes_max);
        let client = config.create_with_context(Reports(Arc::clone(&counts))).map_err(cluster::configured)?;
        let core = Arc::new(Core {
            client: RwLock::new(Arc::new(client)),
            reports: counts,
            closed: AtomicBool::new(false),
            ending: Mutex::new(Ending::No),
            ended: Condvar::new(),
        });
        let own = Arc::clone(&core);
        let name = format!("kafka-{topic}");
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || own.run(&config))
            .map_err(|error| OpenError::Io { place: name, what: error.to_string() })?;
        Ok(Self { topic: topic.to_owned(), record_bytes_max, core, thread: Mutex::new(Some(thread)) })
    }
}

impl Producer for KafkaProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        self.send_with_headers(tag, record, &[])
    }

    fn send_with_headers(
        &self,
        tag: Tag,
        record: OutRecord<'_>,
        headers: &[(&str, &[u8])],
    ) -> Result<(), SendRefused> {
        let too_large = || SendRefused::TooLarge { bytes: record.payload.len(), max: self.record_bytes_max };
        let beside: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if record.payload.len() + record.key.len() + beside > self.record_bytes_max {
            return Err(too_large());
        }
        let word = usize::try_from(tag.0)
            .map_err(|_| SendRefused::Unavailable("a tag does not fit this machine's words".into()))?;
        let core = &*self.core;
        // Counted before the look at `closed`: either `close` sees it open, or it sees that we are closed.
        core.reports.open.fetch_add(1, SeqCst);
        let taken = if core.closed.load(SeqCst) {
            Err(SendRefused::Closed)
        } else {
            let mut out = BaseRecord::with_opaque_to(&self.topic, word).payload(record.payload);
            if !record.key.is_empty() {
                out = out.key(record.key);
            }
            if !headers.is_empty() {
                let none = OwnedHeaders::new_with_capacity(headers.len());
                out = out.headers(
                    headers
                        .iter()
                        .fold(none, |all, (key, value)| all.insert(Header { key, value: Some(*value) })),
                );
            }
            core.client.read().send(out).map_err(|(error, _)| match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => SendRefused::Full,
                Some(RDKafkaErrorCode::MessageSizeTooLarge) => too_large(),
                _ => SendRefused::Unavailable(error.to_string()),
            })
        };
        if taken.is_err() {
            core.reports.open.fetch_sub(1, SeqCst);
        }
        taken
    }

    fn close(&self, timeout: Duration) -> usize {
        if self.core.closed.swap(true, SeqCst) {
            return 0;
        }
        let by = Instant::now() + timeout;
        let mut ending = self.core.ending.lock();
        *ending = Ending::By(by);
        let at_most = by + PURGE + 4 * LOOK;
        let unanswered = loop {
            if let Ending::Done(unanswered) = *ending {
                break unanswered;
            }
            if self.core.ended.wait_until(&mut ending, at_most).timed_out() {
                // The thread reports them when librdkafka gives them back.
                return self.core.reports.open.load(SeqCst);
            }
        };
        drop(ending);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(topic = self.topic, "the producer's thread had panicked");
        }
        unanswered
    }
}

impl Drop for KafkaProducer {
    /// Without `close` nobody waits for reports. The thread ends by itself, within a moment.
    fn drop(&mut self) {
        if !self.core.closed.swap(true, SeqCst) {
            *self.core.ending.lock() = Ending::By(Instant::now());
        }
    }
}

impl Core {
    fn run(&self, config: &rdkafka::ClientConfig) {
        loop {
            let client = Arc::clone(&self.client.read());
            client.poll(LOOK);
            let ending = *self.ending.lock();
            if let Ending::By(by) = ending {
                return self.end(&client, by);
            }
            if let Some((code, what)) = client.client().fatal_error() {
                tracing::error!(%code, what, "kafka: the producer is made anew");
                self.renew(&client, config);
            }
        }
    }

    /// What the old client holds is reported first: its answers will not come any more.
    fn renew(&self, old: &Client, config: &rdkafka::ClientConfig) {
        give_back(old, PURGE, || old.in_flight_count() == 0);
        match config.create_with_context(Reports(Arc::clone(&self.reports))) {
            Ok(client) => *self.client.write() = Arc::new(client),
            Err(error) => {
                tracing::error!(%error, "kafka: no new producer");
                std::thread::sleep(RENEW);
            }
        }
    }

    fn end(&self, client: &Client, by: Instant) {
        let none_open = || self.reports.open.load(SeqCst) == 0;
        while !none_open() && Instant::now() < by {
            let left = by.saturating_duration_since(Instant::now());
            // An error is that not all were answered, which the loop sees. Flushing also ends the linger.
            drop(client.flush(left.min(FLUSH)));
        }
        if !none_open() {
            self.reports.late.store(true, SeqCst);
            give_back(client, PURGE, none_open);
        }
        let left = self.reports.open.load(SeqCst);
        let unanswered = left + self.reports.unanswered.load(SeqCst);
        *self.ending.lock() = Ending::Done(unanswered);
        self.ended.notify_all();
        if left > 0 {
            tracing::error!(left, "kafka: librdkafka keeps records that were purged");
            give_back(client, PURGE * 10, none_open);
        }
    }
}

/// Purges a client's records, so that they are reported.
fn give_back(client: &Client, patience: Duration, done: impl Fn() -> bool) {
    let started = Instant::now();
    client.purge(PurgeConfig::default().queue().inflight().non_blocking());
    while !done() && started.elapsed() < patience {
        client.poll(Duration::from_millis(1));
    }
}
