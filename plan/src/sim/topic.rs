//! A topic, read in order, and the lanes behind it.

use std::collections::VecDeque;

/// Events that travel together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pack {
    pub kind: usize,
    pub events: u64,
    /// When they were sent, on average.
    pub sent_s: f64,
}

/// Packs in their order, and how many of each type are among them.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    packs: VecDeque<Pack>,
    waiting: Vec<u64>,
    /// The time up to which the requeues so far have used up what `churn_per_s` allows.
    pub churned_until_s: f64,
}

/// What waits for the limit of a type.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    packs: VecDeque<Pack>,
    pub events: u64,
    /// Events in calls.
    pub granting: u64,
    /// The lane's bound.
    pub most: u64,
    /// Not asked for again before.
    pub ask_at_s: f64,
}

impl Topic {
    pub fn new(types: usize) -> Self {
        Self { waiting: vec![0; types], ..Self::default() }
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

    /// Whether packs of a type wait here.
    pub fn has(&self, kind: usize) -> bool {
        self.waiting[kind] > 0
    }
}

impl Lane {
    pub fn new(most: u64) -> Self {
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
