//! Children of runs that have succeeded: what the end of a run leaves behind is found by a look of any process, again and again
//! until each child is started, once. They are started beside the looks, which wait for no child's shard.

use crate::book::{Following, Kept, change, following_key, group, put};
use crate::core::Core;
use crate::definition::JobName;
use crate::runs::{Cause, RunNumber};
use crate::starting::Started;
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryError, EntryGroup, Expect, To};

/// How long it is tried to start children.
pub(crate) const CHILDREN_KEPT_MS: u64 = 86_400_000;
/// Parents of one shard that wait in this process until their children are started.
pub(crate) const WAITING_MAX: usize = 1_000;
/// Parents of one shard whose children are started side by side.
const SIDE_BY_SIDE: usize = 256;
/// How long a child's shard is waited for: it may lie on another server, and there may be many like it.
const START_WAIT: Duration = Duration::from_secs(5);
/// How long a process that has taken a parent is given to start its children. Then it is anybody's again.
const TAKEN_MS: u64 = 15_000;
/// The wait after children could not be started for the first time; it doubles, up to the longest one.
const AGAIN_FIRST_MS: u64 = 500;
const AGAIN_MOST_MS: u64 = 30_000;

/// A run that has succeeded, and its children.
pub(crate) type Parent = (RunNumber, Kept<Following>);

/// Takes parents whose children are to be started, so that nobody else finds them meanwhile, and hands them on as far as there is
/// room. The others come again in a moment. However many there are, the look that found them goes on to what lies behind them.
pub(crate) async fn take_parents(
    core: &Core,
    shard: Shard,
    now_ms: u64,
    parents: Vec<Parent>,
    starting: &mpsc::Sender<Parent>,
) -> Result<(), EntryError> {
    let (mut groups, mut taken) = (Vec::with_capacity(parents.len()), Vec::with_capacity(parents.len()));
    for (parent, following) in parents {
        let room = starting.try_reserve().ok();
        let wait_ms = if room.is_some() { TAKEN_MS } else { AGAIN_FIRST_MS };
        let (key, expect) = (following_key(parent), Expect::Version(following.version));
        groups.push(group(vec![put(key, expect, &following.is, Some(now_ms.saturating_add(wait_ms)))]));
        taken.push((room, parent, following));
    }
    let (_, applied) = core.apply(shard, &groups).await?;
    for ((room, parent, following), applied) in taken.into_iter().zip(applied) {
        if let (Some(room), Applied::Done(version)) = (room, applied) {
            room.send((parent, Kept { version, ..following }));
        }
    }
    Ok(())
}

/// Starts the children of the parents of one shard that come, until no more do.
pub(crate) async fn start_children(core: Arc<Core>, shard: Shard, mut parents: mpsc::Receiver<Parent>) {
    let core = &*core;
    let started = stream::poll_fn(|context| parents.poll_recv(context))
        .map(|parent| async move { core.try_start_children_of(shard, parent).await })
        .buffer_unordered(SIDE_BY_SIDE)
        .ready_chunks(SIDE_BY_SIDE);
    let note = |groups: Vec<Option<EntryGroup>>| async move {
        let groups: Vec<EntryGroup> = groups.into_iter().flatten().collect();
        if let Err(error) = core.apply(shard, &groups).await {
            // What is not noted is done again, and finds that the children were started.
            core.store_failed("the start of children cannot be noted now", &error);
        }
    };
    started.for_each(note).await;
}

impl Core {
    /// The change that notes how far the start of a run's children has come; `None`: it is tried once more after a while.
    async fn try_start_children_of(&self, shard: Shard, parent: Parent) -> Option<EntryGroup> {
        match AssertUnwindSafe(self.start_children_of(shard, parent)).catch_unwind().await {
            Ok(Ok(group)) => Some(group),
            Ok(Err(error)) => {
                self.store_failed("the start of children cannot be noted now", &error);
                None
            }
            Err(_) => {
                self.stats.panics.add(1);
                tracing::error!(shard = shard.0, "the start of children of a run has panicked");
                None
            }
        }
    }

    /// Starts the children of a run, each once: the change that notes how far that has come.
    async fn start_children_of(
        &self,
        shard: Shard,
        (parent, following): Parent,
    ) -> Result<EntryGroup, EntryError> {
        let Kept { version, is: Following { tenant, children, until_ms, tries } } = following;
        let started = join_all(children.iter().map(|child| {
            let start = tokio::time::timeout(START_WAIT, self.start_child(&tenant, child, parent));
            async move {
                let silent = |_| EntryError::Unavailable("the child's shard does not answer".to_owned());
                start.await.map_err(silent)?
            }
        }));
        let mut left = Vec::new();
        for (child, started) in children.iter().zip(started.await) {
            if let Err(error) = started {
                self.store_failed("a child job cannot be started now", &error);
                left.push(child.clone());
            }
        }
        let now_ms = self.now_ms(shard).await?;
        let (key, expect) = (following_key(parent), Expect::Version(version));
        if !left.is_empty() && until_ms > now_ms {
            let wait_ms = AGAIN_MOST_MS.min(AGAIN_FIRST_MS << tries.min(10));
            let tries = tries.saturating_add(1);
            let again = Following { tenant, children: left, until_ms, tries };
            return Ok(group(vec![put(key, expect, &again, Some(now_ms.saturating_add(wait_ms)))]));
        }
        if !left.is_empty() {
            self.stats.children_lost.add(u64::try_from(left.len()).unwrap_or(u64::MAX));
            tracing::error!(tenant, parent = parent.0, children = ?left, "child jobs are given up");
        }
        Ok(group(vec![change(key, expect, To::Deleted)]))
    }

    async fn start_child(&self, tenant: &str, child: &JobName, parent: RunNumber) -> Result<(), EntryError> {
        let started = match self.number_of(tenant, child).await? {
            Some((shard, job)) => self.start_run(shard, job, Cause::Parent(parent), None).await?,
            None => Started::NoJob,
        };
        match started {
            Started::Run(_) => Ok(()),
            Started::NoJob => {
                self.stats.children_lost.add(1);
                tracing::warn!(tenant, %child, "a child job does not exist, and is not run");
                Ok(())
            }
            Started::Contended => {
                Err(EntryError::Unavailable("the child job is being changed again and again".to_owned()))
            }
        }
    }

    /// How long it is known that a run has started a child: as long as the run is kept, and longer than it is tried.
    pub fn child_mark_ms(&self) -> u64 {
        let kept_ms = self.options.keep_succeeded_ms.max(self.options.keep_failed_ms);
        kept_ms.max(2 * CHILDREN_KEPT_MS)
    }
}
