//! What every comparison of the two sides of a sum needs.

use super::db::Row;
use super::differences::{DifferenceKind, Found};
use super::increment::{COLUMNS, FOUND_MAX};

/// The transfers that are not in the sums. The place stands in the statement, so that the database knows how few they are.
pub(super) fn with_tail(place: &str, at: i64) -> String {
    format!("WITH tail AS MATERIALIZED (SELECT {COLUMNS} FROM transfers WHERE {place} >= {at})")
}

/// Notes that there are more than are listed.
pub(super) fn more(found: &mut Vec<Found>, rows: &[Row], of: &str) {
    if rows.len() > FOUND_MAX {
        let detail = "more of them are wrong than are listed; mend these first".to_owned();
        found.push(Found::new(DifferenceKind::MoreThanListed, of.to_owned(), detail));
    }
}

pub(super) fn sides_detail(kept: i64, moved: i64) -> String {
    format!("the ledger keeps {kept}; its transfers say {moved}")
}
