//! Reading a ledger without writing it: for checks that must not trust the writer.

use crate::archive::{self, ArchiveFilter, Archived};
use crate::error::{LedgerError, OpenError};
use crate::model::{BudgetState, FlowLine, Status, StoredOrder};
use crate::reconcile::Reconciliation;
use crate::{query, schema};
use rusqlite::{Connection, params};
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// A reader on its own connection. It sees one moment of the ledger, that of its first read; while it is open
/// the writer's log cannot shrink, so do not keep it.
#[derive(Debug)]
pub struct LedgerReader {
    db: Connection,
}

/// An order as the independent check wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderLine {
    /// The order number.
    pub trade_no: String,
    /// Whose.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// In the smallest unit.
    pub amount: i64,
    /// Where it stands.
    pub status: Status,
    /// Transfers that paid it, counted from the transfers themselves: 1 when credited, else 0, or something is
    /// wrong.
    pub credits: u32,
}

impl LedgerReader {
    /// Opens a ledger for reading. A writer may have it open, or may have died.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let db = schema::open_reader(path)?;
        db.execute_batch("BEGIN").map_err(|error| OpenError::of_sql(path, &error))?;
        Ok(Self { db })
    }

    /// Every order, by order number, read in pages.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn orders(&self) -> Result<OrderLines<'_>, LedgerError> {
        // Transfers that their order does not name: a second credit, or one of an order that is not credited.
        let mut statement = self.db.prepare(
            "SELECT t.trade_no, count(*) FROM transfers t LEFT JOIN orders o ON o.trade_no = t.trade_no \
             WHERE o.transfer IS NULL OR o.transfer <> t.id GROUP BY t.trade_no",
        )?;
        let extra = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<HashMap<String, u32>, _>>()?;
        Ok(OrderLines { db: &self.db, extra, page: VecDeque::new(), last: None, done: false })
    }

    /// A user's balances by asset.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
        query::balances(&self.db, user_id)
    }

    /// A user's newest transfers, newest first, at most `limit`.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        query::flow(&self.db, user_id, limit)
    }

    /// An order, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn order(&self, trade_no: &str) -> Result<Option<StoredOrder>, LedgerError> {
        query::order(&self.db, trade_no)
    }

    /// Every activity, scene and type, with what it gave out.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn budgets(&self) -> Result<Vec<BudgetState>, LedgerError> {
        query::budgets(&self.db)
    }

    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        archive::list(&self.db, filter)
    }

    /// Compares orders, transfers, accounts and budgets with each other. Reads every row.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        crate::reconcile::reconcile(&self.db)
    }

    /// Reads every page and compares it with its structure.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] with the first finding.
    pub fn check(&self) -> Result<(), LedgerError> {
        query::quick_check(&self.db)
    }
}

/// Iterates over orders. Ends after the first error.
#[derive(Debug)]
pub struct OrderLines<'r> {
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
            "SELECT o.trade_no, o.user_id, n.name, o.amount, o.status, o.reason, \
             EXISTS (SELECT 1 FROM transfers t WHERE t.id = o.transfer AND t.trade_no = o.trade_no) \
             FROM orders o JOIN programs p ON p.id = o.program JOIN names n ON n.id = p.asset \
             WHERE o.trade_no > ?1 ORDER BY o.trade_no LIMIT ?2",
        )?;
        let after = self.last.as_deref().unwrap_or("");
        let mut rows = statement.query(params![after, PAGE])?;
        while let Some(row) = rows.next()? {
            let trade_no: String = row.get(0)?;
            let status = Status::of_columns(row.get(4)?, row.get(5)?)
                .ok_or_else(|| LedgerError::Damaged(format!("order {trade_no} has an unknown status")))?;
            let own: u32 = row.get(6)?;
            let credits = own.saturating_add(self.extra.get(&trade_no).copied().unwrap_or(0));
            let (user_id, bonus_type, amount) = (row.get(1)?, row.get(2)?, row.get(3)?);
            self.page.push_back(OrderLine { trade_no, user_id, bonus_type, amount, status, credits });
        }
        self.done = self.page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        if let Some(line) = self.page.back() {
            self.last = Some(line.trade_no.clone());
        }
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
