//! Children of runs that have succeeded: what the end of a run leaves behind is done by a look of any process, again and again
//! until each child is started, once.

use crate::book::{Following, Kept, change, following_key, group, put};
use crate::core::Core;
use crate::definition::JobName;
use crate::runs::{Cause, RunNumber};
use crate::starting::Started;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryError, EntryGroup, Expect, To};

/// How long it is tried to start children.
pub(crate) const CHILDREN_KEPT_MS: u64 = 86_400_000;
/// Parents whose children one look starts, all side by side.
const LOOK_MAX: usize = 64;
/// How long a child's shard is waited for: it may lie on another server, and holds up the parent's shard.
const START_WAIT: Duration = Duration::from_secs(1);
/// The wait after children could not be started for the first time; it doubles, up to the longest one.
const AGAIN_FIRST_MS: u64 = 500;
const AGAIN_MOST_MS: u64 = 30_000;

/// Starts children of runs of one shard. Whether all of them were looked at.
pub(crate) async fn start_children(
    core: &Core,
    shard: Shard,
    now_ms: u64,
    mut parents: Vec<(RunNumber, Kept<Following>)>,
) -> Result<bool, EntryError> {
    let is_all = parents.len() <= LOOK_MAX;
    parents.truncate(LOOK_MAX);
    let groups: Vec<EntryGroup> = stream::iter(parents)
        .map(|(parent, following)| async move { core.start_children_of(parent, following, now_ms).await })
        .buffer_unordered(LOOK_MAX)
        .collect()
        .await;
    core.apply(shard, &groups).await?;
    Ok(is_all)
}

impl Core {
    /// Starts the children of a run, each once: the change that notes how far that has come.
    async fn start_children_of(
        &self,
        parent: RunNumber,
        following: Kept<Following>,
        now_ms: u64,
    ) -> EntryGroup {
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
        let (key, expect) = (following_key(parent), Expect::Version(version));
        if !left.is_empty() && until_ms > now_ms {
            let wait_ms = AGAIN_MOST_MS.min(AGAIN_FIRST_MS << tries.min(10));
            let tries = tries.saturating_add(1);
            let again = Following { tenant, children: left, until_ms, tries };
            return group(vec![put(key, expect, &again, Some(now_ms.saturating_add(wait_ms)))]);
        }
        if !left.is_empty() {
            tracing::error!(tenant, parent = parent.0, children = ?left, "child jobs are given up");
        }
        group(vec![change(key, expect, To::Deleted)])
    }

    async fn start_child(&self, tenant: &str, child: &JobName, parent: RunNumber) -> Result<(), EntryError> {
        let started = match self.number_of(tenant, child).await? {
            Some((shard, job)) => self.start_run(shard, job, Cause::Parent(parent), None).await?,
            None => Started::NoJob,
        };
        match started {
            Started::Run(_) => Ok(()),
            Started::NoJob => {
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
