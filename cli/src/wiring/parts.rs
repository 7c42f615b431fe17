//! The parts that a process is given to run on.

use super::background::Tasks;
use super::scheduling::SchedulingOptions;
use super::signing::{AcceptedByName, Signing};
use crate::drivers::{Entries, Far, LedgerMark, RulesFollower, Slots};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::connector::Connector;
use windfall_contract::long_delays::LongDelays;
use windfall_contract::tokens::TokenStore;
use windfall_edge::Health;
use windfall_ledger::Ledger;
use windfall_reward_service::{Again, AsyncGrantOptions, RewardOptions};
use windfall_sdk::SdkOptions;
use windfall_token::KeyRing;
use windfall_token_service::TokenOptions;
use windfall_wallet::WalletOptions;

/// Brokers by the names that the rules have for them.
pub type Brokers = BTreeMap<String, Arc<dyn Broker>>;

/// Open parts. Those that the process's [`Work`](super::Work) does not need may be missing.
pub struct Parts {
    /// The live rules.
    pub rules: LiveRules,
    /// Keeps the live rules up to date; closed last.
    pub rules_follower: RulesFollower,
    /// The brokers; needed where the process writes to queues.
    pub brokers: Brokers,
    /// Where tokens are kept.
    pub tokens: Arc<dyn TokenStore>,
    /// Whether other processes may write and remove tokens there.
    pub tokens_are_shared: bool,
    /// The key ring; needed where the process sends or verifies tokens.
    pub keys: Option<KeyRing>,
    /// The keys that records are signed and verified with; none: they are not signed, and every record is taken of the topics
    /// that [`Options::accepted`] has.
    pub signing: Option<Signing>,
    /// Where orders and balances are kept; needed where the process grants.
    pub ledger: Option<Ledger>,
    /// Where its mark is kept, if it has one.
    pub ledger_mark: Option<LedgerMark>,
    /// Where consumers hand over events that are due long after now.
    pub long_delays: Option<Arc<dyn LongDelays>>,
    /// Where timers wait; needed where the process keeps timers.
    pub slots: Option<Slots>,
    /// The far tier in front of them, where there is one.
    pub far: Option<Far>,
    /// Where jobs are kept; needed where the process runs jobs.
    pub entries: Option<Entries>,
    /// The downstream systems that `Options::rewards` names.
    pub connectors: Vec<Arc<dyn Connector>>,
    /// The process's clock.
    pub clock: Clock,
    /// Where the process says what it lacks.
    pub health: Health,
    /// The owner of its tasks.
    pub tasks: Tasks,
}

/// How the parts are used.
#[derive(Clone)]
pub struct Options {
    /// Of the SDK: the app it sends for, and how it gathers packs.
    pub sdk: SdkOptions,
    /// The data directory, which is there: files without a name that hold more than memory should.
    pub data: PathBuf,
    /// The directory of the SDK's spool.
    pub spool: PathBuf,
    /// The payers.
    pub rewards: RewardOptions,
    /// The options of the token verifier.
    pub token_service: TokenOptions,
    /// The time-outs of wallets.
    pub wallet: WalletOptions,
    /// Which parts must answer before an asynchronous grant does.
    pub async_grants: AsyncGrantOptions,
    /// When events of orders that are still reserved are written again.
    pub rewrite: Again,
    /// Whose timers are kept and where they go; needed where the process keeps timers.
    pub scheduling: Option<SchedulingOptions>,
    /// Topics that are consumed; none: all that the rules name.
    pub topics: Vec<String>,
    /// Which topics are read where there are no signing keys.
    pub accepted: AcceptedByName,
    /// How each topic is read; each consumer gets a jitter of its own.
    pub consumer: windfall_consumer::Options,
    /// The spill log: records that no queue takes wait there.
    pub salvage: PathBuf,
    /// The key ring's file, followed where tokens are verified.
    pub keys_file: PathBuf,
    /// Seeds the consumers' jitter.
    pub jitter_seed: u64,
}
