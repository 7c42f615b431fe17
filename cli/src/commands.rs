//! The commands of the binary: the demo, its proof, every service, and what operators ask them by.

use crate::logging::LogArgs;
use crate::outcome::Outcome;
use crate::services::{self, Role};
use crate::{admin, demo};
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send rewards through all parts on this machine, break parts meanwhile, and prove that no reward was lost or paid twice
    Demo(demo::DemoArgs),
    /// Consume for a running demo as a second process until Ctrl-C, so that partitions move here and back
    Join(demo::guest::JoinArgs),
    /// Reconcile: ask a running auditor what differs in the ledger (--server), or check the files of an earlier demo (--data):
    /// compare the senders' own log with the ledger, the archive and the downstream system
    Reconcile(admin::reconcile::ReconcileArgs),
    /// Run every service in one process: sending, consuming, granting, tokens, wallets and timers, by gRPC and HTTP on one
    /// port; the console; and task queues, if a pool of them is named
    Serve(services::ServeArgs),
    /// Run the service that lists and verifies users' tokens
    TokenService(services::ServiceArgs),
    /// Run the service that grants rewards and keeps the failure archive
    RewardService(services::ServiceArgs),
    /// Run the consumer that drains the topics into the ledger and the downstream systems
    Consumer(services::ServiceArgs),
    /// Run the service for users' balances, movements and withdrawals
    Wallet(services::ServiceArgs),
    /// Run the service that sends rewards for activity services that cannot link the SDK
    SdkGateway(services::ServiceArgs),
    /// Run the service that keeps timers and fires them at their time, and jobs if they are among its options; or have past timers fired again
    Scheduler(admin::backfill::SchedulerArgs),
    /// Run the task queues: jobs over HTTP for consumers that pull them, by the contract that clients of lmstfy speak
    TaskQueue(services::ServiceArgs),
    /// Run the console: operators' web page over the services that its options name. `serve` has it too
    Console(services::ServiceArgs),
    /// Run the auditor: reconcile the ledger all the time, beside the processes that write it
    Auditor(services::ServiceArgs),
    /// Run a paying system to try connectors on; it moves no real money
    FakeDownstream(services::FakeArgs),
    /// Make keys for the callers of the services
    #[command(subcommand)]
    Access(admin::access::AccessCommand),
    /// Manage the key ring that seals and signs tokens
    #[command(subcommand)]
    Keys(admin::keys::KeysCommand),
    /// Seal the ledger's transfers against changes, and prove that none was changed since; close, export and detach activities
    #[command(subcommand)]
    Ledger(admin::ledger::LedgerCommand),
    /// Manage the keys that senders sign records with, and consumers verify them by
    #[command(subcommand)]
    Signing(admin::signing::SigningCommand),
    /// Check, show, change and roll back the live rules: queues, routes, limits, fuses, budgets, pacing
    #[command(subcommand)]
    Rules(admin::rules::RulesCommand),
    /// List every topic that the live rules name: active or draining, and the number of records left in it
    Topics(admin::topics::TopicsArgs),
    /// Compute what a load needs, part by part, from measured costs; simulate how long its backlog lasts, by type
    Plan(windfall_plan::PlanArgs),
    /// Look into tokens
    #[command(subcommand)]
    Token(admin::token::TokenCommand),
    /// Show live what operators look at when it rains: queues and their lag, bonus types against their limits, grants, what
    /// needs a look; or print it once as text or JSON
    #[cfg(feature = "top")]
    Top(admin::top::TopArgs),
    /// Find one reward by its order number: when the ledger saw it, who paid it, and what the archive has of it
    Find(admin::find::FindArgs),
    /// Ask running services about the archive, budgets, reserved orders and held withdrawals; replay archive entries and
    /// release reserved orders
    Operate(admin::operate::OperateArgs),
    /// Ask a running scheduler: add, move, cancel, show and list timers, and see to those that were given up
    Schedule(admin::schedule::ScheduleArgs),
    /// Ask a running scheduler about jobs: make, change, run, pause and remove them, and see to their runs
    Jobs(admin::jobs::JobsArgs),
    /// List and replay the failure archive in a demo's data directory
    #[command(subcommand)]
    Archive(admin::archive::ArchiveCommand),
    /// List and replay salvage files, where consumers keep what no queue took
    #[command(subcommand)]
    Salvage(admin::salvage::SalvageCommand),
    /// Print the script by which a shell completes these commands, such as: source <(windfall completions bash)
    Completions(admin::shell::CompletionsArgs),
    /// Write a manual page for each command
    Man(admin::shell::ManArgs),
}

impl Command {
    /// Whether it runs a service: these begin to log when they know where their traces go.
    pub const fn is_role(&self) -> bool {
        matches!(
            self,
            Self::Serve(_)
                | Self::TokenService(_)
                | Self::RewardService(_)
                | Self::Consumer(_)
                | Self::Wallet(_)
                | Self::SdkGateway(_)
                | Self::TaskQueue(_)
                | Self::Console(_)
                | Self::Auditor(_)
                | Self::Scheduler(admin::backfill::SchedulerArgs { command: None, .. })
        )
    }

    /// Runs the command. `whole` is the command line as a whole, whose completions and manual pages may be asked for.
    pub fn run(&self, log: &LogArgs, whole: clap::Command) -> Result<Outcome> {
        match self {
            Self::Demo(args) => demo::demo(args),
            Self::Join(args) => demo::guest::join(args),
            Self::Reconcile(args) => admin::reconcile::run(args),
            Self::Serve(args) => services::serve(args, log),
            Self::TokenService(args) => services::run(Role::TokenService, args, log),
            Self::RewardService(args) => services::run(Role::RewardService, args, log),
            Self::Consumer(args) => services::run(Role::Consumer, args, log),
            Self::Wallet(args) => services::run(Role::Wallet, args, log),
            Self::SdkGateway(args) => services::run(Role::SdkGateway, args, log),
            Self::Scheduler(args) => match &args.command {
                Some(admin::backfill::SchedulerCommand::Backfill(args)) => admin::backfill::run(args),
                None => services::run(Role::Scheduler, &args.service, log),
            },
            Self::TaskQueue(args) => services::run(Role::TaskQueue, args, log),
            Self::Console(args) => services::run(Role::Console, args, log),
            Self::Auditor(args) => services::run(Role::Auditor, args, log),
            Self::FakeDownstream(args) => services::fake_downstream(args),
            Self::Access(command) => admin::access::run(command).map(|()| Outcome::Clean),
            Self::Keys(command) => admin::keys::run(command).map(|()| Outcome::Clean),
            Self::Ledger(command) => admin::ledger::run(command),
            Self::Signing(command) => admin::signing::run(command).map(|()| Outcome::Clean),
            Self::Rules(command) => admin::rules::run(command),
            Self::Topics(args) => admin::topics::run(args),
            Self::Plan(args) => admin::plan::run(args),
            Self::Token(command) => admin::token::run(command).map(|()| Outcome::Clean),
            #[cfg(feature = "top")]
            Self::Top(args) => admin::top::run(args),
            Self::Find(args) => admin::find::run(args),
            Self::Operate(args) => admin::operate::run(args),
            Self::Schedule(args) => admin::schedule::run(args),
            Self::Jobs(args) => admin::jobs::run(args),
            Self::Archive(command) => admin::archive::run(command),
            Self::Salvage(command) => admin::salvage::run(command),
            Self::Completions(args) => admin::shell::completions(args, whole).map(|()| Outcome::Clean),
            Self::Man(args) => admin::shell::man(args, whole).map(|()| Outcome::Clean),
        }
    }
}
