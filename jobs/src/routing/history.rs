//! What a job's earlier runs mean for its next one.

use super::generations::Cost;
use std::sync::Arc;

/// What is remembered of a job.
pub(super) enum History {
    /// For `round`: who had the last run.
    Last(Arc<str>),
    /// For `least_frequently_used`: how often each address had a run.
    Counts(Uses),
    /// For `least_recently_used`: when each address had its last run, as a count of the job's runs.
    Order(Uses),
}

impl Cost for History {
    fn cost(&self) -> usize {
        match self {
            Self::Last(_) => 1,
            Self::Counts(uses) | Self::Order(uses) => 1 + uses.by_address.len(),
        }
    }
}

/// A number for each address that is alive.
#[derive(Default)]
pub(super) struct Uses {
    /// In the order of the list of addresses.
    by_address: Vec<(Arc<str>, u64)>,
}

impl Uses {
    /// Takes over a new list: who has left is forgotten, and a newcomer starts with what `newcomer` makes of the
    /// lowest number that stays. Both lists are sorted.
    fn follow(&mut self, alive: &[Arc<str>], newcomer: impl FnOnce(u64) -> u64) {
        let is_same = |((known, _), address): (&(Arc<str>, u64), &Arc<str>)| {
            Arc::ptr_eq(known, address) || known == address
        };
        if self.by_address.len() == alive.len() && self.by_address.iter().zip(alive).all(is_same) {
            return;
        }
        let mut known = std::mem::take(&mut self.by_address).into_iter().peekable();
        let merged: Vec<(Arc<str>, Option<u64>)> = alive
            .iter()
            .map(|address| {
                while known.next_if(|(before, _)| before < address).is_some() {}
                let value = known.next_if(|(same, _)| same == address).map(|(_, value)| value);
                (Arc::clone(address), value)
            })
            .collect();
        let start = newcomer(merged.iter().filter_map(|(_, value)| *value).min().unwrap_or_default());
        let with_start = merged.into_iter().map(|(address, value)| (address, value.unwrap_or(start)));
        self.by_address = with_start.collect();
    }

    /// The positions of the `count` lowest numbers, lowest first; of equal ones, the first at or behind `from`.
    fn lowest(&self, from: usize, count: usize) -> Vec<usize> {
        let (before, behind) = self.by_address.split_at(from.min(self.by_address.len()));
        let ranked = (from..).zip(behind).chain((0..).zip(before)).map(|(at, (_, value))| (*value, at));
        best(ranked, count, |one, other| one.0 < other.0).into_iter().map(|(_, at)| at).collect()
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut u64> {
        self.by_address.get_mut(at).map(|(_, value)| value)
    }
}

impl History {
    /// The position of who gets the next run, and those of the fallbacks, `count` in all. `random` decides where a job starts
    /// of which nothing is known.
    pub(super) fn round(&mut self, alive: &[Arc<str>], random: u64, count: usize) -> Vec<usize> {
        let start = match self {
            Self::Last(last) => alive.partition_point(|address| address <= last),
            Self::Counts(_) | Self::Order(_) => below(random, alive.len()),
        };
        let positions = in_turn(start, alive.len(), count);
        if let Some(address) = positions.first().and_then(|at| alive.get(*at)) {
            *self = Self::Last(Arc::clone(address));
        }
        positions
    }

    /// As [`Self::round`].
    pub(super) fn least_frequent(&mut self, alive: &[Arc<str>], random: u64, count: usize) -> Vec<usize> {
        let mut uses = match std::mem::replace(self, Self::new()) {
            Self::Counts(uses) => uses,
            Self::Last(_) | Self::Order(_) => Uses::default(),
        };
        uses.follow(alive, |lowest| lowest);
        let positions = uses.lowest(below(random, alive.len()), count);
        if let Some(runs) = positions.first().and_then(|at| uses.get_mut(*at)) {
            *runs += 1;
        }
        *self = Self::Counts(uses);
        positions
    }

    /// As [`Self::round`].
    pub(super) fn least_recent(&mut self, alive: &[Arc<str>], random: u64, count: usize) -> Vec<usize> {
        let mut uses = match std::mem::replace(self, Self::new()) {
            Self::Order(uses) => uses,
            Self::Last(_) | Self::Counts(_) => Uses::default(),
        };
        uses.follow(alive, |_| 0);
        let latest = uses.by_address.iter().map(|(_, turn)| *turn).max().unwrap_or_default();
        let positions = uses.lowest(below(random, alive.len()), count);
        if let Some(turn) = positions.first().and_then(|at| uses.get_mut(*at)) {
            *turn = latest + 1;
        }
        *self = Self::Order(uses);
        positions
    }

    /// A job of which nothing is known.
    pub(super) fn new() -> Self {
        Self::Counts(Uses::default())
    }
}

/// `count` positions of a list of `total` from `start` on, over its end.
pub(super) fn in_turn(start: usize, total: usize, count: usize) -> Vec<usize> {
    (0..total.min(count)).map(|passed| (start + passed) % total).collect()
}

/// A random position of a list; 0 if it is empty.
pub(super) fn below(random: u64, total: usize) -> usize {
    usize::try_from((u128::from(random) * total as u128) >> 64).unwrap_or_default()
}

/// The `count` best items, best first; of equal ones, those that come first.
pub(super) fn best<T>(
    items: impl Iterator<Item = T>,
    count: usize,
    is_better: impl Fn(&T, &T) -> bool,
) -> Vec<T> {
    let mut best: Vec<T> = Vec::with_capacity(count + 1);
    for item in items {
        if best.len() == count && best.last().is_none_or(|worst| !is_better(&item, worst)) {
            continue;
        }
        let place = best.iter().position(|known| is_better(&item, known)).unwrap_or(best.len());
        best.insert(place, item);
        best.truncate(count);
    }
    best
}
