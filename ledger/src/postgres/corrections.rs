//! Corrections: many orders taken back in one transaction, with a handful of statements.
//!
//! Orders are read where they lie, page after page of their table, so that no index of activities is needed and a pass over all
//! of them is a sequential read. What is locked is locked in the order of everybody: orders by key, then budgets, then accounts.

use super::act_tables::are_there;
use super::acts::TRY_LOCK;
use super::budget_keys::{cell, text};
use super::budgets;
use super::link::Link;
use super::places::{Place, end};
use super::session::Session;
use super::shape::spell_check;
use super::state::PgTx;
use super::transfers::{Rows, small};
use super::withdrawals::Accounts;
use crate::acts::decision::part;
use crate::acts::model::{ActEnd, ActOutcome, Operator, StoredAct};
use crate::acts::perform::to_json;
use crate::acts::selection::{Selection, Survey, Totals};
use crate::acts::steps::{CorrectionReads, CorrectionSteps, Part, Payment, Transfer, TransferOutcome};
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, JournalEntry, USER};
use crate::model::{CREDITED, RESERVED};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The pages of the orders' table that one statement reads: 128 KiB, some 1,500 orders.
const PAGES: u32 = 16;
/// The statements of one call at most, where few orders fit.
const STATEMENTS: usize = 32;

const BUDGET_KEYS: &str = "SELECT p.id, p.asset FROM programs p JOIN names a ON a.id = p.activity \
    JOIN names b ON b.id = p.asset JOIN names s ON s.id = p.scene \
    WHERE a.name = $1 AND b.name = $2 AND ($3 = '' OR s.name = $3)";
const SELECT: &str = "SELECT o.ctid::text, o.order_key FROM orders o \
    WHERE o.ctid > $1::text::tid AND o.ctid < $2::text::tid AND o.status = $3 AND o.program = ANY($4) \
    AND o.created_ms >= $5 AND o.created_ms < $6 AND o.amount BETWEEN $7 AND $8 \
    AND o.created_ms + coalesce(o.took_ms, 0) < $9 ORDER BY o.ctid LIMIT $10";
const LOCK: &str =
    "SELECT 1 FROM orders o WHERE o.order_key = ANY($1) ORDER BY o.order_key FOR NO KEY UPDATE OF o";
const DECIDED: &str = "SELECT DISTINCT a.subject FROM acts a JOIN act_ends e ON e.act = a.id \
    WHERE a.subject = ANY($1) AND a.kind = 'reverse' AND (e.outcome = $2 OR a.parent = $3)";
const PAYMENTS: &str = "SELECT o.order_key, o.user_id, t.asset, t.debit_holder, t.credit, t.credit_holder, t.amount \
    FROM orders o JOIN transfers t ON t.id = o.paid_by AND t.reference = o.order_key AND t.debit = $2 \
    WHERE o.order_key = ANY($1) AND o.status = $3";
const TOTALS: &str = "SELECT nth, orders, taken, short_orders, short_amount FROM correction_pages \
    WHERE act = $1 ORDER BY nth DESC LIMIT 1";
const INSERT_PAGE: &str = "INSERT INTO correction_pages (act, nth, orders, taken, short_orders, short_amount, operator, actor, \
    time_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const INSERT_PARTS: &str = "INSERT INTO acts (key, nth, kind, subject, deed, reason, evidence, operator, actor, proposed_ms, \
    expires_ms, parent) \
    SELECT w.key, 1, 'reverse', w.subject, w.deed, $4::text, $5::text, $6::text, $7::text, $8::bigint, $8::bigint, $9::bigint \
    FROM unnest($1::text[], $2::text[], $3::text[]) AS w(key, subject, deed) RETURNING id, key";
const INSERT_ENDS: &str = "INSERT INTO act_ends (act, outcome, amount, detail, operator, actor, time_ms) \
    SELECT w.act, w.outcome, w.amount, w.detail, $5::text, $6::text, $7::bigint \
    FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::text[]) AS w(act, outcome, amount, detail)";

/// The budget keys of a selection, and the number of its bonus type.
fn budget_keys(session: &Session, which: &Selection) -> Result<(Vec<i64>, i64), LedgerError> {
    let rows = session.query(BUDGET_KEYS, &[&which.activity, &which.bonus_type, &which.scene])?;
    let ids = rows.iter().map(|row| cell(row, 0)).collect::<Result<Vec<_>, _>>()?;
    let bonus_type = rows.first().map_or(Ok(0), |row| cell(row, 1))?;
    Ok((ids, bonus_type))
}

fn survey_sql(has_acts: bool) -> String {
    let taken_back = if has_acts {
        "EXISTS (SELECT 1 FROM acts c JOIN act_ends e ON e.act = c.id WHERE c.kind = 'reverse' AND e.outcome = 1 \
         AND c.subject = 'order ' || CASE WHEN o.order_key LIKE '% %' THEN o.order_key ELSE o.order_key || ' ' || $9 END)"
    } else {
        "$9 = chr(1)"
    };
    // The offset keeps the look at the acts from being repeated in each of the sums.
    format!(
        "SELECT count(*) FILTER (WHERE fits), coalesce(sum(part) FILTER (WHERE fits), 0)::bigint,
            count(*) FILTER (WHERE is_left AND by_payer),
            count(*) FILTER (WHERE fits AND NOT by_payer AND balance < part),
            coalesce(sum(part - balance) FILTER (WHERE fits AND NOT by_payer AND balance < part), 0)::bigint,
            count(*) FILTER (WHERE status = {CREDITED} AND taken_back), count(*) FILTER (WHERE status = {RESERVED})
         FROM (SELECT *, is_left AND ($10 = 0 OR NOT by_payer) AS fits FROM (
            SELECT *, status = {CREDITED} AND NOT taken_back AS is_left FROM (
                SELECT o.status, o.amount - $10::bigint AS part, o.payer <> '' AS by_payer, coalesce(a.balance, 0) AS balance,
                    o.status = {CREDITED} AND {taken_back} AS taken_back
                FROM orders o LEFT JOIN accounts a ON a.kind = {USER} AND a.asset = $8 AND a.holder = o.user_id
                WHERE o.ctid > $1::text::tid AND o.ctid < $2::text::tid AND o.status IN ({RESERVED}, {CREDITED})
                    AND o.program = ANY($3) AND o.created_ms >= $4 AND o.created_ms < $5 AND o.amount BETWEEN $6 AND $7
                OFFSET 0
            ) AS each) AS own) AS orders"
    )
}

impl CorrectionReads for Link {
    fn survey(&self, which: &Selection, keep: i64, after: &str) -> Result<Survey, LedgerError> {
        let session = self.session()?;
        session.need_journal()?;
        let (mut from, end) = (Place::of(after)?, end(&session, "orders")?);
        let (budget_keys, bonus_type) = budget_keys(&session, which)?;
        let mut sum = Survey::default();
        if budget_keys.is_empty() {
            return Ok(sum);
        }
        let sql = survey_sql(are_there(&session)?);
        let sql = spell_check(session.shape(), &sql);
        let Selection { activity, from_ms, to_ms, min_amount, max_amount, .. } = which;
        for _ in 0..STATEMENTS {
            let (place, below) = (from.to_string(), from.behind(PAGES).to_string());
            let rows = session.query_with(
                &sql,
                &[
                    &place,
                    &below,
                    &budget_keys,
                    from_ms,
                    to_ms,
                    min_amount,
                    max_amount,
                    &bonus_type,
                    activity,
                    &keep,
                ],
            )?;
            let row = rows.first().ok_or_else(|| LedgerError::Sql("a row is missing".into()))?;
            sum.add(&Survey {
                orders: cell(row, 0)?,
                amount: cell(row, 1)?,
                orders_of_payers: cell(row, 2)?,
                short_orders: cell(row, 3)?,
                short_amount: cell(row, 4)?,
                orders_taken_back: cell(row, 5)?,
                orders_reserved: cell(row, 6)?,
                next: None,
            });
            from = from.behind(PAGES);
            if !from.is_before(end) {
                return Ok(sum);
            }
        }
        sum.next = Some(from.to_string());
        Ok(sum)
    }
}

impl CorrectionSteps for PgTx<'_> {
    fn try_lock_act(&mut self, id: i64) -> Result<bool, LedgerError> {
        let rows = self.session.query(TRY_LOCK, &[&id])?;
        rows.first().map_or(Ok(false), |row| cell(row, 0))
    }

    fn select_orders(
        &mut self,
        which: &Selection,
        credited_before_ms: i64,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), LedgerError> {
        let (mut from, end) = (Place::of(after)?, end(self.session, "orders")?);
        let (budget_keys, _) = budget_keys(self.session, which)?;
        if budget_keys.is_empty() {
            return Ok((Vec::new(), None));
        }
        let (credited, most) = (small(CREDITED)?, i64::try_from(limit).unwrap_or(i64::MAX));
        let Selection { from_ms, to_ms, min_amount, max_amount, .. } = which;
        for _ in 0..STATEMENTS {
            let (place, below) = (from.to_string(), from.behind(PAGES).to_string());
            let rows = self.session.query(
                SELECT,
                &[
                    &place,
                    &below,
                    &credited,
                    &budget_keys,
                    from_ms,
                    to_ms,
                    min_amount,
                    max_amount,
                    &credited_before_ms,
                    &most,
                ],
            )?;
            let last = rows.last().map(|row| Place::of(text(row, 0)?)).transpose()?;
            from = last.filter(|_| rows.len() >= limit).unwrap_or_else(|| from.behind(PAGES));
            let next = from.is_before(end).then(|| from.to_string());
            if !rows.is_empty() || next.is_none() {
                let keys = rows.iter().map(|row| Ok(text(row, 1)?.to_owned()));
                return Ok((keys.collect::<Result<Vec<_>, LedgerError>>()?, next));
            }
        }
        Ok((Vec::new(), Some(from.to_string())))
    }

    fn lock_orders(&mut self, keys: &[String]) -> Result<(), LedgerError> {
        if !keys.is_empty() {
            self.session.query(LOCK, &[&keys])?;
        }
        Ok(())
    }

    fn decided_parts(
        &mut self,
        correction: i64,
        subjects: &[String],
    ) -> Result<HashSet<String>, LedgerError> {
        if subjects.is_empty() {
            return Ok(HashSet::new());
        }
        let done = small(ActOutcome::Done.code())?;
        let rows = self.session.query(DECIDED, &[&subjects, &done, &correction])?;
        rows.iter().map(|row| Ok(text(row, 0)?.to_owned())).collect()
    }

    fn payments(&mut self, keys: &[String]) -> Result<Vec<Option<(i64, Payment)>>, LedgerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.session.query(PAYMENTS, &[&keys, &small(BUDGET)?, &small(CREDITED)?])?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let payee = Account { kind: i64::from(cell::<i16>(row, 4)?), holder: cell(row, 5)? };
            let payment = Payment {
                bonus_type: cell(row, 2)?,
                budget_key: cell(row, 3)?,
                payee,
                amount: cell(row, 6)?,
            };
            found.insert(text(row, 0)?, (cell(row, 1)?, payment));
        }
        Ok(keys.iter().map(|key| found.get(key.as_str()).copied()).collect())
    }

    fn take_back(&mut self, transfers: &[Transfer<'_>]) -> Result<Vec<TransferOutcome>, LedgerError> {
        if transfers.is_empty() {
            return Ok(Vec::new());
        }
        self.transfers.flush(self.session)?;
        let ids: BTreeSet<i64> = transfers.iter().filter_map(|one| one.budget).collect();
        let session = self.session;
        let mut whole = budgets::lock_whole(session, self.budget_keys, ids.into_iter().collect())?;
        // Also of those whom a payer has paid: the commit writes their accounts, and everybody locks them by user.
        let users: BTreeSet<(i64, i64)> = transfers.iter().map(|one| (one.bonus_type, one.user_id)).collect();
        let mut accounts = Accounts::lock(session, &users)?;
        let moved = parts(
            transfers,
            |key| accounts.balance(key),
            |budget, amount| whole.take_back(session, budget, amount),
        )?;
        whole.write(session)?;
        self.append(transfers, &moved, &mut accounts)?;
        Ok(moved)
    }

    fn totals(&mut self, correction: i64) -> Result<Totals, LedgerError> {
        let rows = self.session.query(TOTALS, &[&correction])?;
        rows.first().map_or(Ok(Totals::default()), |row| {
            Ok(Totals {
                pages: cell(row, 0)?,
                orders: cell(row, 1)?,
                taken: cell(row, 2)?,
                short_orders: cell(row, 3)?,
                short_amount: cell(row, 4)?,
            })
        })
    }

    fn insert_page(
        &mut self,
        correction: i64,
        totals: &Totals,
        by: &Operator,
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        let Totals { pages, orders, taken, short_orders, short_amount } = totals;
        self.session
            .execute(
                INSERT_PAGE,
                &[
                    &correction,
                    pages,
                    orders,
                    taken,
                    short_orders,
                    short_amount,
                    &by.name,
                    &by.actor,
                    &now_ms,
                ],
            )
            .map(drop)
    }

    fn insert_parts(
        &mut self,
        correction: &StoredAct,
        approved: &ActEnd,
        parts: &[Part],
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        if parts.is_empty() {
            return Ok(());
        }
        let proposal = &correction.proposal;
        let keys: Vec<&str> = parts.iter().map(|part| part.key.as_str()).collect();
        let subjects: Vec<&str> = parts.iter().map(|part| part.subject.as_str()).collect();
        let deeds = parts.iter().map(|part| to_json(&part.deed)).collect::<Result<Vec<_>, _>>()?;
        let rows = self.session.query(
            INSERT_PARTS,
            &[
                &keys,
                &subjects,
                &deeds,
                &proposal.reason,
                &proposal.evidence,
                &proposal.operator.name,
                &proposal.operator.actor,
                &now_ms,
                &correction.id,
            ],
        )?;
        let mut numbers = HashMap::with_capacity(rows.len());
        for row in &rows {
            numbers.insert(text(row, 1)?, cell::<i64>(row, 0)?);
        }
        let number = |part: &Part| numbers.get(part.key.as_str()).copied();
        let acts = parts.iter().map(number).collect::<Option<Vec<i64>>>();
        let acts = acts.ok_or_else(|| LedgerError::Damaged("a part of a correction has vanished".into()))?;
        let outcomes = parts.iter().map(|part| small(part.outcome.code())).collect::<Result<Vec<_>, _>>()?;
        let amounts: Vec<i64> = parts.iter().map(|part| part.amount).collect();
        let details: Vec<&str> = parts.iter().map(|part| part.detail.as_str()).collect();
        let by = &approved.operator;
        self.session
            .execute(INSERT_ENDS, &[&acts, &outcomes, &amounts, &details, &by.name, &by.actor, &now_ms])
            .map(drop)
    }
}

/// What each transfer takes, one after another, given the balances before and what budgets take back: `None` where one has given
/// out less, `Some(false)` where what covers it has.
fn parts(
    transfers: &[Transfer<'_>],
    balance: impl Fn((i64, i64)) -> i64,
    mut give_back: impl FnMut(i64, i64) -> Option<bool>,
) -> Result<Vec<TransferOutcome>, LedgerError> {
    let mut balances: HashMap<(i64, i64), i64> = HashMap::new();
    let mut moved = Vec::with_capacity(transfers.len());
    for one in transfers {
        let key = (one.bonus_type, one.user_id);
        let balance = balances.entry(key).or_insert_with(|| balance(key));
        let is_users = one.debit.kind == USER;
        let part = if is_users { part(*balance, one.amount, one.take_what_is_there) } else { Ok(one.amount) };
        moved.push(match part {
            Err(missing) => TransferOutcome::Short(missing),
            Ok(amount) => match one.budget.map_or(Some(true), |budget| give_back(budget, amount)) {
                None => TransferOutcome::NotGiven,
                Some(false) => {
                    return Err(LedgerError::Damaged(format!(
                        "the budget of order {} has given out {amount}, and what covers it has not",
                        one.reference
                    )));
                }
                Some(true) => {
                    *balance -= if is_users { amount } else { 0 };
                    TransferOutcome::Done(amount)
                }
            },
        });
    }
    Ok(moved)
}

impl PgTx<'_> {
    /// Appends the transfers of what was taken, and writes the accounts that they move.
    fn append(
        &mut self,
        transfers: &[Transfer<'_>],
        moved: &[TransferOutcome],
        accounts: &mut Accounts,
    ) -> Result<(), LedgerError> {
        let taken = transfers.iter().zip(moved).filter_map(|(one, moved)| match moved {
            TransferOutcome::Done(amount) => Some((one, *amount)),
            _ => None,
        });
        let taken: Vec<(&Transfer<'_>, i64)> = taken.collect();
        let ids = self.numbers.take(self.session, taken.len())?;
        let mut entries = Vec::with_capacity(taken.len());
        for ((one, amount), id) in taken.into_iter().zip(ids) {
            let Transfer { kind, bonus_type, debit, credit, user_id, time_ms, reference, .. } = *one;
            let (reference, user) = (Cow::Borrowed(reference), Some(user_id));
            let mut entry = JournalEntry {
                id,
                kind,
                bonus_type,
                debit,
                credit,
                amount,
                prev: 0,
                time_ms,
                reference,
                user,
            };
            if debit.kind == USER {
                entry.prev = accounts.add((bonus_type, user_id), -amount, id)?;
                self.transfers.add_others(&entry)?;
                entries.push(entry);
            } else {
                self.transfers.push(entry)?;
            }
        }
        accounts.write(self.session)?;
        if entries.is_empty() { Ok(()) } else { Rows::of(entries)?.append(self.session) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Kind;

    #[test]
    fn of_two_orders_of_a_user_the_second_finds_what_the_first_has_left() {
        let payment = |amount| Payment { bonus_type: 1, budget_key: 5, payee: Account::user(7), amount };
        let transfer = |amount, rest| payment(amount).reversal(7, "a", (0, rest), 9);
        let all = [transfer(6, false), transfer(6, false), transfer(6, true), transfer(1, true)];
        assert!(all.iter().all(|one| one.kind == Kind::Reversal));
        let moved = parts(&all, |_| 10, |_, _| Some(true)).unwrap();
        assert_eq!(
            moved,
            [
                TransferOutcome::Done(6),
                TransferOutcome::Short(2),
                TransferOutcome::Done(4),
                TransferOutcome::Short(1)
            ]
        );
        // The budget has given out 7: what it cannot take back, the user keeps, and a later order finds.
        let mut given = 7;
        let give_back = |budget, amount| {
            assert_eq!(budget, 5);
            given -= if amount <= given { amount } else { return None };
            Some(true)
        };
        let moved = parts(&all, |_| 10, give_back).unwrap();
        assert_eq!(
            moved,
            [
                TransferOutcome::Done(6),
                TransferOutcome::Short(2),
                TransferOutcome::NotGiven,
                TransferOutcome::Done(1)
            ]
        );
        assert!(parts(&all, |_| 10, |_, _| Some(false)).is_err());
    }
}
