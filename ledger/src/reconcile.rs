//! Reconciliation as SQL: balances, budgets and settlements are computed from the journal, and compared with what is kept
//! of them; orders and withdrawals must agree with their transfers. The statements are the same on every database.

use crate::error::LedgerError;
use crate::journal::{
    BUDGET, CLEARING, DIRECT, FUNDING, PAYOUT, PENDING, POST, REVERSAL, SETTLEMENT, USER, VOID,
};
use crate::key::ACT;
use crate::withdrawal::WithdrawalStatus;

/// Counts of contradictions in a ledger; all of them are zero in a sound ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reconciliation {
    /// The number of orders that were read.
    pub orders: u64,
    /// The number of transfers that paid orders.
    pub transfers: u64,
    /// The number of withdrawals that were read.
    pub withdrawals: u64,
    /// Credited orders without their transfer.
    pub orders_without_transfer: u64,
    /// Transfers of an order that does not exist or is not credited.
    pub transfers_without_order: u64,
    /// Transfers of a credited order beyond its own (I1).
    pub double_credits: u64,
    /// Transfers whose user, payer, amount or budget key is not their order's.
    pub mismatched_transfers: u64,
    /// Orders whose pending transfers, less those that were posted or given up, are not what their status says.
    pub wrong_pending: u64,
    /// Accounts whose balance is not the sum of their transfers, transfers of no account among them.
    pub wrong_balances: u64,
    /// Bonus types whose balances do not sum to what their budgets have given out.
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
    /// Budgets whose total is not the sum of the transfers that funded them.
    pub wrong_totals: u64,
    /// Budgets whose `used` is not the sum of the transfers that they gave.
    pub wrong_used: u64,
    /// Reversals and adjustments that no done act of two operators stands for, or not with this amount, or more than once;
    /// and such acts without theirs.
    pub wrong_acts: u64,
    /// Budgets whose `reserved` is not the sum of their pending transfers.
    pub wrong_reserved: u64,
    /// Budgets of closed activities whose orders were detached, and whose transfers do not pay what these orders were credited.
    pub wrong_detached: u64,
}

impl Reconciliation {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        let Self { orders, transfers, withdrawals, .. } = *self;
        *self == Self { orders, transfers, withdrawals, ..Self::default() }
    }
}

/// The condition of a transfer that paid an order: what a budget gave to anyone but the campaign, and by no act of operators.
fn pays() -> String {
    format!(
        "t.debit = {BUDGET} AND t.credit <> {FUNDING} AND t.kind IN ({DIRECT}, {POST}) AND t.reference NOT LIKE '{ACT}%'"
    )
}

/// What only acts of operators move: what says so, a reversal, and whatever goes between a user and an activity's funding, or
/// to a budget from elsewhere than that.
pub(crate) fn moved_by_acts() -> String {
    format!(
        "(t.kind = {REVERSAL} OR t.reference LIKE '{ACT}%' OR (t.debit = {FUNDING} AND t.credit = {USER})
             OR (t.debit = {USER} AND t.credit = {FUNDING}) OR (t.credit = {BUDGET} AND t.debit <> {FUNDING}))"
    )
}

/// The name of a transfer `t` in [`moved_by_acts`], as [`done_acts`] has it: its reference, or `order` and the order's number and
/// activity, as in an act's subject. It needs the names of the activity (`n`) beside it.
pub(crate) fn act_of_transfer() -> String {
    format!(
        "CASE WHEN t.kind = {REVERSAL} THEN 'order ' || t.reference ||
             CASE WHEN t.reference LIKE '% %' THEN '' ELSE ' ' || n.name END ELSE t.reference END"
    )
}

/// The joins for [`act_of_transfer`].
pub(crate) fn activity_of_transfer() -> String {
    format!(
        "LEFT JOIN programs p ON t.credit = {BUDGET} AND p.id = t.credit_holder LEFT JOIN names n ON n.id = p.activity"
    )
}

/// The acts that moved money, by the names of their transfers.
pub(crate) fn done_acts() -> String {
    // In two parts, so that one that is looked for is found by the index of subjects: corrections make very many reversals.
    format!(
        "SELECT a.id AS act, a.subject AS about, e.amount FROM acts a JOIN act_ends e ON e.act = a.id
         WHERE e.outcome = 1 AND a.kind = 'reverse'
         UNION ALL
         SELECT a.id, '{ACT}' || a.id, e.amount FROM acts a JOIN act_ends e ON e.act = a.id
         WHERE e.outcome = 1 AND a.kind = 'adjust' AND a.parent = 0"
    )
}

/// Each reversal and each adjustment has its act, and each act its transfer. A key is the number and the activity, as in an
/// act's subject, or from before version 6 the number alone. Where there are no tables of acts, there are no such transfers.
fn wrong_acts(has_acts: bool) -> String {
    let moves = moved_by_acts();
    if !has_acts {
        return format!("SELECT count(*) FROM transfers t WHERE {moves}");
    }
    format!(
        "SELECT count(*) FROM (SELECT about FROM (
             SELECT {} AS about, t.amount FROM transfers t {} WHERE {moves}
             UNION ALL
             SELECT about, -amount FROM ({}) AS done
         ) AS sides GROUP BY about HAVING sum(amount) <> 0 OR count(*) <> 2) AS wrong",
        act_of_transfer(),
        activity_of_transfer(),
        done_acts()
    )
}

const ORDERS_WITHOUT_TRANSFER: &str = "
SELECT count(*) FROM orders o LEFT JOIN transfers t ON t.id = o.paid_by AND t.reference = o.order_key
WHERE o.status = 1 AND t.id IS NULL";

/// The condition of a transfer `t` whose order may be gone, since it was detached: one that was made before its activity was closed.
/// `place` is the column of a transfer's place.
pub(crate) fn of_detached(place: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM detached_budgets d WHERE d.program = t.debit_holder AND t.{place} < d.place)"
    )
}

/// One pass over the transfers. An order names one transfer; any other of it is a second credit.
fn paying_transfers(closed: Option<&str>) -> String {
    let gone = closed.map_or_else(String::new, |place| format!("AND NOT {}", of_detached(place)));
    format!(
        "SELECT count(*),
            count(*) FILTER (WHERE (o.order_key IS NULL {gone}) OR o.status <> 1),
            count(*) FILTER (WHERE o.status = 1 AND o.paid_by <> t.id),
            count(*) FILTER (WHERE t.amount <> o.amount OR t.debit_holder <> o.program
                OR (t.credit = {USER} AND t.credit_holder <> o.user_id)
                OR (t.credit = {SETTLEMENT} AND coalesce(n.name, '') <> o.payer))
        FROM transfers t LEFT JOIN orders o ON o.order_key = t.reference
        LEFT JOIN names n ON t.credit = {SETTLEMENT} AND n.id = t.credit_holder WHERE {}",
        pays()
    )
}

/// What the orders were credited that have gone is what the transfers of their budgets paid: each credit is there, and none more. As many
/// transfers as credited orders, and the same sum.
fn wrong_detached(place: &str) -> String {
    format!(
        "SELECT count(*) FROM detached_budgets d LEFT JOIN (
             SELECT t.debit_holder AS program, count(*) AS credited, sum(t.amount) AS amount
             FROM transfers t JOIN detached_budgets own ON own.program = t.debit_holder AND t.{place} < own.place
             WHERE {} GROUP BY t.debit_holder
         ) AS paid ON paid.program = d.program
         WHERE d.credited <> coalesce(paid.credited, 0) OR d.amount <> coalesce(paid.amount, 0)",
        pays()
    )
}

/// What is pending of an order is its amount while it is reserved, and nothing afterwards.
fn wrong_pending() -> String {
    format!(
        "SELECT count(*) FROM (SELECT order_key FROM (
             SELECT order_key, amount FROM orders WHERE status = 0
             UNION ALL
             SELECT reference, CASE kind WHEN {PENDING} THEN -amount ELSE amount END
             FROM transfers WHERE kind IN ({PENDING}, {POST}, {VOID})
         ) AS sides GROUP BY order_key HAVING sum(amount) <> 0) AS wrong"
    )
}

/// What the budgets gave out, and operators from an activity's funding, is where the balances are. A combined budget gives
/// nothing out by itself.
fn unbalanced_bonus_types() -> String {
    format!(
        "SELECT count(*) FROM (SELECT asset FROM (
             SELECT asset, balance FROM accounts
             UNION ALL
             SELECT p.asset, -h.used FROM budget_shards h JOIN programs p ON p.id = h.program
             JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE s.name <> '' AND b.name <> ''
             UNION ALL
             SELECT asset, CASE debit WHEN {FUNDING} THEN -amount ELSE amount END FROM transfers
             WHERE ((debit = {FUNDING} AND credit = {USER}) OR (debit = {USER} AND credit = {FUNDING}))
                 AND reference LIKE '{ACT}%'
         ) AS sides GROUP BY asset HAVING sum(balance) <> 0) AS unbalanced"
    )
}

const BUDGETS_OVER: &str = "
SELECT count(*) FROM (SELECT program FROM budget_shards GROUP BY program
HAVING sum(used) + sum(reserved) > sum(total)
    OR max(used + reserved - total) > 0 OR min(used) < 0 OR min(reserved) < 0) AS over_total";

/// Compares both sides by adding them with opposite signs: whatever does not cancel out is wrong, on whichever side it
/// is missing.
fn wrong_balances() -> String {
    let moves = format!("kind IN ({DIRECT}, {POST}, {REVERSAL})");
    format!(
        "SELECT count(*) FROM (SELECT kind, asset, holder FROM (
             SELECT CASE WHEN kind < {SETTLEMENT} THEN {SETTLEMENT} ELSE kind END AS kind, asset,
                 CASE WHEN kind IN ({CLEARING}, {PAYOUT}) THEN 0 ELSE holder END AS holder, balance FROM accounts
             UNION ALL
             SELECT debit, asset, debit_holder, sum(amount) FROM transfers
             WHERE {moves} AND debit <= {USER} GROUP BY debit, asset, debit_holder
             UNION ALL
             SELECT credit, asset, credit_holder, -sum(amount) FROM transfers
             WHERE {moves} AND credit <= {USER} GROUP BY credit, asset, credit_holder
         ) AS sides GROUP BY kind, asset, holder HAVING sum(balance) <> 0) AS wrong"
    )
}

fn wrong_withdrawals() -> String {
    let (paid, refused) = (WithdrawalStatus::Paid.code(), WithdrawalStatus::Refused.code());
    let (hold, pay) = (format!("m.credit = {CLEARING}"), format!("m.credit = {PAYOUT}"));
    let back = format!("m.credit = {USER}");
    let count = |what: &str| format!("sum(CASE WHEN {what} THEN 1 ELSE 0 END)");
    format!(
        "SELECT count(*) FROM (SELECT w.withdrawal_key FROM withdrawals w LEFT JOIN transfers m ON m.reference = w.withdrawal_key
             AND (m.debit = {CLEARING} OR m.credit = {CLEARING})
         GROUP BY w.withdrawal_key, w.status HAVING {} <> 1
             OR {} <> CASE WHEN w.status = {paid} THEN 1 ELSE 0 END
             OR {} <> CASE WHEN w.status = {refused} THEN 1 ELSE 0 END
             OR sum(CASE WHEN m.asset <> w.asset OR m.amount <> w.amount OR m.kind <> {DIRECT}
                 OR NOT ({hold} AND m.debit = {USER} AND m.debit_holder = w.user_id
                     OR {back} AND m.credit_holder = w.user_id OR {pay}) THEN 1 ELSE 0 END) > 0) AS wrong",
        count(&hold),
        count(&pay),
        count(&back)
    )
}

fn moves_without_withdrawal() -> String {
    format!(
        "SELECT count(*) FROM transfers m LEFT JOIN withdrawals w ON w.withdrawal_key = m.reference
         WHERE (m.debit = {CLEARING} OR m.credit = {CLEARING}) AND w.withdrawal_key IS NULL"
    )
}

/// A budget that is not set holds no more than a limit that no order reaches, which nobody funded.
fn wrong_totals() -> String {
    format!(
        "SELECT count(*) FROM (SELECT program FROM (
             SELECT h.program, sum(h.total) AS amount FROM budget_shards h JOIN programs p ON p.id = h.program
             WHERE p.budgeted GROUP BY h.program
             UNION ALL
             SELECT credit_holder, -sum(amount) FROM transfers WHERE debit = {FUNDING} AND credit = {BUDGET}
             GROUP BY credit_holder
             UNION ALL
             SELECT debit_holder, sum(amount) FROM transfers WHERE debit = {BUDGET} AND credit = {FUNDING}
             GROUP BY debit_holder
         ) AS sides GROUP BY program HAVING sum(amount) <> 0) AS wrong"
    )
}

/// What a budget has given out and not got back, from the journal, and what is pending of it.
fn used_and_reserved() -> [(&'static str, String); 2] {
    let of = |amount: &str, kinds: String| {
        format!(
            "SELECT debit_holder AS program, sum({amount}) AS amount FROM transfers
             WHERE debit = {BUDGET} AND credit <> {FUNDING} AND kind IN ({kinds}) GROUP BY debit_holder"
        )
    };
    let pending = format!("CASE kind WHEN {PENDING} THEN amount ELSE -amount END");
    let back = format!(
        "SELECT credit_holder, -sum(amount) FROM transfers
         WHERE credit = {BUDGET} AND debit <> {FUNDING}
             AND (kind = {REVERSAL} OR (kind = {DIRECT} AND reference LIKE '{ACT}%')) GROUP BY credit_holder"
    );
    [
        ("used", format!("{} UNION ALL {back}", of("amount", format!("{DIRECT}, {POST}")))),
        ("reserved", of(&pending, format!("{PENDING}, {POST}, {VOID}"))),
    ]
}

/// A combined budget counts what every budget key that it covers gave; a cap what those of its type gave in every
/// activity.
fn wrong_budgets(column: &str, given: &str) -> String {
    format!(
        "WITH given AS ({given})
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

/// Transfers that their order does not name, by order key: each is a second credit, or belongs to an order that is
/// not credited.
pub(crate) fn extra_transfers(closed: Option<&str>) -> String {
    let gone = closed
        .map_or_else(String::new, |place| format!("AND NOT (o.paid_by IS NULL AND {})", of_detached(place)));
    format!(
        "SELECT t.reference, count(*) FROM transfers t LEFT JOIN orders o ON o.order_key = t.reference
         WHERE {} AND (o.paid_by IS NULL OR o.paid_by <> t.id) {gone} GROUP BY t.reference",
        pays()
    )
}

/// The payers' settlement accounts, whose rows are of the kind -3 and those below.
pub(crate) const SETTLEMENTS: &str = "SELECT coalesce(n.name, ''), b.name, sum(a.balance) FROM accounts a
    JOIN names b ON b.id = a.asset LEFT JOIN names n ON n.id = a.holder
    WHERE a.kind <= -3 GROUP BY n.name, b.name ORDER BY 1, 2";

/// Asks the database through `row`, which returns the one row of counts that a statement gives. `has_acts`: whether it has
/// the tables of operators' acts; `closed`: the column of a transfer's place, if it has those of closed activities.
pub(crate) fn reconcile(
    has_acts: bool,
    closed: Option<&str>,
    mut row: impl FnMut(&str, usize) -> Result<Vec<u64>, LedgerError>,
) -> Result<Reconciliation, LedgerError> {
    let transfers = row(&paying_transfers(closed), 4)?;
    let [transfers, transfers_without_order, double_credits, mismatched_transfers] = transfers[..] else {
        return Err(LedgerError::Sql("a count is missing".into()));
    };
    let [used, reserved] = used_and_reserved();
    let mut count = |sql: &str| Ok::<_, LedgerError>(row(sql, 1)?.first().copied().unwrap_or(u64::MAX));
    Ok(Reconciliation {
        orders: count("SELECT count(*) FROM orders")?,
        transfers,
        orders_without_transfer: count(ORDERS_WITHOUT_TRANSFER)?,
        transfers_without_order,
        double_credits,
        mismatched_transfers,
        wrong_pending: count(&wrong_pending())?,
        wrong_balances: count(&wrong_balances())?,
        unbalanced_bonus_types: count(&unbalanced_bonus_types())?,
        withdrawals: count("SELECT count(*) FROM withdrawals")?,
        wrong_withdrawals: count(&wrong_withdrawals())?,
        moves_without_withdrawal: count(&moves_without_withdrawal())?,
        overdrawn: count(&format!("SELECT count(*) FROM accounts WHERE kind = {USER} AND balance < 0"))?,
        budgets_over: count(BUDGETS_OVER)?,
        wrong_totals: count(&wrong_totals())?,
        wrong_acts: count(&wrong_acts(has_acts))?,
        wrong_used: count(&wrong_budgets(used.0, &used.1))?,
        wrong_reserved: count(&wrong_budgets(reserved.0, &reserved.1))?,
        wrong_detached: closed.map_or(Ok(0), |place| count(&wrong_detached(place)))?,
    })
}
