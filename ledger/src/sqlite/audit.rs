//! An auditor's connection to a ledger in a file ([`crate::audit`]), beside the one that writes. A transfer's place is its
//! number: one writer draws the numbers under the file's write lock, so whatever can be read is final, and nothing comes in
//! front of it any more.

use super::{act_tables, closed, position, schema};
use crate::audit::db::{AuditDb, Cell, Value};
use crate::audit::model::AuditError;
use crate::audit::tables::SETS as TABLE_SETS;
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};
use std::path::Path;
use std::sync::Arc;

/// A connection that audits.
#[derive(Debug)]
pub(crate) struct SqliteAudit {
    db: Connection,
    is_ready: bool,
    guard: Option<Arc<Guard>>,
}

pub(crate) fn open(path: &Path) -> Result<SqliteAudit, OpenError> {
    Ok(SqliteAudit { db: schema::open_sealer(path)?, is_ready: false, guard: None })
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Value::Int(value) => ToSqlOutput::from(*value),
            Value::Text(text) => ToSqlOutput::from(*text),
        })
    }
}

/// SQLite numbers its parameters after a question mark.
fn spell(sql: &str) -> String {
    sql.replace('$', "?")
}

impl AuditDb for SqliteAudit {
    fn place(&self) -> &'static str {
        "id"
    }

    fn ready(&mut self) -> Result<(), AuditError> {
        if !self.is_ready {
            for set in TABLE_SETS {
                self.db.execute_batch(&set.sql(false)).map_err(LedgerError::from)?;
            }
            self.is_ready = true;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<bool, AuditError> {
        self.ready()?;
        // The write lock at once: the sums, the position and the ledger stay as they are.
        self.db.execute_batch("BEGIN IMMEDIATE").map_err(LedgerError::from)?;
        Ok(true)
    }

    fn commit(&mut self) -> Result<(), LedgerError> {
        let done = self.db.execute_batch("COMMIT").map_err(LedgerError::from);
        if done.is_err() {
            self.roll_back();
        }
        done
    }

    fn roll_back(&mut self) {
        // A failed statement may have ended the transaction already.
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "the auditor could not roll a transaction back");
        }
    }

    fn rows(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Vec<Cell>>, LedgerError> {
        let mut statement = self.db.prepare_cached(&spell(sql))?;
        let columns = statement.column_count();
        let rows = statement.query_map(params_from_iter(params), |row| {
            (0..columns)
                .map(|at| {
                    Ok(match row.get_ref(at)? {
                        ValueRef::Integer(value) => Cell::Int(value),
                        ValueRef::Null => Cell::Null,
                        _ => Cell::Text(row.get(at)?),
                    })
                })
                .collect()
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn execute(&self, sql: &str, params: &[Value<'_>]) -> Result<u64, LedgerError> {
        Ok(self.db.prepare_cached(&spell(sql))?.execute(params_from_iter(params))? as u64)
    }

    fn horizon(&self) -> Result<i64, LedgerError> {
        let next = "SELECT coalesce(max(id), 0) + 1 FROM transfers";
        Ok(self.db.prepare_cached(next)?.query_row([], |row| row.get(0))?)
    }

    fn cluster(&self) -> Result<i64, LedgerError> {
        Ok(0)
    }

    fn ahead(&self) -> Result<Option<(i64, i64)>, LedgerError> {
        Ok(None)
    }

    fn has_acts(&self) -> Result<bool, LedgerError> {
        act_tables::are_there(&self.db)
    }

    fn has_closed(&self) -> Result<bool, LedgerError> {
        Ok(closed::are_there(&self.db)?)
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.guard = Some(guard);
        Ok(())
    }

    fn look(&mut self) -> Result<(), LedgerError> {
        self.guard.as_ref().map_or(Ok(()), |guard| position::look(&self.db, guard))
    }
}
