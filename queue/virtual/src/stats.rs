//! What a fan-out says of itself.

/// What `close` could not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseReport {
    /// Records given back as [`Undelivered::Closed`](super::Undelivered::Closed).
    pub undelivered: usize,
}

/// Counters of a fan-out since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FanoutStats {
    /// Records that it carries now.
    pub pending_records: usize,
    /// Records that a broker has stored.
    pub delivered: u64,
    /// Records taken up again after a failure, a lost answer or a wait.
    pub retries: u64,
    /// By topic.
    pub topics: Vec<TopicStats>,
}

/// Counters of one topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicStats {
    /// Its name.
    pub topic: String,
    /// Records that its producer took.
    pub sent: u64,
    /// Records reported stored.
    pub stored: u64,
    /// Records refused, failed or overdue.
    pub failed: u64,
    /// Records whose fate is open.
    pub in_flight: u64,
    /// Whether its breaker is open now.
    pub breaker_open: bool,
    /// Times that its breaker opened.
    pub breaker_trips: u64,
}
