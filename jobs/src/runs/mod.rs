//! Runs: what a job's occurrence becomes, and the rules by which it goes on. No I/O.

mod begin;
mod events;
mod run;
mod state;

pub use begin::{Begin, MISFIRE_MS, Now, begin};
pub use events::{Report, Reported, Sent, WokenRun, killed, put_off, reported, sent, woken};
pub use run::{Cause, Outcome, Part, Run, RunNumber, RunState};
pub use state::JobState;

/// How long a run may be without anybody who sends it, before it is taken for abandoned. Within it a process sends what it has
/// begun, or leaves it to others.
pub const LEASE_MS: u64 = 4_000;
/// How long ended runs are kept, and what else the rules need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How long a run that succeeded is kept, in milliseconds.
    pub succeeded_ms: u64,
    /// How long any other one is kept, in milliseconds.
    pub failed_ms: u64,
}

#[cfg(test)]
mod tests;
