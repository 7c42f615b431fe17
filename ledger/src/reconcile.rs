//! Reconciliation as SQL: orders, transfers, accounts and budgets must tell the same story. The same statements
//! on every database.

use crate::error::LedgerError;
use crate::model::Status;

/// `accounts.kind` of a user's account; its holder is the user id.
pub(crate) const USER: i64 = 0;
/// `accounts.kind` of an activity's funding account; its holder is the activity's name id. Where many write at
/// once the account is spread over several rows: this kind and those above it.
pub(crate) const FUNDING: i64 = 1;

/// What does not fit together; all zero in a sound ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reconciliation {
    /// Orders looked at.
    pub orders: u64,
    /// Transfers looked at.
    pub transfers: u64,
    /// Credited orders without their transfer.
    pub orders_without_transfer: u64,
    /// Transfers of an order that does not exist or is not credited.
    pub transfers_without_order: u64,
    /// Transfers of a credited order beyond its own (I1).
    pub double_credits: u64,
    /// Transfers whose user, amount or program is not their order's.
    pub mismatched_transfers: u64,
    /// Accounts whose balance is not the sum of their transfers, transfers of no account among them.
    pub wrong_balances: u64,
    /// Assets whose balances do not sum to 0.
    pub unbalanced_assets: u64,
    /// Budgets with used + reserved above their total (I4).
    pub budgets_over: u64,
    /// Budgets whose `used` is not the sum of their credited orders.
    pub wrong_used: u64,
    /// Budgets whose `reserved` is not the sum of their reserved orders.
    pub wrong_reserved: u64,
}

impl Reconciliation {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        *self == Self { orders: self.orders, transfers: self.transfers, ..Self::default() }
    }
}

const ORDERS_WITHOUT_TRANSFER: &str = "
SELECT count(*) FROM orders o LEFT JOIN transfers t ON t.id = o.transfer AND t.trade_no = o.trade_no
WHERE o.status = 1 AND t.id IS NULL";

/// One pass over the transfers. An order names one transfer; any other of it is a second credit.
const TRANSFERS: &str = "
SELECT count(*),
    count(*) FILTER (WHERE o.trade_no IS NULL OR o.status <> 1),
    count(*) FILTER (WHERE o.status = 1 AND o.transfer <> t.id),
    count(*) FILTER (WHERE t.user_id <> o.user_id OR t.amount <> o.amount OR t.program <> o.program)
FROM transfers t LEFT JOIN orders o ON o.trade_no = t.trade_no";

const UNBALANCED_ASSETS: &str = "
SELECT count(*) FROM (SELECT asset FROM accounts GROUP BY asset HAVING sum(balance) <> 0) AS unbalanced";

const BUDGETS_OVER: &str = "
SELECT count(*) FROM (SELECT program FROM budget_shards GROUP BY program
HAVING sum(used) + sum(reserved) > sum(total)
    OR max(used + reserved - total) > 0 OR min(used) < 0 OR min(reserved) < 0) AS over_total";

/// Both sides stacked with opposite signs: whatever does not cancel out is wrong, on whichever side it is
/// missing.
fn wrong_balances() -> String {
    format!(
        "SELECT count(*) FROM (SELECT kind, asset, holder FROM (
             SELECT CASE WHEN kind = {USER} THEN {USER} ELSE {FUNDING} END AS kind, asset, holder, balance
             FROM accounts
             UNION ALL
             SELECT {USER}, p.asset, t.user_id, -t.amount
             FROM transfers t JOIN programs p ON p.id = t.program
             UNION ALL
             SELECT {FUNDING}, p.asset, p.activity, sum(t.amount)
             FROM transfers t JOIN programs p ON p.id = t.program GROUP BY p.asset, p.activity
         ) AS sides GROUP BY kind, asset, holder HAVING sum(balance) <> 0) AS wrong"
    )
}

fn wrong_budgets(column: &str, status: i64) -> String {
    format!(
        "SELECT count(*) FROM (SELECT program FROM (
             SELECT program, {column} AS amount FROM budget_shards
             UNION ALL
             SELECT program, -sum(amount) FROM orders WHERE status = {status} GROUP BY program
         ) AS sides GROUP BY program HAVING sum(amount) <> 0) AS wrong"
    )
}

/// Transfers that their order does not name, by order number: a second credit, or one of an order that is not
/// credited.
pub(crate) const EXTRA_TRANSFERS: &str = "
SELECT t.trade_no, count(*) FROM transfers t LEFT JOIN orders o ON o.trade_no = t.trade_no
WHERE o.transfer IS NULL OR o.transfer <> t.id GROUP BY t.trade_no";

/// Asks the database through `row`, which answers a statement's one row of so many counts.
pub(crate) fn reconcile(
    mut row: impl FnMut(&str, usize) -> Result<Vec<u64>, LedgerError>,
) -> Result<Reconciliation, LedgerError> {
    let transfers = row(TRANSFERS, 4)?;
    let [transfers, transfers_without_order, double_credits, mismatched_transfers] = transfers[..] else {
        return Err(LedgerError::Sql("a count is missing".into()));
    };
    let mut count = |sql: &str| Ok::<_, LedgerError>(row(sql, 1)?.first().copied().unwrap_or(u64::MAX));
    Ok(Reconciliation {
        orders: count("SELECT count(*) FROM orders")?,
        transfers,
        orders_without_transfer: count(ORDERS_WITHOUT_TRANSFER)?,
        transfers_without_order,
        double_credits,
        mismatched_transfers,
        wrong_balances: count(&wrong_balances())?,
        unbalanced_assets: count(UNBALANCED_ASSETS)?,
        budgets_over: count(BUDGETS_OVER)?,
        wrong_used: count(&wrong_budgets("used", Status::CREDITED))?,
        wrong_reserved: count(&wrong_budgets("reserved", Status::RESERVED))?,
    })
}
