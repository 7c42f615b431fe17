//! Withdrawals: from a user's account to clearing, then to payout or back.

use super::state::SqliteTx;
use super::{acts, transfers};
use crate::error::LedgerError;
use crate::journal::{Entry, Payout, USER};
use crate::model::Finish;
use crate::withdrawal::{End, Held, HoldOutcome, StoredWithdrawal, WithdrawalStatus, check};
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
        if acts::frozen(db, user_id)?.is_some() {
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
        db.prepare_cached(
            "INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, NULL)",
        )?
        .execute(params![id, user_id, bonus_type, amount, WithdrawalStatus::Held.code(), payer, time_ms])?;
        let payout = Payout { withdrawal: id, user_id, asset: bonus_type, amount };
        let entry = payout.hold(self.number(), prev, time_ms);
        self.record(&entry)?;
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
        let payout = Payout { withdrawal: id, user_id, asset: bonus_type, amount };
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

    /// Appends a movement and moves its accounts. A user's account must be there, and the table's CHECK keeps it from
    /// going below 0.
    pub(super) fn record(&self, entry: &Entry<'_>) -> Result<(), LedgerError> {
        let db = &self.ledger.db;
        if let Some(user_id) = entry.user {
            let changed = db
                .prepare_cached(
                    "UPDATE accounts SET balance = balance + ?4, last = ?5 \
                     WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
                )?
                .execute([USER, entry.asset, user_id, entry.change_of(USER), entry.id])?;
            if changed != 1 {
                return Err(LedgerError::Damaged(format!("the account of user {user_id} is missing")));
            }
        }
        for (account, change) in entry.others() {
            let own = [account.kind, entry.asset, account.holder, change, 0];
            db.prepare_cached(transfers::ADD)?.execute(own)?;
        }
        transfers::insert(db, std::slice::from_ref(entry))
    }
}
