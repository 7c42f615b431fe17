//! The far tier of the scheduler: a log in the data directory, and segments in a folder.

use super::DurabilityAt;
use crate::place;
use anyhow::{Context, Result};
use object_store::local::LocalFileSystem;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use tracing::warn;
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_far::{FarOptions, FarSlots, FarTier, FileLog, OpenFarError};

const AGAIN: Duration = Duration::from_secs(5);

/// Where timers wait that are due later than a horizon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FarAt {
    /// The folder of their segments; it belongs to this process alone. Default: `far` in the data directory.
    pub folder: Option<PathBuf>,
    /// Timers that are due later than this from now wait there: 7,200,000 to 604,800,000. Default 7,200,000.
    pub horizon_ms: u64,
    /// Timers that are loaded from there per second at most: 100 to 10,000,000. Default 50,000.
    pub load_per_s: u64,
}

impl Default for FarAt {
    fn default() -> Self {
        let FarOptions { horizon_ms, load_per_s, .. } = FarOptions::default();
        Self { folder: None, horizon_ms, load_per_s }
    }
}

impl FarAt {
    /// Refuses what cannot be, and names the option.
    pub fn check(&self) -> Result<()> {
        self.options(DurabilityAt::default()).check().context("the options [scheduler.far] cannot be used")
    }

    fn options(&self, durability: DurabilityAt) -> FarOptions {
        let is_synced = durability == DurabilityAt::Machine;
        let (horizon_ms, load_per_s) = (self.horizon_ms, self.load_per_s);
        FarOptions { horizon_ms, load_per_s, is_synced, ..FarOptions::default() }
    }

    /// Opens it in front of a slot store. Waits while the folder has no answer.
    pub async fn open(
        &self,
        data: &Path,
        near: Arc<dyn SlotStore>,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<(Arc<dyn SlotStore>, FarTier)> {
        let folder = self.folder.clone().unwrap_or_else(|| place::far(data));
        let objects = || {
            std::fs::create_dir_all(&folder)?;
            anyhow::Ok(Arc::new(LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true)))
        };
        loop {
            let objects = block_in_place(objects)
                .with_context(|| format!("the folder {} of far timers cannot be opened", folder.display()))?;
            let log = block_in_place(|| FileLog::open(&place::far_log(data)));
            let log = Box::new(log.context("the log of far timers cannot be opened")?);
            match FarTier::open(self.options(durability), log, objects, clock.clone()).await {
                Ok(far) => return Ok((Arc::new(FarSlots::start(near, far.clone())), far)),
                Err(OpenFarError::Objects(error)) => {
                    warn!(%error, "the segments of far timers cannot be read; trying again");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error).context("the far timers cannot be opened"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::SlotsAt;
    use windfall_contract::due::{Added, NewRecord, Route, Shard, TaskAt};

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_due_later_than_the_horizon_and_has_no_key_waits_far_away() {
        let dir = tempfile::tempdir().unwrap();
        let (data, clock) = (dir.path(), Clock::system());
        let durability = DurabilityAt::Machine;
        let near = SlotsAt::Embedded.open(data, 16, durability, &clock).await.unwrap().store;
        let (both, far) = FarAt::default().open(data, near, durability, &clock).await.unwrap();
        let tenant = both.tenant("shop").await.unwrap();
        let route = Route { tenant, target: both.target(tenant, "hook").await.unwrap() };
        let task = |hours: u64| NewRecord {
            due_ms: clock.unix_ms() + hours * 3_600_000,
            route,
            key: None,
            payload: "x".into(),
        };
        let added = both.add(Shard(3), &[task(1), task(100)]).await.unwrap();
        let [Added::Stored(soon), Added::Stored(later)] = added[..] else { panic!("{added:?}") };
        assert!(!soon.is_far() && later.is_far());
        assert_eq!(far.counts(), [(tenant, 1)].into());
        let found = both.get(Shard(3), tenant, &[TaskAt::Id(soon), TaskAt::Id(later)]).await.unwrap();
        let ids: Vec<_> = found.into_iter().flatten().map(|found| found.id).collect();
        assert_eq!(ids, [soon, later]);
        let wrong = FarAt { horizon_ms: 1, ..FarAt::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("[scheduler.far]"));
    }
}
