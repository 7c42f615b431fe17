//! How far an auditor has come.

use super::db::{AuditDb, Value, one};
use super::model::{AuditError, AuditLimits};
use std::collections::BTreeMap;

/// How far an auditor has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditProgress {
    /// The number of transfers that were read.
    pub transfers: u64,
    /// The number of transfers at the position and above it; at most one more than balances are compared with.
    pub tail: u64,
    /// Whether these are too many to compare balances.
    pub is_behind: bool,
    /// The time of the first transfer that was not read yet, in Unix milliseconds.
    pub oldest_unread_ms: Option<i64>,
    /// When an increment was read last, 0 for never.
    pub read_ms: i64,
    /// When something was compared last, 0 for never.
    pub compared_ms: i64,
    /// How often all accounts, orders and withdrawals were swept.
    pub sweeps: u64,
    /// When the last whole sweep ended, 0 for never; each key was compared at least that recently, or is part of …
    pub swept_ms: i64,
    /// … the sweep that began at this time.
    pub sweep_began_ms: i64,
    /// Open differences by kind.
    pub open: BTreeMap<String, u64>,
    /// Acknowledged differences by kind.
    pub acknowledged: BTreeMap<String, u64>,
    /// The number of resolved differences.
    pub resolved: u64,
    /// The number of transfers behind the last seal, counted up to 100,000; all of them where nothing was ever sealed.
    pub unsealed: u64,
    /// The time of the first of them, in Unix milliseconds.
    pub oldest_unsealed_ms: Option<i64>,
}

/// Unsealed transfers are counted up to this: a ledger that nobody seals has any number of them.
const UNSEALED_COUNTED_MAX: u32 = 100_000;

impl AuditProgress {
    /// Whether no difference is open or acknowledged.
    pub fn is_clean(&self) -> bool {
        self.open.is_empty() && self.acknowledged.is_empty()
    }
}

/// The number of transfers from `at` on, counted up to one more than the limit.
pub(super) fn tail(db: &dyn AuditDb, at: i64, limit: u32) -> Result<u64, AuditError> {
    let place = db.place();
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM transfers WHERE {place} >= $1 LIMIT {}) AS tail",
        u64::from(limit) + 1
    );
    Ok(u64::try_from(one(db, &sql, &[Value::Int(at)])?[0].int()?).unwrap_or(0))
}

/// The time of the first transfer from `at` on.
fn oldest_ms(db: &dyn AuditDb, at: i64) -> Result<Option<i64>, AuditError> {
    let place = db.place();
    let oldest = format!("SELECT time_ms FROM transfers WHERE {place} >= $1 ORDER BY {place} LIMIT 1");
    match db.rows(&oldest, &[Value::Int(at)])?.first() {
        Some(row) => Ok(Some(row[0].int()?)),
        None => Ok(None),
    }
}

/// The first place behind the last seal.
fn sealed_to(db: &dyn AuditDb) -> Result<i64, AuditError> {
    match db.rows("SELECT to_at FROM seals ORDER BY id DESC LIMIT 1", &[])?.first() {
        Some(row) => Ok(row[0].int()?),
        None => Ok(i64::MIN),
    }
}

pub(super) fn read(db: &dyn AuditDb, limits: AuditLimits) -> Result<AuditProgress, AuditError> {
    let row = one(
        db,
        "SELECT at, transfers, read_ms, compared_ms, sweeps, swept_ms, sweep_began_ms FROM audit_position",
        &[],
    )?;
    let at = row[0].int()?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    // Before the transfers: what is sealed meanwhile is counted once more, and none is left out.
    let sealed_to = sealed_to(db)?;
    let unread = tail(db, at, limits.tail_rows_max)?;
    let mut progress = AuditProgress {
        transfers: count(row[1].int()?),
        tail: unread,
        is_behind: unread > u64::from(limits.tail_rows_max),
        oldest_unread_ms: oldest_ms(db, at)?,
        read_ms: row[2].int()?,
        compared_ms: row[3].int()?,
        sweeps: count(row[4].int()?),
        swept_ms: row[5].int()?,
        sweep_began_ms: row[6].int()?,
        unsealed: tail(db, sealed_to, UNSEALED_COUNTED_MAX - 1)?,
        oldest_unsealed_ms: oldest_ms(db, sealed_to)?,
        ..AuditProgress::default()
    };
    let by_state = "SELECT kind, CASE WHEN resolved_ms IS NOT NULL THEN 2 WHEN acknowledged_ms IS NOT NULL THEN 1 ELSE 0 END, \
                    count(*) FROM audit_differences GROUP BY 1, 2";
    for row in db.rows(by_state, &[])? {
        let (kind, rows) = (row[0].text().to_owned(), count(row[2].int()?));
        match row[1].int()? {
            0 => drop(progress.open.insert(kind, rows)),
            1 => drop(progress.acknowledged.insert(kind, rows)),
            _ => progress.resolved += rows,
        }
    }
    Ok(progress)
}
