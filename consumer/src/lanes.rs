//! All lanes: one bounded queue per bonus type between fetch and grant, so that a slow type cannot block another.
//!
//! - Bound: what the type may pass within `hold_max`, at most `lane_events_max` events and `lane_bytes_max`
//!   bytes. So a record that is let in waits no longer than `hold_max` for its own limit, and room opens at the pace
//!   at which the lane passes: fetching what fits is fetching at that pace.
//! - Order: lanes are served by priority, so what the global bucket has goes to cash first.
//! - Grants in flight: half of `in_hand_max` is shared by all lanes, the other half is split into a part for each,
//!   so a type whose downstream hangs leaves the others theirs.

use crate::in_flight::{InFlightRecord, InFlightTable, Key};
use crate::lane::Lane;
use crate::stats::{Cause, TypeStats};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use windfall_contract::rules::{Fuse, Pacing, Rules};
use windfall_limiter::{Limiter, Now};

/// The lanes, by index. An index stays with its type as long as the consumer runs.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    all: Vec<Lane>,
    /// Indices by priority.
    by_priority: Vec<usize>,
    last_found: usize,
}

/// What became of a record that asked to come into its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It waits there.
    Waits,
    /// The lane has no room for it.
    Full(Cause),
    /// The rules have no lane for it, or its fuse diverts it.
    Closed(Cause),
}

/// What the limiter says to a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Events that may be cut off its front.
    pub granted: u32,
    /// All that was asked for was granted, so more may pass.
    pub may_ask_again: bool,
    /// What is left in the lane goes back to a queue, for this cause.
    pub send_rest_back: Option<Cause>,
}

impl Lanes {
    /// Takes over the types of new rules. Lanes stay for types that went, so that what waits there finds its way.
    pub fn apply(&mut self, rules: &Rules, limiter: &Limiter, stats: impl Fn(&str) -> Arc<TypeStats>) {
        for name in rules.limits.types.keys() {
            if self.all.iter().all(|lane| *lane.name != **name) {
                self.all.push(Lane::new(name, limiter.type_id(name), stats(name)));
            }
        }
        for lane in &mut self.all {
            lane.rule = rules.limits.types.get(&*lane.name).copied();
            lane.ask_at_ns = 0;
        }
        self.by_priority = (0..self.all.len()).collect();
        self.by_priority.sort_by_key(|&at| self.all[at].rule.map_or(u8::MAX, |rule| rule.priority));
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
        self.all[self.last_found].rule.map(|_| self.last_found)
    }

    /// Lets a record that is due into its lane. Rules may have changed while it waited elsewhere.
    pub fn enter(&mut self, key: Key, record: &mut InFlightRecord, now_ns: u64) -> Entry {
        let known = record.lane.map(|at| &mut self.all[at]).filter(|lane| lane.rule.is_some());
        let Some(lane) = known else { return Entry::Closed(Cause::UnknownType) };
        if lane.fuse() == Fuse::Divert {
            return Entry::Closed(Cause::Fuse);
        }
        if !lane.has_room_for(record) {
            return Entry::Full(lane.why_not_held());
        }
        lane.push(key, record, now_ns);
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
        let batch = pacing.grant_batch;
        if !self.all[at].is_ready(batch, may_gather, now_ns) {
            return None;
        }
        let room = self.room_to_grant(at, pacing.in_hand_max);
        let lane = &mut self.all[at];
        let wanted = u32::try_from(lane.events.min(room)).unwrap_or(batch).min(batch);
        if wanted == 0 {
            return None;
        }
        let admission = limiter.admit(lane.id, wanted, Now(now_ns));
        let granted = admission.granted;
        lane.was_answered(wanted, granted, now_ns);
        let send_rest_back = match granted < wanted {
            true => lane.wait(admission.wait, pacing.hold_max_ms, limiter, now_ns),
            false => None,
        };
        Some(Admission { granted, may_ask_again: granted == wanted, send_rest_back })
    }

    /// Why all that waits in a lane goes back, where its type is diverted or no longer known.
    pub fn why_closed(&self, at: usize) -> Option<Cause> {
        let lane = &self.all[at];
        match lane.rule {
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

    /// Frees the keys of records that went elsewhere.
    pub fn compact(&mut self, table: &InFlightTable) {
        self.all.iter_mut().for_each(|lane| lane.compact(table));
    }

    /// Events that a lane may have in further calls.
    fn room_to_grant(&self, at: usize, in_flight_max: u32) -> u64 {
        let (most, lanes) = (u64::from(in_flight_max), self.all.len().max(1) as u64);
        let own = most / (2 * lanes);
        let shared_used: u64 = self.all.iter().map(|other| other.granting.saturating_sub(own)).sum();
        own.saturating_sub(self.all[at].granting) + (most - own * lanes).saturating_sub(shared_used)
    }
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
