//! Withdrawals: from a user's account to clearing, then to payout or back.
//!
//! READ COMMITTED suffices. The unique index on the id decides who holds a withdrawal; the users' accounts are then
//! locked, in the order of their keys, and what a lock has waited for is what it reads; one that ends is locked by
//! its row. Clearing and payout accounts are written last, with the commit, each writer on rows of its own.

use super::programs::{cell, text};
use super::session::Session;
use super::tx::PgTx;
use crate::error::LedgerError;
use crate::model::Finish;
use crate::reconcile::{CLEARING, PAYOUT};
use crate::withdrawal::{End, HOLD, HoldOutcome, RETURN, StoredWithdrawal, Withdrawal, WithdrawalStatus};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_postgres::Row;

const READ: &str = "SELECT w.id, w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
    FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.id = ANY($1)";
const LOCK: &str = "SELECT w.id, w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
    FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.id = ANY($1) ORDER BY w.id FOR NO KEY UPDATE OF w";
const HELD: &str = "SELECT w.id, w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
    FROM withdrawals w JOIN names n ON n.id = w.asset \
    WHERE w.status = 0 AND w.created_ms < $1 AND w.id > $2 ORDER BY w.id LIMIT $3";
const INSERT: &str = "INSERT INTO withdrawals (id, user_id, asset, amount, created_ms, payer, status, reason) \
    SELECT w.*, $7::smallint, '' \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) AS w \
    ON CONFLICT (id) DO NOTHING RETURNING id";
const LOCK_ACCOUNTS: &str = "SELECT a.asset, a.holder, a.balance, a.last FROM accounts a \
    JOIN unnest($1::bigint[], $2::bigint[]) AS w(asset, holder) ON a.asset = w.asset AND a.holder = w.holder \
    WHERE a.kind = 0 ORDER BY a.asset, a.holder FOR NO KEY UPDATE OF a";
const MOVE_ACCOUNTS: &str = "UPDATE accounts a SET balance = w.balance, before = a.last, last = w.last \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(asset, holder, balance, last) \
    WHERE a.kind = 0 AND a.asset = w.asset AND a.holder = w.holder";
const RECORD: &str = "INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], \
    $7::bigint[], $8::bigint[])";

/// One and the number of its asset.
type Found = (StoredWithdrawal, i64);

fn stored(row: &Row) -> Result<Found, LedgerError> {
    let id = text(row, 0)?.to_owned();
    let status = WithdrawalStatus::of_code(i64::from(cell::<i16>(row, 4)?))
        .ok_or_else(|| LedgerError::Damaged(format!("withdrawal {id} has an unknown status")))?;
    let stored = StoredWithdrawal {
        id,
        user_id: cell(row, 1)?,
        asset: cell(row, 2)?,
        amount: cell(row, 3)?,
        status,
        reason: cell(row, 5)?,
        payer: cell(row, 9)?,
        created_ms: cell(row, 6)?,
        decided_ms: cell(row, 7)?,
    };
    Ok((stored, cell(row, 8)?))
}

fn read(session: &Session, sql: &'static str, ids: &[&str]) -> Result<HashMap<String, Found>, LedgerError> {
    // PostgreSQL holds no NUL, so no such id is stored.
    let ids: Vec<&str> = ids.iter().copied().filter(|id| !id.contains('\0')).collect();
    let rows = session.query(sql, &[&ids])?;
    rows.iter()
        .map(|row| {
            let found = stored(row)?;
            Ok((found.0.id.clone(), found))
        })
        .collect()
}

pub(crate) fn one(session: &Session, id: &str) -> Result<Option<StoredWithdrawal>, LedgerError> {
    Ok(read(session, READ, &[id])?.remove(id).map(|(stored, _)| stored))
}

/// Held ones, by id.
pub(crate) fn held(
    session: &Session,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let rows = session.query(HELD, &[&before_ms, &after, &i64::from(limit)])?;
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// Accounts of users that this transaction has locked, and what it moves them by.
struct Accounts {
    /// By asset and user: balance, last transfer.
    accounts: BTreeMap<(i64, i64), (i64, i64)>,
    moved: BTreeSet<(i64, i64)>,
}

impl Accounts {
    fn lock(session: &Session, keys: &BTreeSet<(i64, i64)>) -> Result<Self, LedgerError> {
        let mut accounts = BTreeMap::new();
        if !keys.is_empty() {
            let column = |of: fn(&(i64, i64)) -> i64| keys.iter().map(of).collect::<Vec<i64>>();
            for row in &session.query(LOCK_ACCOUNTS, &[&column(|key| key.0), &column(|key| key.1)])? {
                accounts.insert((cell(row, 0)?, cell(row, 1)?), (cell(row, 2)?, cell(row, 3)?));
            }
        }
        Ok(Self { accounts, moved: BTreeSet::new() })
    }

    fn balance(&self, key: (i64, i64)) -> i64 {
        self.accounts.get(&key).map_or(0, |(balance, _)| *balance)
    }

    /// Moves one by the transfer of this number. Answers the transfer before it.
    fn add(&mut self, key: (i64, i64), amount: i64, transfer: i64) -> Result<i64, LedgerError> {
        let missing = || LedgerError::Damaged(format!("the account of user {} is missing", key.1));
        let (balance, last) = self.accounts.get_mut(&key).ok_or_else(missing)?;
        *balance = balance
            .checked_add(amount)
            .ok_or_else(|| LedgerError::Invalid("a balance is beyond 64 bits".into()))?;
        self.moved.insert(key);
        Ok(std::mem::replace(last, transfer))
    }

    /// They are locked, so what was read is still so. The table's CHECK sees each of them never below 0.
    fn write(&self, session: &Session) -> Result<(), LedgerError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let (mut assets, mut users, mut balances, mut lasts) = (vec![], vec![], vec![], vec![]);
        for (key, (balance, last)) in self.accounts.iter().filter(|(key, _)| self.moved.contains(*key)) {
            assets.push(key.0);
            users.push(key.1);
            balances.push(*balance);
            lasts.push(*last);
        }
        let changed = session.execute(MOVE_ACCOUNTS, &[&assets, &users, &balances, &lasts])?;
        if usize::try_from(changed) == Ok(assets.len()) {
            return Ok(());
        }
        Err(LedgerError::Damaged("accounts that are locked have vanished".into()))
    }
}

/// Movements of withdrawals, written as one.
#[derive(Default)]
struct Records<'a> {
    ids: Vec<i64>,
    withdrawals: Vec<&'a str>,
    kinds: Vec<i16>,
    users: Vec<i64>,
    assets: Vec<i64>,
    amounts: Vec<i64>,
    prevs: Vec<i64>,
    times: Vec<i64>,
}

impl Records<'_> {
    fn write(&self, session: &Session) -> Result<(), LedgerError> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let Self { ids, withdrawals, kinds, users, assets, amounts, prevs, times } = self;
        session.execute(RECORD, &[ids, withdrawals, kinds, users, assets, amounts, prevs, times]).map(drop)
    }
}

fn small(code: i64) -> i16 {
    i16::try_from(code).unwrap_or(i16::MAX)
}

impl PgTx<'_> {
    pub(super) fn hold_all(&mut self, batch: &[Withdrawal<'_>]) -> Result<Vec<HoldOutcome>, LedgerError> {
        batch.iter().try_for_each(Withdrawal::check)?;
        let ids: BTreeSet<&str> = batch.iter().map(|asked| asked.id).collect();
        if ids.len() == batch.len() {
            return self.hold_distinct(batch);
        }
        // One that was too large may come again, smaller, within the batch: one by one.
        let each = batch.chunks(1).map(|one| self.hold_distinct(one));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn hold_distinct(&mut self, batch: &[Withdrawal<'_>]) -> Result<Vec<HoldOutcome>, LedgerError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        // What this transaction credited before counts.
        self.moves.flush(self.session)?;
        let assets = self.assets(batch)?;
        let new = self.insert_held(batch, &assets)?;
        let old: Vec<&str> =
            batch.iter().zip(&new).filter(|(_, new)| !**new).map(|(asked, _)| asked.id).collect();
        let stored = if old.is_empty() { HashMap::new() } else { read(self.session, READ, &old)? };
        let key = |asked: &Withdrawal<'_>| assets.get(asked.asset).map(|asset| (*asset, asked.user_id));
        let keys =
            batch.iter().zip(&new).filter(|(_, new)| **new).filter_map(|(asked, _)| key(asked)).collect();
        let mut accounts = Accounts::lock(self.session, &keys)?;
        let (mut outcomes, mut records, mut short) =
            (Vec::with_capacity(batch.len()), Records::default(), Vec::new());
        for (asked, new) in batch.iter().zip(new) {
            let Withdrawal { id, user_id, amount, time_ms, .. } = *asked;
            let Some(key) = key(asked).filter(|_| new) else {
                // Nobody has anything of an asset that no order named.
                let answer = stored.get(id).map(|(stored, _)| stored.answer(asked));
                if answer.is_none() && assets.contains_key(asked.asset) {
                    return Err(LedgerError::Damaged(format!("withdrawal {id} was there, and has vanished")));
                }
                outcomes.push(answer.unwrap_or(HoldOutcome::Short { balance: 0 }));
                continue;
            };
            let balance = accounts.balance(key);
            if balance < amount {
                short.push(id);
                outcomes.push(HoldOutcome::Short { balance });
                continue;
            }
            let transfer = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
            let prev = accounts.add(key, -amount, transfer)?;
            self.moves.add_other(CLEARING, key.0, amount)?;
            records.push(transfer, id, HOLD, user_id, key.0, amount, prev, time_ms);
            outcomes.push(HoldOutcome::Held);
        }
        if !short.is_empty() {
            self.session.execute("DELETE FROM withdrawals WHERE id = ANY($1)", &[&short])?;
        }
        accounts.write(self.session)?;
        records.write(self.session)?;
        Ok(outcomes)
    }

    /// Numbers of the assets that are known.
    fn assets<'a>(&self, batch: &[Withdrawal<'a>]) -> Result<HashMap<&'a str, i64>, LedgerError> {
        let names: BTreeSet<&str> = batch.iter().map(|asked| asked.asset).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let rows = self.session.query("SELECT name, id FROM names WHERE name = ANY($1)", &[&names])?;
        let mut found = HashMap::new();
        for row in &rows {
            let name = text(row, 0)?;
            if let Some(asked) = batch.iter().find(|asked| asked.asset == name) {
                found.insert(asked.asset, cell(row, 1)?);
            }
        }
        Ok(found)
    }

    /// Inserts those that are new as held, in the order of their ids, so that two writers that share several wait
    /// in one direction. Answers which are new. Those of assets that are not known are not tried.
    fn insert_held(
        &self,
        batch: &[Withdrawal<'_>],
        assets: &HashMap<&str, i64>,
    ) -> Result<Vec<bool>, LedgerError> {
        let mut known: Vec<(&Withdrawal<'_>, i64)> =
            batch.iter().filter_map(|asked| Some((asked, *assets.get(asked.asset)?))).collect();
        known.sort_unstable_by_key(|(asked, _)| asked.id);
        let ids: Vec<&str> = known.iter().map(|(asked, _)| asked.id).collect();
        let users: Vec<i64> = known.iter().map(|(asked, _)| asked.user_id).collect();
        let own: Vec<i64> = known.iter().map(|(_, asset)| *asset).collect();
        let amounts: Vec<i64> = known.iter().map(|(asked, _)| asked.amount).collect();
        let times: Vec<i64> = known.iter().map(|(asked, _)| asked.time_ms).collect();
        let payers: Vec<&str> = known.iter().map(|(asked, _)| asked.payer).collect();
        let held = small(WithdrawalStatus::Held.code());
        let rows = self.session.query(INSERT, &[&ids, &users, &own, &amounts, &times, &payers, &held])?;
        let new = rows.iter().map(|row| text(row, 0)).collect::<Result<BTreeSet<&str>, _>>()?;
        Ok(batch.iter().map(|asked| new.contains(asked.id)).collect())
    }

    /// Ends held withdrawals: one answer an id, repeats as if they came one after another.
    pub(super) fn end_all(
        &mut self,
        ends: &[(&str, End<'_>)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        self.moves.flush(self.session)?;
        let ids: BTreeSet<&str> = ends.iter().map(|(id, _)| *id).collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        let mut stored = read(self.session, LOCK, &ids)?;
        let back = ends.iter().filter(|(_, end)| end.kind() == RETURN);
        let keys =
            back.filter_map(|(id, _)| stored.get(*id)).map(|(one, asset)| (*asset, one.user_id)).collect();
        let mut accounts = Accounts::lock(self.session, &keys)?;
        let (mut done, mut records) = (Vec::with_capacity(ends.len()), Records::default());
        let (mut changed, mut statuses, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for (id, end) in ends {
            let Some((one, asset)) = stored.get_mut(*id) else {
                done.push(Finish::Unknown);
                continue;
            };
            let finish = end.finish(one.status);
            done.push(finish);
            if finish != Finish::Done {
                continue;
            }
            one.status = end.status();
            let transfer = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
            self.moves.add_other(CLEARING, *asset, -one.amount)?;
            let prev = match end {
                End::Paid => {
                    self.moves.add_other(PAYOUT, *asset, one.amount)?;
                    0
                }
                End::Refused(_) => accounts.add((*asset, one.user_id), one.amount, transfer)?,
            };
            records.push(transfer, id, end.kind(), one.user_id, *asset, one.amount, prev, time_ms);
            changed.push(*id);
            statuses.push(small(end.status().code()));
            // Text of a downstream, which may be anything; PostgreSQL holds no NUL.
            reasons.push(end.reason().replace('\0', "\u{fffd}"));
        }
        if changed.is_empty() {
            return Ok(done);
        }
        self.session.execute(
            "UPDATE withdrawals w SET status = v.status, reason = v.reason, decided_ms = $4::bigint \
             FROM unnest($1::text[], $2::smallint[], $3::text[]) AS v(id, status, reason) WHERE w.id = v.id",
            &[&changed, &statuses, &reasons, &time_ms],
        )?;
        accounts.write(self.session)?;
        records.write(self.session)?;
        Ok(done)
    }
}

impl<'a> Records<'a> {
    #[allow(clippy::too_many_arguments)] // a row's columns
    fn push(
        &mut self,
        id: i64,
        withdrawal: &'a str,
        kind: i64,
        user_id: i64,
        asset: i64,
        amount: i64,
        prev: i64,
        time_ms: i64,
    ) {
        self.ids.push(id);
        self.withdrawals.push(withdrawal);
        self.kinds.push(small(kind));
        self.users.push(user_id);
        self.assets.push(asset);
        self.amounts.push(amount);
        self.prevs.push(prev);
        self.times.push(time_ms);
    }
}
