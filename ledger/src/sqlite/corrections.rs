//! Corrections in a file: order by order, by key. Nobody else writes meanwhile.

use super::act_tables::are_there;
use super::state::SqliteTx;
use crate::acts::model::{ActEnd, ActOutcome, Operator, StoredAct};
use crate::acts::perform::to_json;
use crate::acts::selection::{Selection, Survey, Totals};
use crate::acts::steps::{
    ActSteps, CorrectionReads, CorrectionSteps, Part, Payment, Transfer, TransferOutcome,
};
use crate::error::LedgerError;
use crate::journal::USER;
use crate::model::{CREDITED, RESERVED};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashSet;

/// The rows that one call reads, whether they are asked for or not.
pub(super) const READ: i64 = 20_000;

/// Orders of a selection behind a key and up to another one. Their status is asked for by the caller. They are read by key, whatever
/// the database expects of their programs.
const SELECTED: &str = "FROM orders o CROSS JOIN programs p ON p.id = o.program CROSS JOIN names a ON a.id = p.activity \
    CROSS JOIN names s ON s.id = p.scene CROSS JOIN names b ON b.id = p.asset \
    WHERE o.order_key > ?1 AND o.order_key <= ?2 AND a.name = ?3 AND b.name = ?4 AND (?5 = '' OR s.name = ?5) \
    AND o.created_ms >= ?6 AND o.created_ms < ?7 AND o.amount BETWEEN ?8 AND ?9";

fn survey_sql(has_acts: bool) -> String {
    let taken_back = if has_acts {
        "EXISTS (SELECT 1 FROM acts c JOIN act_ends e ON e.act = c.id WHERE c.kind = 'reverse' AND e.outcome = 1 \
         AND c.subject = 'order ' || CASE WHEN o.order_key LIKE '% %' THEN o.order_key ELSE o.order_key || ' ' || ?3 END)"
    } else {
        "0"
    };
    format!(
        "SELECT o.status, o.amount - ?10, o.payer <> '', {taken_back}, coalesce((SELECT u.balance FROM accounts u \
         WHERE u.kind = {USER} AND u.asset = p.asset AND u.holder = o.user_id), 0) {SELECTED} \
         AND o.status IN ({RESERVED}, {CREDITED})"
    )
}

/// The last order that a call reads behind a key, and whether others are behind it.
pub(super) fn last_read(db: &Connection, after: &str) -> Result<(String, bool), LedgerError> {
    let sql = "SELECT coalesce(max(order_key), ''), count(*) \
         FROM (SELECT order_key FROM orders WHERE order_key > ?1 ORDER BY order_key LIMIT ?2)";
    let (last, count): (String, i64) =
        db.prepare_cached(sql)?.query_row(params![after, READ], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok((last, count >= READ))
}

impl CorrectionReads for Connection {
    fn survey(&self, which: &Selection, keep: i64, after: &str) -> Result<Survey, LedgerError> {
        let Selection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = which;
        let (last, is_more) = last_read(self, after)?;
        let mut statement = self.prepare_cached(&survey_sql(are_there(self)?))?;
        let mut rows = statement.query(params![
            after, last, activity, bonus_type, scene, from_ms, to_ms, min_amount, max_amount, keep
        ])?;
        let mut survey = Survey::default();
        while let Some(row) = rows.next()? {
            let (status, wanted, balance): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(4)?);
            let (by_payer, taken_back): (bool, bool) = (row.get(2)?, row.get(3)?);
            if status == RESERVED {
                survey.orders_reserved += 1;
                continue;
            }
            if taken_back {
                survey.orders_taken_back += 1;
                continue;
            }
            survey.orders_of_payers += i64::from(by_payer);
            if by_payer && keep > 0 {
                continue;
            }
            survey.orders += 1;
            survey.amount = survey.amount.saturating_add(wanted);
            if !by_payer && balance < wanted {
                survey.short_orders += 1;
                survey.short_amount = survey.short_amount.saturating_add(wanted - balance);
            }
        }
        survey.next = is_more.then_some(last);
        Ok(survey)
    }
}

impl CorrectionSteps for SqliteTx<'_> {
    fn try_lock_act(&mut self, _: i64) -> Result<bool, LedgerError> {
        // The file's write lock is held since the beginning.
        Ok(true)
    }

    fn select_orders(
        &mut self,
        which: &Selection,
        credited_before_ms: i64,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), LedgerError> {
        let Selection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = which;
        let (last, is_more) = last_read(&self.ledger.db, after)?;
        let sql = format!(
            "SELECT o.order_key {SELECTED} AND o.status = {CREDITED} AND o.created_ms + coalesce(o.took_ms, 0) < ?10 \
             ORDER BY o.order_key LIMIT ?11"
        );
        let mut statement = self.ledger.db.prepare_cached(&sql)?;
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = statement.query_map(
            params![
                after,
                last,
                activity,
                bonus_type,
                scene,
                from_ms,
                to_ms,
                min_amount,
                max_amount,
                credited_before_ms,
                most
            ],
            |row| row.get(0),
        )?;
        let keys = rows.collect::<Result<Vec<String>, _>>()?;
        let next = if keys.len() >= limit { keys.last().cloned() } else { is_more.then_some(last) };
        Ok((keys, next))
    }

    fn lock_orders(&mut self, _: &[String]) -> Result<(), LedgerError> {
        // The file's write lock is held since the beginning.
        Ok(())
    }

    fn decided_parts(
        &mut self,
        correction: i64,
        subjects: &[String],
    ) -> Result<HashSet<String>, LedgerError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM acts a JOIN act_ends e ON e.act = a.id \
             WHERE a.subject = ?1 AND a.kind = 'reverse' AND (e.outcome = ?2 OR a.parent = ?3))";
        let mut statement = self.ledger.db.prepare_cached(sql)?;
        let mut decided = HashSet::new();
        for subject in subjects {
            let done = ActOutcome::Done.code();
            if statement.query_row(params![subject, done, correction], |row| row.get(0))? {
                decided.insert(subject.clone());
            }
        }
        Ok(decided)
    }

    fn payments(&mut self, keys: &[String]) -> Result<Vec<Option<(i64, Payment)>>, LedgerError> {
        let sql = "SELECT user_id FROM orders WHERE order_key = ?1 AND status = ?2";
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let user: Option<i64> = self
                .ledger
                .db
                .prepare_cached(sql)?
                .query_row(params![key, CREDITED], |row| row.get(0))
                .optional()?;
            found.push(user.zip(self.payment(key)?));
        }
        Ok(found)
    }

    fn take_back(&mut self, transfers: &[Transfer<'_>]) -> Result<Vec<TransferOutcome>, LedgerError> {
        transfers.iter().map(|transfer| self.move_money(transfer)).collect()
    }

    fn totals(&mut self, correction: i64) -> Result<Totals, LedgerError> {
        let sql = "SELECT nth, orders, taken, short_orders, short_amount FROM correction_pages \
             WHERE act = ?1 ORDER BY nth DESC LIMIT 1";
        let found = self.ledger.db.prepare_cached(sql)?.query_row([correction], |row| {
            Ok(Totals {
                pages: row.get(0)?,
                orders: row.get(1)?,
                taken: row.get(2)?,
                short_orders: row.get(3)?,
                short_amount: row.get(4)?,
            })
        });
        Ok(found.optional()?.unwrap_or_default())
    }

    fn insert_page(
        &mut self,
        correction: i64,
        totals: &Totals,
        by: &Operator,
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        let Totals { pages, orders, taken, short_orders, short_amount } = totals;
        let sql = "INSERT INTO correction_pages (act, nth, orders, taken, short_orders, short_amount, operator, actor, time_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        self.ledger.db.prepare_cached(sql)?.execute(params![
            correction,
            pages,
            orders,
            taken,
            short_orders,
            short_amount,
            by.name,
            by.actor,
            now_ms
        ])?;
        Ok(())
    }

    fn insert_parts(
        &mut self,
        correction: &StoredAct,
        approved: &ActEnd,
        parts: &[Part],
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        let (proposal, by) = (&correction.proposal, &approved.operator);
        let mut insert = self.ledger.db.prepare_cached(
            "INSERT INTO acts (key, nth, kind, subject, deed, reason, evidence, operator, actor, proposed_ms, expires_ms, parent) \
             VALUES (?1, 1, 'reverse', ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9) RETURNING id",
        )?;
        let mut end = self.ledger.db.prepare_cached(
            "INSERT INTO act_ends (act, outcome, amount, detail, operator, actor, time_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for part in parts {
            let id: i64 = insert.query_row(
                params![
                    part.key,
                    part.subject,
                    to_json(&part.deed)?,
                    proposal.reason,
                    proposal.evidence,
                    proposal.operator.name,
                    proposal.operator.actor,
                    now_ms,
                    correction.id
                ],
                |row| row.get(0),
            )?;
            end.execute(params![
                id,
                part.outcome.code(),
                part.amount,
                part.detail,
                by.name,
                by.actor,
                now_ms
            ])?;
        }
        Ok(())
    }
}
