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

/// Bounds at which a process gives a staged change up once they are passed; a bound that is not there bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guards {
    /// The age of the oldest event that waits in a lane whose fuse is closed, in ms.
    pub oldest_max_ms: Option<u64>,
    /// The share of grants that failed within the last ten seconds, in per cent.
    pub failed_max_percent: Option<u8>,
    /// The records of one topic that its consumers have not committed.
    pub lag_max_records: Option<u64>,
    /// The time from send to credit that 99 of 100 rewards that this process credited within the last ten seconds did not
    /// exceed, in ms.
    pub latency_p99_max_ms: Option<u64>,
    /// The time that each budget which the change touches lasts at the pace of the last minute, in ms: a lower bound.
    pub budget_lasts_min_ms: Option<u64>,
}

impl Guards {
    /// Every guard by its key in the document, with its bound.
    pub fn named(&self) -> [(&'static str, Option<u64>); 5] {
        [
            ("oldest_max_ms", self.oldest_max_ms),
            ("failed_max_percent", self.failed_max_percent.map(u64::from)),
            ("lag_max_records", self.lag_max_records),
            ("latency_p99_max_ms", self.latency_p99_max_ms),
            ("budget_lasts_min_ms", self.budget_lasts_min_ms),
        ]
    }
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

    /// Whether the change that is staged in these rules reaches rewards of this bonus type. `*`, by which a budget is one over
    /// all types, is reached by every change.
    pub fn staged_reaches(&self, bonus_type: &str) -> bool {
        let Some(staged) = self.staged.as_deref() else { return false };
        let reaches_all = staged.pacing != self.pacing || staged.limits.global != self.limits.global;
        reaches_all
            || bonus_type == "*"
            || staged.limits.types.get(bonus_type) != self.limits.types.get(bonus_type)
    }

    /// What tells these rules from others that the same process has run, in the order in which it ran them: of one
    /// version, first the rules with the staged change, and those without it once it has given the change up.
    pub const fn edition(&self) -> (u64, bool) {
        (self.version, !self.tries_staged)
    }
}
