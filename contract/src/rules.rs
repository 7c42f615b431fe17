//! Live rules, as they are after validation. Whoever holds a [`Rules`] holds a document that fits together.

use std::collections::BTreeMap;
use std::fmt;

pub use crate::revocations::{Revocation, Revocations, Revoked};

/// One version of the live rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Grows with every change; processes report the one they run.
    pub version: u64,
    /// Every bonus type there is, in the document's order.
    pub bonus_types: Vec<String>,
    /// Physical topics by name.
    pub topics: BTreeMap<String, Topic>,
    /// Topics that nobody writes to any more, and that are read until they are empty. None is in `topics`: a topic is its
    /// name and its broker.
    pub draining: Vec<DrainingTopic>,
    /// Virtual queues by name.
    pub queues: BTreeMap<String, Queue>,
    /// Which queue an event takes; the first that matches.
    pub routes: Vec<Route>,
    /// How fast events may be granted.
    pub limits: Limits,
    /// What activities may give out.
    pub budgets: Vec<Budget>,
    /// What a type may give out at most, whatever its budgets say; a type that is not named has no cap.
    pub caps: BTreeMap<String, Cap>,
    /// How a consumer paces itself.
    pub pacing: Pacing,
    /// Tokens that count no more.
    pub revocations: Revocations,
}

/// A stream on one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The broker's name in the static options.
    pub broker: String,
    /// Partitions: 1 to 1024.
    pub partitions: u32,
}

/// A topic that the queues no longer name, and what may still lie in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DrainingTopic {
    /// The topic's name.
    pub topic: String,
    /// The broker's name in the static options.
    pub broker: String,
    /// Partitions: 1 to 1024.
    pub partitions: u32,
}

impl Rules {
    /// Whether these rules write to a topic of that name on that broker, or have it read until it is empty.
    pub fn knows_topic(&self, name: &str, broker: &str) -> bool {
        self.topics.get(name).is_some_and(|topic| topic.broker == broker)
            || self.draining.iter().any(|old| old.topic == name && old.broker == broker)
    }

    /// Topics that `earlier` writes to and that these rules have forgotten: nobody would read what lies in them.
    pub fn forgotten(&self, earlier: &Self) -> Vec<DrainingTopic> {
        let of_earlier = earlier.topics.iter();
        let forgotten = of_earlier.filter(|(name, topic)| !self.knows_topic(name, &topic.broker));
        let draining = |(name, topic): (&String, &Topic)| DrainingTopic {
            topic: name.clone(),
            broker: topic.broker.clone(),
            partitions: topic.partitions,
        };
        forgotten.map(draining).collect()
    }
}

/// A master and a backup topic on different brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Name of a topic.
    pub master: String,
    /// Name of another topic, on another broker.
    pub backup: String,
    /// Users who go to the master: `user_id % 100 < ratio`.
    pub ratio: Ratio,
}

/// Per cent, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio(u8);

impl Ratio {
    /// All to the master.
    pub const ALL: Self = Self(100);

    /// `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// Whether this user's events go to the master.
    #[inline]
    pub const fn takes_master(self, user_id: i64) -> bool {
        user_id.rem_euclid(100) < self.0 as i64
    }

    /// Per cent.
    pub const fn percent(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// Sends events of an activity, a scene and a type to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// What it matches.
    pub activity: Pattern,
    /// What it matches.
    pub scene: Pattern,
    /// What it matches.
    pub bonus_type: Pattern,
    /// The queue they take.
    pub queue: String,
    /// Queues that a requeued event may take, tried in order. Never empty; holds `queue` where none was named.
    pub requeue: Vec<String>,
}

/// One name, or any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*`.
    Any,
    /// Exactly this.
    Is(String),
}

impl Pattern {
    /// Whether it matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Is(own) => own == name,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Is(name) => f.write_str(name),
        }
    }
}

/// Limits of a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Over all types.
    pub global: Limit,
    /// By type; every known type has one (its own, or the document's default).
    pub types: BTreeMap<String, TypeLimit>,
}

/// A token bucket: at most `rate_per_s · Δ + burst` in any Δ seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Events a second, 0 to 100,000,000; 0 admits nothing.
    pub rate_per_s: u64,
    /// Events that may pass at once after a pause: 1 to 10,000,000. A fleet's limit wants at least one per partition.
    pub burst: u32,
}

impl Limit {
    /// The highest rate, events per second.
    pub const RATE_PER_S_MAX: u64 = 100_000_000;
    /// The highest burst, events.
    pub const BURST_MAX: u32 = 10_000_000;
}

/// The limit, fuse and rank of one bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeLimit {
    /// Its own bucket.
    pub limit: Limit,
    /// The operator's switch.
    pub fuse: Fuse,
    /// Who takes from the global bucket first; 0 before 1. Cash is 0 by default.
    pub priority: u8,
}

/// An operator's switch on a bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Flowing.
    #[default]
    Closed,
    /// Grant nothing of it: hold in its lane, requeue with delay before it blocks another type.
    Pause,
    /// Requeue with delay at once.
    Divert,
}

impl fmt::Display for Fuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Pause => "pause",
            Self::Divert => "divert",
        })
    }
}

/// How a budget is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BudgetKind {
    /// Split over rows, so that those who take from it do not queue.
    #[default]
    Sharded,
    /// One row, taken from in the exact order of arrival.
    Strict,
    /// Over all scenes, all types, or both of an activity, beside the budgets that it covers: an order takes from all
    /// of them or from none.
    Combined,
}

impl fmt::Display for BudgetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sharded => "sharded",
            Self::Strict => "strict",
            Self::Combined => "combined",
        })
    }
}

/// What an activity and scene may still give out of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// How it is kept.
    pub kind: BudgetKind,
    /// The campaign.
    pub activity: String,
    /// The place in it; `*` for all of them, where it is combined.
    pub scene: String,
    /// The bonus type; `*` for all of them, where it is combined.
    pub bonus_type: String,
    /// In the type's smallest unit.
    pub total: i64,
    /// Rows it is split over: 1 to 64; 1 where it is strict.
    pub shards: u32,
}

/// What one bonus type may give out at most, beside its budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// The largest amount of one order, in the type's smallest unit; `None`: any.
    pub order: Option<i64>,
    /// The sum over all activities, in the type's smallest unit; `None`: any.
    pub total: Option<i64>,
}

/// How a consumer paces itself. `samples/rules.toml` gives each range; [`Pacing::default`] the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacing {
    /// The fetch brings what passes within this time; more waits in the broker, or in memory where another type could
    /// wait behind it.
    pub hold_max_ms: u64,
    /// An unfinished record of this age is requeued if something else flows meanwhile.
    pub deadline_ms: u64,
    /// Delay of a requeued event; doubles with each attempt up to `requeue_delay_max_ms`.
    pub requeue_delay_ms: u64,
    /// The longest delay.
    pub requeue_delay_max_ms: u64,
    /// Failed grants after which an event is archived.
    pub max_failures: u32,
    /// Events in one grant call at most.
    pub grant_batch: u32,
    /// Events being granted at once, an instance.
    pub in_hand_max: u32,
    /// Events that wait in one lane at most.
    pub lane_events_max: u32,
    /// Bytes that wait in one lane at most.
    pub lane_bytes_max: u64,
}

impl Default for Pacing {
    /// What holds where a document says nothing.
    fn default() -> Self {
        Self {
            // Half a second in a lane costs less than a requeue (a write, a fetch, a window's slot twice).
            hold_max_ms: 500,
            // Longer than a downstream's slow call with its retry, shorter than an operator's patience with
            // a commit that stands still.
            deadline_ms: 10_000,
            // A downstream's hiccup is over in about 200 ms.
            requeue_delay_ms: 200,
            // A downstream that was away for long is asked again within half a minute of its return.
            requeue_delay_max_ms: 30_000,
            // With doubling delays some five minutes: no hiccup, but a fault.
            max_failures: 16,
            // One transaction's sync shared by a thousand rows; ten thousand would hold locks too long.
            grant_batch: 1000,
            // Eight full batches: enough to hide a grant's round trip.
            in_hand_max: 8192,
            // A fifth of a second at 300,000 a second.
            lane_events_max: 65_536,
            // 512 bytes an event of a full lane.
            lane_bytes_max: 32 << 20,
        }
    }
}

impl Pacing {
    /// The longest delay that a downstream may ask for.
    pub const DOWNSTREAM_DELAY_MAX_MS: u64 = 600_000;

    /// The longest delay that a write-back sets by itself, and no less than the head-of-line deadline: a partition whose
    /// commits wait for so long is no reason for an alarm.
    pub fn longest_delay_ms(&self) -> u64 {
        self.requeue_delay_max_ms.max(self.deadline_ms)
    }

    /// How far ahead of its receipt a record may be due: the longest delay of a requeue, or the longest that a
    /// downstream may ask for. A due time beyond it was set by a clock that is ahead, and is brought back to it.
    pub fn not_before_ahead_max_ms(&self) -> u64 {
        self.requeue_delay_max_ms.max(Self::DOWNSTREAM_DELAY_MAX_MS)
    }
}

impl Rules {
    /// The largest amount of one order, by type; a type that is not named has no such cap.
    pub fn order_caps(&self) -> BTreeMap<String, i64> {
        self.caps.iter().filter_map(|(name, cap)| Some((name.clone(), cap.order?))).collect()
    }

    /// What a type may give out over all activities; a type that is not named has no such cap.
    pub fn total_caps(&self) -> BTreeMap<String, i64> {
        self.caps.iter().filter_map(|(name, cap)| Some((name.clone(), cap.total?))).collect()
    }

    /// The route of an event, `None` where no route matches.
    pub fn route(&self, activity: &str, scene: &str, bonus_type: &str) -> Option<&Route> {
        self.routes.iter().find(|route| {
            route.activity.matches(activity)
                && route.scene.matches(scene)
                && route.bonus_type.matches(bonus_type)
        })
    }
}
