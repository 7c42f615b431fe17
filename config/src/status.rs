//! The version of the rules that each process runs: each process reports it beside the rules, where
//! `windfall rules status` reads it.

use serde::{Deserialize, Serialize};
use windfall_contract::rules::Guards;

use crate::stage::StagedStatus;

/// How often a process reports.
pub const REPORT_EVERY_MS: u64 = 5_000;
/// The time without a report after which a process is silent: stopped, or cut off.
pub const SILENT_AFTER_MS: u64 = 20_000;
/// How long the report of a silent process is kept.
pub(crate) const FORGET_AFTER_MS: u64 = 3_600_000;
/// The guards that are newer than staged changes themselves, by their keys. A program that knows staged changes and does not
/// report one of these refuses a document that has it.
const LATER_GUARDS: [&str; 2] = ["latency_p99_max_ms", "budget_lasts_min_ms"];
/// The letters of a name that reports are kept under, at most.
const NAME_MAX: usize = 128;

/// The report of one process about the rules that it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process, by a name that no other one has: role, machine and process id.
    pub process: String,
    /// The version that it runs.
    pub version: u64,
    /// When it reported that, in ms since 1970.
    pub at_ms: u64,
    /// The newest document that it was offered, where it refuses that one.
    pub refuses: Option<RefusedVersion>,
    /// Why it cannot read the rules' source now.
    pub source_failure: Option<String>,
    /// Whether it can try a staged change: it has consumers, which limits and pacing are for. `None` where its program
    /// does not know such changes and refuses a document that has one.
    #[serde(default)]
    pub stages: Option<bool>,
    /// What it does with the change that is staged.
    #[serde(default)]
    pub staged: Option<StagedStatus>,
    /// The guards that its program knows beside the first three, by their keys. It refuses a document with any other one.
    #[serde(default)]
    pub guards: Vec<String>,
    /// Whether its program knows the key `changes_need_approval`, and does not refuse a document that has it.
    #[serde(default)]
    pub knows_approval: bool,
}

/// A document that a process does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedVersion {
    /// The document's version; `None` where it carries none that can be read.
    pub version: Option<u64>,
    /// When it was refused, in ms since 1970.
    pub at_ms: u64,
    /// Every problem of it.
    pub why: String,
}

impl ProcessStatus {
    /// The report of a process of this name, from the status of its rules. `stages`: whether it has consumers.
    pub fn of(process: &str, status: &crate::Status, stages: bool, at_ms: u64) -> Self {
        Self {
            process: process.to_owned(),
            version: status.version,
            at_ms,
            refuses: status.refuses.clone(),
            source_failure: status.source_failure.as_ref().map(|failure| failure.text.clone()),
            stages: Some(stages),
            staged: status.staged.clone(),
            guards: LATER_GUARDS.map(str::to_owned).to_vec(),
            knows_approval: true,
        }
    }

    /// The first of these guards, by its key, that its program does not know.
    pub(crate) fn unknown_guard(&self, guards: &Guards) -> Option<&'static str> {
        let given = guards.named().into_iter().filter(|(_, bound)| bound.is_some()).map(|(key, _)| key);
        let mut later = given.filter(|key| LATER_GUARDS.contains(key));
        later.find(|key| !self.guards.iter().any(|known| known == key))
    }

    /// Whether it has not reported for long.
    pub const fn is_silent(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.at_ms) > SILENT_AFTER_MS
    }
}

/// The name under which a report is kept: nothing in it leads elsewhere.
pub(crate) fn file_name(process: &str) -> String {
    let plain = |sign: char| if sign.is_ascii_alphanumeric() || sign == '-' { sign } else { '_' };
    process.chars().take(NAME_MAX).map(plain).collect()
}
