//! The upload of a statement: batch after batch, each once.

use super::model::{
    BATCH_MAX, BadPayerStatement, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerTotals, TYPES_MAX,
};
use super::stored::{self, UPLOADING, find};
use crate::audit::db::{AuditDb, Value};
use crate::error::LedgerError;
use crate::key::{PayerKeyOf, of_payer_key};
use std::collections::{BTreeMap, BTreeSet};

/// `audit_statement_lines.what` of a line whose key is an order's, a withdrawal's, or neither.
pub(super) const ORDER: i64 = 0;
pub(super) const WITHDRAWAL: i64 = 1;
const NEITHER: i64 = 2;

/// The rows of an insert: as many as there are left for the largest of these, so that few statements are different.
const INSERT_ROWS: [usize; 3] = [256, 16, 1];

/// Begins a statement. One whose period has not passed is refused before a line of it is sent.
pub(super) fn begin(
    db: &dyn AuditDb,
    new: &NewPayerStatement,
    now_ms: i64,
) -> Result<PayerStatement, PayerStatementError> {
    let at_ms = new.to_ms.saturating_add(new.margin_ms);
    if now_ms < at_ms {
        return Err(PayerStatementError::TooEarly { at_ms });
    }
    let insert = "INSERT INTO audit_statements (upload, payer, from_ms, to_ms, margin_ms, actor, begun_ms, lines, stage, place, \
                  end_place, covered_ms, low_ms, differences, unclear) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, 0, 0, 0, 0, 0, 0) \
                  ON CONFLICT (upload) DO NOTHING";
    let params = [
        Value::Text(&new.upload),
        Value::Text(&new.payer),
        Value::Int(new.from_ms),
        Value::Int(new.to_ms),
        Value::Int(new.margin_ms),
        Value::Text(&new.actor),
        Value::Int(now_ms),
    ];
    db.execute(insert, &params)?;
    let rows = db.rows("SELECT id FROM audit_statements WHERE upload = $1", &params[..1])?;
    let missing = || LedgerError::Damaged("a statement that was just begun is missing".into());
    let found = find(db, rows.first().ok_or_else(missing)?[0].int()?)?.statement;
    let is_same = (found.payer.as_str(), found.from_ms, found.to_ms, found.margin_ms)
        == (new.payer.as_str(), new.from_ms, new.to_ms, new.margin_ms);
    if is_same { Ok(found) } else { Err(PayerStatementError::OtherUpload) }
}

/// Appends a batch, or finds that it is there. Returns the line that comes next.
pub(super) fn append(
    db: &dyn AuditDb,
    statement: i64,
    first_line: u64,
    lines: &[PayerLine],
) -> Result<u64, PayerStatementError> {
    if lines.is_empty() || lines.len() > BATCH_MAX {
        return Err(BadPayerStatement::Batch.into());
    }
    let own = find(db, statement)?;
    if own.stage != UPLOADING {
        return Err(PayerStatementError::Ended(statement));
    }
    let (next, behind) =
        (own.statement.lines.saturating_add(1), first_line.saturating_add(lines.len() as u64));
    if first_line == 0 || first_line > next || (first_line < next && behind > next) {
        return Err(PayerStatementError::OutOfPlace { next });
    }
    if first_line < next {
        same(db, statement, first_line, lines)?;
        return Ok(next);
    }
    insert(db, statement, first_line, lines)?;
    add(db, statement, lines)?;
    let have = i64::try_from(behind - 1).unwrap_or(i64::MAX);
    let params = [Value::Int(have), Value::Int(statement)];
    db.execute("UPDATE audit_statements SET lines = $1 WHERE id = $2", &params)?;
    Ok(behind)
}

fn number(line: u64) -> i64 {
    i64::try_from(line).unwrap_or(i64::MAX)
}

/// Compares lines with those that are there.
fn same(
    db: &dyn AuditDb,
    statement: i64,
    first_line: u64,
    lines: &[PayerLine],
) -> Result<(), PayerStatementError> {
    let sql = "SELECT key, bonus_type, amount, returned FROM audit_statement_lines \
               WHERE statement = $1 AND line >= $2 AND line < $3 ORDER BY line";
    let behind = number(first_line.saturating_add(lines.len() as u64));
    let rows = db.rows(sql, &[Value::Int(statement), Value::Int(number(first_line)), Value::Int(behind)])?;
    for (at, line) in lines.iter().enumerate() {
        let is_same = match rows.get(at) {
            Some(row) => {
                (row[0].text(), row[1].text()) == (line.key.as_str(), line.bonus_type.as_str())
                    && (row[2].int()?, row[3].int()? != 0) == (line.amount, line.is_returned)
            }
            None => false,
        };
        if !is_same {
            return Err(PayerStatementError::OtherLine(first_line + at as u64));
        }
    }
    Ok(())
}

fn insert(db: &dyn AuditDb, statement: i64, first_line: u64, lines: &[PayerLine]) -> Result<(), LedgerError> {
    let keys: Vec<(i64, String)> = lines
        .iter()
        .map(|line| match of_payer_key(&line.key) {
            PayerKeyOf::Order(key) => (ORDER, key),
            PayerKeyOf::Withdrawal(key) => (WITHDRAWAL, key),
            // Only so that it is found when it stands there twice.
            PayerKeyOf::Neither => (NEITHER, line.key.clone()),
        })
        .collect();
    let mut done = 0;
    while done < lines.len() {
        let left = lines.len() - done;
        let rows = INSERT_ROWS.into_iter().find(|rows| *rows <= left).unwrap_or(1);
        let values = (0..rows).map(|row| {
            let places = (1..=8).map(|at| format!("${}", row * 8 + at));
            format!("({})", places.collect::<Vec<_>>().join(", "))
        });
        let sql = format!(
            "INSERT INTO audit_statement_lines (statement, line, what, returned, amount, bonus_type, key, ledger_key) VALUES {}",
            values.collect::<Vec<_>>().join(", ")
        );
        let mut params = Vec::with_capacity(rows * 8);
        for at in done..done + rows {
            let (line, (what, ledger_key)) = (&lines[at], &keys[at]);
            params.extend([
                Value::Int(statement),
                Value::Int(number(first_line + at as u64)),
                Value::Int(*what),
                Value::Int(i64::from(line.is_returned)),
                Value::Int(line.amount),
                Value::Text(&line.bonus_type),
                Value::Text(&line.key),
                Value::Text(ledger_key),
            ]);
        }
        db.execute(&sql, &params)?;
        done += rows;
    }
    Ok(())
}

/// Adds lines to the statement's sums.
fn add(db: &dyn AuditDb, statement: i64, lines: &[PayerLine]) -> Result<(), PayerStatementError> {
    let mut sums: BTreeMap<&str, [i64; 4]> = BTreeMap::new();
    let have = stored::sums(db, statement)?;
    for sum in &have {
        let (paid, returned) = (sum.paid, sum.returned);
        sums.insert(&sum.bonus_type, [number(paid.0), paid.1, number(returned.0), returned.1]);
    }
    for line in lines {
        let sum = sums.entry(&line.bonus_type).or_default();
        let at = if line.is_returned { 2 } else { 0 };
        let too_large = || BadPayerStatement::Sum(line.bonus_type.clone());
        sum[at] += 1;
        sum[at + 1] = sum[at + 1].checked_add(line.amount).ok_or_else(too_large)?;
    }
    if sums.len() > TYPES_MAX {
        return Err(BadPayerStatement::Types.into());
    }
    let sql = "INSERT INTO audit_statement_sums (statement, bonus_type, lines, amount, returned_lines, returned_amount, \
               agreed_lines, agreed_amount, ledger_rows, ledger_amount) VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0) \
               ON CONFLICT (statement, bonus_type) DO UPDATE SET lines = excluded.lines, amount = excluded.amount, \
               returned_lines = excluded.returned_lines, returned_amount = excluded.returned_amount";
    let touched: BTreeSet<&str> = lines.iter().map(|line| line.bonus_type.as_str()).collect();
    for (bonus_type, [paid_lines, paid, returned_lines, returned]) in sums {
        if !touched.contains(bonus_type) {
            continue;
        }
        let params = [
            Value::Int(statement),
            Value::Text(bonus_type),
            Value::Int(paid_lines),
            Value::Int(paid),
            Value::Int(returned_lines),
            Value::Int(returned),
        ];
        db.execute(sql, &params)?;
    }
    Ok(())
}

/// The difference between what a statement is said to have and what is here, in words.
pub(super) fn not_whole(have: &PayerStatement, said: &PayerTotals) -> Option<String> {
    if have.lines != said.lines {
        return Some(format!("{} lines were announced, and {} are here", said.lines, have.lines));
    }
    let here: BTreeMap<&str, (u64, i64)> =
        have.sums.iter().filter(|sum| sum.paid.0 > 0).map(|sum| (&*sum.bonus_type, sum.paid)).collect();
    let types = said.paid.keys().map(String::as_str).chain(here.keys().copied());
    for bonus_type in types {
        let of = |sums: Option<&(u64, i64)>| sums.copied().unwrap_or_default();
        let (said, here) = (of(said.paid.get(bonus_type)), of(here.get(bonus_type)));
        if said != here {
            return Some(format!(
                "{} {bonus_type} in {} lines were announced, and {} in {} are here",
                said.1, said.0, here.1, here.0
            ));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_insert_are_few_statements() {
        let sizes = |mut left: usize| {
            let mut sizes = Vec::new();
            while left > 0 {
                let rows = INSERT_ROWS.into_iter().find(|rows| *rows <= left).unwrap();
                sizes.push(rows);
                left -= rows;
            }
            sizes
        };
        assert_eq!(sizes(290), [256, 16, 16, 1, 1]);
        let of_batch = sizes(BATCH_MAX);
        assert_eq!(of_batch.iter().filter(|rows| **rows == 256).count(), 19);
    }
}
