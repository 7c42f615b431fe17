//! Live rules, as they are after validation. A [`Rules`] always comes from a document that is consistent.

use std::collections::BTreeMap;
use std::fmt;

pub use crate::revocations::{Revocation, Revocations, Revoked};
pub use crate::staged::{Guards, Staged};

/// One version of the live rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The version, which grows with every change; processes report the one they run.
    pub version: u64,
    /// Every bonus type there is, in the document's order.
    pub bonus_types: Vec<String>,
    /// Physical topics by name.
    pub topics: BTreeMap<String, Topic>,
    /// Topics that nobody writes to any more, and that are read until they are empty. None is in `topics`: a topic is
    /// identified by its name and its broker.
    pub draining: Vec<DrainingTopic>,
    /// Virtual queues by name.
    pub queues: BTreeMap<String, Queue>,
    /// The routes; an event takes the queue of the first one that matches it.
    pub routes: Vec<Route>,
    /// How fast events may be granted.
    pub limits: Limits,
    /// What activities may give out.
    pub budgets: Vec<Budget>,
    /// What a type may give out at most, whatever its budgets say; a type that is not named has no cap.
    pub caps: BTreeMap<String, Cap>,
    /// How a consumer paces itself.
    pub pacing: Pacing,
    /// The revoked tokens.
    pub revocations: Revocations,
    /// Whether a change of the rules waits until a second person approves it.
    pub changes_need_approval: bool,
    /// A change that some processes try.
    pub staged: Option<Box<Staged>>,
    /// Whether these are the rules of a process that tries the staged change, with that change made.
    pub tries_staged: bool,
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
    /// The share of users whose events go to the master: those with `user_id % 100 < ratio`.
    pub ratio: Ratio,
}

/// A share in per cent, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio(u8);

impl Ratio {
    /// All users' events go to the master.
    pub const ALL: Self = Self(100);

    /// A ratio of so many per cent; `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// Whether this user's events go to the master.
    #[inline]
    pub const fn takes_master(self, user_id: i64) -> bool {
        user_id.rem_euclid(100) < self.0 as i64
    }

    /// The ratio in per cent.
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
    /// The activities that it matches.
    pub activity: Pattern,
    /// The scenes that it matches.
    pub scene: Pattern,
    /// The bonus types that it matches.
    pub bonus_type: Pattern,
    /// The queue that these events take.
    pub queue: String,
    /// Queues that a requeued event may take, tried in order. Never empty; holds `queue` where none was named.
    pub requeue: Vec<String>,
}

/// One name, or any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// Any name, written `*`.
    Any,
    /// Exactly this name.
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

/// The rate limits of a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The limit of all types together.
    pub global: Limit,
    /// The limit of each type; every known type has one (its own, or the document's default).
    pub types: BTreeMap<String, TypeLimit>,
}

/// A token bucket: at most `rate_per_s · Δ + burst` in any Δ seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Events per second, 0 to 100,000,000; 0 admits nothing.
    pub rate_per_s: u64,
    /// Events that may pass at once after a pause: 1 to 10,000,000. A fleet's limit needs at least one per partition.
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
    /// The limit of the type's own bucket.
    pub limit: Limit,
    /// The operator's switch.
    pub fuse: Fuse,
    /// The rank by which types take from the global bucket: 0 before 1. Cash has 0 by default.
    pub priority: u8,
}

/// An operator's switch on a bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Flowing.
    #[default]
    Closed,
    /// Nothing of it is granted: its events are held in their lane, and requeued with delay before they block another
    /// type.
    Pause,
    /// Its events are requeued with delay at once.
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
    /// The scene; `*` for all scenes, where the budget is combined.
    pub scene: String,
    /// The bonus type; `*` for all types, where the budget is combined.
    pub bonus_type: String,
    /// In the type's smallest unit.
    pub total: i64,
    /// The number of rows that it is split over: 1 to 64; 1 where it is strict.
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
    /// A fetch brings as many events as the limits pass within this time; more wait in the broker, or in memory where
    /// another type could wait behind them.
    pub hold_max_ms: u64,
    /// The age at which an unfinished record is requeued, if events of another type flow meanwhile.
    pub deadline_ms: u64,
    /// The delay of a requeued event, which doubles with each attempt up to `requeue_delay_max_ms`.
    pub requeue_delay_ms: u64,
    /// The longest delay of a requeued event.
    pub requeue_delay_max_ms: u64,
    /// The number of failed grants after which an event is archived.
    pub max_failures: u32,
    /// The number of events in one grant call at most.
    pub grant_batch: u32,
    /// The number of events that one instance has in flight at the reward service at once.
    pub in_hand_max: u32,
    /// The number of events that wait in one lane at most.
    pub lane_events_max: u32,
    /// The number of bytes that wait in one lane at most.
    pub lane_bytes_max: u64,
}

impl Default for Pacing {
    /// The values that hold where a document names none.
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
            // With doubling delays that takes some five minutes, which is a fault and no hiccup.
            max_failures: 16,
            // One transaction's sync shared by a thousand rows; ten thousand would hold locks too long.
            grant_batch: 1000,
            // Eight full batches: enough to hide a grant's round trip.
            in_hand_max: 8192,
            // A fifth of a second at 300,000 events per second.
            lane_events_max: 65_536,
            // 512 bytes for each event of a full lane.
            lane_bytes_max: 32 << 20,
        }
    }
}

impl Pacing {
    /// The longest delay that a downstream may ask for.
    pub const DOWNSTREAM_DELAY_MAX_MS: u64 = 600_000;

    /// The longest delay that a requeue sets by itself, and no less than the head-of-line deadline. A partition whose
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
