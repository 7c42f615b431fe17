//! The one binary `windfall`: the demo, its proof, and the commands of operators.
//!
//! [`wiring`] puts a process together from its parts, which [`drivers`] open; [`services`] (the roles) and [`demo`] give it
//! theirs. [`outcome`] has the exit codes.

mod admin;
mod check;
mod demo;
mod drivers;
mod logging;
mod memory;
mod outcome;
mod place;
#[cfg(feature = "sabotage")]
mod sabotage;
mod services;
mod wiring;

use clap::{CommandFactory, Parser, Subcommand};
use logging::LogArgs;
use outcome::{EXIT_CODES, Outcome};
use services::Role;
use std::process::ExitCode;

/// Reward and event fan-out at festival scale: every user holds proof at once, and the money arrives exactly once.
#[derive(Debug, Parser)]
#[command(name = "windfall", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    /// Seal the ledger's transfers against changes, and prove that none was changed since
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
    const fn is_role(&self) -> bool {
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
}

fn main() -> ExitCode {
    memory::bound_arenas();
    let cli = Cli::parse();
    if !cli.command.is_role() {
        cli.log.start();
    }
    #[cfg(feature = "sabotage")]
    if let Err(error) = sabotage::from_environment() {
        eprintln!("windfall: {error:#}");
        return ExitCode::from(2);
    }
    let outcome = match &cli.command {
        Command::Demo(args) => demo::demo(args),
        Command::Join(args) => demo::guest::join(args),
        Command::Reconcile(args) => admin::reconcile::run(args),
        Command::Serve(args) => services::serve(args, &cli.log),
        Command::TokenService(args) => services::run(Role::TokenService, args, &cli.log),
        Command::RewardService(args) => services::run(Role::RewardService, args, &cli.log),
        Command::Consumer(args) => services::run(Role::Consumer, args, &cli.log),
        Command::Wallet(args) => services::run(Role::Wallet, args, &cli.log),
        Command::SdkGateway(args) => services::run(Role::SdkGateway, args, &cli.log),
        Command::Scheduler(args) => match &args.command {
            Some(admin::backfill::SchedulerCommand::Backfill(args)) => admin::backfill::run(args),
            None => services::run(Role::Scheduler, &args.service, &cli.log),
        },
        Command::TaskQueue(args) => services::run(Role::TaskQueue, args, &cli.log),
        Command::Console(args) => services::run(Role::Console, args, &cli.log),
        Command::Auditor(args) => services::run(Role::Auditor, args, &cli.log),
        Command::FakeDownstream(args) => services::fake_downstream(args),
        Command::Access(command) => admin::access::run(command).map(|()| Outcome::Clean),
        Command::Keys(command) => admin::keys::run(command).map(|()| Outcome::Clean),
        Command::Ledger(command) => admin::ledger::run(command),
        Command::Signing(command) => admin::signing::run(command).map(|()| Outcome::Clean),
        Command::Rules(command) => admin::rules::run(command),
        Command::Topics(args) => admin::topics::run(args),
        Command::Plan(args) => admin::plan::run(args),
        Command::Token(command) => admin::token::run(command).map(|()| Outcome::Clean),
        #[cfg(feature = "top")]
        Command::Top(args) => admin::top::run(args),
        Command::Find(args) => admin::find::run(args),
        Command::Operate(args) => admin::operate::run(args),
        Command::Schedule(args) => admin::schedule::run(args),
        Command::Jobs(args) => admin::jobs::run(args),
        Command::Archive(command) => admin::archive::run(command),
        Command::Salvage(command) => admin::salvage::run(command),
        Command::Completions(args) => {
            admin::shell::completions(args, Cli::command()).map(|()| Outcome::Clean)
        }
        Command::Man(args) => admin::shell::man(args, Cli::command()).map(|()| Outcome::Clean),
    };
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            eprintln!("windfall: {error:#}");
            ExitCode::from(2)
        }
    }
}
