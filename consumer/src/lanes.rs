//! All lanes: one bounded queue per bonus type between fetch and grant, so that a slow type cannot block another.
//!
//! - Bounds: the fetch follows what the type may pass within `hold_max`, so that it is as fast as the lane. Where
//!   another type must not wait behind this one, more comes in, up to `lane_events_max` events and `lane_bytes_max`
//!   bytes. What a full lane cannot take is held beyond them if no other type could flow, and the fetch waits; it goes
//!   back only where it would block a type that could.
//! - Order: lanes are served by priority, so what the global bucket has goes to cash first; across the topics of a
//!   process the limiter ensures it.
//! - Grants in flight: half of `in_hand_max` is shared by all lanes, the other half is split into a part for each,
//!   so a type whose downstream hangs leaves the others theirs.

use crate::health::{CallAnswer, ServiceHealth};
use crate::in_flight::{InFlightRecord, InFlightTable, Key};
use crate::lane::Lane;
use crate::stats::{Cause, TypeStats};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use windfall_contract::rules::{Fuse, Pacing, Route, Rules};
use windfall_limiter::{Limiter, Now};

/// The lanes, by index. An index stays with its type as long as the consumer runs.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    all: Vec<Lane>,
    /// The lanes' indices, sorted by priority.
    by_priority: Vec<usize>,
    service: ServiceHealth,
    last_found: usize,
}

/// The result of a record's entry into its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It waits there.
    Waits,
    /// The lane is full, and another type could flow that must not wait behind it.
    Full(Cause),
    /// The rules have no lane for it, or its fuse diverts it.
    Closed(Cause),
}

/// The limiter's answer to a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Events that may be cut off its front.
    pub granted: u32,
    /// All that was asked for was granted, so more may pass.
    pub may_ask_again: bool,
    /// What waits in the lane goes back to a queue, for this cause.
    pub send_rest_back: Option<Cause>,
}

impl Lanes {
    /// Takes over the types of new rules. Lanes of types that are gone stay, so that what waits there is still handled.
    pub fn apply(
        &mut self,
        rules: &Rules,
        topic: &str,
        limiter: &Limiter,
        stats: impl Fn(&str) -> Arc<TypeStats>,
    ) {
        for name in rules.limits.types.keys() {
            if self.all.iter().all(|lane| *lane.name != **name) {
                self.all.push(Lane::new(name, limiter.type_id(name), stats(name)));
            }
        }
        for lane in &mut self.all {
            let rule = rules.limits.types.get(&*lane.name).copied();
            let comes = may_come(rules, topic, &lane.name);
            lane.apply(rule, comes);
        }
        self.by_priority = (0..self.all.len()).collect();
        self.by_priority.sort_by_key(|&at| self.all[at].rule().map_or(u8::MAX, |rule| rule.priority));
        self.set_bounds(&rules.pacing, limiter);
    }

    pub fn set_bounds(&mut self, pacing: &Pacing, limiter: &Limiter) {
        for lane in &mut self.all {
            lane.set_bounds(pacing, limiter.may_pass_per_s(lane.id));
        }
    }

    /// The lane of a type that the rules have.
    #[inline]
    pub fn find(&mut self, bonus_type: &str) -> Option<usize> {
        let is = |lane: &Lane| *lane.name == *bonus_type;
        if !self.all.get(self.last_found).is_some_and(is) {
            self.last_found = self.all.iter().position(is)?;
        }
        self.all[self.last_found].rule().map(|_| self.last_found)
    }

    /// Lets a record that is due into its lane. Rules may have changed while it waited elsewhere.
    pub fn enter(&mut self, key: Key, record: &mut InFlightRecord, now_ns: u64) -> Entry {
        let known = record.lane.map(|at| &mut self.all[at]).filter(|lane| lane.rule().is_some());
        let Some(lane) = known else { return Entry::Closed(Cause::UnknownType) };
        if lane.fuse() == Fuse::Divert {
            return Entry::Closed(Cause::Fuse);
        }
        if !lane.has_room_for(record) {
            let cause = lane.why_not_held();
            if record.lane.is_some_and(|at| self.could_another_flow(at, now_ns)) {
                return Entry::Full(cause);
            }
        }
        if let Some(at) = record.lane {
            self.all[at].push(key, record, now_ns);
        }
        Entry::Waits
    }

    /// Asks the limiter for one batch of a lane; `None` where the lane has nothing to ask for now.
    pub fn admit(
        &mut self,
        at: usize,
        pacing: &Pacing,
        may_gather: bool,
        limiter: &Limiter,
        now_ns: u64,
    ) -> Option<Admission> {
        let wanted = self.all[at].wants(pacing.grant_batch, may_gather, now_ns);
        if wanted == 0 {
            return None;
        }
        let room = self.room_to_grant(at, pacing.in_hand_max);
        let wanted = u32::try_from(room).unwrap_or(wanted).min(wanted);
        if wanted == 0 {
            return None;
        }
        let lane = &mut self.all[at];
        let admission = limiter.admit(lane.id, wanted, Now(now_ns));
        let granted = admission.granted;
        lane.was_answered(wanted, granted, now_ns);
        let send_rest_back = match granted < wanted {
            true => lane.wait(admission.wait, limiter, now_ns),
            false => None,
        };
        Some(Admission { granted, may_ask_again: granted == wanted, send_rest_back })
    }

    /// Takes in what the answer to a call of a lane, which began at `began_ns`, says about the reward
    /// service and the downstream.
    pub fn answered(&mut self, at: usize, answer: CallAnswer, began_ns: u64, now_ns: u64) {
        self.service.answered(answer, now_ns);
        self.all[at].answered(answer, began_ns, now_ns);
    }

    /// Looks for calls that are not answered. A type whose last calls had been answered until then is a reason to doubt
    /// the service.
    pub fn look(&mut self, now_ns: u64) {
        let is_silent = |lane: &Lane| lane.health().is_silent(now_ns) && !lane.health().is_suspect();
        if self.all.iter().any(is_silent) {
            self.service.is_silent(now_ns);
        }
    }

    /// Whether a type could flow now, if there were events of it.
    pub fn can_flow(&self, at: usize, now_ns: u64) -> bool {
        self.service.is_up(now_ns) && self.all[at].can_flow(now_ns)
    }

    /// Whether a type could flow now, as far as anybody knows: what decides about fetching and making room, since doubts that
    /// only an answer can end would else last for as long as nothing is asked. Where no lane asks, nobody doubts the service.
    fn may_flow(&self, at: usize, now_ns: u64) -> bool {
        let is_doubted = || !self.service.is_up(now_ns) && self.all.iter().any(Lane::is_asking);
        self.all[at].may_flow(now_ns) && !is_doubted()
    }

    /// Whether any type could flow now.
    pub fn can_any_flow(&self, now_ns: u64) -> bool {
        (0..self.all.len()).any(|at| self.may_flow(at, now_ns))
    }

    /// Whether a type other than this one could, of which events may come with the topic.
    pub fn could_another_flow(&self, at: usize, now_ns: u64) -> bool {
        (0..self.all.len())
            .any(|other| other != at && self.all[other].may_come() && self.may_flow(other, now_ns))
    }

    /// Whether a type other than this one has been granted since `since_ns` and still is, without a break since
    /// `flows_ns`.
    pub fn does_another_flow(&self, at: usize, since_ns: u64, flows_ns: u64, now_ns: u64) -> bool {
        let flows = |(other, lane): (usize, &Lane)| {
            other != at
                && lane.health().has_decided_since(since_ns)
                && lane.health().flows_since(flows_ns)
                && self.can_flow(other, now_ns)
        };
        self.all.iter().enumerate().any(flows)
    }

    /// Whether a type other than this one could flow and has nothing to do, so that it may wait for the fetch.
    pub fn does_another_starve(&self, at: usize, now_ns: u64) -> bool {
        let starves = |(other, lane): (usize, &Lane)| {
            other != at && lane.may_come() && lane.is_idle() && self.may_flow(other, now_ns)
        };
        self.all.iter().enumerate().any(starves)
    }

    /// Why all that waits in a lane goes back, where its type is diverted or no longer known.
    pub fn why_closed(&self, at: usize) -> Option<Cause> {
        let lane = &self.all[at];
        match lane.rule() {
            None => Some(Cause::UnknownType),
            Some(_) if lane.fuse() == Fuse::Divert => Some(Cause::Fuse),
            Some(_) => None,
        }
    }

    /// The lane that is served as the `rank`-th, the most urgent one first.
    pub fn ranked(&self, rank: usize) -> usize {
        self.by_priority[rank]
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.all.iter()
    }

    /// Forgets events of records that are no longer in flight.
    pub fn forget_gone(&mut self, table: &InFlightTable) {
        self.all.iter_mut().for_each(|lane| lane.forget_gone(table));
    }

    /// Frees the keys of records that went elsewhere.
    pub fn compact(&mut self, table: &InFlightTable) {
        self.all.iter_mut().for_each(|lane| lane.compact(table));
    }

    /// The number of events that a lane may have in further calls.
    fn room_to_grant(&self, at: usize, in_flight_max: u32) -> u64 {
        let (most, lanes) = (u64::from(in_flight_max), self.all.len().max(1) as u64);
        let own = most / (2 * lanes);
        let shared_used: u64 = self.all.iter().map(|other| other.granting().saturating_sub(own)).sum();
        own.saturating_sub(self.all[at].granting()) + (most - own * lanes).saturating_sub(shared_used)
    }
}

/// Whether events of a type may come with a topic. Where the rules route nothing through the topic, any may: it is
/// drained, and what lies in it came under other rules.
fn may_come(rules: &Rules, topic: &str, bonus_type: &str) -> bool {
    let leads_here = |route: &Route| {
        let queues = std::iter::once(&route.queue).chain(&route.requeue);
        let mut queues = queues.filter_map(|name| rules.queues.get(name));
        queues.any(|queue| queue.master == topic || queue.backup == topic)
    };
    let mut routes = rules.routes.iter().filter(|route| leads_here(route)).peekable();
    routes.peek().is_none() || routes.any(|route| route.bonus_type.matches(bonus_type))
}

impl Index<usize> for Lanes {
    type Output = Lane;

    #[inline]
    fn index(&self, at: usize) -> &Lane {
        &self.all[at]
    }
}

impl IndexMut<usize> for Lanes {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Lane {
        &mut self.all[at]
    }
}
