//! Runs that go on: what happened to them is written in one step, with what follows from it.

use crate::book::{
    Kept, change, child_key, definition_key, forget_run, group, put, put_run, put_state, run_key, state_key,
};
use crate::core::{Core, Ticket};
use crate::definition::{Definition, Delivery, JobName, JobNumber};
use crate::occurrences::Occurrence;
use crate::runs::{
    Cause, JobState, LEASE_MS, Outcome, Part, Reported, Run, RunNumber, RunState, Sent, WokenRun, reported,
    sent, woken,
};
use crate::schedule::Schedule;
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryChange, EntryError, EntryGroup, Expect, To};

/// Events that are decided side by side.
const SIDE_BY_SIDE: usize = 64;
const CONFLICTS_MAX: usize = 5;
const CHILD_MARK_MS: u64 = 86_400_000;
/// Parts of a broadcast that are written by one group; each takes two changes.
const PARTS_PER_GROUP: usize = 40;

/// Something that happened to a run.
#[derive(Debug, Clone)]
pub(crate) enum Happened {
    /// An attempt to send it ended, at this executor.
    Sent(Sent, Option<String>),
    /// It was reported by an executor of this tenant.
    Reported(String, Reported),
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
    /// It is not written, or nobody knows. It may be repeated.
    Failed(EntryError),
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
        let (mut groups, mut steps) = (Vec::new(), Vec::new());
        for (place, step) in decided {
            match step {
                Ok(Some((group, step))) => {
                    groups.push(group);
                    steps.push((place, step));
                }
                Ok(None) => {}
                Err(error) => became[place] = Became::Failed(error),
            }
        }
        if groups.is_empty() {
            return Ok(later);
        }
        let (_, applied) = self.apply(shard, &groups).await?;
        let mut next = Vec::new();
        for ((place, step), applied) in steps.into_iter().zip(applied) {
            let Applied::Done(version) = applied else {
                // How an attempt to send went says nothing about a run that somebody else has taken over meanwhile.
                if !step.event.is_superseded_by_any() {
                    later.push((place, Event { read: None, ..step.event }));
                }
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
                (Some((_, run)), Happened::Reported(tenant, _)) if run.tenant != *tenant => {
                    self.stats.reports_unknown.add(1);
                }
                (Some(_), _) => read.push((place, event)),
                (None, Happened::Reported(..)) => self.stats.reports_unknown.add(1),
                (None, _) => {}
            }
        }
        Ok(read)
    }

    /// What an event makes of its run, and what has to be written for it; `None`: nothing.
    async fn step(
        &self,
        shard: Shard,
        event: Event,
        now_ms: u64,
    ) -> Result<Option<(EntryGroup, Step)>, EntryError> {
        let Some((version, run)) = &event.read else { return Ok(None) };
        let (expect, keep) = (Expect::Version(*version), self.options.keep());
        let is_woken = matches!(event.happened, Happened::Woken);
        if is_woken && run.is_over() {
            if run.wake_ms(keep) > now_ms {
                return Ok(None);
            }
            let changes = forget_run(event.number, expect, run);
            let step = Step { event, definition: None, run: None, is_to_send: false, next: None };
            return Ok(Some((group(changes), step)));
        }
        // What is woken may be sent: only a look at the store tells whether its job is still there.
        let known = self.definitions.get(run.job, run.version).filter(|_| !is_woken);
        let (definition, fence) = match known {
            Some(known) => (Some(known), None),
            None => match self.latest_definition(shard, run.job).await? {
                Some(kept) => {
                    let unchanged = Expect::Version(kept.version);
                    (Some(kept.is), Some(change(definition_key(run.job), unchanged, To::Same)))
                }
                None => (None, None),
            },
        };
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
            (Happened::Reported(_, how), Some(spec)) => (reported(run, spec, how, now_ms), false),
            // The job was removed: nothing goes on.
            (Happened::Sent(..) | Happened::Reported(..), None) => (None, false),
        };
        let Some(after) = after else {
            if is_woken {
                let changes = forget_run(event.number, expect, run);
                let step = Step { event, definition, run: None, is_to_send: false, next: None };
                return Ok(Some((group(changes), step)));
            }
            if matches!(event.happened, Happened::Reported(..)) {
                self.stats.reports_unknown.add(1);
            }
            return Ok(None);
        };
        let mut changes = put_run(event.number, expect, &after, keep);
        changes.extend(fence.filter(|_| is_to_send));
        let mut next = None;
        if let (RunState::Ended { at_ms, outcome }, Some(definition)) = (after.state, &definition) {
            if outcome == Outcome::Succeeded {
                // Before the run ends: if we die between, its report or its time-out comes again, and the children's marks
                // tell that they were started.
                self.start_children(definition, event.number).await?;
            }
            if let Some((change, occurrence)) = self.follow(shard, definition, &after, at_ms).await? {
                changes.push(change);
                next = occurrence;
            }
        }
        let step = Step { event, definition, run: Some(after), is_to_send, next };
        Ok(Some((group(changes), step)))
    }

    /// For a job with a fixed delay: the occurrence that follows from the end of the scheduled run that came last.
    async fn follow(
        &self,
        shard: Shard,
        definition: &Definition,
        run: &Run,
        ended_ms: u64,
    ) -> Result<Option<(EntryChange, Option<Occurrence>)>, EntryError> {
        let is_first_part = run.part.is_none_or(|part| part.index == 0);
        let is_delay = matches!(definition.spec.schedule, Schedule::FixedDelay(_));
        let is_current = run.cause == Cause::Schedule && run.version == definition.version;
        if !(is_first_part && is_delay && is_current) {
            return Ok(None);
        }
        let Some(state) = self.book.read_one::<JobState>(shard, state_key(run.job)).await? else {
            return Ok(None);
        };
        // Paused or changed since: the next one was decided then. Another run came since: that one is followed.
        if state.is.version != run.version
            || state.is.next_ms.is_some()
            || state.is.last_ms != Some(run.due_ms)
        {
            return Ok(None);
        }
        let next_ms = definition.spec.next_after_end(ended_ms.max(run.due_ms));
        let forget_ms = ended_ms.saturating_add(self.options.keep_failed_ms);
        let forget_ms = next_ms.is_none().then_some(forget_ms);
        let after = JobState { next_ms, forget_ms, ..state.is };
        let change = put_state(run.job, Expect::Version(state.version), &after);
        let next = next_ms.map(|due_ms| Occurrence { job: run.job, version: run.version, due_ms });
        Ok(Some((change, next)))
    }

    /// Starts a job's children, each once per run of the parent.
    async fn start_children(&self, definition: &Definition, parent: RunNumber) -> Result<(), EntryError> {
        let tenant = &definition.tenant;
        let started = definition.spec.children.iter().map(|child| async move {
            let Some((shard, number)) = self.number_of(tenant, child).await? else {
                tracing::warn!(tenant, %child, "a child job does not exist, and is not run");
                return Ok(());
            };
            self.start_run(shard, number, Cause::Parent(parent), None).await.map(drop)
        });
        futures_util::future::try_join_all(started).await.map(drop)
    }

    /// The shard and the number of a job.
    pub async fn number_of(
        &self,
        tenant: &str,
        name: &JobName,
    ) -> Result<Option<(Shard, JobNumber)>, EntryError> {
        let shard = self.book.shard_of_name(tenant, name);
        let key = crate::book::name_key(tenant, name.as_str());
        let found = self.book.read_one::<JobNumber>(shard, key).await?;
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
        let begun_ns = self.clock.monotonic_ns();
        let Some(Kept { version, is: definition }) = self.latest_definition(shard, job).await? else {
            return Ok(None);
        };
        let numbers = self.book.numbers(shard, 1).await?;
        let Some(number) = numbers.first().copied().map(RunNumber) else { return Ok(None) };
        let now_ms = self.now_ms(shard).await?;
        let run = Run {
            job,
            tenant: definition.tenant.clone(),
            version: definition.version,
            due_ms: now_ms,
            cause,
            attempt: 1,
            part: None,
            params,
            state: RunState::Starting { until_ms: now_ms.saturating_add(LEASE_MS), is_sending: false },
            executor: None,
            message: String::new(),
            unanswered: 0,
        };
        let mut changes = put_run(number, Expect::Absent, &run, self.options.keep());
        changes.push(change(definition_key(job), Expect::Version(version), To::Same));
        if let Cause::Parent(parent) = cause {
            let wake_ms = Some(now_ms.saturating_add(CHILD_MARK_MS));
            changes.push(put(child_key(parent, job), Expect::Absent, &number, wake_ms));
        }
        // Without room to send it, it is found when its lease is over.
        let permit = self.sending.try_reserve();
        let (_, applied) = self.apply(shard, &[group(changes)]).await?;
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
        let begun_ns = self.clock.monotonic_ns();
        let total_parts = u32::try_from(total).unwrap_or(u32::MAX);
        let mut numbers = vec![ticket.number.0];
        numbers.extend(self.book.numbers(shard, total.saturating_sub(1)).await?);
        let state = self.leased(shard, &ticket.definition).await?;
        let runs: Vec<(RunNumber, Run)> = (0..total_parts)
            .zip(numbers)
            .map(|(index, number)| {
                let part = Some(Part { index, total: total_parts });
                (RunNumber(number), Run { part, state, ..ticket.run.clone() })
            })
            .collect();
        let (_, applied) = self.apply(shard, &self.split_groups(ticket, &runs)).await?;
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

    /// Gives leases of one shard anew, from now, and notes that the runs are being sent. Those that somebody else has taken
    /// over are left out.
    pub async fn renew(&self, shard: Shard, tickets: Vec<Ticket>) -> Result<Vec<Ticket>, EntryError> {
        let begun_ns = self.clock.monotonic_ns();
        let mut renewed = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            let state = self.leased(shard, &ticket.definition).await?;
            renewed.push(Ticket { run: Run { state, ..ticket.run }, begun_ns, ..ticket });
        }
        let keep = self.options.keep();
        let write = |ticket: &Ticket| {
            group(put_run(ticket.number, Expect::Version(ticket.version), &ticket.run, keep))
        };
        let groups: Vec<_> = renewed.iter().map(write).collect();
        let (_, applied) = self.apply(shard, &groups).await?;
        let kept = renewed.into_iter().zip(applied).filter_map(|(ticket, applied)| match applied {
            Applied::Done(version) => Some(Ticket { version, ..ticket }),
            Applied::Conflict | Applied::Late => None,
        });
        Ok(kept.collect())
    }

    async fn leased(&self, shard: Shard, definition: &Definition) -> Result<RunState, EntryError> {
        let until_ms = self.now_ms(shard).await?.saturating_add(LEASE_MS);
        let is_sending = definition.spec.delivery == Delivery::AtMostOnce;
        Ok(RunState::Starting { until_ms, is_sending })
    }

    /// The groups that write a run's parts: the other ones first, each as long as the run is what it was, and then itself.
    fn split_groups(&self, ticket: &Ticket, runs: &[(RunNumber, Run)]) -> Vec<EntryGroup> {
        let (is_same, keep) = (Expect::Version(ticket.version), self.options.keep());
        let Some(((number, run), others)) = runs.split_first() else { return Vec::new() };
        let others = others.chunks(PARTS_PER_GROUP).map(|part| {
            let mut changes = vec![change(run_key(*number), is_same, To::Same)];
            changes.extend(part.iter().flat_map(|(number, run)| put_run(*number, Expect::Absent, run, keep)));
            group(changes)
        });
        others.chain(std::iter::once(group(put_run(*number, is_same, run, keep)))).collect()
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

impl Event {
    /// Whether it is about an attempt that does not count any more when somebody else has changed the run.
    const fn is_superseded_by_any(&self) -> bool {
        matches!(&self.happened, Happened::Sent(how, _) if !matches!(how, Sent::Finished(_)))
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
