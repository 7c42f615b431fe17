//! Withdrawals: from a user's account to clearing, then to payout or back.
//!
//! READ COMMITTED suffices. The unique index on the key decides which writer holds a withdrawal; the users' accounts are
//! then locked, in the order of their keys, and what a lock has waited for is what it reads; one that ends is locked by
//! its row. Clearing and payout accounts are written last, with the commit, each writer on rows of its own.

use super::act_tables;
use super::budget_keys::{cell, text};
use super::session::Session;
use super::shape::Shape;
use super::state::PgTx;
use super::transfers::Rows;
use crate::error::LedgerError;
use crate::held::HeldByTime;
use crate::journal::Payout;
use crate::key::{WithdrawalId, is_number, keys_of, number_of};
use crate::model::Finish;
use crate::withdrawal::{
    End, Held, HeldFor, HoldOutcome, StoredWithdrawal, WithdrawalStatus, bare_payer_key, check, id_of,
    payer_key,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use windfall_contract::accounts::{Withdrawal, WithdrawalOutcome};

/// A statement that reads withdrawals with their columns as [`stored`] takes them, from its condition on.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT w.withdrawal_key, w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, \
             w.payer, w.payer_key FROM withdrawals w JOIN names n ON n.id = w.asset WHERE ",
            $rest
        )
    };
}
const READ: &str = select!("w.withdrawal_key = ANY($1)");
const LOCK: &str = select!("w.withdrawal_key = ANY($1) ORDER BY w.withdrawal_key FOR NO KEY UPDATE OF w");
const HELD: &str = select!(
    "w.status = 0 AND w.created_ms < $1 AND w.withdrawal_key > $2 ORDER BY w.withdrawal_key LIMIT $3"
);
// Status and payer stand in these as in the indexes, which a parameter would not match.
const HELD_FOR_DOWNSTREAM: &str = select!(
    "w.status = 0 AND w.payer <> 'front end' AND w.created_ms < $1 AND w.withdrawal_key > $2 \
     ORDER BY w.withdrawal_key LIMIT $3"
);
const HELD_FOR_FRONT_END: &str = select!(
    "w.status = 0 AND w.payer = 'front end' AND w.created_ms < $1 AND w.withdrawal_key > $2 \
     ORDER BY w.withdrawal_key LIMIT $3"
);
const HELD_OLDEST: &str = select!(
    "w.status = 0 AND w.created_ms >= $1 AND w.created_ms < $2 AND (w.created_ms, w.withdrawal_key) > ($3, $4) \
     ORDER BY w.created_ms, w.withdrawal_key LIMIT $5"
);
const HELD_NEWEST: &str = select!(
    "w.status = 0 AND w.created_ms >= $1 AND w.created_ms < $2 AND (w.created_ms, w.withdrawal_key) < ($3, $4) \
     ORDER BY w.created_ms DESC, w.withdrawal_key DESC LIMIT $5"
);
const OF_ID: &str = select!(
    "w.withdrawal_key = $1 OR (w.withdrawal_key >= $2 AND w.withdrawal_key < $3) ORDER BY w.withdrawal_key"
);
/// Before version 6, where an id alone is the key.
const INSERT: &str = "INSERT INTO withdrawals \
    (withdrawal_key, user_id, asset, amount, created_ms, payer, status, reason) SELECT w.*, $7::smallint, '' \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) AS w \
    ON CONFLICT (withdrawal_key) DO NOTHING RETURNING withdrawal_key";
/// A withdrawal of this user may be stored under its id alone (I1). Nobody makes such rows any more, so they are all seen.
const INSERT_KEYED: &str = "INSERT INTO withdrawals \
    (withdrawal_key, user_id, asset, amount, created_ms, payer, status, reason, payer_key) \
    SELECT w.key, w.user_id, w.asset, w.amount, w.created_ms, w.payer, $7::smallint, '', w.payer_key \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $8::text[], $9::text[]) \
    AS w(key, user_id, asset, amount, created_ms, payer, payer_key, id) \
    WHERE (SELECT l.user_id = w.user_id FROM withdrawals l WHERE l.withdrawal_key = w.id) IS NOT TRUE \
    ON CONFLICT (withdrawal_key) DO NOTHING RETURNING withdrawal_key";
const LOCK_ACCOUNTS: &str = "SELECT a.asset, a.holder, a.balance, a.last FROM accounts a \
    JOIN unnest($1::bigint[], $2::bigint[]) AS w(asset, holder) ON a.asset = w.asset AND a.holder = w.holder \
    WHERE a.kind = 0 ORDER BY a.asset, a.holder FOR NO KEY UPDATE OF a";
const MOVE_ACCOUNTS: &str = "UPDATE accounts a SET balance = w.balance, before = a.last, last = w.last \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(asset, holder, balance, last) \
    WHERE a.kind = 0 AND a.asset = w.asset AND a.holder = w.holder";
/// A stored withdrawal and the number of its bonus type.
type Found = (StoredWithdrawal, i64);

fn stored(row: &Row) -> Result<Found, LedgerError> {
    let (key, payer_key) = (text(row, 0)?.to_owned(), text(row, 10)?);
    let status = WithdrawalStatus::of_code(i64::from(cell::<i16>(row, 4)?))
        .ok_or_else(|| LedgerError::Damaged(format!("withdrawal {key} has an unknown status")))?;
    let id = number_of(&key).to_owned();
    let payer_key = if payer_key.is_empty() { bare_payer_key(&id) } else { payer_key.to_owned() };
    let withdrawal =
        Withdrawal { id, user_id: cell(row, 1)?, bonus_type: cell(row, 2)?, amount: cell(row, 3)? };
    let stored = StoredWithdrawal {
        key,
        payer_key,
        withdrawal,
        status,
        reason: cell(row, 5)?,
        payer: cell(row, 9)?,
        created_ms: cell(row, 6)?,
        decided_ms: cell(row, 7)?,
    };
    Ok((stored, cell(row, 8)?))
}

/// The key that a withdrawal has in tables of this shape, if it is held there: its id alone before version 6.
fn key_of<'a>(shape: Shape, id: WithdrawalId<'a>) -> Cow<'a, str> {
    match shape {
        Shape::Keyed => id.key().into(),
        Shape::Three | Shape::Journal => id.id.into(),
    }
}

/// Reads withdrawals, under whichever key they are stored, by user and id.
fn read(
    session: &Session,
    sql: &'static str,
    ids: &[WithdrawalId<'_>],
) -> Result<HashMap<(i64, String), Found>, LedgerError> {
    // PostgreSQL cannot store NUL, so no such id is stored.
    let ids = ids.iter().filter(|id| !id.id.contains('\0'));
    let keys: BTreeSet<Cow<'_, str>> =
        ids.flat_map(|id| [key_of(session.shape(), *id), Cow::Borrowed(id.id)]).collect();
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let rows = session.query(sql, &[&keys])?;
    rows.iter()
        .map(|row| {
            let found = stored(row)?;
            Ok((name(id_of(&found.0.withdrawal)), found))
        })
        .collect()
}

fn name(id: WithdrawalId<'_>) -> (i64, String) {
    (id.user_id, id.id.to_owned())
}

pub(crate) fn one(session: &Session, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
    Ok(read(session, READ, &[id])?.remove(&name(id)).map(|(stored, _)| stored))
}

/// The withdrawals with this id, of every user, in the order of their keys.
pub(super) fn of_id(session: &Session, id: &str) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    if !is_number(id) {
        return Ok(Vec::new());
    }
    let (from, below) = keys_of(id);
    let rows = session.query(OF_ID, &[&id, &from, &below])?;
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// Held withdrawals, by key.
pub(crate) fn held(
    session: &Session,
    which: HeldFor,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let sql = match which {
        HeldFor::Anybody => HELD,
        HeldFor::Downstream => HELD_FOR_DOWNSTREAM,
        HeldFor::FrontEnd => HELD_FOR_FRONT_END,
    };
    let rows = session.query(sql, &[&before_ms, &after, &i64::from(limit)])?;
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// Held withdrawals of all users, by the time at which they were held.
pub(crate) fn by_time(session: &Session, which: &HeldByTime) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let (time_ms, key) = which.place();
    let sql = if which.newest_first { HELD_NEWEST } else { HELD_OLDEST };
    let limit = i64::from(which.limit);
    let rows = session.query(sql, &[&which.from_ms, &which.to_ms, &time_ms, &key, &limit])?;
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// The withdrawals under these keys.
pub(super) fn under(session: &Session, keys: &[String]) -> Result<Vec<StoredWithdrawal>, LedgerError> {
    let rows = session.query(READ, &[&keys])?;
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// The users' accounts that this transaction has locked, and the amounts that it moves them by.
pub(super) struct Accounts {
    /// The balance and the last transfer, by bonus type and user.
    accounts: BTreeMap<(i64, i64), (i64, i64)>,
    moved: BTreeSet<(i64, i64)>,
}

impl Accounts {
    pub fn lock(session: &Session, keys: &BTreeSet<(i64, i64)>) -> Result<Self, LedgerError> {
        let mut accounts = BTreeMap::new();
        if !keys.is_empty() {
            let column = |of: fn(&(i64, i64)) -> i64| keys.iter().map(of).collect::<Vec<i64>>();
            for row in &session.query(LOCK_ACCOUNTS, &[&column(|key| key.0), &column(|key| key.1)])? {
                accounts.insert((cell(row, 0)?, cell(row, 1)?), (cell(row, 2)?, cell(row, 3)?));
            }
        }
        Ok(Self { accounts, moved: BTreeSet::new() })
    }

    pub fn balance(&self, key: (i64, i64)) -> i64 {
        self.accounts.get(&key).map_or(0, |(balance, _)| *balance)
    }

    /// Moves an account by the transfer of this number. Returns the transfer before it.
    pub fn add(&mut self, key: (i64, i64), amount: i64, transfer: i64) -> Result<i64, LedgerError> {
        let missing = || LedgerError::Damaged(format!("the account of user {} is missing", key.1));
        let (balance, last) = self.accounts.get_mut(&key).ok_or_else(missing)?;
        *balance = balance
            .checked_add(amount)
            .ok_or_else(|| LedgerError::Invalid("a balance is beyond 64 bits".into()))?;
        self.moved.insert(key);
        Ok(std::mem::replace(last, transfer))
    }

    /// Writes the accounts. They are locked, so what was read still holds. The table's CHECK keeps each of them from
    /// going below 0.
    pub fn write(&self, session: &Session) -> Result<(), LedgerError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let (mut bonus_types, mut users, mut balances, mut lasts) = (vec![], vec![], vec![], vec![]);
        for (key, (balance, last)) in self.accounts.iter().filter(|(key, _)| self.moved.contains(*key)) {
            bonus_types.push(key.0);
            users.push(key.1);
            balances.push(*balance);
            lasts.push(*last);
        }
        let changed = session.execute(MOVE_ACCOUNTS, &[&bonus_types, &users, &balances, &lasts])?;
        if usize::try_from(changed) == Ok(bonus_types.len()) {
            return Ok(());
        }
        Err(LedgerError::Damaged("accounts that are locked have vanished".into()))
    }
}

const fn short_of(balance: i64) -> HoldOutcome {
    HoldOutcome::Decided(WithdrawalOutcome::Short { balance })
}

fn small(code: i64) -> i16 {
    i16::try_from(code).unwrap_or(i16::MAX)
}

impl PgTx<'_> {
    pub(super) fn hold_all(
        &mut self,
        batch: &[Held<'_>],
        time_ms: i64,
    ) -> Result<Vec<HoldOutcome>, LedgerError> {
        batch.iter().try_for_each(|one| check(*one))?;
        let keys: BTreeSet<Cow<'_, str>> =
            batch.iter().map(|(asked, _)| key_of(self.session.shape(), id_of(asked))).collect();
        if keys.len() == batch.len() {
            return self.hold_distinct(batch, time_ms);
        }
        // One that was too large may come again, smaller, within the batch: one by one.
        let each = batch.chunks(1).map(|one| self.hold_distinct(one, time_ms));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn hold_distinct(&mut self, batch: &[Held<'_>], time_ms: i64) -> Result<Vec<HoldOutcome>, LedgerError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        // What this transaction credited before counts.
        self.transfers.flush(self.session)?;
        let bonus_types = self.bonus_types(batch)?;
        let new = self.insert_held(batch, time_ms, &bonus_types)?;
        let old = batch.iter().zip(&new).filter(|(_, new)| !**new).map(|((asked, _), _)| id_of(asked));
        let stored = self.held_before(&old.collect::<Vec<_>>())?;
        let key = |asked: &Withdrawal| {
            bonus_types.get(asked.bonus_type.as_str()).map(|bonus_type| (*bonus_type, asked.user_id))
        };
        let keys = batch
            .iter()
            .zip(&new)
            .filter(|(_, new)| **new)
            .filter_map(|((asked, _), _)| key(asked))
            .collect();
        let mut accounts = Accounts::lock(self.session, &keys)?;
        let users: BTreeSet<i64> = keys.iter().map(|(_, user_id)| *user_id).collect();
        // Asked under the accounts' locks, so that nobody is frozen in between.
        let frozen = act_tables::frozen(self.session, &users.into_iter().collect::<Vec<_>>())?;
        let is_frozen = |user_id: i64| frozen.iter().any(|(frozen, ..)| *frozen == user_id);
        let (mut outcomes, mut records, mut short) =
            (Vec::with_capacity(batch.len()), Vec::new(), Vec::new());
        for ((asked, _), new) in batch.iter().zip(new) {
            let (user_id, amount, id) = (asked.user_id, asked.amount, id_of(asked));
            let own_key = key_of(self.session.shape(), id);
            let Some(key) = key(asked).filter(|_| new) else {
                // Nobody has anything of a bonus type that no order named.
                let answer = stored.get(&own_key).map(|(stored, _)| stored.answer(asked));
                if answer.is_none() && bonus_types.contains_key(asked.bonus_type.as_str()) {
                    return Err(LedgerError::Damaged(format!(
                        "withdrawal {own_key} was there, and has vanished"
                    )));
                }
                outcomes.push(answer.unwrap_or(short_of(0)));
                continue;
            };
            if is_frozen(user_id) {
                short.push(own_key);
                outcomes.push(HoldOutcome::Decided(WithdrawalOutcome::Frozen));
                continue;
            }
            let balance = accounts.balance(key);
            if balance < amount {
                short.push(own_key);
                outcomes.push(short_of(balance));
                continue;
            }
            let transfer = self.number()?;
            let prev = accounts.add(key, -amount, transfer)?;
            let payout = Payout { key: &own_key, user_id, bonus_type: key.0, amount };
            let entry = payout.hold(transfer, prev, time_ms);
            self.transfers.add_others(&entry)?;
            records.push(entry.into_owned());
            outcomes.push(HoldOutcome::Held);
        }
        if !short.is_empty() {
            let short: Vec<&str> = short.iter().map(|key| &**key).collect();
            self.session.execute("DELETE FROM withdrawals WHERE withdrawal_key = ANY($1)", &[&short])?;
        }
        accounts.write(self.session)?;
        Rows::of(records)?.append(self.session)?;
        Ok(outcomes)
    }

    /// Those that are stored, by the keys that they would have now. Before version 6 one of another user is among them.
    fn held_before<'a>(&self, ids: &[WithdrawalId<'a>]) -> Result<HashMap<Cow<'a, str>, Found>, LedgerError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let (shape, found) = (self.session.shape(), read(self.session, READ, ids)?);
        let mut by_key = HashMap::with_capacity(ids.len());
        for ((user_id, id), one) in found {
            let key = key_of(shape, WithdrawalId { user_id, id: &id }).into_owned();
            by_key.insert(Cow::Owned(key), one);
        }
        Ok(by_key)
    }

    /// The numbers of the bonus types that are known.
    fn bonus_types<'a>(&self, batch: &[Held<'a>]) -> Result<HashMap<&'a str, i64>, LedgerError> {
        let names: BTreeSet<&str> = batch.iter().map(|(asked, _)| asked.bonus_type.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let rows = self.session.query("SELECT name, id FROM names WHERE name = ANY($1)", &[&names])?;
        let mut found = HashMap::new();
        for row in &rows {
            let name = text(row, 0)?;
            if let Some((asked, _)) = batch.iter().find(|(asked, _)| asked.bonus_type == name) {
                found.insert(asked.bonus_type.as_str(), cell(row, 1)?);
            }
        }
        Ok(found)
    }

    /// Inserts those that are new as held, in the order of their keys, so that two writers that share several wait
    /// in one direction. Returns the new ones. Withdrawals of unknown bonus types are not tried.
    fn insert_held<'a>(
        &self,
        batch: &[Held<'a>],
        time_ms: i64,
        bonus_types: &HashMap<&str, i64>,
    ) -> Result<Vec<bool>, LedgerError> {
        let bonus_type = |asked: &Withdrawal| bonus_types.get(asked.bonus_type.as_str()).copied();
        let shape = self.session.shape();
        let own_key = |asked: &'a Withdrawal| key_of(shape, id_of(asked));
        let mut known: Vec<(&Withdrawal, &str, i64)> =
            batch.iter().filter_map(|(asked, payer)| Some((*asked, *payer, bonus_type(asked)?))).collect();
        known.sort_by_cached_key(|(asked, ..)| own_key(asked));
        let keys: Vec<Cow<'_, str>> = known.iter().map(|(asked, ..)| own_key(asked)).collect();
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let users: Vec<i64> = known.iter().map(|(asked, ..)| asked.user_id).collect();
        let own: Vec<i64> = known.iter().map(|(.., bonus_type)| *bonus_type).collect();
        let amounts: Vec<i64> = known.iter().map(|(asked, ..)| asked.amount).collect();
        let times: Vec<i64> = vec![time_ms; known.len()];
        let payers: Vec<&str> = known.iter().map(|(_, payer, _)| *payer).collect();
        let held = small(WithdrawalStatus::Held.code());
        let params: [&(dyn ToSql + Sync); 7] = [&keys, &users, &own, &amounts, &times, &payers, &held];
        let rows = if shape == Shape::Keyed {
            // I1: the key that its payer is given from now on.
            let given = |asked: &Withdrawal| payer_key(id_of(asked), &self.tenant);
            let payer_keys: Vec<String> = known.iter().map(|(asked, ..)| given(asked)).collect();
            let ids: Vec<&str> = known.iter().map(|(asked, ..)| asked.id.as_str()).collect();
            let more: [&(dyn ToSql + Sync); 2] = [&payer_keys, &ids];
            self.session.query(INSERT_KEYED, &[&params[..], &more[..]].concat())?
        } else {
            self.session.query(INSERT, &params)?
        };
        let new = rows.iter().map(|row| text(row, 0)).collect::<Result<BTreeSet<&str>, _>>()?;
        Ok(batch.iter().map(|(asked, _)| new.contains(&*own_key(asked))).collect())
    }

    /// Ends held withdrawals: one answer for each name, repeats as if they came one after another.
    pub(super) fn end_all(
        &mut self,
        ends: &[(WithdrawalId<'_>, End<'_>)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        self.transfers.flush(self.session)?;
        let ids: Vec<WithdrawalId<'_>> = ends.iter().map(|(id, _)| *id).collect();
        let mut stored = read(self.session, LOCK, &ids)?;
        let back = ends.iter().filter(|(_, end)| matches!(end, End::Refused(_)));
        let keys = back
            .filter_map(|(id, _)| stored.get(&name(*id)))
            .map(|(one, bonus_type)| (*bonus_type, one.withdrawal.user_id))
            .collect();
        let mut accounts = Accounts::lock(self.session, &keys)?;
        let (mut done, mut records) = (Vec::with_capacity(ends.len()), Vec::new());
        let (mut changed, mut statuses, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for (id, end) in ends {
            let Some((one, bonus_type)) = stored.get_mut(&name(*id)) else {
                done.push(Finish::Unknown);
                continue;
            };
            let finish = end.finish(one.status);
            done.push(finish);
            if finish != Finish::Done {
                continue;
            }
            one.status = end.status();
            let Withdrawal { user_id, amount, .. } = one.withdrawal;
            let transfer = self.number()?;
            let payout = Payout { key: &one.key, user_id, bonus_type: *bonus_type, amount };
            let entry = match end {
                End::Paid => payout.pay(transfer, time_ms),
                End::Refused(_) => {
                    let prev = accounts.add((*bonus_type, user_id), amount, transfer)?;
                    payout.give_back(transfer, prev, time_ms)
                }
            };
            self.transfers.add_others(&entry)?;
            records.push(entry.into_owned());
            changed.push(one.key.clone());
            statuses.push(small(end.status().code()));
            // Text of a downstream, which may be anything; PostgreSQL holds no NUL.
            reasons.push(end.reason().replace('\0', "\u{fffd}"));
        }
        if changed.is_empty() {
            return Ok(done);
        }
        self.session.execute(
            "UPDATE withdrawals w SET status = v.status, reason = v.reason, decided_ms = $4::bigint \
             FROM unnest($1::text[], $2::smallint[], $3::text[]) AS v(withdrawal_key, status, reason) \
             WHERE w.withdrawal_key = v.withdrawal_key",
            &[&changed, &statuses, &reasons, &time_ms],
        )?;
        accounts.write(self.session)?;
        Rows::of(records)?.append(self.session)?;
        Ok(done)
    }
}
