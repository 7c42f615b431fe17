//! Sums of users' accounts, many in a row.
//!
//! A range of many transfers is one of nearly as many users, who lie anywhere in `audit_sums`: each of them would be a look at its
//! index and a page that is changed, read before and logged as a whole. So a large range is added as rows of many accounts each, beside
//! each other by their keys ([`add`]), which are written one after the other; an account may be in many of them. The sweep, which comes
//! to all accounts in the order of their keys, reads those that have accounts of its page ([`packed_sums`]), and where they have become
//! many, it first makes one of them for many accounts again ([`tidy`]).
//!
//! Each transaction writes all of it or none, and holds the auditors' lock. So the sum of an account is at each moment that of its row in
//! `audit_sums` and of all its amounts in `audit_packed`.

use crate::audit::db::Value;

/// Ranges of fewer transfers are added to `audit_sums`.
pub(super) const ADD_MIN: i64 = 5_000;
/// The amounts of a row: its two lists of 8 bytes each just fit into one piece of what PostgreSQL stores outside of a row.
const AMOUNTS: i64 = 240;

/// Whether so many rows are too many for a page of so many accounts: half as many again as they need to have.
pub(super) fn are_too_many(rows: i64, accounts: i64) -> bool {
    rows > accounts / AMOUNTS * 3 / 2 + 8
}

/// Adds the amounts that `added` selects, each of a user's account.
pub(super) fn add(added: &str) -> String {
    format!(
        "INSERT INTO audit_packed (asset, first, last, holders, amounts)
        SELECT asset, min(holder), max(holder), array_agg(holder), array_agg(amount) FROM (
            SELECT asset, holder, amount, (row_number() OVER (PARTITION BY asset ORDER BY holder) - 1) / {AMOUNTS} AS part
            FROM ({added}) AS added
        ) AS numbered GROUP BY asset, part"
    )
}

/// The rows that have accounts of the page behind the key `$1`, `$2`, up to the key `$3`, `$4` or without end, and maybe others.
///
/// Within a bonus type an index of ranges finds them. A page over the border of two bonus types, and the last one, reads all rows: a
/// sweep has as few of these as there are bonus types.
fn of_page(page: &[Value<'_>]) -> String {
    let condition = match page {
        [Value::Int(bonus_type), _, Value::Int(last), _] if bonus_type == last => {
            "asset >= $1 AND asset <= $3 AND numrange(first::numeric, last::numeric, '[]')
                && numrange($2::bigint::numeric, $4::bigint::numeric, '(]')"
        }
        [_, _, _, _] => "(asset, last) > ($1, $2) AND (asset, first) <= ($3, $4)",
        _ => "(asset, last) > ($1, $2)",
    };
    format!("audit_packed WHERE {condition}")
}

/// Counts these rows.
pub(super) fn count(page: &[Value<'_>]) -> String {
    format!("SELECT count(*) FROM {}", of_page(page))
}

/// The amounts of these rows.
pub(super) fn packed_sums(page: &[Value<'_>]) -> String {
    format!(
        "SELECT p.asset, e.holder, e.amount FROM (SELECT asset, holders, amounts FROM {}) AS p,
            unnest(p.holders, p.amounts) AS e(holder, amount)",
        of_page(page)
    )
}

/// Makes one amount of all those of an account in these rows, and rows of these amounts. What lies in front of the page or behind it
/// is packed with it, so that a wide row is written anew once, not by each page that it reaches into.
pub(super) fn tidy(page: &[Value<'_>]) -> String {
    let sums = "SELECT asset, holder, CAST(sum(amount) AS bigint) AS amount FROM entries
        GROUP BY asset, holder HAVING sum(amount) <> 0";
    format!(
        "WITH taken AS (
            DELETE FROM {} RETURNING asset, holders, amounts
        ), entries AS (
            SELECT t.asset, e.holder, e.amount FROM taken t, unnest(t.holders, t.amounts) AS e(holder, amount)
        )
        {}",
        of_page(page),
        add(sums)
    )
}
