//! The document as it is written: every key that there is, with the type of its value. [`super::check`] makes rules
//! of it.
//!
//! No field fails the reading: the reader has noted what is wrong with it by then, and what is left can be checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::value::{
    BrokerName, Campaign, Field, Needed, QueueName, SceneName, SceneOrAny, TopicName, TradeNo, TypeOrAny, Why,
};
use crate::bounds;

#[derive(Deserialize)]
pub(super) struct RawDocument {
    pub(super) version: Needed<bounds::Version>,
    pub(super) types: Needed<Vec<Needed<String>>>,
    pub(super) changes_need_approval: Field<bool>,
    pub(super) topics: Needed<BTreeMap<Spanned<String>, Needed<RawTopic>>>,
    pub(super) draining: Field<Vec<Needed<RawDraining>>>,
    pub(super) queues: Needed<BTreeMap<Spanned<String>, Needed<RawQueue>>>,
    pub(super) routes: Field<Vec<Needed<RawRoute>>>,
    pub(super) limits: Needed<RawLimits>,
    pub(super) budgets: Field<Vec<Needed<RawBudget>>>,
    pub(super) caps: Field<BTreeMap<Spanned<String>, Needed<RawCap>>>,
    pub(super) pacing: Field<RawPacing>,
    pub(super) revoke: Field<Vec<Needed<RawRevocation>>>,
    pub(super) staged: Field<RawStaged>,
    /// It ends the document, and is checked with the text.
    #[serde(rename = "end")]
    _end: Field<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct RawTopic {
    pub(super) broker: Needed<BrokerName>,
    pub(super) partitions: Needed<bounds::Partitions>,
}

#[derive(Deserialize)]
pub(super) struct RawDraining {
    pub(super) topic: Needed<TopicName>,
    pub(super) broker: Needed<BrokerName>,
    pub(super) partitions: Needed<bounds::Partitions>,
}

#[derive(Deserialize)]
pub(super) struct RawQueue {
    pub(super) master: Needed<TopicName>,
    pub(super) backup: Needed<TopicName>,
    pub(super) ratio: Field<bounds::RatioPercent>,
}

#[derive(Deserialize)]
pub(super) struct RawRoute {
    pub(super) activity: Field<SceneOrAny>,
    pub(super) scene: Field<SceneOrAny>,
    #[serde(rename = "type")]
    pub(super) bonus_type: Needed<TypeOrAny>,
    pub(super) queue: Needed<QueueName>,
    pub(super) requeue: Field<Vec<Needed<String>>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a table with `global`")]
pub(super) struct RawLimits {
    pub(super) global: Needed<RawLimit>,
    pub(super) default: Field<RawLimit>,
    pub(super) types: Field<BTreeMap<Spanned<String>, Needed<RawTypeLimit>>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a table with `rate_per_s` and `burst`")]
pub(super) struct RawLimit {
    pub(super) rate_per_s: Needed<bounds::RatePerS>,
    pub(super) burst: Needed<bounds::Burst>,
}

#[derive(Deserialize)]
pub(super) struct RawTypeLimit {
    pub(super) rate_per_s: Field<bounds::RatePerS>,
    pub(super) burst: Field<bounds::Burst>,
    pub(super) fuse: Field<RawFuse>,
    pub(super) priority: Field<bounds::Priority>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawFuse {
    Closed,
    Pause,
    Divert,
}

#[derive(Deserialize)]
pub(super) struct RawBudget {
    pub(super) kind: Field<RawBudgetKind>,
    pub(super) activity: Needed<Campaign>,
    pub(super) scene: Needed<SceneOrAny>,
    #[serde(rename = "type")]
    pub(super) bonus_type: Needed<TypeOrAny>,
    pub(super) total: Needed<bounds::BudgetTotal>,
    pub(super) shards: Field<bounds::BudgetShards>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawBudgetKind {
    Sharded,
    Strict,
    Combined,
}

#[derive(Deserialize)]
#[serde(expecting = "a table with `order`, `total` or both")]
pub(super) struct RawCap {
    pub(super) order: Field<bounds::CapAmount>,
    pub(super) total: Field<bounds::CapAmount>,
}

#[derive(Default, Deserialize)]
pub(super) struct RawPacing {
    pub(super) hold_max_ms: Field<bounds::HoldMaxMs>,
    pub(super) deadline_ms: Field<bounds::DeadlineMs>,
    pub(super) requeue_delay_ms: Field<bounds::RequeueDelayMs>,
    pub(super) requeue_delay_max_ms: Field<bounds::RequeueDelayMaxMs>,
    pub(super) max_failures: Field<bounds::MaxFailures>,
    pub(super) grant_batch: Field<bounds::GrantBatch>,
    pub(super) in_hand_max: Field<bounds::InHandMax>,
    pub(super) lane_events_max: Field<bounds::LaneEventsMax>,
    pub(super) lane_bytes_max: Field<bounds::LaneBytesMax>,
}

#[derive(Deserialize)]
pub(super) struct RawRevocation {
    pub(super) key: Field<bounds::RevokedKey>,
    pub(super) activity: Field<SceneName>,
    pub(super) before_ms: Field<bounds::RevokedBeforeMs>,
    pub(super) trade_no: Field<TradeNo>,
    pub(super) why: Needed<Why>,
}

#[derive(Deserialize)]
pub(super) struct RawStaged {
    pub(super) since_ms: Needed<bounds::TimeMs>,
    pub(super) proven_ms: Needed<bounds::TimeMs>,
    pub(super) until_ms: Needed<bounds::TimeMs>,
    pub(super) processes: Needed<Vec<Needed<String>>>,
    pub(super) guards: Field<RawGuards>,
    pub(super) limits: Field<RawStagedLimits>,
    pub(super) pacing: Field<RawPacing>,
}

#[derive(Deserialize)]
pub(super) struct RawGuards {
    pub(super) oldest_max_ms: Field<bounds::OldestMaxMs>,
    pub(super) failed_max_percent: Field<bounds::FailedMaxPercent>,
    pub(super) lag_max_records: Field<bounds::LagMaxRecords>,
    pub(super) latency_p99_max_ms: Field<bounds::LatencyP99MaxMs>,
    pub(super) budget_lasts_min_ms: Field<bounds::BudgetLastsMinMs>,
}

#[derive(Deserialize)]
pub(super) struct RawStagedLimits {
    pub(super) global: Field<RawLimit>,
    pub(super) types: Field<BTreeMap<Spanned<String>, Needed<RawTypeLimit>>>,
}
