//! The parts that a consumer is made of.

use crate::requeue::RequeueSink;
use crate::shared_limiter::SharedLimiter;
use crate::signatures::Signatures;
use crate::spill_log::SpillLog;
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::broker;
use windfall_contract::long_delays::LongDelays;
use windfall_contract::rewards::Rewards;
use windfall_contract::rules::Rules;

/// Returns the live rules, as of now. It is called in each turn of the loop, so it must be as cheap as the clone of an
/// `Arc`.
pub type RulesNow = Arc<dyn Fn() -> Arc<Rules> + Send + Sync>;

/// The parts that a consumer is made of.
pub struct Parts {
    /// The topic's name, for the fleet's share and for the log.
    pub topic: String,
    /// The broker's consumer that brings records.
    pub source: Box<dyn broker::Consumer>,
    /// The service that grants and archives events.
    pub rewards: Arc<dyn Rewards>,
    /// The sink that events are requeued to.
    pub requeue_sink: Arc<dyn RequeueSink>,
    /// The log where they wait when no queue takes them; one per process.
    pub spill_log: Arc<SpillLog>,
    /// Keeps events whose senders want them to be granted long after now. Without it their due time is brought back to
    /// the longest delay that a consumer knows.
    pub long_delays: Option<Arc<dyn LongDelays>>,
    /// How records are verified before anything of them is granted; `None`: every record is taken.
    pub signatures: Option<Signatures>,
    /// The limiter with the fleet's share; one per process.
    pub limiter: Arc<SharedLimiter>,
    /// The live rules.
    pub rules: RulesNow,
    /// The same clock that the limiter was started with.
    pub clock: Clock,
}
