//! Every limit and default of the rules document, in one place.

use std::ops::RangeInclusive;

/// Bytes of a document at most: 1 MiB, which holds some ten thousand routes and is read in a millisecond.
pub(crate) const DOCUMENT_MAX_BYTES: usize = 1 << 20;
/// Bytes of the name of a topic, queue, broker, activity or scene.
pub(crate) const NAME_MAX_BYTES: usize = 64;
/// Bytes of a bonus type's name, as the record format has it.
pub(crate) const TYPE_MAX_BYTES: usize = 32;
/// Bonus types at most: each costs every instance a lane.
pub(crate) const TYPES_MAX: usize = 256;
/// The largest version, budget total, and sum of budget totals of a type: 2^53 − 1, exact in every JSON reader.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Revocations at most. With long order numbers the document's size is reached before.
pub(crate) const REVOCATIONS_MAX: usize = 10_000;
/// Bytes of a revoked order number, as tokens have them.
pub(crate) const TRADE_NO_MAX_BYTES: usize = 128;
/// Bytes of a revocation's reason.
pub(crate) const WHY_MAX_BYTES: usize = 256;

/// A number's range, and its default where it has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) default: Option<u64>,
}

impl Bound {
    const fn required(range: RangeInclusive<u64>) -> Self {
        Self { min: *range.start(), max: *range.end(), default: None }
    }

    /// The same range with a default.
    pub(crate) const fn or(self, default: u64) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn optional(range: RangeInclusive<u64>, default: u64) -> Self {
        Self { min: *range.start(), max: *range.end(), default: Some(default) }
    }
}

pub(crate) const VERSION: Bound = Bound::required(1..=NUMBER_MAX);
pub(crate) const PARTITIONS: Bound = Bound::required(1..=1024);
pub(crate) const RATIO: Bound = Bound::optional(0..=100, 100);
pub(crate) const RATE_PER_S: Bound = Bound::required(0..=100_000_000);
pub(crate) const BURST: Bound = Bound::required(1..=10_000_000);
/// Cash goes first, whatever else there is: whoever waits for money minds most.
pub(crate) const PRIORITY_CASH: Bound = Bound::optional(0..=255, 0);
pub(crate) const PRIORITY: Bound = Bound::optional(0..=255, 1);
pub(crate) const BUDGET_TOTAL: Bound = Bound::required(1..=NUMBER_MAX);
/// Eight rows take some eight times the concurrent grants of one, and rebalance rarely.
pub(crate) const BUDGET_SHARDS: Bound = Bound::optional(1..=64, 8);

/// Keys are numbered from 1.
pub(crate) const REVOKED_KEY: Bound = Bound::required(1..=u32::MAX as u64);
pub(crate) const REVOKED_BEFORE_MS: Bound = Bound::required(1..=NUMBER_MAX);

/// Ranges of [`windfall_contract::rules::Pacing`], which has the defaults. 0 holds nothing.
pub(crate) const HOLD_MAX_MS: Bound = Bound::required(0..=10_000);
/// Below 100 ms everything would be requeued.
pub(crate) const DEADLINE_MS: Bound = Bound::required(100..=600_000);
/// At least 1, so that doubling grows.
pub(crate) const REQUEUE_DELAY_MS: Bound = Bound::required(1..=60_000);
pub(crate) const REQUEUE_DELAY_MAX_MS: Bound = Bound::required(1..=3_600_000);
pub(crate) const MAX_FAILURES: Bound = Bound::required(1..=1000);
pub(crate) const GRANT_BATCH: Bound = Bound::required(1..=10_000);
pub(crate) const IN_HAND_MAX: Bound = Bound::required(1..=1_000_000);
/// A record has 4096 events at most, and a lane must hold one.
pub(crate) const LANE_EVENTS_MAX: Bound = Bound::required(4096..=16_777_216);
/// At least 1 MiB, the largest record that brokers take by default.
pub(crate) const LANE_BYTES_MAX: Bound = Bound::required(1 << 20..=1 << 32);
