//! Reads a ledger's file, for its writer and for readers on a connection of their own.

use super::{act_tables, archive, chain, closed, query, schema, withdrawals};
use crate::archive::{ArchiveFilter, Archived, Replay};
use crate::chain::{Names, Page, Row, Seal, Unsealed};
use crate::contract::{Lines, Read};
use crate::error::{LedgerError, OpenError};
use crate::held::HeldByTime;
use crate::key::{OrderId, WithdrawalId, number_of};
use crate::model::status_of_columns;
use crate::model::{Awaits, BudgetState, OrderLine, ReservedOrder, Settlement, WhichBudgets};
use crate::reconcile::{self, Reconciliation};
use crate::withdrawal::{HeldFor, StoredWithdrawal};
use rusqlite::{Connection, params};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use windfall_contract::accounts::{FlowLine, StoredOrder};

/// Opens a file for reading; all reads see one moment, that of the first read.
pub(crate) fn open(path: &Path) -> Result<Connection, OpenError> {
    let db = schema::open_reader(path)?;
    db.execute_batch("BEGIN").map_err(|error| OpenError::of_sql(path, &error))?;
    Ok(db)
}

impl Read for Connection {
    fn lines(&self) -> Result<Lines<'_>, LedgerError> {
        // Transfers that their order does not name: a second credit, or one of an order that is not credited.
        let mut statement = self.prepare(&reconcile::extra_transfers(closed::place(self)?))?;
        let extra = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<HashMap<String, u32>, _>>()?;
        Ok(Box::new(OrderLines { db: self, extra, page: VecDeque::new(), last: None, done: false }))
    }

    fn balance(&self, user_id: i64, bonus_type: &str) -> Result<i64, LedgerError> {
        query::balance(self, user_id, bonus_type)
    }

    fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
        query::balances(self, user_id)
    }

    fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        query::flow(self, user_id, limit)
    }

    fn orders(&self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        ids.iter().map(|id| query::order(self, *id)).collect()
    }

    fn orders_of_number(&self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
        query::orders_of_number(self, trade_no)
    }

    fn reserved(
        &self,
        awaits: Option<Awaits>,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, LedgerError> {
        query::reserved(self, awaits, before_ms, after, limit)
    }

    fn withdrawal(&self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        withdrawals::one(self, id)
    }

    fn held_withdrawals(
        &self,
        which: HeldFor,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::held(self, which, before_ms, after, limit)
    }

    fn held_by_time(&self, which: &HeldByTime) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::by_time(self, which)
    }

    fn budgets(&self, which: WhichBudgets) -> Result<Vec<BudgetState>, LedgerError> {
        query::budgets(self, which)
    }

    fn settlements(&self) -> Result<Vec<Settlement>, LedgerError> {
        query::settlements(self)
    }

    fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        archive::list(self, filter)
    }

    fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError> {
        archive::one(self, id)
    }

    fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
        archive::replays(self, archive_id)
    }

    fn seals(&self, after: i64, limit: u32) -> Result<Vec<Seal>, LedgerError> {
        chain::seals(self, after, limit)
    }

    fn last_seal(&self) -> Result<Option<Seal>, LedgerError> {
        chain::last_seal(self)
    }

    fn seal_pages(&self, seal: i64) -> Result<Vec<Page>, LedgerError> {
        chain::pages(self, seal)
    }

    fn sealed_rows(&self, from_at: i64, to_at: i64) -> Result<Vec<Row>, LedgerError> {
        // -1 is no limit.
        chain::rows(self, from_at, to_at, -1)
    }

    fn unsealed(&self, from_at: i64) -> Result<Unsealed, LedgerError> {
        chain::unsealed(self, from_at)
    }

    fn names_of(&self, rows: &[Row]) -> Result<Names, LedgerError> {
        chain::names(self, rows)
    }

    fn row(&self, id: i64) -> Result<Option<Row>, LedgerError> {
        chain::one(self, id)
    }

    fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        // One moment for all statements, where no transaction gives one.
        let moment = if self.is_autocommit() { Some(self.unchecked_transaction()?) } else { None };
        let has_acts = act_tables::are_there(self)?;
        let closed = closed::place(self)?;
        let found = reconcile::reconcile(has_acts, closed, |sql, columns| {
            Ok(self.query_row(sql, [], |row| {
                (0..columns).map(|at| Ok(row.get::<_, i64>(at)?.cast_unsigned())).collect()
            })?)
        });
        drop(moment);
        found
    }

    fn check(&self) -> Result<(), LedgerError> {
        query::quick_check(self)
    }
}

/// Iterates over orders. Ends after the first error.
#[derive(Debug)]
struct OrderLines<'r> {
    db: &'r Connection,
    extra: HashMap<String, u32>,
    page: VecDeque<OrderLine>,
    last: Option<String>,
    done: bool,
}

const PAGE: u32 = 2048;

impl OrderLines<'_> {
    fn fill(&mut self) -> Result<(), LedgerError> {
        let mut statement = self.db.prepare_cached(
            "SELECT o.order_key, o.user_id, n.name, o.amount, o.status, o.reason, \
             EXISTS (SELECT 1 FROM transfers t WHERE t.id = o.paid_by AND t.reference = o.order_key), a.name \
             FROM orders o JOIN programs p ON p.id = o.program JOIN names n ON n.id = p.asset \
             JOIN names a ON a.id = p.activity WHERE o.order_key > ?1 ORDER BY o.order_key LIMIT ?2",
        )?;
        let after = self.last.as_deref().unwrap_or("");
        let mut rows = statement.query(params![after, PAGE])?;
        while let Some(row) = rows.next()? {
            let key: String = row.get(0)?;
            let status = status_of_columns(row.get(4)?, row.get(5)?)
                .ok_or_else(|| LedgerError::Damaged(format!("order {key} has an unknown status")))?;
            let own: u32 = row.get(6)?;
            let credits = own.saturating_add(self.extra.get(&key).copied().unwrap_or(0));
            let (user_id, bonus_type, amount) = (row.get(1)?, row.get(2)?, row.get(3)?);
            let (activity, trade_no) = (row.get(7)?, number_of(&key).to_owned());
            self.page.push_back(OrderLine {
                activity,
                trade_no,
                user_id,
                bonus_type,
                amount,
                status,
                credits,
            });
            self.last = Some(key);
        }
        self.done = self.page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        Ok(())
    }
}

impl Iterator for OrderLines<'_> {
    type Item = Result<OrderLine, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && !self.done
            && let Err(error) = self.fill()
        {
            self.done = true;
            self.page.clear();
            return Some(Err(error));
        }
        self.page.pop_front().map(Ok)
    }
}
