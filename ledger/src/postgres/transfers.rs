//! Transfers and the balances that they move, gathered over a transaction and written just before its commit:
//! accounts are then locked last, for as short a time as possible, and each once.

use super::budget_keys::{BudgetKey, cell};
use super::session::Session;
use crate::error::LedgerError;
use crate::reconcile::{FUNDING, USER};
use std::collections::BTreeMap;
use tokio_postgres::types::ToSql;

/// The number of rows of an activity's funding account: every credit moves it, so each writer has a row of its own.
const FUNDING_ROWS: u64 = 16;

/// One credit.
#[derive(Debug)]
struct Transfer {
    id: i64,
    trade_no: String,
    user_id: i64,
    budget_key: i64,
    bonus_type: i64,
    amount: i64,
    time_ms: i64,
}

/// Credits of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    transfers: Vec<Transfer>,
    funding: BTreeMap<(i64, i64), i64>,
    /// Other accounts' movements by bonus type and kind.
    others: BTreeMap<(i64, i64), i64>,
}

/// Transfers as columns.
#[derive(Debug)]
struct Rows {
    ids: Vec<i64>,
    trade_nos: Vec<String>,
    user_ids: Vec<i64>,
    budget_keys: Vec<i64>,
    amounts: Vec<i64>,
    prevs: Vec<i64>,
    times: Vec<i64>,
}

impl Rows {
    fn params(&self) -> [&(dyn ToSql + Sync); 7] {
        let Self { ids, trade_nos, user_ids, budget_keys, amounts, prevs, times } = self;
        [ids, trade_nos, user_ids, budget_keys, amounts, prevs, times]
    }
}

/// Adds to accounts, in the order of their keys, so that writers that share several wait in one direction. The
/// row is locked before `accounts.balance` and `accounts.last` are read, in its latest version, so no other
/// writer's change is overwritten; `before` is the end of the chain to which this transaction's transfers are added.
const ADD: &str = "INSERT INTO accounts (kind, asset, holder, balance, last, before) \
    SELECT w.*, 0 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    before = accounts.last, last = excluded.last RETURNING asset, holder, before";

const TRANSFER: &str = "INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) \
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
    $7::bigint[])";

impl Transfers {
    pub fn push(
        &mut self,
        id: i64,
        trade_no: &str,
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
            trade_no: trade_no.to_owned(),
            user_id,
            budget_key,
            bonus_type,
            amount,
            time_ms,
        });
        Ok(())
    }

    /// Adds to an account of this kind and bonus type that belongs to no user and no campaign.
    pub fn add_other(&mut self, kind: i64, bonus_type: i64, amount: i64) -> Result<(), LedgerError> {
        let sum = self.others.entry((bonus_type, kind)).or_default();
        *sum = sum.checked_add(amount).ok_or_else(overflow)?;
        Ok(())
    }

    /// Writes accounts and transfers now, for a step that has to see them.
    pub fn flush(&mut self, session: &Session) -> Result<(), LedgerError> {
        if self.transfers.is_empty() {
            return Ok(());
        }
        // Clearing and payout stay for the commit: every withdrawal moves them.
        let others = std::mem::take(&mut self.others);
        let rows = std::mem::take(self).write(session)?;
        self.others = others;
        session.execute(TRANSFER, &rows.params()).map(drop)
    }

    /// Writes accounts and transfers, and commits.
    pub fn commit(self, session: &Session) -> Result<(), LedgerError> {
        if self.transfers.is_empty() && self.others.values().all(|sum| *sum == 0) {
            return session.commit(None);
        }
        let rows = self.write(session)?;
        if rows.ids.is_empty() {
            return session.commit(None);
        }
        let params = rows.params();
        session.commit(Some((TRANSFER, &params)))
    }

    /// Writes accounts. Returns the transfers to write, in the order of their numbers: the index then grows at its end.
    fn write(mut self, session: &Session) -> Result<Rows, LedgerError> {
        self.transfers.sort_unstable_by_key(|one| (one.bonus_type, one.user_id, one.id));
        let ends = self.add(session)?;
        let mut prevs = Vec::with_capacity(self.transfers.len());
        let groups = self.transfers.chunk_by(|a, b| (a.bonus_type, a.user_id) == (b.bonus_type, b.user_id));
        for (group, (bonus_type, user_id, before)) in groups.zip(ends) {
            // Checked, since a wrong chain would hide transfers from their user.
            if group.iter().any(|one| (one.bonus_type, one.user_id) != (bonus_type, user_id)) {
                return Err(LedgerError::Damaged("accounts were answered in another order".into()));
            }
            prevs.push(before);
            prevs.extend(group.iter().map(|one| one.id).take(group.len() - 1));
        }
        if prevs.len() != self.transfers.len() {
            return Err(LedgerError::Damaged("an account was not written".into()));
        }
        let mut chained: Vec<(Transfer, i64)> = self.transfers.into_iter().zip(prevs).collect();
        chained.sort_unstable_by_key(|(one, _)| one.id);
        let column = |of: fn(&Transfer) -> i64| chained.iter().map(|(one, _)| of(one)).collect::<Vec<i64>>();
        Ok(Rows {
            ids: column(|one| one.id),
            user_ids: column(|one| one.user_id),
            budget_keys: column(|one| one.budget_key),
            amounts: column(|one| one.amount),
            prevs: chained.iter().map(|(_, prev)| *prev).collect(),
            times: column(|one| one.time_ms),
            trade_nos: chained.into_iter().map(|(one, _)| one.trade_no).collect(),
        })
    }

    /// Moves every account once. Returns the bonus type, the user and the account's last transfer before this
    /// transaction, in the order of the moves.
    fn add(&self, session: &Session) -> Result<Vec<(i64, i64, i64)>, LedgerError> {
        let small = |kind: i64| i16::try_from(kind).map_err(|_| overflow());
        let (mut kinds, mut bonus_types, mut holders) = (Vec::new(), Vec::new(), Vec::new());
        let (mut balances, mut lasts) = (Vec::new(), Vec::new());
        let mut users = 0;
        for group in self.transfers.chunk_by(|a, b| (a.bonus_type, a.user_id) == (b.bonus_type, b.user_id)) {
            let Some(last) = group.last() else { continue };
            let sum = group.iter().try_fold(0_i64, |sum, one| sum.checked_add(one.amount));
            kinds.push(small(USER)?);
            bonus_types.push(last.bonus_type);
            holders.push(last.user_id);
            balances.push(sum.ok_or_else(overflow)?);
            lasts.push(last.id);
            users += 1;
        }
        let row = FUNDING + i64::try_from(session.slot() % FUNDING_ROWS).unwrap_or(0);
        for ((bonus_type, activity), paid) in &self.funding {
            kinds.push(small(row)?);
            bonus_types.push(*bonus_type);
            holders.push(*activity);
            balances.push(-paid);
            lasts.push(0);
        }
        // Each writer has rows of its own, as with the campaigns' accounts; those that end where they began are left.
        for ((bonus_type, kind), sum) in self.others.iter().filter(|(_, sum)| **sum != 0) {
            kinds.push(small(*kind)?);
            bonus_types.push(*bonus_type);
            holders.push(row);
            balances.push(*sum);
            lasts.push(0);
        }
        let rows = session.query(ADD, &[&kinds, &bonus_types, &holders, &balances, &lasts])?;
        rows.iter().take(users).map(|row| Ok((cell(row, 0)?, cell(row, 1)?, cell(row, 2)?))).collect()
    }
}

fn overflow() -> LedgerError {
    LedgerError::Invalid("the sum of a batch is beyond 64 bits".into())
}
