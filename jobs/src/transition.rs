//! Runs that go on: what happened to them is written in one step, with what follows from it.

use crate::book::{child_key, forget_run, group, kept, put, put_run, put_state, run_key, state_key};
use crate::core::{Core, Ticket};
use crate::definition::{Definition, JobNumber};
use crate::occurrences::Occurrence;
use crate::runs::{
    Cause, JobState, LEASE_MS, Outcome, Reported, Run, RunNumber, RunState, Sent, WokenRun, reported, sent, woken,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryError, EntryGroup, Expect, To};

const CONFLICTS_MAX: usize = 5;
const CHILD_MARK_MS: u64 = 86_400_000;
/// Parts of a broadcast that are written by one group; each takes two changes.
const PARTS_PER_GROUP: usize = 40;

/// Something that happened to a run.
#[derive(Debug, Clone)]
pub(crate) enum Happened {
    /// An attempt to send it ended, at this executor.
    Sent(Sent, Option<String>),
    /// It was reported.
    Reported(Reported),
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
    Written(Option<Ticket>),
    /// What had happened meanwhile stays, or there is no such run.
    Stays,
}

/// What is written for an event.
struct Step {
    event: Event,
    definition: Option<Arc<Definition>>,
    /// The run afterwards; `None`: it is forgotten.
    run: Option<Run>,
    is_to_send: bool,
    next: Option<Occurrence>,
}

impl Core {
    /// Writes what happened to runs of one shard: one answer for each, in order.
    ///
    /// # Errors
    /// [`EntryError`]: some of it may be written. It may be repeated.
    pub async fn happened(&self, shard: Shard, events: Vec<Event>) -> Result<Vec<Became>, EntryError> {
        let mut became: Vec<Became> = events.iter().map(|_| Became::Stays).collect();
        let mut left: Vec<(usize, Event)> = events.into_iter().enumerate().collect();
        for _ in 0..CONFLICTS_MAX {
            if left.is_empty() {
                return Ok(became);
            }
            left = self.happened_round(shard, left, &mut became).await?;
        }
        match left.is_empty() {
            true => Ok(became),
            false => Err(EntryError::Unavailable("runs are being changed again and again".to_owned())),
        }
    }

    async fn happened_round(
        &self,
        shard: Shard,
        mut events: Vec<(usize, Event)>,
        became: &mut [Became],
    ) -> Result<Vec<(usize, Event)>, EntryError> {
        self.read_runs(shard, &mut events).await?;
        let (mut groups, mut steps, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = std::collections::BTreeSet::new();
        for (place, event) in events {
            // A second event of a run follows from the first one.
            if !seen.insert(event.number) {
                later.push((place, Event { read: None, ..event }));
                continue;
            }
            if let Some((group, step)) = self.step(shard, event).await? {
                groups.push(group);
                steps.push((place, step));
            }
        }
        if groups.is_empty() {
            return Ok(later);
        }
        let begun_ns = self.clock.monotonic_ns();
        let (now_ms, applied) = self.book.apply(shard, &groups).await?;
        self.store_clock.answered(now_ms);
        let mut next = Vec::new();
        for ((place, step), applied) in steps.into_iter().zip(applied) {
            let Applied::Done(version) = applied else {
                later.push((place, Event { read: None, ..step.event }));
                continue;
            };
            self.count(&step);
            if let (Some(next_one), Some(definition)) = (step.next, &step.definition) {
                next.push((definition.spec.priority, next_one));
            }
            let ticket = match (step.is_to_send, step.run, step.definition) {
                (true, Some(run), Some(definition)) => {
                    Some(Ticket { number: step.event.number, run, version, definition, begun_ns })
                }
                _ => None,
            };
            became[place] = Became::Written(ticket);
        }
        for added in self.add_due(&next).await {
            if let Err(error) = added {
                // The state says which occurrence comes next: the look for overdue ones finds it.
                self.store_failed("the next occurrence of a job cannot be added now", &error);
            }
        }
        Ok(later)
    }

    /// Reads the runs that nobody has read yet; those that are not there are left out.
    async fn read_runs(&self, shard: Shard, events: &mut Vec<(usize, Event)>) -> Result<(), EntryError> {
        let missing: Vec<usize> = (0..events.len()).filter(|place| events[*place].1.read.is_none()).collect();
        let keys: Vec<_> = missing.iter().map(|place| run_key(events[*place].1.number)).collect();
        let found = self.book.read::<Run>(shard, &keys).await?;
        for (place, found) in missing.into_iter().zip(found) {
            events[place].1.read = found.map(|kept| (kept.version, kept.is));
        }
        events.retain(|(_, event)| {
            if event.read.is_none() && matches!(event.happened, Happened::Reported(_)) {
                self.stats.reports_unknown.add(1);
            }
            event.read.is_some()
        });
        Ok(())
    }

    /// What an event makes of its run, and what has to be written for it; `None`: nothing.
    async fn step(&self, shard: Shard, event: Event) -> Result<Option<(EntryGroup, Step)>, EntryError> {
        let Some((version, run)) = &event.read else { return Ok(None) };
        let (version, keep) = (*version, self.options.keep());
        let definition = match self.definitions.get(run.job, run.version) {
            Some(known) => Some(known),
            None => self.latest_definition(shard, run.job).await?,
        };
        let now_ms = self.store_clock.now_ms();
        let spec = definition.as_ref().map(|definition| &definition.spec);
        let (after, is_to_send) = match (&event.happened, spec) {
            (Happened::Woken, spec) => match woken(run, spec, now_ms) {
                WokenRun::Not => return Ok(None),
                WokenRun::Send(run) => (Some(run), true),
                WokenRun::Goes(run) => (Some(run), false),
                WokenRun::Forget => (None, false),
            },
            (Happened::Sent(how, executor), Some(spec)) => {
                (sent(run, spec, how, executor.as_deref(), now_ms), false)
            }
            (Happened::Reported(how), Some(spec)) => (reported(run, spec, how, now_ms), false),
            // The job was removed: nothing goes on.
            (Happened::Sent(..) | Happened::Reported(_), None) => (None, false),
        };
        let expect = Expect::Version(version);
        let Some(after) = after else {
            if matches!(event.happened, Happened::Woken) {
                let changes = forget_run(event.number, expect, run);
                let step = Step { event, definition, run: None, is_to_send: false, next: None };
                return Ok(Some((group(changes), step)));
            }
            if matches!(event.happened, Happened::Reported(_)) {
                self.stats.reports_unknown.add(1);
            }
            return Ok(None);
        };
        let mut changes = put_run(event.number, expect, &after, keep);
        let mut next = None;
        if let (RunState::Ended { at_ms, outcome }, Some(definition)) = (after.state, &definition) {
            if outcome == Outcome::Succeeded {
                // Before the run ends: if we die between, its report or its time-out comes again, and the children's marks
                // tell that they were started.
                self.start_children(definition, event.number).await?;
            }
            if let Some((change, occurrence)) = self.follow(shard, definition, &after, at_ms).await? {
                changes.push(change);
                next = Some(occurrence);
            }
        }
        let step = Step { event, definition, run: Some(after), is_to_send, next };
        Ok(Some((group(changes), step)))
    }

    /// For a job with a fixed delay: the occurrence that follows from the end of a scheduled run.
    async fn follow(
        &self,
        shard: Shard,
        definition: &Definition,
        run: &Run,
        ended_ms: u64,
    ) -> Result<Option<(windfall_contract::entries::EntryChange, Occurrence)>, EntryError> {
        let is_first_part = run.part.is_none_or(|part| part.index == 0);
        let is_current = run.cause == Cause::Schedule && run.version == definition.version;
        let Some(due_ms) = definition.spec.next_after_end(ended_ms).filter(|_| is_first_part && is_current)
        else {
            return Ok(None);
        };
        let Some(state) = self.states(shard, &[run.job]).await?.pop().flatten() else { return Ok(None) };
        // Paused or changed since: the next one was decided then.
        if state.is.version != run.version || state.is.next_ms.is_some() {
            return Ok(None);
        }
        let after = JobState { next_ms: Some(due_ms), ..state.is };
        let change = put_state(run.job, Expect::Version(state.version), &after);
        Ok(Some((change, Occurrence { job: run.job, version: run.version, due_ms })))
    }

    /// Starts a job's children, each once per run of the parent.
    async fn start_children(&self, definition: &Definition, parent: RunNumber) -> Result<(), EntryError> {
        for child in &definition.spec.children {
            let Some((shard, number)) = self.number_of(&definition.tenant, child).await? else {
                tracing::warn!(tenant = definition.tenant, %child, "a child job does not exist, and is not run");
                continue;
            };
            let started = self.start_run(shard, number, Cause::Parent(parent), None).await?;
            if started.is_none() {
                tracing::debug!(tenant = definition.tenant, %child, "a child job was started before, or is gone");
            }
        }
        Ok(())
    }

    /// The shard and the number of a job.
    pub async fn number_of(
        &self,
        tenant: &str,
        name: &crate::definition::JobName,
    ) -> Result<Option<(Shard, JobNumber)>, EntryError> {
        let shard = self.book.shard_of_name(tenant, name);
        let key = crate::book::name_key(tenant, name.as_str());
        let found = self.book.read::<JobNumber>(shard, &[key]).await?.pop().flatten();
        Ok(found.map(|kept| (shard, kept.is)))
    }

    /// Starts a run of a job at once, scheduled or not. `None`: there is no such job, or its parent's run has started it.
    pub async fn start_run(
        &self,
        shard: Shard,
        job: JobNumber,
        cause: Cause,
        params: Option<String>,
    ) -> Result<Option<RunNumber>, EntryError> {
        let Some(definition) = self.latest_definition(shard, job).await? else { return Ok(None) };
        let numbers = self.book.numbers(shard, 1).await?;
        let Some(number) = numbers.first().copied().map(RunNumber) else { return Ok(None) };
        let now_ms = self.store_clock.now_ms();
        let run = Run {
            job,
            tenant: definition.tenant.clone(),
            version: definition.version,
            due_ms: now_ms,
            cause,
            attempt: 1,
            part: None,
            params,
            state: RunState::Starting { until_ms: now_ms.saturating_add(LEASE_MS) },
            executor: None,
            message: String::new(),
            unanswered: 0,
        };
        let mut changes = put_run(number, Expect::Absent, &run, self.options.keep());
        if let Cause::Parent(parent) = cause {
            let wake_ms = Some(now_ms.saturating_add(CHILD_MARK_MS));
            changes.push(put(child_key(parent, job), Expect::Absent, &number, wake_ms));
        }
        // Without room to send it, it is found when its lease is over.
        let permit = self.sending.try_reserve();
        let begun_ns = self.clock.monotonic_ns();
        let (now_ms, applied) = self.book.apply(shard, &[group(changes)]).await?;
        self.store_clock.answered(now_ms);
        let Some(Applied::Done(version)) = applied.first().copied() else { return Ok(None) };
        if let Ok(permit) = permit {
            permit.send(Ticket { number, run, version, definition, begun_ns });
        }
        Ok(Some(number))
    }

    /// Parts of a broadcast in place of its one run, each with a ticket; `None`: somebody else has changed the run.
    pub async fn split(
        &self,
        shard: Shard,
        ticket: &Ticket,
        total: usize,
    ) -> Result<Option<Vec<Ticket>>, EntryError> {
        let total_parts = u32::try_from(total).unwrap_or(u32::MAX);
        let mut numbers = vec![ticket.number.0];
        numbers.extend(self.book.numbers(shard, total.saturating_sub(1)).await?);
        let until_ms = self.store_clock.now_ms().saturating_add(LEASE_MS);
        let runs: Vec<(RunNumber, Run)> = (0..total_parts)
            .zip(numbers)
            .map(|(index, number)| {
                let part = Some(crate::runs::Part { index, total: total_parts });
                (RunNumber(number), Run { part, state: RunState::Starting { until_ms }, ..ticket.run.clone() })
            })
            .collect();
        let groups = self.split_groups(ticket, &runs);
        let begun_ns = self.clock.monotonic_ns();
        let (now_ms, applied) = self.book.apply(shard, &groups).await?;
        self.store_clock.answered(now_ms);
        // The last group writes the run itself. Where it was not changed before, nor were those that expect the same of it.
        let Some(Applied::Done(version)) = applied.last().copied() else { return Ok(None) };
        let versions = applied.iter().take(applied.len() - 1).flat_map(|applied| match applied {
            Applied::Done(version) => vec![*version; PARTS_PER_GROUP],
            Applied::Conflict | Applied::Late => Vec::new(),
        });
        let versions: Vec<u64> = std::iter::once(version).chain(versions).collect();
        let ticket_of = |((number, run), version)| {
            let definition = Arc::clone(&ticket.definition);
            Ticket { number, run, version, definition, begun_ns }
        };
        Ok(Some(runs.into_iter().zip(versions).map(ticket_of).collect()))
    }

    /// The groups that write a run's parts: the other ones first, each as long as the run is what it was, and then itself.
    fn split_groups(&self, ticket: &Ticket, runs: &[(RunNumber, Run)]) -> Vec<EntryGroup> {
        let (is_same, keep) = (Expect::Version(ticket.version), self.options.keep());
        let Some(((number, run), others)) = runs.split_first() else { return Vec::new() };
        let others = others.chunks(PARTS_PER_GROUP).map(|part| {
            let mut changes = vec![crate::book::change(run_key(*number), is_same, To::Same)];
            changes.extend(part.iter().flat_map(|(number, run)| put_run(*number, Expect::Absent, run, keep)));
            group(changes)
        });
        others.chain(std::iter::once(group(put_run(*number, is_same, run, keep)))).collect()
    }

    /// A job's state whose next occurrence is overdue: its due task is added once more; or a job that is to be forgotten.
    pub async fn state_woken(
        &self,
        shard: Shard,
        entry: &windfall_contract::entries::Entry,
        job: JobNumber,
    ) -> Result<(), EntryError> {
        let kept = kept::<JobState>(entry)?;
        let Some(due_ms) = kept.is.next_ms else {
            return self.forget_job(shard, job, &kept).await;
        };
        let Some(definition) = self.definition(shard, job, kept.is.version).await? else { return Ok(()) };
        let occurrence = Occurrence { job, version: kept.is.version, due_ms };
        let added = self.add_due(&[(definition.spec.priority, occurrence)]).await;
        if let Some(Err(error)) = added.first() {
            self.store_failed("an overdue occurrence cannot be added now", error);
            return Ok(());
        }
        self.stats.overdue_found.add(1);
        // It is looked for again, but not before it had time to fire.
        let wake_ms = Some(self.store_clock.now_ms().saturating_add(JobState::OVERDUE_MS));
        let changes = vec![put(state_key(job), Expect::Version(kept.version), &kept.is, wake_ms)];
        self.book.apply(shard, &[group(changes)]).await?;
        Ok(())
    }

    fn count(&self, step: &Step) {
        let stats = &self.stats;
        let Some(run) = &step.run else { return };
        if step.is_to_send {
            let before = step.event.read.as_ref().map(|(_, run)| run.attempt);
            if before == Some(run.attempt) { stats.sent_again.add(1) } else { stats.retried.add(1) }
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
