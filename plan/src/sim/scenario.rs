//! What is simulated.

/// A load and the system that takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Decides every random choice.
    pub seed: u64,
    /// Seconds over which each type's rewards come, evenly.
    pub load_s: f64,
    /// The types.
    pub types: Vec<TypeLoad>,
    /// The limit of all types together, per second, and its burst; `None`: none that matters.
    pub global: Option<(u64, u32)>,
    /// Events of a pack. The smaller, the finer and the slower.
    pub pack_events: u32,
    /// Milliseconds from a call to the record in its topic: the linger time and the broker's answer.
    pub path_ms: f64,
    /// How the consumers read and wait.
    pub pacing: Pacing,
    /// Who writes the grants.
    pub ledger: LedgerModel,
    /// Seconds between two samples of the backlog.
    pub sample_s: f64,
    /// Simulated seconds after which the run is given up.
    pub end_s: f64,
}

/// One bonus type.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeLoad {
    /// Its name.
    pub name: String,
    /// The number of its rewards.
    pub events: u64,
    /// The topics that it goes through, with the part of it that each gets; types of one topic wait for each other at
    /// its front. Each topic has a consumer of its own.
    pub topics: Vec<(usize, f64)>,
    /// Its limit per second, and the burst; `None`: none that matters.
    pub limit: Option<(u64, u32)>,
    /// Its rank; the lowest number goes first.
    pub priority: u8,
    /// Milliseconds that its connector takes to answer; `None`: the ledger pays.
    pub connector_ms: Option<f64>,
}

/// The pacing of the consumer of each topic: see `[pacing]` of the live rules. A fleet's consumers of one topic count as one,
/// with the sum of their bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Pacing {
    /// Events that wait in one lane at most.
    pub lane_events_max: u64,
    /// What passes within this time is fetched ahead.
    pub hold_max_ms: u64,
    /// Events of one grant call at most.
    pub grant_batch: u32,
    /// Events in calls at most.
    pub in_flight_max: u64,
    /// Records per second that a full lane sends back at most.
    pub churn_per_s: u64,
    /// The delay of what is sent back.
    pub requeue_delay_ms: u64,
    /// Milliseconds between two looks of a lane that waits for its limit.
    pub look_ms: f64,
}

/// The writers of all ledgers.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerModel {
    /// Transactions at a time.
    pub writers: u32,
    /// Events of a transaction at most.
    pub transaction_events_max: u64,
    /// Milliseconds of a transaction, whatever is in it.
    pub transaction_ms: f64,
    /// Microseconds of each event in it, on one writer.
    pub event_us: f64,
}

impl Default for Pacing {
    fn default() -> Self {
        // As `contract::rules::Pacing` has them.
        let own = windfall_contract::rules::Pacing::default();
        Self {
            lane_events_max: own.lane_events_max.into(),
            hold_max_ms: own.hold_max_ms,
            grant_batch: own.grant_batch,
            in_flight_max: own.in_hand_max.into(),
            churn_per_s: 1_000,
            requeue_delay_ms: own.requeue_delay_ms,
            look_ms: 2.0,
        }
    }
}
