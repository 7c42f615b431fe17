//! The outcome of a command, and its exit code.

use std::process::ExitCode;

/// The outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Clean,
    /// The check found damage, or something that was asked for is not decided yet.
    Damage,
    /// A part of the process failed again and again, so that it cannot go on: another start may.
    Failed,
    /// The command was stopped before its end.
    Interrupted,
}

/// What `--help` says of exit codes.
pub const EXIT_CODES: &str = "Exit codes:
  0    All is well.
  1    The check found damage, or something that was asked for is not decided yet: ask again.
  2    The call or its input was wrong, or a part could not be used. Nothing was changed.
  3    A service could not go on, since a part of it failed again and again: start it again.
  130  The command was interrupted.";

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Clean => 0,
            Outcome::Damage => 1,
            Outcome::Failed => 3,
            Outcome::Interrupted => 130,
        })
    }
}
