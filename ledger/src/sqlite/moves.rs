//! Transfers and the balances that they move: every credit goes from the activity's funding account to the
//! user's account of the same asset, so that all balances of an asset sum to 0.

use super::programs::Program;
use super::rows::insert_rows;
use crate::error::LedgerError;
use crate::reconcile::{FUNDING, USER};
use rusqlite::{Connection, OptionalExtension, Statement};
use std::collections::BTreeMap;

const CHUNK: usize = 64;
const COLUMNS: usize = 7;

/// One credit.
#[derive(Debug)]
struct Move<'a> {
    id: i64,
    trade_no: &'a str,
    user_id: i64,
    program: i64,
    asset: i64,
    amount: i64,
    time_ms: i64,
    /// The transfer before this one on the user's account; 0 for none.
    prev: i64,
}

/// Credits of one transaction, gathered so that an account is written once.
#[derive(Debug, Default)]
pub(crate) struct Moves<'a> {
    moves: Vec<Move<'a>>,
    funding: BTreeMap<(i64, i64), i64>,
}

impl<'a> Moves<'a> {
    pub fn with_capacity(count: usize) -> Self {
        Self { moves: Vec::with_capacity(count), funding: BTreeMap::new() }
    }

    /// Adds a credit. Transfer numbers grow from call to call or the rows are inserted out of order.
    pub fn push(
        &mut self,
        id: i64,
        trade_no: &'a str,
        user_id: i64,
        program: Program,
        amount: i64,
        time_ms: i64,
    ) -> Result<(), LedgerError> {
        let paid = self.funding.entry((program.asset, program.activity)).or_default();
        *paid = paid.checked_add(amount).ok_or_else(overflow)?;
        let (program, asset) = (program.id, program.asset);
        self.moves.push(Move { id, trade_no, user_id, program, asset, amount, time_ms, prev: 0 });
        Ok(())
    }

    /// Writes accounts and transfers.
    pub fn write(mut self, db: &Connection) -> Result<(), LedgerError> {
        self.moves.sort_unstable_by_key(|one| (one.asset, one.user_id, one.id));
        let mut read =
            db.prepare_cached("SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3")?;
        let mut add = db.prepare_cached(ADD)?;
        for group in self.moves.chunk_by_mut(|a, b| (a.asset, a.user_id) == (b.asset, b.user_id)) {
            move_user(&mut read, &mut add, group)?;
        }
        for ((asset, activity), paid) in &self.funding {
            add.execute([FUNDING, *asset, *activity, -paid, 0])?;
        }
        self.moves.sort_unstable_by_key(|one| one.id);
        let head = "INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) VALUES ";
        for chunk in self.moves.chunks(CHUNK) {
            insert_rows(db, head, COLUMNS, "", chunk.len(), |row, bind| {
                let one = &chunk[row];
                bind.int(one.id)?;
                bind.text(one.trade_no)?;
                bind.int(one.user_id)?;
                bind.int(one.program)?;
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
    group: &mut [Move<'_>],
) -> Result<(), LedgerError> {
    let Some((asset, user_id)) = group.first().map(|one| (one.asset, one.user_id)) else {
        return Ok(());
    };
    let mut last = read.query_row([USER, asset, user_id], |row| row.get(0)).optional()?.unwrap_or(0);
    let mut sum = 0_i64;
    for one in group {
        sum = sum.checked_add(one.amount).ok_or_else(overflow)?;
        one.prev = last;
        last = one.id;
    }
    add.execute([USER, asset, user_id, sum, last])?;
    Ok(())
}

fn overflow() -> LedgerError {
    LedgerError::Invalid("the sum of a batch is beyond 64 bits".into())
}
