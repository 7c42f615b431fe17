//! One insert statement for many rows, so that they share a statement's cost.

use crate::error::LedgerError;
use rusqlite::{Connection, Statement};

/// Binds one value after the other.
pub(crate) struct Binder<'s, 'c> {
    statement: &'s mut Statement<'c>,
    at: usize,
}

impl Binder<'_, '_> {
    pub fn int(&mut self, value: i64) -> Result<(), LedgerError> {
        self.at += 1;
        Ok(self.statement.raw_bind_parameter(self.at, value)?)
    }

    pub fn text(&mut self, value: &str) -> Result<(), LedgerError> {
        self.at += 1;
        Ok(self.statement.raw_bind_parameter(self.at, value)?)
    }
}

/// Runs `head` + `rows` groups of `columns` parameters + `tail`, and returns how many rows were inserted.
pub(crate) fn insert_rows(
    db: &Connection,
    head: &str,
    columns: usize,
    tail: &str,
    rows: usize,
    mut bind_row: impl FnMut(usize, &mut Binder<'_, '_>) -> Result<(), LedgerError>,
) -> Result<usize, LedgerError> {
    let group = format!("({})", vec!["?"; columns].join(","));
    let sql = format!("{head}{}{tail}", vec![group; rows].join(","));
    let mut statement = db.prepare_cached(&sql)?;
    let mut binder = Binder { statement: &mut statement, at: 0 };
    for row in 0..rows {
        bind_row(row, &mut binder)?;
    }
    Ok(statement.raw_execute()?)
}
