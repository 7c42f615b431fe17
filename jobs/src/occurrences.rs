//! Occurrences: the due tasks of jobs, and what is done when the scheduler fires them.
//!
//! An occurrence is decided by one change of the job's state, together with the run that it becomes. Only then the due task of
//! the next occurrence is added, and only then the scheduler is told that this one is done. So a process that dies on any line
//! between them leaves a task that fires again, finds the occurrence decided, and adds the next one.

use crate::book::{Kept, group, put_run, put_state, shard_bits};
use crate::core::{Core, priority_of};
use crate::definition::{Definition, JobNumber, Priority};
use crate::due_clock::Turn;
use crate::outbox::{Door, Room, Ticket};
use crate::runs::{Begin, JobState, Run, RunNumber, begin};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use windfall_contract::due::{Fired, Firing, Shard, Target, TaskKey};
use windfall_contract::entries::{Applied, EntryError, EntryGroup, Expect};

/// Times that a decision is made anew because somebody else changed the job meanwhile.
const CONFLICTS_MAX: usize = 5;
/// Occurrences that are decided together.
const TOGETHER_MAX: usize = 500;
/// Occurrences of one shard that are decided by one change of the store: more would hold up others there, and save little.
const OF_SHARD_MAX: usize = 128;

/// An occurrence of a job, as its due task carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub job: JobNumber,
    pub version: u64,
    pub due_ms: u64,
}

impl Occurrence {
    pub fn encode(&self) -> Bytes {
        [self.job.0, self.version, self.due_ms].map(u64::to_be_bytes).concat().into()
    }

    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut numbers = payload.chunks_exact(8).map(|part| part.try_into().ok().map(u64::from_be_bytes));
        let mut number = || numbers.next().flatten();
        let occurrence = Self { job: JobNumber(number()?), version: number()?, due_ms: number()? };
        (payload.len() == 24).then_some(occurrence)
    }

    /// One task per occurrence waits at a time. The tasks of all jobs of a shard lie in one shard of the scheduler: they are
    /// read, decided and added together, and each call of a store costs as much as many more tasks of it.
    ///
    /// The scheduler takes the shard from a CRC-32C of the tenant and the key, which is linear. So four bytes behind the
    /// occurrence make the sums of two keys differ by the numbers of their shards alone, whatever the tenant is.
    pub fn key(&self) -> Option<TaskKey> {
        let name = self.encode();
        // What the name makes of a register of zeros.
        let sum = !crc32c::crc32c_append(u32::MAX, &name);
        let shard = u32::from(shard_bits(self.job.0));
        let end = (sum ^ before_four_bytes(shard)).to_le_bytes();
        TaskKey::new(&[&name[..], &end[..]].concat()).ok()
    }
}

/// The register of a CRC-32C that four bytes of zeros turn into this one.
const fn before_four_bytes(mut register: u32) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut bit = 0;
    while bit < 32 {
        // Of a polynomial with this bit only what was odd has it.
        register = match register >> 31 {
            0 => register << 1,
            _ => ((register ^ POLYNOMIAL) << 1) | 1,
        };
        bit += 1;
    }
    register
}

/// What the scheduler fires occurrences at.
pub(crate) struct Occurrences(pub Arc<Core>);

#[async_trait]
impl Target for Occurrences {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let mut answers = Vec::with_capacity(batch.len());
        for part in batch.chunks(TOGETHER_MAX) {
            answers.extend(self.0.decide(part).await);
        }
        answers
    }
}

impl Core {
    /// Decides occurrences, and sends the runs of each shard as soon as it has answered.
    async fn decide(&self, batch: &[Firing]) -> Vec<Fired> {
        let mut answers = vec![Fired::Done; batch.len()];
        let mut by_shard: BTreeMap<Shard, Vec<(usize, Occurrence)>> = BTreeMap::new();
        for (place, firing) in batch.iter().enumerate() {
            let occurrence = Occurrence::decode(&firing.payload);
            match occurrence.and_then(|it| Some((self.book.shard_of(it.job.0)?, it))) {
                Some((shard, occurrence)) => by_shard.entry(shard).or_default().push((place, occurrence)),
                None => answers[place] = Fired::Refused("this is no occurrence of a job".to_owned()),
            }
        }
        // All tasks of a call are of one tenant.
        let door = Door::First(batch.first().map_or(Priority::Normal, |one| priority_of(&one.tenant)));
        let parts =
            by_shard.iter().flat_map(|(shard, all)| all.chunks(OF_SHARD_MAX).map(|part| (*shard, part)));
        let mut shards: FuturesUnordered<_> =
            parts.map(|(shard, part)| Deciding::new(self, shard, door).run(part.to_vec())).collect();
        let mut next = Vec::new();
        while let Some(decided) = shards.next().await {
            for (place, fired) in decided.fired {
                answers[place] = fired;
            }
            next.extend(decided.next);
        }
        let occurrences: Vec<_> = next.iter().map(|(_, occurrence)| *occurrence).collect();
        for ((place, _), added) in next.iter().zip(self.add_due(&occurrences).await) {
            if let Err(error) = added {
                answers[*place] = Fired::Away(format!("the next occurrence cannot be added: {error}"));
            }
        }
        answers
    }
}

/// What became of the occurrences of one shard.
#[derive(Default)]
struct Decided {
    fired: Vec<(usize, Fired)>,
    next: Vec<(usize, (Priority, Occurrence))>,
}

struct Deciding<'a> {
    core: &'a Core,
    shard: Shard,
    door: Door,
    decided: Decided,
}

/// An occurrence that is decided as soon as its group is applied.
struct Candidate {
    place: usize,
    occurrence: Occurrence,
    definition: Arc<Definition>,
    state: JobState,
    /// The occurrences that the misfire strategy leaves out by this decision.
    left_out: u64,
    run: Option<(RunNumber, Run)>,
}

impl<'a> Deciding<'a> {
    fn new(core: &'a Core, shard: Shard, door: Door) -> Self {
        Self { core, shard, door, decided: Decided::default() }
    }

    async fn run(mut self, occurrences: Vec<(usize, Occurrence)>) -> Decided {
        let mut left = match self.due(&occurrences).await {
            Ok(due) => due,
            Err(error) => return self.away(&occurrences, &error),
        };
        for _ in 0..CONFLICTS_MAX {
            if left.is_empty() {
                return self.decided;
            }
            // Room to send first, for this shard alone: what is begun is sent at once. What is not needed is free again as soon
            // as the shard has answered.
            let Some(mut room) = self.core.outbox.reserve(self.door, left.len()).await else {
                return self.busy(&left, "as many runs wait to be sent as may");
            };
            match self.round(&left, &mut room).await {
                Ok(conflicts) => left = conflicts,
                Err(error) => return self.away(&left, &error),
            }
        }
        match left.is_empty() {
            true => self.decided,
            false => self.busy(&left, "the job is being changed again and again"),
        }
    }

    /// The occurrences of which the time has come. What becomes of the others is said.
    async fn due(
        &mut self,
        occurrences: &[(usize, Occurrence)],
    ) -> Result<Vec<(usize, Occurrence)>, EntryError> {
        let clock = self.core.due_clock(self.shard).await?;
        let mut due = Vec::with_capacity(occurrences.len());
        for (place, occurrence) in occurrences {
            let early = match clock.turn(occurrence.due_ms) {
                Turn::Now => {
                    due.push((*place, *occurrence));
                    continue;
                }
                // Neither busy nor away, which would keep all others waiting.
                Turn::Soon => Fired::Failed("it has fired before its time".to_owned()),
                Turn::Far => Fired::Done,
            };
            self.core.stats.early.add(1);
            self.decided.fired.push((*place, early));
        }
        Ok(due)
    }

    fn away(mut self, left: &[(usize, Occurrence)], error: &EntryError) -> Decided {
        self.core.store_failed("occurrences wait for the store of entries", error);
        let away = |(place, _): &(usize, Occurrence)| (*place, Fired::Away(error.to_string()));
        self.decided.fired.extend(left.iter().map(away));
        self.decided
    }

    fn busy(mut self, left: &[(usize, Occurrence)], why: &str) -> Decided {
        self.decided.fired.extend(left.iter().map(|(place, _)| (*place, Fired::Busy(why.to_owned()))));
        self.decided
    }

    /// Decides what can be; what somebody else changed meanwhile is returned.
    async fn round(
        &mut self,
        occurrences: &[(usize, Occurrence)],
        room: &mut Room,
    ) -> Result<Vec<(usize, Occurrence)>, EntryError> {
        // A job's second occurrence of a batch follows from what became of the first one.
        let mut later = Vec::new();
        let mut first = BTreeMap::new();
        for (place, occurrence) in occurrences {
            match first.entry(occurrence.job) {
                Entry::Occupied(_) => later.push((*place, *occurrence)),
                Entry::Vacant(free) => drop(free.insert((*place, *occurrence))),
            }
        }
        // Before any look at the store's clock: leases that are counted from there are over later than from here.
        let begun_ns = self.core.clock.monotonic_ns();
        let first: Vec<(usize, Occurrence)> = first.into_values().collect();
        let states = self.states(&first).await?;
        let current = first.iter().zip(&states).filter_map(|((_, occurrence), state)| {
            let state = state.as_ref().ok()?.as_ref()?;
            Some((occurrence.job, state.is.version))
        });
        self.core.learn_definitions(self.shard, current).await;
        let (mut groups, mut candidates) = (Vec::new(), Vec::new());
        for ((place, occurrence), state) in first.into_iter().zip(states) {
            let decided = match state {
                Ok(state) => self.decide(place, occurrence, state).await,
                Err(error) => Err(error),
            };
            match decided {
                Ok(decided) => {
                    if let Some((group, candidate)) = decided {
                        groups.push(group);
                        candidates.push(candidate);
                    }
                }
                // It waits by itself; the others go on.
                Err(error @ EntryError::Unusable(_)) => {
                    self.core.unreadable(&error);
                    self.decided.fired.push((place, Fired::Away(error.to_string())));
                }
                Err(error) => return Err(error),
            }
        }
        if !groups.is_empty() {
            let (_, applied) = self.core.apply(self.shard, &groups).await?;
            for (candidate, applied) in candidates.into_iter().zip(applied) {
                match applied {
                    Applied::Done(version) => {
                        if let Some(ticket) = self.done(candidate, version, begun_ns) {
                            // While the process ends nothing is sent any more: it is found when its lease is over.
                            room.send(ticket).ok();
                        }
                    }
                    Applied::Conflict | Applied::Late => later.push((candidate.place, candidate.occurrence)),
                }
            }
        }
        Ok(later)
    }

    /// The states of jobs, one for each occurrence: those that this process does not know are read.
    async fn states(
        &self,
        occurrences: &[(usize, Occurrence)],
    ) -> Result<Vec<Result<Option<Kept<JobState>>, EntryError>>, EntryError> {
        let known: Vec<_> = occurrences.iter().map(|(_, one)| self.core.known_states.take(one)).collect();
        let unknown = occurrences.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<JobNumber> = unknown.map(|((_, one), _)| one.job).collect();
        let mut read = self.core.states(self.shard, &unknown).await?.into_iter();
        let state = |known: Option<_>| match known {
            Some(known) => Ok(Some(known)),
            None => read.next().unwrap_or(Ok(None)),
        };
        Ok(known.into_iter().map(state).collect())
    }

    async fn decide(
        &mut self,
        place: usize,
        occurrence: Occurrence,
        state: Option<Kept<JobState>>,
    ) -> Result<Option<(EntryGroup, Candidate)>, EntryError> {
        let Occurrence { job, version, due_ms } = occurrence;
        let stale = |this: &mut Self| {
            this.core.stats.stale.add(1);
            Ok(None)
        };
        let Some(Kept { version: state_version, is: state }) = state else { return stale(self) };
        let missed_before = state.missed;
        if state.version != version {
            return stale(self);
        }
        let Some(definition) = self.core.definition(self.shard, job, version).await? else {
            return stale(self);
        };
        let clock = self.core.due_clock(self.shard).await?;
        let keep = self.core.options.keep();
        match begin(job, &definition, &state, version, due_ms, keep, clock.now()) {
            Begin::Stale => stale(self),
            Begin::Before { next_ms } => {
                let next = next_ms.map(|due_ms| Occurrence { job, version, due_ms });
                let priority = definition.spec.priority;
                self.decided.next.extend(next.map(|next| (place, (priority, next))));
                stale(self)
            }
            Begin::Now { state, run } => {
                let late_ms = clock.late_ms(due_ms);
                let mut changes = vec![put_state(job, Expect::Version(state_version), &state, late_ms)];
                let run = match run {
                    Some(run) => {
                        let number = self.core.book.number(self.shard).await?;
                        Some((RunNumber(number), Run { lease: self.core.leases.next(), ..run }))
                    }
                    None => None,
                };
                if let Some((number, run)) = &run {
                    changes.extend(put_run(*number, Expect::Absent, run, keep));
                }
                let left_out = state.missed.saturating_sub(missed_before);
                let candidate = Candidate { place, occurrence, definition, state, left_out, run };
                Ok(Some((group(changes), candidate)))
            }
        }
    }

    fn done(&mut self, candidate: Candidate, version: u64, begun_ns: u64) -> Option<Ticket> {
        let Candidate { place, occurrence, definition, state, left_out, run } = candidate;
        let next = state.next_ms.map(|due_ms| Occurrence { due_ms, ..occurrence });
        let priority = definition.spec.priority;
        self.decided.next.extend(next.map(|next| (place, (priority, next))));
        self.core.stats.left_out.add(left_out);
        if state.next_ms.is_some() {
            self.core.known_states.put(occurrence.job, Kept { version, is: state });
        }
        let (number, run) = run?;
        self.core.stats.started.add(1);
        Some(Ticket { number, run, version, definition, begun_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn occurrence(job: u64, due_ms: u64) -> Occurrence {
        Occurrence { job: JobNumber(job), version: 1_800_000_000_000_000 + job, due_ms }
    }

    #[test]
    fn due_tasks_of_a_shard_of_jobs_lie_in_one_shard_of_the_scheduler() {
        for (tenant, shards) in [(1, 64), (7, 64), (2, 16), (3, 1_024), (4, 61)] {
            let of = |job, due_ms| occurrence(job, due_ms).key().unwrap().shard(tenant, shards);
            let mut used = BTreeSet::new();
            for shard in 0..64 {
                let first = of(shard, 1_000);
                for counter in 1..50 {
                    assert_eq!(of((counter << 10) | shard, 1_000 * counter), first);
                }
                used.insert(first);
            }
            assert_eq!(used.len(), usize::from(shards.min(64)), "each shard of the scheduler has its part");
        }
    }

    #[test]
    fn each_occurrence_has_a_key_of_its_own() {
        let keys: BTreeSet<_> =
            (0..100).flat_map(|job| (0..100).map(move |due_ms| occurrence(job, due_ms).key())).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
