//! Payers' statements as rows.

use super::model::{PayerStatement, PayerStatementError, PayerStatementState, PayerSum};
use crate::audit::db::{AuditDb, Row, Value};
use crate::audit::model::AuditError;
use crate::error::LedgerError;

/// The first place of all.
pub(super) const FIRST: i64 = -9_000_000_000_000_000_000;

/// The stages of a statement, as they are stored: never renumber.
pub(super) const UPLOADING: i64 = 0;
pub(super) const LINES: i64 = 1;
pub(super) const TIMES: i64 = 2;
pub(super) const LEDGER: i64 = 3;
pub(super) const COMPARED: i64 = 4;

/// A row of `audit_statements`.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) statement: PayerStatement,
    pub(super) stage: i64,
    /// The last line that was compared, or the place up to which the ledger was.
    pub(super) place: i64,
    /// The place at which the ledger ended when its payments began to be compared.
    pub(super) end_place: i64,
    /// From when on the statements of the payer speak without a gap, and from when on this one claims what they lack.
    pub(super) covered_ms: i64,
    pub(super) low_ms: i64,
}

const COLUMNS: &str = "id, payer, from_ms, to_ms, margin_ms, actor, begun_ms, lines, stage, place, differences, unclear, \
                       compared_ms, covered_ms, low_ms, end_place";

fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn stored(row: &Row) -> Result<Stored, LedgerError> {
    let (stage, place, lines) = (row[8].int()?, row[9].int()?, row[7].int()?);
    let statement = PayerStatement {
        id: row[0].int()?,
        payer: row[1].text().to_owned(),
        from_ms: row[2].int()?,
        to_ms: row[3].int()?,
        margin_ms: row[4].int()?,
        actor: row[5].text().to_owned(),
        begun_ms: row[6].int()?,
        lines: count(lines),
        state: match stage {
            UPLOADING => PayerStatementState::Uploading,
            COMPARED => PayerStatementState::Compared,
            _ => PayerStatementState::Comparing,
        },
        compared_lines: match stage {
            UPLOADING => 0,
            LINES => count(place),
            _ => count(lines),
        },
        differences: count(row[10].int()?),
        unclear: count(row[11].int()?),
        compared_ms: row[12].int_or_none()?,
        sums: Vec::new(),
    };
    let (covered_ms, low_ms) = (row[13].int()?, row[14].int()?);
    Ok(Stored { statement, stage, place, end_place: row[15].int()?, covered_ms, low_ms })
}

pub(super) fn find(db: &dyn AuditDb, id: i64) -> Result<Stored, PayerStatementError> {
    let sql = format!("SELECT {COLUMNS} FROM audit_statements WHERE id = $1");
    let rows = db.rows(&sql, &[Value::Int(id)])?;
    let row = rows.first().ok_or(PayerStatementError::NotFound(id))?;
    let mut found = stored(row)?;
    found.statement.sums = sums(db, id)?;
    Ok(found)
}

pub(super) fn sums(db: &dyn AuditDb, id: i64) -> Result<Vec<PayerSum>, LedgerError> {
    let sql = "SELECT bonus_type, lines, amount, returned_lines, returned_amount, agreed_lines, agreed_amount, ledger_rows, \
               ledger_amount FROM audit_statement_sums WHERE statement = $1 ORDER BY bonus_type";
    let pair =
        |row: &Row, at: usize| -> Result<_, LedgerError> { Ok((count(row[at].int()?), row[at + 1].int()?)) };
    let of_row = |row: &Row| {
        Ok(PayerSum {
            bonus_type: row[0].text().to_owned(),
            paid: pair(row, 1)?,
            returned: pair(row, 3)?,
            agreed: pair(row, 5)?,
            in_ledger: pair(row, 7)?,
        })
    };
    db.rows(sql, &[Value::Int(id)])?.iter().map(of_row).collect()
}

pub(super) fn list(
    db: &dyn AuditDb,
    payer: Option<&str>,
    before: i64,
    limit: u32,
) -> Result<Vec<PayerStatement>, AuditError> {
    let of_payer = if payer.is_some() { "AND payer = $2" } else { "" };
    let sql = format!(
        "SELECT {COLUMNS} FROM audit_statements WHERE id < $1 {of_payer} ORDER BY id DESC LIMIT {}",
        limit.clamp(1, 1_000)
    );
    let mut params = vec![Value::Int(before)];
    params.extend(payer.map(Value::Text));
    let mut found = Vec::new();
    for row in db.rows(&sql, &params)? {
        let mut statement = stored(&row)?.statement;
        statement.sums = sums(db, statement.id)?;
        found.push(statement);
    }
    Ok(found)
}

/// The subject of a difference about a key. It does not name the statement: the same difference in another one is the same.
pub(super) fn subject(own: &Stored, key: &str) -> String {
    format!("key \"{key}\" of payer \"{}\"", own.statement.payer)
}
