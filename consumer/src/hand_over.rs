//! Hands records that are due long after now over to the service that keeps them until then. A record waits in the delay
//! queue until each of its events is stored there. While the service is away it goes on waiting, and is granted here if its
//! time comes first.

use crate::in_flight::{InFlightRecord, InFlightTable, Key, Place};
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use windfall_contract::long_delays::{DelayedEvent, LongDelays, NotHandedOver};
use windfall_proto::event;

/// The number of events in one call, unless a single record has more.
const EVENTS_MAX: usize = 1_000;
/// The bytes in one call, unless a single record has more.
const BYTES_MAX: usize = 1 << 20;
const PAUSE_MIN_NS: u64 = 100 * NS_PER_MS;
const PAUSE_MAX_NS: u64 = 5_000 * NS_PER_MS;

/// How a call's task ended.
pub(crate) type HandOverEnd = Result<Vec<Result<(), NotHandedOver>>, JoinError>;

/// Records that wait to be handed over, and those of the call in flight. All of them are in the delay queue.
pub(crate) struct HandOver {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    to: Option<Arc<dyn LongDelays>>,
    after_ms: u64,
    waiting: VecDeque<Key>,
    /// Records of calls that stored nothing. They take turns with the others, so that one that the service will never take
    /// keeps none of them waiting.
    again: VecDeque<Key>,
    /// The number of those in one call: what was refused as a whole is asked for by halves, down to the record that is to
    /// blame, which goes behind the others.
    again_max: usize,
    /// The records of the one task of `calls`, with the number of their events.
    asked: Vec<(Key, usize)>,
    /// Whether these are records that were asked for before.
    asked_again: bool,
    calls: JoinSet<Vec<Result<(), NotHandedOver>>>,
    ask_at_ns: u64,
    pause_ns: u64,
}

impl HandOver {
    pub fn new(
        topic: Arc<str>,
        to: Option<Arc<dyn LongDelays>>,
        after_ms: u64,
        stats: Arc<ConsumerStats>,
    ) -> Self {
        Self {
            topic,
            stats,
            to,
            after_ms,
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            again_max: EVENTS_MAX,
            asked: Vec::new(),
            asked_again: false,
            calls: JoinSet::new(),
            ask_at_ns: 0,
            pause_ns: 0,
        }
    }

    /// Whether the due time of a record is its sender's wish, and not that of a clock which is ahead, and each event would
    /// come back as the same order.
    pub fn takes(&self, record: &InFlightRecord) -> bool {
        let Some(to) = &self.to else { return false };
        let Some(events) = delayed_events(record) else { return false };
        let refused = events.iter().find_map(|delayed| to.check(delayed).err());
        if let Some(why) = &refused {
            tracing::warn!(topic = %self.topic, why, "an event that is due long after now cannot be handed over");
        }
        refused.is_none()
    }

    /// Whether a record that is due in `early_ms` is handed over and does not wait here.
    pub const fn is_long(&self, early_ms: u64) -> bool {
        early_ms > self.after_ms
    }

    /// Takes a record that is in the delay queue.
    pub fn push(&mut self, key: Key) {
        self.waiting.push_back(key);
    }

    /// Hands over what waits.
    pub fn turn(&mut self, table: &InFlightTable, patience_ms: u64, now_ns: u64) {
        let Some(to) = &self.to else { return };
        if !self.calls.is_empty() || now_ns < self.ask_at_ns {
            return;
        }
        self.asked_again = !self.again.is_empty() && (self.waiting.is_empty() || !self.asked_again);
        let (queue, records_max) = match self.asked_again {
            true => (&mut self.again, self.again_max),
            false => (&mut self.waiting, EVENTS_MAX),
        };
        let (mut events, mut bytes, mut together) = (Vec::new(), 0, 1);
        while events.len() < EVENTS_MAX && bytes < BYTES_MAX && self.asked.len() < records_max {
            let Some(key) = queue.pop_front() else { break };
            // What was due meanwhile, was requeued, or is another instance's now is not ours to hand over.
            let Some(record) = waiting(table, key) else { continue };
            let Some(own) = delayed_events(record) else { continue };
            bytes += record.payload.len();
            together = together.max(own.len());
            self.asked.push((key, own.len()));
            events.extend(own);
        }
        if events.is_empty() {
            return;
        }
        let (to, patience) = (Arc::clone(to), Duration::from_millis(patience_ms));
        self.calls.spawn(async move {
            let asked = tokio::time::timeout(patience, to.hand_over(&events, together)).await;
            let unanswered = || vec![Err(NotHandedOver("no answer by the deadline".into())); events.len()];
            asked.unwrap_or_else(|_| unanswered())
        });
    }

    /// Waits for the end of a call; `None` where there is none. Cancel-safe.
    pub async fn next(&mut self) -> Option<HandOverEnd> {
        self.calls.join_next().await
    }

    /// A call that has ended already.
    pub fn try_next(&mut self) -> Option<HandOverEnd> {
        self.calls.try_join_next()
    }

    /// Takes in an answer, and returns the records of which every event is stored. The others are handed over again.
    pub fn take_in(&mut self, ended: HandOverEnd, now_ns: u64) -> Vec<Key> {
        let asked = std::mem::take(&mut self.asked);
        let mut not_stored = Vec::new();
        let (answers, mut failed, mut why) = match ended {
            Ok(answers) => (answers, 0, None),
            Err(error) => (Vec::new(), 0, Some(error.to_string())),
        };
        let (mut stored, mut at) = (Vec::new(), 0);
        for (key, events) in asked {
            // An answer that is missing says nothing.
            let own = answers.get(at..at + events);
            at += events;
            if own.is_some_and(|own| own.iter().all(Result::is_ok)) {
                stored.push(key);
                continue;
            }
            failed += events;
            if let Some(error) = own.and_then(|own| own.iter().find_map(|answer| answer.as_ref().err())) {
                why.get_or_insert_with(|| error.to_string());
            }
            not_stored.push(key);
        }
        match (stored.is_empty(), self.asked_again, not_stored.len()) {
            (true, true, 1) => self.again.extend(not_stored),
            (true, _, records) => {
                self.again_max = (records / 2).max(1);
                not_stored.into_iter().rev().for_each(|key| self.again.push_front(key));
            }
            (false, true, _) => {
                self.again_max = (self.again_max * 2).min(EVENTS_MAX);
                self.again.extend(not_stored);
            }
            (false, false, _) => self.waiting.extend(not_stored),
        }
        // A call in vain of records that were refused before says little of the service, while others wait.
        let says_little = self.asked_again && !self.waiting.is_empty();
        self.pause_ns = match (failed, stored.is_empty()) {
            (0, _) => 0,
            (_, false) => PAUSE_MIN_NS,
            (_, true) if says_little => self.pause_ns.max(PAUSE_MIN_NS),
            (_, true) => (self.pause_ns * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS),
        };
        self.ask_at_ns = now_ns.saturating_add(self.pause_ns);
        if failed > 0 {
            self.stats.not_handed_over.add(failed as u64);
            let why = why.unwrap_or_else(|| "the answer is too short".into());
            tracing::warn!(
                topic = %self.topic, why, events = failed,
                "events that are due long after now were not handed over; they wait, and are handed over again"
            );
        }
        stored
    }

    /// Frees the keys of records that have left, when they are more than half.
    pub fn compact(&mut self, table: &InFlightTable, delayed: usize) {
        for queue in [&mut self.waiting, &mut self.again] {
            if queue.len() > 1024 && queue.len() > 2 * delayed {
                queue.retain(|&key| waiting(table, key).is_some());
            }
        }
    }

    /// How many records wait, or are being handed over.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.again.len() + self.asked.len()
    }
}

/// The record, if it still waits in the delay queue.
fn waiting(table: &InFlightTable, key: Key) -> Option<&InFlightRecord> {
    table.get(key).filter(|record| record.place() == Place::DelayQueue)
}

/// The events of a record, if each of them says itself that it is due when the record is. A requeue that a clock which is
/// ahead has put off says so in the record alone.
fn delayed_events(record: &InFlightRecord) -> Option<Vec<DelayedEvent>> {
    let due_ms = u64::try_from(record.not_before_ms()).ok()?;
    let events = record.uncut_events().ok()?;
    let is_own = |event: &bytes::Bytes| event::not_before_ms(event) == Ok(record.not_before_ms());
    let all = events.iter().all(is_own);
    all.then(|| events.into_iter().map(|event| DelayedEvent { due_ms, event }).collect())
}
