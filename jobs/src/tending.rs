//! Looks for what has to go on: runs whose lease, time-out or wait is over, occurrences whose due task is missing, and what
//! is to be forgotten. Any number of processes may do it: what one has written, another one finds changed.

use crate::book::{Kind, change, group, kept, kind_of};
use crate::core::Core;
use crate::definition::JobNumber;
use crate::executors::Registered;
use crate::runs::Run;
use crate::transition::{Became, Event, Happened};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryError, Expect, To};

/// Shards that are looked at side by side.
const SIDE_BY_SIDE: usize = 8;

/// Looks at each shard again and again. Ends when it is dropped.
pub(crate) async fn run(core: Arc<Core>) {
    let every = Duration::from_millis(core.options.tend_every_ms);
    loop {
        let began_ns = core.clock.monotonic_ns();
        stream::iter(core.book.shards())
            .for_each_concurrent(SIDE_BY_SIDE, |shard| {
                let core = Arc::clone(&core);
                async move {
                    if let Err(error) = tend(&core, shard).await {
                        core.store_failed("a shard of jobs cannot be looked at now", &error);
                    }
                }
            })
            .await;
        let took = Duration::from_nanos(core.clock.monotonic_ns().saturating_sub(began_ns));
        tokio::time::sleep(every.saturating_sub(took).max(every / 10)).await;
    }
}

async fn tend(core: &Core, shard: Shard) -> Result<(), EntryError> {
    loop {
        let woken = core.book.woken(shard).await?;
        core.store_clock.answered(woken.now_ms);
        let (mut events, mut passing) = (Vec::new(), Vec::new());
        let found = woken.entries.len();
        for entry in woken.entries {
            match kind_of(&entry.key) {
                Kind::State(job) => core.state_woken(shard, &entry, job).await?,
                Kind::Run(number) => {
                    let run = kept::<Run>(&entry)?;
                    let read = Some((run.version, run.is));
                    events.push(Event { number, happened: Happened::Woken, read });
                }
                Kind::Passing => {
                    passing.push(group(vec![change(entry.key, Expect::Version(entry.version), To::Deleted)]));
                }
                Kind::Other => {}
            }
        }
        if !passing.is_empty() {
            core.book.apply(shard, &passing).await?;
        }
        let is_all_sent = go_on(core, shard, events).await?;
        if !woken.is_cut || !is_all_sent || found == 0 {
            return Ok(());
        }
    }
}

/// Writes how runs go on, and sends those that have to be sent, as far as there is room: the others are found again. Whether
/// there was room for all.
async fn go_on(core: &Core, shard: Shard, mut events: Vec<Event>) -> Result<bool, EntryError> {
    let wanted = events.len();
    let room = core.sending.capacity();
    events.truncate(room);
    if events.is_empty() {
        return Ok(wanted == 0);
    }
    let Ok(permits) = core.sending.try_reserve_many(events.len()) else { return Ok(false) };
    let is_all = events.len() == wanted;
    let became = core.happened(shard, events).await?;
    let tickets = became.into_iter().filter_map(|became| match became {
        Became::Written(ticket) => ticket,
        Became::Stays => None,
    });
    permits.zip(tickets).for_each(|(permit, ticket)| permit.send(ticket));
    Ok(is_all)
}

/// Reads the executors of all shards again and again. Ends when it is dropped.
pub(crate) async fn read_executors(core: Arc<Core>) {
    let every = Duration::from_millis(core.options.executors_every_ms);
    loop {
        match executors(&core).await {
            Ok(found) => {
                core.executors.replace(found);
                core.stats.executors.set(u64::try_from(core.executors.len()).unwrap_or(u64::MAX));
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
        // Those that are silent may still be there until somebody forgets them.
        let now_ms = core.store_clock.now_ms();
        let living =
            page.entries.iter().filter(|entry| entry.wake_ms.is_none_or(|wake_ms| wake_ms > now_ms));
        for entry in living {
            found.push(kept::<Registered>(entry)?.is);
        }
        after = match page.next {
            Some(next) => Some(next),
            None => return Ok(found),
        };
    }
}

impl Core {
    /// Forgets a job of which no occurrence follows any more; its runs go by themselves.
    pub async fn forget_job(
        &self,
        shard: Shard,
        job: JobNumber,
        state: &crate::book::Kept<crate::runs::JobState>,
    ) -> Result<(), EntryError> {
        let mut changes = vec![
            change(crate::book::state_key(job), Expect::Version(state.version), To::Deleted),
            change(crate::book::definition_key(job), Expect::Anything, To::Deleted),
            change(
                crate::book::name_key(&state.is.tenant, state.is.name.as_str()),
                Expect::Anything,
                To::Deleted,
            ),
        ];
        let prefix = [b"v/".as_slice(), &job.0.to_be_bytes()].concat();
        let versions = self.book.scan(shard, &prefix, None, 1_000).await?;
        let room = windfall_contract::entries::GROUP_MAX.saturating_sub(changes.len());
        for entry in versions.entries.into_iter().take(room) {
            changes.push(change(entry.key, Expect::Anything, To::Deleted));
        }
        self.book.apply(shard, &[group(changes)]).await?;
        Ok(())
    }
}
