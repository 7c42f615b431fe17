//! Where the orders of a range of transfers lie. An order's row is written by the transaction of its transfer, so the
//! orders of a range lie in few pages of their table, close to each other, however their keys are scattered over the index.
//! To read these pages costs a small part of what it costs to look each order up.
//!
//! Which pages these are is guessed from some of the orders, and nothing rests on the guess: what is not found there is looked up.

/// One payment of so many is looked up: about two or three of each page that is full of such orders.
pub(super) const SAMPLED: i64 = 32;
/// Ranges with fewer payments are looked up as a whole.
pub(super) const PAYMENTS_MIN: i64 = 1_000;
/// Pages between two that were found are read with them, where they are no more than this: to read them costs less than
/// to look up what one of them may have.
const GAP: i64 = 8;
/// The most runs of pages of a statement: each is a part of its plan.
const RUNS_MAX: usize = 100;

/// Runs of pages, from the first to the last, over these pages, which are sorted. They are at most [`RUNS_MAX`] and have at most
/// `pages_max` pages; none where that cannot be.
pub(super) fn runs(pages: &[i64], pages_max: i64) -> Option<Vec<(i64, i64)>> {
    let mut gap = GAP;
    loop {
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some((_, last)) if page.saturating_sub(*last) <= gap => *last = *page,
                _ => runs.push((*page, *page)),
            }
        }
        let read: i64 = runs.iter().map(|(first, last)| last - first + 1).sum();
        if runs.is_empty() || read > pages_max {
            return None;
        }
        if runs.len() <= RUNS_MAX {
            return Some(runs);
        }
        gap *= 2;
    }
}

/// A query of the orders in these runs of pages. What they are read by is known to servers from version 14 on.
pub(super) fn orders_of(runs: &[(i64, i64)]) -> String {
    let of = |(first, last): &(i64, i64)| {
        format!(
            "SELECT paid_by, order_key, program, status, amount, user_id, payer FROM orders \
             WHERE ctid >= '({first},0)'::tid AND ctid < '({},0)'::tid",
            last + 1
        )
    };
    runs.iter().map(of).collect::<Vec<_>>().join(" UNION ALL ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_beside_each_other_are_one_run() {
        assert_eq!(runs(&[7, 8, 10, 40, 41], 100), Some(vec![(7, 10), (40, 41)]));
        assert_eq!(runs(&[7], 1), Some(vec![(7, 7)]));
        assert_eq!(runs(&[], 100), None);
    }

    #[test]
    fn too_many_runs_are_joined_and_too_many_pages_are_none() {
        let scattered: Vec<i64> = (0..300).map(|page| page * 20).collect();
        assert_eq!(runs(&scattered, 10_000), Some(vec![(0, 299 * 20)]));
        assert_eq!(runs(&scattered, 5_000), None);
    }
}
