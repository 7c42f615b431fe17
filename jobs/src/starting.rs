//! Runs that begin without an occurrence: those that somebody asks for, children, and parts of a broadcast.

use crate::book::{Kept, change, child_key, definition_key, group, put, put_run, run_key};
use crate::core::Core;
use crate::definition::{Definition, JobName, JobNumber};
use crate::outbox::{Door, Ticket};
use crate::runs::{Cause, LEASE_MS, Part, Run, RunNumber, RunState};
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryError, EntryGroup, Expect, To};

/// Times that a run is begun anew because somebody else changed its job meanwhile.
const CONFLICTS_MAX: usize = 8;
/// Parts of a broadcast that are written by one group; each takes two changes.
const PARTS_PER_GROUP: usize = 40;

/// What became of a run that was to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Started {
    /// It is this one. A parent's run may have started it before.
    Run(RunNumber),
    /// There is no such job.
    NoJob,
    /// The job is being changed again and again. Nothing was started.
    Contended,
}

impl Core {
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

    /// Starts a run of a job at once, scheduled or not.
    pub async fn start_run(
        &self,
        shard: Shard,
        job: JobNumber,
        cause: Cause,
        params: Option<String>,
    ) -> Result<Started, EntryError> {
        for _ in 0..CONFLICTS_MAX {
            if let Cause::Parent(parent) = cause
                && let Some(before) = self.book.read_one::<RunNumber>(shard, child_key(parent, job)).await?
            {
                return Ok(Started::Run(before.is));
            }
            let Some(definition) = self.latest_definition(shard, job).await? else {
                return Ok(Started::NoJob);
            };
            let version = definition.version;
            let ticket = self.begin_run(shard, job, definition, cause, params.clone()).await?;
            let mut changes = put_run(ticket.number, Expect::Absent, &ticket.run, self.options.keep());
            changes.push(change(definition_key(job), Expect::Version(version), To::Same));
            if let Cause::Parent(parent) = cause {
                let wake_ms = Some(ticket.run.due_ms.saturating_add(self.child_mark_ms()));
                changes.push(put(child_key(parent, job), Expect::Absent, &ticket.number, wake_ms));
            }
            // Without room to send it, it is found when its lease is over.
            let room = self.outbox.try_reserve(Door::First(ticket.definition.spec.priority), 1);
            let (_, applied) = self.apply(shard, &[group(changes)]).await?;
            if let Some(Applied::Done(version)) = applied.first().copied() {
                let number = ticket.number;
                if let Some(mut room) = room {
                    // Nothing is sent any more while the process ends: then it is found when its lease is over.
                    room.send(Ticket { version, ..ticket }).ok();
                }
                return Ok(Started::Run(number));
            }
        }
        Ok(Started::Contended)
    }

    async fn begin_run(
        &self,
        shard: Shard,
        job: JobNumber,
        definition: Kept<Arc<Definition>>,
        cause: Cause,
        params: Option<String>,
    ) -> Result<Ticket, EntryError> {
        let definition = definition.is;
        let number = self.book.number(shard).await?;
        let begun_ns = self.clock.monotonic_ns();
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
            postponed: 0,
            was_called: false,
            lease: self.leases.next(),
            again: 0,
            children: Vec::new(),
        };
        Ok(Ticket { number: RunNumber(number), run, version: 0, definition, begun_ns })
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
        let begun_ns = self.clock.monotonic_ns();
        let until_ms = self.now_ms(shard).await?.saturating_add(LEASE_MS);
        // Each part is sent by itself, and that is noted where it may be sent only once.
        let state = RunState::Starting { until_ms, is_sending: false };
        let runs: Vec<(RunNumber, Run)> = (0..total_parts)
            .zip(numbers)
            .map(|(index, number)| {
                let part = Some(Part { index, total: total_parts });
                (RunNumber(number), Run { part, state, lease: self.leases.next(), ..ticket.run.clone() })
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
}
