//! Looks for what has to go on: runs whose lease, time-out or wait is over, occurrences whose due task is missing, and what
//! is to be forgotten. Any number of processes may do it: what one has written, another one finds changed.

use crate::book::{
    Kept, Kind, change, definition_key, group, job_run_key, kept, kind_of, last_number, name_key, put,
    run_key, state_key,
};
use crate::core::{Core, Ticket};
use crate::definition::JobNumber;
use crate::executors::Registered;
use crate::occurrences::Occurrence;
use crate::runs::{JobState, LEASE_MS, Run, RunNumber};
use crate::transition::{Became, Event, Happened};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Entry, EntryError, EntryGroup, Expect, GROUP_MAX, To};

/// Shards that are read side by side.
const SIDE_BY_SIDE: usize = 8;
/// How long an entry that cannot be read is left alone.
const UNREADABLE_MS: u64 = 60_000;
/// How long a job whose time to be forgotten has come is kept on because one of its runs still goes.
const KEPT_ON_MS: u64 = 3_600_000;

/// Looks at each shard again and again, each by itself. Ends when it is dropped.
pub(crate) async fn run(core: Arc<Core>) {
    let mut shards = JoinSet::new();
    for shard in core.book.shards() {
        shards.spawn(run_shard(Arc::clone(&core), shard));
    }
    while let Some(ended) = shards.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a shard of jobs is not looked at any more by this process");
        }
    }
}

async fn run_shard(core: Arc<Core>, shard: Shard) {
    let every = Duration::from_millis(core.options.tend_every_ms);
    loop {
        if let Err(error) = tend(&core, shard).await {
            core.store_failed("a shard of jobs cannot be looked at now", &error);
        }
        tokio::time::sleep(every).await;
    }
}

/// What was found of a shard.
#[derive(Default)]
struct Found {
    runs: Vec<Event>,
    states: Vec<(JobNumber, Kept<JobState>)>,
    changes: Vec<EntryGroup>,
}

async fn tend(core: &Core, shard: Shard) -> Result<(), EntryError> {
    loop {
        let woken = core.book.woken(shard).await?;
        core.store_clocks.answered(shard, woken.now_ms);
        // Whoever lives writes within this time how the runs go that seem to be over now.
        if core.store_clocks.has_jumped(shard, LEASE_MS) {
            return Ok(());
        }
        let found = sort(core, shard, woken.now_ms, woken.entries);
        if !found.changes.is_empty() {
            core.apply(shard, &found.changes).await?;
        }
        let is_all_done = runs_go_on(core, shard, found.runs).await;
        states_go_on(core, shard, woken.now_ms, found.states).await?;
        if !woken.is_cut || !is_all_done {
            return Ok(());
        }
    }
}

fn sort(core: &Core, shard: Shard, now_ms: u64, entries: Vec<Entry>) -> Found {
    let mut found = Found::default();
    for entry in entries {
        let read = match kind_of(&entry.key) {
            Kind::Run(number) => kept::<Run>(&entry).map(|run| {
                let read = Some((run.version, run.is));
                found.runs.push(Event { number, happened: Happened::Woken, read });
            }),
            Kind::State(job) => kept::<JobState>(&entry).map(|state| found.states.push((job, state))),
            // After a jump of the clock executors seem to be silent that are not.
            Kind::Passing if core.store_clocks.has_jumped(shard, core.options.executor_ttl_ms) => {
                let later_ms = now_ms.saturating_add(core.options.executor_ttl_ms);
                found.changes.push(push(&entry, later_ms));
                Ok(())
            }
            Kind::Passing => {
                let gone = change(entry.key.clone(), Expect::Version(entry.version), To::Deleted);
                found.changes.push(group(vec![gone]));
                Ok(())
            }
            Kind::Other => Err(EntryError::Unusable(format!("nobody wakes {:?}", entry.key))),
        };
        if let Err(error) = read {
            core.unreadable(&error);
            found.changes.push(push(&entry, now_ms.saturating_add(UNREADABLE_MS)));
        }
    }
    found
}

/// The change that has an entry woken later.
fn push(entry: &Entry, wake_ms: u64) -> EntryGroup {
    let to = To::Put { value: entry.value.clone(), wake_ms: Some(wake_ms) };
    group(vec![change(entry.key.clone(), Expect::Version(entry.version), to)])
}

/// Writes how runs go on, and sends those that have to be sent, as far as there is room: the others are found again. Whether
/// all was done.
async fn runs_go_on(core: &Core, shard: Shard, mut events: Vec<Event>) -> bool {
    let wanted = events.len();
    // Each may be one that is sent.
    events.truncate(core.sending.capacity());
    if events.is_empty() {
        return wanted == 0;
    }
    let Ok(permits) = core.sending.try_reserve_many(events.len()) else { return false };
    let mut is_all = events.len() == wanted;
    let mut tickets: Vec<Ticket> = Vec::new();
    for became in core.happened(shard, events).await {
        match became {
            Became::Written(ticket) => tickets.extend(ticket),
            Became::Stays => {}
            Became::Failed(error) => {
                core.store_failed("a run waits for the store of entries", &error);
                is_all = false;
            }
        }
    }
    tickets.into_iter().zip(permits).for_each(|(ticket, permit)| permit.send(ticket));
    is_all
}

/// Adds the due tasks of occurrences that are overdue once more, and forgets jobs of which none follows.
async fn states_go_on(
    core: &Core,
    shard: Shard,
    now_ms: u64,
    states: Vec<(JobNumber, Kept<JobState>)>,
) -> Result<(), EntryError> {
    let (mut due, mut looked_at) = (Vec::new(), Vec::new());
    for (job, state) in states {
        let Some(due_ms) = state.is.next_ms else {
            core.forget_ended(shard, job, &state, now_ms).await?;
            continue;
        };
        let priority = match core.definition(shard, job, state.is.version).await {
            Ok(definition) => definition.map(|definition| definition.spec.priority),
            Err(error) => {
                core.unreadable(&error);
                None
            }
        };
        due.extend(
            priority.map(|priority| (priority, Occurrence { job, version: state.is.version, due_ms })),
        );
        // It is looked for again, but not before it had time to fire.
        let wake_ms = Some(now_ms.saturating_add(JobState::OVERDUE_MS));
        let again = put(state_key(job), Expect::Version(state.version), &state.is, wake_ms);
        looked_at.push(group(vec![again]));
    }
    for added in core.add_due(&due).await {
        match added {
            Ok(()) => core.stats.overdue_found.add(1),
            Err(error) => core.store_failed("an overdue occurrence cannot be added now", &error),
        }
    }
    if !looked_at.is_empty() {
        core.apply(shard, &looked_at).await?;
    }
    Ok(())
}

/// Reads the executors of all shards again and again. Ends when it is dropped.
pub(crate) async fn read_executors(core: Arc<Core>) {
    let every = Duration::from_millis(core.options.executors_every_ms);
    loop {
        match executors(&core).await {
            Ok(found) => {
                core.stats.executors.set(u64::try_from(found.len()).unwrap_or(u64::MAX));
                core.executors.replace(found);
            }
            Err(error) => core.store_failed("executors cannot be read now", &error),
        }
        tokio::time::sleep(every).await;
    }
}

async fn executors(core: &Core) -> Result<Vec<Registered>, EntryError> {
    let mut all = Vec::new();
    let shards: Vec<_> = stream::iter(core.book.shards())
        .map(|shard| executors_of(core, shard))
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await;
    for found in shards {
        all.extend(found?);
    }
    Ok(all)
}

async fn executors_of(core: &Core, shard: Shard) -> Result<Vec<Registered>, EntryError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = core.book.scan(shard, b"e/", after.as_ref(), 1_000).await?;
        if page.entries.is_empty() && page.next.is_none() {
            return Ok(found);
        }
        // Those that are silent may still be there until somebody forgets them.
        let now_ms = core.now_ms(shard).await?;
        let has_jumped = core.store_clocks.has_jumped(shard, core.options.executor_ttl_ms);
        for entry in &page.entries {
            if has_jumped || entry.wake_ms.is_none_or(|wake_ms| wake_ms > now_ms) {
                match kept::<Registered>(entry) {
                    Ok(registered) => found.push(registered.is),
                    Err(error) => core.unreadable(&error),
                }
            }
        }
        after = match page.next {
            Some(next) => Some(next),
            None => return Ok(found),
        };
    }
}

impl Core {
    /// Forgets a job of which no occurrence follows, unless one of its runs still goes.
    async fn forget_ended(
        &self,
        shard: Shard,
        job: JobNumber,
        state: &Kept<JobState>,
        now_ms: u64,
    ) -> Result<(), EntryError> {
        let newest = job_run_key(job, RunNumber(u64::MAX));
        let prefix = &newest.as_bytes()[..2 + 8];
        let page = self.book.scan(shard, prefix, None, 100).await?;
        let numbers = page.entries.iter().filter_map(|entry| last_number(&entry.key));
        let keys: Vec<_> = numbers.map(|inverted| run_key(RunNumber(u64::MAX - inverted))).collect();
        let runs = self.book.read::<Run>(shard, &keys).await?;
        if runs.into_iter().flatten().flatten().any(|run| !run.is.is_over()) {
            let wake_ms = Some(now_ms.saturating_add(KEPT_ON_MS));
            let later = put(state_key(job), Expect::Version(state.version), &state.is, wake_ms);
            return self.apply(shard, &[group(vec![later])]).await.map(drop);
        }
        self.forget_job(shard, job, state).await
    }

    /// Forgets a job, if its state is what it was; its runs go by themselves.
    pub async fn forget_job(
        &self,
        shard: Shard,
        job: JobNumber,
        state: &Kept<JobState>,
    ) -> Result<(), EntryError> {
        let mut changes = vec![
            change(state_key(job), Expect::Version(state.version), To::Deleted),
            change(definition_key(job), Expect::Anything, To::Deleted),
            change(name_key(&state.is.tenant, state.is.name.as_str()), Expect::Anything, To::Deleted),
        ];
        let prefix = [b"v/".as_slice(), &job.0.to_be_bytes()].concat();
        let mut after = None;
        loop {
            let page = self.book.scan(shard, &prefix, after.as_ref(), 1_000).await?;
            let old = page.entries.into_iter();
            changes.extend(old.map(|entry| change(entry.key, Expect::Anything, To::Deleted)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // No more versions are kept than fit; the job itself goes first.
        changes.truncate(GROUP_MAX);
        self.apply(shard, &[group(changes)]).await.map(drop)
    }
}
