//! The part of the limits that each topic carries, by a version of the rules, and through a change of versions.
//!
//! The partitions of all topics that a version names, active and draining ones, carry equal parts of each limit. While
//! a change is on its way, processes of two versions run side by side: an old one may own every partition of an old
//! topic, a new one those of a new topic. So for a while after a change a topic carries the smaller of its parts before
//! and after it. Whichever process then owns which partitions, under either version, the parts never sum to more than
//! one. The rest of the limit is unused meanwhile.

use std::collections::BTreeMap;
use windfall_contract::rules::Rules;
use windfall_limiter::Share;

/// How long after a change of its topics a process keeps to the smaller parts: longer than processes take to follow the
/// rules and to note their version in the ledger. From then on the ledger grants nothing to a process with older rules, so
/// one that follows later counts no more. Topics that change often would waste a good part of the limits if this were long.
pub(crate) const SETTLE_NS: u64 = 15_000_000_000;
/// The denominator of shares that are not whole numbers of partitions. They are rounded down.
const SHARES: u32 = 1 << 24;

/// The parts that topics carry, by `name@broker`: a topic that moves to another broker is there twice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Topology {
    /// For each topic, the number of partitions that count, and the number of all.
    parts: BTreeMap<String, (u64, u64)>,
}

/// Partitions of one topic that a process owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    pub owned: u32,
    /// Partitions that the topic has on its brokers.
    pub of: u32,
}

impl Topology {
    /// The topology of a version of the rules.
    pub fn of(rules: &Rules) -> Self {
        let mut partitions: BTreeMap<String, u64> = BTreeMap::new();
        let active = rules.topics.iter().map(|(name, topic)| (name, &topic.broker, topic.partitions));
        let draining = rules.draining.iter().map(|old| (&old.topic, &old.broker, old.partitions));
        for (name, broker, count) in active.chain(draining) {
            partitions.insert(format!("{name}@{broker}"), u64::from(count));
        }
        let all = partitions.values().sum();
        Self { parts: partitions.into_iter().map(|(name, count)| (name, (count, all))).collect() }
    }

    /// Whether it names any topic.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The topology with the smaller part of each topic.
    pub fn smaller(&self, other: &Self) -> Self {
        let both = self.parts.iter().filter_map(|(name, one)| {
            let two = other.parts.get(name)?;
            let is_less = u128::from(one.0) * u128::from(two.1) < u128::from(two.0) * u128::from(one.1);
            Some((name.clone(), if is_less { *one } else { *two }))
        });
        Self { parts: both.collect() }
    }

    /// The part of a topic, which may be named without its broker.
    fn part(&self, topic: &str) -> Option<(u64, u64)> {
        let of_name = || {
            let name = format!("{topic}@");
            let found = self.parts.range(name.clone()..).next();
            found.filter(|(key, _)| key.starts_with(&name)).map(|(_, part)| part)
        };
        self.parts.get(topic).or_else(of_name).copied()
    }

    /// The share of a process that owns these partitions. A topic that is not named carries nothing.
    pub fn share<'o>(&self, owned: impl Iterator<Item = (&'o str, Owned)> + Clone) -> Share {
        self.whole(owned.clone()).unwrap_or_else(|| self.rounded(owned))
    }

    /// In whole partitions, where every topic has as many as the rules say and one denominator holds for all.
    fn whole<'o>(&self, owned: impl Iterator<Item = (&'o str, Owned)>) -> Option<Share> {
        let all = self.parts.values().next()?.1;
        let mut sum = 0_u64;
        for (name, Owned { owned, of }) in owned {
            let Some((count, of_all)) = self.part(name) else { continue };
            if count != u64::from(of) || of_all != all {
                return None;
            }
            sum += u64::from(owned.min(of));
        }
        Share::new(u32::try_from(sum).ok()?, u32::try_from(all).ok()?)
    }

    fn rounded<'o>(&self, owned: impl Iterator<Item = (&'o str, Owned)>) -> Share {
        let parts = owned.filter_map(|(name, Owned { owned, of })| {
            let (count, all) = self.part(name)?;
            let of = u128::from(of).max(u128::from(count)).max(1);
            Some(u128::from(owned) * u128::from(count) * u128::from(SHARES) / (of * u128::from(all.max(1))))
        });
        let sum: u128 = parts.sum();
        Share::new(u32::try_from(sum).unwrap_or(SHARES).min(SHARES), SHARES).unwrap_or(Share::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Topics by number, with their partitions.
    fn topology(topics: &[(usize, u64)]) -> Topology {
        let all = topics.iter().map(|(_, count)| count).sum();
        let parts = topics.iter().map(|(name, count)| (name.to_string(), (*count, all)));
        Topology { parts: parts.collect() }
    }

    fn topics() -> impl Strategy<Value = Vec<(usize, u64)>> {
        proptest::collection::btree_map(0_usize..6, 1_u64..9, 1..6)
            .prop_map(|topics| topics.into_iter().collect())
    }

    fn as_part(share: Share) -> f64 {
        f64::from(share.owned()) / f64::from(share.of())
    }

    proptest! {
        /// Four processes own every partition there is, in any way, under the version before the change, under the
        /// smaller parts of the change, or, once nobody is on the old version, under the new one.
        #[test]
        fn processes_of_two_versions_never_share_more_than_the_whole(
            (before, after) in (topics(), topics()),
            stages in proptest::collection::vec(any::<bool>(), 4),
            is_settled in any::<bool>(),
            owners in proptest::collection::vec(0_usize..4, 6 * 9),
        ) {
            let (old, new) = (topology(&before), topology(&after));
            let change = old.smaller(&new);
            let mut sum = 0.0;
            for (process, is_first) in stages.iter().enumerate() {
                let version = match (is_settled, is_first) {
                    (false, true) => &old,
                    (true, true) => &new,
                    (_, false) => &change,
                };
                let owned: Vec<(String, Owned)> = (0..6).filter_map(|topic| {
                    let count = |topics: &[(usize, u64)]| topics.iter().find(|(name, _)| *name == topic).map(|one| one.1);
                    let of = count(&before).max(count(&after))?;
                    let owned = (0..of).filter(|at| owners[topic * 9 + usize::try_from(*at).unwrap()] == process).count();
                    let owned = Owned { owned: u32::try_from(owned).unwrap(), of: u32::try_from(of).unwrap() };
                    Some((topic.to_string(), owned))
                }).collect();
                sum += as_part(version.share(owned.iter().map(|(name, owned)| (name.as_str(), *owned))));
            }
            prop_assert!(sum <= 1.0 + 1e-9, "{sum}");
        }
    }

    #[test]
    fn without_the_smaller_parts_two_versions_pass_the_whole() {
        let (old, new) = (topology(&[(1, 4)]), topology(&[(1, 4), (2, 4)]));
        let all = Owned { owned: 4, of: 4 };
        let both =
            as_part(old.share([("1", all)].into_iter())) + as_part(new.share([("2", all)].into_iter()));
        assert!(both > 1.4, "{both}");
        let change = old.smaller(&new);
        let both =
            as_part(old.share([("1", all)].into_iter())) + as_part(change.share([("2", all)].into_iter()));
        assert!(both <= 1.0, "{both}");
    }
}
