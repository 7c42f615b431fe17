//! Acts of operators.
//!
//! READ COMMITTED suffices. An act is locked by a lock of its own before it is read (not by its row, which users that may
//! only append cannot lock); the order that it is about by its row; then budgets, then accounts, as everywhere. A user is
//! frozen under the locks of the user's accounts, and whoever holds a withdrawal asks for that after locking the account: so
//! it is held before, or not at all.

use super::act_tables::{ARE_THERE, TABLES, are_there, frozen};
use super::budget_keys::{cell, text};
use super::budgets::{self, Demand};
use super::link::Link;
use super::state::PgTx;
use super::transfers::Rows;
use super::withdrawals::{self, Accounts};
use super::{budget_keys::BudgetKey, orders, stored_orders};
use crate::acts::decision::{Standing, part};
use crate::acts::model::{ActEnd, ActFilter, ActOutcome, Operator, Proposal, StoredAct};
use crate::acts::perform::{of_json, to_json};
use crate::acts::steps::{ActReads, ActSteps, BudgetNumbers, Payment, Transfer, TransferOutcome};
use crate::budget::Take;
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, JournalEntry, USER};
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Awaits, Order};
use crate::withdrawal::StoredWithdrawal;
use std::borrow::Cow;
use std::collections::BTreeSet;
use tokio_postgres::Row;
use windfall_contract::accounts::StoredOrder;

pub(super) const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('windfall act ' || current_schema() || ' ' || $1::bigint, 0))";
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('windfall act ' || current_schema() || ' ' || $1::bigint, 0))";

/// The columns of an act and its end.
macro_rules! select {
    ($condition:literal) => {
        concat!(
            "SELECT a.id, a.deed, a.reason, a.evidence, a.operator, a.actor, a.proposed_ms, a.expires_ms, \
             e.outcome, e.detail, e.amount, e.operator, e.actor, e.time_ms, a.nth, a.parent \
             FROM acts a LEFT JOIN act_ends e ON e.act = a.id ",
            $condition
        )
    };
}

const BY_ID: &str = select!("WHERE a.id = $1");
const NEWEST: &str = select!("WHERE a.key = $1 ORDER BY a.nth DESC LIMIT 1");
const DONE: &str = select!("WHERE a.subject = $1 AND a.kind = ANY($2) AND e.outcome = $3 ORDER BY a.id DESC");
const LIST: &str = select!(
    "WHERE a.parent = $4 AND a.id > $1 AND ($2::bigint IS NULL OR (e.act IS NULL AND a.expires_ms > $2)) \
     ORDER BY a.id LIMIT $3"
);
/// All accounts of a user, in the order in which everybody locks them.
const LOCK_USER: &str = "SELECT a.asset FROM accounts a WHERE a.kind = 0 AND a.holder = $1 \
    AND a.asset IN (SELECT asset FROM programs) ORDER BY a.asset FOR NO KEY UPDATE OF a";

fn stored(row: &Row) -> Result<(StoredAct, i64), LedgerError> {
    let id: i64 = cell(row, 0)?;
    let operator =
        |name, actor| Ok::<_, LedgerError>(Operator { name: cell(row, name)?, actor: cell(row, actor)? });
    let proposal = Proposal {
        deed: of_json(id, text(row, 1)?)?,
        reason: cell(row, 2)?,
        evidence: cell(row, 3)?,
        operator: operator(4, 5)?,
        time_ms: cell(row, 6)?,
        expires_ms: cell(row, 7)?,
    };
    let end = match cell::<Option<i16>>(row, 8)? {
        None => None,
        Some(code) => Some(ActEnd {
            outcome: ActOutcome::of_code(i64::from(code))
                .ok_or_else(|| LedgerError::Damaged(format!("act {id} has an unknown outcome")))?,
            detail: cell(row, 9)?,
            amount: cell(row, 10)?,
            operator: operator(11, 12)?,
            time_ms: cell(row, 13)?,
        }),
    };
    Ok((StoredAct { id, proposal, parent: cell(row, 15)?, end }, cell(row, 14)?))
}

fn first(rows: &[Row]) -> Result<Option<(StoredAct, i64)>, LedgerError> {
    rows.first().map(stored).transpose()
}

impl ActReads for Link {
    fn acts(&self, filter: &ActFilter) -> Result<Vec<StoredAct>, LedgerError> {
        let session = self.session()?;
        if !are_there(&session)? {
            return Ok(Vec::new());
        }
        let rows = session
            .query(LIST, &[&filter.after, &filter.open_at_ms, &i64::from(filter.limit), &filter.parent])?;
        rows.iter().map(|row| Ok(stored(row)?.0)).collect()
    }

    fn act(&self, id: i64) -> Result<Option<StoredAct>, LedgerError> {
        let session = self.session()?;
        if !are_there(&session)? {
            return Ok(None);
        }
        Ok(first(&session.query(BY_ID, &[&id])?)?.map(|(act, _)| act))
    }

    fn frozen(&self, user_id: i64) -> Result<Option<(i64, i64)>, LedgerError> {
        let found = frozen(&*self.session()?, &[user_id])?;
        Ok(found.first().map(|(_, act, since_ms)| (*act, *since_ms)))
    }
}

impl ActSteps for PgTx<'_> {
    fn make_act_tables(&mut self) -> Result<(), LedgerError> {
        self.session.need_journal()?;
        if self.session.has_acts() {
            return Ok(());
        }
        let rows = self.session.query(ARE_THERE, &[])?;
        let row = rows.first().ok_or_else(|| LedgerError::Sql("a row is missing".into()))?;
        if cell(row, 0)? {
            self.session.set_acts(true);
            return Ok(());
        }
        if !cell::<bool>(row, 1)? {
            return Err(LedgerError::Invalid(format!(
                "the tables of operators' acts are missing, and the user may not make them; grant it CREATE on the schema {} \
                 once",
                text(row, 2)?
            )));
        }
        // In this transaction: another connection sees them when it is committed.
        self.session.batch(TABLES)
    }

    fn newest_act(&mut self, key: &str) -> Result<Option<(StoredAct, i64)>, LedgerError> {
        first(&self.session.query(NEWEST, &[&key])?)
    }

    fn insert_act(&mut self, key: &str, nth: i64, proposal: &Proposal) -> Result<Option<i64>, LedgerError> {
        let Proposal { deed, reason, evidence, operator, time_ms, expires_ms } = proposal;
        // The unique index decides: of two that propose the same act at once one waits for the other, and reads it then.
        let rows = self.session.query(
            "INSERT INTO acts (key, nth, kind, subject, deed, reason, evidence, operator, actor, proposed_ms, expires_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (key, nth) DO NOTHING RETURNING id",
            &[
                &key,
                &nth,
                &deed.kind(),
                &deed.subject().to_string(),
                &to_json(deed)?,
                reason,
                evidence,
                &operator.name,
                &operator.actor,
                time_ms,
                expires_ms,
            ],
        )?;
        rows.first().map(|row| cell(row, 0)).transpose()
    }

    fn lock_act(&mut self, id: i64) -> Result<Option<StoredAct>, LedgerError> {
        self.session.need_journal()?;
        if !are_there(self.session)? {
            return Ok(None);
        }
        self.session.query(LOCK, &[&id])?;
        Ok(first(&self.session.query(BY_ID, &[&id])?)?.map(|(act, _)| act))
    }

    fn end_act(&mut self, id: i64, end: &ActEnd) -> Result<(), LedgerError> {
        let ActEnd { outcome, detail, amount, operator, time_ms } = end;
        let outcome = i16::try_from(outcome.code()).unwrap_or(i16::MAX);
        self.session
            .execute(
                "INSERT INTO act_ends (act, outcome, amount, detail, operator, actor, time_ms) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
                &[&id, &outcome, amount, detail, &operator.name, &operator.actor, time_ms],
            )
            .map(drop)
    }

    fn done_acts(&mut self, subject: &str, kinds: &[&str]) -> Result<Vec<StoredAct>, LedgerError> {
        if !are_there(self.session)? {
            return Ok(Vec::new());
        }
        let done = i16::try_from(ActOutcome::Done.code()).unwrap_or(i16::MAX);
        let rows = self.session.query(DONE, &[&subject, &kinds, &done])?;
        rows.iter().map(|row| Ok(stored(row)?.0)).collect()
    }

    fn lock_order(&mut self, id: OrderId<'_>) -> Result<Option<Standing>, LedgerError> {
        let keys = orders::candidates(self.session.shape(), [id].into_iter());
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        // Read by later statements: what was waited for is what they see. Of another activity nothing is locked.
        let locked = self.session.query(
            "SELECT o.reason FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
             WHERE o.order_key = ANY($1) AND a.name = $2 ORDER BY o.order_key FOR NO KEY UPDATE OF o",
            &[&keys, &id.activity],
        )?;
        let Some(row) = locked.first() else { return Ok(None) };
        let awaits = Awaits::of_code(i64::from(cell::<i16>(row, 0)?));
        let order = stored_orders::orders(self.session, &[id])?.pop().flatten();
        Ok(order.map(|order| (order, awaits)))
    }

    fn orders_of_number(&mut self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
        stored_orders::orders_of_number(self.session, trade_no)
    }

    fn payment(&mut self, key: &str) -> Result<Option<Payment>, LedgerError> {
        let budget = small(BUDGET);
        let rows = self.session.query(
            "SELECT t.asset, t.debit_holder, t.credit, t.credit_holder, t.amount FROM orders o \
             JOIN transfers t ON t.id = o.paid_by AND t.reference = o.order_key AND t.debit = $2 WHERE o.order_key = $1",
            &[&key, &budget],
        )?;
        let Some(row) = rows.first() else { return Ok(None) };
        let payee = Account { kind: i64::from(cell::<i16>(row, 2)?), holder: cell(row, 3)? };
        Ok(Some(Payment {
            bonus_type: cell(row, 0)?,
            budget_key: cell(row, 1)?,
            payee,
            amount: cell(row, 4)?,
        }))
    }

    fn budget_numbers(
        &mut self,
        activity: &str,
        scene: &str,
        bonus_type: &str,
    ) -> Result<BudgetNumbers, LedgerError> {
        let order = Order { trade_no: "", user_id: 0, activity, scene, bonus_type, amount: 0, time_ms: 0 };
        let own = self.budget_keys.of_orders(self.session, &[order])?;
        let own = own.first().ok_or_else(|| LedgerError::Damaged("a budget key has vanished".into()))?;
        Ok(BudgetNumbers { id: own.id, bonus_type: own.bonus_type })
    }

    fn name_numbers(&mut self, activity: &str, bonus_type: &str) -> Result<Option<(i64, i64)>, LedgerError> {
        let rows = self.session.query(
            "SELECT a.id, b.id FROM names a, names b WHERE a.name = $1 AND b.name = $2 \
             AND EXISTS (SELECT 1 FROM programs p WHERE p.asset = b.id)",
            &[&activity, &bonus_type],
        )?;
        rows.first().map(|row| Ok((cell(row, 0)?, cell(row, 1)?))).transpose()
    }

    fn move_money(&mut self, transfer: &Transfer<'_>) -> Result<TransferOutcome, LedgerError> {
        let Transfer { user_id, bonus_type, debit, credit, reference, time_ms, .. } = *transfer;
        self.transfers.flush(self.session)?;
        if debit.kind == BUDGET
            && let Some(id) = transfer.budget
            && let Some(reason) = self.take_for_act(id, transfer.amount)?
        {
            return Ok(TransferOutcome::NoRoom(reason));
        }
        // Budgets before accounts, as everywhere.
        let mut back = match transfer.budget.filter(|_| credit.kind == BUDGET) {
            Some(id) => Some((id, budgets::lock_whole(self.session, self.budget_keys, vec![id])?)),
            None => None,
        };
        let key = (bonus_type, user_id);
        let mut amount = transfer.amount;
        let mut account = None;
        if debit.kind == USER {
            let locked = Accounts::lock(self.session, &BTreeSet::from([key]))?;
            match part(locked.balance(key), amount, transfer.take_what_is_there) {
                Ok(part) => amount = part,
                Err(missing) => return Ok(TransferOutcome::Short(missing)),
            }
            account = Some(locked);
        }
        if let Some((id, whole)) = &mut back {
            match whole.take_back(self.session, *id, amount) {
                None => return Ok(TransferOutcome::NotGiven),
                Some(false) => {
                    return Err(LedgerError::Damaged(format!(
                        "budget key {id} has given out {amount}, and what covers it has not"
                    )));
                }
                Some(true) => whole.write(self.session)?,
            }
        }
        let id = self.numbers.take(self.session, 1)?.first().copied().unwrap_or(0);
        let (kind, prev, user) = (transfer.kind, 0, Some(user_id));
        let reference = Cow::Borrowed(reference);
        let mut entry =
            JournalEntry { id, kind, bonus_type, debit, credit, amount, prev, time_ms, reference, user };
        match account {
            // It is there, and its CHECK would refuse the row of an insert.
            Some(mut locked) => {
                entry.prev = locked.add(key, -amount, id)?;
                self.transfers.add_others(&entry)?;
                locked.write(self.session)?;
                Rows::of(vec![entry])?.append(self.session)?;
            }
            None => self.transfers.push(entry)?,
        }
        Ok(TransferOutcome::Done(amount))
    }

    fn set_frozen(
        &mut self,
        user_id: i64,
        frozen: bool,
        act: i64,
        time_ms: i64,
    ) -> Result<bool, LedgerError> {
        self.session.query(LOCK_USER, &[&user_id])?;
        let changed = if frozen {
            self.session.execute(
                "INSERT INTO frozen_users (user_id, act, since_ms) VALUES ($1, $2, $3) ON CONFLICT (user_id) DO NOTHING",
                &[&user_id, &act, &time_ms],
            )?
        } else {
            self.session.execute("DELETE FROM frozen_users WHERE user_id = $1", &[&user_id])?
        };
        Ok(changed == 1)
    }

    fn withdrawal(&mut self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        withdrawals::one(self.session, id)
    }

    fn withdrawals_of_id(&mut self, id: &str) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::of_id(self.session, id)
    }
}

impl PgTx<'_> {
    /// Takes a budget's room as an order would. Returns why there is none.
    fn take_for_act(
        &mut self,
        budget: i64,
        amount: i64,
    ) -> Result<Option<windfall_contract::accounts::Reason>, LedgerError> {
        let rows = self.session.query(
            "SELECT p.activity, p.asset, p.budgeted, (SELECT count(*) FROM budget_shards h WHERE h.program = p.id) \
             FROM programs p WHERE p.id = $1",
            &[&budget],
        )?;
        let row = rows.first().ok_or_else(|| LedgerError::Damaged("a budget key has vanished".into()))?;
        let own = BudgetKey {
            id: budget,
            activity: cell(row, 0)?,
            bonus_type: cell(row, 1)?,
            budgeted: cell(row, 2)?,
            shards: cell::<i64>(row, 3)?.unsigned_abs(),
        };
        let mut demand = Demand::default();
        demand.push(0, own, amount);
        let taken = budgets::take(self.session, self.budget_keys, self.unbudgeted, demand, Take::Used)?;
        Ok(taken.refused(0))
    }
}

fn small(code: i64) -> i16 {
    i16::try_from(code).unwrap_or(i16::MAX)
}
