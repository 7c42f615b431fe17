//! The live rules of the fleet: what they say at first, how faults change them, and what was in force when.

use std::collections::BTreeMap;
use std::fmt;

/// The activity of all rewards.
pub const ACTIVITY: &str = "soak";
/// The scene of all rewards, and its short name in order numbers.
pub const SCENE: (&str, &str) = ("red-packet-rain", "rain");
/// The longest delay of a requeue.
pub const LONGEST_DELAY_MS: u64 = 3_000;
/// Events that one consumer has in grant calls at once.
pub const IN_FLIGHT_MAX: u64 = 200;

/// A bonus type of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Type {
    /// Its name.
    pub name: &'static str,
    /// The limit of the fleet: per cent of the whole load's rate.
    pub limit_percent: u64,
    /// Whether all of its credits pass the limit: not where a call credits at once.
    pub is_limited: bool,
}

/// Half of the load, by gateways and by the SDK.
pub const CASH: Type = Type { name: "cash", limit_percent: 150, is_limited: true };
/// The type whose limit, fuse and route change.
pub const COIN: Type = Type { name: "coin", limit_percent: 60, is_limited: true };
/// Paid by the downstream system.
pub const GIFT: Type = Type { name: "gift", limit_percent: 60, is_limited: true };
/// Has a budget for half of what is sent.
pub const SCARCE: Type = Type { name: "scarce", limit_percent: 50, is_limited: true };
/// Withdrawn by its users, so that tokens force some credits.
pub const PURSE: Type = Type { name: "purse", limit_percent: 50, is_limited: false };
/// Granted by calls of the reward service.
pub const DIRECT: Type = Type { name: "direct", limit_percent: 50, is_limited: false };
/// Granted by asynchronous calls of the reward service.
pub const LATER: Type = Type { name: "later", limit_percent: 50, is_limited: true };
/// Sent by timers.
pub const TIMED: Type = Type { name: "timed", limit_percent: 50, is_limited: true };
/// All of them.
pub const TYPES: [Type; 8] = [CASH, COIN, GIFT, SCARCE, PURSE, DIRECT, LATER, TIMED];

/// A change of the rules, which is taken back when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The limit of coins is a fifth of what is sent.
    LowLimit,
    /// The limit of coins is four times what it was.
    HighLimit,
    /// The fuse of coins holds them.
    Pause,
    /// The fuse of coins requeues them.
    Divert,
    /// Half of the users' cash goes to the master topic.
    Ratio,
    /// Coins take the queue of gifts.
    Route,
    /// Coins take a new queue with two new topics, which are removed again.
    Add,
    /// Cash has its master topic on another broker.
    Move,
}

impl Change {
    /// A change of the fault kind `rules`.
    pub const fn live() -> [Self; 6] {
        [Self::LowLimit, Self::HighLimit, Self::Pause, Self::Divert, Self::Ratio, Self::Route]
    }

    /// A change of the fault kind `topics`.
    pub const fn topics() -> [Self; 2] {
        [Self::Add, Self::Move]
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LowLimit => "a low limit for coins",
            Self::HighLimit => "a high limit for coins",
            Self::Pause => "the fuse of coins is `pause`",
            Self::Divert => "the fuse of coins is `divert`",
            Self::Ratio => "half of the cash goes to the backup topic",
            Self::Route => "coins take the queue of gifts",
            Self::Add => "coins take a new queue with new topics, which go again",
            Self::Move => "the master topic of cash moves to another broker",
        })
    }
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Events per second.
    pub rate_per_s: u64,
    /// Events at once.
    pub burst: u64,
}

/// The rules, apart from their version.
#[derive(Debug, Clone)]
pub struct Rules {
    rate_per_s: u64,
    scarce_total: u64,
    limits_off: bool,
    changes: Vec<Change>,
}

impl Rules {
    /// The rules of a load of `rate_per_s` rewards, of which `scarce_total` may be given out as scarce ones. With
    /// `limits_off` the document has no limits to speak of, though [`Rules::limits`] says otherwise.
    pub const fn new(rate_per_s: u64, scarce_total: u64, limits_off: bool) -> Self {
        Self { rate_per_s, scarce_total, limits_off, changes: Vec::new() }
    }

    /// Makes a change, or takes it back.
    pub fn turn(&mut self, change: Change, on: bool) {
        self.changes.retain(|one| *one != change);
        if on {
            self.changes.push(change);
        }
    }

    fn has(&self, change: Change) -> bool {
        self.changes.contains(&change)
    }

    /// The limit of each type.
    pub fn limits(&self) -> BTreeMap<&'static str, Limit> {
        TYPES.iter().map(|one| (one.name, self.limit(*one))).collect()
    }

    fn limit(&self, of: Type) -> Limit {
        let mut percent = of.limit_percent;
        if of == COIN {
            if self.has(Change::Pause) || self.has(Change::Divert) {
                return Limit { rate_per_s: 0, burst: 0 };
            }
            percent = match (self.has(Change::LowLimit), self.has(Change::HighLimit)) {
                (true, _) => 5,
                (_, true) => percent * 4,
                _ => percent,
            };
        }
        let rate_per_s = (self.rate_per_s * percent / 100).max(5);
        Limit { rate_per_s, burst: (rate_per_s / 10).max(10) }
    }

    /// The document that replaces the one with this version.
    pub fn document(&self, version: u64) -> String {
        let names: Vec<String> = TYPES.iter().map(|one| format!("{:?}", one.name)).collect();
        let mut text = format!("version = {version}\ntypes = [{}]\n\n", names.join(", "));
        text.push_str(&self.places());
        for one in TYPES {
            let Limit { rate_per_s, burst } = self.limit(one);
            let (rate_per_s, burst) = match self.limits_off {
                true => (10_000_000, 1_000_000),
                // A fuse stops a type, and the limit behind it stays.
                false if burst == 0 => (self.rate_per_s, 10),
                false => (rate_per_s, burst),
            };
            let fuse = match (one == COIN && self.has(Change::Pause), one == COIN && self.has(Change::Divert))
            {
                (true, _) => "pause",
                (_, true) => "divert",
                _ => "closed",
            };
            text.push_str(&format!(
                "[limits.types.{}]\nrate_per_s = {rate_per_s}\nburst = {burst}\nfuse = {fuse:?}\n\n",
                one.name
            ));
        }
        text.push_str("[limits.global]\nrate_per_s = 20000000\nburst = 2000000\n\n");
        for one in TYPES {
            let total = if one == SCARCE { self.scarce_total } else { 1_000_000_000_000 };
            text.push_str(&format!(
                "[[budgets]]\nactivity = {ACTIVITY:?}\nscene = {:?}\ntype = {:?}\ntotal = {total}\n\n",
                SCENE.0, one.name
            ));
        }
        text.push_str(&format!(
            "[pacing]\nhold_max_ms = 200\ndeadline_ms = 2000\nrequeue_delay_ms = 100\n\
             requeue_delay_max_ms = {LONGEST_DELAY_MS}\nmax_failures = 1000\ngrant_batch = 100\n\
             in_hand_max = {IN_FLIGHT_MAX}\nlane_events_max = 4096\n\n[end]\n"
        ));
        text
    }

    /// Topics, queues and routes.
    fn places(&self) -> String {
        let mut topics = vec![
            ("cash-a", "a"),
            ("cash-b", "b"),
            ("gifts-b", "b"),
            ("gifts-a", "a"),
            ("coins-c", "c"),
            ("coins-b", "b"),
        ];
        let mut queues = vec![("gifts", "gifts-b", "gifts-a", 70), ("coins", "coins-c", "coins-b", 70)];
        let cash = if self.has(Change::Move) {
            topics[0] = ("cash-c", "c");
            "cash-c"
        } else {
            "cash-a"
        };
        queues.push(("cash", cash, "cash-b", if self.has(Change::Ratio) { 50 } else { 90 }));
        if self.has(Change::Add) {
            topics.extend([("more-a", "a"), ("more-c", "c")]);
            queues.push(("more", "more-a", "more-c", 60));
        }
        let coins = match (self.has(Change::Add), self.has(Change::Route)) {
            (true, _) => "more",
            (_, true) => "gifts",
            _ => "coins",
        };
        let mut text = String::new();
        for (name, broker) in topics {
            text.push_str(&format!("[topics.{name}]\nbroker = {broker:?}\npartitions = 4\n\n"));
        }
        for (name, master, backup, ratio) in queues {
            text.push_str(&format!(
                "[queues.{name}]\nmaster = {master:?}\nbackup = {backup:?}\nratio = {ratio}\n\n"
            ));
        }
        let routes = [
            ("cash", "cash", "gifts"),
            ("coin", coins, "cash"),
            ("gift", "gifts", "cash"),
            ("*", "coins", "cash"),
        ];
        for (of, queue, other) in routes {
            text.push_str(&format!(
                "[[routes]]\ntype = {of:?}\nqueue = {queue:?}\nrequeue = [{queue:?}, {other:?}]\n\n"
            ));
        }
        text
    }
}

/// The limits that were in force, with the Unix milliseconds from which on they were.
#[derive(Debug, Clone, Default)]
pub struct History(Vec<(u64, BTreeMap<&'static str, Limit>)>);

impl History {
    /// Notes the limits that hold from now on.
    pub fn note(&mut self, at_ms: u64, limits: BTreeMap<&'static str, Limit>) {
        self.0.push((at_ms, limits));
    }

    /// The largest limit of a type that some process may have followed at this time: an older one is forgotten
    /// `grace_ms` after it was replaced.
    pub fn largest(&self, of: &str, at_ms: u64, grace_ms: u64) -> Limit {
        let mut largest = Limit { rate_per_s: 0, burst: 0 };
        for (index, (since_ms, limits)) in self.0.iter().enumerate() {
            let replaced_ms = self.0.get(index + 1).map_or(u64::MAX, |next| next.0);
            if *since_ms > at_ms || replaced_ms.saturating_add(grace_ms) < at_ms {
                continue;
            }
            if let Some(limit) = limits.get(of) {
                largest.rate_per_s = largest.rate_per_s.max(limit.rate_per_s);
                largest.burst = largest.burst.max(limit.burst);
            }
        }
        largest
    }
}
