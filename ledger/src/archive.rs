//! The failure archive: events that finally failed, with their bytes, until an operator deals with them.

use std::borrow::Cow;

/// An entry to archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Its order number, where it could be read.
    pub trade_no: Option<&'a str>,
    /// The event's bytes, or a whole record's.
    pub payload: &'a [u8],
    /// The reason, as one word (`budget_exhausted`). With the bytes it makes the entry unique.
    pub reason: Cow<'a, str>,
    /// More about the failure, for an operator.
    pub detail: Cow<'a, str>,
    /// When it failed, in Unix milliseconds.
    pub time_ms: i64,
}

/// An archived entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archived {
    /// Its number; grows with time.
    pub id: i64,
    /// Its order number, where it could be read.
    pub trade_no: Option<String>,
    /// The bytes.
    pub payload: Vec<u8>,
    /// The reason, as one word.
    pub reason: String,
    /// More about the failure.
    pub detail: String,
    /// When it was archived; Unix milliseconds.
    pub time_ms: i64,
    /// The latest replay, if there was one.
    pub replay: Option<Replay>,
}

/// One replay of an archived event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When; Unix milliseconds.
    pub time_ms: i64,
    /// Who asked for it.
    pub actor: String,
    /// Its outcome, as one word (`credited`).
    pub outcome: String,
}

/// Which entries to list. The default lists the first 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFilter {
    /// Lists only entries with this reason.
    pub reason: Option<String>,
    /// Lists only entries with this order number.
    pub trade_no: Option<String>,
    /// Lists only entries that no replay has settled, so that their outcome is neither `credited` nor
    /// `already_credited`.
    pub open: bool,
    /// Lists only entries with a larger number than this: the last number of the page before, 0 for the first page.
    pub after: i64,
    /// The number of entries at most, 1 to 10,000.
    pub limit: u32,
}

impl Default for ArchiveFilter {
    fn default() -> Self {
        Self { reason: None, trade_no: None, open: false, after: 0, limit: 100 }
    }
}
