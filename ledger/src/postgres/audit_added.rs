//! What large ranges add to the sums of users' accounts.
//!
//! A range of many transfers is one of nearly as many users, who lie anywhere in `audit_sums`: each of them would be a look at its
//! index and a page that is changed, read before and logged as a whole. So the range is added as rows of many accounts each, beside
//! each other by their keys ([`add`]), which are written one after the other. The sweep, which comes to all accounts in the order of
//! their keys, brings what was added to those of its page into `audit_sums` before it compares them ([`settle`]): by then several
//! ranges may have added to an account, and many accounts of the page share each page of the table.
//!
//! Each transaction moves amounts as a whole, or none of them, and holds the auditors' lock. So at each moment the sum of an account is
//! that of `audit_sums` and `audit_added` together, and behind [`settle`] `audit_added` has nothing of the page's accounts.

use crate::audit::{add_to_sums, sums_of_users};

/// Ranges of fewer transfers are added to `audit_sums` at once.
pub(super) const ADD_MIN: i64 = 5_000;
/// The amounts of a row: its two lists of 8 bytes each just fit into one piece of what PostgreSQL stores outside of a row.
const AMOUNTS: i64 = 240;

/// Makes rows of amounts of the table `source`, each of which is in one of its `parts`.
fn packed(source: &str, parts: &str) -> String {
    format!(
        "INSERT INTO audit_added (asset, first, last, holders, amounts)
        SELECT asset, min(holder), max(holder), array_agg(holder), array_agg(amount) FROM {source} GROUP BY asset, {parts}"
    )
}

/// Adds the amounts that `added` selects, each of a user's account.
pub(super) fn add(added: &str) -> String {
    let numbered = format!(
        "(SELECT asset, holder, amount, (row_number() OVER (PARTITION BY asset ORDER BY holder) - 1) / {AMOUNTS} AS part
        FROM ({added}) AS added) AS numbered"
    );
    packed(&numbered, "part")
}

/// Brings what was added to users' accounts behind the key `$1`, `$2` into `audit_sums`, up to the key `$3`, `$4` or without end. What
/// their rows have of other accounts is written anew: of those in front of the page, and of those behind it.
pub(super) fn settle(has_end: bool) -> String {
    let (rows_end, end) = if has_end {
        ("AND (asset, first) <= ($3, $4)", "AND (asset, holder) <= ($3, $4)")
    } else {
        ("", "")
    };
    format!(
        "WITH taken AS (
            DELETE FROM audit_added WHERE (asset, last) > ($1, $2) {rows_end} RETURNING ctid AS place, asset, holders, amounts
        ), each_one AS (
            SELECT t.place, t.asset, e.holder, e.amount FROM taken t, unnest(t.holders, t.amounts) AS e(holder, amount)
        ), entries AS MATERIALIZED (
            SELECT place, asset, holder, amount, (asset, holder) > ($1, $2) AS is_behind,
                (asset, holder) > ($1, $2) {end} AS is_in FROM each_one
        ), kept AS ({})
        {}",
        packed("entries WHERE NOT is_in", "place, is_behind"),
        add_to_sums(&sums_of_users("SELECT asset, holder, amount FROM entries WHERE is_in"))
    )
}
