//! The lines that a run wrote, which stay with its executor.

use serde::{Deserialize, Serialize};

/// Asks for the lines of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogRequest {
    /// The run's number.
    pub log_id: i64,
    /// When the run was triggered: the very value of
    /// [`RunRequest::log_date_time_ms`](super::RunRequest::log_date_time_ms).
    #[serde(rename = "logDateTim")]
    pub log_date_time_ms: i64,
    /// The first line that is wanted, from 1.
    #[serde(rename = "fromLineNum")]
    pub from_line: i32,
}

/// Lines of a run, from the one that was asked for to the last one that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// The first line that was asked for.
    #[serde(rename = "fromLineNum", default)]
    pub from_line: i32,
    /// The last line that is there; before `from_line` where there is no new one.
    #[serde(rename = "toLineNum", default)]
    pub to_line: i32,
    /// The lines, each with a line break behind it. They are what a handler wrote: escape them before a browser sees
    /// them.
    #[serde(rename = "logContent", default)]
    pub text: String,
    /// Executors say so only where they have no file for the run. Otherwise the lines are complete when the run has
    /// ended and no new ones come.
    #[serde(rename = "isEnd", default)]
    pub is_end: bool,
}
