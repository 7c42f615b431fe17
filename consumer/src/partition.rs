//! One partition that this consumer owns: its window, the records of it whose work is under way in the order in which
//! it began, how far it is committed, and whether its intake is paused.

use crate::in_flight::{InFlightTable, Key};
use crate::lanes::Lanes;
use crate::units::NS_PER_MS;
use crate::window::{NotAscending, Ticket, Window};
use std::collections::VecDeque;
use windfall_contract::broker::{Commit, Epoch};
use windfall_contract::finished::Finished;
use windfall_contract::rules::{Fuse, Pacing};

/// A window that spans more offsets than this gets no more records until its oldest one is finished. One bit per
/// offset makes it 512 KiB.
const SPAN_MAX: u64 = 1 << 22;
/// A partition's intake is paused for a full lane only when this many of its latest records in a row were for it.
const RUN_TO_PAUSE: u32 = 64;

/// What is finished beyond the position is committed with every so many-th chance: each second, by the default of
/// `commit_every_ms`.
const MAP_EVERY_COMMITS: u32 = 10;

/// One partition under one assignment.
#[derive(Debug)]
pub(crate) struct Partition {
    epoch: Epoch,
    window: Window,
    /// Keys of records whose own work is under way, the oldest first; dead keys are skipped.
    order: VecDeque<Key>,
    /// How long `order` was when it was last rid of dead keys.
    order_live: usize,
    committed: u64,
    /// How many offsets beyond it the last stored commit said to be finished.
    committed_beyond: u64,
    /// Chances to commit since what is finished beyond the position was looked at.
    since_map: u32,
    /// The position at the last look, and when it moved or was reached by an empty window.
    seen_position: u64,
    moved_ns: u64,
    is_stuck: bool,
    /// Since when its intake is paused.
    paused_ns: Option<u64>,
    /// The lane that its latest records went to, and how many in a row.
    run: Option<(usize, u32)>,
    dropped_seen: u64,
}

/// The position of a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub epoch: Epoch,
    pub committed: u64,
    /// The lowest offset that is not finished.
    pub position: u64,
    /// The offset that is read next.
    pub next: u64,
    /// The number of records delivered and not finished.
    pub unfinished: u64,
}

/// The result of a look at a partition's progress.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// It has just been found stuck: the position that does not move, and the offset that is read next.
    pub newly_stuck: Option<(u64, u64)>,
    /// Tickets dropped since the last look, and the lowest offset of all.
    pub dropped: Option<(u64, u64)>,
    pub is_stuck: bool,
    /// Records delivered and not finished.
    pub depth: u64,
}

impl Partition {
    pub fn new(epoch: Epoch, next_offset: u64, now_ns: u64) -> Self {
        Self {
            epoch,
            window: Window::new(epoch.0, next_offset),
            order: VecDeque::new(),
            order_live: 0,
            committed: next_offset,
            committed_beyond: 0,
            since_map: 0,
            seen_position: next_offset,
            moved_ns: now_ns,
            is_stuck: false,
            paused_ns: None,
            run: None,
            dropped_seen: 0,
        }
    }

    /// The partition as the loop before this one left it, without its unfinished records.
    pub fn resumed(at: &Standing, now_ns: u64) -> Self {
        Self { committed: at.committed, ..Self::new(at.epoch, at.position, now_ns) }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn deliver(&mut self, offset: u64) -> Result<Ticket, NotAscending> {
        self.window.deliver(offset)
    }

    /// Notes the lane of the record that was delivered last.
    pub fn delivered(&mut self, lane: Option<usize>) {
        self.run = match (lane, self.run) {
            (None, _) => None,
            (Some(lane), Some((of, length))) if of == lane => Some((lane, length.saturating_add(1))),
            (Some(lane), _) => Some((lane, 1)),
        };
    }

    /// Notes that a record's own work begins, or that it is held for another deadline: no other one of this partition
    /// began later.
    pub fn work_begins(&mut self, key: Key) {
        self.order.push_back(key);
    }

    /// Since when the work of the oldest record is under way that has not been taken as overdue.
    pub fn oldest_since_ns(&mut self, table: &InFlightTable) -> Option<u64> {
        while let Some(&key) = self.order.front() {
            if let Some(record) = table.get(key) {
                return Some(record.since_ns());
            }
            self.order.pop_front();
        }
        None
    }

    /// Takes the records that are held since `before_ns` or earlier and are not finished.
    pub fn take_older(&mut self, table: &InFlightTable, before_ns: u64, out: &mut Vec<Key>) {
        while let Some(&key) = self.order.front() {
            match table.get(key) {
                Some(record) if record.held_since_ns() > before_ns => break,
                Some(_) => out.push(key),
                None => {}
            }
            self.order.pop_front();
        }
    }

    /// Frees the dead keys behind a record that lives long, when they are more than half.
    pub fn compact(&mut self, table: &InFlightTable) {
        if self.order.len() > 4096 && self.order.len() > 2 * self.order_live {
            self.order.retain(|&key| table.get(key).is_some());
            self.order_live = self.order.len();
        }
    }

    /// Looks whether the position has moved within `patience_ns`.
    pub fn look(&mut self, now_ns: u64, patience_ns: u64) -> Progress {
        let (position, next) = (self.window.advance(), self.window.next_offset());
        if position != self.seen_position || position == next {
            (self.seen_position, self.moved_ns, self.is_stuck) = (position, now_ns, false);
        }
        let newly_stuck = !self.is_stuck && now_ns.saturating_sub(self.moved_ns) > patience_ns;
        self.is_stuck |= newly_stuck;
        let dropped =
            self.window.dropped().filter(|dropped| dropped.count > self.dropped_seen).map(|dropped| {
                let new = dropped.count - self.dropped_seen;
                self.dropped_seen = dropped.count;
                (new, dropped.first_offset)
            });
        Progress {
            newly_stuck: newly_stuck.then_some((position, next)),
            dropped,
            is_stuck: self.is_stuck,
            depth: self.window.in_flight(),
        }
    }

    /// What there is to commit since the last commit that was stored. What is finished beyond the position is said now
    /// and then, and when it is the last commit: nearly every partition has some of it at every moment, and a broker
    /// stores it for one partition at a time.
    pub fn commit(&mut self, partition: u32, is_last: bool) -> Option<Commit> {
        let next_offset = self.window.advance();
        let has_moved = next_offset > self.committed;
        self.since_map = self.since_map.saturating_add(1);
        let says_map = is_last || self.since_map >= MAP_EVERY_COMMITS;
        let finished = match (says_map, has_moved) {
            (true, _) => self.window.finished_beyond(),
            (false, true) => Finished::default(),
            (false, false) => return None,
        };
        if says_map {
            self.since_map = 0;
        }
        let is_news = has_moved || finished.count() > self.committed_beyond;
        is_news.then_some(Commit { partition, epoch: self.epoch, next_offset, finished })
    }

    /// The partition's state, for a loop that goes on after a panic of this one.
    pub fn standing(&mut self) -> Standing {
        Standing {
            epoch: self.epoch,
            committed: self.committed,
            position: self.window.advance(),
            next: self.window.next_offset(),
            unfinished: self.window.in_flight(),
        }
    }

    /// Notes that everything that was delivered to the loop before this one is in the window again, or finished.
    pub fn catch_up(&mut self, next: u64) {
        if next > self.window.next_offset()
            && let Ok(ticket) = self.window.deliver(next - 1)
        {
            ticket.finish();
        }
    }

    /// Notes that a commit was stored.
    pub fn committed(&mut self, commit: &Commit) {
        if self.epoch == commit.epoch && self.committed <= commit.next_offset {
            self.committed = commit.next_offset;
            self.committed_beyond = commit.finished.count();
        }
    }

    /// Notes that records below this offset which were not delivered had been finished before.
    pub fn passed(&mut self, next_offset: u64) {
        self.window.pass(next_offset);
    }

    /// Whether the window takes no more before its oldest record is finished.
    pub fn spans_too_much(&mut self) -> bool {
        self.window.next_offset() - self.window.advance() > SPAN_MAX
    }

    pub fn is_paused(&self) -> bool {
        self.paused_ns.is_some()
    }

    /// Decides whether the intake is to be paused from now on; returns whether that is a change. It is paused while the
    /// partition holds nothing but records for a lane that is half full, until the lane is at a quarter, or until
    /// `hold_max` is over, to see whether something else has come that could flow. A window that spans too much pauses
    /// it too.
    pub fn decide_pause(&mut self, lanes: &Lanes, pacing: &Pacing, now_ns: u64) -> bool {
        let hold_max_ns = pacing.hold_max_ms.saturating_mul(NS_PER_MS);
        let spans_too_much = self.spans_too_much();
        let lane = self.run.map(|(at, length)| (&lanes[at], length));
        let could_another = self.run.is_some_and(|(at, _)| lanes.could_another_flow(at, now_ns));
        let wants = match (lane, self.paused_ns) {
            _ if spans_too_much => true,
            // A lane that passes nothing would never let it resume.
            (Some((lane, _)), _)
                if lane.fuse() != Fuse::Closed || lane.bound_events() == 0 || lane.health().is_suspect() =>
            {
                false
            }
            (Some((lane, length)), None) => {
                length >= RUN_TO_PAUSE && lane.waiting_events() * 2 >= lane.bound_events()
            }
            (Some((lane, _)), Some(since_ns)) => {
                lane.waiting_events() * 4 > lane.bound_events()
                    && (now_ns.saturating_sub(since_ns) < hold_max_ns || !could_another)
            }
            (None, _) => false,
        };
        let is_change = wants != self.is_paused();
        if is_change {
            self.paused_ns = wants.then_some(now_ns);
        }
        is_change
    }
}
