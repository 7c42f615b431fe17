//! Transfers and the balances that they move: every credit goes from the activity's funding account to the
//! user's account of the same bonus type, so that all balances of a bonus type sum to 0.

use super::budget_keys::BudgetKey;
use super::rows::insert_rows;
use crate::error::LedgerError;
use crate::reconcile::{FUNDING, USER};
use rusqlite::{Connection, OptionalExtension, Statement};
use std::collections::BTreeMap;

const CHUNK: usize = 64;
const COLUMNS: usize = 7;

/// One credit.
#[derive(Debug)]
struct Transfer<'a> {
    id: i64,
    trade_no: &'a str,
    user_id: i64,
    budget_key: i64,
    bonus_type: i64,
    amount: i64,
    time_ms: i64,
    /// The transfer before this one on the user's account; 0 for none.
    prev: i64,
}

/// Credits of one transaction, gathered so that an account is written once.
#[derive(Debug, Default)]
pub(crate) struct Transfers<'a> {
    transfers: Vec<Transfer<'a>>,
    funding: BTreeMap<(i64, i64), i64>,
}

impl<'a> Transfers<'a> {
    pub fn with_capacity(count: usize) -> Self {
        Self { transfers: Vec::with_capacity(count), funding: BTreeMap::new() }
    }

    /// Adds a credit. Transfer numbers must grow from call to call; otherwise the rows are inserted out of order.
    pub fn push(
        &mut self,
        id: i64,
        trade_no: &'a str,
        user_id: i64,
        budget_key: BudgetKey,
        amount: i64,
        time_ms: i64,
    ) -> Result<(), LedgerError> {
        let paid = self.funding.entry((budget_key.bonus_type, budget_key.activity)).or_default();
        *paid = paid.checked_add(amount).ok_or_else(overflow)?;
        let (budget_key, bonus_type) = (budget_key.id, budget_key.bonus_type);
        self.transfers.push(Transfer {
            id,
            trade_no,
            user_id,
            budget_key,
            bonus_type,
            amount,
            time_ms,
            prev: 0,
        });
        Ok(())
    }

    /// Writes accounts and transfers.
    pub fn write(mut self, db: &Connection) -> Result<(), LedgerError> {
        self.transfers.sort_unstable_by_key(|one| (one.bonus_type, one.user_id, one.id));
        let mut read =
            db.prepare_cached("SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3")?;
        let mut add = db.prepare_cached(ADD)?;
        for group in
            self.transfers.chunk_by_mut(|a, b| (a.bonus_type, a.user_id) == (b.bonus_type, b.user_id))
        {
            move_user(&mut read, &mut add, group)?;
        }
        for ((bonus_type, activity), paid) in &self.funding {
            add.execute([FUNDING, *bonus_type, *activity, -paid, 0])?;
        }
        self.transfers.sort_unstable_by_key(|one| one.id);
        let head = "INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) VALUES ";
        for chunk in self.transfers.chunks(CHUNK) {
            insert_rows(db, head, COLUMNS, "", chunk.len(), |row, bind| {
                let one = &chunk[row];
                bind.int(one.id)?;
                bind.text(one.trade_no)?;
                bind.int(one.user_id)?;
                bind.int(one.budget_key)?;
                bind.int(one.amount)?;
                bind.int(one.prev)?;
                bind.int(one.time_ms)
            })?;
        }
        Ok(())
    }
}

/// A sum beyond 64 bits becomes a float in SQLite, which the STRICT table refuses: an error, never a wrong
/// balance.
pub(crate) const ADD: &str = "INSERT INTO accounts (kind, asset, holder, balance, last) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    last = excluded.last";

/// Moves one account by all its credits, and chains them: oldest first, behind the account's last.
fn move_user(
    read: &mut Statement<'_>,
    add: &mut Statement<'_>,
    group: &mut [Transfer<'_>],
) -> Result<(), LedgerError> {
    let Some((bonus_type, user_id)) = group.first().map(|one| (one.bonus_type, one.user_id)) else {
        return Ok(());
    };
    let mut last = read.query_row([USER, bonus_type, user_id], |row| row.get(0)).optional()?.unwrap_or(0);
    let mut sum = 0_i64;
    for one in group {
        sum = sum.checked_add(one.amount).ok_or_else(overflow)?;
        one.prev = last;
        last = one.id;
    }
    add.execute([USER, bonus_type, user_id, sum, last])?;
    Ok(())
}

fn overflow() -> LedgerError {
    LedgerError::Invalid("the sum of a batch is beyond 64 bits".into())
}
