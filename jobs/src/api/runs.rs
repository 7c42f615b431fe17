//! Runs are started by hand, shown, ended, and reported.

use super::{Jobs, JobsError, RunView};
use crate::book::{Kept, group, job_run_key, put_run, run_key};
use crate::definition::{Destination, JobName, PARAMS_MAX_BYTES};
use crate::executors::{AskError, LogCall, LogLines};
use crate::runs::{Cause, Outcome, Report, Reported, Run, RunNumber, RunState};
use crate::starting::Started;
use crate::transition::{Became, Event, Happened, by_shard};
use std::collections::BTreeMap;
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryError, EntryKey, Expect, To};

/// Runs that one call shows at most.
pub const RUNS_MAX: usize = 1_000;
const CONFLICTS_MAX: usize = 5;
/// How long a run that was ended perhaps is left alone before it is read again, while the store does not answer.
const READ_AGAIN: Duration = Duration::from_millis(500);

impl Jobs {
    /// Runs a job once, now, whatever its schedule says, and also if it is paused.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn run(
        &self,
        tenant: &str,
        name: &JobName,
        params: Option<String>,
    ) -> Result<RunNumber, JobsError> {
        if let Some(len) = params.as_ref().map(String::len).filter(|len| *len > PARAMS_MAX_BYTES) {
            let what = format!("at most {PARAMS_MAX_BYTES} bytes, not {len}");
            return Err(JobsError::WrongField { field: "params", what });
        }
        let core = &self.0.core;
        let unknown = || JobsError::UnknownJob(name.to_string());
        let (shard, number) = core.number_of(tenant, name).await?.ok_or_else(unknown)?;
        match core.start_run(shard, number, Cause::Call, params).await? {
            Started::Run(run) => Ok(run),
            Started::NoJob => Err(unknown()),
            Started::Contended => Err(JobsError::Contended),
        }
    }

    /// A run as it is.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn find_run(&self, tenant: &str, number: RunNumber) -> Result<RunView, JobsError> {
        let (_, kept) = self.read_run(tenant, number).await?;
        Ok(RunView { number, run: kept.is })
    }

    /// A job's runs, the newest first, behind `after`, at most `limit`: fewer only where there are no more.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn runs(
        &self,
        tenant: &str,
        name: &JobName,
        after: Option<RunNumber>,
        limit: usize,
    ) -> Result<Vec<RunView>, JobsError> {
        let core = &self.0.core;
        let unknown = || JobsError::UnknownJob(name.to_string());
        let (shard, job) = core.number_of(tenant, name).await?.ok_or_else(unknown)?;
        let prefix = [b"i/".as_slice(), &job.0.to_be_bytes()].concat();
        let (limit, mut views) = (limit.clamp(1, RUNS_MAX), Vec::new());
        let mut after = after.map(|after| job_run_key(job, after));
        // Runs that are forgotten between the two reads, or cannot be read, make no page the last one.
        while views.len() < limit {
            let page = core.book.scan(shard, &prefix, after.as_ref(), limit - views.len()).await?;
            let numbers = page.entries.iter().filter_map(|entry| crate::book::last_number(&entry.key));
            let numbers = numbers.map(|inverted| RunNumber(u64::MAX - inverted)).collect();
            views.extend(self.views(shard, numbers).await?);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(views)
    }

    /// The tenant's runs that ended badly, by shard, behind `after`, at most `limit`: they wait to be run again, or to be
    /// forgotten.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn dead_runs(
        &self,
        tenant: &str,
        after: Option<RunNumber>,
        limit: usize,
    ) -> Result<Vec<RunView>, JobsError> {
        let core = &self.0.core;
        let prefix = [b"x/", tenant.as_bytes(), b"\0"].concat();
        let (limit, mut views) = (limit.clamp(1, RUNS_MAX), Vec::new());
        let first = after.and_then(|after| core.book.shard_of(after.0)).unwrap_or(Shard(0));
        let mut after: Option<EntryKey> = after.map(|after| crate::book::dead_key(tenant, after));
        for shard in core.book.shards().skip_while(|shard| *shard < first) {
            while views.len() < limit {
                let page = core.book.scan(shard, &prefix, after.as_ref(), limit - views.len()).await?;
                let numbers = page.entries.iter().filter_map(|entry| crate::book::last_number(&entry.key));
                views.extend(self.views(shard, numbers.map(RunNumber).collect()).await?);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(views)
    }

    /// Runs a run that is over once more, under its number and its occurrence id, from its first attempt, as its job is now.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn run_again(&self, tenant: &str, number: RunNumber) -> Result<(), JobsError> {
        let core = &self.0.core;
        for _ in 0..CONFLICTS_MAX {
            let (shard, kept) = self.read_run(tenant, number).await?;
            let outcome = match kept.is.state {
                RunState::Ended { outcome, .. } => outcome,
                // The same call once more.
                RunState::Retrying { .. } if kept.is.attempt == 0 => return Ok(()),
                _ => return Err(JobsError::NotOver),
            };
            let Some(definition) = core.latest_definition(shard, kept.is.job).await? else {
                return Err(JobsError::JobRemoved);
            };
            // It is taken up by the next look of any process.
            let at_ms = core.now_ms(shard).await?;
            let state = RunState::Retrying { at_ms };
            let again = kept.is.again.saturating_add(1);
            // Whoever runs it again may have mended the job before.
            let version = definition.is.version;
            let run = Run { version, state, attempt: 0, unanswered: 0, postponed: 0, again, ..kept.is };
            let mut changes = put_run(number, Expect::Version(kept.version), &run, core.options.keep());
            let unchanged = Expect::Version(definition.version);
            changes.push(crate::book::change(crate::book::definition_key(run.job), unchanged, To::Same));
            if outcome.is_dead() {
                changes.push(crate::book::unmark(crate::book::dead_key(&run.tenant, number)));
            }
            let (_, applied) = core.apply(shard, &[group(changes)]).await?;
            if let Some(Applied::Done(_)) = applied.first() {
                return Ok(());
            }
        }
        Err(JobsError::Contended)
    }

    /// Ends a run: the executor that has it is asked to end it, and it is not tried again. A run that an executor does not end
    /// goes on there all the same, and so does one that was being sent in this very moment. Executors of XXL-JOB end all runs of
    /// the job that go or wait there. Whether the run was ended now: of one that was over before, nobody is asked anything.
    ///
    /// # Errors
    /// [`JobsError`]; with [`JobsError::Executor`] and [`JobsError::Refused`] the run counts as killed, although the executor has
    /// not said that it ended.
    pub async fn kill(&self, tenant: &str, number: RunNumber, by: &str) -> Result<bool, JobsError> {
        let why = format!("ended by {by}");
        // As it was when it was ended perhaps: the store has not answered.
        let mut unknown: Option<(Run, EntryError)> = None;
        for _ in 0..CONFLICTS_MAX {
            let (shard, Kept { version, is: run }) = match self.read_run(tenant, number).await {
                Ok(read) => read,
                // Nobody would ask the executor any more: the same call once more finds a run that is over.
                Err(JobsError::Store(EntryError::Unavailable(_))) if unknown.is_some() => {
                    tokio::time::sleep(READ_AGAIN).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let RunState::Ended { outcome, .. } = run.state {
                let is_ours = outcome == Outcome::Killed && run.message == why;
                return match unknown.filter(|_| is_ours) {
                    Some((before, _)) => self.have_ended(shard, number, before).await.map(|()| true),
                    None => Ok(false),
                };
            }
            let happened = Happened::Killed { why: why.clone() };
            let event = Event { number, happened, read: Some((version, run.clone())) };
            match self.0.core.happened(shard, vec![event]).await.pop() {
                Some(Became::Written(_)) => {
                    return self.have_ended(shard, number, run).await.map(|()| true);
                }
                Some(Became::Failed(error)) => unknown = Some((run, error)),
                // It has changed meanwhile: who has it now is to be asked.
                Some(Became::Stays) | None => {}
            }
        }
        Err(unknown.map_or(JobsError::Contended, |(_, error)| JobsError::Store(error)))
    }

    /// Asks the executor that has a run to end it.
    async fn have_ended(&self, shard: Shard, number: RunNumber, run: Run) -> Result<(), JobsError> {
        let is_there = matches!(run.state, RunState::Running { .. });
        let app = self.app_of(shard, &run).await?;
        let Some(address) = run.executor.filter(|_| is_there) else { return Ok(()) };
        let calls = self.0.core.calls_of(&run.tenant, &app);
        let asked = calls.kill(&address, run.job.0, number.0).await;
        asked.map_err(|error| not_done(address, error))
    }

    /// Lines of a run's log, which its executor keeps, from a line on, 1 being the first.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn log(&self, tenant: &str, number: RunNumber, from_line: u32) -> Result<LogLines, JobsError> {
        let (shard, kept) = self.read_run(tenant, number).await?;
        let app = self.app_of(shard, &kept.is).await?;
        let (due_ms, sent_ms) = (kept.is.due_ms, kept.is.sent_ms());
        let address = kept.is.executor.ok_or(JobsError::NoExecutor)?;
        let call = LogCall { run: number.0, due_ms, sent_ms, from_line };
        let read = self.0.core.calls_of(tenant, &app).log(&address, call).await;
        read.map_err(|error| not_done(address, error))
    }

    /// Notes how runs of a tenant ended. Reports of runs that are over, not known, or another tenant's, are passed over, so
    /// that a batch may be repeated. Of several reports of one run a success counts, whichever attempt it is of, and otherwise the
    /// last one of its last attempt.
    ///
    /// # Errors
    /// [`JobsError::Store`]: some of them may be noted; report all of them again.
    pub async fn report(&self, tenant: &str, reports: Vec<Report>) -> Result<(), JobsError> {
        let core = &self.0.core;
        let mut last: BTreeMap<RunNumber, Report> = BTreeMap::new();
        for report in reports {
            // One that does not say its attempt is of the last one.
            let is_older = |before: &Report| {
                let by_number = report.attempt.zip(before.attempt).is_some_and(|(own, other)| own < other);
                by_number || report.sent_ms.zip(before.sent_ms).is_some_and(|(own, other)| own < other)
            };
            let is_success = |report: &Report| matches!(report.how, Reported::Succeeded(_));
            let counts = |before: &Report| match (is_success(&report), is_success(before)) {
                (true, false) => true,
                (false, true) => false,
                _ => !is_older(before),
            };
            if last.get(&report.run).is_none_or(counts) {
                last.insert(report.run, report);
            }
        }
        let event = |Report { run, attempt, sent_ms, how }| {
            let happened = Happened::Reported { tenant: tenant.to_owned(), attempt, sent_ms, how };
            Event { number: run, happened, read: None }
        };
        let shards = by_shard(core, last.into_values().map(event).collect()).into_iter();
        let noted = shards.map(|(shard, events)| core.happened(shard, events));
        for noted in futures_util::future::join_all(noted).await {
            failed(noted)?;
        }
        Ok(())
    }

    async fn read_run(&self, tenant: &str, number: RunNumber) -> Result<(Shard, Kept<Run>), JobsError> {
        let core = &self.0.core;
        let unknown = JobsError::UnknownRun(number.0);
        let Some(shard) = core.book.shard_of(number.0) else { return Err(unknown) };
        let kept = core.book.read_one::<Run>(shard, run_key(number)).await?;
        let kept = kept.filter(|kept| kept.is.tenant == tenant).ok_or(unknown)?;
        Ok((shard, kept))
    }

    /// The app that a run goes to; empty where its job is not there any more, or cannot be read.
    async fn app_of(&self, shard: Shard, run: &Run) -> Result<String, JobsError> {
        let core = &self.0.core;
        let definition = match core.definition_of(shard, run, false).await {
            Ok((definition, _)) => definition,
            Err(error @ EntryError::Unusable(_)) => {
                core.unreadable(&error);
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match definition.map(|definition| definition.spec.destination.clone()) {
            Some(Destination::Executor { app, .. }) => app,
            Some(Destination::Target { .. }) | None => String::new(),
        })
    }

    async fn views(&self, shard: Shard, numbers: Vec<RunNumber>) -> Result<Vec<RunView>, JobsError> {
        let keys: Vec<_> = numbers.iter().map(|number| run_key(*number)).collect();
        let core = &self.0.core;
        let found = core.book.read::<Run>(shard, &keys).await?;
        let view = |(number, kept): (RunNumber, Option<Kept<Run>>)| {
            kept.map(|kept| RunView { number, run: kept.is })
        };
        let found =
            found.into_iter().map(|kept| kept.inspect_err(|error| core.unreadable(error)).ok().flatten());
        Ok(numbers.into_iter().zip(found).filter_map(view).collect())
    }
}

fn not_done(address: String, error: AskError) -> JobsError {
    match error {
        AskError::NoAnswer(why) => JobsError::Executor { address, why },
        AskError::Refused(why) => JobsError::Refused { address, why },
    }
}

/// The first event that could not be written.
fn failed(became: Vec<Became>) -> Result<(), JobsError> {
    let failed = became.into_iter().find_map(|became| match became {
        Became::Failed(error) => Some(JobsError::Store(error)),
        Became::Written(_) | Became::Stays => None,
    });
    failed.map_or(Ok(()), Err)
}
