//! The one binary `windfall`: the demo, its proof, and the commands of operators.
//!
//! [`wiring`] puts a process together from its parts, which [`drivers`] open; [`services`] (the roles) and [`demo`] give it
//! theirs. [`commands`] has what may be asked, and [`outcome`] the exit codes.

// A binary with the demo alone uses a part of the wiring and of the drivers.
#![cfg_attr(not(feature = "roles"), allow(dead_code, unused_imports))]

#[cfg(feature = "roles")]
mod admin;
mod check;
#[cfg_attr(not(feature = "roles"), path = "commands_of_demo.rs")]
mod commands;
mod demo;
mod drivers;
mod logging;
mod memory;
mod outcome;
mod place;
#[cfg(feature = "sabotage")]
mod sabotage;
#[cfg(feature = "roles")]
mod services;
mod wiring;

use clap::{CommandFactory, Parser};
use commands::Command;
use logging::LogArgs;
use outcome::EXIT_CODES;
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

fn main() -> ExitCode {
    memory::bound_arenas();
    windfall_contract::asserted::silence_caught_assertions();
    let cli = Cli::parse();
    if !cli.command.is_role() {
        cli.log.start();
    }
    #[cfg(feature = "sabotage")]
    if let Err(error) = sabotage::from_environment() {
        eprintln!("windfall: {error:#}");
        return ExitCode::from(2);
    }
    let outcome = cli.command.run(&cli.log, Cli::command());
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            eprintln!("windfall: {error:#}");
            ExitCode::from(2)
        }
    }
}
