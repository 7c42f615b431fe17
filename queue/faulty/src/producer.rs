//! The producing side: what is held back lives in a heap by due time, and one thread per producer works it off.

use super::{Dice, Faults, TopicFaults};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windfall_contract::broker::{
    Broker, Delivery, DeliverySink, OpenError, OutRecord, Producer, SendRefused, Tag,
};

const MAX_HELD_RECORDS: usize = 65_536;
const MAX_HELD_BYTES: usize = 32 << 20;
/// How late a report may come under `reorder`.
const REORDER_MS: std::ops::Range<u64> = 0..5;
/// The pause before a record that the broker below had no room for is tried again.
const FULL_RETRY: Duration = Duration::from_millis(1);

pub(super) struct FaultyProducer {
    held: Arc<Held>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by a producer, its thread and the sink below it.
pub(super) struct Held {
    below: Arc<dyn Producer>,
    answers: Arc<Answers>,
}

/// The part that the sink below needs; it must not own the producer that owns it.
struct Answers {
    topic: Arc<TopicFaults>,
    sink: Arc<dyn DeliverySink>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    dice: Dice,
    closed: bool,
    stopping: bool,
    /// The waiting records by due time, then by arrival.
    waiting: BTreeMap<(Instant, u64), Waiting>,
    records: usize,
    bytes: usize,
    number: u64,
    /// Sent below and not answered: the tag below → who asked, and what to say instead of the answer.
    below: HashMap<Tag, Asked>,
    /// Records that were reported as `Unknown` because the producer closed.
    abandoned: usize,
    closing: bool,
}

enum Waiting {
    Record { tag: Tag, key: Box<[u8]>, payload: Box<[u8]>, injected: InjectedFaults },
    Answer { tag: Tag, delivery: Delivery },
}

/// The faults that were drawn for one record.
#[derive(Clone, Copy)]
struct InjectedFaults {
    fail: bool,
    duplicate: bool,
    lose_answer: bool,
}

enum Asked {
    Caller {
        tag: Tag,
        lose_answer: bool,
    },
    /// The second copy of a duplicate.
    Nobody,
}

impl FaultyProducer {
    pub(super) fn open(
        broker: &dyn Broker,
        topic: &str,
        faults: Arc<TopicFaults>,
        sink: Arc<dyn DeliverySink>,
        dice: Dice,
    ) -> Result<Self, OpenError> {
        let answers = Arc::new(Answers {
            topic: faults,
            sink,
            state: Mutex::new(State {
                dice,
                closed: false,
                stopping: false,
                waiting: BTreeMap::new(),
                records: 0,
                bytes: 0,
                number: 0,
                below: HashMap::new(),
                abandoned: 0,
                closing: false,
            }),
            changed: Condvar::new(),
        });
        let below = broker.producer(topic, answers.clone())?;
        let held = Arc::new(Held { below, answers });
        let worker = held.clone();
        let thread = std::thread::Builder::new()
            .name("queue-faulty".into())
            .spawn(move || worker.run())
            .map_err(|error| OpenError::Io { place: topic.into(), what: error.to_string() })?;
        Ok(Self { held, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn held(&self) -> Weak<Held> {
        Arc::downgrade(&self.held)
    }

    fn stop(&self) {
        self.held.answers.state.lock().stopping = true;
        self.held.answers.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("a faulty producer's thread panicked");
        }
    }
}

impl Producer for FaultyProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let answers = &self.held.answers;
        let faults = answers.topic.faults.lock().clone();
        let mut state = answers.state.lock();
        if state.closed {
            return Err(SendRefused::Closed);
        }
        if faults.refuse {
            return Err(SendRefused::Unavailable("refused on purpose".into()));
        }
        let injected = InjectedFaults {
            fail: state.dice.hits(faults.fail_per_mille),
            duplicate: state.dice.hits(faults.duplicate_per_mille),
            lose_answer: state.dice.hits(faults.lose_answer_per_mille),
        };
        let delay_ms = state.dice.within(&faults.delay_ms);
        // What waits goes first, so that an order is kept unless a fault asks otherwise.
        if faults.hang || delay_ms > 0 || injected.fail || state.records > 0 {
            let size = record.key.len() + record.payload.len();
            if state.records >= MAX_HELD_RECORDS || state.bytes + size > MAX_HELD_BYTES {
                return Err(SendRefused::Full);
            }
            let (key, payload) = (record.key.into(), record.payload.into());
            state.hold(delay_ms, Waiting::Record { tag, key, payload, injected });
            drop(state);
            answers.changed.notify_all();
            return Ok(());
        }
        self.held.pass_on(state, tag, record, injected)
    }

    fn close(&self, timeout: Duration) -> usize {
        let answers = &self.held.answers;
        let started = Instant::now();
        let mut state = answers.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return 0;
        }
        while state.records > 0 || !state.waiting.is_empty() {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            answers.changed.wait_for(&mut state, left);
        }
        state.closing = true;
        drop(state);
        self.stop();
        self.held.below.close(timeout.saturating_sub(started.elapsed()));
        // Nothing below will answer any more: say what is still held.
        let mut state = answers.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let mut open = state.abandoned;
        drop(state);
        for waiting in waiting.into_values() {
            match waiting {
                Waiting::Record { tag, .. } => {
                    open += 1;
                    let what = Delivery::Unknown("the producer closed before the answer".into());
                    answers.sink.delivered(tag, what);
                }
                Waiting::Answer { tag, delivery } => answers.sink.delivered(tag, delivery),
            }
        }
        open
    }
}

impl Drop for FaultyProducer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Held {
    /// The topic's faults have changed. Always true, for `retain`.
    pub(super) fn wake(&self) -> bool {
        drop(self.answers.state.lock());
        self.answers.changed.notify_all();
        true
    }

    /// Sends a record below, twice where the faults that were drawn for it say so.
    fn pass_on(
        &self,
        mut state: MutexGuard<'_, State>,
        tag: Tag,
        record: OutRecord<'_>,
        injected: InjectedFaults,
    ) -> Result<(), SendRefused> {
        let first = state.ask(Asked::Caller { tag, lose_answer: injected.lose_answer });
        let second = injected.duplicate.then(|| state.ask(Asked::Nobody));
        // The broker below has locks of its own, and may answer at once.
        drop(state);
        let sent = self.below.send(first, record);
        let copied = match (&sent, second) {
            (Ok(()), Some(second)) => self.below.send(second, record),
            _ => Err(SendRefused::Closed),
        };
        let mut state = self.answers.state.lock();
        if sent.is_err() {
            state.below.remove(&first);
        }
        if let (Err(_), Some(second)) = (copied, second) {
            state.below.remove(&second);
        }
        sent
    }

    /// The thread: does what is due, until told to stop.
    fn run(&self) {
        let mut state = self.answers.state.lock();
        while !state.stopping {
            let hang = self.answers.topic.faults.lock().hang;
            let now = Instant::now();
            let next = state.waiting.first_key_value().map(|(key, _)| *key);
            match next {
                Some(key) if !hang && key.0 <= now => {
                    if let Some(waiting) = state.waiting.remove(&key) {
                        // Still counted, so that later sends queue up behind it.
                        MutexGuard::unlocked(&mut state, || self.work_off(key, waiting));
                    }
                    self.answers.changed.notify_all();
                }
                Some(key) if !hang => {
                    self.answers.changed.wait_until(&mut state, key.0);
                }
                _ => self.answers.changed.wait(&mut state),
            }
        }
    }

    fn work_off(&self, key: (Instant, u64), waiting: Waiting) {
        let answers = &self.answers;
        let (tag, record_key, payload, injected) = match waiting {
            Waiting::Answer { tag, delivery } => return answers.sink.delivered(tag, delivery),
            Waiting::Record { tag, key, payload, injected } => (tag, key, payload, injected),
        };
        let size = record_key.len() + payload.len();
        let failure = if injected.fail {
            Some("failed on purpose".to_owned())
        } else {
            let record = OutRecord { key: &record_key, payload: &payload };
            match self.pass_on(answers.state.lock(), tag, record, injected) {
                Ok(()) => None,
                Err(SendRefused::Full) => {
                    // It keeps its place and its faults; the thread looks again in a moment.
                    let again = (key.0.max(Instant::now() + FULL_RETRY), key.1);
                    let waiting = Waiting::Record { tag, key: record_key, payload, injected };
                    answers.state.lock().waiting.insert(again, waiting);
                    return;
                }
                Err(refused) => Some(refused.to_string()),
            }
        };
        let mut state = answers.state.lock();
        state.records -= 1;
        state.bytes -= size;
        drop(state);
        if let Some(what) = failure {
            answers.sink.delivered(tag, Delivery::Failed(what));
        }
    }
}

impl State {
    fn hold(&mut self, delay_ms: u64, waiting: Waiting) {
        if let Waiting::Record { key, payload, .. } = &waiting {
            self.records += 1;
            self.bytes += key.len() + payload.len();
        }
        self.number += 1;
        self.waiting.insert((Instant::now() + Duration::from_millis(delay_ms), self.number), waiting);
    }

    fn ask(&mut self, asked: Asked) -> Tag {
        self.number += 1;
        self.below.insert(Tag(self.number), asked);
        Tag(self.number)
    }
}

impl DeliverySink for Answers {
    fn delivered(&self, below: Tag, delivery: Delivery) {
        let Faults { hang, reorder, .. } = *self.topic.faults.lock();
        let mut state = self.state.lock();
        let Some(Asked::Caller { tag, lose_answer }) = state.below.remove(&below) else { return };
        if state.closing && matches!(delivery, Delivery::Unknown(_)) {
            state.abandoned += 1;
        }
        let delivery = match delivery {
            Delivery::Stored if lose_answer => Delivery::Unknown("the answer was lost on purpose".into()),
            other => other,
        };
        if (hang || reorder) && !state.closing {
            let delay_ms = if reorder { state.dice.within(&REORDER_MS) } else { 0 };
            state.hold(delay_ms, Waiting::Answer { tag, delivery });
            drop(state);
            self.changed.notify_all();
        } else {
            drop(state);
            self.sink.delivered(tag, delivery);
        }
    }
}
