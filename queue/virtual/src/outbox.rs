//! The outbox of one topic: its producer, which is opened in the background, and its state.
//!
//! A topic is a broker's name and its own, since rules may move a topic to another broker. Its outbox begins as
//! *opening*, is *ready* once it has a producer, and *breaker-open* while its broker does not answer. When no queue
//! names the topic any more, the outbox is *draining* until the outcome of each record that it holds is known; then its
//! producer is closed, and the outbox is gone.

use super::health::Health;
use super::options::FanoutOptions;
use super::stats::{TopicState, TopicStatus};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use windfall_contract::Clock;
use windfall_contract::broker::Producer;

/// The identity of a topic: its broker's name and its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicKey {
    pub(super) broker: String,
    pub(super) name: String,
}

/// The outbox of one topic. Used by every queue that names the topic.
pub(super) struct Outbox {
    pub(super) key: TopicKey,
    pub(super) partitions: u32,
    pub(super) health: Health,
    door: RwLock<Door>,
    /// Whether a thread is opening or closing its producer now.
    busy: AtomicBool,
    /// Attempts to open it that failed.
    pub(super) open_failures: AtomicU64,
}

struct Door {
    state: DoorState,
    /// Whether the rules in force name the topic.
    wanted: bool,
    /// When the present state began (monotonic ns).
    since_ns: u64,
    reason: Option<String>,
}

enum DoorState {
    /// It has no producer yet; `invalid` if its broker said that it never will with these options and rules.
    Opening {
        invalid: bool,
    },
    Open(Arc<dyn Producer>),
    Closed,
}

/// What the fan-out has to do for an outbox.
pub(super) enum Duty {
    Nothing,
    /// Start a thread that opens it.
    Open,
    /// Start a thread that closes this producer.
    Close(Arc<dyn Producer>),
    /// Forget the outbox.
    Forget,
}

impl Outbox {
    pub(super) fn new(key: TopicKey, partitions: u32, options: &FanoutOptions, now_ns: u64) -> Self {
        let state = DoorState::Opening { invalid: false };
        Self {
            key,
            partitions,
            health: Health::new(options, now_ns),
            door: RwLock::new(Door { state, wanted: true, since_ns: now_ns, reason: None }),
            busy: AtomicBool::new(false),
            open_failures: AtomicU64::new(0),
        }
    }

    /// Its producer, if it has one.
    pub(super) fn producer(&self) -> Option<Arc<dyn Producer>> {
        match &self.door.read().state {
            DoorState::Open(producer) => Some(Arc::clone(producer)),
            DoorState::Opening { .. } | DoorState::Closed => None,
        }
    }

    /// Notes that the rules name the topic. Returns whether this outbox can still be used: a closed one cannot.
    pub(super) fn keep(&self, now_ns: u64) -> bool {
        let mut door = self.door.write();
        if matches!(door.state, DoorState::Closed) {
            return false;
        }
        if !std::mem::replace(&mut door.wanted, true) {
            door.since_ns = now_ns;
        }
        true
    }

    /// Notes that the rules name the topic no longer.
    pub(super) fn retire(&self, now_ns: u64) {
        let mut door = self.door.write();
        if std::mem::replace(&mut door.wanted, false) {
            door.since_ns = now_ns;
            let TopicKey { broker, name } = &self.key;
            let in_flight = self.health.in_flight();
            tracing::info!(
                topic = name,
                broker,
                in_flight,
                "the rules name the topic no longer; its outbox drains"
            );
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.door.read().wanted
    }

    /// Takes a producer that was opened for it. Gives it back where it came too late.
    pub(super) fn opened(&self, producer: Arc<dyn Producer>, now_ns: u64) -> Result<(), Arc<dyn Producer>> {
        let mut door = self.door.write();
        if !door.wanted || !matches!(door.state, DoorState::Opening { .. }) {
            return Err(producer);
        }
        if let Some(reason) = door.reason.take() {
            tracing::info!(
                topic = self.key.name,
                broker = self.key.broker,
                reason,
                "the topic is open at last"
            );
        }
        door.state = DoorState::Open(producer);
        door.since_ns = now_ns;
        Ok(())
    }

    /// Notes a failed attempt to open it. A failure is logged if its reason differs from the last one's.
    pub(super) fn not_opened(&self, why: String, invalid: bool) {
        self.open_failures.fetch_add(1, Relaxed);
        let mut door = self.door.write();
        if door.reason.as_ref() != Some(&why) {
            let TopicKey { broker, name } = &self.key;
            if invalid {
                tracing::error!(
                    topic = name,
                    broker,
                    why,
                    "the topic cannot be opened; correct the rules or the options"
                );
            } else {
                tracing::warn!(topic = name, broker, why, "the topic cannot be opened yet; trying again");
            }
        }
        if let DoorState::Opening { invalid: known } = &mut door.state {
            *known = invalid;
            door.reason = Some(why);
        }
    }

    /// Notes that its producer is closed although nobody here closed it: another one must be opened. What the old one
    /// still holds is sent again when its answers are overdue. // I2
    pub(super) fn lost(&self, producer: &Arc<dyn Producer>, now_ns: u64) {
        let mut door = self.door.write();
        if let DoorState::Open(own) = &door.state
            && Arc::ptr_eq(own, producer)
        {
            door.state = DoorState::Opening { invalid: false };
            door.since_ns = now_ns;
            door.reason = Some("its producer was closed by its driver".into());
        }
    }

    /// The duty that is due now. The caller that is told to open or to close it calls [`done`](Self::done) afterwards.
    pub(super) fn duty(&self, now_ns: u64) -> Duty {
        let is_settled = |door: &Door| door.wanted && matches!(door.state, DoorState::Open(_));
        if self.busy.load(Relaxed) || is_settled(&self.door.read()) {
            return Duty::Nothing;
        }
        let mut door = self.door.write();
        if door.wanted {
            let opening = matches!(door.state, DoorState::Opening { .. });
            self.busy.store(opening, Relaxed);
            return if opening { Duty::Open } else { Duty::Nothing };
        }
        // A sender that read the rules before these may still come: the closed producer refuses it, and the record
        // takes another topic.
        if self.health.in_flight() > 0 {
            return Duty::Nothing;
        }
        match std::mem::replace(&mut door.state, DoorState::Closed) {
            DoorState::Open(producer) => {
                door.since_ns = now_ns;
                self.busy.store(true, Relaxed);
                Duty::Close(producer)
            }
            DoorState::Opening { .. } | DoorState::Closed => Duty::Forget,
        }
    }

    /// Notes that the thread that opened or closed it has ended, or could not be started.
    pub(super) fn done(&self) {
        self.busy.store(false, Relaxed);
    }

    /// The fan-out ends: takes the producer out, and takes no other.
    pub(super) fn shut(&self, now_ns: u64) -> Option<Arc<dyn Producer>> {
        let mut door = self.door.write();
        door.wanted = false;
        door.since_ns = now_ns;
        match std::mem::replace(&mut door.state, DoorState::Closed) {
            DoorState::Open(producer) => Some(producer),
            DoorState::Opening { .. } | DoorState::Closed => None,
        }
    }

    pub(super) fn status(&self, clock: &Clock) -> TopicStatus {
        let now_ns = clock.monotonic_ns();
        let door = self.door.read();
        let breaker = self.health.breaker_open();
        let (state, since_ns, reason) = match (&door.state, breaker) {
            (DoorState::Closed, _) => (TopicState::Closed, door.since_ns, None),
            (_, _) if !door.wanted => (TopicState::Draining, door.since_ns, None),
            (DoorState::Opening { .. }, _) => (TopicState::Opening, door.since_ns, door.reason.clone()),
            (DoorState::Open(_), Some((since_ns, reason))) => {
                (TopicState::BreakerOpen, since_ns, Some(reason))
            }
            (DoorState::Open(_), None) => {
                (TopicState::Ready, door.since_ns.max(self.health.closed_since_ns()), None)
            }
        };
        let age_ms = now_ns.saturating_sub(since_ns) / 1_000_000;
        TopicStatus {
            broker: self.key.broker.clone(),
            topic: self.key.name.clone(),
            state,
            since_ms: clock.unix_ms().saturating_sub(age_ms),
            reason,
            is_invalid: matches!(door.state, DoorState::Opening { invalid: true }),
            in_flight: self.health.in_flight(),
            open_failures: self.open_failures.load(Relaxed),
        }
    }
}
