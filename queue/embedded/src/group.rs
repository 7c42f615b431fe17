//! Who reads which partition: the cooperative assignment of one group in one topic. No I/O, no clock.

use super::prefetch::Prefetch;
use parking_lot::Mutex;
use std::sync::Arc;
use windfall_contract::broker::{Change, Commit, Epoch, PollError};
use windfall_contract::finished::Finished;

/// A consumer of the group, for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MemberId(u64);

/// The state of a partition between one member and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    /// Promised to a member that has not been told yet, so it may still be taken back without a word.
    Promised(MemberId),
    Held(MemberId),
    /// Will be announced as revoked by the member's next poll.
    Leaving(MemberId),
    /// The revocation is announced; the partition goes with the member's next poll.
    Announced(MemberId),
}

#[derive(Debug)]
struct Partition {
    committed: u64,
    epoch: u32,
    holder: Holder,
    /// The offsets that are finished beyond `committed`.
    finished: Finished,
    /// Whether the files hold such a map.
    is_mapped: bool,
    /// Records that were lost before the group had read them, of which no member was told yet.
    lost: Option<Loss>,
}

/// Records of a partition that the group has not read and that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) what: &'static str,
}

/// A group's position in one partition when it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) committed: u64,
    pub(super) finished: Finished,
    pub(super) lost: Option<Loss>,
}

/// What the writer stores of a group in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) committed: u64,
    pub(super) map: MapWrite,
}

/// What becomes of the stored map of finished offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MapWrite {
    /// There is no map, and there was none.
    None,
    Put(Finished),
    Remove,
}

impl Start {
    pub(super) fn at(committed: u64) -> Self {
        Self { committed, finished: Finished::default(), lost: None }
    }

    /// The same position with the stored map. Offsets that the log does not have any more are removed from the map,
    /// since they will be written again. Also returns whether there were any.
    pub(super) fn with(mut self, map: &Finished, end: u64) -> (Self, bool) {
        self.finished = map.within(self.committed..end);
        (self, map.end() > end)
    }

    /// Compares a group's stored position with the log as it was found. Nothing is written yet, so where the log ends
    /// before the position, what comes next is new.
    pub(super) fn found(stored: Option<u64>, low: u64, end: u64) -> Self {
        let Some(stored) = stored else { return Self::at(low) };
        let lost = if stored < low {
            Some(Loss { from: stored, to: low, what: "deleted before they were read" })
        } else if stored > end {
            Some(Loss { from: end, to: stored, what: "the log was cut off" })
        } else {
            None
        };
        Self { lost, ..Self::at(stored.clamp(low, end)) }
    }

    fn into_partition(self) -> Partition {
        let is_mapped = !self.finished.is_empty();
        Partition {
            committed: self.committed,
            epoch: 0,
            holder: Holder::Nobody,
            finished: self.finished,
            is_mapped,
            lost: self.lost,
        }
    }
}

#[derive(Debug)]
struct Member {
    id: MemberId,
    prefetch: Arc<Prefetch>,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    partitions: Vec<Partition>,
    next_member: u64,
}

/// One group of one topic.
#[derive(Debug)]
pub(super) struct Group {
    name: Box<str>,
    state: Mutex<State>,
}

impl Group {
    pub(super) fn new(name: &str, starts: impl IntoIterator<Item = Start>) -> Self {
        let partitions = starts.into_iter().map(Start::into_partition).collect();
        let state = State { members: Vec::new(), partitions, next_member: 0 };
        Self { name: name.into(), state: Mutex::new(state) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn committed(&self) -> Vec<u64> {
        self.state.lock().partitions.iter().map(|partition| partition.committed).collect()
    }

    /// The topic has grown to `partitions`; the new ones start at 0.
    pub(super) fn grow(&self, partitions: usize) {
        let mut state = self.state.lock();
        while state.partitions.len() < partitions {
            state.partitions.push(Start::at(0).into_partition());
        }
        state.rebalance();
    }

    pub(super) fn join(&self, prefetch: Arc<Prefetch>) -> MemberId {
        let mut state = self.state.lock();
        let id = MemberId(state.next_member);
        state.next_member += 1;
        state.members.push(Member { id, prefetch });
        state.rebalance();
        id
    }

    pub(super) fn leave(&self, member: MemberId) {
        let mut state = self.state.lock();
        state.members.retain(|other| other.id != member);
        for partition in &mut state.partitions {
            if partition.holder.member() == Some(member) {
                partition.holder = Holder::Nobody;
            }
        }
        state.rebalance();
    }

    /// Lets go what `member` has been told to give up; its poll has begun.
    pub(super) fn release(&self, member: MemberId) {
        let mut state = self.state.lock();
        let mut released = false;
        for partition in &mut state.partitions {
            if partition.holder == Holder::Announced(member) {
                partition.holder = Holder::Nobody;
                released = true;
            }
        }
        if released {
            state.rebalance();
        }
    }

    /// Takes the changes that `member` has to be told, revocations first. Each is returned once: the caller delivers
    /// it.
    pub(super) fn take_changes(&self, member: MemberId) -> Vec<Change> {
        let mut state = self.state.lock();
        let mut revoked = Vec::new();
        let mut assigned = Vec::new();
        for (partition, index) in state.partitions.iter_mut().zip(0u32..) {
            if partition.holder == Holder::Leaving(member) {
                partition.holder = Holder::Announced(member);
                revoked.push(Change::Revoked { partition: index, epoch: Epoch(partition.epoch) });
            } else if partition.holder == Holder::Promised(member) {
                partition.holder = Holder::Held(member);
                partition.epoch = partition.epoch.wrapping_add(1);
                let (epoch, next_offset) = (Epoch(partition.epoch), partition.committed);
                assigned.push(Change::Assigned { partition: index, epoch, next_offset });
            }
        }
        revoked.append(&mut assigned);
        revoked
    }

    /// Takes the loss that `member` has to be told of, in the partitions that it has been told it owns. Each is
    /// returned once.
    pub(super) fn take_loss(&self, member: MemberId) -> Option<PollError> {
        let mut state = self.state.lock();
        let mut partitions = (0u32..).zip(&mut state.partitions);
        partitions.find_map(|(index, partition)| {
            let is_told = partition.holder.reads_as(member);
            let Loss { from, to, what } = partition.lost.take_if(|_| is_told)?;
            let resumes_at = partition.committed;
            Some(PollError::Lost { partition: index, from, to, resumes_at, what: what.into() })
        })
    }

    /// The group's position in a partition. What is written of it is read here when it is written: a commit that was
    /// overtaken on its way to the writer changes nothing any more.
    pub(super) fn position(&self, partition: u32) -> Option<Position> {
        let index = usize::try_from(partition).ok()?;
        let mut state = self.state.lock();
        let partition = state.partitions.get_mut(index)?;
        let is_mapped = !partition.finished.is_empty();
        let map = match (std::mem::replace(&mut partition.is_mapped, is_mapped), is_mapped) {
            (_, true) => MapWrite::Put(partition.finished.clone()),
            (true, false) => MapWrite::Remove,
            (false, false) => MapWrite::None,
        };
        Some(Position { committed: partition.committed, map })
    }

    /// The offsets of a partition that are finished beyond the position, which need not be brought.
    pub(super) fn finished(&self, partition: u32) -> Finished {
        let index = usize::try_from(partition).unwrap_or(usize::MAX);
        let state = self.state.lock();
        state.partitions.get(index).map(|partition| partition.finished.clone()).unwrap_or_default()
    }

    /// Takes commits that are still `member`'s to make and move forward; `ends` bounds them. Returns what has
    /// changed. The others are fenced in silence (I3).
    pub(super) fn commit(&self, member: MemberId, commits: &[Commit], ends: &[u64]) -> Vec<u32> {
        let mut state = self.state.lock();
        let mut moved = Vec::new();
        for commit in commits {
            let Ok(index) = usize::try_from(commit.partition) else { continue };
            let (Some(partition), Some(end)) = (state.partitions.get_mut(index), ends.get(index)) else {
                continue;
            };
            let owned = partition.holder.reads_as(member) && partition.epoch == commit.epoch.0;
            let next_offset = commit.next_offset.min(*end);
            if !owned || next_offset < partition.committed {
                continue;
            }
            // What was finished stays finished, and what this member was spared it does not say.
            let finished = partition.finished.and(&commit.finished).within(next_offset..*end);
            if next_offset > partition.committed || finished != partition.finished {
                (partition.committed, partition.finished) = (next_offset, finished);
                moved.push(commit.partition);
            }
        }
        moved
    }

    /// Has each member's read-ahead look for new records.
    pub(super) fn wake_readers(&self) {
        for member in &self.state.lock().members {
            member.prefetch.look();
        }
    }
}

impl Holder {
    fn member(self) -> Option<MemberId> {
        match self {
            Self::Nobody => None,
            Self::Promised(id) | Self::Held(id) | Self::Leaving(id) | Self::Announced(id) => Some(id),
        }
    }

    /// Whether the member has been told of the partition and has not lost it yet.
    fn reads_as(self, member: MemberId) -> bool {
        matches!(self, Self::Held(id) | Self::Leaving(id) | Self::Announced(id) if id == member)
    }

    /// Whether the partition counts for the member's share from now on.
    fn stays_with(self, member: MemberId) -> bool {
        matches!(self, Self::Promised(id) | Self::Held(id) if id == member)
    }
}

impl State {
    /// Moves as few partitions as give each member its share: a member above it gives up the surplus when it has
    /// heard so, free partitions go to members below it.
    fn rebalance(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let shares = self.shares();
        for (member, share) in &shares {
            self.shed(*member, *share);
        }
        for (member, share) in &shares {
            self.fill(*member, *share);
        }
        for member in &self.members {
            member.prefetch.announce();
        }
    }

    /// Each member's share: all equal, the remainder to those who hold most now (so that least moves).
    fn shares(&self) -> Vec<(MemberId, usize)> {
        let mut order: Vec<(usize, MemberId)> =
            self.members.iter().map(|member| (self.count(member.id), member.id)).collect();
        order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let (each, extra) =
            (self.partitions.len() / self.members.len(), self.partitions.len() % self.members.len());
        order.iter().enumerate().map(|(rank, (_, id))| (*id, each + usize::from(rank < extra))).collect()
    }

    fn count(&self, member: MemberId) -> usize {
        self.partitions.iter().filter(|partition| partition.holder.stays_with(member)).count()
    }

    fn shed(&mut self, member: MemberId, share: usize) {
        let mut surplus = self.count(member).saturating_sub(share);
        for (from, to) in
            [(Holder::Promised(member), Holder::Nobody), (Holder::Held(member), Holder::Leaving(member))]
        {
            for partition in self.partitions.iter_mut().rev() {
                if surplus > 0 && partition.holder == from {
                    partition.holder = to;
                    surplus -= 1;
                }
            }
        }
    }

    fn fill(&mut self, member: MemberId, share: usize) {
        let mut missing = share.saturating_sub(self.count(member));
        for (from, to) in
            [(Holder::Leaving(member), Holder::Held(member)), (Holder::Nobody, Holder::Promised(member))]
        {
            for partition in &mut self.partitions {
                if missing > 0 && partition.holder == from {
                    partition.holder = to;
                    missing -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of ranges, some of which have one")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const PARTITIONS: usize = 7;

    #[derive(Debug, Clone)]
    enum Step {
        Join,
        Leave(usize),
        Poll(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Join),
            1 => (0usize..8).prop_map(Step::Leave),
            6 => (0usize..8).prop_map(Step::Poll),
        ]
    }

    /// What each member believes to own: from `Assigned` until the poll after `Revoked`.
    #[derive(Default)]
    struct Members {
        owned: BTreeMap<MemberId, BTreeSet<u32>>,
        going: BTreeMap<MemberId, BTreeSet<u32>>,
    }

    impl Members {
        fn poll(&mut self, group: &Group, member: MemberId) -> usize {
            self.going.remove(&member);
            group.release(member);
            let changes = group.take_changes(member);
            for change in &changes {
                let owned = self.owned.entry(member).or_default();
                match *change {
                    Change::Assigned { partition, .. } => assert!(owned.insert(partition), "told twice"),
                    Change::Passed { .. } => panic!("a group does not read"),
                    Change::Revoked { partition, .. } => {
                        assert!(owned.remove(&partition), "revoked what it has not");
                        self.going.entry(member).or_default().insert(partition);
                    }
                }
            }
            let all = self.owned.values().chain(self.going.values());
            let mut seen = BTreeSet::new();
            assert!(all.flatten().all(|partition| seen.insert(*partition)), "two owners: {:?}", self.owned);
            changes.len()
        }

        /// Polls until nothing moves any more. A round that brings nothing is not enough: a partition let go in it
        /// may have been promised to a member whose turn had passed.
        fn settle(&mut self, group: &Group) {
            let ids: Vec<_> = self.owned.keys().copied().collect();
            let mut quiet = 0;
            for _ in 0..20 {
                let changes: usize = ids.iter().map(|member| self.poll(group, *member)).sum();
                quiet = if changes == 0 { quiet + 1 } else { 0 };
                if quiet == 2 {
                    return;
                }
            }
            panic!("it never settles: {:?}", self.owned);
        }
    }

    /// Takes the steps, then lets it settle: everything has an owner, evenly.
    fn live_through(steps: Vec<Step>) {
        let group = Group::new("g", vec![Start::at(0); PARTITIONS]);
        let mut members = Members::default();
        let pick =
            |members: &Members, at: usize| members.owned.keys().nth(at % members.owned.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Join => {
                    let member = group.join(Arc::new(Prefetch::new(1)));
                    members.owned.insert(member, BTreeSet::new());
                }
                Step::Leave(at) => {
                    if let Some(member) = pick(&members, at) {
                        members.owned.remove(&member);
                        members.going.remove(&member);
                        group.leave(member);
                    }
                }
                Step::Poll(at) => {
                    if let Some(member) = pick(&members, at) {
                        members.poll(&group, member);
                    }
                }
            }
        }
        members.settle(&group);
        let shares: Vec<_> = members.owned.values().map(BTreeSet::len).collect();
        if let (Some(least), Some(most)) = (shares.iter().min(), shares.iter().max()) {
            assert_eq!(shares.iter().sum::<usize>(), PARTITIONS);
            assert!(most - least <= 1, "{shares:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn no_partition_has_two_owners_and_all_find_one(steps in prop::collection::vec(step(), 1..60)) {
            live_through(steps);
        }
    }

    #[test]
    fn a_partition_let_go_after_its_heir_has_polled_is_taken_in_the_next_round() {
        live_through(vec![Step::Join, Step::Join, Step::Poll(1), Step::Join, Step::Join, Step::Leave(3)]);
    }

    #[test]
    fn a_position_outside_of_the_log_is_a_loss_and_none_at_all_is_not() {
        let lost = |stored, low, end| {
            let start = Start::found(stored, low, end);
            (start.committed, start.lost.map(|lost| (lost.from, lost.to)))
        };
        assert_eq!(lost(None, 7, 9), (7, None));
        assert_eq!(lost(Some(7), 7, 9), (7, None));
        assert_eq!(lost(Some(9), 7, 9), (9, None));
        assert_eq!(lost(Some(3), 7, 9), (7, Some((3, 7))));
        assert_eq!(lost(Some(12), 7, 9), (9, Some((9, 12))));
    }

    /// A commit on its way to the writer when its partition goes to another member, which commits too.
    #[test]
    fn what_is_written_of_a_group_is_where_it_is_when_it_is_written() {
        let group = Group::new("g", [Start::at(0)]);
        let old = group.join(Arc::new(Prefetch::new(1)));
        group.take_changes(old);
        let commit = |epoch, next_offset| {
            [Commit { partition: 0, epoch: Epoch(epoch), next_offset, finished: Finished::default() }]
        };
        let position = || group.position(0).map(|position| position.committed);
        assert_eq!(group.commit(old, &commit(1, 5), &[100]), [0]);
        group.leave(old);
        let new = group.join(Arc::new(Prefetch::new(1)));
        group.take_changes(new);
        assert_eq!(group.commit(new, &commit(2, 9), &[100]), [0]);
        assert_eq!(position(), Some(9), "the writer comes to the commit of before");
        assert_eq!(group.commit(old, &commit(1, 20), &[100]), [] as [u32; 0]);
        assert_eq!(position(), Some(9));
    }

    #[test]
    fn what_is_finished_beyond_the_position_is_kept_until_the_position_passes_it() {
        let group = Group::new("g", [Start::at(0).with(&Finished::of([5..9]), 100).0]);
        let member = group.join(Arc::new(Prefetch::new(1)));
        group.take_changes(member);
        let commit = |next_offset, finished: std::ops::Range<u64>| {
            let finished = Finished::of([finished]);
            let commit = Commit { partition: 0, epoch: Epoch(1), next_offset, finished };
            group.commit(member, &[commit], &[100])
        };
        assert_eq!(commit(0, 20..30), [0]);
        assert_eq!(group.finished(0), Finished::of([5..9, 20..30]), "also what the last owner said");
        assert_eq!(commit(0, 20..30), [] as [u32; 0], "nothing new");
        assert!(matches!(group.position(0).unwrap().map, MapWrite::Put(_)));
        assert_eq!(commit(25, 26..200), [0]);
        assert_eq!(group.finished(0), Finished::of([25..100]), "not beyond what there is");
        assert_eq!(commit(100, 0..0), [0]);
        assert_eq!(group.position(0).unwrap().map, MapWrite::Remove);
        assert_eq!(group.position(0).unwrap().map, MapWrite::None);
    }

    #[test]
    fn a_map_says_nothing_of_offsets_that_the_log_has_lost() {
        let (start, forgets) = Start::at(3).with(&Finished::of([1..2, 5..9]), 7);
        assert!(forgets);
        assert_eq!(start.finished, Finished::of([5..7]));
        assert!(!Start::at(3).with(&Finished::of([5..7]), 7).1);
    }

    #[test]
    fn a_third_member_takes_only_what_must_move() {
        let group = Group::new("g", vec![Start::at(0); 6]);
        let mut members = Members::default();
        let ids: Vec<_> = (0..2).map(|_| group.join(Arc::new(Prefetch::new(1)))).collect();
        ids.iter().for_each(|member| drop(members.owned.insert(*member, BTreeSet::new())));
        members.settle(&group);
        let before = members.owned.clone();
        let third = group.join(Arc::new(Prefetch::new(1)));
        members.owned.insert(third, BTreeSet::new());
        members.settle(&group);
        for member in ids {
            assert!(members.owned[&member].is_subset(&before[&member]));
            assert_eq!(members.owned[&member].len(), 2);
        }
    }
}
