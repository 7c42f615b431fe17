//! What a fan-out says of itself.

use windfall_contract::declare_metrics;

/// What `close` could not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseReport {
    /// Records given back as [`Undelivered::Closed`](super::Undelivered::Closed).
    pub undelivered: usize,
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
        "Records sent to a topic: taken by its producer, reported stored, and refused, failed or overdue" {
            /// Records that its producer took.
            pub sent: u64 as "sent",
            /// Records reported stored.
            pub stored: u64 as "stored",
            /// Records refused, failed or overdue.
            pub failed: u64 as "failed",
        }
        gauge "windfall_queue_in_flight_records" "Records of which the broker has not said what became of them" {
            /// Records whose fate is open.
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
        .. {
            /// Its name.
            pub topic: String,
        }
    }
}
