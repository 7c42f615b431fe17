//! Every limit and default of the rules document, in one place.

use windfall_contract::rules::Limit;

use crate::document::Number;

/// The bytes of a document at most: 1 MiB, which holds some ten thousand routes.
pub(crate) const DOCUMENT_MAX_BYTES: usize = 1 << 20;
/// The bytes at most of the name of a topic, queue, broker, activity or scene.
pub(crate) const NAME_MAX_BYTES: usize = 64;
/// The bytes of a bonus type's name at most, as in the record format.
pub(crate) const TYPE_MAX_BYTES: usize = 32;
/// The most bonus types of a document: each costs every instance a lane.
pub(crate) const TYPES_MAX: usize = 256;
/// The largest version, budget total, and sum of budget totals of a type: 2^53 − 1, exact in every JSON reader.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The most revocations of a document. With long order numbers its size is reached before.
pub(crate) const REVOCATIONS_MAX: usize = 10_000;
/// The bytes of a revoked order number at most, as in tokens.
pub(crate) const TRADE_NO_MAX_BYTES: usize = 128;
/// The bytes of a revocation's reason at most.
pub(crate) const WHY_MAX_BYTES: usize = 256;

pub(crate) type Version = Number<u64, 1, NUMBER_MAX>;
pub(crate) type Partitions = Number<u32, 1, 1024>;
/// A share in per cent; a queue that gives none sends all events to its master.
pub(crate) type RatioPercent = Number<u8, 0, 100>;
pub(crate) type RatePerS = Number<u64, 0, { Limit::RATE_PER_S_MAX }>;
pub(crate) type Burst = Number<u32, 1, { Limit::BURST_MAX as u64 }>;
pub(crate) type Priority = Number<u8, 0, 255>;
/// Cash goes first by default, because users who wait for money mind most.
pub(crate) const PRIORITY_CASH: u8 = 0;
pub(crate) const PRIORITY_DEFAULT: u8 = 1;
pub(crate) type BudgetTotal = Number<i64, 1, NUMBER_MAX>;
pub(crate) type CapAmount = Number<i64, 1, NUMBER_MAX>;
pub(crate) type BudgetShards = Number<u32, 1, 64>;
/// Eight rows take some eight times the concurrent grants of one, and rebalance rarely.
pub(crate) const BUDGET_SHARDS_DEFAULT: u32 = 8;

/// The keys of a key ring are numbered from 1.
pub(crate) type RevokedKey = Number<u32, 1, { u32::MAX as u64 }>;
pub(crate) type RevokedBeforeMs = Number<i64, 1, NUMBER_MAX>;

/// Ranges of [`windfall_contract::rules::Pacing`], which has the defaults. 0 holds nothing.
pub(crate) type HoldMaxMs = Number<u64, 0, 10_000>;
/// Below 100 ms everything would be requeued.
pub(crate) type DeadlineMs = Number<u64, 100, 600_000>;
/// The delay is at least 1 ms, so that doubling makes it grow.
pub(crate) type RequeueDelayMs = Number<u64, 1, 60_000>;
pub(crate) type RequeueDelayMaxMs = Number<u64, 1, 3_600_000>;
pub(crate) type MaxFailures = Number<u32, 1, 1000>;
pub(crate) type GrantBatch = Number<u32, 1, 10_000>;
pub(crate) type InHandMax = Number<u32, 1, 1_000_000>;
/// A record has 4096 events at most, and a lane must hold one.
pub(crate) type LaneEventsMax = Number<u32, 4096, 16_777_216>;
/// At least 1 MiB, the largest record that brokers take by default.
pub(crate) type LaneBytesMax = Number<u64, { 1 << 20 }, { 1 << 32 }>;

/// A moment in ms since 1970, exact in every JSON reader.
pub(crate) type TimeMs = Number<u64, 1, NUMBER_MAX>;
/// The processes that try a staged change, at most.
pub(crate) const STAGED_PROCESSES_MAX: usize = 1000;
/// The bytes of a process's name, at most: a role, a host name of 255 bytes at most, and a number.
pub(crate) const PROCESS_NAME_MAX_BYTES: usize = 320;
/// Guards of a staged change. Below a second every pause would end it.
pub(crate) type OldestMaxMs = Number<u64, 1000, 86_400_000>;
/// At 100 no failure would.
pub(crate) type FailedMaxPercent = Number<u8, 0, 99>;
pub(crate) type LagMaxRecords = Number<u64, 1, NUMBER_MAX>;
/// Below ten milliseconds one commit of the ledger would end it.
pub(crate) type LatencyP99MaxMs = Number<u64, 10, 86_400_000>;
/// The pace is that of a minute, so it says nothing of what comes within one; at most 30 days.
pub(crate) type BudgetLastsMinMs = Number<u64, 60_000, 2_592_000_000>;
