//! The counters and states that a fan-out reports.

use windfall_contract::declare_metrics;

/// The records that `close` could not deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseReport {
    /// Records given back as [`Undelivered::Closed`](super::Undelivered::Closed).
    pub undelivered: usize,
}

/// The state of a topic's outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicState {
    /// It has no producer yet: its broker is away or slow, or calls the topic invalid. Records take other topics.
    Opening,
    /// It takes records.
    Ready,
    /// Its broker refuses records or does not answer: records take other topics, but for a probe now and then.
    BreakerOpen,
    /// The rules name it no longer; it waits for the answers to the records that it holds.
    Draining,
    /// Its producer is closed.
    Closed,
}

impl TopicState {
    /// The word for metrics and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Ready => "ready",
            Self::BreakerOpen => "breaker_open",
            Self::Draining => "draining",
            Self::Closed => "closed",
        }
    }
}

/// How the outbox of one topic is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicStatus {
    /// The broker's name in the rules.
    pub broker: String,
    /// The topic's name.
    pub topic: String,
    /// What it does now.
    pub state: TopicState,
    /// When the present state began, in Unix milliseconds.
    pub since_ms: u64,
    /// Why it is not ready, where a reason is known.
    pub reason: Option<String>,
    /// Whether its broker calls the topic invalid: a person must correct the rules or the options.
    pub is_invalid: bool,
    /// Records of which the broker has not said what became of them.
    pub in_flight: u64,
    /// Attempts to open it that failed, since the outbox was made.
    pub open_failures: u64,
}

declare_metrics! {
    /// Counters of a fan-out since it was opened.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct FanoutStats {
        gauge "windfall_queue_waiting_packs" "Packs that the virtual queues have taken and no broker has stored" {
            /// Records that it carries now.
            pub pending_records: usize,
        }
        counter "windfall_queue_delivered_packs_total" "Packs that a broker has stored" {
            /// Records that a broker has stored.
            pub delivered: u64,
        }
        counter "windfall_queue_retries_total" "Packs taken up again after a failure, a lost answer or a wait" {
            /// Records taken up again after a failure, a lost answer or a wait.
            pub retries: u64,
        }
        counter "windfall_queue_panics_total" ["thread"]
        "Panics that a fan-out caught: of a driver that opens, closes or sends, and of the thread that retries" {
            /// Times that a broker's driver panicked while it opened or closed a topic, or took a record.
            pub driver_panics: u64 as "driver",
            /// Times that the thread that retries panicked.
            pub retry_panics: u64 as "retry",
        }
        gauge "windfall_queue_thread_failing" "1 while the thread that retries panics again and again" {
            /// Whether the thread that retries panics again and again: records that failed once are not sent again.
            pub is_failing: bool,
        }
        .. {
            /// By topic.
            pub topics: Vec<TopicStats>,
        }
    }
}

declare_metrics! {
    /// Counters of one topic.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct TopicStats {
        counter "windfall_queue_records_total" ["fate"]
        "Records sent to a topic, by what became of them: `sent`, its producer took them; `stored`, they were reported stored; `failed`, they were refused, failed or overdue" {
            /// Records that its producer took.
            pub sent: u64 as "sent",
            /// Records reported stored.
            pub stored: u64 as "stored",
            /// Records refused, failed or overdue.
            pub failed: u64 as "failed",
        }
        gauge "windfall_queue_in_flight_records" "Records of which the broker has not said what became of them" {
            /// Records of which the broker has not said what became of them.
            pub in_flight: u64,
        }
        gauge "windfall_queue_breaker_open" "1 while a topic is passed by because its breaker is open" {
            /// Whether its breaker is open now.
            pub breaker_open: bool,
        }
        counter "windfall_queue_breaker_trips_total" "Times that a topic's breaker opened" {
            /// Times that its breaker opened.
            pub breaker_trips: u64,
        }
        counter "windfall_queue_open_failures_total" "Attempts to open a topic that failed" {
            /// Attempts to open it that failed.
            pub open_failures: u64,
        }
        .. {
            /// Its name.
            pub topic: String,
        }
    }
}
