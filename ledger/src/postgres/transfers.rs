//! The journal's entries and the balances that they move, gathered over a transaction and written just before its commit:
//! accounts are then locked last, for as short a time as possible, and each once.

use super::budget_keys::cell;
use super::respelled::{ADD, APPEND};
use super::session::Session;
use super::shape::Shape;
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, FUNDING, JournalEntry, SETTLEMENT, USER};
use std::collections::BTreeMap;
use tokio_postgres::types::ToSql;

/// The number of rows of an account that belongs to no user: every payment moves it, so each writer has a row of its
/// own.
const ROWS: u64 = 16;

/// Entries of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    entries: Vec<JournalEntry<'static>>,
    /// The changes of accounts that belong to no user, by bonus type, kind and holder.
    others: BTreeMap<(i64, i64, i64), i64>,
}

/// Entries as columns.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    ids: Vec<i64>,
    kinds: Vec<i16>,
    bonus_types: Vec<i64>,
    debits: Vec<i16>,
    debit_holders: Vec<i64>,
    credits: Vec<i16>,
    credit_holders: Vec<i64>,
    amounts: Vec<i64>,
    prevs: Vec<i64>,
    times: Vec<i64>,
    references: Vec<String>,
}

impl Rows {
    pub fn of(entries: Vec<JournalEntry<'_>>) -> Result<Self, LedgerError> {
        let mut rows = Self::default();
        for one in entries {
            rows.ids.push(one.id);
            rows.kinds.push(small(one.kind.code())?);
            rows.bonus_types.push(one.bonus_type);
            rows.debits.push(small(one.debit.kind)?);
            rows.debit_holders.push(one.debit.holder);
            rows.credits.push(small(one.credit.kind)?);
            rows.credit_holders.push(one.credit.holder);
            rows.amounts.push(one.amount);
            rows.prevs.push(one.prev);
            rows.times.push(one.time_ms);
            rows.references.push(one.reference.into_owned());
        }
        Ok(rows)
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.ids,
            &self.kinds,
            &self.bonus_types,
            &self.debits,
            &self.debit_holders,
            &self.credits,
            &self.credit_holders,
            &self.amounts,
            &self.prevs,
            &self.times,
            &self.references,
        ]
    }

    /// Appends them to the journal; their accounts are moved by the caller.
    pub fn append(&self, session: &Session) -> Result<(), LedgerError> {
        if self.ids.is_empty() {
            return Ok(());
        }
        session.execute(APPEND, &self.params()).map(drop)
    }
}

impl Transfers {
    /// Adds an entry.
    pub fn push(&mut self, entry: JournalEntry<'_>) -> Result<(), LedgerError> {
        self.add_others(&entry)?;
        self.entries.push(entry.into_owned());
        Ok(())
    }

    /// Adds the accounts of an entry that belong to no user. The caller writes its user's account and the entry.
    pub fn add_others(&mut self, entry: &JournalEntry<'_>) -> Result<(), LedgerError> {
        for (account, change) in entry.others() {
            let sum = self.others.entry((entry.bonus_type, account.kind, account.holder)).or_default();
            *sum = sum.checked_add(change).ok_or_else(overflow)?;
        }
        Ok(())
    }

    /// Writes accounts and entries now, for a step that has to see them.
    pub fn flush(&mut self, session: &Session) -> Result<(), LedgerError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        // What belongs to no user stays for the commit: every withdrawal moves it.
        let others = std::mem::take(&mut self.others);
        let rows = std::mem::take(self).write(session)?;
        self.others = others;
        rows.append(session)
    }

    /// Writes accounts and entries, and commits.
    pub fn commit(self, session: &Session) -> Result<(), LedgerError> {
        if self.entries.is_empty() && self.others.values().all(|sum| *sum == 0) {
            return session.commit(None);
        }
        let rows = self.write(session)?;
        if rows.ids.is_empty() {
            return session.commit(None);
        }
        let params = rows.params();
        session.commit(Some((APPEND, &params)))
    }

    /// Writes accounts. Returns the entries to append, in the order of their numbers: the index then grows at its end.
    fn write(mut self, session: &Session) -> Result<Rows, LedgerError> {
        if session.shape() == Shape::Three {
            self.keep_to_three()?;
        }
        // Those of no user's statement come first.
        self.entries.sort_unstable_by_key(|one| (one.user.is_some(), one.bonus_type, one.user, one.id));
        let free = self.entries.partition_point(|one| one.user.is_none());
        let ends = add(session, &self.entries[free..], &self.others)?;
        let groups = self.entries[free..].chunk_by_mut(same_account);
        let mut written = 0;
        for (group, (bonus_type, user, before)) in groups.zip(&ends) {
            let mut prev = *before;
            for one in group {
                // Checked, since a wrong chain would hide transfers from their user.
                if (one.bonus_type, one.user) != (*bonus_type, Some(*user)) {
                    return Err(LedgerError::Damaged("accounts were answered in another order".into()));
                }
                one.prev = std::mem::replace(&mut prev, one.id);
                written += 1;
            }
        }
        if written != self.entries.len() - free {
            return Err(LedgerError::Damaged("an account was not written".into()));
        }
        self.entries.sort_unstable_by_key(|one| one.id);
        Rows::of(self.entries)
    }
}

impl Transfers {
    /// Leaves what version 3 writes: what moves money of orders, from the campaign to the user, whoever paid it. What is
    /// held stands in its orders alone.
    fn keep_to_three(&mut self) -> Result<(), LedgerError> {
        self.entries.retain(|one| one.kind.moves() && one.debit.kind == BUDGET && one.credit.kind != FUNDING);
        self.others.retain(|(_, kind, _), _| *kind != SETTLEMENT);
        for one in &mut self.entries {
            let user = one.user.ok_or_else(|| LedgerError::Sql("a payment has no user".into()))?;
            one.credit = Account::user(user);
            // The statement finds the campaign.
            let sum = self.others.entry((one.bonus_type, FUNDING, one.debit.holder)).or_default();
            *sum = sum.checked_sub(one.amount).ok_or_else(overflow)?;
        }
        Ok(())
    }
}

fn same_account(a: &JournalEntry<'_>, b: &JournalEntry<'_>) -> bool {
    (a.bonus_type, a.user) == (b.bonus_type, b.user)
}

/// Moves every account once. Returns the bonus type, the user and the account's last transfer before this transaction, in
/// the order of the moves.
fn add(
    session: &Session,
    chained: &[JournalEntry<'_>],
    others: &BTreeMap<(i64, i64, i64), i64>,
) -> Result<Vec<(i64, i64, i64)>, LedgerError> {
    let (mut kinds, mut bonus_types, mut holders) = (Vec::new(), Vec::new(), Vec::new());
    let (mut balances, mut lasts) = (Vec::new(), Vec::new());
    let mut users = 0;
    for group in chained.chunk_by(same_account) {
        let Some((last, user)) = group.last().and_then(|last| Some((last, last.user?))) else { continue };
        let sum = group.iter().try_fold(0_i64, |sum, one| sum.checked_add(one.change_of(USER)));
        kinds.push(small(USER)?);
        bonus_types.push(last.bonus_type);
        holders.push(user);
        balances.push(sum.ok_or_else(overflow)?);
        lasts.push(last.id);
        users += 1;
    }
    // Each writer has rows of its own; those that end where they began are left.
    let row = i64::try_from(session.slot() % ROWS).unwrap_or(0);
    for ((bonus_type, kind, holder), sum) in others.iter().filter(|(_, sum)| **sum != 0) {
        // A settlement's holder is its payer, and a campaign's account has one too, so their rows differ by kind.
        let (kind, holder) = match *kind {
            SETTLEMENT => (SETTLEMENT - row, *holder),
            FUNDING => (FUNDING + row, *holder),
            other => (other, 1 + row),
        };
        kinds.push(small(kind)?);
        bonus_types.push(*bonus_type);
        holders.push(holder);
        balances.push(*sum);
        lasts.push(0);
    }
    if kinds.is_empty() {
        return Ok(Vec::new());
    }
    let rows = session.query(ADD, &[&kinds, &bonus_types, &holders, &balances, &lasts])?;
    rows.iter().take(users).map(|row| Ok((cell(row, 0)?, cell(row, 1)?, cell(row, 2)?))).collect()
}

/// A code as it is stored.
pub(crate) fn small(code: i64) -> Result<i16, LedgerError> {
    i16::try_from(code).map_err(|_| overflow())
}

fn overflow() -> LedgerError {
    LedgerError::Invalid("the sum of a batch is beyond 64 bits".into())
}
