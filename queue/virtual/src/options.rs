//! The options of a fan-out. All its limits are here.

use windfall_contract::broker::OpenError;

/// How long a fan-out waits for its topics, and how much it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FanoutOptions {
    /// An answer later than this is taken for lost and the record sent to the next topic. 100 to 120,000;
    /// default 3,000: longer than a broker's longest ordinary pause, shorter than a user's patience. It doubles
    /// with each answer that a record has missed, up to 32 times: brokers that are all slower than this would
    /// else be sent the same record for ever.
    pub delivery_timeout_ms: u64,
    /// A topic that holds records and reports nothing for so long gets no new ones. 50 to 60,000; default 500.
    pub hang_ms: u64,
    /// Wait before the second round over all topics; doubles with each round. 1 to 60,000; default 20.
    pub backoff_first_ms: u64,
    /// The longest wait between two rounds. 1 to 60,000; default 1,000.
    pub backoff_max_ms: u64,
    /// Failures in a row that open a topic's breaker. 1 to 1,000; default 3.
    pub breaker_failures: u32,
    /// An open breaker lets one record probe this often. 1 to 60,000; default 250.
    pub breaker_probe_ms: u64,
    /// The longest wait between two attempts to open a topic whose broker is away. 100 to 5,000; default 2,000. It
    /// begins with 50 ms and doubles.
    pub open_backoff_max_ms: u64,
    /// The wait between two attempts to open a topic that its broker calls invalid; other rules end it. 1,000 to
    /// 3,600,000; default 30,000.
    pub invalid_retry_ms: u64,
    /// Records that it carries at most, divided among the queues ([`Shares`](crate::Shares)); `submit` gives back what
    /// is more. 1 to 1,048,576; default 65,536.
    pub records_max: usize,
}

impl Default for FanoutOptions {
    fn default() -> Self {
        Self {
            delivery_timeout_ms: 3_000,
            hang_ms: 500,
            backoff_first_ms: 20,
            backoff_max_ms: 1_000,
            breaker_failures: 3,
            breaker_probe_ms: 250,
            open_backoff_max_ms: 2_000,
            invalid_retry_ms: 30_000,
            records_max: 65_536,
        }
    }
}

impl FanoutOptions {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let records_max = u64::try_from(self.records_max).unwrap_or(u64::MAX);
        for (name, value, low, high) in [
            ("delivery_timeout_ms", self.delivery_timeout_ms, 100, 120_000),
            ("hang_ms", self.hang_ms, 50, 60_000),
            ("backoff_first_ms", self.backoff_first_ms, 1, 60_000),
            ("backoff_max_ms", self.backoff_max_ms, 1, 60_000),
            ("breaker_failures", self.breaker_failures.into(), 1, 1_000),
            ("breaker_probe_ms", self.breaker_probe_ms, 1, 60_000),
            ("open_backoff_max_ms", self.open_backoff_max_ms, 100, 5_000),
            ("invalid_retry_ms", self.invalid_retry_ms, 1_000, 3_600_000),
            ("records_max", records_max, 1, 1 << 20),
        ] {
            if value < low || value > high {
                let what = format!("fan-out option {name} = {value}: {low} to {high} is allowed");
                return Err(OpenError::Invalid(what));
            }
        }
        Ok(())
    }
}
