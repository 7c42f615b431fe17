//! The one binary `windfall`: the demo, its proof, and the commands of operators.
//!
//! Exit codes: 0 all is well; 1 the check found damage, or a replay decided nothing; 2 the call or its input was
//! wrong, nothing was changed; 130 interrupted.

mod admin;
mod backends;
mod check;
mod data;
mod demo;
mod logging;
mod memory;
mod pipeline;
#[cfg(feature = "sabotage")]
mod sabotage;
mod services;

use clap::{Parser, Subcommand};
use demo::Outcome;
use logging::LogArgs;
use services::Role;
use std::process::ExitCode;

/// Reward and event fan-out at festival scale: every user holds proof at once, and the money arrives exactly once.
#[derive(Debug, Parser)]
#[command(name = "windfall", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make it rain rewards on this machine, break things meanwhile, and prove that nothing was lost or paid twice
    Demo(demo::DemoArgs),
    /// Consume for a running demo as a second process, until Ctrl-C: partitions move here and back
    Join(demo::guest::JoinArgs),
    /// Check the files of an earlier demo: the rain's own record against ledger, archive and downstream
    Reconcile(demo::ReconcileArgs),
    /// Every service in one process: sending, consuming, granting, tokens, wallets; gRPC and HTTP on one port
    Serve(services::ServeArgs),
    /// List and verify users' tokens
    TokenService(services::ServiceArgs),
    /// Grant over a wire; the failure archive
    RewardService(services::ServiceArgs),
    /// Drain the topics into the ledger and downstream systems
    Consumer(services::ServiceArgs),
    /// Users' balances, movements and withdrawals
    Wallet(services::ServiceArgs),
    /// Take rewards from activity services that cannot link the SDK
    SdkGateway(services::ServiceArgs),
    /// A paying system to try connectors on
    FakeDownstream(services::FakeArgs),
    /// Keys of callers
    #[command(subcommand)]
    Access(admin::access::AccessCommand),
    /// The key ring of tokens
    #[command(subcommand)]
    Keys(admin::keys::KeysCommand),
    /// The live rules: queues, routes, limits, fuses, budgets, pacing
    #[command(subcommand)]
    Rules(admin::rules::RulesCommand),
    /// Tokens
    #[command(subcommand)]
    Token(admin::token::TokenCommand),
    /// Ask running services: archive, replays, budgets, reserved orders, held withdrawals
    Operate(admin::operate::OperateArgs),
    /// The failure archive in a data directory
    #[command(subcommand)]
    Archive(admin::archive::ArchiveCommand),
}

impl Command {
    /// Roles begin to log when they know where their traces go.
    const fn is_role(&self) -> bool {
        matches!(
            self,
            Self::Serve(_)
                | Self::TokenService(_)
                | Self::RewardService(_)
                | Self::Consumer(_)
                | Self::Wallet(_)
                | Self::SdkGateway(_)
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
        Command::Reconcile(args) => demo::reconcile(args),
        Command::Serve(args) => services::serve(args, &cli.log),
        Command::TokenService(args) => services::run(Role::TokenService, args, &cli.log),
        Command::RewardService(args) => services::run(Role::RewardService, args, &cli.log),
        Command::Consumer(args) => services::run(Role::Consumer, args, &cli.log),
        Command::Wallet(args) => services::run(Role::Wallet, args, &cli.log),
        Command::SdkGateway(args) => services::run(Role::SdkGateway, args, &cli.log),
        Command::FakeDownstream(args) => services::fake_downstream(args),
        Command::Access(command) => admin::access::run(command).map(|()| Outcome::Clean),
        Command::Keys(command) => admin::keys::run(command).map(|()| Outcome::Clean),
        Command::Rules(command) => admin::rules::run(command).map(|()| Outcome::Clean),
        Command::Token(command) => admin::token::run(command).map(|()| Outcome::Clean),
        Command::Operate(args) => admin::operate::run(args),
        Command::Archive(command) => admin::archive::run(command),
    };
    match outcome {
        Ok(Outcome::Clean) => ExitCode::SUCCESS,
        Ok(Outcome::Damage) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("windfall: {error:#}");
            ExitCode::from(2)
        }
    }
}
