//! The counters of a connector. An operator's exporter reads a [`Snapshot`].

use crate::answer::Doubt;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use windfall_contract::connector::PayAnswer;
use windfall_contract::declare_metrics;

/// Upper bounds of the latency histogram's buckets, in ms; one more bucket holds what took longer.
pub const LATENCY_BOUNDS_MS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

declare_metrics! {
    /// Counters of a connector, since it was made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Snapshot {
        counter "windfall_connector_answers_total" ["answer"]
        "Calls of downstream systems, by answer; `unknown`: it may have paid" {
            /// Answers `Paid`.
            pub paid: u64 as "paid",
            /// Answers `AlreadyPaid`.
            pub already_paid: u64 as "already_paid",
            /// Answers `Busy`.
            pub busy: u64 as "busy",
            /// Answers `Retry`.
            pub retry: u64 as "retry",
            /// Answers `Refused`.
            pub refused: u64 as "refused",
            /// Answers `Unknown`, and calls that were given up before they answered.
            pub unknown: u64 as "unknown",
        }
        counter "windfall_connector_unknown_total" ["cause"]
        "Calls that may have paid, by the cause why nobody knows" {
            /// Of `unknown`: no answer in time.
            pub timeouts: u64 as "timeout",
            /// Of `unknown`: the connection broke, or what came was not HTTP or gRPC.
            pub broken: u64 as "broken",
            /// Of `unknown`: an answer that says nothing certain. Look at the downstream.
            pub nonsense: u64 as "nonsense",
            /// Of `unknown`: given up by the caller, whose own time-out was shorter.
            pub given_up: u64 as "given_up",
        }
        counter "windfall_connector_unreachable_total"
        "Calls that found no connection to the downstream system; they are among the answers `retry`" {
            /// Of `retry`: there was no connection.
            pub unreachable: u64,
        }
        .. {
            /// How long calls took.
            pub latency: Latency,
        }
    }
}

impl Snapshot {
    /// Calls by answer, with the names that metrics have.
    pub const fn answers(&self) -> [(&'static str, u64); 6] {
        [
            ("paid", self.paid),
            ("already_paid", self.already_paid),
            ("busy", self.busy),
            ("retry", self.retry),
            ("refused", self.refused),
            ("unknown", self.unknown),
        ]
    }
}

/// A histogram of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// The calls in each bucket, not cumulated; the bounds are [`LATENCY_BOUNDS_MS`].
    pub buckets: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// The sum of all times, in µs.
    pub sum_us: u64,
    /// Calls.
    pub count: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    paid: AtomicU64,
    already_paid: AtomicU64,
    busy: AtomicU64,
    retry: AtomicU64,
    refused: AtomicU64,
    timeouts: AtomicU64,
    broken: AtomicU64,
    nonsense: AtomicU64,
    given_up: AtomicU64,
    unreachable: AtomicU64,
    buckets: [AtomicU64; LATENCY_BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Metrics {
    /// Counts a call from here to its end.
    pub fn begin(&self) -> Running<'_> {
        Running { metrics: self, began: Instant::now(), ended: false }
    }

    pub fn unreachable(&self) {
        add(&self.unreachable, 1);
    }

    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (timeouts, broken) = (get(&self.timeouts), get(&self.broken));
        let (nonsense, given_up) = (get(&self.nonsense), get(&self.given_up));
        let buckets = std::array::from_fn(|at| get(&self.buckets[at]));
        Snapshot {
            paid: get(&self.paid),
            already_paid: get(&self.already_paid),
            busy: get(&self.busy),
            retry: get(&self.retry),
            refused: get(&self.refused),
            unknown: timeouts + broken + nonsense + given_up,
            timeouts,
            broken,
            nonsense,
            given_up,
            unreachable: get(&self.unreachable),
            latency: Latency { buckets, sum_us: get(&self.sum_us), count: buckets.iter().sum() },
        }
    }

    fn took(&self, began: Instant) {
        let took = began.elapsed();
        let ms = took.as_millis();
        let bucket = LATENCY_BOUNDS_MS.partition_point(|bound| u128::from(*bound) < ms);
        add(&self.buckets[bucket], 1);
        add(&self.sum_us, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}

/// A call on its way; dropped before it ended, it was given up.
pub(crate) struct Running<'m> {
    metrics: &'m Metrics,
    began: Instant,
    ended: bool,
}

impl Running<'_> {
    pub fn end(mut self, result: Result<PayAnswer, Doubt>) -> PayAnswer {
        self.ended = true;
        let metrics = self.metrics;
        let counter = match &result {
            Ok(PayAnswer::Paid) => &metrics.paid,
            Ok(PayAnswer::AlreadyPaid) => &metrics.already_paid,
            Ok(PayAnswer::Busy { .. }) => &metrics.busy,
            Ok(PayAnswer::Retry { .. }) => &metrics.retry,
            Ok(PayAnswer::Refused(_)) => &metrics.refused,
            Ok(PayAnswer::Unknown) | Err(Doubt::Nonsense) => &metrics.nonsense,
            Err(Doubt::Timeout) => &metrics.timeouts,
            Err(Doubt::Broken) => &metrics.broken,
        };
        add(counter, 1);
        result.unwrap_or(PayAnswer::Unknown)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            add(&self.metrics.given_up, 1);
        }
        self.metrics.took(self.began);
    }
}
