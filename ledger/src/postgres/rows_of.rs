//! The rows of one activity, where they lie in their tables. No order of a closed activity moves, and no transfer ever does.

use super::budget_keys::cell;
use super::link::Link;
use super::places::{Place, end};
use super::session::Session;
use super::{closed, stored_orders};
use crate::closing::{ClosedActivity, ClosingReads};
use crate::error::LedgerError;
use crate::journal::{BUDGET, FUNDING};
use crate::rows_of::{OrderRow, RowsPage, TransferRow, account_word, kind_word, per_mille};
use tokio_postgres::Row;

/// The pages of a table that one statement reads: 512 KiB, some 6,000 orders.
const PAGES: u32 = 64;
/// The statements of one call at most, where few rows are the activity's.
const STATEMENTS: usize = 16;

/// The columns of [`stored_orders::order`], and two more.
const ORDERS: &str = "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
    o.took_ms, o.payer, o.program, o.paid_by FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
    JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
    WHERE o.ctid > $1::text::tid AND o.ctid < $2::text::tid AND o.program = ANY($3)";
const TRANSFERS: &str = "SELECT t.id, t.kind, b.name, t.debit, t.debit_holder, t.credit, t.credit_holder, t.amount, t.reference, \
    t.prev, t.time_ms, t.tx FROM transfers t JOIN names b ON b.id = t.asset \
    WHERE t.ctid > $1::text::tid AND t.ctid < $2::text::tid \
    AND ((t.debit = $4 AND t.debit_holder = ANY($3)) OR (t.credit = $4 AND t.credit_holder = ANY($3)) \
    OR (t.debit = $5 AND t.debit_holder = $6) OR (t.credit = $5 AND t.credit_holder = $6))";

/// The one page of an activity without rows.
const fn nothing<R>() -> RowsPage<R> {
    RowsPage { rows: Vec::new(), next: None, read_per_mille: 1_000 }
}

/// The number of an activity, and its budget keys; `None` where it has none.
fn budget_keys(session: &Session, activity: &str) -> Result<Option<(i64, Vec<i64>)>, LedgerError> {
    let rows = session.query(
        "SELECT p.activity, p.id FROM programs p JOIN names n ON n.id = p.activity WHERE n.name = $1",
        &[&activity],
    )?;
    let Some(first) = rows.first() else { return Ok(None) };
    Ok(Some((cell(first, 0)?, rows.iter().map(|row| cell(row, 1)).collect::<Result<_, _>>()?)))
}

fn order(row: &Row) -> Result<OrderRow, LedgerError> {
    Ok(OrderRow { order: stored_orders::order(row)?, budget: cell(row, 11)?, paid_by: cell(row, 12)? })
}

fn transfer(row: &Row) -> Result<TransferRow, LedgerError> {
    let small = |at| Ok::<_, LedgerError>(i64::from(cell::<i16>(row, at)?));
    Ok(TransferRow {
        id: cell(row, 0)?,
        kind: kind_word(small(1)?)?,
        bonus_type: cell(row, 2)?,
        debit: account_word(small(3)?),
        debit_holder: cell(row, 4)?,
        credit: account_word(small(5)?),
        credit_holder: cell(row, 6)?,
        amount: cell(row, 7)?,
        reference: cell(row, 8)?,
        prev: cell(row, 9)?,
        time_ms: cell(row, 10)?,
        place: cell(row, 11)?,
    })
}

/// Reads parts of a table until one has rows.
fn page<R>(
    session: &Session,
    table: &'static str,
    after: &str,
    read: impl Fn(&str, &str) -> Result<Vec<Row>, LedgerError>,
    parse: impl Fn(&Row) -> Result<R, LedgerError>,
) -> Result<RowsPage<R>, LedgerError> {
    let (mut from, end) = (Place::of(after)?, end(session, table)?);
    for _ in 0..STATEMENTS {
        let behind = from.behind(PAGES);
        let rows = read(&from.to_string(), &behind.to_string())?;
        let is_last = !behind.is_before(end);
        if !rows.is_empty() || is_last {
            return Ok(RowsPage {
                rows: rows.iter().map(parse).collect::<Result<_, _>>()?,
                next: (!is_last).then(|| behind.to_string()),
                read_per_mille: per_mille(behind.page(), end),
            });
        }
        from = behind;
    }
    let read_per_mille = per_mille(from.page(), end);
    Ok(RowsPage { rows: Vec::new(), next: Some(from.to_string()), read_per_mille })
}

impl ClosingReads for Link {
    fn closed_activities(&self) -> Result<Vec<ClosedActivity>, LedgerError> {
        closed::list(self)
    }

    fn orders_of_activity(&self, activity: &str, after: &str) -> Result<RowsPage<OrderRow>, LedgerError> {
        let session = self.session()?;
        session.need_journal()?;
        let Some((_, budget_keys)) = budget_keys(&session, activity)? else { return Ok(nothing()) };
        let parts = |from: &str, below: &str| session.query(ORDERS, &[&from, &below, &budget_keys]);
        page(&session, "orders", after, parts, order)
    }

    fn transfers_of_activity(
        &self,
        activity: &str,
        after: &str,
    ) -> Result<RowsPage<TransferRow>, LedgerError> {
        let session = self.session()?;
        session.need_journal()?;
        let Some((number, budget_keys)) = budget_keys(&session, activity)? else { return Ok(nothing()) };
        let small = super::transfers::small;
        let (budget, funding) = (small(BUDGET)?, small(FUNDING)?);
        let parts = |from: &str, below: &str| {
            session.query(TRANSFERS, &[&from, &below, &budget_keys, &budget, &funding, &number])
        };
        page(&session, "transfers", after, parts, transfer)
    }
}
