//! Reads what a user's statement is walked along.

use super::{query, withdrawals};
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET};
use crate::statement_reads::{AccountEnd, ChainRow, StatementReads};
use crate::withdrawal::StoredWithdrawal;
use rusqlite::{Connection, OptionalExtension, params};

/// One transfer, by its number.
const ROW: &str = "SELECT t.reference, coalesce(n.name, ''), t.amount, t.time_ms, t.debit, t.debit_holder, t.credit, \
    t.credit_holder, t.prev, t.kind FROM transfers t LEFT JOIN programs p ON t.debit = ?3 AND p.id = t.debit_holder \
    LEFT JOIN names n ON n.id = p.activity WHERE t.id = ?1 AND t.asset = ?2";

impl StatementReads for Connection {
    fn accounts(&self, user_id: i64) -> Result<Vec<AccountEnd>, LedgerError> {
        query::accounts(self, user_id)
    }

    fn chain(&self, bonus_type_id: i64, from: i64, steps: usize) -> Result<Vec<ChainRow>, LedgerError> {
        let mut statement = self.prepare_cached(ROW)?;
        let (mut rows, mut id) = (Vec::new(), from);
        while rows.len() < steps && id != 0 {
            let found = statement.query_row(params![id, bonus_type_id, BUDGET], |row| {
                Ok(ChainRow {
                    id,
                    reference: row.get(0)?,
                    activity: row.get(1)?,
                    amount: row.get(2)?,
                    time_ms: row.get(3)?,
                    debit: Account { kind: row.get(4)?, holder: row.get(5)? },
                    credit: Account { kind: row.get(6)?, holder: row.get(7)? },
                    prev: row.get(8)?,
                    kind: row.get(9)?,
                })
            });
            let Some(row) = found.optional()? else { break };
            id = row.prev;
            rows.push(row);
        }
        Ok(rows)
    }

    fn withdrawals(&self, keys: &[String]) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        let found = keys.iter().map(|key| withdrawals::under(self, key));
        found.filter_map(|one| one.map(|found| found.map(|(stored, _)| stored)).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, LedgerOptions};

    #[test]
    fn a_line_is_found_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        drop(Ledger::open(&path, &LedgerOptions::default()).unwrap());
        let db = Connection::open(&path).unwrap();
        let plan: Vec<String> = db
            .prepare(&format!("EXPLAIN QUERY PLAN {ROW}"))
            .unwrap()
            .query_map(params![1, 1, 1], |row| row.get(3))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(plan.iter().all(|step| step.starts_with("SEARCH") && step.contains("rowid=?")), "{plan:?}");
    }
}
