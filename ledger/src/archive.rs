//! The failure archive: what finally failed, with its bytes, until a person deals with it.

use std::borrow::Cow;

/// Something to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Its order number, where it could be read.
    pub trade_no: Option<&'a str>,
    /// The event's bytes, or a whole record's.
    pub payload: &'a [u8],
    /// Why, as one word (`budget_exhausted`). With the bytes it makes the entry unique.
    pub reason: Cow<'a, str>,
    /// More about it, for a person.
    pub detail: Cow<'a, str>,
    /// When; Unix milliseconds.
    pub time_ms: i64,
}

/// Something that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archived {
    /// Its number; grows with time.
    pub id: i64,
    /// Its order number, where it could be read.
    pub trade_no: Option<String>,
    /// The bytes.
    pub payload: Vec<u8>,
    /// Why.
    pub reason: String,
    /// More about it.
    pub detail: String,
    /// When it was archived; Unix milliseconds.
    pub time_ms: i64,
    /// The latest replay.
    pub replay: Option<Replay>,
}

/// One replay of an archived event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When; Unix milliseconds.
    pub time_ms: i64,
    /// Who asked for it.
    pub actor: String,
    /// What came of it, as one word (`credited`).
    pub outcome: String,
}

/// Which entries to list. The default lists the first 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFilter {
    /// Only this reason.
    pub reason: Option<String>,
    /// Only this order number.
    pub trade_no: Option<String>,
    /// Only what was never replayed with a final outcome: not `credited`, not `already_credited`.
    pub open: bool,
    /// Only entries with a larger number: the last one of the page before; 0 for the first page.
    pub after: i64,
    /// Entries at most, 1 to 10,000.
    pub limit: u32,
}

impl Default for ArchiveFilter {
    fn default() -> Self {
        Self { reason: None, trade_no: None, open: false, after: 0, limit: 100 }
    }
}
