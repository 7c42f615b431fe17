//! The one limiter of a process, kept in step with the live rules and with the partitions that the process owns.

use crate::topology::{Owned, SETTLE_NS, Topology};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::rules::Rules;
use windfall_limiter::{Limiter, Now, Share};

/// The state that all consumers of a process share: the limiter, the version of the rules that it runs, and the sum of
/// the partitions owned.
///
/// The share of a limit is the partitions owned, over all topics of the process, ÷ the partitions of all topics
/// that the rules name, active and draining ones. So the shares of a fleet never sum to more than one, whichever topics
/// an instance consumes; a topic without a consumer leaves its part unused. For 15 seconds after a change of the
/// topics each one carries the smaller part of before and after, so that this holds between processes of both versions,
/// too.
#[derive(Debug)]
pub struct SharedLimiter {
    limiter: Arc<Limiter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The edition of the rules in force.
    edition: Option<(u64, bool)>,
    /// The topology of the rules in force.
    topology: Topology,
    /// While a change of the topics settles: the smallest parts of all versions that are not settled, and until when.
    settling: Option<(Topology, Now)>,
    owned: BTreeMap<Member, (String, Owned)>,
    next_member: u64,
}

/// One consumer of the process, as the limiter counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(u64);

impl SharedLimiter {
    /// A shared limiter, which passes nothing before rules are applied and partitions are owned.
    pub fn new(limiter: Arc<Limiter>, now: Now) -> Self {
        limiter.set_share(Share::NONE, now);
        Self { limiter, state: Mutex::new(State::default()) }
    }

    /// The limiter.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Applies rules if they are newer than those applied last.
    pub fn apply(&self, rules: &Rules, now: Now) {
        let mut state = self.state.lock();
        // Two consumers may see a change in either order; the older one must not win.
        if state.edition.is_some_and(|edition| edition >= rules.edition()) {
            return;
        }
        state.edition = Some(rules.edition());
        let types: Vec<_> = rules.limits.types.iter().map(|(name, rule)| (name.clone(), *rule)).collect();
        self.limiter.apply(rules.limits.global, &types, now);
        let topology = Topology::of(rules);
        if topology != state.topology {
            let is_first = state.topology.is_empty();
            let before = std::mem::replace(&mut state.topology, topology);
            if !is_first {
                let before =
                    state.settling.take().map_or(before.clone(), |(smallest, _)| smallest.smaller(&before));
                let smallest = before.smaller(&state.topology);
                state.settling = Some((smallest, Now(now.0.saturating_add(SETTLE_NS))));
            }
        }
        self.limiter.set_share(state.share(), now);
    }

    /// A new consumer, which owns nothing yet.
    pub fn join(&self) -> Member {
        let mut state = self.state.lock();
        state.next_member += 1;
        Member(state.next_member)
    }

    /// Sets how many of a topic's `of` partitions a consumer of this process owns. On losing some, call
    /// it before the next owner can take them.
    pub fn set_owned(&self, member: Member, topic: &str, owned: u32, of: u32, now: Now) {
        let mut state = self.state.lock();
        if owned > 0 {
            state.owned.insert(member, (topic.to_owned(), Owned { owned, of }));
        } else {
            state.owned.remove(&member);
        }
        self.limiter.set_share(state.share(), now);
    }

    /// Ends the time in which a change of the topics settles, when it is over. It is cheap: call it now and then.
    pub fn settle(&self, now: Now) {
        let mut state = self.state.lock();
        if state.settling.as_ref().is_some_and(|(_, until)| now >= *until) {
            state.settling = None;
            self.limiter.set_share(state.share(), now);
        }
    }
}

impl State {
    fn share(&self) -> Share {
        // Owned twice where a partition moves between two consumers of the process: it counts once.
        let mut owned: BTreeMap<&str, Owned> = BTreeMap::new();
        for (topic, part) in self.owned.values() {
            let sum = owned.entry(topic).or_insert(Owned { owned: 0, of: 0 });
            (sum.owned, sum.of) = (sum.owned + part.owned, sum.of.max(part.of));
        }
        for part in owned.values_mut() {
            part.owned = part.owned.min(part.of);
        }
        let topology = match &self.settling {
            Some((smallest, _)) => smallest,
            None => &self.topology,
        };
        if self.topology.is_empty() {
            // Rules without topics: the process reads alone.
            let (sum, of) = owned.values().fold((0, 0), |(sum, of), part| (sum + part.owned, of + part.of));
            return Share::new(sum, of).unwrap_or(Share::NONE);
        }
        topology.share(owned.iter().map(|(topic, part)| (*topic, *part)))
    }
}
