//! Takes records without waiting, and reports each once.

use super::engine::Engine;
use super::options::RocketOptions;
use super::payload::{self, MAX_KEY_BYTES};
use super::sender;
use crate::contract::{Delivery, DeliverySink, OutRecord, Producer, SendRefused, Tag};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use windfall_rocketmq::{CallError, Client, OutMessage};

/// While nobody listens, records are refused at once, but for one try now and then.
const MIN_REST: Duration = Duration::from_millis(50);
const MAX_REST: Duration = Duration::from_secs(1);
/// What a message takes besides its payload: properties, id, framing.
const OVERHEAD_BYTES: usize = 256;

pub(super) struct RocketProducer {
    shared: Arc<Shared>,
    sender: JoinHandle<()>,
    /// The threads live as long as we do.
    _engine: Arc<Engine>,
}

pub(super) struct Shared {
    pub(super) options: RocketOptions,
    sink: Arc<dyn DeliverySink>,
    state: Mutex<State>,
    /// Something to send, or to stop for.
    pub(super) filled: Notify,
    /// Everything is reported.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Sent and not answered. Whoever takes a batch out reports it: exactly one report a record.
    batches: HashMap<u64, Batch>,
    next_batch: u64,
    unreported_records: usize,
    unreported_bytes: usize,
    closed: bool,
    rest: Option<Rest>,
}

struct Waiting {
    tag: Tag,
    message: OutMessage,
    bytes: usize,
    since: Instant,
}

struct Batch {
    tags: Vec<Tag>,
    bytes: usize,
}

/// The server could not be reached.
struct Rest {
    until: Instant,
    length: Duration,
    what: String,
}

/// What the sender has to do.
pub(super) enum Work {
    Send(u64, Vec<OutMessage>),
    WaitUntil(Instant),
    WaitForRecords,
}

impl RocketProducer {
    pub(super) fn start(
        engine: Arc<Engine>,
        options: RocketOptions,
        client: Client,
        topic: String,
        sink: Arc<dyn DeliverySink>,
    ) -> Self {
        let shared = Arc::new(Shared {
            options,
            sink,
            state: Mutex::default(),
            filled: Notify::new(),
            settled: Condvar::new(),
        });
        let sender = engine.spawn(sender::run(Arc::clone(&shared), Arc::new(client), topic));
        Self { shared, sender, _engine: engine }
    }
}

impl Producer for RocketProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let Shared { options, state, .. } = &*self.shared;
        let too_large = |bytes: usize, max: usize| SendRefused::TooLarge { bytes, max };
        if record.payload.len() > options.max_record_bytes {
            return Err(too_large(record.payload.len(), options.max_record_bytes));
        }
        if record.key.len() > MAX_KEY_BYTES {
            return Err(too_large(record.key.len(), MAX_KEY_BYTES));
        }
        let bytes = record.payload.len() + record.key.len() + OVERHEAD_BYTES;
        let now = Instant::now();
        // Copied outside the lock, for others send too.
        let message = payload::to_message(record);
        let mut state = state.lock();
        if state.closed {
            return Err(SendRefused::Closed);
        }
        // One record at a time finds out whether the server is back.
        if let Some(rest) = &state.rest
            && (now < rest.until || state.unreported_records > 0)
        {
            return Err(SendRefused::Unavailable(rest.what.clone()));
        }
        let full = state.unreported_records >= options.max_unreported_records
            || state.unreported_bytes + bytes > options.max_unreported_bytes.max(bytes);
        if full {
            return Err(SendRefused::Full);
        }
        state.unreported_records += 1;
        state.unreported_bytes += bytes;
        state.waiting_bytes += bytes;
        state.waiting.push_back(Waiting { tag, message, bytes, since: now });
        let waiting = state.waiting.len();
        let wake =
            waiting == 1 || waiting == options.batch_records || state.waiting_bytes >= options.batch_bytes;
        drop(state);
        if wake {
            self.shared.filled.notify_one();
        }
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        let until = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        let first = !std::mem::replace(&mut state.closed, true);
        if !first {
            return 0;
        }
        self.shared.filled.notify_one();
        while state.unreported_records > 0 {
            if self.shared.settled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        let mut open: Vec<Tag> = state.waiting.drain(..).map(|waiting| waiting.tag).collect();
        open.extend(state.batches.drain().flat_map(|(_, batch)| batch.tags));
        drop(state);
        self.sender.abort();
        for tag in &open {
            self.shared.sink.delivered(*tag, Delivery::Unknown("closed before an answer came".into()));
        }
        open.len()
    }
}

impl Drop for RocketProducer {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

impl Shared {
    /// The next batch, if it is due.
    pub(super) fn next(&self, now: Instant) -> Work {
        let mut state = self.state.lock();
        let Some(first) = state.waiting.front() else { return Work::WaitForRecords };
        let full = state.waiting.len() >= self.options.batch_records
            || state.waiting_bytes >= self.options.batch_bytes;
        let due = first.since + Duration::from_millis(self.options.linger_ms);
        if !full && !state.closed && now < due {
            return Work::WaitUntil(due);
        }
        let mut batch = Batch { tags: Vec::new(), bytes: 0 };
        let mut messages = Vec::new();
        while let Some(waiting) = state.waiting.pop_front() {
            let over = batch.bytes + waiting.bytes > self.options.batch_bytes
                || messages.len() >= self.options.batch_records;
            if over && !messages.is_empty() {
                state.waiting.push_front(waiting);
                break;
            }
            batch.bytes += waiting.bytes;
            batch.tags.push(waiting.tag);
            messages.push(waiting.message);
        }
        state.waiting_bytes -= batch.bytes;
        let number = state.next_batch;
        state.next_batch += 1;
        state.batches.insert(number, batch);
        Work::Send(number, messages)
    }

    /// Reports a batch. Nothing if `close` has done so.
    pub(super) fn answered<T>(&self, number: u64, answer: Result<Vec<Result<T, CallError>>, CallError>) {
        let mut state = self.state.lock();
        let Some(batch) = state.batches.remove(&number) else { return };
        match &answer {
            Ok(_) => state.rest = None,
            Err(error @ CallError::NotSent { .. }) => {
                let length = state.rest.as_ref().map_or(MIN_REST, |rest| (rest.length * 2).min(MAX_REST));
                state.rest = Some(Rest { until: Instant::now() + length, length, what: error.to_string() });
            }
            Err(_) => {}
        }
        drop(state);
        match answer {
            Ok(receipts) => {
                for (tag, receipt) in batch.tags.iter().zip(receipts) {
                    self.sink
                        .delivered(*tag, receipt.map_or_else(|error| fate(&error), |_| Delivery::Stored));
                }
            }
            Err(error) => {
                for tag in &batch.tags {
                    self.sink.delivered(*tag, fate(&error));
                }
            }
        }
        let mut state = self.state.lock();
        state.unreported_records -= batch.tags.len();
        state.unreported_bytes -= batch.bytes;
        if state.unreported_records == 0 {
            self.settled.notify_all();
        }
    }
}

/// A refusal is certain; silence is not.
fn fate(error: &CallError) -> Delivery {
    if error.nothing_happened() {
        Delivery::Failed(error.to_string())
    } else {
        Delivery::Unknown(error.to_string())
    }
}
