//! The names of the strategies.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How the executor of a run is chosen. It is written in snake case; XXL-JOB's upper-case names are read as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Strategy {
    /// The first address of the list.
    First,
    /// The last address of the list.
    Last,
    /// One after the other.
    #[default]
    Round,
    /// Any.
    Random,
    /// By the routing key; when an executor leaves, only its keys move.
    ConsistentHash,
    /// Who had the fewest runs of the job.
    LeastFrequentlyUsed,
    /// Whose last run of the job is longest ago.
    LeastRecentlyUsed,
    /// The first that answers a heartbeat.
    Failover,
    /// The first that is idle for the job.
    Busyover,
    /// All of them, each with its index and the total.
    ShardingBroadcast,
    /// Who answers soonest, by what was measured.
    LeastLoaded,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 11] = [
        Self::First,
        Self::Last,
        Self::Round,
        Self::Random,
        Self::ConsistentHash,
        Self::LeastFrequentlyUsed,
        Self::LeastRecentlyUsed,
        Self::Failover,
        Self::Busyover,
        Self::ShardingBroadcast,
        Self::LeastLoaded,
    ];

    /// Its name in snake case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Round => "round",
            Self::Random => "random",
            Self::ConsistentHash => "consistent_hash",
            Self::LeastFrequentlyUsed => "least_frequently_used",
            Self::LeastRecentlyUsed => "least_recently_used",
            Self::Failover => "failover",
            Self::Busyover => "busyover",
            Self::ShardingBroadcast => "sharding_broadcast",
            Self::LeastLoaded => "least_loaded",
        }
    }
}

/// No strategy has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{name}\" is not a routing strategy; choose one of {}", Strategy::ALL.map(Strategy::name).join(", "))]
pub struct UnknownStrategy {
    /// The name that was given.
    pub name: String,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    /// Reads a name in snake case, or in upper case as XXL-JOB writes it.
    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::ALL
            .into_iter()
            .find(|strategy| name == strategy.name() || name == strategy.name().to_ascii_uppercase());
        found.ok_or_else(|| UnknownStrategy { name: name.chars().take(64).collect() })
    }
}

impl TryFrom<String> for Strategy {
    type Error = UnknownStrategy;

    fn try_from(name: String) -> Result<Self, UnknownStrategy> {
        name.parse()
    }
}

impl From<Strategy> for &'static str {
    fn from(strategy: Strategy) -> Self {
        strategy.name()
    }
}
