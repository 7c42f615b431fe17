//! Places in a table: a row's page and its item there. A pass over all rows by them is a sequential read, and needs no index.

use super::budget_keys::cell;
use super::session::Session;
use crate::error::LedgerError;
use std::fmt;

/// The pages of a table, and whether the server reads some of them without all (from version 14 on).
const END: &str = "SELECT (pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint)::bigint, \
    current_setting('server_version_num')::int >= 140000";

/// A place in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    page: u32,
    item: u16,
}

impl Place {
    /// The place that a text says; the one before all rows, if there is no text.
    pub fn of(text: &str) -> Result<Self, LedgerError> {
        if text.is_empty() {
            return Ok(Self { page: 0, item: 0 });
        }
        let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        let parsed = inner
            .and_then(|inner| inner.split_once(','))
            .and_then(|(page, item)| Some(Self { page: page.parse().ok()?, item: item.parse().ok()? }));
        parsed.ok_or_else(|| LedgerError::Invalid(format!("{text:?} is no place from which to go on")))
    }

    /// The place behind so many pages that are read from this one on.
    pub const fn behind(self, pages: u32) -> Self {
        Self { page: self.page.saturating_add(pages), item: 0 }
    }

    /// Whether a table of so many pages goes on behind it.
    pub fn is_before(self, end: i64) -> bool {
        self.page() < end
    }

    pub fn page(self) -> i64 {
        i64::from(self.page)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.page, self.item)
    }
}

/// How many pages a table has.
pub(super) fn end(session: &Session, table: &'static str) -> Result<i64, LedgerError> {
    let rows = session.query(END, &[&table])?;
    let row = rows.first().ok_or_else(|| LedgerError::Sql("a row is missing".into()))?;
    if !cell::<bool>(row, 1)? {
        return Err(LedgerError::Invalid("to read a table in parts needs PostgreSQL 14 or newer".into()));
    }
    cell(row, 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_shown() {
        for place in [Place { page: 0, item: 1 }, Place { page: u32::MAX, item: u16::MAX }] {
            assert_eq!(Place::of(&place.to_string()).unwrap(), place);
        }
        assert_eq!(Place::of("").unwrap(), Place { page: 0, item: 0 });
        for bad in ["(1)", "1,2", "(1,2", "(-1,2)", "(1,70000)", "(1,2)'; --"] {
            assert!(Place::of(bad).is_err(), "{bad}");
        }
    }
}
