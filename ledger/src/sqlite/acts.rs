//! Acts of operators in a file.

use super::act_tables::{are_there, frozen};
use super::state::SqliteTx;
use super::transfers::Transfers;
use super::{orders, query, withdrawals};
use crate::acts::decision::{Standing, part};
use crate::acts::model::{ActEnd, ActFilter, ActOutcome, Operator, Proposal, StoredAct};
use crate::acts::perform::{of_json, to_json};
use crate::acts::steps::{ActReads, ActSteps, BudgetNumbers, Payment, Transfer, TransferOutcome};
use crate::budget::{Take, hash};
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, JournalEntry, USER};
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Awaits, Order};
use crate::withdrawal::StoredWithdrawal;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::borrow::Cow;
use windfall_contract::accounts::StoredOrder;

const COLUMNS: &str = "SELECT a.id, a.deed, a.reason, a.evidence, a.operator, a.actor, a.proposed_ms, a.expires_ms, \
    e.outcome, e.detail, e.amount, e.operator, e.actor, e.time_ms, a.nth, a.parent FROM acts a LEFT JOIN act_ends e ON e.act = a.id";

/// A row as it is read; the deed is parsed outside.
type Read = (StoredAct, String, Option<i64>, i64);

fn read(row: &Row<'_>) -> Result<Read, rusqlite::Error> {
    let operator =
        |name, actor| Ok::<_, rusqlite::Error>(Operator { name: row.get(name)?, actor: row.get(actor)? });
    let proposal = Proposal {
        // Replaced by what the text says.
        deed: crate::acts::model::Deed::Freeze { user_id: 0 },
        reason: row.get(2)?,
        evidence: row.get(3)?,
        operator: operator(4, 5)?,
        time_ms: row.get(6)?,
        expires_ms: row.get(7)?,
    };
    let outcome: Option<i64> = row.get(8)?;
    let end = match outcome {
        None => None,
        Some(code) => Some(ActEnd {
            outcome: ActOutcome::of_code(code).unwrap_or(ActOutcome::Refused),
            detail: row.get(9)?,
            amount: row.get(10)?,
            operator: operator(11, 12)?,
            time_ms: row.get(13)?,
        }),
    };
    Ok((
        StoredAct { id: row.get(0)?, proposal, parent: row.get(15)?, end },
        row.get(1)?,
        outcome,
        row.get(14)?,
    ))
}

/// The act, and its number among those of its key.
fn stored((mut act, deed, outcome, nth): Read) -> Result<(StoredAct, i64), LedgerError> {
    if outcome.is_some_and(|code| ActOutcome::of_code(code).is_none()) {
        return Err(LedgerError::Damaged(format!("act {} has an unknown outcome", act.id)));
    }
    act.proposal.deed = of_json(act.id, &deed)?;
    Ok((act, nth))
}

fn one(db: &Connection, id: i64) -> Result<Option<StoredAct>, LedgerError> {
    let found = db.prepare_cached(&format!("{COLUMNS} WHERE a.id = ?1"))?.query_row([id], read).optional()?;
    Ok(found.map(stored).transpose()?.map(|(act, _)| act))
}

impl ActReads for Connection {
    fn acts(&self, filter: &ActFilter) -> Result<Vec<StoredAct>, LedgerError> {
        if !are_there(self)? {
            return Ok(Vec::new());
        }
        let sql = format!(
            "{COLUMNS} WHERE a.parent = ?4 AND a.id > ?1 AND (?2 IS NULL OR (e.act IS NULL AND a.expires_ms > ?2)) ORDER BY a.id LIMIT ?3"
        );
        let mut statement = self.prepare_cached(&sql)?;
        let rows = statement
            .query_map(params![filter.after, filter.open_at_ms, filter.limit, filter.parent], read)?;
        rows.map(|row| Ok(stored(row?)?.0)).collect()
    }

    fn act(&self, id: i64) -> Result<Option<StoredAct>, LedgerError> {
        if are_there(self)? { one(self, id) } else { Ok(None) }
    }

    fn frozen(&self, user_id: i64) -> Result<Option<(i64, i64)>, LedgerError> {
        if are_there(self)? { frozen(self, user_id) } else { Ok(None) }
    }
}

impl ActSteps for SqliteTx<'_> {
    fn make_act_tables(&mut self) -> Result<(), LedgerError> {
        // They were made when the file was opened.
        Ok(())
    }

    fn newest_act(&mut self, key: &str) -> Result<Option<(StoredAct, i64)>, LedgerError> {
        let sql = format!("{COLUMNS} WHERE a.key = ?1 ORDER BY a.nth DESC LIMIT 1");
        let found = self.ledger.db.prepare_cached(&sql)?.query_row([key], read).optional()?;
        found.map(stored).transpose()
    }

    fn insert_act(&mut self, key: &str, nth: i64, proposal: &Proposal) -> Result<Option<i64>, LedgerError> {
        let Proposal { deed, reason, evidence, operator, time_ms, expires_ms } = proposal;
        let id = self
            .ledger
            .db
            .prepare_cached(
                "INSERT INTO acts (key, nth, kind, subject, deed, reason, evidence, operator, actor, proposed_ms, \
                 expires_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) RETURNING id",
            )?
            .query_row(
                params![
                    key,
                    nth,
                    deed.kind(),
                    deed.subject().to_string(),
                    to_json(deed)?,
                    reason,
                    evidence,
                    operator.name,
                    operator.actor,
                    time_ms,
                    expires_ms
                ],
                |row| row.get(0),
            )?;
        Ok(Some(id))
    }

    fn lock_act(&mut self, id: i64) -> Result<Option<StoredAct>, LedgerError> {
        // The file's write lock is held since the beginning.
        one(&self.ledger.db, id)
    }

    fn end_act(&mut self, id: i64, end: &ActEnd) -> Result<(), LedgerError> {
        let ActEnd { outcome, detail, amount, operator, time_ms } = end;
        self.ledger
            .db
            .prepare_cached(
                "INSERT INTO act_ends (act, outcome, amount, detail, operator, actor, time_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![id, outcome.code(), amount, detail, operator.name, operator.actor, time_ms])?;
        Ok(())
    }

    fn done_acts(&mut self, subject: &str, kinds: &[&str]) -> Result<Vec<StoredAct>, LedgerError> {
        let sql = format!("{COLUMNS} WHERE a.subject = ?1 AND e.outcome = ?2 ORDER BY a.id DESC");
        let mut statement = self.ledger.db.prepare_cached(&sql)?;
        let rows = statement.query_map(params![subject, ActOutcome::Done.code()], read)?;
        let all = rows.map(|row| Ok(stored(row?)?.0)).collect::<Result<Vec<_>, LedgerError>>()?;
        Ok(all.into_iter().filter(|act| kinds.contains(&act.proposal.deed.kind())).collect())
    }

    fn lock_order(&mut self, id: OrderId<'_>) -> Result<Option<Standing>, LedgerError> {
        let Some(order) = query::order(&self.ledger.db, id)? else { return Ok(None) };
        let promised = orders::find(self.ledger, id)?.is_some_and(|row| row.known.promised);
        Ok(Some((order, if promised { Awaits::Event } else { Awaits::Payer })))
    }

    fn orders_of_number(&mut self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
        query::orders_of_number(&self.ledger.db, trade_no)
    }

    fn payment(&mut self, key: &str) -> Result<Option<Payment>, LedgerError> {
        let sql = "SELECT t.asset, t.debit_holder, t.credit, t.credit_holder, t.amount FROM orders o \
             JOIN transfers t ON t.id = o.paid_by AND t.reference = o.order_key AND t.debit = ?2 WHERE o.order_key = ?1";
        let found = self.ledger.db.prepare_cached(sql)?.query_row(params![key, BUDGET], |row| {
            let payee = Account { kind: row.get(2)?, holder: row.get(3)? };
            Ok(Payment { bonus_type: row.get(0)?, budget_key: row.get(1)?, payee, amount: row.get(4)? })
        });
        Ok(found.optional()?)
    }

    fn budget_numbers(
        &mut self,
        activity: &str,
        scene: &str,
        bonus_type: &str,
    ) -> Result<BudgetNumbers, LedgerError> {
        let own = self.ledger.budget_keys.intern(&self.ledger.db, activity, scene, bonus_type)?;
        Ok(BudgetNumbers { id: own.id, bonus_type: own.bonus_type })
    }

    fn name_numbers(&mut self, activity: &str, bonus_type: &str) -> Result<Option<(i64, i64)>, LedgerError> {
        let sql = "SELECT a.id, b.id FROM names a, names b WHERE a.name = ?1 AND b.name = ?2 \
             AND EXISTS (SELECT 1 FROM programs p WHERE p.asset = b.id)";
        let found = self
            .ledger
            .db
            .prepare_cached(sql)?
            .query_row([activity, bonus_type], |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(found.optional()?)
    }

    fn move_money(&mut self, transfer: &Transfer<'_>) -> Result<TransferOutcome, LedgerError> {
        let Transfer { user_id, bonus_type, debit, credit, reference, time_ms, .. } = *transfer;
        let takes_from_user = debit.kind == USER;
        let mut amount = transfer.amount;
        if takes_from_user {
            match part(self.balance_of(bonus_type, user_id)?, amount, transfer.take_what_is_there) {
                Ok(part) => amount = part,
                Err(missing) => return Ok(TransferOutcome::Short(missing)),
            }
        }
        match transfer.budget {
            Some(id) if debit.kind == BUDGET => {
                if let Some(reason) = self.take_for_act(id, transfer)? {
                    return Ok(TransferOutcome::NoRoom(reason));
                }
            }
            #[cfg(feature = "sabotage")]
            Some(_) if crate::sabotage::reversals_forget_budgets() => {}
            Some(id) if !self.give_back_to_budget(id, reference, amount)? => {
                return Ok(TransferOutcome::NotGiven);
            }
            Some(_) | None => {}
        }
        let entry = JournalEntry {
            id: self.number(),
            kind: transfer.kind,
            bonus_type,
            debit,
            credit,
            amount,
            prev: 0,
            time_ms,
            reference: Cow::Borrowed(reference),
            user: Some(user_id),
        };
        if takes_from_user {
            let prev = self.last_of(bonus_type, user_id)?;
            self.record(&JournalEntry { prev, ..entry })?;
        } else {
            let mut transfers = Transfers::default();
            transfers.push(entry)?;
            transfers.write(&self.ledger.db)?;
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
        let db = &self.ledger.db;
        let changed = if frozen {
            db.prepare_cached(
                "INSERT INTO frozen_users (user_id, act, since_ms) VALUES (?1, ?2, ?3) ON CONFLICT (user_id) DO NOTHING",
            )?
            .execute([user_id, act, time_ms])?
        } else {
            db.prepare_cached("DELETE FROM frozen_users WHERE user_id = ?1")?.execute([user_id])?
        };
        Ok(changed == 1)
    }

    fn withdrawal(&mut self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        withdrawals::one(&self.ledger.db, id)
    }

    fn withdrawals_of_id(&mut self, id: &str) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::of_id(&self.ledger.db, id)
    }
}

impl SqliteTx<'_> {
    fn account(&self, sql: &'static str, bonus_type: i64, user_id: i64) -> Result<i64, LedgerError> {
        let found = self
            .ledger
            .db
            .prepare_cached(sql)?
            .query_row([USER, bonus_type, user_id], |row| row.get(0))
            .optional()?;
        Ok(found.unwrap_or(0))
    }

    fn balance_of(&self, bonus_type: i64, user_id: i64) -> Result<i64, LedgerError> {
        let sql = "SELECT balance FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3";
        self.account(sql, bonus_type, user_id)
    }

    fn last_of(&self, bonus_type: i64, user_id: i64) -> Result<i64, LedgerError> {
        self.account(
            "SELECT last FROM accounts WHERE kind = ?1 AND asset = ?2 AND holder = ?3",
            bonus_type,
            user_id,
        )
    }

    /// Takes a budget's room as an order would.
    fn take_for_act(
        &mut self,
        budget: i64,
        transfer: &Transfer<'_>,
    ) -> Result<Option<windfall_contract::accounts::Reason>, LedgerError> {
        let own = self.ledger.budget_keys.of_id(&self.ledger.db, budget)?;
        let order = Order {
            trade_no: transfer.reference,
            user_id: transfer.user_id,
            activity: "",
            scene: "",
            bonus_type: "",
            amount: transfer.amount,
            time_ms: transfer.time_ms,
        };
        self.take(&order, own, Take::Used)
    }

    /// Takes back what a budget has given out, and all that cover it. False where it has given out less.
    fn give_back_to_budget(
        &mut self,
        budget: i64,
        reference: &str,
        amount: i64,
    ) -> Result<bool, LedgerError> {
        let own = self.ledger.budget_keys.of_id(&self.ledger.db, budget)?;
        if !self.shards_of(own.id)?.take_back(hash(reference), amount) {
            return Ok(false);
        }
        for id in own.above() {
            if !self.shards_of(id)?.take_back(hash(reference), amount) {
                return Err(LedgerError::Damaged(format!(
                    "budget key {budget} has given out {amount}, and what covers it has not"
                )));
            }
        }
        Ok(true)
    }
}
