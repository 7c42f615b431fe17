//! A change of limits and pacing that some processes try before it holds for all.

use crate::rules::{Limits, Pacing, Rules};

/// A staged change of the live rules: the processes that it names run it, all others run the rules without it.
///
/// It reaches only what one process may have otherwise than the next one: limits, fuses, ranks and pacing. Where a limit
/// is staged, a process takes its share of the staged limit, so the fleet passes at most the larger one of the two.
#[derive(Debug, Clone, PartialEq)]
pub struct Staged {
    /// When it was staged, in ms since 1970: it tells this change from an earlier one.
    pub since_ms: u64,
    /// From then on it counts as proven, in ms since 1970.
    pub proven_ms: u64,
    /// From then on no process runs it, in ms since 1970, whoever has forgotten it.
    pub until_ms: u64,
    /// The processes that run it, by the names that they report.
    pub processes: Vec<String>,
    /// Where a process gives it up by itself.
    pub guards: Guards,
    /// The limits of these processes: those of the rules with the change made.
    pub limits: Limits,
    /// The pacing of these processes, in the same way.
    pub pacing: Pacing,
}

/// Bounds beyond which a process gives a staged change up; a bound that is not there bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guards {
    /// The age of the oldest event that waits in a lane whose fuse is closed, in ms.
    pub oldest_max_ms: Option<u64>,
    /// The share of grants that failed within the last ten seconds, in per cent.
    pub failed_max_percent: Option<u8>,
    /// The records of one topic that its consumers have not committed.
    pub lag_max_records: Option<u64>,
}

impl Rules {
    /// The rules of a process that runs the staged change; the same rules where none is staged.
    pub fn with_staged(&self) -> Self {
        match &self.staged {
            Some(staged) => {
                let (limits, pacing) = (staged.limits.clone(), staged.pacing.clone());
                Self { limits, pacing, tries_staged: true, ..self.clone() }
            }
            None => self.clone(),
        }
    }

    /// What tells these rules from others that the same process has run, in the order in which it ran them: of one
    /// version, first the rules with the staged change, and those without it once it has given the change up.
    pub const fn edition(&self) -> (u64, bool) {
        (self.version, !self.tries_staged)
    }
}
