//! Withdrawals: from a user's account to clearing, then to payout or back.

use super::state::{Connected, SqliteTx};
use super::{act_tables, transfers};
use crate::error::LedgerError;
use crate::held::HeldByTime;
use crate::journal::{JournalEntry, Payout, USER};
use crate::key::{WithdrawalId, keys_of, number_of};
use crate::model::Finish;
use crate::withdrawal::{
    End, Held, HeldFor, HoldOutcome, StoredWithdrawal, WithdrawalStatus, bare_payer_key, check, id_of,
    payer_key,
};
use rusqlite::{Connection, OptionalExtension, params};
use windfall_contract::accounts::{Withdrawal, WithdrawalOutcome};

/// The status is written as it stands in the index, so that SQLite reads no withdrawal that has ended.
const HELD_OLDEST: &str = "SELECT withdrawal_key FROM withdrawals WHERE status = 0 AND created_ms >= ?1 \
    AND created_ms < ?2 AND (created_ms, withdrawal_key) > (?3, ?4) ORDER BY created_ms, withdrawal_key LIMIT ?5";
const HELD_NEWEST: &str = "SELECT withdrawal_key FROM withdrawals WHERE status = 0 AND created_ms >= ?1 \
    AND created_ms < ?2 AND (created_ms, withdrawal_key) < (?3, ?4) ORDER BY created_ms DESC, withdrawal_key DESC LIMIT ?5";

/// A stored withdrawal and the number of its bonus type.
type Found = (StoredWithdrawal, i64);

/// Reads a withdrawal, under whichever key it is stored.
fn find(ledger: &Connected, id: WithdrawalId<'_>) -> Result<Option<Found>, LedgerError> {
    match under(&ledger.db, &id.key())? {
        None if ledger.has_bare => bare(&ledger.db, id),
        found => Ok(found),
    }
}

/// Reads one that is stored under its id alone, since before version 6.
fn bare(db: &Connection, id: WithdrawalId<'_>) -> Result<Option<Found>, LedgerError> {
    Ok(under(db, id.id)?.filter(|(stored, _)| id_of(&stored.withdrawal) == id))
}

pub(super) fn under(db: &Connection, key: &str) -> Result<Option<Found>, LedgerError> {
    let read = db
        .prepare_cached(
            "SELECT w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer, \
             w.payer_key FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.withdrawal_key = ?1",
        )?
        .query_row([key], |row| {
            let status = WithdrawalStatus::of_code(row.get(3)?);
            let withdrawal = Withdrawal {
                id: number_of(key).to_owned(),
                user_id: row.get(0)?,
                bonus_type: row.get(1)?,
                amount: row.get(2)?,
            };
            let payer_key: String = row.get(9)?;
            let stored = StoredWithdrawal {
                key: key.to_owned(),
                payer_key: if payer_key.is_empty() { bare_payer_key(&withdrawal.id) } else { payer_key },
                withdrawal,
                status: status.unwrap_or(WithdrawalStatus::Held),
                reason: row.get(4)?,
                payer: row.get(8)?,
                created_ms: row.get(5)?,
                decided_ms: row.get(6)?,
            };
            Ok((stored, row.get(7)?, status.is_some()))
        })
        .optional()?;
    match read {
        Some((.., false)) => Err(LedgerError::Damaged(format!("withdrawal {key} has an unknown status"))),
        Some((stored, bonus_type, true)) => Ok(Some((stored, bonus_type))),
        None => Ok(None),
    }
}

pub(crate) fn one(db: &Connection, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
    let found = match under(db, &id.key())? {
        None => bare(db, id)?,
        found => found,
    };
    Ok(found.map(|(stored, _)| stored))
}

/// The withdrawals with this id, of every user, in the order of their keys.
pub(super) fn of_id(db: &Connection, id: &str) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let (from, below) = keys_of(id);
    let keys = db
        .prepare_cached(
            "SELECT withdrawal_key FROM withdrawals WHERE withdrawal_key = ?1 \
             OR (withdrawal_key >= ?2 AND withdrawal_key < ?3) ORDER BY withdrawal_key",
        )?
        .query_map(params![id, from, below], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        found.extend(under(db, &key)?.map(|(stored, _)| stored));
    }
    Ok(found)
}

/// Held withdrawals, by key.
pub(crate) fn held(
    db: &Connection,
    which: HeldFor,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    // Status and payer are written as they stand in the indexes, so that SQLite uses them.
    let keys = db
        .prepare_cached(&format!(
            "SELECT withdrawal_key FROM withdrawals WHERE status = 0 {}AND created_ms < ?1 AND withdrawal_key > ?2 \
             ORDER BY withdrawal_key LIMIT ?3",
            which.sql()
        ))?
        .query_map(params![before_ms, after, limit], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let mut held = Vec::with_capacity(keys.len());
    for key in keys {
        // One that has ended between the two reads is not held any more.
        let found = under(db, &key)?.map(|(stored, _)| stored);
        held.extend(found.filter(|one| one.status == WithdrawalStatus::Held));
    }
    Ok(held)
}

/// Held withdrawals of all users, by the time at which they were held.
pub(crate) fn by_time(db: &Connection, which: &HeldByTime) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let (time_ms, key) = which.place();
    let keys = db
        .prepare_cached(if which.newest_first { HELD_NEWEST } else { HELD_OLDEST })?
        .query_map(params![which.from_ms, which.to_ms, time_ms, key, which.limit], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        found.extend(under(db, &key)?.map(|(stored, _)| stored));
    }
    Ok(found)
}

const fn short(balance: i64) -> HoldOutcome {
    HoldOutcome::Decided(WithdrawalOutcome::Short { balance })
}

impl SqliteTx<'_> {
    pub(crate) fn hold_one(
        &mut self,
        (asked, payer): Held<'_>,
        time_ms: i64,
    ) -> Result<HoldOutcome, LedgerError> {
        check((asked, payer))?;
        let (user_id, amount, id) = (asked.user_id, asked.amount, id_of(asked));
        if let Some((stored, _)) = find(self.ledger, id)? {
            return Ok(stored.answer(asked));
        }
        let db = &self.ledger.db;
        if act_tables::frozen(db, user_id)?.is_some() {
            return Ok(HoldOutcome::Decided(WithdrawalOutcome::Frozen));
        }
        let account = db
            .prepare_cached(
                "SELECT a.asset, a.balance, a.last FROM names n JOIN accounts a ON a.asset = n.id \
                 WHERE n.name = ?1 AND a.kind = ?2 AND a.holder = ?3",
            )?
            .query_row(params![asked.bonus_type, USER, user_id], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        let (bonus_type, prev) = match account {
            Some((bonus_type, balance, last)) if balance >= amount => (bonus_type, last),
            Some((_, balance, _)) => return Ok(short(balance)),
            None => return Ok(short(0)),
        };
        let (key, held) = (id.key(), WithdrawalStatus::Held.code());
        db.prepare_cached(
            "INSERT INTO withdrawals \
             (withdrawal_key, user_id, asset, amount, status, reason, payer, created_ms, decided_ms, payer_key) \
             VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, NULL, ?8)",
        )?
        .execute(params![key, user_id, bonus_type, amount, held, payer, time_ms, payer_key(id, &self.tenant)])?;
        let payout = Payout { key: &key, user_id, bonus_type, amount };
        let entry = payout.hold(self.number(), prev, time_ms);
        self.record(&entry)?;
        Ok(HoldOutcome::Held)
    }

    pub(crate) fn end_one(
        &mut self,
        id: WithdrawalId<'_>,
        end: End<'_>,
        time_ms: i64,
    ) -> Result<Finish, LedgerError> {
        let Some((stored, bonus_type)) = find(self.ledger, id)? else {
            return Ok(Finish::Unknown);
        };
        let finish = end.finish(stored.status);
        if finish != Finish::Done {
            return Ok(finish);
        }
        let Withdrawal { user_id, amount, .. } = stored.withdrawal;
        let db = &self.ledger.db;
        db.prepare_cached(
            "UPDATE withdrawals SET status = ?2, reason = ?3, decided_ms = ?4 WHERE withdrawal_key = ?1",
        )?
        .execute(params![stored.key, end.status().code(), end.reason(), time_ms])?;
        let payout = Payout { key: &stored.key, user_id, bonus_type, amount };
        let entry = match end {
            End::Paid => payout.pay(self.number(), time_ms),
            End::Refused(_) => {
                let last = "SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3";
                let prev =
                    db.prepare_cached(last)?.query_row([USER, bonus_type, user_id], |row| row.get(0))?;
                payout.give_back(self.number(), prev, time_ms)
            }
        };
        self.record(&entry)?;
        Ok(Finish::Done)
    }

    /// Appends an entry and moves its accounts. A user's account must be there, and the table's CHECK keeps it from
    /// going below 0.
    pub(super) fn record(&self, entry: &JournalEntry<'_>) -> Result<(), LedgerError> {
        let db = &self.ledger.db;
        if let Some(user_id) = entry.user {
            let changed = db
                .prepare_cached(
                    "UPDATE accounts SET balance = balance + ?4, last = ?5 \
                     WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
                )?
                .execute([USER, entry.bonus_type, user_id, entry.change_of(USER), entry.id])?;
            if changed != 1 {
                return Err(LedgerError::Damaged(format!("the account of user {user_id} is missing")));
            }
        }
        for (account, change) in entry.others() {
            let own = [account.kind, entry.bonus_type, account.holder, change, 0];
            db.prepare_cached(transfers::ADD)?.execute(own)?;
        }
        transfers::insert(db, std::slice::from_ref(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, LedgerOptions};

    #[test]
    fn held_withdrawals_are_found_by_time_without_those_that_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        drop(Ledger::open(&path, &LedgerOptions::default()).unwrap());
        let db = Connection::open(&path).unwrap();
        for sql in [HELD_OLDEST, HELD_NEWEST] {
            let plan: String = db
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap()
                .query_row(params![0, 9, 1, "", 1], |row| row.get(3))
                .unwrap();
            assert!(plan.contains("withdrawals_held"), "{plan}");
        }
    }
}
