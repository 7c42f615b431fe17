//! Whether the reward service answers, and the downstream of each bonus type. That distinguishes an outage from an
//! event that fails by itself.
//!
//! An event fails by itself while others of its type are decided. Where nothing is decided, no event's grant has
//! failed: the events wait in their lane, a small call asks for some of them now and then, and its first decision opens
//! the lane again. A type whose downstream is away leaves the other types alone; where the store of the reward service
//! is away no type can flow.

use crate::units::NS_PER_MS;
use windfall_contract::breaker::Breaker;
use windfall_contract::rewards::{GrantReply, RetryReason};

/// The longest that a type of which nothing is decided waits between calls. It bounds how late an outage's end is
/// noticed.
const BACKOFF_MAX_NS: u64 = 1_000 * NS_PER_MS;
const BACKOFF_MIN_NS: u64 = 5 * NS_PER_MS;
/// The number of events that may be in calls once a suspect type is decided again; each call that decides something doubles it.
const RAMP_MIN_EVENTS: u64 = 16;
/// From here on only the lanes' own bounds hold.
const RAMP_MAX_EVENTS: u64 = 1 << 16;
/// The number of calls in a row without a decision that opens the breaker of their type.
const TRIP_CALLS: u32 = 5;
/// How long one sign of life outweighs other calls without a decision.
const ALIVE_NS: u64 = 1_000 * NS_PER_MS;
/// The time after which calls without an answer are no sign of life.
const SILENT_NS: u64 = 2_000 * NS_PER_MS;

/// What the answer to one call says about the reward service and the downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    /// An event was decided.
    Decided,
    /// No event was decided, and the downstream of the type is the reason.
    DownstreamAway,
    /// No event was decided, and the reward service itself is the reason: its store, its queues, or too many calls.
    ServiceAway,
    /// No event was decided, because an operator has paused the type there.
    Paused,
}

/// The state of one type, as its answers have shown it.
#[derive(Debug)]
pub(crate) struct TypeHealth {
    breaker: Breaker,
    /// The wait before the next call; 0 while the last call has decided something.
    backoff_ns: u64,
    /// When the backoff was last changed. Calls that began before say nothing new.
    stepped_ns: u64,
    /// Events that may be in calls, while the type comes back.
    ramp_events: Option<u64>,
    /// Since when no call of the type has failed to decide anything; `None` before the first decision.
    flows_since_ns: Option<u64>,
    decided_ns: u64,
    /// Since when calls are unanswered; `None` where none is open.
    unanswered_since_ns: Option<u64>,
}

/// The state of the reward service, as the answers of all types have shown it.
#[derive(Debug, Default)]
pub(crate) struct ServiceHealth {
    alive_ns: u64,
    doubted_ns: Option<u64>,
}

impl CallAnswer {
    /// Reads the replies to a call of so many events.
    pub fn of(replies: &[GrantReply], events: usize) -> Self {
        let replies = &replies[..replies.len().min(events)];
        if replies.iter().any(GrantReply::is_final) {
            return Self::Decided;
        }
        let says = |is_it: fn(RetryReason) -> bool| {
            replies.iter().any(|reply| matches!(reply, GrantReply::Retry { reason, .. } if is_it(*reason)))
        };
        if says(|reason| reason.is_failure() || reason == RetryReason::DownstreamBusy) {
            Self::DownstreamAway
        } else if says(|reason| reason == RetryReason::Paused) {
            Self::Paused
        } else {
            Self::ServiceAway
        }
    }
}

impl TypeHealth {
    pub const fn new() -> Self {
        Self {
            breaker: Breaker::new(TRIP_CALLS, 0),
            backoff_ns: 0,
            stepped_ns: 0,
            ramp_events: None,
            flows_since_ns: None,
            decided_ns: 0,
            unanswered_since_ns: None,
        }
    }

    /// Notes that a call has begun.
    pub fn call_begins(&mut self, now_ns: u64) {
        self.unanswered_since_ns.get_or_insert(now_ns);
    }

    /// Notes that a call has ended, with an answer or without one; `are_others_open` says whether others are open.
    pub fn call_ended(&mut self, are_others_open: bool, now_ns: u64) {
        self.unanswered_since_ns = are_others_open.then_some(now_ns);
    }

    /// A call that began at `began_ns` was answered, or was given up without an answer. Returns how long the type waits
    /// before the next call. Calls that were in flight together and fail together make it wait as one of them does.
    pub fn answered(&mut self, answer: CallAnswer, began_ns: u64, now_ns: u64) -> u64 {
        if answer == CallAnswer::Decided {
            self.breaker.succeeded();
            if self.is_suspect() {
                (self.backoff_ns, self.stepped_ns) = (0, now_ns);
            } else {
                let doubled = self.ramp_events.map(|events| events * 2);
                self.ramp_events = doubled.filter(|&events| events < RAMP_MAX_EVENTS);
            }
            self.decided_ns = now_ns;
            self.flows_since_ns.get_or_insert(now_ns);
            return 0;
        }
        self.breaker.failed(now_ns);
        self.flows_since_ns = None;
        if began_ns < self.stepped_ns {
            return 0;
        }
        self.stepped_ns = now_ns;
        self.ramp_events = Some(RAMP_MIN_EVENTS);
        self.backoff_ns = (self.backoff_ns * 2).clamp(BACKOFF_MIN_NS, BACKOFF_MAX_NS);
        self.backoff_ns
    }

    /// Whether the last call has decided nothing, so that the next ones are small, and one at a time.
    pub const fn is_suspect(&self) -> bool {
        self.backoff_ns > 0
    }

    /// The number of events that may be in calls: few where the type has just come back, so that a downstream is not given at once
    /// what it has just failed under.
    pub const fn events_max(&self) -> u64 {
        match self.ramp_events {
            Some(events) => events,
            None => u64::MAX,
        }
    }

    /// Whether the last calls have decided nothing, so that what fails now is not the events' fault.
    pub const fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether its calls have waited for an answer for longer than an answer should take.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        self.unanswered_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > SILENT_NS)
    }

    /// Whether something of the type was decided after this moment.
    pub const fn has_decided_since(&self, since_ns: u64) -> bool {
        self.decided_ns > since_ns
    }

    /// Whether its calls have decided something since this moment or longer, without a break.
    pub fn flows_since(&self, since_ns: u64) -> bool {
        self.flows_since_ns.is_some_and(|flows_ns| flows_ns <= since_ns)
    }
}

impl ServiceHealth {
    pub fn answered(&mut self, answer: CallAnswer, now_ns: u64) {
        match answer {
            CallAnswer::Decided | CallAnswer::DownstreamAway => self.alive_ns = now_ns,
            CallAnswer::ServiceAway => self.doubted_ns = Some(now_ns),
            CallAnswer::Paused => {}
        }
    }

    /// Notes that calls are not answered.
    pub fn is_silent(&mut self, now_ns: u64) {
        self.doubted_ns = Some(now_ns);
    }

    /// Whether a type could flow, as far as the service is concerned. One type that it answers is proof for all.
    pub fn is_up(&self, now_ns: u64) -> bool {
        self.doubted_ns.is_none_or(|doubted_ns| {
            doubted_ns <= self.alive_ns
                || now_ns.saturating_sub(self.alive_ns) <= ALIVE_NS && self.alive_ns > 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000 * NS_PER_MS;

    fn later(reason: RetryReason) -> GrantReply {
        GrantReply::Retry { after_ms: 0, reason }
    }

    #[test]
    fn an_answer_is_read_by_the_best_of_its_replies() {
        let store = later(RetryReason::StoreUnavailable);
        let timeout = later(RetryReason::DownstreamTimeout);
        assert_eq!(CallAnswer::of(&[], 3), CallAnswer::ServiceAway, "no answer at all");
        assert_eq!(CallAnswer::of(&[store.clone(), later(RetryReason::Busy)], 2), CallAnswer::ServiceAway);
        assert_eq!(CallAnswer::of(&[store.clone(), timeout.clone()], 2), CallAnswer::DownstreamAway);
        let busy = later(RetryReason::DownstreamBusy);
        assert_eq!(CallAnswer::of(&[store.clone(), busy], 2), CallAnswer::DownstreamAway);
        assert_eq!(CallAnswer::of(&[timeout, GrantReply::Credited], 2), CallAnswer::Decided);
        assert_eq!(
            CallAnswer::of(&[store, GrantReply::Credited], 1),
            CallAnswer::ServiceAway,
            "one too many"
        );
    }

    #[test]
    fn a_type_backs_off_until_something_is_decided() {
        let mut health = TypeHealth::new();
        assert!(!health.flows_since(u64::MAX) && !health.is_suspect());
        health.answered(CallAnswer::Decided, 0, 7);
        assert!(health.flows_since(7) && !health.flows_since(6) && health.has_decided_since(6));
        let waits: Vec<u64> =
            (0..10).map(|n| health.answered(CallAnswer::ServiceAway, n, n) / NS_PER_MS).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert!(health.is_open() && health.is_suspect() && !health.flows_since(u64::MAX));
        assert_eq!(health.answered(CallAnswer::Decided, 20, 20), 0);
        assert!(!health.is_open() && !health.is_suspect() && health.flows_since(20));
    }

    #[test]
    fn calls_that_fail_together_make_the_type_wait_once() {
        let mut health = TypeHealth::new();
        let waits: Vec<u64> =
            (0..9).map(|_| health.answered(CallAnswer::DownstreamAway, 10, 20) / NS_PER_MS).collect();
        assert_eq!(waits, [5, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(health.answered(CallAnswer::DownstreamAway, 20, 30), 10 * NS_PER_MS);
        assert!(health.is_suspect());
        health.answered(CallAnswer::Decided, 30, 40);
        assert_eq!(
            health.answered(CallAnswer::DownstreamAway, 35, 50),
            0,
            "it began before the type came back"
        );
        assert!(!health.is_suspect());
    }

    #[test]
    fn a_type_that_comes_back_is_given_a_little_more_with_each_decided_call() {
        let mut health = TypeHealth::new();
        assert_eq!(health.events_max(), u64::MAX);
        health.answered(CallAnswer::DownstreamAway, 0, 1);
        let allowed: Vec<u64> = (2..6)
            .map(|n| {
                health.answered(CallAnswer::Decided, n, n);
                health.events_max()
            })
            .collect();
        assert_eq!(allowed, [16, 32, 64, 128]);
        (6..20).for_each(|n| assert_eq!(health.answered(CallAnswer::Decided, n, n), 0));
        assert_eq!(health.events_max(), u64::MAX);
    }

    #[test]
    fn one_type_that_is_answered_shows_that_the_service_is_there() {
        let mut service = ServiceHealth::default();
        assert!(service.is_up(SECOND_NS), "nobody has asked");
        service.answered(CallAnswer::ServiceAway, SECOND_NS);
        assert!(!service.is_up(SECOND_NS));
        service.answered(CallAnswer::DownstreamAway, 2 * SECOND_NS);
        service.answered(CallAnswer::ServiceAway, 2 * SECOND_NS + 1);
        assert!(service.is_up(3 * SECOND_NS), "a call of another type was answered within a second");
        assert!(!service.is_up(3 * SECOND_NS + 1));
    }
}
