//! What a producer has taken and not yet reported: records that wait, batches that are sent and not answered. Takes
//! without waiting, and reports each record once.

use super::options::RocketOptions;
use super::payload::{self, MAX_KEY_BYTES};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use windfall_contract::broker::{Delivery, DeliverySink, OutRecord, SendRefused, Tag};
use windfall_rocketmq_wire::{CallError, OutMessage};

/// The first pause after a failure: while the server is silent, records are refused at once, except for one try now
/// and then.
const MIN_REST: Duration = Duration::from_millis(50);
const MAX_REST: Duration = Duration::from_secs(1);
/// The bytes of a message besides its payload: properties, id and framing.
const OVERHEAD_BYTES: usize = 256;

/// What a producer shares with its sender.
pub(super) struct PendingRecords {
    pub(super) options: RocketOptions,
    sink: Arc<dyn DeliverySink>,
    state: Mutex<State>,
    /// Signals that there is something to send, or that it is time to stop.
    pub(super) filled: Notify,
    /// Signals that everything is reported.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Batches that are sent and not answered. The code that takes a batch out reports it: exactly one report per
    /// record.
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

/// The pause after the server could not be reached, or did not answer.
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

impl PendingRecords {
    pub(super) fn new(options: RocketOptions, sink: Arc<dyn DeliverySink>) -> Self {
        Self { options, sink, state: Mutex::default(), filled: Notify::new(), settled: Condvar::new() }
    }

    /// Takes a record, or says at once why not.
    pub(super) fn take(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let Self { options, state, .. } = self;
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
            self.filled.notify_one();
        }
        Ok(())
    }

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

    /// Takes nothing more, waits until everything is reported, for `timeout` at most, and takes back what is not. The
    /// caller reports that. `None` if it was closed before.
    pub(super) fn close(&self, timeout: Duration) -> Option<Vec<Tag>> {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        let first = !std::mem::replace(&mut state.closed, true);
        if !first {
            return None;
        }
        self.filled.notify_one();
        while state.unreported_records > 0 {
            if self.settled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        let mut open: Vec<Tag> = state.waiting.drain(..).map(|waiting| waiting.tag).collect();
        open.extend(state.batches.drain().flat_map(|(_, batch)| batch.tags));
        Some(open)
    }

    /// Reports what [`Self::close`] took back: nobody knows what became of it.
    pub(super) fn report_open(&self, open: &[Tag]) {
        for tag in open {
            self.sink.delivered(*tag, Delivery::Unknown("closed before an answer came".into()));
        }
    }

    /// Reports a batch. It does nothing if `close` has reported it.
    ///
    /// Where the server is silent, what waits behind is reported too, as never sent: each further batch would wait
    /// for a deadline of its own, and whoever has another way shall go it now.
    pub(super) fn answered<T>(&self, number: u64, answer: Result<Vec<Result<T, CallError>>, CallError>) {
        let mut state = self.state.lock();
        let Some(batch) = state.batches.remove(&number) else { return };
        let mut given_up = VecDeque::new();
        match &answer {
            Ok(_) => state.rest = None,
            Err(error @ (CallError::NotSent { .. } | CallError::Unknown { .. })) => {
                state.rest(Instant::now(), error);
                state.waiting_bytes = 0;
                given_up = std::mem::take(&mut state.waiting);
            }
            Err(CallError::Refused { .. }) => {}
        }
        drop(state);
        let waited: usize = given_up.iter().map(|waiting| waiting.bytes).sum();
        let _reporting = Reporting {
            pending: self,
            records: batch.tags.len() + given_up.len(),
            bytes: batch.bytes + waited,
        };
        match &answer {
            Ok(receipts) => {
                for (tag, receipt) in batch.tags.iter().zip(receipts) {
                    let delivery = receipt.as_ref().map_or_else(delivery_of, |_| Delivery::Stored);
                    self.sink.delivered(*tag, delivery);
                }
            }
            Err(error) => {
                for tag in &batch.tags {
                    self.sink.delivered(*tag, delivery_of(error));
                }
                for waiting in &given_up {
                    self.sink.delivered(waiting.tag, Delivery::Failed(format!("not sent: {error}")));
                }
            }
        }
    }
}

/// Records that are being reported. They count until that is over, even if the sink panics: `close` would wait for
/// them, and their room would be lost.
struct Reporting<'a> {
    pending: &'a PendingRecords,
    records: usize,
    bytes: usize,
}

impl Drop for Reporting<'_> {
    fn drop(&mut self) {
        let mut state = self.pending.state.lock();
        state.unreported_records -= self.records;
        state.unreported_bytes -= self.bytes;
        if state.unreported_records == 0 {
            self.pending.settled.notify_all();
        }
    }
}

impl State {
    /// Refuses records for a while: longer with each try that fails, not with each batch of one.
    fn rest(&mut self, now: Instant, why: &CallError) {
        let length = match &self.rest {
            None => MIN_REST,
            Some(rest) if now < rest.until => return,
            Some(rest) => (rest.length * 2).min(MAX_REST),
        };
        self.rest = Some(Rest { until: now + length, length, what: why.to_string() });
    }
}

/// The outcome that a failed call means for its records: a refusal is certain, silence is not.
fn delivery_of(error: &CallError) -> Delivery {
    if error.nothing_happened() {
        Delivery::Failed(error.to_string())
    } else {
        Delivery::Unknown(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_conformance::broker::Ledger;

    fn pending(sink: Arc<Ledger>) -> PendingRecords {
        let options = RocketOptions { linger_ms: 0, batch_records: 2, ..RocketOptions::default() };
        PendingRecords::new(options, sink)
    }

    fn take(pending: &PendingRecords, tag: u64) -> Result<(), SendRefused> {
        pending.take(Tag(tag), OutRecord { key: b"k", payload: b"pay" })
    }

    fn sent(pending: &PendingRecords) -> u64 {
        match pending.next(Instant::now()) {
            Work::Send(number, _) => number,
            _ => panic!("nothing to send"),
        }
    }

    /// A frozen server: what waits behind a batch without an answer must not wait for deadlines of its own.
    #[test]
    fn silence_ends_the_waiting() {
        let ledger = Arc::new(Ledger::default());
        let pending = pending(Arc::clone(&ledger));
        (0..5).for_each(|tag| take(&pending, tag).unwrap());
        let (first, second) = (sent(&pending), sent(&pending));
        pending.answered::<()>(first, Err(CallError::Unknown { place: "p".into(), what: "late".into() }));
        let reports = ledger.reports();
        let deliveries: Vec<_> =
            reports.iter().map(|(tag, deliveries)| (tag.0, deliveries.as_slice())).collect();
        // The second batch may still be answered.
        assert!(
            matches!(
                deliveries[..],
                [(0, [Delivery::Unknown(_)]), (1, [Delivery::Unknown(_)]), (4, [Delivery::Failed(_)])]
            ),
            "{deliveries:?}"
        );
        assert!(matches!(take(&pending, 5), Err(SendRefused::Unavailable(_))));
        pending.answered(second, Ok(vec![Ok(()), Ok(())]));
        assert_eq!(ledger.reports()[&Tag(3)], [Delivery::Stored]);
        let state = pending.state.lock();
        assert_eq!((state.unreported_records, state.unreported_bytes, state.waiting_bytes), (0, 0, 0));
        drop(state);
        take(&pending, 6).unwrap();
    }

    struct Panicking;

    impl DeliverySink for Panicking {
        fn delivered(&self, _: Tag, _: Delivery) {
            panic!("the sink's mistake");
        }
    }

    #[test]
    fn a_sink_that_panics_costs_no_room() {
        let pending = PendingRecords { sink: Arc::new(Panicking), ..pending(Arc::new(Ledger::default())) };
        (0..2).for_each(|tag| take(&pending, tag).unwrap());
        let number = sent(&pending);
        let answered = || pending.answered(number, Ok(vec![Ok(()), Ok(())]));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(answered)).unwrap_err();
        let state = pending.state.lock();
        assert_eq!((state.unreported_records, state.unreported_bytes), (0, 0));
    }

    #[test]
    fn rests_grow_with_tries() {
        let mut state = State::default();
        let why = CallError::NotSent { place: "p".into(), what: "refused".into() };
        let mut now = Instant::now();
        for millis in [50, 100, 200, 400, 800, 1000, 1000] {
            // Several batches fail at once.
            (0..3).for_each(|_| state.rest(now, &why));
            let rest = state.rest.as_ref().unwrap();
            assert_eq!(rest.length, Duration::from_millis(millis));
            now = rest.until;
        }
    }
}
