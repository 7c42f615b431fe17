//! The tables have one of three shapes: that of version 3 and that of version 5, which processes of older versions write
//! too, and that of version 6.
//!
//! ## An upgrade with old and new processes side by side
//! 1. **Expand.** Nothing is changed in the database. A process of this build that finds an older version keeps to it: its
//!    statements are spelled as that version has them ([`spell`]), orders and withdrawals have the keys that they have there
//!    ([`key`](crate::key)), and of its entries it writes those that version 3 knows
//!    ([`Transfers`](super::transfers::Transfers)), with the same locks. Old and new processes are then as any two old ones.
//! 2. **Contract.** `windfall ledger migrate` ([`migrate`](super::migrate)) brings the tables to version 6, in one
//!    transaction: it makes the journal, where there is none, and from then on an order counts within its activity, and a
//!    withdrawal within its user. A person runs it when no process of an older version is left; it refuses while it sees one.
//!    Before that transaction it builds the indexes of large tables, while everybody writes ([`indexes`](super::indexes)).
//!
//! ## Why nothing is committed beside the migration
//! - A transaction of this build reads the version with its `BEGIN`, so it holds a lock on `schema_version` until it ends. The
//!   migration locks that table alone before it changes anything: it waits for transactions that have read the old one, and
//!   those that begin later read the new version.
//! - Processes of older versions know nothing of that. But each statement of theirs that makes or changes an order or a
//!   withdrawal names a column or a table that the migration takes away (`orders.trade_no` became `order_key`,
//!   `withdrawals.id` `withdrawal_key`), so their transactions fail as a whole, as soon as the migration has committed. One
//!   of version 5 that is still connected can set budgets, archive what it cannot read, and write audit lines of replays,
//!   whose columns were not renamed: it writes there what this build would write. What is spelled for an older version by this build
//!   fails in the same way, so that the money does not rest on the lock alone. A process that starts anew refuses the version.
//! - A migration that dies has changed nothing, but for indexes that older processes do not mind. Two at once: an advisory lock lets one work. The other
//!   waits for it no longer than the lock's time-out; then it finds it done, or ends with "unreachable" and can be started again.
//! - A read has no transaction to hold a lock with: one that was spelled for an older version fails where the names are gone,
//!   and is asked again on a new connection, which looks at the version first.
//! - The way back is the same: after a fail-over to a server from before the migration each new connection finds the
//!   older version. Whether that server may be used is the business of the ledger's [mark](crate::mark), in all shapes alike.

use super::respelled::{ADD, APPEND, FLOW, LINES};
use std::borrow::Cow;

/// The newest version of the tables before the journal.
pub(crate) const THREE: i64 = 3;
/// The newest version in which an order's number alone is its key.
pub(crate) const FIVE: i64 = 5;
/// The version that this build writes.
pub(crate) const KNOWN: i64 = 6;

/// The shape of the tables that a connection has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Those of version 3.
    Three,
    /// Those of version 5: a journal, of orders whose key is their number alone.
    Journal,
    /// Those of version 6: an order's key is its number and its activity.
    Keyed,
}

/// A prepared statement, for tables of this shape.
pub(crate) fn spell(shape: Shape, sql: &'static str) -> Cow<'static, str> {
    match (shape, sql) {
        (Shape::Keyed, _) => sql.into(),
        (Shape::Journal, _) => rename_5(sql),
        (Shape::Three, ADD) => ADD_3.into(),
        (Shape::Three, APPEND) => APPEND_3.into(),
        (Shape::Three, FLOW) => FLOW_3.into(),
        (Shape::Three, LINES) => rename(sql).replace("t.reference", "t.trade_no").into(),
        (Shape::Three, _) => rename(sql),
    }
}

/// A statement of a check, which reads the journal and the accounts as a whole.
pub(crate) fn spell_check(shape: Shape, sql: &str) -> Cow<'_, str> {
    if shape == Shape::Keyed {
        return sql.into();
    }
    if shape == Shape::Journal || !["transfers", "accounts"].iter().any(|table| sql.contains(table)) {
        return rename_5(sql);
    }
    let sql = rename(sql);
    match sql.strip_prefix("WITH ") {
        Some(more) => format!("WITH {JOURNAL_3}, {more}").into(),
        None => format!("WITH {JOURNAL_3} {sql}").into(),
    }
}

/// The columns of version 6 that version 5 does not have, or under other names.
fn rename_5(sql: &str) -> Cow<'_, str> {
    if ["order_key", "withdrawal_key", "payer_key"].iter().any(|new| sql.contains(new)) {
        let sql = sql.replace("order_key", "trade_no").replace("withdrawal_key", "id");
        return sql.replace("w.payer_key", "''").into();
    }
    sql.into()
}

/// The columns that have other names in version 3.
fn rename(sql: &str) -> Cow<'_, str> {
    let sql = rename_5(sql);
    if sql.contains("paid_by") || sql.contains("guarded") {
        return sql.replace("paid_by", "transfer").replace("guarded", "careful").into();
    }
    sql
}

/// What the journal would hold. What is pending is what orders hold; accounts of campaigns are not of the journal.
const JOURNAL_3: &str = "transfers AS (
    SELECT t.id, 0 AS kind, p.asset, 2 AS debit, t.program AS debit_holder, 0 AS credit, t.user_id AS credit_holder,
        t.amount, t.trade_no AS reference
    FROM transfers t LEFT JOIN programs p ON p.id = t.program
    UNION ALL
    SELECT id, 0, asset, CASE kind WHEN 0 THEN 0 ELSE -1 END, CASE kind WHEN 0 THEN user_id ELSE 0 END,
        CASE kind WHEN 0 THEN -1 WHEN 1 THEN -2 ELSE 0 END, CASE kind WHEN 2 THEN user_id ELSE 0 END, amount, withdrawal
    FROM withdrawal_moves
    UNION ALL
    SELECT 0, 1, p.asset, 2, o.program, 0, o.user_id, o.amount, o.trade_no
    FROM orders o JOIN programs p ON p.id = o.program WHERE o.status = 0
    UNION ALL
    SELECT 0, 0, p.asset, 1, p.activity, 2, p.id, sum(h.total)::bigint, ''
    FROM programs p JOIN budget_shards h ON h.program = p.id WHERE p.budgeted GROUP BY p.id
), accounts AS (SELECT * FROM accounts WHERE kind <= 0)";

/// A campaign's account is spread over rows of the kinds from 1 on; its holder is the activity, which a budget key names.
/// In the order in which older versions move accounts: users, campaigns, then what is in flight.
const ADD_3: &str = "INSERT INTO accounts (kind, asset, holder, balance, last, before) \
    SELECT w.kind, w.asset, CASE WHEN w.kind > 0 THEN p.activity ELSE w.holder END AS owner, sum(w.balance)::bigint, \
    max(w.last), 0 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
    AS w(kind, asset, holder, balance, last) LEFT JOIN programs p ON w.kind > 0 AND p.id = w.holder \
    GROUP BY w.kind, w.asset, owner ORDER BY w.kind <> 0, w.kind < 0, w.asset, w.kind, owner \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    before = accounts.last, last = excluded.last RETURNING asset, holder, before";

/// A movement of a withdrawal has a table of its own.
const APPEND_3: &str = "WITH w AS ( \
        SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::smallint[], \
        $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[]) AS w(id, kind, asset, debit, \
        debit_holder, credit, credit_holder, amount, prev, time_ms, reference) \
    ), moved AS ( \
        INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
        SELECT w.id, w.reference, CASE WHEN w.debit = 0 THEN 0 WHEN w.credit = -2 THEN 1 ELSE 2 END, o.user_id, w.asset, \
        w.amount, w.prev, w.time_ms FROM w LEFT JOIN withdrawals o ON o.id = w.reference \
        WHERE w.debit = -1 OR w.credit = -1 \
    ) INSERT INTO transfers (id, user_id, program, amount, prev, time_ms, trade_no) \
    SELECT w.id, w.credit_holder, w.debit_holder, w.amount, w.prev, w.time_ms, w.reference FROM w WHERE w.debit = 2";

const FLOW_3: &str = "WITH RECURSIVE chain AS (
        SELECT a.asset, a.last AS id, 1::bigint AS step FROM (SELECT DISTINCT asset FROM programs) p
        JOIN accounts a ON a.kind = $1 AND a.asset = p.asset AND a.holder = $2
        UNION ALL
        SELECT c.asset, coalesce(t.prev, m.prev), c.step + 1 FROM chain c
        LEFT JOIN transfers t ON t.id = c.id LEFT JOIN withdrawal_moves m ON m.id = c.id
        WHERE c.step < $3 AND coalesce(t.prev, m.prev) IS NOT NULL
    )
    SELECT b.name, c.id, coalesce(t.trade_no, m.withdrawal), coalesce(n.name, ''), coalesce(t.amount, m.amount),
        coalesce(t.time_ms, m.time_ms),
        (CASE WHEN m.kind IS NULL THEN $4::smallint WHEN m.kind = 0 THEN 0 ELSE -1 END)::smallint,
        (CASE WHEN m.kind = 0 THEN -1 ELSE 0 END)::smallint FROM chain c
    JOIN names b ON b.id = c.asset LEFT JOIN withdrawal_moves m ON m.id = c.id
    LEFT JOIN (transfers t JOIN programs p ON p.id = t.program JOIN names n ON n.id = p.activity)
    ON t.id = c.id WHERE c.id <> 0 ORDER BY c.asset, c.step";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_takes_statements_as_they_are() {
        for sql in [ADD, APPEND, FLOW, LINES] {
            assert_eq!(spell(Shape::Keyed, sql), sql);
            assert_ne!(spell(Shape::Three, sql), sql);
        }
        for sql in [ADD, APPEND, FLOW] {
            assert_eq!(spell(Shape::Journal, sql), sql);
        }
    }

    #[test]
    fn version_5_has_numbers_and_ids_for_keys() {
        let own =
            spell(Shape::Journal, "SELECT w.withdrawal_key, w.payer_key, o.order_key, o.paid_by FROM orders");
        assert_eq!(own, "SELECT w.id, '', o.trade_no, o.paid_by FROM orders");
        assert_eq!(
            spell_check(Shape::Journal, "SELECT order_key FROM transfers"),
            "SELECT trade_no FROM transfers"
        );
    }

    #[test]
    fn version_3_has_other_names() {
        let own = spell(Shape::Three, "UPDATE orders SET paid_by = 1 WHERE NOT guarded AND order_key = ''");
        assert_eq!(own, "UPDATE orders SET transfer = 1 WHERE NOT careful AND trade_no = ''");
        for sql in [ADD, APPEND, FLOW, LINES] {
            let own = spell(Shape::Three, sql);
            assert!(!["paid_by", "guarded", "t.reference"].iter().any(|new| own.contains(new)), "{own}");
        }
    }

    #[test]
    fn a_check_reads_a_view_of_the_older_tables() {
        let own = spell_check(Shape::Three, "WITH given AS (SELECT 1 FROM transfers) SELECT 1");
        assert!(own.starts_with("WITH transfers AS (") && own.contains("), given AS ("), "{own}");
        assert_eq!(spell_check(Shape::Three, "SELECT 1 FROM orders"), "SELECT 1 FROM orders");
    }
}
