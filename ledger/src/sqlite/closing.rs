//! Closes activities in a file, and reads their rows. The file has one writer, which closes them while nothing is granted.

use super::chain;
use super::closed::{are_there, names};
use super::corrections::{READ, last_read};
use super::query;
use super::state::SqliteTx;
use super::store::SqliteLedger;
use crate::closing::{
    Close, Closed, ClosedActivity, ClosingReads, ClosingSteps, Detach, DetachBegun, DetachStep, Detached,
    Reopened, Unproven, not_begun,
};
use crate::error::LedgerError;
use crate::journal::{BUDGET, FUNDING};
use crate::rows_of::{OrderRow, RowsPage, TransferRow, account_word, kind_word, per_mille};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// How many reserved orders are counted at most, and how many transfers that nobody has proved.
const COUNTED_MAX: i64 = 1_000;

/// Made with the first activity that is closed, so that until then no order pays for them. No order of a closed activity is inserted
/// or changed: none is reserved when it is closed, so whoever changes one asks for money.
const TRIGGERS: &str = "
CREATE TRIGGER IF NOT EXISTS orders_refuse_closed AFTER INSERT ON orders
WHEN EXISTS (SELECT 1 FROM programs p JOIN closed_activities c ON c.activity = p.activity WHERE p.id = NEW.program)
BEGIN SELECT RAISE(ABORT, 'the activity is closed'); END;
CREATE TRIGGER IF NOT EXISTS orders_refuse_closed_anew AFTER UPDATE ON orders
WHEN EXISTS (SELECT 1 FROM programs p JOIN closed_activities c ON c.activity = p.activity WHERE p.id = NEW.program)
BEGIN SELECT RAISE(ABORT, 'the activity is closed'); END;
CREATE TRIGGER IF NOT EXISTS closed_activities_stay BEFORE DELETE ON closed_activities WHEN OLD.export IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'the orders of the activity have left the ledger'); END;
CREATE TRIGGER IF NOT EXISTS detached_budgets_no_update BEFORE UPDATE ON detached_budgets
BEGIN SELECT RAISE(ABORT, 'detached budgets are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS detached_budgets_no_delete BEFORE DELETE ON detached_budgets
BEGIN SELECT RAISE(ABORT, 'detached budgets are only ever appended'); END;";

/// The columns of [`query::stored`], and two more.
const ORDERS: &str = "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
    o.took_ms, o.payer, o.program, o.paid_by FROM orders o CROSS JOIN programs p ON p.id = o.program \
    CROSS JOIN names a ON a.id = p.activity CROSS JOIN names s ON s.id = p.scene CROSS JOIN names b ON b.id = p.asset \
    WHERE o.order_key > ?1 AND o.order_key <= ?2 AND a.name = ?3 ORDER BY o.order_key";
const TRANSFERS: &str = "SELECT t.id, t.kind, b.name, t.debit, t.debit_holder, t.credit, t.credit_holder, t.amount, t.reference, \
    t.prev, t.time_ms FROM transfers t JOIN names b ON b.id = t.asset WHERE t.id > ?1 AND t.id <= ?2 AND \
    (CASE WHEN t.debit = ?4 THEN (SELECT p.activity FROM programs p WHERE p.id = t.debit_holder) \
        WHEN t.credit = ?4 THEN (SELECT p.activity FROM programs p WHERE p.id = t.credit_holder) \
        WHEN t.debit = ?5 THEN t.debit_holder WHEN t.credit = ?5 THEN t.credit_holder END) \
    = (SELECT id FROM names WHERE name = ?3) ORDER BY t.id";

fn close(db: &Connection, which: &Close<'_>) -> Result<Closed, LedgerError> {
    let sql = "SELECT n.id FROM names n WHERE n.name = ?1 AND EXISTS (SELECT 1 FROM programs p WHERE p.activity = n.id)";
    let known: Option<i64> = db.query_row(sql, [which.activity], |row| row.get(0)).optional()?;
    let Some(activity) = known else { return Ok(Closed::Unknown) };
    let sql = "SELECT count(*) FROM (SELECT 1 FROM orders o JOIN programs p ON p.id = o.program \
               WHERE o.status = 0 AND p.activity = ?1 LIMIT ?2)";
    let orders: i64 = db.query_row(sql, [activity, COUNTED_MAX], |row| row.get(0))?;
    if orders > 0 {
        return Ok(Closed::Reserved { orders: orders.unsigned_abs() });
    }
    db.execute_batch(TRIGGERS)?;
    let new = db.execute(
        "INSERT INTO closed_activities (activity, operator, reason, closed_ms, place) \
         SELECT ?1, ?2, ?3, ?4, coalesce(max(id), 0) + 1 FROM transfers WHERE true ON CONFLICT (activity) DO NOTHING",
        params![activity, which.operator, which.reason, which.time_ms],
    )?;
    Ok(if new == 1 { Closed::Now } else { Closed::Before })
}

/// A closed activity: its number, the export that has its orders, if they are being detached, and when it was closed.
fn find(db: &Connection, activity: &str) -> Result<Option<(i64, Option<String>, i64)>, LedgerError> {
    let sql = "SELECT c.activity, c.export, c.closed_ms FROM closed_activities c JOIN names n ON n.id = c.activity WHERE n.name = ?1";
    Ok(db.query_row(sql, [activity], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?)
}

/// The place below which the auditor has read every transfer. It stays, since this transaction holds the file's write lock.
fn audited(db: &Connection) -> Result<i64, LedgerError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'audit_position')";
    let is_there: bool = db.query_row(sql, [], |row| row.get(0))?;
    if !is_there {
        return Ok(i64::MIN);
    }
    let at = db.query_row("SELECT at FROM audit_position", [], |row| row.get::<_, i64>(0)).optional()?;
    Ok(at.unwrap_or(i64::MIN))
}

/// What stands in the way of detaching the orders of this closed activity.
fn unproven(db: &Connection, which: &Detach<'_>, number: i64) -> Result<Unproven, LedgerError> {
    let sql = "SELECT place FROM closed_activities WHERE activity = ?1";
    let place: i64 = db.query_row(sql, [number], |row| row.get(0))?;
    // The place where the auditor or the sealer has come to may be below that of the close, with no transfer between them.
    let behind = |from: i64| -> Result<u64, LedgerError> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM transfers WHERE id >= ?1 AND id < ?2 LIMIT ?3)";
        let rows: i64 = db.query_row(sql, [from, place, COUNTED_MAX], |row| row.get(0))?;
        Ok(rows.unsigned_abs())
    };
    let unread = if which.accept_unaudited { 0 } else { behind(audited(db)?)? };
    let unsealed = if which.accept_unsealed {
        0
    } else {
        behind(chain::last_seal(db)?.map_or(i64::MIN, |last| last.to_at))?
    };
    Ok(Unproven { unread, unsealed })
}

fn begin_detach(db: &Connection, which: &Detach<'_>) -> Result<DetachBegun, LedgerError> {
    let (number, export) = match find(db, which.activity)? {
        Some((number, export, closed_ms)) if closed_ms == which.closed_ms => (number, export),
        _ => return Ok(DetachBegun::NotClosed),
    };
    match export {
        Some(export) if export == which.export => return Ok(DetachBegun::Before),
        Some(export) => return Ok(DetachBegun::OtherExport { export }),
        None => {}
    }
    let unproven = unproven(db, which, number)?;
    if !unproven.is_empty() {
        return Ok(DetachBegun::Unproven(unproven));
    }
    // They are there since it was closed, unless somebody has taken them away.
    db.execute_batch(TRIGGERS)?;
    let mut stored = 0;
    for one in which.budgets {
        stored += db.execute(
            "INSERT INTO detached_budgets (program, place, orders, credited, amount) \
             SELECT p.id, c.place, ?2, ?3, ?4 FROM programs p JOIN closed_activities c ON c.activity = p.activity \
             WHERE p.id = ?1 AND p.activity = ?5",
            [one.budget, one.orders, one.credited, one.amount, number],
        )?;
    }
    if stored != which.budgets.len() {
        let what = format!("the export names budget keys that are not of activity {}", which.activity);
        return Err(LedgerError::Invalid(what));
    }
    db.execute(
        "UPDATE closed_activities SET export = ?2, detach_ms = ?3, reason = reason || ?4 WHERE activity = ?1",
        params![number, which.export, which.time_ms, which.note()],
    )?;
    Ok(DetachBegun::Now)
}

fn detach_step(
    db: &Connection,
    activity: &str,
    after: &str,
    time_ms: i64,
) -> Result<DetachStep, LedgerError> {
    let number = match find(db, activity)? {
        Some((number, Some(_), _)) => number,
        _ => return Err(not_begun(activity)),
    };
    let (last, is_more) = last_read(db, after)?;
    let gone = db.execute(
        "DELETE FROM orders WHERE order_key > ?1 AND order_key <= ?2 \
         AND program IN (SELECT id FROM programs WHERE activity = ?3)",
        params![after, last, number],
    )?;
    if !is_more {
        db.execute(
            "UPDATE closed_activities SET detached_ms = coalesce(detached_ms, ?2) WHERE activity = ?1",
            [number, time_ms],
        )?;
    }
    Ok(DetachStep { orders: gone as u64, next: is_more.then_some(last) })
}

impl SqliteLedger {
    /// Runs steps in a transaction, and reads afterwards which activities are closed.
    fn transact<T>(
        &mut self,
        steps: impl FnOnce(&Connection) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        if let Some(why) = self.guard.as_ref().and_then(|guard| guard.why_stopped()) {
            return Err(LedgerError::Invalid(format!("{why}; see docs/restore.md")));
        }
        let mut tx = SqliteTx::begin(&mut self.connected)?;
        let done = steps(&tx.ledger.db)?;
        tx.ledger.db.execute_batch("COMMIT")?;
        tx.committed = true;
        drop(tx);
        self.connected.closed = names(&self.connected.db)?;
        Ok(done)
    }
}

impl ClosingSteps for SqliteLedger {
    fn close(&mut self, which: &Close<'_>) -> Result<Closed, LedgerError> {
        self.transact(|db| close(db, which))
    }

    fn reopen(&mut self, activity: &str) -> Result<Reopened, LedgerError> {
        self.transact(|db| match find(db, activity)? {
            None => Ok(Reopened::WasOpen),
            Some((_, Some(_), _)) => Ok(Reopened::Detached),
            Some((number, None, _)) => {
                db.execute("DELETE FROM closed_activities WHERE activity = ?1", [number])?;
                Ok(Reopened::Now)
            }
        })
    }

    fn begin_detach(&mut self, which: &Detach<'_>) -> Result<DetachBegun, LedgerError> {
        self.transact(|db| begin_detach(db, which))
    }

    fn detach_step(&mut self, activity: &str, after: &str, time_ms: i64) -> Result<DetachStep, LedgerError> {
        self.transact(|db| detach_step(db, activity, after, time_ms))
    }
}

fn closed_activity(row: &Row<'_>) -> Result<ClosedActivity, rusqlite::Error> {
    let detached = match (row.get::<_, Option<String>>(4)?, row.get::<_, Option<i64>>(5)?) {
        (Some(export), Some(began_ms)) => Some(Detached {
            orders: row.get::<_, i64>(7)?.unsigned_abs(),
            export,
            began_ms,
            done_ms: row.get(6)?,
        }),
        _ => None,
    };
    Ok(ClosedActivity {
        activity: row.get(0)?,
        operator: row.get(1)?,
        reason: row.get(2)?,
        closed_ms: row.get(3)?,
        detached,
    })
}

fn transfer(row: &Row<'_>) -> Result<TransferRow, LedgerError> {
    let id: i64 = row.get(0)?;
    Ok(TransferRow {
        id,
        kind: kind_word(row.get(1)?)?,
        bonus_type: row.get(2)?,
        debit: account_word(row.get(3)?),
        debit_holder: row.get(4)?,
        credit: account_word(row.get(5)?),
        credit_holder: row.get(6)?,
        amount: row.get(7)?,
        reference: row.get(8)?,
        prev: row.get(9)?,
        time_ms: row.get(10)?,
        place: id,
    })
}

impl ClosingReads for Connection {
    fn closed_activities(&self) -> Result<Vec<ClosedActivity>, LedgerError> {
        if !are_there(self)? {
            return Ok(Vec::new());
        }
        let mut statement = self.prepare(
            "SELECT n.name, c.operator, c.reason, c.closed_ms, c.export, c.detach_ms, c.detached_ms, \
             (SELECT coalesce(sum(d.orders), 0) FROM detached_budgets d JOIN programs p ON p.id = d.program \
             WHERE p.activity = c.activity) FROM closed_activities c JOIN names n ON n.id = c.activity ORDER BY n.name",
        )?;
        let rows = statement.query_map([], closed_activity)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn orders_of_activity(&self, activity: &str, after: &str) -> Result<RowsPage<OrderRow>, LedgerError> {
        let (last, is_more) = last_read(self, after)?;
        let mut statement = self.prepare_cached(ORDERS)?;
        let mut rows = statement.query(params![after, last, activity])?;
        let mut own = Vec::new();
        while let Some(row) = rows.next()? {
            own.push(OrderRow { order: query::stored(row)?, budget: row.get(11)?, paid_by: row.get(12)? });
        }
        // How far a key is in the table, the file does not say without reading it.
        let read_per_mille = if is_more { 0 } else { 1_000 };
        Ok(RowsPage { rows: own, next: is_more.then_some(last), read_per_mille })
    }

    fn transfers_of_activity(
        &self,
        activity: &str,
        after: &str,
    ) -> Result<RowsPage<TransferRow>, LedgerError> {
        let from: i64 = match after {
            "" => i64::MIN,
            after => after
                .parse()
                .map_err(|_| LedgerError::Invalid(format!("{after:?} is no place from which to go on")))?,
        };
        let end: i64 = self
            .prepare_cached("SELECT coalesce(max(id), 0) FROM transfers")?
            .query_row([], |row| row.get(0))?;
        let last: i64 = self
            .prepare_cached("SELECT coalesce(max(id), ?3) FROM (SELECT id FROM transfers WHERE id > ?1 ORDER BY id LIMIT ?2)")?
            .query_row([from, READ, end], |row| row.get(0))?;
        let mut statement = self.prepare_cached(TRANSFERS)?;
        let mut rows = statement.query(params![from, last, activity, BUDGET, FUNDING])?;
        let mut own = Vec::new();
        while let Some(row) = rows.next()? {
            own.push(transfer(row)?);
        }
        let next = (last < end).then(|| last.to_string());
        Ok(RowsPage { rows: own, next, read_per_mille: per_mille(last, end) })
    }
}
