//! Withdrawals: from a user's account to clearing, then to payout or back.

use super::moves;
use super::tx::SqliteTx;
use crate::error::LedgerError;
use crate::model::Finish;
use crate::reconcile::{CLEARING, PAYOUT, USER};
use crate::withdrawal::{End, HOLD, HoldOutcome, StoredWithdrawal, Withdrawal, WithdrawalStatus};
use rusqlite::{Connection, OptionalExtension, params};

/// Reads one, and the number of its asset.
fn find(db: &Connection, id: &str) -> Result<Option<(StoredWithdrawal, i64)>, LedgerError> {
    let read = db
        .prepare_cached(
            "SELECT w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
             FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.id = ?1",
        )?
        .query_row([id], |row| {
            let status = WithdrawalStatus::of_code(row.get(3)?);
            let stored = StoredWithdrawal {
                id: id.to_owned(),
                user_id: row.get(0)?,
                asset: row.get(1)?,
                amount: row.get(2)?,
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
        Some((stored, asset, true)) => Ok(Some((stored, asset))),
        None => Ok(None),
    }
}

pub(crate) fn one(db: &Connection, id: &str) -> Result<Option<StoredWithdrawal>, LedgerError> {
    Ok(find(db, id)?.map(|(stored, _)| stored))
}

/// Held ones, by id.
pub(crate) fn held(
    db: &Connection,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    // The status as it stands in the index, so that the index serves.
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

/// One movement of a withdrawal.
struct Move<'a> {
    withdrawal: &'a str,
    kind: i64,
    user_id: i64,
    asset: i64,
    amount: i64,
    /// The transfer before it on the user's account; 0 where the account does not move.
    prev: i64,
    time_ms: i64,
}

impl SqliteTx<'_> {
    pub(crate) fn hold_one(&mut self, asked: &Withdrawal<'_>) -> Result<HoldOutcome, LedgerError> {
        asked.check()?;
        let Withdrawal { id, user_id, amount, payer, time_ms, .. } = *asked;
        let db = &self.ledger.db;
        if let Some((stored, _)) = find(db, id)? {
            return Ok(stored.answer(asked));
        }
        let account = db
            .prepare_cached(
                "SELECT a.asset, a.balance, a.last FROM names n JOIN accounts a ON a.asset = n.id \
                 WHERE n.name = ?1 AND a.kind = ?2 AND a.holder = ?3",
            )?
            .query_row(params![asked.asset, USER, user_id], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        let (asset, prev) = match account {
            Some((asset, balance, last)) if balance >= amount => (asset, last),
            Some((_, balance, _)) => return Ok(HoldOutcome::Short { balance }),
            None => return Ok(HoldOutcome::Short { balance: 0 }),
        };
        db.prepare_cached(
            "INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, NULL)",
        )?
        .execute(params![id, user_id, asset, amount, WithdrawalStatus::Held.code(), payer, time_ms])?;
        self.move_user(asset, user_id, -amount)?;
        self.add(CLEARING, asset, amount)?;
        self.record(&Move { withdrawal: id, kind: HOLD, user_id, asset, amount, prev, time_ms })?;
        Ok(HoldOutcome::Held)
    }

    pub(crate) fn end_one(&mut self, id: &str, end: End<'_>, time_ms: i64) -> Result<Finish, LedgerError> {
        let db = &self.ledger.db;
        let Some((stored, asset)) = find(db, id)? else {
            return Ok(Finish::Unknown);
        };
        let finish = end.finish(stored.status);
        if finish != Finish::Done {
            return Ok(finish);
        }
        let StoredWithdrawal { user_id, amount, .. } = stored;
        db.prepare_cached("UPDATE withdrawals SET status = ?2, reason = ?3, decided_ms = ?4 WHERE id = ?1")?
            .execute(params![id, end.status().code(), end.reason(), time_ms])?;
        self.add(CLEARING, asset, -amount)?;
        let prev = match end {
            End::Paid => {
                self.add(PAYOUT, asset, amount)?;
                0
            }
            End::Refused(_) => {
                let prev = db
                    .prepare_cached(
                        "SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
                    )?
                    .query_row([USER, asset, user_id], |row| row.get(0))?;
                self.move_user(asset, user_id, amount)?;
                prev
            }
        };
        self.record(&Move { withdrawal: id, kind: end.kind(), user_id, asset, amount, prev, time_ms })?;
        Ok(Finish::Done)
    }

    /// Moves a user's account by the movement that is recorded next. The table's CHECK sees it never below 0.
    fn move_user(&self, asset: i64, user_id: i64, amount: i64) -> Result<(), LedgerError> {
        let changed = self
            .ledger
            .db
            .prepare_cached(
                "UPDATE accounts SET balance = balance + ?4, last = ?5 \
                 WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
            )?
            .execute([USER, asset, user_id, amount, self.next_transfer])?;
        if changed == 1 {
            Ok(())
        } else {
            Err(LedgerError::Damaged(format!("the account of user {user_id} is missing")))
        }
    }

    fn add(&self, kind: i64, asset: i64, amount: i64) -> Result<(), LedgerError> {
        self.ledger.db.prepare_cached(moves::ADD)?.execute([kind, asset, 0, amount, 0])?;
        Ok(())
    }

    fn record(&mut self, one: &Move<'_>) -> Result<(), LedgerError> {
        let Move { withdrawal, kind, user_id, asset, amount, prev, time_ms } = *one;
        self.ledger
            .db
            .prepare_cached(
                "INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![self.next_transfer, withdrawal, kind, user_id, asset, amount, prev, time_ms])?;
        self.next_transfer += 1;
        Ok(())
    }
}
