//! Jobs are forgotten: those that somebody removes, and those of which no occurrence follows.

use crate::book::{
    Kept, change, definition_key, group, job_run_key, last_number, name_key, put, run_key, state_key,
};
use crate::core::Core;
use crate::definition::JobNumber;
use crate::runs::{JobState, Run, RunNumber};
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, CALL_MAX, EntryError, Expect, GROUP_MAX, To};

/// How long a job whose time to be forgotten has come is kept on because one of its runs still goes.
const KEPT_ON_MS: u64 = 3_600_000;

impl Core {
    /// Forgets a job of which no occurrence follows, unless one of its runs still goes.
    pub async fn forget_ended(
        &self,
        shard: Shard,
        job: JobNumber,
        state: &Kept<JobState>,
        now_ms: u64,
    ) -> Result<(), EntryError> {
        if self.find_run_of(shard, job, &|run: &Run| !run.is_over()).await?.is_some() {
            let wake_ms = Some(now_ms.saturating_add(KEPT_ON_MS));
            let later = put(state_key(job), Expect::Version(state.version), &state.is, wake_ms);
            return self.apply(shard, &[group(vec![later])]).await.map(drop);
        }
        self.forget_job(shard, job, state).await.map(drop)
    }

    /// The run of a job with the highest number that is such a one; where there is none, all runs of the job are read.
    pub async fn find_run_of(
        &self,
        shard: Shard,
        job: JobNumber,
        is_such: &(dyn Fn(&Run) -> bool + Sync),
    ) -> Result<Option<(RunNumber, Kept<Run>)>, EntryError> {
        let newest = job_run_key(job, RunNumber(u64::MAX));
        let (prefix, mut after) = (&newest.as_bytes()[..2 + 8], None);
        loop {
            let page = self.book.scan(shard, prefix, after.as_ref(), CALL_MAX).await?;
            let numbers = page.entries.iter().filter_map(|entry| last_number(&entry.key));
            let numbers: Vec<_> = numbers.map(|inverted| RunNumber(u64::MAX - inverted)).collect();
            let keys: Vec<_> = numbers.iter().map(|number| run_key(*number)).collect();
            let runs = self.book.read::<Run>(shard, &keys).await?;
            let such = |(number, run): (RunNumber, Result<Option<Kept<Run>>, EntryError>)| {
                let run = run.ok().flatten().filter(|run| is_such(&run.is))?;
                Some((number, run))
            };
            let found = numbers.into_iter().zip(runs).find_map(such);
            after = page.next;
            if found.is_some() || after.is_none() {
                return Ok(found);
            }
        }
    }

    /// Forgets a job, if its state is what it was; its runs go by themselves. Whether it is forgotten.
    pub async fn forget_job(
        &self,
        shard: Shard,
        job: JobNumber,
        state: &Kept<JobState>,
    ) -> Result<bool, EntryError> {
        let mut changes = vec![
            change(state_key(job), Expect::Version(state.version), To::Deleted),
            change(definition_key(job), Expect::Anything, To::Deleted),
            change(name_key(&state.is.tenant, state.is.name.as_str()), Expect::Anything, To::Deleted),
        ];
        let prefix = [b"v/".as_slice(), &job.0.to_be_bytes()].concat();
        let mut after = None;
        loop {
            let page = self.book.scan(shard, &prefix, after.as_ref(), CALL_MAX).await?;
            let old = page.entries.into_iter();
            changes.extend(old.map(|entry| change(entry.key, Expect::Anything, To::Deleted)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // No more versions are kept than fit; the job itself goes first.
        changes.truncate(GROUP_MAX);
        let (_, applied) = self.apply(shard, &[group(changes)]).await?;
        let is_forgotten = matches!(applied.first(), Some(Applied::Done(_)));
        if is_forgotten {
            self.quotas.removed(&state.is.tenant);
        }
        Ok(is_forgotten)
    }
}
