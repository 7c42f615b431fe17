//! Finds the record that made a loop panic: after a panic the records that were in flight are let in again in groups,
//! and each further panic halves the groups, until one record alone is left.
//!
//! A group is on trial until everything in flight is finished, or for [`TRIAL_NS`]: what waits for a limit must not
//! keep the topic from its work. Nothing new is fetched meanwhile.

use crate::in_flight::{InFlightTable, Key};
use crate::units::NS_PER_MS;
use crate::window::Ticket;
use std::collections::VecDeque;
use windfall_contract::broker::{InRecord, Position};

/// The longest time that one group keeps the next one waiting.
const TRIAL_NS: u64 = 5_000 * NS_PER_MS;

/// Records that were in the hands of a loop that panicked.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    /// Unfinished records, those under suspicion first.
    pub records: VecDeque<InRecord>,
    /// The number of them, from the front, that are under suspicion.
    pub suspects: usize,
    /// The number of them that are let in at once.
    pub group: usize,
    /// How many of them were in flight when the loop panicked; they are the first.
    pub in_flight: usize,
    /// Records that were found to make the loop panic and that the archive does not have yet.
    pub quarantined: Vec<InRecord>,
}

impl Suspicion {
    /// The record that was alone in flight when the loop panicked.
    pub fn alone(&self) -> Option<Position> {
        if self.in_flight == 1 { self.records.front().map(position) } else { None }
    }

    /// The record that was alone in flight goes to the archive; the others are tried anew.
    pub fn quarantine(&mut self) -> Option<&InRecord> {
        let found = self.records.pop_front()?;
        self.suspects = self.suspects.saturating_sub(1);
        self.group = self.suspects.div_ceil(2).max(1);
        self.quarantined.push(found);
        self.quarantined.last()
    }
}

/// A record that waits to be let in. Its ticket keeps it in the window (I3).
#[derive(Debug)]
pub(crate) struct Held {
    pub record: InRecord,
    pub ticket: Ticket,
}

/// The records of a loop that panicked, as the loop after it lets them in.
#[derive(Debug, Default)]
pub(crate) struct Probation {
    waiting: VecDeque<Held>,
    suspects: usize,
    group: usize,
    /// The group that was let in last, and when.
    on_trial: Option<(Vec<Position>, u64)>,
    /// The number of records that may still come in now.
    open_for: usize,
    /// The record that is coming in.
    entering: Option<InRecord>,
    quarantined: Vec<(Key, InRecord)>,
}

impl Probation {
    /// Lets in the suspects in groups of this size.
    pub fn begin(&mut self, suspects: usize, group: usize) {
        (self.suspects, self.group) = (suspects, group.max(1));
    }

    /// Adds a record behind those that wait.
    pub fn hold(&mut self, held: Held) {
        self.waiting.push_back(held);
    }

    /// Whether records wait or are on trial, so that nothing new may come in.
    pub fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.on_trial.is_some()
    }

    /// How many records wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The records that wait, and the one that is coming in.
    pub fn records(&self) -> impl Iterator<Item = &InRecord> {
        self.waiting.iter().map(|held| &held.record).chain(&self.entering)
    }

    /// Notes that a record is being archived, and is under no suspicion any more.
    pub fn quarantine(&mut self, key: Key, record: InRecord) {
        self.quarantined.push((key, record));
    }

    /// Opens for the next group if it is its turn, at most for `most` records; returns for how many.
    pub fn open(&mut self, most: usize, table: &InFlightTable, now_ns: u64) -> usize {
        self.quarantined.retain(|(key, _)| table.get(*key).is_some());
        self.open_for = 0;
        if let Some((_, since_ns)) = &self.on_trial {
            let is_through = table.len() <= self.quarantined.len();
            if !is_through && now_ns.saturating_sub(*since_ns) < TRIAL_NS {
                return 0;
            }
            self.on_trial = None;
        }
        self.open_for = if self.suspects == 0 { most } else { most.min(self.group).min(self.suspects) };
        if self.suspects > 0 && self.open_for > 0 {
            self.on_trial = Some((Vec::new(), now_ns));
        }
        self.open_for.min(self.waiting.len())
    }

    /// The next record that comes in. Tell when it [is in](Self::is_in).
    pub fn next(&mut self) -> Option<Held> {
        self.open_for = self.open_for.checked_sub(1)?;
        let held = self.waiting.pop_front()?;
        if let Some((positions, _)) = &mut self.on_trial {
            positions.push(position(&held.record));
            self.suspects -= 1;
        }
        self.entering = Some(held.record.clone());
        Some(held)
    }

    /// Notes that the record has come in.
    pub fn is_in(&mut self) {
        self.entering = None;
    }

    /// What the next loop is to let in, and in what groups, after this one has panicked with `in_flight` records in
    /// flight and `untouched` ones fetched but not taken in.
    pub fn after_panic(
        self,
        in_flight: Vec<InRecord>,
        untouched: Vec<InRecord>,
        table: &InFlightTable,
    ) -> Suspicion {
        let quarantined: Vec<InRecord> = self
            .quarantined
            .into_iter()
            .filter(|(key, _)| table.get(*key).is_some())
            .map(|it| it.1)
            .collect();
        let is_quarantined =
            |record: &InRecord| quarantined.iter().any(|own| position(own) == position(record));
        let mut in_flight: Vec<InRecord> =
            in_flight.into_iter().filter(|record| !is_quarantined(record)).collect();
        let is_known =
            |entering: &InRecord| in_flight.iter().any(|known| position(known) == position(entering));
        if let Some(entering) = self.entering.filter(|entering| !is_known(entering)) {
            in_flight.push(entering);
        }
        let (latest, half) = match self.on_trial {
            Some((positions, _)) => (positions, self.group / 2),
            None => (Vec::new(), usize::MAX),
        };
        // What was let in last is the likeliest; it is tried first.
        let (first, then): (Vec<_>, Vec<_>) =
            in_flight.into_iter().partition(|record| latest.contains(&position(record)));
        let likeliest = if first.is_empty() { then.len() } else { first.len() };
        let in_flight = first.len() + then.len();
        let suspects = in_flight + self.suspects;
        let mut records: VecDeque<InRecord> = first.into_iter().chain(then).collect();
        records.extend(self.waiting.into_iter().map(|held| held.record));
        records.extend(untouched);
        let group = likeliest.div_ceil(2).min(half).max(1);
        Suspicion { records, suspects, group, in_flight, quarantined }
    }
}

/// The position of a record.
pub(crate) fn position(record: &InRecord) -> Position {
    Position { partition: record.partition, epoch: record.epoch, offset: record.offset }
}
