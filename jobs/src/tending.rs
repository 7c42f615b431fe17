//! Looks for what has to go on: runs whose lease, time-out or wait is over, occurrences whose due task is missing, children
//! that are to be started, and what is to be forgotten. Any number of processes may do it: what one has written, another one
//! finds changed.

use crate::book::{Following, Kept, Kind, change, group, kept, kind_of, put, run_key, state_key};
use crate::children::{self, Parent, start_children, take_parents};
use crate::core::Core;
use crate::definition::JobNumber;
use crate::occurrences::Occurrence;
use crate::outbox::Door;
use crate::runs::{JobState, LEASE_MS, Run, RunState};
use crate::transition::{Became, Event, Happened};
use crate::writes::HELD_BACK_MS;
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, Entry, EntryError, EntryGroup, Expect, To, Woken};

/// How long an entry that cannot be read is left alone.
pub(crate) const UNREADABLE_MS: u64 = 60_000;
/// After the store or this process has stood still for so long, leases may be over whose owners live.
const STILL_MS: u64 = 1_000;

/// Jobs that are forgotten side by side: each takes a few calls.
const FORGOTTEN_SIDE_BY_SIDE: usize = 16;

/// Looks at each shard again and again, each by itself. Ends when it is dropped.
pub(crate) async fn run(core: Arc<Core>) {
    let mut shards = JoinSet::new();
    for shard in core.book.shards() {
        let (starting, parents) = mpsc::channel(children::WAITING_MAX);
        shards.spawn(start_children(Arc::clone(&core), shard, parents));
        shards.spawn(run_shard(Arc::clone(&core), shard, starting));
    }
    while let Some(ended) = shards.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a shard of jobs is not looked at any more by this process");
        }
    }
}

async fn run_shard(core: Arc<Core>, shard: Shard, starting: mpsc::Sender<Parent>) {
    let every = Duration::from_millis(core.options.tend_every_ms);
    let mut looks = Looks::default();
    loop {
        match AssertUnwindSafe(tend(&core, shard, &mut looks, &starting)).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => core.store_failed("a shard of jobs cannot be looked at now", &error),
            Err(_) => {
                core.stats.panics.add(1);
                tracing::error!(shard = shard.0, "a look at a shard of jobs has panicked");
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// When a shard was looked at, by the monotonic clock: whether leases that are over may be taken for abandoned.
#[derive(Default)]
struct Looks {
    /// When the work of the last look ended: how long that takes says nothing about the owners of leases.
    ended_ns: Option<u64>,
    /// Whether the store has not answered the last one.
    has_failed: bool,
    held_until_ns: u64,
}

impl Looks {
    /// The store has answered a look that was begun at `asked_ns`.
    fn answered(&mut self, core: &Core, asked_ns: u64) {
        let now_ns = core.clock.monotonic_ns();
        let still_ms = STILL_MS + core.options.tend_every_ms;
        // From the end of the last look to this answer, whether it was the store that kept us waiting or we were stopped.
        let since_ns = self.ended_ns.map_or(asked_ns, |ended_ns| ended_ns.min(asked_ns));
        if self.has_failed || now_ns.saturating_sub(since_ns) / 1_000_000 > still_ms {
            self.held_until_ns = now_ns.saturating_add(HELD_BACK_MS * 1_000_000);
        }
        self.has_failed = false;
    }

    const fn failed(&mut self) {
        self.has_failed = true;
    }

    fn ended(&mut self, core: &Core) {
        self.ended_ns = Some(core.clock.monotonic_ns());
    }

    fn hold_back(&self, core: &Core) -> bool {
        core.clock.monotonic_ns() < self.held_until_ns
    }
}

/// What was found of a shard.
#[derive(Default)]
struct Found {
    runs: Vec<Event>,
    states: Vec<(JobNumber, Kept<JobState>)>,
    parents: Vec<Parent>,
    changes: Vec<EntryGroup>,
}

async fn tend(
    core: &Core,
    shard: Shard,
    looks: &mut Looks,
    starting: &mpsc::Sender<Parent>,
) -> Result<(), EntryError> {
    loop {
        let asked_ns = core.clock.monotonic_ns();
        let woken = core.woken(shard).await.inspect_err(|_| looks.failed())?;
        looks.answered(core, asked_ns);
        let goes_on = go_on(core, shard, looks, starting, woken).await;
        looks.ended(core);
        if !goes_on? {
            return Ok(());
        }
    }
}

/// Has go on what a look has found. Whether there is more to be looked at now.
async fn go_on(
    core: &Core,
    shard: Shard,
    looks: &Looks,
    starting: &mpsc::Sender<Parent>,
    woken: Woken,
) -> Result<bool, EntryError> {
    // Whoever lives writes within this time how the runs go that seem to be over now.
    if core.store_clocks.has_jumped(shard, LEASE_MS) {
        return Ok(false);
    }
    let Woken { now_ms, entries, is_cut } = woken;
    let mut found = sort(core, shard, now_ms, entries);
    core.apply(shard, &found.changes).await?;
    let mut is_all_done = true;
    if leaves_to_owners(core, shard, looks, &found.runs).await {
        let count = found.runs.len();
        found.runs.retain(|event| !is_lapsed(event));
        is_all_done = found.runs.len() == count;
    }
    is_all_done &= runs_go_on(core, shard, found.runs).await;
    take_parents(core, shard, now_ms, found.parents, starting).await?;
    states_go_on(core, shard, now_ms, found.states).await?;
    Ok(is_cut && is_all_done)
}

/// Whether runs of which the lease is over are left to their owners for now.
async fn leaves_to_owners(core: &Core, shard: Shard, looks: &Looks, runs: &[Event]) -> bool {
    let Some(lapsed) = runs.iter().find(|event| is_lapsed(event)) else { return false };
    if core.writes.are_failing(shard) {
        // There may be nothing else to write, so one that changes nothing tells whether the store takes changes again.
        let same = change(run_key(lapsed.number), Expect::Anything, To::Same);
        if let Err(error) = core.apply(shard, &[group(vec![same])]).await {
            core.store_failed("the store of entries takes no changes now", &error);
        }
    }
    looks.hold_back(core) || core.writes.hold_back(shard)
}

/// Whether it is a run of which the lease is over.
fn is_lapsed(event: &Event) -> bool {
    event.read.as_ref().is_some_and(|(_, run)| matches!(run.state, RunState::Starting { .. }))
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
            Kind::Following(parent) => {
                kept::<Following>(&entry).map(|following| found.parents.push((parent, following)))
            }
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
async fn runs_go_on(core: &Core, shard: Shard, events: Vec<Event>) -> bool {
    let may_be_sent = |event: &Event| event.read.as_ref().is_some_and(|(_, run)| run.may_be_sent());
    let (mut to_send, others): (Vec<_>, Vec<_>) = events.into_iter().partition(may_be_sent);
    // What is only written needs no room.
    let mut is_all = all_written(core, core.happened(shard, others).await, |_| {});
    if to_send.is_empty() {
        return is_all;
    }
    let Some(mut room) = core.outbox.try_reserve(Door::Again, to_send.len()) else { return false };
    is_all &= room.len() == to_send.len();
    to_send.truncate(room.len());
    let became = core.happened(shard, to_send).await;
    // While the process ends nothing is sent any more: it is found when its lease is over.
    is_all &= all_written(core, became, |ticket| drop(room.send(ticket)));
    is_all
}

/// Whether all is written; what is to be sent is handed on.
fn all_written(core: &Core, became: Vec<Became>, mut send: impl FnMut(crate::outbox::Ticket)) -> bool {
    let mut failed = None;
    for became in became {
        match became {
            Became::Written(ticket) => ticket.into_iter().for_each(|ticket| send(*ticket)),
            Became::Stays => {}
            Became::Failed(error) => failed = Some(error),
        }
    }
    if let Some(error) = &failed {
        core.store_failed("runs wait for the store of entries", error);
    }
    failed.is_none()
}

/// Adds the due tasks of occurrences that are overdue once more, and forgets jobs of which none follows.
async fn states_go_on(
    core: &Core,
    shard: Shard,
    now_ms: u64,
    states: Vec<(JobNumber, Kept<JobState>)>,
) -> Result<(), EntryError> {
    let (mut due, mut looked_at) = (Vec::new(), Vec::new());
    let (following, ended): (Vec<_>, Vec<_>) =
        states.into_iter().partition(|(_, state)| state.is.next_ms.is_some());
    let forgotten: Vec<Result<(), EntryError>> = stream::iter(ended)
        .map(|(job, state)| async move { core.forget_ended(shard, job, &state, now_ms).await })
        .buffer_unordered(FORGOTTEN_SIDE_BY_SIDE)
        .collect()
        .await;
    core.learn_definitions(shard, following.iter().map(|(job, state)| (*job, state.is.version))).await;
    for (job, state) in following {
        let Some(due_ms) = state.is.next_ms else { continue };
        let definition = match core.definition(shard, job, state.is.version).await {
            Ok(definition) => definition,
            Err(error @ EntryError::Unusable(_)) => {
                core.unreadable(&error);
                None
            }
            Err(error) => return Err(error),
        };
        let occurrence = Occurrence { job, version: state.is.version, due_ms };
        due.push(definition.map(|definition| (definition.spec.priority, occurrence)));
        // It is looked for again, but not before it had time to fire: looks at what is only late make it later still.
        let wake_ms = Some(JobState::looked_for_again_ms(due_ms, now_ms));
        let again = put(state_key(job), Expect::Version(state.version), &state.is, wake_ms);
        looked_at.push(group(vec![again]));
    }
    let applied = core.apply(shard, &looked_at).await;
    // Where the state has changed meanwhile, the occurrence was decided, and its due task is no more: another one would fire in
    // vain. Where nobody knows, it is added: the state may say by now that it is looked for much later.
    let is_due = |place: usize| match &applied {
        Ok((_, applied)) => matches!(applied.get(place), Some(Applied::Done(_))),
        Err(_) => true,
    };
    let due = due.into_iter().enumerate().filter(|(place, _)| is_due(*place));
    let due: Vec<_> = due.filter_map(|(_, due)| due).collect();
    for added in core.add_due(&due).await {
        match added {
            // Its due task waits, or fires: it is only late.
            Ok(false) => {}
            Ok(true) => core.stats.overdue_found.add(1),
            Err(error) => core.store_failed("an overdue occurrence cannot be added now", &error),
        }
    }
    applied?;
    forgotten.into_iter().collect()
}
