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

use crate::journal::USER;

/// Ranges of fewer transfers are added to `audit_sums`.
pub(super) const ADD_MIN: i64 = 5_000;
/// The amounts of a row: its two lists of 8 bytes each just fit into one piece of what PostgreSQL stores outside of a row.
const AMOUNTS: i64 = 240;

/// Whether so many rows are too many for a page of so many accounts: half as many again as they need to have.
pub(super) fn are_too_many(rows: i64, accounts: i64) -> bool {
    rows > accounts / AMOUNTS * 3 / 2 + 8
}

/// Makes rows of amounts of the table `source`, each of which is in one of its `parts`.
fn pack(source: &str, parts: &str) -> String {
    format!(
        "INSERT INTO audit_packed (asset, first, last, holders, amounts)
        SELECT asset, min(holder), max(holder), array_agg(holder), array_agg(amount) FROM {source} GROUP BY asset, {parts}"
    )
}

/// Adds the amounts that `added` selects, each of a user's account.
pub(super) fn add(added: &str) -> String {
    let numbered = format!(
        "(SELECT asset, holder, amount, (row_number() OVER (PARTITION BY asset ORDER BY holder) - 1) / {AMOUNTS} AS part
        FROM ({added}) AS added) AS numbered"
    );
    pack(&numbered, "part")
}

/// The rows that have accounts behind the key `$1`, `$2`, up to the key `$3`, `$4` or without end, and maybe others.
fn of_page(has_end: bool) -> String {
    let end = if has_end { "AND (asset, first) <= ($3, $4)" } else { "" };
    format!("audit_packed WHERE (asset, last) > ($1, $2) {end}")
}

/// Counts these rows.
pub(super) fn count(has_end: bool) -> String {
    format!("SELECT count(*) FROM {}", of_page(has_end))
}

/// The amounts of these rows.
pub(super) fn packed_sums(has_end: bool) -> String {
    format!(
        "SELECT {USER} AS kind, p.asset, e.holder, e.amount FROM (SELECT asset, holders, amounts FROM {}) AS p,
            unnest(p.holders, p.amounts) AS e(holder, amount)",
        of_page(has_end)
    )
}

/// Makes one amount of all those of an account of the page, and rows of these. What the rows have of other accounts is written anew: of
/// those in front of the page, and of those behind it.
pub(super) fn tidy(has_end: bool) -> String {
    let end = if has_end { "AND (asset, holder) <= ($3, $4)" } else { "" };
    let sums = "SELECT asset, holder, CAST(sum(amount) AS bigint) AS amount FROM entries WHERE is_in
        GROUP BY asset, holder HAVING sum(amount) <> 0";
    format!(
        "WITH taken AS (
            DELETE FROM {} RETURNING ctid AS place, asset, holders, amounts
        ), each_one AS (
            SELECT t.place, t.asset, e.holder, e.amount FROM taken t, unnest(t.holders, t.amounts) AS e(holder, amount)
        ), entries AS MATERIALIZED (
            SELECT place, asset, holder, amount, (asset, holder) > ($1, $2) AS is_behind,
                (asset, holder) > ($1, $2) {end} AS is_in FROM each_one
        ), others AS ({})
        {}",
        of_page(has_end),
        pack("entries WHERE NOT is_in", "place, is_behind"),
        add(sums)
    )
}
