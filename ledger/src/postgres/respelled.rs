//! The statements that version 3 of the tables has in other words of its own ([`shape`](super::shape)).

/// Adds to accounts, in the order of their keys, so that writers that share several wait in one direction. The
/// row is locked before `accounts.balance` and `accounts.last` are read, in its latest version, so no other
/// writer's change is overwritten; `before` is the end of the chain to which this transaction's transfers are added.
pub(crate) const ADD: &str = "INSERT INTO accounts (kind, asset, holder, balance, last, before) \
    SELECT w.*, 0 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    before = accounts.last, last = excluded.last RETURNING asset, holder, before";

/// The transaction's number is the same in all rows, and asked for once.
pub(crate) const APPEND: &str = "INSERT INTO transfers \
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx) \
    SELECT w.*, (SELECT pg_current_xact_id()::text::bigint) FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], \
    $4::smallint[], $5::bigint[], $6::smallint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], \
    $11::text[]) AS w";

/// The chain of each of a user's accounts, from its end on.
pub(crate) const FLOW: &str = "WITH RECURSIVE chain AS (
         SELECT a.asset, a.last AS id, 1::bigint AS step FROM (SELECT DISTINCT asset FROM programs) p
         JOIN accounts a ON a.kind = $1 AND a.asset = p.asset AND a.holder = $2
         UNION ALL
         SELECT c.asset, t.prev, c.step + 1 FROM chain c JOIN transfers t ON t.id = c.id WHERE c.step < $3
     )
     SELECT b.name, c.id, t.reference, coalesce(n.name, ''), t.amount, t.time_ms, t.debit, t.credit FROM chain c
     JOIN names b ON b.id = c.asset LEFT JOIN transfers t ON t.id = c.id
     LEFT JOIN programs p ON t.debit = $4 AND p.id = t.debit_holder LEFT JOIN names n ON n.id = p.activity
     WHERE c.id <> 0 ORDER BY c.asset, c.step";
/// A page of orders, each with whether the transfer is there that it names.
pub(crate) const LINES: &str = "SELECT o.order_key, o.user_id, n.name, o.amount, o.status, o.reason, \
    EXISTS (SELECT 1 FROM transfers t WHERE t.id = o.paid_by AND t.reference = o.order_key), a.name \
    FROM orders o JOIN programs p ON p.id = o.program JOIN names n ON n.id = p.asset \
    JOIN names a ON a.id = p.activity WHERE o.order_key > $1 ORDER BY o.order_key LIMIT $2";
