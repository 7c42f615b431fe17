//! What the parts of a process's jobs share.

use crate::book::{Book, Definitions, Kept, definition_key, state_key};
use crate::definition::{Definition, JobNumber, Priority};
use crate::due_clock::DueClock;
use crate::executors::{Addresses, App, ExecutorCalls, ExecutorTable};
use crate::heartbeats::Heartbeats;
use crate::known_states::KnownStates;
use crate::leasing::LeaseNumbers;
use crate::occurrences::Occurrence;
use crate::options::JobsOptions;
use crate::outbox::{Outbox, Ticket};
use crate::quotas::Quotas;
use crate::routing::Router;
use crate::runs::{Cause, JobState};
use crate::stats::JobsStats;
use crate::store_clock::StoreClocks;
use crate::writes::Writes;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::due::{Added, Shard, Target, TaskAt};
use windfall_contract::entries::{Applied, EntryError, EntryGroup, Woken};
use windfall_scheduler::{AddError, CALL_TASKS_MAX, NewTask, Timers};

/// The name of the target that jobs' due tasks go to, with each of the tenants of [`tenant_of`].
pub(crate) const OCCURRENCES: &str = "occurrences";

/// Definitions that are read by one call: each may have some 20 KB.
const DEFINITIONS_AT_ONCE: usize = 128;

/// The priority of which this is the scheduler's tenant.
pub(crate) fn priority_of(tenant: &str) -> Priority {
    let all = [Priority::Urgent, Priority::Normal, Priority::Bulk];
    all.into_iter().find(|priority| tenant_of(*priority) == tenant).unwrap_or_default()
}

/// The scheduler's tenant for due tasks of a priority. No other tenant's name begins with an underscore.
pub(crate) const fn tenant_of(priority: Priority) -> &'static str {
    match priority {
        Priority::Urgent => "_jobs_urgent",
        Priority::Normal => "_jobs",
        Priority::Bulk => "_jobs_bulk",
    }
}

pub(crate) struct Core {
    pub book: Book,
    pub definitions: Definitions,
    pub known_states: KnownStates,
    pub timers: Timers,
    pub clock: Clock,
    pub store_clocks: StoreClocks,
    pub writes: Writes,
    pub leases: LeaseNumbers,
    pub options: JobsOptions,
    pub stats: Arc<JobsStats>,
    pub executors: ExecutorTable,
    pub heartbeats: Heartbeats,
    pub quotas: Quotas,
    pub router: Router,
    pub calls: Arc<dyn ExecutorCalls>,
    /// The tenants' targets in the scheduler, by tenant and name.
    pub targets: BTreeMap<(String, String), Arc<dyn Target>>,
    pub outbox: Outbox,
}

impl Core {
    /// The time of a shard's store. It is asked for where it has not answered yet.
    pub async fn now_ms(&self, shard: Shard) -> Result<u64, EntryError> {
        if let Some(now_ms) = self.store_clocks.now_ms(shard) {
            return Ok(now_ms);
        }
        self.woken(shard).await.map(|woken| woken.now_ms)
    }

    /// The clock by which the occurrences of a shard go.
    pub async fn due_clock(&self, shard: Shard) -> Result<DueClock, EntryError> {
        let now_ms = self.now_ms(shard).await?;
        let (slack_ms, ahead) = (self.store_clocks.slack_ms(shard), self.store_clocks.ahead(shard));
        Ok(DueClock { now_ms, slack_ms, ahead })
    }

    /// Counts how late an occurrence is, now that the first call for its run begins.
    pub fn count_late(&self, ticket: &Ticket) {
        let run = &ticket.run;
        // An attempt that may have been sent before was counted then. One part stands for a broadcast.
        let is_first = run.cause == Cause::Schedule
            && (run.attempt, run.unanswered, run.again, run.was_called) == (1, 0, 0, false);
        let is_one = run.part.is_none_or(|part| part.index == 0);
        let shard = self.book.shard_of(ticket.number.0).filter(|_| is_first && is_one);
        if let Some(now_ms) = shard.and_then(|shard| self.store_clocks.now_ms(shard)) {
            self.stats.called_late(now_ms.saturating_sub(run.due_ms));
        }
    }

    /// The entries of a shard of which the time to wake has come. Its clock is noted.
    pub async fn woken(&self, shard: Shard) -> Result<Woken, EntryError> {
        let asked_ns = self.clock.monotonic_ns();
        let woken = self.book.woken(shard).await?;
        self.store_clocks.answered(shard, asked_ns, woken.now_ms);
        Ok(woken)
    }

    /// Changes groups of a shard, and notes its clock and whether it takes changes.
    pub async fn apply(
        &self,
        shard: Shard,
        groups: &[EntryGroup],
    ) -> Result<(u64, Vec<Applied>), EntryError> {
        if groups.is_empty() {
            return Ok((self.now_ms(shard).await?, Vec::new()));
        }
        let asked_ns = self.clock.monotonic_ns();
        let answer = self.book.apply(shard, groups).await;
        match &answer {
            Ok((now_ms, _)) => {
                self.store_clocks.answered(shard, asked_ns, *now_ms);
                self.writes.answered(shard, asked_ns);
            }
            Err(error) => self.writes.failed(shard, groups, error),
        }
        answer
    }

    /// A job's definition, if it still is of this version.
    pub async fn definition(
        &self,
        shard: Shard,
        number: JobNumber,
        version: u64,
    ) -> Result<Option<Arc<Definition>>, EntryError> {
        if let Some(known) = self.definitions.get(number, version) {
            return Ok(Some(known));
        }
        let latest = self.latest_definition(shard, number).await?;
        Ok(latest.map(|kept| kept.is).filter(|found| found.version == version))
    }

    /// Reads the definitions of jobs that this process does not know in these versions, many by one call, so that
    /// [`definition`](Self::definition) finds them here. Where a call fails it says nothing: `definition` does so, job by job.
    pub async fn learn_definitions(&self, shard: Shard, jobs: impl Iterator<Item = (JobNumber, u64)>) {
        let unknown: Vec<_> = jobs
            .filter(|(number, version)| self.definitions.get(*number, *version).is_none())
            .map(|(number, _)| number)
            .collect();
        if unknown.len() < 2 {
            return;
        }
        for part in unknown.chunks(DEFINITIONS_AT_ONCE) {
            let keys: Vec<_> = part.iter().map(|number| definition_key(*number)).collect();
            let Ok(read) = self.book.read::<Definition>(shard, &keys).await else { return };
            for (number, kept) in part.iter().zip(read) {
                if let Ok(Some(kept)) = kept {
                    self.definitions.put(*number, Arc::new(kept.is));
                }
            }
        }
    }

    /// A job's definition as it is now; `None` where the job was removed.
    pub async fn latest_definition(
        &self,
        shard: Shard,
        number: JobNumber,
    ) -> Result<Option<Kept<Arc<Definition>>>, EntryError> {
        let found = self.book.read_one::<Definition>(shard, definition_key(number)).await?;
        let Some(Kept { version, is }) = found else { return Ok(None) };
        let definition = Arc::new(is);
        self.definitions.put(number, Arc::clone(&definition));
        Ok(Some(Kept { version, is: definition }))
    }

    /// The states of jobs, in order; an error where one cannot be read.
    pub async fn states(
        &self,
        shard: Shard,
        numbers: &[JobNumber],
    ) -> Result<Vec<Result<Option<Kept<JobState>>, EntryError>>, EntryError> {
        let keys: Vec<_> = numbers.iter().map(|number| state_key(*number)).collect();
        self.book.read(shard, &keys).await
    }

    /// The addresses of an app's executors; `None` before they were read.
    pub fn executors_of(&self, app: &App) -> Option<Addresses> {
        self.executors.of(self.book.shard_of_app(&app.tenant, &app.app), app)
    }

    /// What speaks with the executors of a tenant's app.
    pub fn calls_of(&self, tenant: &str, app: &str) -> Arc<dyn ExecutorCalls> {
        self.calls.of(tenant, app).unwrap_or_else(|| Arc::clone(&self.calls))
    }

    /// Adds the due tasks of occurrences. Where one waits already, nothing is added: the answer may be lost, and this be
    /// called again. One answer for each, in order: whether it was missing.
    pub async fn add_due(&self, occurrences: &[(Priority, Occurrence)]) -> Vec<Result<bool, AddError>> {
        let mut answers = vec![Ok(false); occurrences.len()];
        for priority in [Priority::Urgent, Priority::Normal, Priority::Bulk] {
            let of_it: Vec<_> =
                occurrences.iter().enumerate().filter(|(_, (own, _))| *own == priority).collect();
            for part in of_it.chunks(CALL_TASKS_MAX) {
                let tasks = part.iter().map(|(_, (_, occurrence))| NewTask {
                    target: OCCURRENCES.to_owned(),
                    due_ms: occurrence.due_ms,
                    key: occurrence.key(),
                    payload: occurrence.encode(),
                });
                let added = self.timers.add(tenant_of(priority), tasks.collect()).await;
                for ((place, _), added) in part.iter().zip(added) {
                    answers[*place] = added.map(|added| matches!(added, Added::Stored(_)));
                }
            }
        }
        answers
    }

    /// Takes the due task of an occurrence that no version of its job wants any more out of the scheduler. One that stays is
    /// dropped when it fires.
    pub async fn cancel_due(&self, priority: Priority, occurrence: Occurrence) {
        let at = occurrence.key().map(TaskAt::Key);
        for cancelled in self.timers.cancel(tenant_of(priority), at.into_iter().collect()).await {
            if let Err(error) = cancelled {
                tracing::debug!(%error, "the due task of a changed job stays until it fires");
            }
        }
    }

    /// Counts a call of a store that failed, and says so in the log.
    pub fn store_failed(&self, what: &str, error: &dyn std::fmt::Display) {
        self.stats.store_failed.add(1);
        tracing::warn!(%error, "jobs: {what}");
    }

    /// Counts an entry that cannot be read, and says so in the log.
    pub fn unreadable(&self, error: &EntryError) {
        self.stats.unreadable.add(1);
        tracing::error!(%error, "jobs: an entry is passed over");
    }
}
