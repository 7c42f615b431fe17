//! A topic, read in order, and the lanes behind it.

use super::scenario::Pacing;
use crate::numbers::real;
use std::collections::VecDeque;

/// Churn that may be owed before the fetch waits.
const CHURN_AHEAD_S: f64 = 0.05;

/// Events that travel together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pack {
    pub topic: usize,
    pub kind: usize,
    pub events: u64,
    /// When they were sent, on average.
    pub sent_s: f64,
}

/// Packs in their order, how many of each type are among them, and the lanes of the topic's consumer by type.
#[derive(Debug)]
pub(crate) struct Topic {
    packs: VecDeque<Pack>,
    waiting: Vec<u64>,
    pub lanes: Vec<Lane>,
    /// The time up to which the requeues so far have used up what `churn_per_s` allows.
    churned_until_s: f64,
}

/// What waits for the limit of a type.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    packs: VecDeque<Pack>,
    pub events: u64,
    /// Events in calls.
    pub granting: u64,
    /// The lane's bound.
    most: u64,
    /// Not asked for again before.
    pub ask_at_s: f64,
}

impl Topic {
    /// A topic whose lanes hold so many events at most.
    pub fn new(bounds: &[u64]) -> Self {
        Self {
            packs: VecDeque::new(),
            waiting: vec![0; bounds.len()],
            lanes: bounds.iter().map(|&most| Lane::new(most)).collect(),
            churned_until_s: 0.0,
        }
    }

    pub fn push(&mut self, pack: Pack) {
        self.waiting[pack.kind] += 1;
        self.packs.push_back(pack);
    }

    pub fn front(&self) -> Option<&Pack> {
        self.packs.front()
    }

    pub fn pop(&mut self) -> Option<Pack> {
        let pack = self.packs.pop_front()?;
        self.waiting[pack.kind] -= 1;
        Some(pack)
    }

    /// Whether a type behind the front has nothing to do and could pass.
    pub fn is_in_the_way(&self, kind: usize, now_s: f64) -> bool {
        let could_pass = |lane: &Lane| lane.events == 0 && lane.ask_at_s <= now_s;
        (0..self.lanes.len())
            .any(|other| other != kind && self.waiting[other] > 0 && could_pass(&self.lanes[other]))
    }

    /// Whether another record may be sent back now.
    pub fn may_churn(&mut self, churn_per_s: u64, now_s: f64) -> bool {
        if self.churned_until_s > now_s + CHURN_AHEAD_S {
            return false;
        }
        self.churned_until_s = self.churned_until_s.max(now_s) + 1.0 / real(churn_per_s.max(1));
        true
    }

    /// Events of a type that may be asked for. Half of what may be in calls is shared, the other half is split among the
    /// types.
    pub fn wanted(&self, kind: usize, pacing: &Pacing) -> u64 {
        let half = pacing.in_flight_max / 2;
        let own = half / self.lanes.len() as u64;
        let shared: u64 = self.lanes.iter().map(|lane| lane.granting.saturating_sub(own)).sum();
        let lane = &self.lanes[kind];
        let room = own.saturating_sub(lane.granting) + half.saturating_sub(shared);
        lane.events.min(pacing.grant_batch.into()).min(room)
    }
}

impl Lane {
    fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn push(&mut self, pack: Pack) {
        self.events += pack.events;
        self.packs.push_back(pack);
    }

    pub fn has_room(&self) -> bool {
        self.events < self.most
    }

    /// Cuts events off the front, in parts of packs where they must be.
    pub fn cut(&mut self, events: u64) -> Vec<Pack> {
        let mut left = events.min(self.events);
        self.events -= left;
        let mut out = Vec::new();
        while left > 0 {
            let Some(front) = self.packs.front_mut() else { break };
            let part = left.min(front.events);
            out.push(Pack { events: part, ..*front });
            front.events -= part;
            left -= part;
            if front.events == 0 {
                self.packs.pop_front();
            }
        }
        out
    }
}
