//! Runs that go on: what happened to them is written in one step, with what follows from it.

use crate::book::{
    Following, change, dead_key, definition_key, following_key, forget_run, put, put_run, put_state, run_key,
    state_key, unmark, version_key,
};
use crate::children::CHILDREN_KEPT_MS;
use crate::core::Core;
use crate::definition::{Definition, Delivery, JobName};
use crate::occurrences::Occurrence;
use crate::outbox::Ticket;
use crate::runs::{
    Cause, JobState, Keep, Outcome, Reported, Run, RunNumber, RunState, Sent, WokenRun, killed, put_off,
    reported, sent, woken,
};
use crate::schedule::Schedule;
use crate::steps::{Kind, Next, Step};
use crate::tending::UNREADABLE_MS;
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryChange, EntryError, Expect, To};

/// Events that are decided side by side.
const SIDE_BY_SIDE: usize = 64;
const CONFLICTS_MAX: usize = 5;

/// Something that happened to a run.
#[derive(Debug, Clone)]
pub(crate) enum Happened {
    /// An attempt to send it ended.
    Sent {
        how: Sent,
        /// Who has it.
        executor: Option<String>,
        /// The number of the lease under which it was sent.
        lease: u32,
    },
    /// It is sent later, under the lease of this number: nobody was called for it.
    PutOff { why: String, lease: u32 },
    /// It was reported by an executor of this tenant.
    Reported {
        tenant: String,
        /// Which attempt it is about, where the executor says so.
        attempt: Option<u32>,
        /// The time with which that attempt was sent.
        sent_ms: Option<u64>,
        how: Reported,
    },
    /// Somebody has ended it, as it was read: where it has changed meanwhile, it stays.
    Killed { why: String },
    /// Its time to wake has come.
    Woken,
}

/// A run, what happened to it, and the version in which it was read, if it was.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub number: RunNumber,
    pub happened: Happened,
    pub read: Option<(u64, Run)>,
}

/// What became of an event.
pub(crate) enum Became {
    /// It is written; the run has to be sent where there is a ticket.
    Written(Option<Box<Ticket>>),
    /// What had happened meanwhile stays, or there is no such run.
    Stays,
    /// It is not written, or nobody knows. It may be repeated.
    Failed(EntryError),
}

impl Core {
    /// Writes what happened to runs of one shard: one answer for each, in order.
    pub async fn happened(&self, shard: Shard, events: Vec<Event>) -> Vec<Became> {
        let mut became: Vec<Became> = events.iter().map(|_| Became::Stays).collect();
        let mut left: Vec<(usize, Event)> = events.into_iter().enumerate().collect();
        for _ in 0..CONFLICTS_MAX {
            if left.is_empty() {
                return became;
            }
            let places: Vec<usize> = left.iter().map(|(place, _)| *place).collect();
            left = match self.happened_round(shard, left, &mut became).await {
                Ok(left) => left,
                Err(error) => {
                    for place in places {
                        if matches!(became[place], Became::Stays) {
                            became[place] = Became::Failed(error.clone());
                        }
                    }
                    return became;
                }
            };
        }
        for (place, _) in left {
            let contended = "the run is being changed again and again".to_owned();
            became[place] = Became::Failed(EntryError::Unavailable(contended));
        }
        became
    }

    async fn happened_round(
        &self,
        shard: Shard,
        events: Vec<(usize, Event)>,
        became: &mut [Became],
    ) -> Result<Vec<(usize, Event)>, EntryError> {
        let begun_ns = self.clock.monotonic_ns();
        let now_ms = self.now_ms(shard).await?;
        let events = self.read_runs(shard, events, became).await?;
        let (mut first, mut later, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (place, event) in events {
            // A second event of a run follows from the first one.
            if seen.insert(event.number) {
                first.push((place, event));
            } else {
                later.push((place, Event { read: None, ..event }));
            }
        }
        let decided: Vec<_> = stream::iter(first)
            .map(|(place, event)| async move { (place, self.step(shard, event, now_ms).await) })
            .buffer_unordered(SIDE_BY_SIDE)
            .collect()
            .await;
        let (mut steps, mut places) = (Vec::new(), Vec::new());
        for (place, step) in decided {
            match step {
                Ok(Some(step)) => {
                    steps.push(step);
                    places.push(place);
                }
                Ok(None) => {}
                Err(error) => became[place] = Became::Failed(error),
            }
        }
        let (mut next, mut taken) = (Vec::new(), Vec::new());
        let applied = self.apply_steps(shard, &steps, now_ms).await;
        for ((place, step), applied) in places.into_iter().zip(steps).zip(applied) {
            match applied {
                Ok(Applied::Done(version)) => {
                    became[place] =
                        Became::Written(self.done(step, version, begun_ns, &mut next).map(Box::new));
                }
                applied if step.is_to_send => taken.push((place, step, applied.err())),
                // Whoever has changed it has given it another time to wake; and who ends it is to know what it was.
                Ok(_) if matches!(step.event.happened, Happened::Woken | Happened::Killed { .. }) => {}
                Ok(_) => later.push((place, Event { read: None, ..step.event })),
                Err(error) => became[place] = Became::Failed(error),
            }
        }
        let versions = self.versions_of_taken(shard, &taken).await;
        for ((place, step, error), version) in taken.into_iter().zip(versions) {
            became[place] = match (version, error) {
                (Some(version), _) => {
                    Became::Written(self.done(step, version, begun_ns, &mut next).map(Box::new))
                }
                (None, Some(error)) => Became::Failed(error),
                // Whoever has changed it has given it another time to wake.
                (None, None) => Became::Stays,
            };
        }
        for added in self.add_due(&next).await {
            if let Err(error) = added {
                // The state says which occurrence comes next: the look for overdue ones finds it.
                self.store_failed("the next occurrence of a job cannot be added now", &error);
            }
        }
        Ok(later)
    }

    /// The versions of runs that were taken to be sent, where the answer was lost: as long as a run has the lease that was to be
    /// written, nobody else has it, and it does not have to wait until that is over.
    async fn versions_of_taken(
        &self,
        shard: Shard,
        taken: &[(usize, Step, Option<EntryError>)],
    ) -> Vec<Option<u64>> {
        let keys: Vec<_> = taken.iter().map(|(_, step, _)| run_key(step.event.number)).collect();
        let read = match self.book.read::<Run>(shard, &keys).await {
            Ok(read) => read,
            Err(error) => {
                self.store_failed("runs that were taken to be sent cannot be read now", &error);
                return vec![None; taken.len()];
            }
        };
        let versions = taken.iter().zip(read).map(|((_, step, _), read)| {
            let lease = step.run.as_ref()?.lease;
            // One that cannot be read is not ours: nobody has written it like that.
            let kept = read.inspect_err(|error| self.unreadable(error)).ok().flatten()?;
            kept.is.is_leased_as(lease).then_some(kept.version)
        });
        versions.collect()
    }

    /// What is left to do after a step: its occurrence is to be added, and its run to be sent.
    fn done(&self, step: Step, version: u64, begun_ns: u64, next: &mut Vec<Next>) -> Option<Ticket> {
        self.count(&step);
        let (run, definition) = (step.run?, step.definition?);
        next.extend(step.next);
        let number = step.event.number;
        step.is_to_send.then_some(Ticket { number, run, version, definition, begun_ns })
    }

    /// Reads the runs that nobody has read yet; those that are not there are left out.
    async fn read_runs(
        &self,
        shard: Shard,
        events: Vec<(usize, Event)>,
        became: &mut [Became],
    ) -> Result<Vec<(usize, Event)>, EntryError> {
        let missing = events.iter().filter(|(_, event)| event.read.is_none());
        let keys: Vec<_> = missing.map(|(_, event)| run_key(event.number)).collect();
        let mut found = self.book.read::<Run>(shard, &keys).await?.into_iter();
        let mut read = Vec::with_capacity(events.len());
        for (place, mut event) in events {
            if event.read.is_none() {
                match found.next().unwrap_or(Ok(None)) {
                    Ok(kept) => event.read = kept.map(|kept| (kept.version, kept.is)),
                    Err(error) => {
                        self.unreadable(&error);
                        became[place] = Became::Failed(error);
                        continue;
                    }
                }
            }
            match (&event.read, &event.happened) {
                (Some((_, run)), Happened::Reported { tenant, .. }) if run.tenant != *tenant => {
                    self.stats.reports_unknown.add(1);
                }
                (Some(_), _) => read.push((place, event)),
                (None, Happened::Reported { .. }) => self.stats.reports_unknown.add(1),
                (None, _) => {}
            }
        }
        Ok(read)
    }

    /// What an event makes of its run, and what has to be written for it; `None`: nothing.
    async fn step(&self, shard: Shard, event: Event, now_ms: u64) -> Result<Option<Step>, EntryError> {
        let Some((version, run)) = &event.read else { return Ok(None) };
        let (expect, keep) = (Expect::Version(*version), self.book.retention.keep(shard));
        let is_woken = matches!(event.happened, Happened::Woken);
        if is_woken && run.is_over() {
            return Ok(Some(over_step(&event, *version, run, keep, now_ms)));
        }
        let (definition, fence) = match self.definition_of(shard, run, is_woken).await {
            Ok(found) => found,
            Err(error @ EntryError::Unusable(_)) if is_woken => {
                self.unreadable(&error);
                let later_ms = now_ms.saturating_add(UNREADABLE_MS);
                let changes = vec![crate::book::push_run(event.number, expect, run, later_ms)];
                return Ok(Some(Step::new(event, changes, Kind::Changes)));
            }
            // Whoever ends it does so whatever its job says.
            Err(error @ EntryError::Unusable(_)) if matches!(event.happened, Happened::Killed { .. }) => {
                self.unreadable(&error);
                (None, None)
            }
            Err(error) => return Err(error),
        };
        let spec = definition.as_ref().map(|definition| &definition.spec);
        let (after, is_to_send) = match (&event.happened, spec) {
            (Happened::Woken, spec) => match woken(run, spec, self.leases.next(), now_ms) {
                WokenRun::Not => return Ok(None),
                WokenRun::Send(run) => (Some(run), true),
                WokenRun::Goes(run) => (Some(run), false),
                WokenRun::Forget => (None, false),
            },
            (Happened::Sent { how, executor, lease }, Some(spec)) => {
                (sent(run, spec, *lease, how, executor.as_deref(), now_ms), false)
            }
            (Happened::PutOff { why, lease }, Some(spec)) => (put_off(run, spec, *lease, why, now_ms), false),
            (Happened::Reported { attempt, sent_ms, how, .. }, Some(spec)) => {
                let attempt = attempt.or_else(|| run.attempt_of((*sent_ms)?));
                (reported(run, spec, attempt, how, now_ms), false)
            }
            (Happened::Killed { why }, _) => (killed(run, why, now_ms), false),
            // The job was removed: nothing goes on.
            (_, None) => (None, false),
        };
        let Some(mut after) = after else {
            if is_woken {
                let changes = forget_run(event.number, expect, run);
                return Ok(Some(Step::new(event, changes, Kind::Forgets)));
            }
            if matches!(event.happened, Happened::Reported { .. }) {
                self.stats.reports_unknown.add(1);
            }
            return Ok(None);
        };
        if run.is_over() && after.state == run.state {
            // It ended before: only who had it is noted.
            let kind = if after.is_dead() { Kind::Adds } else { Kind::Changes };
            let changes = put_run(event.number, expect, &after, keep);
            return Ok(Some(Step::new(event, changes, kind)));
        }
        // Only a run that is sent now follows another version from now on. Of one that was sent before it is to be known for ever
        // that nobody knows any more whether it may be sent again.
        if let Some(definition) = definition.as_ref().filter(|_| is_to_send) {
            after.version = definition.version;
        }
        let children =
            definition.as_ref().map_or_else(Vec::new, |definition| ready_children(&mut after, definition));
        let mut changes = put_run(event.number, expect, &after, keep);
        if run.is_dead() && !after.is_dead() {
            changes.push(unmark(dead_key(&after.tenant, event.number)));
        }
        changes.extend(fence.filter(|_| is_to_send));
        let mut step = Step::new(event, changes, Kind::Changes);
        if let (RunState::Ended { at_ms, outcome }, Some(definition)) = (after.state, &definition) {
            if outcome.is_dead() {
                step.kind = Kind::Adds;
            }
            if !children.is_empty() {
                step.changes.push(children_follow(&after.tenant, &children, step.event.number, now_ms));
                (step.kind, step.children) = (Kind::Adds, children);
            }
            if let Some((change, occurrence)) = self.follow(shard, definition, &after, at_ms).await? {
                step.changes.push(change);
                step.next = occurrence;
            }
        }
        Ok(Some(Step { definition, run: Some(after), is_to_send, ..step }))
    }

    /// The definition that a run follows, and what must be the same when the run is written; no definition where the job was
    /// removed.
    pub async fn definition_of(
        &self,
        shard: Shard,
        run: &Run,
        is_woken: bool,
    ) -> Result<(Option<Arc<Definition>>, Option<EntryChange>), EntryError> {
        // What is woken may be sent: only a look at the store tells whether its job is still there.
        let known = self.definitions.get(run.job, run.version).filter(|_| !is_woken);
        if known.is_some() {
            return Ok((known, None));
        }
        let Some(latest) = self.latest_definition(shard, run.job).await? else { return Ok((None, None)) };
        let unchanged = change(definition_key(run.job), Expect::Version(latest.version), To::Same);
        let followed = match latest.is.version == run.version {
            true => latest.is,
            false => self.earlier_definition(shard, run, &latest.is).await?,
        };
        Ok((Some(followed), Some(unchanged)))
    }

    /// The definition of the job's earlier version that a run follows: where it goes, what it gets, and whether it may be sent
    /// again were decided when it began. Where the version is forgotten, the run follows the latest one; nobody knows then whether
    /// it may be sent again, so that it is not where it may have been sent.
    async fn earlier_definition(
        &self,
        shard: Shard,
        run: &Run,
        latest: &Arc<Definition>,
    ) -> Result<Arc<Definition>, EntryError> {
        let key = version_key(run.job, run.version);
        if let Some(kept) = self.book.read_one::<Definition>(shard, key).await? {
            return Ok(Arc::new(kept.is));
        }
        let mut careful = Definition::clone(latest);
        careful.spec.delivery = Delivery::AtMostOnce;
        Ok(Arc::new(careful))
    }

    /// For a job with a fixed delay: the occurrence that follows from the end of the scheduled run that came last, as the job is
    /// by now.
    async fn follow(
        &self,
        shard: Shard,
        definition: &Definition,
        run: &Run,
        ended_ms: u64,
    ) -> Result<Option<(EntryChange, Option<Next>)>, EntryError> {
        let is_first_part = run.part.is_none_or(|part| part.index == 0);
        let is_delay = |definition: &Definition| matches!(definition.spec.schedule, Schedule::FixedDelay(_));
        if !(is_first_part && is_delay(definition) && run.cause == Cause::Schedule) {
            return Ok(None);
        }
        let state = match self.book.read_one::<JobState>(shard, state_key(run.job)).await {
            Ok(Some(state)) => state,
            Ok(None) => return Ok(None),
            // The run ends all the same.
            Err(error @ EntryError::Unusable(_)) => {
                self.unreadable(&error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // Changed since, after its end: the next one was decided then. Another run came since: that one is followed.
        if state.is.next_ms.is_some() || state.is.last_ms != Some(run.due_ms) {
            return Ok(None);
        }
        // Changed while it went. Where it is changed once more by now, the change that is made here finds another state.
        let latest = match state.is.version == definition.version {
            true => None,
            false => match self.latest_definition(shard, run.job).await? {
                Some(latest) => Some(latest.is),
                None => return Ok(None),
            },
        };
        let definition = latest.as_deref().unwrap_or(definition);
        if !is_delay(definition) {
            return Ok(None);
        }
        if definition.is_paused {
            // Whoever has it go on at this moment has seen this run go, and would wait for what follows.
            let same = change(state_key(run.job), Expect::Version(state.version), To::Same);
            return Ok(Some((same, None)));
        }
        // The store's clock may be ahead of what we know of it, and the delay is to be waited for as a whole.
        let ended_ms = ended_ms.saturating_add(self.store_clocks.slack_ms(shard));
        let next_ms = definition.spec.next_after_end(ended_ms.max(run.due_ms));
        let forget_ms = ended_ms.saturating_add(self.options.keep_failed_ms);
        let forget_ms = next_ms.is_none().then_some(forget_ms);
        let version = state.is.version;
        let after = JobState { next_ms, forget_ms, ..state.is };
        let change = put_state(run.job, Expect::Version(state.version), &after, 0);
        let occurrence = |due_ms| Occurrence { job: run.job, version, due_ms };
        let next = next_ms.map(|due_ms| (definition.spec.priority, occurrence(due_ms)));
        Ok(Some((change, next)))
    }

    fn count(&self, step: &Step) {
        let stats = &self.stats;
        let before = step.event.read.as_ref().map(|(_, run)| run);
        let (Some(run), Some(before)) = (&step.run, before) else { return };
        if step.is_to_send {
            match before.state {
                RunState::Retrying { .. } if before.postponed > 0 => {}
                RunState::Retrying { .. } => stats.retried.add(1),
                _ => stats.sent_again.add(1),
            }
        }
        if let RunState::Ended { outcome, .. } = run.state {
            let count = match outcome {
                Outcome::Succeeded => &stats.succeeded,
                Outcome::Failed => &stats.failed,
                Outcome::TimedOut => &stats.timed_out,
                Outcome::Missed => &stats.missed,
                Outcome::Killed => &stats.killed,
            };
            count.add(1);
        }
    }
}

/// What is written for a run whose time has come after its end.
fn over_step(event: &Event, version: u64, run: &Run, keep: Keep, now_ms: u64) -> Step {
    let (number, expect) = (event.number, Expect::Version(version));
    if !run.children.is_empty() {
        // There was no room for them when it ended.
        let after = Run { children: Vec::new(), ..run.clone() };
        let mut changes = put_run(number, expect, &after, keep);
        changes.push(children_follow(&run.tenant, &run.children, number, now_ms));
        return Step { children: run.children.clone(), ..Step::new(event.clone(), changes, Kind::Adds) };
    }
    // Where runs are kept for longer than when it ended, it is given its new time: otherwise it would be found again and again.
    let (changes, kind) = match run.wake_ms(keep) > now_ms {
        // A dead one may not be listed yet.
        true => (put_run(number, expect, run, keep), Kind::Adds),
        false => (forget_run(number, expect, run), Kind::Forgets),
    };
    Step::new(event.clone(), changes, kind)
}

/// Takes out of a run that has ended which children are to be started: those of its job where it has succeeded, and those that
/// an end before had no room for.
fn ready_children(run: &mut Run, definition: &Definition) -> Vec<JobName> {
    let RunState::Ended { outcome, .. } = run.state else { return Vec::new() };
    let mut children = std::mem::take(&mut run.children);
    if outcome == Outcome::Succeeded {
        let more = definition.spec.children.iter().filter(|child| !children.contains(child));
        let more: Vec<JobName> = more.cloned().collect();
        children.extend(more);
    }
    children
}

/// The change that has a run's children started: it is made with the end of the run, so that the run never waits for them.
fn children_follow(tenant: &str, children: &[JobName], parent: RunNumber, now_ms: u64) -> EntryChange {
    let (tenant, children) = (tenant.to_owned(), children.to_vec());
    let until_ms = now_ms.saturating_add(CHILDREN_KEPT_MS);
    let following = Following { tenant, children, until_ms, tries: 0 };
    put(following_key(parent), Expect::Anything, &following, Some(now_ms))
}

/// Events by the shard of their runs; those of numbers that are none are left out.
pub(crate) fn by_shard(core: &Core, events: Vec<Event>) -> BTreeMap<Shard, Vec<Event>> {
    let mut sorted: BTreeMap<Shard, Vec<Event>> = BTreeMap::new();
    for event in events {
        match core.book.shard_of(event.number.0) {
            Some(shard) => sorted.entry(shard).or_default().push(event),
            None => core.stats.reports_unknown.add(1),
        }
    }
    sorted
}
