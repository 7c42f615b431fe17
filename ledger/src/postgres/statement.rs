//! Reads what a user's statement is walked along. Only a journal has it.

use super::budget_keys::cell;
use super::link::Link;
use super::transfers::small;
use super::withdrawals;
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, USER};
use crate::statement_reads::{AccountEnd, ChainRow, StatementReads};
use crate::withdrawal::StoredWithdrawal;
use tokio_postgres::Row;

/// The key starts with kind and bonus type: one look-up per bonus type, of which there are few.
const ACCOUNTS: &str = "SELECT a.asset, n.name, a.balance, a.last FROM (SELECT DISTINCT asset FROM programs) p \
    JOIN accounts a ON a.kind = $1 AND a.asset = p.asset AND a.holder = $2 JOIN names n ON n.id = a.asset ORDER BY n.name";
/// Each step finds one transfer by its number.
const CHAIN: &str = "WITH RECURSIVE chain AS (
        SELECT t.id, t.prev, 1::bigint AS step FROM transfers t WHERE t.id = $1 AND t.asset = $2
        UNION ALL
        SELECT t.id, t.prev, c.step + 1 FROM chain c JOIN transfers t ON t.id = c.prev AND t.asset = $2
        WHERE c.step < $3
    )
    SELECT t.id, t.reference, coalesce(n.name, ''), t.amount, t.time_ms, t.debit, t.debit_holder, t.credit,
        t.credit_holder, t.prev, t.kind FROM chain c JOIN transfers t ON t.id = c.id
    LEFT JOIN programs p ON t.debit = $4 AND p.id = t.debit_holder LEFT JOIN names n ON n.id = p.activity
    ORDER BY c.step";

impl StatementReads for Link {
    fn accounts(&self, user_id: i64) -> Result<Vec<AccountEnd>, LedgerError> {
        let rows = self.journal()?.query(ACCOUNTS, &[&small(USER)?, &user_id])?;
        let account = |row: &Row| {
            Ok(AccountEnd {
                bonus_type_id: cell(row, 0)?,
                bonus_type: cell(row, 1)?,
                balance: cell(row, 2)?,
                last: cell(row, 3)?,
            })
        };
        rows.iter().map(account).collect()
    }

    fn chain(&self, bonus_type_id: i64, from: i64, steps: usize) -> Result<Vec<ChainRow>, LedgerError> {
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        let rows = self.journal()?.query(CHAIN, &[&from, &bonus_type_id, &steps, &small(BUDGET)?])?;
        let account = |row: &Row, at: usize| {
            Ok::<_, LedgerError>(Account { kind: cell::<i16>(row, at)?.into(), holder: cell(row, at + 1)? })
        };
        let transfer = |row: &Row| {
            Ok(ChainRow {
                id: cell(row, 0)?,
                reference: cell(row, 1)?,
                activity: cell(row, 2)?,
                amount: cell(row, 3)?,
                time_ms: cell(row, 4)?,
                debit: account(row, 5)?,
                credit: account(row, 7)?,
                prev: cell(row, 9)?,
                kind: cell::<i16>(row, 10)?.into(),
            })
        };
        rows.iter().map(transfer).collect()
    }

    fn withdrawals(&self, keys: &[String]) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::under(&*self.journal()?, keys)
    }
}
