//! Two records that the scheduler never sees: what the callers heard, and what the target got.

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, Target, TaskId};

/// The bytes of a timer's payload; the first eight are its number.
const PAYLOAD_BYTES: usize = 64;
/// How long the target takes to acknowledge what it has got.
const ACKNOWLEDGE: Duration = Duration::from_millis(2);

/// What callers were told, and what the target got.
#[derive(Debug, Default)]
pub struct Journal {
    called: Mutex<Vec<Called>>,
    got: Mutex<Got>,
    /// What the line of each second shows.
    pub counts: Counts,
}

/// Counters of the callers.
#[derive(Debug, Default)]
pub struct Counts {
    /// Adds that were answered Ok.
    pub added: AtomicU64,
    /// Moves that were acknowledged.
    pub moved: AtomicU64,
    /// Cancels that were acknowledged.
    pub cancelled: AtomicU64,
    /// Changes of timers whose time had come.
    pub too_late: AtomicU64,
}

/// What a caller knows of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// What it was told last.
    pub state: State,
    /// The id that it was given.
    pub id: Option<TaskId>,
    /// When the timer is due, in Unix milliseconds.
    pub due_ms: u64,
    /// When it is due instead if a move without an answer was carried out.
    pub perhaps_due_ms: Option<u64>,
}

/// What a caller was told last of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It was not asked for.
    Unasked,
    /// Nobody knows whether it was added.
    Unanswered,
    /// It waits where it was added.
    Waiting,
    /// It waits at another time.
    Moved,
    /// It could not be changed: its time had come.
    TooLate,
    /// It was cancelled.
    Cancelled,
}

/// What the target got.
#[derive(Debug, Default)]
struct Got {
    deliveries: Vec<Delivery>,
    /// Whether the timer of this number has come.
    seen: Vec<bool>,
    distinct: u64,
}

/// A timer that the target got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Its number.
    pub number: u64,
    /// When it came, in Unix milliseconds.
    pub at_ms: u64,
    /// The id in its envelope.
    pub id: TaskId,
    /// The due time in its envelope.
    pub due_ms: u64,
    /// Which dispatcher handed it over.
    pub instance: usize,
}

impl Journal {
    /// For so many timers.
    pub fn new(timers: u64) -> Self {
        let timers = usize::try_from(timers).unwrap_or(0);
        let unasked = Called { state: State::Unasked, id: None, due_ms: 0, perhaps_due_ms: None };
        let got = Got { seen: vec![false; timers], ..Got::default() };
        Self { called: Mutex::new(vec![unasked; timers]), got: Mutex::new(got), counts: Counts::default() }
    }

    /// What the callers know of a timer.
    pub fn called(&self, number: u64) -> Option<Called> {
        self.called.lock().get(usize::try_from(number).ok()?).copied()
    }

    /// Notes what a caller was told.
    pub fn note(&self, number: u64, note: impl FnOnce(&mut Called)) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(called) = self.called.lock().get_mut(at) {
            note(called);
        }
    }

    /// How many timers the target got, each counted once, and all.
    pub fn delivered(&self) -> (u64, u64) {
        let got = self.got.lock();
        (got.distinct, u64::try_from(got.deliveries.len()).unwrap_or(u64::MAX))
    }

    /// How many timers must still fire.
    pub fn missing(&self) -> usize {
        let got = self.got.lock();
        let called = self.called.lock();
        called.iter().zip(&got.seen).filter(|(called, seen)| called.state.must_fire() && !**seen).count()
    }

    /// Both records, when nobody writes any more.
    pub fn read(&self) -> (Vec<Called>, Vec<Delivery>) {
        (self.called.lock().clone(), self.got.lock().deliveries.clone())
    }

    fn arrived(&self, batch: &[Firing], at_ms: u64, instance: usize) {
        let mut got = self.got.lock();
        for task in batch {
            let number = number_of(&task.payload);
            got.deliveries.push(Delivery { number, at_ms, id: task.id, due_ms: task.due_ms, instance });
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            let is_new = got.seen.get_mut(at).is_some_and(|seen| !std::mem::replace(seen, true));
            got.distinct += u64::from(is_new);
        }
    }
}

impl State {
    /// As the report names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Unanswered => "unanswered",
            Self::Waiting => "added",
            Self::Moved => "moved",
            Self::TooLate => "too_late",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the timer has to reach its target.
    pub const fn must_fire(self) -> bool {
        matches!(self, Self::Waiting | Self::Moved | Self::TooLate)
    }
}

/// What a timer carries.
pub fn payload(number: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PAYLOAD_BYTES);
    bytes.put_u64(number);
    bytes.resize(PAYLOAD_BYTES, b'.');
    bytes.freeze()
}

/// A payload that is none of the demo's has a number that no timer has.
fn number_of(payload: &Bytes) -> u64 {
    payload.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
}

/// The target as one dispatcher reaches it.
pub struct Receiver {
    /// Where it notes what it gets.
    pub journal: Arc<Journal>,
    /// The dispatcher's number.
    pub instance: usize,
    /// The clock of the store.
    pub clock: Clock,
}

#[async_trait]
impl Target for Receiver {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        // A dispatcher that dies now never hears that the target has them.
        self.journal.arrived(&batch, self.clock.unix_ms(), self.instance);
        tokio::time::sleep(ACKNOWLEDGE).await;
        vec![Fired::Done; batch.len()]
    }
}
