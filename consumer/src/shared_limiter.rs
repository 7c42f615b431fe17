//! The one limiter of a process, kept in step with the live rules and with the partitions that the process owns.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::rules::Rules;
use windfall_limiter::{Limiter, Now, Share};

/// What all consumers of a process share: the limiter, the version of the rules that it runs, and the sum of the
/// partitions owned.
///
/// The share of a limit is the partitions owned, over all topics of the process, ÷ the partitions of all topics
/// that the rules name. So the shares of a fleet never sum to more than one, whichever topics an instance
/// consumes; a topic that nobody consumes leaves its part unused.
#[derive(Debug)]
pub struct SharedLimiter {
    limiter: Arc<Limiter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    version: Option<u64>,
    /// Partitions of the topics in the rules.
    configured: BTreeMap<String, u32>,
    consumed: BTreeMap<String, Consumed>,
    next_member: u64,
}

/// A topic consumed here.
#[derive(Debug, Default)]
struct Consumed {
    partitions: u32,
    /// Partitions owned, by member: a consumer that goes takes nothing of another one's along.
    owned: BTreeMap<Member, u32>,
}

/// One consumer of the process, as the limiter counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(u64);

impl SharedLimiter {
    /// Nothing passes before rules are applied and partitions are owned.
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
        if state.version.is_some_and(|version| version >= rules.version) {
            return;
        }
        state.version = Some(rules.version);
        let types: Vec<_> = rules.limits.types.iter().map(|(name, rule)| (name.clone(), *rule)).collect();
        self.limiter.apply(rules.limits.global, &types, now);
        state.configured =
            rules.topics.iter().map(|(name, topic)| (name.clone(), topic.partitions)).collect();
        self.limiter.set_share(state.share(), now);
    }

    /// A new consumer, which owns nothing yet.
    pub fn join(&self) -> Member {
        let mut state = self.state.lock();
        state.next_member += 1;
        Member(state.next_member)
    }

    /// Says how many of a topic's partitions a consumer of this process owns, of how many. On losing some, call
    /// it before the next owner can take them.
    pub fn set_owned(&self, member: Member, topic: &str, owned: u32, of: u32, now: Now) {
        let mut state = self.state.lock();
        let consumed = state.consumed.entry(topic.to_owned()).or_default();
        consumed.partitions = of;
        if owned > 0 {
            consumed.owned.insert(member, owned);
        } else {
            consumed.owned.remove(&member);
        }
        self.limiter.set_share(state.share(), now);
    }
}

impl State {
    fn share(&self) -> Share {
        let owned = |topic: &Consumed| topic.owned.values().sum::<u32>().min(topic.partitions);
        let unconsumed = self.configured.iter().filter(|(name, _)| !self.consumed.contains_key(*name));
        let of = self.consumed.values().map(|topic| topic.partitions).sum::<u32>()
            + unconsumed.map(|(_, partitions)| partitions).sum::<u32>();
        let owned = self.consumed.values().map(owned).sum();
        Share::new(owned, of).unwrap_or(Share::NONE)
    }
}
