//! Which activities are closed.

use super::budget_keys::{cell, text};
use super::link::Link;
use super::session::Session;
use crate::closing::{ClosedActivity, Detached};
use crate::error::LedgerError;
use crate::model::Order;
use std::collections::BTreeSet;

const ARE_THERE: &str = "SELECT to_regclass('closed_activities') IS NOT NULL";
const CLOSED_OF: &str =
    "SELECT n.name FROM closed_activities c JOIN names n ON n.id = c.activity WHERE n.name = ANY($1)";
const LIST: &str = "SELECT n.name, c.operator, c.reason, c.closed_ms, c.export, c.detach_ms, c.detached_ms, \
    (SELECT coalesce(sum(d.orders), 0)::bigint FROM detached_budgets d JOIN programs p ON p.id = d.program \
    WHERE p.activity = c.activity) FROM closed_activities c JOIN names n ON n.id = c.activity ORDER BY n.name";

/// Whether the tables are there.
pub(super) fn are_there(session: &Session) -> Result<bool, LedgerError> {
    session.query(ARE_THERE, &[])?.first().map_or(Ok(false), |row| cell(row, 0))
}

/// The column of a transfer's place, if the tables are there.
pub(super) fn place(session: &Session) -> Result<Option<&'static str>, LedgerError> {
    Ok(are_there(session)?.then_some("tx"))
}

/// Those of these orders' activities that are closed.
pub(super) fn closed(session: &Session, batch: &[Order<'_>]) -> Result<BTreeSet<String>, LedgerError> {
    let perhaps = session.perhaps_closed(batch);
    if perhaps.is_empty() {
        return Ok(perhaps);
    }
    let names: Vec<&str> = perhaps.iter().map(String::as_str).collect();
    session.query(CLOSED_OF, &[&names])?.iter().map(|row| Ok(text(row, 0)?.to_owned())).collect()
}

pub(super) fn list(link: &Link) -> Result<Vec<ClosedActivity>, LedgerError> {
    let session = link.session()?;
    if !are_there(&session)? {
        return Ok(Vec::new());
    }
    let rows = session.query(LIST, &[])?;
    rows.iter()
        .map(|row| {
            let detached = match (cell::<Option<String>>(row, 4)?, cell::<Option<i64>>(row, 5)?) {
                (Some(export), Some(began_ms)) => Some(Detached {
                    orders: cell::<i64>(row, 7)?.unsigned_abs(),
                    export,
                    began_ms,
                    done_ms: cell(row, 6)?,
                }),
                _ => None,
            };
            Ok(ClosedActivity {
                activity: cell(row, 0)?,
                operator: cell(row, 1)?,
                reason: cell(row, 2)?,
                closed_ms: cell(row, 3)?,
                detached,
            })
        })
        .collect()
}
