//! Withdrawals: from a user's account to clearing, then to payout or back.

use super::state::SqliteTx;
use super::transfers;
use crate::error::LedgerError;
use crate::model::Finish;
use crate::reconcile::{CLEARING, PAYOUT, USER};
use crate::withdrawal::{End, HOLD, Held, HoldOutcome, StoredWithdrawal, WithdrawalStatus, check};
use rusqlite::{Connection, OptionalExtension, params};
use windfall_contract::accounts::{Withdrawal, WithdrawalOutcome};

/// Reads a withdrawal, and the number of its bonus type.
fn find(db: &Connection, id: &str) -> Result<Option<(StoredWithdrawal, i64)>, LedgerError> {
    let read = db
        .prepare_cached(
            "SELECT w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
             FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.id = ?1",
        )?
        .query_row([id], |row| {
            let status = WithdrawalStatus::of_code(row.get(3)?);
            let withdrawal = Withdrawal {
                id: id.to_owned(),
                user_id: row.get(0)?,
                bonus_type: row.get(1)?,
                amount: row.get(2)?,
            };
            let stored = StoredWithdrawal {
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
        Some((.., false)) => Err(LedgerError::Damaged(format!("withdrawal {id} has an unknown status"))),
        Some((stored, bonus_type, true)) => Ok(Some((stored, bonus_type))),
        None => Ok(None),
    }
}

pub(crate) fn one(db: &Connection, id: &str) -> Result<Option<StoredWithdrawal>, LedgerError> {
    Ok(find(db, id)?.map(|(stored, _)| stored))
}

/// Held withdrawals, by id.
pub(crate) fn held(
    db: &Connection,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    // The status is written as it stands in the index, so that SQLite uses the index.
    let ids = db
        .prepare_cached(
            "SELECT id FROM withdrawals WHERE status = 0 AND created_ms < ?1 AND id > ?2 ORDER BY id LIMIT ?3",
        )?
        .query_map(params![before_ms, after, limit], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let mut held = Vec::with_capacity(ids.len());
    for id in ids {
        // One that has ended between the two reads is not held any more.
        held.extend(one(db, &id)?.filter(|one| one.status == WithdrawalStatus::Held));
    }
    Ok(held)
}

const fn short(balance: i64) -> HoldOutcome {
    HoldOutcome::Decided(WithdrawalOutcome::Short { balance })
}

/// One movement of a withdrawal.
struct JournalEntry<'a> {
    withdrawal: &'a str,
    kind: i64,
    user_id: i64,
    bonus_type: i64,
    amount: i64,
    /// The transfer before it on the user's account; 0 where the account does not move.
    prev: i64,
    time_ms: i64,
}

impl SqliteTx<'_> {
    pub(crate) fn hold_one(
        &mut self,
        (asked, payer): Held<'_>,
        time_ms: i64,
    ) -> Result<HoldOutcome, LedgerError> {
        check((asked, payer))?;
        let Withdrawal { ref id, user_id, amount, .. } = *asked;
        let db = &self.ledger.db;
        if let Some((stored, _)) = find(db, id)? {
            return Ok(stored.answer(asked));
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
        db.prepare_cached(
            "INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, NULL)",
        )?
        .execute(params![id, user_id, bonus_type, amount, WithdrawalStatus::Held.code(), payer, time_ms])?;
        self.move_user(bonus_type, user_id, -amount)?;
        self.add(CLEARING, bonus_type, amount)?;
        self.record(&JournalEntry {
            withdrawal: id,
            kind: HOLD,
            user_id,
            bonus_type,
            amount,
            prev,
            time_ms,
        })?;
        Ok(HoldOutcome::Held)
    }

    pub(crate) fn end_one(&mut self, id: &str, end: End<'_>, time_ms: i64) -> Result<Finish, LedgerError> {
        let db = &self.ledger.db;
        let Some((stored, bonus_type)) = find(db, id)? else {
            return Ok(Finish::Unknown);
        };
        let finish = end.finish(stored.status);
        if finish != Finish::Done {
            return Ok(finish);
        }
        let Withdrawal { user_id, amount, .. } = stored.withdrawal;
        db.prepare_cached("UPDATE withdrawals SET status = ?2, reason = ?3, decided_ms = ?4 WHERE id = ?1")?
            .execute(params![id, end.status().code(), end.reason(), time_ms])?;
        self.add(CLEARING, bonus_type, -amount)?;
        let prev = match end {
            End::Paid => {
                self.add(PAYOUT, bonus_type, amount)?;
                0
            }
            End::Refused(_) => {
                let prev = db
                    .prepare_cached(
                        "SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
                    )?
                    .query_row([USER, bonus_type, user_id], |row| row.get(0))?;
                self.move_user(bonus_type, user_id, amount)?;
                prev
            }
        };
        self.record(&JournalEntry {
            withdrawal: id,
            kind: end.kind(),
            user_id,
            bonus_type,
            amount,
            prev,
            time_ms,
        })?;
        Ok(Finish::Done)
    }

    /// Moves a user's account by the movement that is recorded next. The table's CHECK keeps it from
    /// going below 0.
    fn move_user(&self, bonus_type: i64, user_id: i64, amount: i64) -> Result<(), LedgerError> {
        let changed = self
            .ledger
            .db
            .prepare_cached(
                "UPDATE accounts SET balance = balance + ?4, last = ?5 \
                 WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
            )?
            .execute([USER, bonus_type, user_id, amount, self.next_transfer])?;
        if changed == 1 {
            Ok(())
        } else {
            Err(LedgerError::Damaged(format!("the account of user {user_id} is missing")))
        }
    }

    fn add(&self, kind: i64, bonus_type: i64, amount: i64) -> Result<(), LedgerError> {
        self.ledger.db.prepare_cached(transfers::ADD)?.execute([kind, bonus_type, 0, amount, 0])?;
        Ok(())
    }

    fn record(&mut self, one: &JournalEntry<'_>) -> Result<(), LedgerError> {
        let JournalEntry { withdrawal, kind, user_id, bonus_type, amount, prev, time_ms } = *one;
        self.ledger
            .db
            .prepare_cached(
                "INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                self.next_transfer,
                withdrawal,
                kind,
                user_id,
                bonus_type,
                amount,
                prev,
                time_ms
            ])?;
        self.next_transfer += 1;
        Ok(())
    }
}
