//! Comparisons of what the ledger keeps with what the journal says. Each is one statement, which sees one moment; the caller's
//! transaction has the position locked, so the sums are those of all transfers below `at` throughout.

use super::db::{AuditDb, Row, Value, one};
use super::differences::{DifferenceKind, Found, note};
use super::increment::{FOUND_MAX, FUNDED, RESERVED, USED, sides};
use super::model::{AuditError, AuditLimits, Compared};
use super::progress::tail;
use super::sides::{more, sides_detail, with_tail};
use super::sweep;
use crate::error::LedgerError;
use crate::journal::{CLEARING, PAYOUT, PENDING, POST, SETTLEMENT, USER, VOID};
use crate::key::number_of;

fn limited(sql: &str) -> String {
    format!("{sql} LIMIT {}", FOUND_MAX + 1)
}

/// The position, unless the tail is too long to compare with.
fn position(db: &dyn AuditDb, limits: AuditLimits) -> Result<Option<i64>, AuditError> {
    let at = one(db, "SELECT at FROM audit_position", &[])?[0].int()?;
    let is_behind = tail(db, at, limits.tail_rows_max)? > u64::from(limits.tail_rows_max);
    Ok(Some(at).filter(|_| !is_behind))
}

/// Compares what is small.
pub(super) fn run(db: &dyn AuditDb, limits: AuditLimits, now_ms: i64) -> Result<Compared, AuditError> {
    let Some(at) = position(db, limits)? else { return Ok(Compared::Behind) };
    let mut found = Vec::new();
    funds(db, at, &mut found)?;
    budgets(db, at, &mut found)?;
    budgets_over(db, &mut found)?;
    pending(db, at, &mut found)?;
    let differences = note(db, &found, now_ms)?;
    db.execute("UPDATE audit_position SET compared_ms = $1", &[Value::Int(now_ms)])?;
    Ok(Compared::Done { rows: 0, differences, is_last: true })
}

/// Compares a page of the sweep.
pub(super) fn page(db: &dyn AuditDb, limits: AuditLimits, now_ms: i64) -> Result<Compared, AuditError> {
    let Some(at) = position(db, limits)? else { return Ok(Compared::Behind) };
    let mut found = Vec::new();
    let (rows, is_last) = sweep::next(db, limits, at, now_ms, &mut found)?;
    Ok(Compared::Done { rows, differences: note(db, &found, now_ms)?, is_last })
}

/// The accounts of payers and payouts.
fn funds(db: &dyn AuditDb, at: i64, found: &mut Vec<Found>) -> Result<(), LedgerError> {
    let sql = format!(
        "{}, wrong AS (
            SELECT kind, asset, holder, CAST(sum(kept) AS bigint) AS kept, CAST(sum(moved) AS bigint) AS moved FROM (
                SELECT CASE WHEN kind < {SETTLEMENT} THEN {SETTLEMENT} ELSE kind END AS kind, asset,
                    CASE WHEN kind IN ({CLEARING}, {PAYOUT}) THEN 0 ELSE holder END AS holder, balance AS kept, 0 AS moved
                FROM accounts WHERE kind < {USER}
                UNION ALL SELECT kind, asset, holder, 0, amount FROM audit_sums WHERE kind < {USER}
                UNION ALL SELECT kind, asset, holder, 0, amount FROM ({}) AS sides WHERE kind < {USER}
            ) AS both_sides GROUP BY kind, asset, holder HAVING sum(kept) <> sum(moved)
        ) SELECT w.kind, w.kept, w.moved, b.name, p.name FROM wrong w LEFT JOIN names b ON b.id = w.asset
        LEFT JOIN names p ON w.kind = {SETTLEMENT} AND p.id = w.holder ORDER BY w.kind, w.asset, w.holder",
        with_tail(db.place(), at),
        sides("tail")
    );
    let rows = db.rows(&limited(&sql), &[])?;
    for row in rows.iter().take(FOUND_MAX) {
        let bonus_type = row[3].text();
        let subject = match row[0].int()? {
            CLEARING => format!("payouts in flight, {bonus_type}"),
            PAYOUT => format!("paid out, {bonus_type}"),
            _ => format!("settlement of payer \"{}\", {bonus_type}", row[4].text()),
        };
        found.push(Found::new(
            DifferenceKind::WrongBalance,
            subject,
            sides_detail(row[1].int()?, row[2].int()?),
        ));
    }
    more(found, &rows, "accounts of payers and payouts");
    Ok(())
}

/// A combined budget counts what every budget key that it covers gave; a cap what those of its type gave in every activity.
fn budgets(db: &dyn AuditDb, at: i64, found: &mut Vec<Found>) -> Result<(), LedgerError> {
    let kinds = [
        (USED, "used", DifferenceKind::WrongUsed),
        (RESERVED, "reserved", DifferenceKind::WrongReserved),
        (FUNDED, "total", DifferenceKind::WrongTotal),
    ];
    for (sum, column, kind) in kinds {
        // What is no budget has no total but a limit that no order reaches, which nobody funded.
        let (of, covered) = if sum == FUNDED {
            ("JOIN programs p ON p.id = h.program WHERE p.budgeted", "")
        } else {
            (
                "",
                "UNION ALL SELECT q.id, 0, g.amount FROM given g JOIN programs p ON p.id = g.program
                JOIN programs q ON q.activity IN (p.activity, (SELECT id FROM names WHERE name = ''))
                    AND q.id <> p.id AND q.budgeted
                    AND (q.scene = p.scene OR q.scene = (SELECT id FROM names WHERE name = ''))
                    AND (q.asset = p.asset OR q.asset = (SELECT id FROM names WHERE name = ''))",
            )
        };
        let sql = format!(
            "{}, given AS (
                SELECT holder AS program, CAST(sum(amount) AS bigint) AS amount FROM (
                    SELECT holder, amount FROM audit_sums WHERE kind = {sum}
                    UNION ALL SELECT holder, amount FROM ({}) AS sides WHERE kind = {sum}
                ) AS sums GROUP BY holder
            ), wrong AS (
                SELECT program, CAST(sum(kept) AS bigint) AS kept, CAST(sum(moved) AS bigint) AS moved FROM (
                    SELECT h.program, h.{column} AS kept, 0 AS moved FROM budget_shards h {of}
                    UNION ALL SELECT program, 0, amount FROM given
                    {covered}
                ) AS both_sides GROUP BY program HAVING sum(kept) <> sum(moved)
            ) {}",
            with_tail(db.place(), at),
            sides("tail"),
            named("wrong", "x.kept, x.moved")
        );
        let rows = db.rows(&limited(&sql), &[])?;
        for row in rows.iter().take(FOUND_MAX) {
            let detail = format!("{column}: {}", sides_detail(row[4].int()?, row[5].int()?));
            found.push(Found::new(kind, budget(row), detail));
        }
        more(found, &rows, "budgets");
    }
    Ok(())
}

/// Selects budget keys by their names, with more columns of `x`.
fn named(table: &str, columns: &str) -> String {
    format!(
        "SELECT x.program, a.name, s.name, b.name, {columns} FROM {table} x LEFT JOIN programs q ON q.id = x.program
        LEFT JOIN names a ON a.id = q.activity LEFT JOIN names s ON s.id = q.scene LEFT JOIN names b ON b.id = q.asset
        ORDER BY x.program"
    )
}

/// The name of a budget in a row that begins with its number and its names.
fn budget(row: &Row) -> String {
    let name = |at: usize| Some(row[at].text()).filter(|name| !name.is_empty()).unwrap_or("*");
    let number = row[0].int().unwrap_or_default();
    format!("budget {number}: {}/{}/{}", name(1), name(2), name(3))
}

fn budgets_over(db: &dyn AuditDb, found: &mut Vec<Found>) -> Result<(), LedgerError> {
    let sql = format!(
        "WITH wrong AS (
            SELECT program, CAST(sum(used) + sum(reserved) AS bigint) AS gone, CAST(sum(total) AS bigint) AS total
            FROM budget_shards GROUP BY program HAVING sum(used) + sum(reserved) > sum(total)
                OR max(used + reserved - total) > 0 OR min(used) < 0 OR min(reserved) < 0
        ) {}",
        named("wrong", "x.gone, x.total")
    );
    let rows = db.rows(&limited(&sql), &[])?;
    for row in rows.iter().take(FOUND_MAX) {
        let detail = format!("{} are used or reserved of {}", row[4].int()?, row[5].int()?);
        found.push(Found::new(DifferenceKind::BudgetOver, budget(row), detail));
    }
    more(found, &rows, "budgets");
    Ok(())
}

/// What is pending of an order is its amount while it is reserved, and nothing afterwards.
fn pending(db: &dyn AuditDb, at: i64, found: &mut Vec<Found>) -> Result<(), LedgerError> {
    let sql = format!(
        "{}, wrong AS (
            SELECT program, reference, CAST(sum(kept) AS bigint) AS kept, CAST(sum(moved) AS bigint) AS moved FROM (
                SELECT program, order_key AS reference, amount AS kept, 0 AS moved FROM orders WHERE status = 0
                UNION ALL SELECT program, reference, 0, amount FROM audit_pending
                UNION ALL SELECT debit_holder, reference, 0, CASE kind WHEN {PENDING} THEN amount ELSE -amount END FROM tail
                    WHERE kind IN ({PENDING}, {POST}, {VOID})
            ) AS both_sides GROUP BY program, reference HAVING sum(kept) <> sum(moved)
        ) SELECT w.reference, w.kept, w.moved, a.name FROM wrong w LEFT JOIN programs p ON p.id = w.program
        LEFT JOIN names a ON a.id = p.activity ORDER BY w.reference, w.program",
        with_tail(db.place(), at)
    );
    let rows = db.rows(&limited(&sql), &[])?;
    for row in rows.iter().take(FOUND_MAX) {
        let (reserved, pending) = (row[1].int()?, row[2].int()?);
        let subject = format!("order {} of {}", number_of(row[0].text()), row[3].text());
        let detail = format!("the order is reserved with {reserved}; its pending transfers say {pending}");
        found.push(Found::new(DifferenceKind::WrongPending, subject, detail));
    }
    more(found, &rows, "reserved orders");
    Ok(())
}
