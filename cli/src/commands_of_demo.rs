//! The one command of a binary that was built without the roles.

use crate::demo;
use crate::logging::LogArgs;
use crate::outcome::Outcome;
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send rewards through all parts on this machine, break parts meanwhile, and prove that no reward was lost or paid twice
    ///
    /// This binary was built for the demo on embedded parts alone: `./dev run` has every command.
    Demo(demo::DemoArgs),
}

impl Command {
    /// Whether it runs a service.
    pub const fn is_role(&self) -> bool {
        false
    }

    /// Runs the command.
    pub fn run(&self, _: &LogArgs, _: clap::Command) -> Result<Outcome> {
        match self {
            Self::Demo(args) => demo::demo(args),
        }
    }
}
