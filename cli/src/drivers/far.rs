//! The far tier of the scheduler: a log in the data directory, and segments in a folder or in S3.

use super::{Driver, DurabilityAt};
use crate::place;
use anyhow::{Context, Result, bail};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use tracing::warn;
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_far::{FarOptions, FarSlots, FarTier, FileLog, OpenFarError, S3Options};

const AGAIN: Duration = Duration::from_secs(5);

/// Where timers wait that are due later than a horizon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FarAt {
    /// The folder of their segments; it belongs to this process alone. Default, without `s3`: `far` in the data directory.
    pub folder: Option<PathBuf>,
    /// The bucket of their segments, or the folder in it; it belongs to this process alone. Either this or `folder`.
    pub s3: Option<S3Options>,
    /// Timers that are due later than this from now wait there: 7,200,000 to 604,800,000. Default 7,200,000.
    pub horizon_ms: u64,
    /// Timers that are loaded from there per second at most: 100 to 10,000,000. Default 50,000.
    pub load_per_s: u64,
}

impl Default for FarAt {
    fn default() -> Self {
        let FarOptions { horizon_ms, load_per_s, .. } = FarOptions::default();
        Self { folder: None, s3: None, horizon_ms, load_per_s }
    }
}

impl FarAt {
    /// Refuses what cannot be, and names the option.
    pub fn check(&self) -> Result<()> {
        let wrong = "the options [scheduler.far] cannot be used";
        if let Some(s3) = &self.s3 {
            if self.folder.is_some() {
                bail!("{wrong}: folder and s3 are both there, and segments lie in one of them");
            }
            Driver::S3.check()?;
            s3.check().context(wrong)?;
        }
        self.options(DurabilityAt::default()).check().context(wrong)
    }

    /// The place of the segments. Asks no server.
    fn objects(&self, data: &Path) -> Result<Arc<dyn ObjectStore>> {
        if let Some(s3) = &self.s3 {
            return s3_objects(s3);
        }
        let folder = self.folder.clone().unwrap_or_else(|| place::far(data));
        let open = || {
            std::fs::create_dir_all(&folder)?;
            anyhow::Ok(LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true))
        };
        let objects = block_in_place(open)
            .with_context(|| format!("the folder {} of far timers cannot be opened", folder.display()))?;
        Ok(Arc::new(objects))
    }

    fn options(&self, durability: DurabilityAt) -> FarOptions {
        let is_synced = durability == DurabilityAt::Machine;
        let (horizon_ms, load_per_s) = (self.horizon_ms, self.load_per_s);
        FarOptions { horizon_ms, load_per_s, is_synced, ..FarOptions::default() }
    }

    /// Opens it in front of a slot store. Waits while its segments have no answer.
    pub async fn open(
        &self,
        data: &Path,
        near: Arc<dyn SlotStore>,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<(Arc<dyn SlotStore>, FarTier)> {
        loop {
            let objects = self.objects(data)?;
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

#[cfg(feature = "s3")]
fn s3_objects(options: &S3Options) -> Result<Arc<dyn ObjectStore>> {
    options.objects().context("the options [scheduler.far] cannot be used")
}

#[cfg(not(feature = "s3"))]
fn s3_objects(_: &S3Options) -> Result<Arc<dyn ObjectStore>> {
    Driver::S3.absent()
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

    #[test]
    fn segments_lie_in_a_folder_or_in_a_bucket_and_the_key_is_never_printed() {
        let s3 = "s3 = { endpoint = \"http://127.0.0.1:9000\", bucket = \"timers\", access_key_id = \"id\", \
                  secret_access_key = \"hush\", allow_http = true }";
        let far: FarAt = toml::from_str(s3).unwrap();
        assert!(!format!("{far:?}").contains("hush"));
        match far.check() {
            Ok(()) => assert!(Driver::S3.is_built() && far.objects(Path::new("/nowhere")).is_ok()),
            Err(error) => {
                assert!(!Driver::S3.is_built() && error.to_string().contains("without S3"), "{error}")
            }
        }
        let both: FarAt = toml::from_str(&format!("folder = \"/far\"\n{s3}")).unwrap();
        let refused = format!("{:#}", both.check().unwrap_err());
        assert!(refused.contains("[scheduler.far]") && refused.contains("folder and s3"), "{refused}");
        let plain: FarAt = toml::from_str(&s3.replace(", allow_http = true", "")).unwrap();
        let refused = format!("{:#}", plain.check().unwrap_err());
        assert!(!Driver::S3.is_built() || refused.contains("allow_http"), "{refused}");
        for missing in ["bucket", "access_key_id", "secret_access_key"] {
            let without = s3.replace(&format!("{missing} = "), "region = ");
            assert!(toml::from_str::<FarAt>(&without).unwrap_err().to_string().contains(missing));
        }
    }
}
