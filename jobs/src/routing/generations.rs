//! A map that forgets what was used longest ago.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

/// What an entry takes of the capacity.
pub(super) trait Cost {
    fn cost(&self) -> usize;
}

/// A bounded map in two generations. What is used moves to the young one. When that is full, it becomes the old one, and
/// what was not used since the last such change is forgotten. So what was used most recently, up to half of the capacity,
/// is always there, without a list of all uses.
pub(super) struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    young_cost: usize,
    young_cost_max: usize,
}

impl<K: Hash + Eq, V: Cost> Generations<K, V> {
    /// An empty map. Its entries together cost `cost_max` at most, unless a single one costs more than half of that.
    pub(super) fn new(cost_max: usize) -> Self {
        let (young, old) = (HashMap::new(), HashMap::new());
        Self { young, old, young_cost: 0, young_cost_max: cost_max / 2 }
    }

    /// Hands an entry, which is made if there is none, to `use_it`. What is forgotten for it comes back as well, to be
    /// dropped when no lock is held.
    pub(super) fn with<Q, R>(
        &mut self,
        key: &Q,
        make: impl FnOnce() -> (K, V),
        use_it: impl FnOnce(&mut V) -> R,
    ) -> (R, HashMap<K, V>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (key, mut value) = self.take(key).unwrap_or_else(make);
        let answer = use_it(&mut value);
        let mut forgotten = HashMap::new();
        if self.young_cost + value.cost() > self.young_cost_max {
            forgotten = mem::replace(&mut self.old, mem::take(&mut self.young));
            self.young_cost = 0;
        }
        self.young_cost += value.cost();
        self.young.insert(key, value);
        (answer, forgotten)
    }

    /// An entry, which does not become younger.
    pub(super) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Takes an entry out.
    pub(super) fn take<Q>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some((key, value)) = self.young.remove_entry(key) {
            self.young_cost -= value.cost();
            return Some((key, value));
        }
        self.old.remove_entry(key)
    }

    #[cfg(test)]
    pub(super) fn cost(&self) -> usize {
        self.young.values().chain(self.old.values()).map(Cost::cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Heavy(usize);

    impl Cost for Heavy {
        fn cost(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn what_was_used_last_stays_within_the_capacity() {
        let mut map = Generations::new(100);
        for round in 0..10_000_u64 {
            let key = round * 7 % 1_000;
            let (_, forgotten) = map.with(&key, || (key, Heavy(1)), |heavy| heavy.0 = 3);
            drop(forgotten);
            assert!(map.get(&key).is_some());
            assert!((map.young.len() + map.old.len()) * 3 <= 100);
        }
        // Half of the capacity holds 16 entries of 3.
        let recent = (10_000 - 16..10_000_u64).map(|round| round * 7 % 1_000);
        assert!(recent.into_iter().all(|key| map.get(&key).is_some()));
    }

    #[test]
    fn an_entry_that_is_heavier_than_the_capacity_is_alone() {
        let mut map = Generations::new(10);
        for key in 0..5_u64 {
            let ((), forgotten) = map.with(&key, || (key, Heavy(50)), |_| ());
            drop(forgotten);
        }
        assert_eq!(map.young.len(), 1);
        assert!(map.take(&4).is_some());
        assert_eq!(map.young_cost, 0);
    }
}
