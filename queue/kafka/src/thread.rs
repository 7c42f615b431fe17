//! The thread that owns librdkafka's consumer: it reads ahead, takes and gives back partitions, and joins the group
//! again after a fatal error.
//!
//! Rebalances are not carried out where librdkafka reports them, but here, in step with the caller: a partition is
//! given back when the caller has polled again after it was told.

mod arrivals;
mod losses;

use super::cluster;
use super::native;
use super::shared::{Order, Read, Shared};
use super::watch::{self, Watch};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, ClientContext, Message, Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use windfall_contract::broker::{Epoch, InRecord};

/// How long a poll waits for a record. Orders wait as long.
const LOOK: Duration = Duration::from_millis(10);
/// The number of records that are handed over at once, at most.
const BATCH_RECORDS: usize = 512;
/// The number of bytes that are handed over at once, roughly.
const BATCH_BYTES: usize = 1 << 20;
/// Small records share allocations of this size; one that is kept long keeps its neighbours' memory.
const SLAB_BYTES: usize = 8 << 10;
/// If the caller has not taken what librdkafka holds within this time, librdkafka is told to hold nothing: events
/// wait behind records in its queue, and a rebalance must not.
const STALL: Duration = Duration::from_secs(2);
/// How long a question to the cluster may take that is asked again, or that reading goes on without: a frozen broker must
/// not hold this thread for long.
const ASK: Duration = Duration::from_millis(500);
/// The wait before watermarks are asked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The wait before the group is joined again after a fatal error.
const REJOIN: Duration = Duration::from_secs(1);

pub(super) type Client = BaseConsumer<Events>;

/// Keeps rebalances until the thread comes to them.
#[derive(Default)]
pub(super) struct Events {
    rebalances: Mutex<Vec<(Rebalance, TopicPartitionList)>>,
    /// Whether the client is being closed: partitions are then given back at once.
    is_closing: AtomicBool,
    watch: Watch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rebalance {
    Assign,
    Revoke { lost: bool },
}

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        watch::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.watch.error(error, reason);
    }
}

impl ConsumerContext for Events {
    fn rebalance(&self, client: &BaseConsumer<Self>, kind: RDKafkaRespErr, list: &mut TopicPartitionList) {
        if self.is_closing.load(SeqCst) {
            return give_back(client, list);
        }
        let kind = match kind {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assign,
            _ => Rebalance::Revoke { lost: client.assignment_lost() },
        };
        self.rebalances.lock().push((kind, list.clone()));
    }
}

fn give_back(client: &BaseConsumer<Events>, list: &TopicPartitionList) {
    let done = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_unassign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => client.unassign(),
    };
    // What is not ours any more cannot be given back one by one.
    if let Err(error) = done.or_else(|_| client.unassign()) {
        tracing::warn!(%error, "kafka: partitions could not be given back");
    }
}

/// The offset at which reading starts. 0 stands for the beginning of the log, wherever that is.
fn start(next: u64) -> Offset {
    match i64::try_from(next) {
        Ok(0) | Err(_) => Offset::Beginning,
        Ok(next) => Offset::Offset(next),
    }
}

/// Before a client is dropped, which leaves the group and waits for every rebalance to be carried out: nothing may
/// be pending, and what still comes is carried out at once.
fn leave(client: &Client) {
    client.context().is_closing.store(true, SeqCst);
    for (kind, list) in std::mem::take(&mut *client.context().rebalances.lock()) {
        if kind != Rebalance::Assign {
            give_back(client, &list);
        }
    }
    if let Err(error) = client.unassign() {
        tracing::debug!(%error, "kafka: leaving");
    }
}

/// The state of the thread.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) topic: String,
    pub(super) config: ClientConfig,
    pub(super) poll_interval_max: Duration,
    pub(super) request_timeout: Duration,
    pub(super) metadata_refresh: Duration,
    pub(super) prefetch_bytes: usize,
    /// Counts how often partitions were taken away at once, from any member that the broker has opened.
    pub(super) lost_assignments: Arc<AtomicU64>,
    /// The client in use, for commits.
    pub(super) current: Arc<Mutex<Option<Arc<Client>>>>,
    pub(super) left: oneshot::Sender<()>,
}

/// One membership: from joining to leaving or to a fatal error.
struct Member<'a> {
    reader: &'a Reader,
    client: Arc<Client>,
    /// Partitions that are assigned and not yet taken: their committed offsets are being asked for.
    arriving: Vec<u32>,
    /// Partitions to be given back as soon as no commit names them any more.
    releasing: Vec<u32>,
    /// When the next look for a partition that is out of range is due; `None` while none is.
    astray: Option<Instant>,
    /// When partitions of a topic that was created anew are to be begun at its beginning; `None` while there are none.
    created_anew: Option<Instant>,
    /// Whether librdkafka is told to hold nothing until there is room.
    is_stalled: bool,
    /// Since when librdkafka's queue was not seen empty, and how much was taken from it since.
    busy_since: Option<Instant>,
    busy_bytes: usize,
    refreshed_at: Instant,
    slab: BytesMut,
}

enum End {
    Closed,
    Fatal(String),
}

impl Reader {
    pub(super) fn connect(&self) -> KafkaResult<Arc<Client>> {
        let client: Client = self.config.create_with_context(Events::default())?;
        client.subscribe(&[&self.topic])?;
        Ok(Arc::new(client))
    }

    /// Lets go of the client, whose end may take seconds, outside of the lock that commits wait for.
    fn forget_client(&self) {
        let old = self.current.lock().take();
        drop(old);
    }

    /// Reads until the consumer is closed.
    pub(super) fn run(self, first: Arc<Client>) {
        let over = Over(Arc::clone(&self.shared));
        let mut client = Some(first);
        while !self.shared.state.lock().is_closing {
            let joined = match client.take() {
                Some(client) => Ok(client),
                None => self.connect(),
            };
            let fatal = match joined {
                Ok(client) => {
                    *self.current.lock() = Some(Arc::clone(&client));
                    let end = Member::new(&self, Arc::clone(&client)).run();
                    leave(&client);
                    match end {
                        End::Closed => break,
                        End::Fatal(what) => what,
                    }
                }
                Err(error) => error.to_string(),
            };
            tracing::error!(topic = self.topic, fatal, "kafka: joins its group again");
            self.lost_assignments.fetch_add(1, SeqCst);
            let mut state = self.shared.state.lock();
            state.all_lost();
            state.trouble = Some(fatal);
            drop(state);
            self.shared.arrived.notify_one();
            self.forget_client();
            self.shared.await_order(REJOIN);
        }
        self.forget_client();
        drop(over);
        // Nobody may be waiting.
        self.left.send(()).ok();
    }
}

/// Notes that the thread has ended, also when it panics.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.arrived.notify_one();
    }
}

impl<'a> Member<'a> {
    fn new(reader: &'a Reader, client: Arc<Client>) -> Self {
        Self {
            reader,
            client,
            arriving: Vec::new(),
            releasing: Vec::new(),
            astray: None,
            created_anew: None,
            is_stalled: false,
            busy_since: None,
            busy_bytes: 0,
            refreshed_at: Instant::now(),
            slab: BytesMut::new(),
        }
    }

    fn run(mut self) -> End {
        let mut batch = Vec::<Read>::with_capacity(BATCH_RECORDS);
        loop {
            let (orders, is_closing, is_full, silent) = {
                let mut state = self.reader.shared.state.lock();
                let orders: Vec<_> = state.orders.drain(..).collect();
                let is_full = if self.is_stalled { !state.has_room() } else { state.is_full() };
                (orders, state.is_closing, is_full, state.polled_at.elapsed())
            };
            if is_closing {
                self.release_all(orders);
                return End::Closed;
            }
            orders.into_iter().for_each(|order| self.carry_out(order));
            self.release();
            if silent > self.reader.poll_interval_max {
                // Not polled any more, librdkafka gives up the membership: others take what hangs here.
                self.reader.shared.await_order(LOOK * 10);
                continue;
            }
            self.arrive();
            self.find_lost();
            self.refresh();
            self.begin_new_log();
            if is_full && !self.is_stalled {
                self.look_for_stall();
                self.reader.shared.await_order(LOOK);
                if !self.is_stalled {
                    continue;
                }
            }
            if self.is_stalled && !is_full {
                self.hold(false);
            }
            if let Some(fatal) = self.fill(&mut batch) {
                return End::Fatal(fatal);
            }
            self.rebalance();
        }
    }

    /// Reads what is there, up to a batch.
    fn fill(&mut self, batch: &mut Vec<Read>) -> Option<String> {
        let client = Arc::clone(&self.client);
        let (mut bytes, mut wait) = (0, LOOK);
        let mut fatal = None;
        while batch.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
            match client.poll(wait) {
                Some(Ok(message)) => {
                    bytes += message.payload_len() + message.key_len();
                    batch.extend(self.record(&message));
                    wait = Duration::ZERO;
                }
                Some(Err(error)) => {
                    fatal = self.trouble(&error);
                    break;
                }
                None => {
                    self.busy_since = None;
                    break;
                }
            }
        }
        self.busy_bytes += bytes;
        if !batch.is_empty() {
            self.reader.shared.append(batch);
        }
        fatal
    }

    fn record(&mut self, message: &BorrowedMessage<'_>) -> Option<Read> {
        let partition = u32::try_from(message.partition()).ok()?;
        let offset = u64::try_from(message.offset()).ok()?;
        let key = self.copy(message.key().unwrap_or_default());
        let payload = self.copy(message.payload().unwrap_or_default());
        // The epoch is filled in when it is appended.
        Some((InRecord { partition, epoch: Epoch(0), offset, key, payload }, native::leader_epoch(message)))
    }

    /// The one copy: librdkafka's memory is its own.
    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() > SLAB_BYTES / 4 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.slab.capacity() < bytes.len() {
            self.slab = BytesMut::with_capacity(SLAB_BYTES);
        }
        self.slab.extend_from_slice(bytes);
        self.slab.split().freeze()
    }

    /// Handles an error of librdkafka's poll. A fatal one ends the membership.
    fn trouble(&mut self, error: &KafkaError) -> Option<String> {
        if let KafkaError::MessageConsumptionFatal(_) = error {
            let fatal = self.client.client().fatal_error();
            return Some(fatal.map_or_else(|| error.to_string(), |(code, what)| format!("{code}: {what}")));
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PollExceeded) {
            tracing::warn!(topic = self.reader.topic, "kafka: polled too rarely; the partitions are gone");
            return None;
        }
        use RDKafkaErrorCode as Code;
        let code = error.rdkafka_error_code();
        if matches!(code, Some(Code::AutoOffsetReset | Code::LogTruncation | Code::OffsetOutOfRange)) {
            self.astray.get_or_insert_with(Instant::now);
            return None;
        }
        let what = self.client.context().watch.last().unwrap_or_else(|| error.to_string());
        tracing::debug!(topic = self.reader.topic, %error, what, "kafka");
        self.reader.shared.state.lock().trouble = Some(what);
        self.reader.shared.arrived.notify_one();
        None
    }

    /// Gives back the partitions that are being revoked: a client that leaves would wait for that for ever.
    fn release_all(&self, orders: Vec<Order>) {
        let mut gone = self.reader.shared.state.lock().leaving();
        gone.extend(&self.releasing);
        for order in orders {
            if let Order::Release(partitions) = order {
                gone.extend(partitions);
            }
        }
        if !gone.is_empty() {
            give_back(&self.client, &self.list(&gone));
        }
    }

    fn carry_out(&mut self, order: Order) {
        let done = match order {
            Order::Release(partitions) => {
                self.releasing.extend(partitions);
                Ok(())
            }
            // One that was begun anew meanwhile is not parked any more, and nobody would resume it.
            Order::Park(partition) if !self.reader.shared.state.lock().is_parked(partition) => Ok(()),
            Order::Park(partition) => self.client.pause(&self.list(&[partition])),
            Order::Resume(partition) => self.resume(partition),
        };
        if let Err(error) = done {
            // A partition that has gone meanwhile is said by a rebalance; else a resumption is tried again.
            tracing::warn!(topic = self.reader.topic, %error, "kafka: an order failed");
        }
    }

    /// Gives back what was announced. A commit that runs goes first: the broker takes it from any member of the
    /// group's present generation, so it must not come behind one of the next owner.
    fn release(&mut self) {
        if self.releasing.is_empty() || self.reader.shared.state.lock().is_committing(&self.releasing) {
            return;
        }
        let partitions = std::mem::take(&mut self.releasing);
        give_back(&self.client, &self.list(&partitions));
    }

    fn resume(&self, partition: u32) -> KafkaResult<()> {
        let Some(next) = self.reader.shared.state.lock().wanted(partition) else { return Ok(()) };
        let offset = start(next);
        let partition_of_theirs = i32::try_from(partition).unwrap_or(i32::MAX);
        let sought =
            self.client.seek(&self.reader.topic, partition_of_theirs, offset, self.reader.request_timeout);
        let mut state = self.reader.shared.state.lock();
        if sought.is_err() {
            if state.wanted(partition).is_some() {
                state.orders.push_back(Order::Resume(partition));
            }
            return sought;
        }
        state.unpark(partition);
        drop(state);
        // Where all is held, it begins with the others.
        if self.is_stalled { Ok(()) } else { self.client.resume(&self.list(&[partition])) }
    }

    fn list(&self, partitions: &[u32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            list.add_partition(&self.reader.topic, i32::try_from(*partition).unwrap_or(i32::MAX));
        }
        list
    }

    /// Tells librdkafka to hold nothing, if the caller takes less than it holds.
    fn look_for_stall(&mut self) {
        let since = *self.busy_since.get_or_insert_with(Instant::now);
        if since.elapsed() < STALL {
            return;
        }
        if self.busy_bytes < self.reader.prefetch_bytes {
            self.hold(true);
        }
        (self.busy_since, self.busy_bytes) = (None, 0);
    }

    fn hold(&mut self, hold: bool) {
        let list = self.list(&self.reader.shared.state.lock().ours());
        let done = if hold { self.client.pause(&list) } else { self.client.resume(&list) };
        if let Err(error) = done {
            tracing::warn!(topic = self.reader.topic, %error, hold, "kafka: could not pause or resume");
        }
        self.is_stalled = hold;
    }

    fn rebalance(&mut self) {
        let rebalances = std::mem::take(&mut *self.client.context().rebalances.lock());
        for (kind, list) in rebalances {
            let partitions: Vec<u32> =
                list.elements().iter().filter_map(|place| u32::try_from(place.partition()).ok()).collect();
            match kind {
                Rebalance::Assign => {
                    self.arriving.extend(&partitions);
                    if partitions.is_empty() {
                        // librdkafka waits for an answer all the same.
                        self.assign(&TopicPartitionList::new());
                    }
                }
                Rebalance::Revoke { lost } => self.revoke(partitions, lost),
            }
            // The topic may have grown.
            self.refreshed_at =
                Instant::now().checked_sub(self.reader.metadata_refresh).unwrap_or(self.refreshed_at);
        }
        self.arrive();
    }

    fn revoke(&mut self, partitions: Vec<u32>, lost: bool) {
        if lost && !partitions.is_empty() {
            self.reader.lost_assignments.fetch_add(1, SeqCst);
            tracing::warn!(
                topic = self.reader.topic,
                ?partitions,
                "kafka: partitions were taken away at once; what was not committed before comes again"
            );
        }
        let mut state = self.reader.shared.state.lock();
        let (ours, never): (Vec<_>, Vec<_>) =
            partitions.into_iter().partition(|partition| state.revoked(*partition, lost));
        drop(state);
        self.arriving.retain(|partition| !never.contains(partition));
        if lost || ours.is_empty() {
            let mut gone = never;
            gone.extend(ours);
            give_back(&self.client, &self.list(&gone));
        }
        self.reader.shared.arrived.notify_one();
    }

    /// Looks at how many partitions the topic has, now and then.
    fn refresh(&mut self) {
        if self.refreshed_at.elapsed() < self.reader.metadata_refresh {
            return;
        }
        self.refreshed_at = Instant::now();
        // The number is asked for again.
        let found = cluster::partitions_of(&self.client, &self.reader.topic, ASK);
        if let Ok(Some(partitions)) = found {
            let mut state = self.reader.shared.state.lock();
            state.partitions = state.partitions.max(partitions);
            drop(state);
            self.ask_topic_id(ASK);
        }
    }
}
