//! Jobs are made, changed, paused, removed and shown.

use super::{JobView, Jobs, JobsError, VERSIONS_MAX};
use crate::book::{
    Kept, change, definition_key, group, kept, name_key, put, put_state, run_key, state_key, version_key,
};
use crate::core::Core;
use crate::definition::{ChangeNote, Definition, JobName, JobNumber, JobSpec};
use crate::occurrences::Occurrence;
use crate::runs::{Cause, JobState, Run, RunNumber};
use crate::schedule::Schedule;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryChange, EntryKey, Expect, To};

const CONFLICTS_MAX: usize = 5;
/// Children, and children of children, that are looked at for a circle.
const DESCENDANTS_MAX: usize = 1_000;
const TENANT_MAX_BYTES: usize = 100;
const WHO_MAX_BYTES: usize = 200;
const WHY_MAX_BYTES: usize = 1_000;
/// Jobs that one call makes at most.
pub const PUT_MAX: usize = 1_000;

/// A job as it is stored: its number, and its definition and state with their versions.
struct Stored {
    number: JobNumber,
    definition: Kept<Definition>,
    state: Kept<JobState>,
}

/// What is to become of a job.
enum Edit<'a> {
    Spec(&'a JobSpec),
    Paused(bool),
}

impl Jobs {
    /// Makes a job, or changes it. `expected` is the version that it must have, 0 for a job that is not there yet; `None`
    /// takes any. A job that is what it is to become already is left as it is, so that a call may be repeated.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn put(
        &self,
        tenant: &str,
        name: &JobName,
        spec: &JobSpec,
        expected: Option<u64>,
        note: ChangeNote,
    ) -> Result<JobView, JobsError> {
        spec.check()?;
        check_caller(tenant, &note)?;
        let missing_children = self.0.core.check_children(tenant, name, spec, &BTreeMap::new()).await?;
        let view = self.0.core.edit(tenant, name, &Edit::Spec(spec), expected, note).await?;
        Ok(JobView { missing_children, ..view })
    }

    /// Pauses a job, so that it has no scheduled runs, or lets it go on from now.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn set_paused(
        &self,
        tenant: &str,
        name: &JobName,
        is_paused: bool,
        note: ChangeNote,
    ) -> Result<JobView, JobsError> {
        check_caller(tenant, &note)?;
        self.0.core.edit(tenant, name, &Edit::Paused(is_paused), None, note).await
    }

    /// Removes a job. Runs that an executor has go on there, and their ends are not noted. Whether it was there.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn remove(&self, tenant: &str, name: &JobName) -> Result<bool, JobsError> {
        let core = &self.0.core;
        let shard = core.book.shard_of_name(tenant, name);
        for _ in 0..CONFLICTS_MAX {
            let Some(stored) = core.stored(shard, tenant, name).await? else { return Ok(false) };
            // Where it was changed meanwhile, it is still there, and so is its next occurrence.
            if core.forget_job(shard, stored.number, &stored.state).await? {
                core.cancel_next(&stored).await;
                return Ok(true);
            }
        }
        Err(JobsError::Contended)
    }

    /// A job as it is.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn get(&self, tenant: &str, name: &JobName) -> Result<JobView, JobsError> {
        let shard = self.0.core.book.shard_of_name(tenant, name);
        let stored = self.0.core.stored(shard, tenant, name).await?;
        stored.map(Stored::view).ok_or_else(|| JobsError::UnknownJob(name.to_string()))
    }

    /// Names of the tenant's jobs by shard, behind `after`, at most `limit`, and where to go on; `None` at the end. A page may
    /// be empty and not the last one.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn names(
        &self,
        tenant: &str,
        after: Option<&JobName>,
        limit: usize,
    ) -> Result<(Vec<JobName>, bool), JobsError> {
        let core = &self.0.core;
        let first = after.map_or(Shard(0), |after| core.book.shard_of_name(tenant, after));
        let mut behind = after.map(|after| name_key(tenant, after.as_str()));
        let prefix = name_prefix(tenant);
        let mut names = Vec::new();
        for shard in core.book.shards().skip_while(|shard| shard.0 < first.0) {
            loop {
                let page = core.book.scan(shard, &prefix, behind.as_ref(), limit - names.len()).await?;
                names.extend(page.entries.iter().filter_map(|entry| name_of(&entry.key, &prefix)));
                if names.len() >= limit {
                    return Ok((names, true));
                }
                behind = page.next;
                if behind.is_none() {
                    break;
                }
            }
        }
        Ok((names, false))
    }

    /// Earlier versions of a job, the oldest first, at most 90 of them.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn versions(&self, tenant: &str, name: &JobName) -> Result<Vec<Definition>, JobsError> {
        let core = &self.0.core;
        let shard = core.book.shard_of_name(tenant, name);
        let unknown = || JobsError::UnknownJob(name.to_string());
        let stored = core.stored(shard, tenant, name).await?.ok_or_else(unknown)?;
        let prefix = [b"v/".as_slice(), &stored.number.0.to_be_bytes()].concat();
        let (mut versions, mut after) = (Vec::new(), None);
        loop {
            let page = core.book.scan(shard, &prefix, after.as_ref(), 1_000).await?;
            for entry in &page.entries {
                versions.push(kept::<Definition>(entry)?.is);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        versions.push(stored.definition.is);
        Ok(versions)
    }

    /// Makes many jobs, each of which must be new: one answer for each, in order. At most 1,000.
    pub async fn put_new(
        &self,
        tenant: &str,
        jobs: &[(JobName, JobSpec)],
        note: &ChangeNote,
    ) -> Vec<Result<JobNumber, JobsError>> {
        if jobs.len() > PUT_MAX {
            let what = format!("one call makes at most {PUT_MAX} jobs, not {}", jobs.len());
            return jobs
                .iter()
                .map(|_| Err(JobsError::WrongField { field: "jobs", what: what.clone() }))
                .collect();
        }
        if let Err(wrong) = check_caller(tenant, note) {
            return jobs.iter().map(|_| Err(wrong.clone())).collect();
        }
        self.0.core.put_new(tenant, jobs, note).await
    }
}

impl Stored {
    fn view(self) -> JobView {
        let (definition, state) = (self.definition.is, self.state.is);
        JobView { number: self.number, definition, state, missing_children: Vec::new() }
    }
}

impl Core {
    async fn stored(&self, shard: Shard, tenant: &str, name: &JobName) -> Result<Option<Stored>, JobsError> {
        let key = name_key(tenant, name.as_str());
        let Some(number) = self.book.read_one::<JobNumber>(shard, key).await? else { return Ok(None) };
        let number = number.is;
        let definition = self.book.read_one::<Definition>(shard, definition_key(number)).await?;
        let state = self.book.read_one::<JobState>(shard, state_key(number)).await?;
        // They are written together; between two reads the job may have been removed.
        Ok(definition.zip(state).map(|(definition, state)| Stored { number, definition, state }))
    }

    /// Refuses a job that would be its own child, or a child of its children: its runs would start one another without end. The
    /// children that are not there; `new` is made by the same call. Two calls at once that each make a part of a circle do not see
    /// each other.
    async fn check_children(
        &self,
        tenant: &str,
        name: &JobName,
        spec: &JobSpec,
        new: &BTreeMap<&JobName, &JobSpec>,
    ) -> Result<Vec<JobName>, JobsError> {
        let (mut missing, mut seen) = (Vec::new(), BTreeSet::new());
        let mut left: Vec<(JobName, JobName)> =
            spec.children.iter().map(|child| (child.clone(), child.clone())).collect();
        while let Some((child, from)) = left.pop() {
            if child == *name {
                let what = format!("by `{from}` the job would start itself again and again");
                return Err(JobsError::WrongField { field: "spec.children", what });
            }
            if seen.len() >= DESCENDANTS_MAX || !seen.insert(child.clone()) {
                continue;
            }
            let children = match new.get(&child) {
                Some(spec) => Some(spec.children.clone()),
                None => self.children_of(tenant, &child).await?,
            };
            match children {
                Some(children) => left.extend(children.into_iter().map(|next| (next, from.clone()))),
                None if spec.children.contains(&child) => missing.push(child),
                None => {}
            }
        }
        Ok(missing)
    }

    /// The children of a job; `None` where there is no such job.
    async fn children_of(&self, tenant: &str, name: &JobName) -> Result<Option<Vec<JobName>>, JobsError> {
        let Some((shard, number)) = self.number_of(tenant, name).await? else { return Ok(None) };
        let found = self.latest_definition(shard, number).await?;
        Ok(found.map(|kept| kept.is.spec.children.clone()))
    }

    async fn edit(
        &self,
        tenant: &str,
        name: &JobName,
        edit: &Edit<'_>,
        expected: Option<u64>,
        note: ChangeNote,
    ) -> Result<JobView, JobsError> {
        let shard = self.book.shard_of_name(tenant, name);
        for _ in 0..CONFLICTS_MAX {
            let before = self.stored(shard, tenant, name).await?;
            let is = before.as_ref().map_or(0, |stored| stored.definition.is.version);
            let is_same = before.as_ref().is_some_and(|stored| edit.is_done(&stored.definition.is));
            // A repeated call finds what it did the first time, in the version that follows the one it expected.
            if let Some(expected) = expected.filter(|expected| *expected != is)
                && !(is_same && expected.checked_add(1) == Some(is))
            {
                return Err(JobsError::OtherVersion { is, expected });
            }
            let stored = match (before, is_same) {
                (Some(stored), true) => stored,
                (before, _) => match self.write_edit(shard, tenant, name, edit, before, &note).await? {
                    Some(stored) => stored,
                    None => continue,
                },
            };
            self.schedule(&stored).await?;
            return Ok(stored.view());
        }
        Err(JobsError::Contended)
    }

    /// Writes an edit. `None`: somebody else was quicker.
    async fn write_edit(
        &self,
        shard: Shard,
        tenant: &str,
        name: &JobName,
        edit: &Edit<'_>,
        before: Option<Stored>,
        note: &ChangeNote,
    ) -> Result<Option<Stored>, JobsError> {
        let definition = edit.apply(tenant, name, before.as_ref(), note)?;
        let number = match &before {
            Some(stored) => stored.number,
            None => {
                self.check_quota(tenant, 1).await?;
                JobNumber(self.book.numbers(shard, 1).await?.first().copied().unwrap_or_default())
            }
        };
        let now_ms = self.now_ms(shard).await?;
        let old = before.as_ref().map(|stored| (&stored.definition.is, &stored.state.is));
        let mut state = JobState::of(&definition, old, now_ms);
        let going = match &before {
            Some(stored) => self.going_run(shard, stored, &definition).await?,
            None => None,
        };
        if going.is_some() {
            state.next_ms = None;
        }
        if state.next_ms.is_none() && going.is_none() && !definition.is_paused {
            return Err(JobsError::NeverDue);
        }
        let mut changes = put_job(number, &definition, &state, before.as_ref());
        // Its end is to find this version, from which the next occurrence follows.
        let goes_on = |(run, version)| change(run_key(run), Expect::Version(version), To::Same);
        changes.extend(going.map(goes_on));
        if let Some(stored) = &before {
            let old = &stored.definition.is;
            changes.push(put(version_key(number, old.version), Expect::Anything, old, None));
            if let Some(oldest) = old.version.checked_sub(VERSIONS_MAX) {
                changes.push(change(version_key(number, oldest), Expect::Anything, To::Deleted));
            }
        }
        let (_, applied) = self.apply(shard, &[group(changes)]).await?;
        let Some(Applied::Done(version)) = applied.first().copied() else { return Ok(None) };
        if before.is_none() {
            self.quotas.made(tenant, 1);
        }
        if let Some(before) = &before {
            self.stats.left_out.add(state.missed.saturating_sub(before.state.is.missed));
            self.cancel_next(before).await;
        }
        let (definition, state) = (Kept { version, is: definition }, Kept { version, is: state });
        Ok(Some(Stored { number, definition, state }))
    }

    /// The run of a job with a fixed delay that goes while the job is changed, with its version: the next occurrence follows from
    /// its end, and not from the change.
    async fn going_run(
        &self,
        shard: Shard,
        before: &Stored,
        definition: &Definition,
    ) -> Result<Option<(RunNumber, u64)>, JobsError> {
        let is_delay = |of: &Definition| matches!(of.spec.schedule, Schedule::FixedDelay(_));
        let is_one = is_delay(definition) && is_delay(&before.definition.is) && !definition.is_paused;
        let state = &before.state.is;
        let Some(last_ms) = state.last_ms.filter(|_| is_one && state.next_ms.is_none()) else {
            return Ok(None);
        };
        // There is one such run. Where it is over, none goes, and those behind it need not be read; the time at which they were due
        // says nothing, because the numbers of several processes are not in the order of time.
        let is_last = |run: &Run| {
            let is_first_part = run.part.is_none_or(|part| part.index == 0);
            run.cause == Cause::Schedule && run.due_ms == last_ms && is_first_part
        };
        let found = self.find_run_of(shard, before.number, &is_last).await?;
        let Some((number, run)) = found.filter(|(_, run)| !run.is.is_over()) else {
            return Ok(None);
        };
        // It follows the version with which it began: where that one has another schedule, nothing follows from its end.
        let (began, _) = self.definition_of(shard, &run.is, false).await?;
        Ok(began.is_some_and(|began| is_delay(&began)).then_some((number, run.version)))
    }

    /// Adds the due task of a job's next occurrence, unless it waits already.
    async fn schedule(&self, stored: &Stored) -> Result<(), JobsError> {
        let Stored { number, definition, state } = stored;
        let Some(due_ms) = state.is.next_ms else { return Ok(()) };
        let occurrence = Occurrence { job: *number, version: definition.is.version, due_ms };
        match self.add_due(&[(definition.is.spec.priority, occurrence)]).await.pop() {
            Some(Err(error)) => Err(JobsError::NotScheduled(error)),
            _ => Ok(()),
        }
    }

    /// Takes the due task of what was the next occurrence out of the scheduler.
    async fn cancel_next(&self, before: &Stored) {
        if let Some(due_ms) = before.state.is.next_ms {
            let occurrence = Occurrence { job: before.number, version: before.state.is.version, due_ms };
            self.cancel_due(before.definition.is.spec.priority, occurrence).await;
        }
    }

    async fn put_new(
        &self,
        tenant: &str,
        jobs: &[(JobName, JobSpec)],
        note: &ChangeNote,
    ) -> Vec<Result<JobNumber, JobsError>> {
        let mut by_shard = BTreeMap::<Shard, Vec<usize>>::new();
        let new: BTreeMap<&JobName, &JobSpec> = jobs.iter().map(|new| (&new.0, &new.1)).collect();
        let mut answers: Vec<Result<JobNumber, JobsError>> = Vec::with_capacity(jobs.len());
        for (place, (name, spec)) in jobs.iter().enumerate() {
            let checked = match spec.check() {
                Ok(()) => self.check_children(tenant, name, spec, &new).await.map(|_| JobNumber(0)),
                Err(wrong) => Err(wrong.into()),
            };
            answers.push(checked);
            if answers[place].is_ok() {
                by_shard.entry(self.book.shard_of_name(tenant, name)).or_default().push(place);
            }
        }
        let wanted: usize = by_shard.values().map(Vec::len).sum();
        // Where there is no room for all of them, each goes by itself: it may be there already.
        let has_room = self.check_quota(tenant, u64::try_from(wanted).unwrap_or(u64::MAX)).await.is_ok();
        let mut known = Vec::new();
        if !has_room {
            known = std::mem::take(&mut by_shard).into_values().flatten().collect();
            // In their order, so that the first ones are made.
            known.sort_unstable();
        }
        let shards = by_shard.into_iter().map(|(shard, places)| async move {
            let made = self.put_new_in(shard, tenant, jobs, &places, note).await;
            places.into_iter().zip(made)
        });
        let (mut due, mut places) = (Vec::new(), Vec::new());
        for (place, made) in futures_util::future::join_all(shards).await.into_iter().flatten() {
            answers[place] = made.map(|occurrence| {
                due.push((jobs[place].1.priority, occurrence));
                places.push(place);
                occurrence.job
            });
            if matches!(answers[place], Err(JobsError::OtherVersion { .. } | JobsError::NeverDue)) {
                known.push(place);
            }
        }
        self.quotas.made(tenant, u64::try_from(places.len()).unwrap_or(u64::MAX));
        for (place, added) in places.into_iter().zip(self.add_due(&due).await) {
            if let Err(error) = added {
                answers[place] = Err(JobsError::NotScheduled(error));
            }
        }
        // A job that is there may have been made by this very call, whose answer was lost.
        for place in known {
            let (name, spec) = &jobs[place];
            let made = self.edit(tenant, name, &Edit::Spec(spec), Some(0), note.clone()).await;
            answers[place] = made.map(|view| view.number);
        }
        answers
    }

    async fn put_new_in(
        &self,
        shard: Shard,
        tenant: &str,
        jobs: &[(JobName, JobSpec)],
        places: &[usize],
        note: &ChangeNote,
    ) -> Vec<Result<Occurrence, JobsError>> {
        let made = async {
            let numbers = self.book.numbers(shard, places.len()).await?;
            let now_ms = self.now_ms(shard).await?;
            let (mut groups, mut occurrences) = (Vec::new(), Vec::new());
            for (place, number) in places.iter().zip(numbers) {
                let (name, spec) = &jobs[*place];
                let definition = Definition {
                    tenant: tenant.to_owned(),
                    name: name.clone(),
                    version: 1,
                    change: note.clone(),
                    is_paused: false,
                    spec: spec.clone(),
                };
                let (number, state) = (JobNumber(number), JobState::of(&definition, None, now_ms));
                let next = state.next_ms.map(|due_ms| Occurrence { job: number, version: 1, due_ms });
                if next.is_some() {
                    groups.push(group(put_job(number, &definition, &state, None)));
                }
                occurrences.push(next);
            }
            let (_, applied) = self.apply(shard, &groups).await?;
            let mut applied = applied.into_iter();
            let answers = occurrences.into_iter().map(|next| match next {
                None => Err(JobsError::NeverDue),
                Some(occurrence) => match applied.next() {
                    Some(Applied::Done(_)) => Ok(occurrence),
                    _ => Err(JobsError::OtherVersion { is: 1, expected: 0 }),
                },
            });
            Ok::<Vec<_>, JobsError>(answers.collect())
        };
        made.await.unwrap_or_else(|error| places.iter().map(|_| Err(error.clone())).collect())
    }
}

impl Edit<'_> {
    fn is_done(&self, definition: &Definition) -> bool {
        match self {
            Self::Spec(spec) => definition.spec == **spec,
            Self::Paused(is_paused) => definition.is_paused == *is_paused,
        }
    }

    fn apply(
        &self,
        tenant: &str,
        name: &JobName,
        before: Option<&Stored>,
        note: &ChangeNote,
    ) -> Result<Definition, JobsError> {
        let before = before.map(|stored| &stored.definition.is);
        let (spec, is_paused) = match (self, before) {
            (Self::Spec(spec), before) => ((*spec).clone(), before.is_some_and(|before| before.is_paused)),
            (Self::Paused(is_paused), Some(before)) => (before.spec.clone(), *is_paused),
            (Self::Paused(_), None) => return Err(JobsError::UnknownJob(name.to_string())),
        };
        let version = before.map_or(1, |before| before.version.saturating_add(1));
        let (tenant, name) = (tenant.to_owned(), name.clone());
        Ok(Definition { tenant, name, version, change: note.clone(), is_paused, spec })
    }
}

/// The changes that write a job: all of it or nothing.
fn put_job(
    number: JobNumber,
    definition: &Definition,
    state: &JobState,
    before: Option<&Stored>,
) -> Vec<EntryChange> {
    let expect = |version: Option<u64>| version.map_or(Expect::Absent, Expect::Version);
    let name = name_key(&definition.tenant, definition.name.as_str());
    let mut changes = vec![
        put(definition_key(number), expect(before.map(|it| it.definition.version)), definition, None),
        put_state(number, expect(before.map(|it| it.state.version)), state, 0),
    ];
    if before.is_none() {
        changes.push(put(name, Expect::Absent, &number, None));
    }
    changes
}

/// What callers say of themselves is kept with each version, so it is bounded.
fn check_caller(tenant: &str, note: &ChangeNote) -> Result<(), JobsError> {
    let wrong = |field, max: usize| {
        Err(JobsError::WrongField { field, what: format!("it has at most {max} bytes, and no zero byte") })
    };
    let is_good = |text: &str, max: usize| text.len() <= max && !text.contains('\0');
    match () {
        () if tenant.is_empty() || !is_good(tenant, TENANT_MAX_BYTES) => wrong("tenant", TENANT_MAX_BYTES),
        () if !is_good(&note.by, WHO_MAX_BYTES) => wrong("by", WHO_MAX_BYTES),
        () if !is_good(&note.why, WHY_MAX_BYTES) => wrong("why", WHY_MAX_BYTES),
        () => Ok(()),
    }
}

fn name_prefix(tenant: &str) -> Vec<u8> {
    [b"n/", tenant.as_bytes(), b"\0"].concat()
}

fn name_of(key: &EntryKey, prefix: &[u8]) -> Option<JobName> {
    let name = key.as_bytes().strip_prefix(prefix)?;
    JobName::new(std::str::from_utf8(name).ok()?).ok()
}
