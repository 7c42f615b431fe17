//! The state of a transaction: its connection, the budget keys that it knows, the numbers of its transfers, and the
//! transfers that are written with its commit. The steps stand in files of their own.

use super::budget_keys::{BudgetKeys, cell};
use super::session::Session;
use super::shape::Shape;
use super::transfers::Transfers;
use crate::error::LedgerError;
use crate::model::Unbudgeted;
use std::collections::BTreeMap;

/// The number of transfer numbers that a connection draws at once.
const BLOCK: i64 = 4_096;
const DRAW: &str = "SELECT nextval('transfer_blocks')";
/// The newest version of the rules that was noted.
const VERSION: &str = "SELECT version FROM rules_version";
/// The version of the tables, which stays what it is until the transaction has ended, and that of the rules. Locked in this
/// order: who waits for the migration at the first one holds nothing that the migration asks for next.
const VERSIONS: &str =
    "SELECT (SELECT max(version) FROM schema_version), (SELECT version FROM rules_version)";
const DRAW_MORE: &str = "SELECT nextval('transfer_blocks') FROM generate_series(1, $1::bigint)";

/// Numbers for transfers. A number is used at most once, whatever the outcome of its transaction: after a commit
/// whose answer was lost, nobody knows which ones are stored.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: i64,
    end: i64,
}

impl Numbers {
    fn refill(&mut self, block: i64) {
        (self.next, self.end) = (block * BLOCK, (block + 1) * BLOCK);
    }

    fn left(&self) -> i64 {
        self.end - self.next
    }

    pub(super) fn take(&mut self, session: &Session, count: usize) -> Result<Vec<i64>, LedgerError> {
        let mut numbers = Vec::with_capacity(count);
        let want = i64::try_from(count).unwrap_or(i64::MAX);
        let mut blocks = Vec::new();
        if want > self.left() {
            let more = (want - self.left() - 1) / BLOCK + 1;
            for row in &session.query(DRAW_MORE, &[&more])? {
                blocks.push(cell::<i64>(row, 0)?);
            }
        }
        let mut blocks = blocks.into_iter();
        while numbers.len() < count {
            if self.left() == 0 {
                let block = blocks.next().ok_or_else(|| LedgerError::Sql("a sequence has ended".into()))?;
                self.refill(block);
            }
            numbers.push(self.next);
            self.next += 1;
        }
        Ok(numbers)
    }
}

/// A transaction at READ COMMITTED.
#[derive(Debug)]
pub(crate) struct PgTx<'l> {
    pub(super) session: &'l Session,
    pub(super) budget_keys: &'l mut BudgetKeys,
    pub(super) numbers: &'l mut Numbers,
    pub(super) unbudgeted: Unbudgeted,
    /// The version of the rules when the transaction began; 0 for none.
    pub(super) rules_version: i64,
    pub(super) transfers: Transfers,
    /// The largest amount of one order, by type.
    pub(super) order_caps: BTreeMap<String, i64>,
    /// The tenant in the keys that payers of withdrawals are given.
    pub(super) tenant: String,
    pub(super) committed: bool,
}

/// Begins a transaction. Returns the newest version of the rules that was noted, 0 for none.
/// Neither that nor new numbers are worth a round trip of their own: they are sent with `BEGIN`.
pub(crate) fn begin(session: &Session, numbers: &mut Numbers) -> Result<i64, LedgerError> {
    // Where a read behind `BEGIN` fails, the transaction is open all the same.
    read_begun(session, numbers).inspect_err(|_| session.roll_back())
}

fn read_begun(session: &Session, numbers: &mut Numbers) -> Result<i64, LedgerError> {
    let is_low = numbers.left() < BLOCK / 4;
    // Tables of the newest version stay as they are.
    let may_change = session.shape() != Shape::Keyed;
    let read = if may_change { VERSIONS } else { VERSION };
    let (version, drawn) = session.begin(read, is_low.then_some(DRAW))?;
    if is_low {
        // What is left of the old block is wasted.
        numbers.refill(drawn.first().map_or(Ok(0), |row| cell(row, 0))?);
    }
    let Some(row) = version.first() else { return Ok(0) };
    if !may_change {
        return cell(row, 0);
    }
    session.adopt(cell(row, 0)?)?;
    Ok(cell::<Option<i64>>(row, 1)?.unwrap_or(0))
}

impl<'l> PgTx<'l> {
    /// The state of a transaction that has begun.
    pub fn new(
        session: &'l Session,
        budget_keys: &'l mut BudgetKeys,
        numbers: &'l mut Numbers,
        unbudgeted: Unbudgeted,
        rules_version: i64,
    ) -> Self {
        Self {
            session,
            budget_keys,
            numbers,
            unbudgeted,
            rules_version,
            transfers: Transfers::default(),
            order_caps: BTreeMap::new(),
            tenant: String::new(),
            committed: false,
        }
    }
}

impl Drop for PgTx<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Names and budget keys that this transaction made are gone with it.
        self.budget_keys.clear();
        self.session.roll_back();
    }
}
