//! The partitions that this consumer owns, and the commits and pauses that the broker is told with the next turn.

use crate::in_flight::{InFlightTable, Key};
use crate::lanes::Lanes;
use crate::partition::{Partition, Progress, Standing};
use crate::units::NS_PER_MS;
use std::collections::BTreeMap;
use windfall_contract::broker::{Acks, Commit, Epoch};
use windfall_contract::rules::Pacing;

/// All partitions that this consumer owns.
#[derive(Debug)]
pub(crate) struct Partitions {
    all: BTreeMap<u32, Partition>,
    acks: Acks,
    /// Commits of partitions that are being revoked, to be made before the next poll.
    owed: Vec<Commit>,
    /// Partitions to pause or to resume with the next turn.
    pauses: Vec<(u32, Epoch, bool)>,
    commit_every_ns: u64,
    committed_ns: u64,
}

/// The result of a look at all partitions.
#[derive(Debug, Default)]
pub(crate) struct Overview {
    /// The partitions that need an operator's attention, by number.
    pub notable: Vec<(u32, Progress)>,
    pub stuck: u64,
    /// The number of records delivered and not finished.
    pub depth: u64,
    /// Since when the oldest work is under way.
    pub oldest_since_ns: Option<u64>,
}

impl Partitions {
    pub fn new(acks: Acks, commit_every_ms: u64, now_ns: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            acks,
            owed: Vec::new(),
            pauses: Vec::new(),
            commit_every_ns: commit_every_ms.saturating_mul(NS_PER_MS),
            committed_ns: now_ns,
        }
    }

    /// The number of partitions owned.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn epoch(&self, partition: u32) -> Option<Epoch> {
        self.all.get(&partition).map(Partition::epoch)
    }

    pub fn assign(&mut self, partition: u32, epoch: Epoch, next_offset: u64, now_ns: u64) {
        self.all.insert(partition, Partition::new(epoch, next_offset, now_ns));
    }

    /// Ends an assignment: what is finished is committed before the next poll, and from here on its tickets do
    /// nothing. Says whether there was such an assignment.
    pub fn revoke(&mut self, partition: u32, epoch: Epoch) -> bool {
        if self.epoch(partition) != Some(epoch) {
            return false;
        }
        if let Some(mut own) = self.all.remove(&partition)
            && self.acks == Acks::Prefix
        {
            self.owed.extend(own.commit(partition, true));
        }
        self.pauses.retain(|(paused, ..)| *paused != partition);
        true
    }

    /// A partition under this assignment, if it is owned.
    #[inline]
    pub fn under(&mut self, partition: u32, epoch: Epoch) -> Option<&mut Partition> {
        self.all.get_mut(&partition).filter(|own| own.epoch() == epoch)
    }

    /// Notes that a record's own work begins.
    #[inline]
    pub fn work_begins(&mut self, partition: u32, key: Key) {
        if let Some(own) = self.all.get_mut(&partition) {
            own.work_begins(key);
        }
    }

    /// Takes the records that are held since `before_ns` or earlier and are not finished.
    pub fn take_older(&mut self, table: &InFlightTable, before_ns: u64) -> Vec<Key> {
        let mut older = Vec::new();
        self.all.values_mut().for_each(|own| own.take_older(table, before_ns, &mut older));
        older
    }

    /// The partitions whose windows take no more before their oldest record is finished.
    pub fn full_windows(&mut self) -> Vec<u32> {
        let full = self.all.iter_mut().filter_map(|(&number, own)| own.spans_too_much().then_some(number));
        full.collect()
    }

    /// What there is to commit with the next turn: what is owed, and all else when it is time for it.
    pub fn take_commits(&mut self, now_ns: u64) -> Vec<Commit> {
        let mut commits = std::mem::take(&mut self.owed);
        if now_ns.saturating_sub(self.committed_ns) >= self.commit_every_ns {
            self.committed_ns = now_ns;
            self.add_commits(&mut commits, false);
        }
        commits
    }

    /// All that there is to commit before leaving the group.
    pub fn take_last_commits(&mut self) -> Vec<Commit> {
        let mut commits = std::mem::take(&mut self.owed);
        self.add_commits(&mut commits, true);
        commits
    }

    /// Notes that these commits were stored.
    pub fn committed(&mut self, commits: &[Commit]) {
        for commit in commits {
            if let Some(own) = self.all.get_mut(&commit.partition) {
                own.committed(commit);
            }
        }
    }

    /// Keeps commits that were not stored, to be made before leaving the group.
    pub fn commit_again(&mut self, commits: Vec<Commit>) {
        self.owed.extend(commits);
    }

    /// Decides which partitions are paused or resumed with the next turn; returns how many are paused.
    pub fn decide_pauses(&mut self, lanes: &Lanes, pacing: &Pacing, now_ns: u64) -> u64 {
        let mut paused = 0;
        for (&number, own) in &mut self.all {
            if own.decide_pause(lanes, pacing, now_ns) {
                self.pauses.push((number, own.epoch(), own.is_paused()));
            }
            paused += u64::from(own.is_paused());
        }
        paused
    }

    /// Where each partition stands, for a loop that goes on after a panic of this one.
    pub fn standings(&mut self) -> BTreeMap<u32, Standing> {
        self.all.iter_mut().map(|(&number, own)| (number, own.standing())).collect()
    }

    /// Takes over a partition of the loop before this one, which may have paused it.
    pub fn resume(&mut self, partition: u32, at: &Standing, now_ns: u64) {
        let own = Partition::resumed(at, now_ns);
        self.pauses.push((partition, own.epoch(), false));
        self.all.insert(partition, own);
    }

    /// Everything that was delivered to the loop before this one is in the windows again, or finished.
    pub fn catch_up(&mut self, partition: u32, next: u64) {
        if let Some(own) = self.all.get_mut(&partition) {
            own.catch_up(next);
        }
    }

    pub fn has_pauses(&self) -> bool {
        !self.pauses.is_empty()
    }

    pub fn take_pauses(&mut self) -> Vec<(u32, Epoch, bool)> {
        std::mem::take(&mut self.pauses)
    }

    /// The watchdog: looks which partitions have made no progress for `patience_ns`.
    pub fn look(&mut self, table: &InFlightTable, patience_ns: u64, now_ns: u64) -> Overview {
        let mut overview = Overview::default();
        for (&number, own) in &mut self.all {
            let progress = own.look(now_ns, patience_ns);
            overview.stuck += u64::from(progress.is_stuck);
            overview.depth += progress.depth;
            if progress.newly_stuck.is_some() || progress.dropped.is_some() {
                overview.notable.push((number, progress));
            }
            own.compact(table);
            let oldest_ns = own.oldest_since_ns(table);
            overview.oldest_since_ns = overview.oldest_since_ns.into_iter().chain(oldest_ns).min();
        }
        overview
    }

    fn add_commits(&mut self, commits: &mut Vec<Commit>, are_last: bool) {
        if self.acks == Acks::Prefix {
            commits.extend(self.all.iter_mut().filter_map(|(&number, own)| own.commit(number, are_last)));
        }
    }
}
