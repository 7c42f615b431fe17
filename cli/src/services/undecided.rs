//! Orders whose payers have not decided, by how long this process has seen them wait.
//!
//! The ledger knows when an order was accepted, not when its payer was asked first: behind a backlog of an hour each order that is
//! at its payer just now is an hour old. So the age of an order says nothing; that the same one is seen again and again does.

use std::collections::HashMap;

/// Since when each order is seen to wait for its payer.
#[derive(Debug, Default)]
pub struct Undecided {
    since_ms: HashMap<String, u64>,
}

impl Undecided {
    /// Takes the keys of orders that wait by now, the first ones in their order, and returns how many have been seen in every round
    /// for at least `late_ms`. If these are not all, those behind the last of them count as seen: what waited there may still do so.
    pub fn look(&mut self, keys: Vec<String>, are_all: bool, now_ms: u64, late_ms: u64) -> u64 {
        let mut before = std::mem::take(&mut self.since_ms);
        let unseen: Vec<_> = match keys.last().filter(|_| !are_all) {
            Some(last) => before.extract_if(|key, _| key > last).collect(),
            None => Vec::new(),
        };
        let seen = keys.into_iter().map(|key| {
            let since_ms = before.remove(&key).unwrap_or(now_ms);
            (key, since_ms)
        });
        self.since_ms = seen.collect();
        self.since_ms.extend(unseen);
        let is_late = |since_ms: &&u64| now_ms.saturating_sub(**since_ms) >= late_ms;
        self.since_ms.values().filter(is_late).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const N: usize>(keys: [&str; N]) -> Vec<String> {
        keys.map(str::to_owned).to_vec()
    }

    #[test]
    fn only_an_order_that_is_seen_all_the_time_is_late() {
        let mut undecided = Undecided::default();
        assert_eq!(undecided.look(keys(["a", "b"]), true, 1_000, 100), 0);
        assert_eq!(undecided.look(keys(["a", "b", "c"]), true, 1_099, 100), 0);
        assert_eq!(undecided.look(keys(["a", "c"]), true, 1_100, 100), 1, "a");
        assert_eq!(undecided.look(keys(["a", "b", "c"]), true, 1_200, 100), 2, "b was away and counts anew");
        assert_eq!(undecided.look(keys([]), true, 1_300, 100), 0);
        assert_eq!(undecided.look(keys(["a"]), true, 1_400, 100), 0);
    }

    #[test]
    fn an_order_that_smaller_keys_push_out_of_the_page_goes_on_waiting() {
        let mut undecided = Undecided::default();
        assert_eq!(undecided.look(keys(["k", "x"]), true, 1_000, 100), 0);
        assert_eq!(undecided.look(keys(["a", "b"]), false, 1_050, 100), 0);
        assert_eq!(undecided.look(keys(["x"]), true, 1_100, 100), 1, "x; and k has ended meanwhile");
    }
}
