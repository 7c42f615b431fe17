//! The options of `windfall plan`.

use crate::inputs::{Inputs, TypeInput};
use std::path::PathBuf;

/// Arguments of `windfall plan`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Every figure names its formula, and every cost its source. An `e` marks what is extrapolated beyond the \
                        size at which its cost was measured, an `a` what rests on an assumption: replace these by --costs. \
                        docs/capacity.md works through a festival."
)]
pub struct PlanArgs {
    /// Rewards per second at the peak, over all types
    #[arg(long)]
    rewards_per_s: u64,
    /// Seconds that the peak lasts
    #[arg(long, default_value_t = Inputs::default().for_s)]
    for_s: u64,
    /// A bonus type and what its downstream takes per second, or `all` for as much as comes: NAME=RATE[,share=PERCENT]
    /// [,priority=N][,connector]. Once per type; types without a share have equal parts of what the others leave. The
    /// lowest priority number goes first. A type with `connector` is paid by a connector, which the ledger writes twice
    #[arg(long = "downstream", value_name = "NAME=RATE[,…]", required = true)]
    downstream: Vec<TypeInput>,
    /// The limit of all types together, per second
    #[arg(long)]
    global: Option<u64>,
    /// Reads of wallets per second
    #[arg(long, default_value_t = 0)]
    wallet_reads_per_s: u64,
    /// Orders that the ledgers keep, over the whole campaign; 0 means those of the peak
    #[arg(long, default_value_t = 0)]
    orders: u64,
    /// Days over which these orders come
    #[arg(long, default_value_t = Inputs::default().order_days)]
    order_days: u64,
    /// Days for which brokers keep records
    #[arg(long, default_value_t = Inputs::default().retention_days)]
    retention_days: u64,
    /// The number of ledgers, each of which is a fleet of its own [default: as many as the load needs]
    #[arg(long)]
    ledgers: Option<u64>,
    /// Copies of each record in the brokers
    #[arg(long, default_value_t = Inputs::default().replication)]
    replication: u64,
    /// Timers that wait
    #[arg(long, default_value_t = 0)]
    timers: u64,
    /// Days within which they are due, evenly
    #[arg(long, default_value_t = Inputs::default().timer_days)]
    timer_days: u64,
    /// Timers that are added per second at the peak, while as many fire
    #[arg(long, default_value_t = Inputs::default().timers_per_s)]
    timers_per_s: u64,
    /// Processes that send
    #[arg(long, default_value_t = Inputs::default().senders)]
    senders: u64,
    /// Seconds without any broker that the senders' spools must bridge
    #[arg(long, default_value_t = Inputs::default().broker_outage_s)]
    broker_outage_s: u64,
    /// Capacity ÷ need of each part
    #[arg(long, default_value_t = Inputs::default().headroom)]
    headroom: f64,
    /// The seed of the simulation
    #[arg(long, default_value_t = Inputs::default().seed)]
    seed: u64,
    /// A file with costs of your own: what `windfall-bench … --json` prints, or {"costs": {"nic_bytes_per_s": 3.1e9}}
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Write two plots to this file: the rewards that wait, and those that are credited
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object: inputs, figures, drains with their samples, costs
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// What the plan is asked for; not checked.
    pub fn inputs(&self) -> Inputs {
        Inputs {
            rewards_per_s: self.rewards_per_s,
            for_s: self.for_s,
            types: self.downstream.clone(),
            global_per_s: self.global,
            wallet_reads_per_s: self.wallet_reads_per_s,
            orders: self.orders,
            order_days: self.order_days,
            retention_days: self.retention_days,
            ledgers: self.ledgers,
            replication: self.replication,
            timers: self.timers,
            timer_days: self.timer_days,
            timers_per_s: self.timers_per_s,
            senders: self.senders,
            broker_outage_s: self.broker_outage_s,
            headroom: self.headroom,
            seed: self.seed,
        }
    }
}
