//! The journal's entries, and the balances that they move: gathered over a step, so that an account is written once.

use super::rows::insert_rows;
use crate::error::LedgerError;
use crate::journal::{JournalEntry, USER};
use rusqlite::{Connection, OptionalExtension, Statement};
use std::collections::BTreeMap;

const CHUNK: usize = 64;
const COLUMNS: usize = 11;
const HEAD: &str = "INSERT INTO transfers \
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference) VALUES ";

/// Entries of one step. What they move is not written yet.
#[derive(Debug, Default)]
pub(crate) struct Transfers<'a> {
    entries: Vec<JournalEntry<'a>>,
    /// The changes of accounts that belong to no user, by bonus type, kind and holder.
    others: BTreeMap<(i64, i64, i64), i64>,
}

impl<'a> Transfers<'a> {
    pub fn with_capacity(count: usize) -> Self {
        Self { entries: Vec::with_capacity(count), others: BTreeMap::new() }
    }

    /// Adds an entry. Numbers must grow from call to call; otherwise the rows are inserted out of order.
    pub fn push(&mut self, entry: JournalEntry<'a>) -> Result<(), LedgerError> {
        for (account, change) in entry.others() {
            let sum = self.others.entry((entry.bonus_type, account.kind, account.holder)).or_default();
            *sum = sum.checked_add(change).ok_or_else(overflow)?;
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Writes accounts and entries.
    pub fn write(mut self, db: &Connection) -> Result<(), LedgerError> {
        self.entries.sort_unstable_by_key(|one| (one.bonus_type, one.user, one.id));
        let mut read =
            db.prepare_cached("SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3")?;
        let mut add = db.prepare_cached(ADD)?;
        for group in self.entries.chunk_by_mut(|a, b| (a.bonus_type, a.user) == (b.bonus_type, b.user)) {
            move_user(&mut read, &mut add, group)?;
        }
        for ((bonus_type, kind, holder), change) in &self.others {
            add.execute([*kind, *bonus_type, *holder, *change, 0])?;
        }
        self.entries.sort_unstable_by_key(|one| one.id);
        insert(db, &self.entries)
    }
}

/// Appends entries to the journal; their accounts are moved by the caller.
pub(crate) fn insert(db: &Connection, entries: &[JournalEntry<'_>]) -> Result<(), LedgerError> {
    for chunk in entries.chunks(CHUNK) {
        insert_rows(db, HEAD, COLUMNS, "", chunk.len(), |row, bind| {
            let one = &chunk[row];
            bind.int(one.id)?;
            bind.int(one.kind.code())?;
            bind.int(one.bonus_type)?;
            bind.int(one.debit.kind)?;
            bind.int(one.debit.holder)?;
            bind.int(one.credit.kind)?;
            bind.int(one.credit.holder)?;
            bind.int(one.amount)?;
            bind.int(one.prev)?;
            bind.int(one.time_ms)?;
            bind.text(&one.reference)
        })?;
    }
    Ok(())
}

/// A sum beyond 64 bits becomes a float in SQLite, which the STRICT table refuses: an error, never a wrong
/// balance.
pub(crate) const ADD: &str = "INSERT INTO accounts (kind, asset, holder, balance, last) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    last = excluded.last";

/// Moves one user's account by all its entries, and chains them: oldest first, behind the account's last.
fn move_user(
    read: &mut Statement<'_>,
    add: &mut Statement<'_>,
    group: &mut [JournalEntry<'_>],
) -> Result<(), LedgerError> {
    let Some((bonus_type, Some(user_id))) = group.first().map(|one| (one.bonus_type, one.user)) else {
        return Ok(());
    };
    let mut last = read.query_row([USER, bonus_type, user_id], |row| row.get(0)).optional()?.unwrap_or(0);
    let mut sum = 0_i64;
    for one in group {
        sum = sum.checked_add(one.change_of(USER)).ok_or_else(overflow)?;
        one.prev = last;
        last = one.id;
    }
    add.execute([USER, bonus_type, user_id, sum, last])?;
    Ok(())
}

fn overflow() -> LedgerError {
    LedgerError::Invalid("the sum of a batch is beyond 64 bits".into())
}
