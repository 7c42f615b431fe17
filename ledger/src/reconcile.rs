//! Reconciliation as SQL: orders, transfers, accounts and budgets must agree. The statements are the same on
//! every database.

use crate::error::LedgerError;
use crate::model::{CREDITED, RESERVED};
use crate::withdrawal::{HOLD, PAY, RETURN, WithdrawalStatus};

/// `accounts.kind` of a user's account; its holder is the user id.
pub(crate) const USER: i64 = 0;
/// `accounts.kind` of an activity's funding account; its holder is the activity's name id. Where many write at
/// once the account is spread over several rows: this kind and those above it.
pub(crate) const FUNDING: i64 = 1;
/// `accounts.kind` of a bonus type's clearing account, which holds withdrawals that are not decided; its holder is the
/// number of a row, where many write at once.
pub(crate) const CLEARING: i64 = -1;
/// `accounts.kind` of a bonus type's payout account, which receives what has left for good; its holder is as with
/// clearing.
pub(crate) const PAYOUT: i64 = -2;

/// Counts of contradictions in a ledger; all of them are zero in a sound ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reconciliation {
    /// The number of orders that were read.
    pub orders: u64,
    /// The number of transfers that were read.
    pub transfers: u64,
    /// The number of withdrawals that were read.
    pub withdrawals: u64,
    /// Credited orders without their transfer.
    pub orders_without_transfer: u64,
    /// Transfers of an order that does not exist or is not credited.
    pub transfers_without_order: u64,
    /// Transfers of a credited order beyond its own (I1).
    pub double_credits: u64,
    /// Transfers whose user, amount or budget key is not their order's.
    pub mismatched_transfers: u64,
    /// Accounts whose balance is not the sum of their transfers, transfers of no account among them.
    pub wrong_balances: u64,
    /// Assets whose balances do not sum to 0.
    pub unbalanced_bonus_types: u64,
    /// Withdrawals whose movements are not exactly those that their status says, for their user, bonus type and amount:
    /// held once, and paid or given back once or not at all.
    pub wrong_withdrawals: u64,
    /// Movements of withdrawals that do not exist.
    pub moves_without_withdrawal: u64,
    /// Users' accounts below 0.
    pub overdrawn: u64,
    /// Budgets with used + reserved above their total (I4).
    pub budgets_over: u64,
    /// Budgets whose `used` is not the sum of their credited orders.
    pub wrong_used: u64,
    /// Budgets whose `reserved` is not the sum of their reserved orders.
    pub wrong_reserved: u64,
}

impl Reconciliation {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        let Self { orders, transfers, withdrawals, .. } = *self;
        *self == Self { orders, transfers, withdrawals, ..Self::default() }
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

const UNBALANCED_BONUS_TYPES: &str = "
SELECT count(*) FROM (SELECT asset FROM accounts GROUP BY asset HAVING sum(balance) <> 0) AS unbalanced";

const BUDGETS_OVER: &str = "
SELECT count(*) FROM (SELECT program FROM budget_shards GROUP BY program
HAVING sum(used) + sum(reserved) > sum(total)
    OR max(used + reserved - total) > 0 OR min(used) < 0 OR min(reserved) < 0) AS over_total";

/// Compares both sides by adding them with opposite signs: whatever does not cancel out is wrong, on whichever side it
/// is missing.
fn wrong_balances() -> String {
    format!(
        "SELECT count(*) FROM (SELECT kind, asset, holder FROM (
             SELECT CASE WHEN kind <= {USER} THEN kind ELSE {FUNDING} END AS kind, asset,
                 CASE WHEN kind < {USER} THEN 0 ELSE holder END AS holder, balance FROM accounts
             UNION ALL
             SELECT {USER}, p.asset, t.user_id, -t.amount
             FROM transfers t JOIN programs p ON p.id = t.program
             UNION ALL
             SELECT {FUNDING}, p.asset, p.activity, sum(t.amount)
             FROM transfers t JOIN programs p ON p.id = t.program GROUP BY p.asset, p.activity
             UNION ALL
             SELECT {USER}, asset, user_id, CASE WHEN kind = {HOLD} THEN amount ELSE -amount END
             FROM withdrawal_moves WHERE kind <> {PAY}
             UNION ALL
             SELECT {CLEARING}, asset, 0, sum(CASE WHEN kind = {HOLD} THEN -amount ELSE amount END)
             FROM withdrawal_moves GROUP BY asset
             UNION ALL
             SELECT {PAYOUT}, asset, 0, -sum(amount) FROM withdrawal_moves WHERE kind = {PAY} GROUP BY asset
         ) AS sides GROUP BY kind, asset, holder HAVING sum(balance) <> 0) AS wrong"
    )
}

fn wrong_withdrawals() -> String {
    let (paid, refused) = (WithdrawalStatus::Paid.code(), WithdrawalStatus::Refused.code());
    let transfers = |kind: i64| format!("sum(CASE WHEN m.kind = {kind} THEN 1 ELSE 0 END)");
    format!(
        "SELECT count(*) FROM (SELECT w.id FROM withdrawals w LEFT JOIN withdrawal_moves m ON m.withdrawal = w.id
         GROUP BY w.id, w.status HAVING {} <> 1
             OR {} <> CASE WHEN w.status = {paid} THEN 1 ELSE 0 END
             OR {} <> CASE WHEN w.status = {refused} THEN 1 ELSE 0 END
             OR sum(CASE WHEN m.user_id <> w.user_id OR m.asset <> w.asset OR m.amount <> w.amount
                 OR m.kind NOT IN ({HOLD}, {PAY}, {RETURN}) THEN 1 ELSE 0 END) > 0) AS wrong",
        transfers(HOLD),
        transfers(PAY),
        transfers(RETURN)
    )
}

const MOVES_WITHOUT_WITHDRAWAL: &str = "
SELECT count(*) FROM withdrawal_moves m LEFT JOIN withdrawals w ON w.id = m.withdrawal WHERE w.id IS NULL";

/// A combined budget counts the orders of every budget key that it covers; a cap those of its type in every activity.
fn wrong_budgets(column: &str, status: i64) -> String {
    format!(
        "WITH given AS (SELECT program, sum(amount) AS amount FROM orders WHERE status = {status} GROUP BY program)
         SELECT count(*) FROM (SELECT program FROM (
             SELECT program, {column} AS amount FROM budget_shards
             UNION ALL
             SELECT program, -amount FROM given
             UNION ALL
             SELECT q.id, -g.amount FROM given g JOIN programs p ON p.id = g.program
             JOIN programs q ON q.activity IN (p.activity, (SELECT id FROM names WHERE name = ''))
                 AND q.id <> p.id AND q.budgeted
                 AND (q.scene = p.scene OR q.scene = (SELECT id FROM names WHERE name = ''))
                 AND (q.asset = p.asset OR q.asset = (SELECT id FROM names WHERE name = ''))
         ) AS sides GROUP BY program HAVING sum(amount) <> 0) AS wrong"
    )
}

/// Transfers that their order does not name, by order number: each is a second credit, or belongs to an order that is
/// not credited.
pub(crate) const EXTRA_TRANSFERS: &str = "
SELECT t.trade_no, count(*) FROM transfers t LEFT JOIN orders o ON o.trade_no = t.trade_no
WHERE o.transfer IS NULL OR o.transfer <> t.id GROUP BY t.trade_no";

/// Asks the database through `row`, which returns the one row of counts that a statement gives.
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
        unbalanced_bonus_types: count(UNBALANCED_BONUS_TYPES)?,
        withdrawals: count("SELECT count(*) FROM withdrawals")?,
        wrong_withdrawals: count(&wrong_withdrawals())?,
        moves_without_withdrawal: count(MOVES_WITHOUT_WITHDRAWAL)?,
        overdrawn: count(&format!("SELECT count(*) FROM accounts WHERE kind = {USER} AND balance < 0"))?,
        budgets_over: count(BUDGETS_OVER)?,
        wrong_used: count(&wrong_budgets("used", CREDITED))?,
        wrong_reserved: count(&wrong_budgets("reserved", RESERVED))?,
    })
}
