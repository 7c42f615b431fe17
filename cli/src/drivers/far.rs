//! The far tier of the scheduler: a log in the data directory, and segments in a folder or in S3; or another process that
//! keeps it.

use super::far_keeper::ServiceKeeper;
use super::{Connect, Driver, DurabilityAt};
use crate::place;
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::timeout;
use windfall_client::ClientOptions;
use windfall_contract::Clock;
use windfall_contract::due::{SlotStore, StoreError};
use windfall_far::{
    FarElsewhere, FarOptions, FarSlots, FarTier, FileLog, OpenFarError, S3Options, S3OptionsError,
};

/// Segments that are there answer within this time. Others are waited for in the background.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Where timers wait that are due later than a horizon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FarAt {
    /// The folder of their segments; it belongs to this process alone. Default, without `s3`: `far` in the data directory.
    pub folder: Option<PathBuf>,
    /// The bucket of their segments, or the folder in it; it belongs to this process alone. Either this or `folder`.
    pub s3: Option<S3Options>,
    /// The process that keeps the far timers of a store in Redis, where it is not this one: its addresses, and the key of a
    /// caller with the role `schedule` for every tenant. With it, neither `folder` nor `s3`.
    pub forward_to: Option<ClientOptions>,
    /// Timers that are due later than this from now wait there: 7,200,000 to 604,800,000. Default 7,200,000.
    pub horizon_ms: u64,
    /// Timers that are loaded from there per second at most: 100 to 10,000,000. Default 50,000.
    pub load_per_s: u64,
    /// How long an hour's timers are kept after the hour has passed, for a backfill: 0 to 2,592,000,000. Default
    /// 86,400,000.
    pub keep_ms: u64,
}

impl Default for FarAt {
    fn default() -> Self {
        let FarOptions { horizon_ms, load_per_s, keep_ms, .. } = FarOptions::default();
        Self { folder: None, s3: None, forward_to: None, horizon_ms, load_per_s, keep_ms }
    }
}

impl FarAt {
    /// Refuses what cannot be, and names the option.
    pub fn check(&self) -> Result<()> {
        let wrong = "the options [scheduler.far] cannot be used";
        if self.forward_to.is_some() && (self.folder.is_some() || self.s3.is_some()) {
            bail!(
                "{wrong}: with forward_to another process has the segments, so neither folder nor s3 may be there"
            );
        }
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
        let folder = self.folder(data);
        let open = || {
            std::fs::create_dir_all(&folder)?;
            anyhow::Ok(LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true))
        };
        let objects = block_in_place(open)
            .with_context(|| format!("the folder {} of far timers cannot be opened", folder.display()))?;
        Ok(Arc::new(objects))
    }

    fn folder(&self, data: &Path) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| place::far(data))
    }

    /// What processes had written of segments that are not whole.
    fn staged(&self, data: &Path) -> std::io::Result<Vec<PathBuf>> {
        match self.s3 {
            Some(_) => Ok(Vec::new()),
            None => block_in_place(|| staged(&self.folder(data).join("segments"))),
        }
    }

    fn options(&self, durability: DurabilityAt) -> FarOptions {
        let is_synced = durability == DurabilityAt::Machine;
        let (horizon_ms, load_per_s, keep_ms) = (self.horizon_ms, self.load_per_s, self.keep_ms);
        FarOptions { horizon_ms, load_per_s, keep_ms, is_synced, ..FarOptions::default() }
    }

    /// Opens it in front of a slot store, also where its segments have no answer. `is_shared`: other processes may use the
    /// store as well.
    pub async fn open(
        &self,
        data: &Path,
        near: Arc<dyn SlotStore>,
        is_shared: bool,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<(Arc<dyn SlotStore>, Option<Far>)> {
        if let Some(keeper) = &self.forward_to {
            let keeper = Arc::new(ServiceKeeper::open(keeper.clone())?);
            let store = FarElsewhere::new(near, Some(keeper), self.horizon_ms, clock.clone());
            return Ok((Arc::new(store), None));
        }
        let log = block_in_place(|| FileLog::open(&place::far_log(data)));
        let log = Box::new(log.context("the log of far timers cannot be opened")?);
        let tier = FarTier::start(self.options(durability), log, clock.clone()).await;
        let tier = tier.context("the far timers cannot be opened")?;
        let slots = Arc::new(match is_shared {
            true => FarSlots::start_shared(near, tier.clone()),
            false => FarSlots::start(near, tier.clone()),
        });
        let segments = Segments {
            at: self.clone(),
            data: data.to_owned(),
            slots: Arc::clone(&slots),
            tier: tier.clone(),
        };
        let away: Option<Arc<dyn Connect>> = match timeout(AT_ONCE, segments.connect()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) if is_wrong(&error) => return Err(error),
            Ok(Err(_)) | Err(_) => Some(Arc::new(segments)),
        };
        Ok((slots, Some(Far { tier, away })))
    }
}

/// The files of segments that are not whole: `NAME.far#NUMBER`.
fn staged(segments: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(segments) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut staged = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.split_once(".far#")).map(|(_, number)| number);
        if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
            staged.push(path);
        }
    }
    Ok(staged)
}

/// Deletes them. Those that stay are deleted at the next start.
fn delete_staged(staged: Vec<PathBuf>) {
    for path in staged {
        let file = path.display();
        match std::fs::remove_file(&path) {
            Ok(()) => tracing::info!(%file, "an unfinished segment of a process that has died is deleted"),
            Err(error) => tracing::warn!(%file, %error, "an unfinished segment cannot be deleted"),
        }
    }
}

/// The far tier of a process.
#[derive(Clone)]
pub struct Far {
    /// The tier, which takes, keeps and loads timers.
    pub tier: FarTier,
    /// What opens its segments, where they had no answer. Until then it takes timers, and does nothing else.
    pub away: Option<Arc<dyn Connect>>,
}

/// A store that others use as well, of a process without options of far timers.
pub fn far_elsewhere(near: Arc<dyn SlotStore>, clock: &Clock) -> Arc<dyn SlotStore> {
    Arc::new(FarElsewhere::new(near, None, FarOptions::default().horizon_ms, clock.clone()))
}

/// Opens the segments.
struct Segments {
    at: FarAt,
    data: PathBuf,
    slots: Arc<FarSlots>,
    tier: FarTier,
}

#[async_trait]
impl Connect for Segments {
    async fn connect(&self) -> Result<()> {
        self.slots.claim().await.context("the far timers cannot be kept here")?;
        let objects = self.at.objects(&self.data)?;
        // Of earlier processes: this one writes nothing there before its segments are open.
        let staged = match self.tier.is_open() {
            true => Vec::new(),
            false => self.at.staged(&self.data).context("the folder of far timers cannot be read")?,
        };
        self.tier.attach(objects).await.context("the segments of far timers cannot be opened")?;
        // Only now is it sure that none of those processes can still finish one of them.
        block_in_place(|| delete_staged(staged));
        Ok(())
    }
}

/// Whether waiting does not mend it.
fn is_wrong(error: &anyhow::Error) -> bool {
    let is_option = error.chain().any(|cause| cause.is::<S3OptionsError>());
    let opening = error.chain().find_map(|cause| cause.downcast_ref::<OpenFarError>());
    let claim = error.chain().find_map(|cause| cause.downcast_ref::<StoreError>());
    is_option
        || matches!(claim, Some(StoreError::Unusable(_)))
        || opening.is_some_and(|error| !error.may_pass())
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
        let segments = place::far(data).join("segments");
        std::fs::create_dir_all(&segments).unwrap();
        let staged = segments.join("0123-1.far#7");
        std::fs::write(&staged, "half").unwrap();
        let (both, far) = FarAt::default().open(data, near, false, durability, &clock).await.unwrap();
        let far = far.unwrap();
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
        assert!(far.away.is_none() && !staged.exists());
        assert_eq!(far.tier.counts(), [(tenant, 1)].into());
        let found = both.get(Shard(3), tenant, &[TaskAt::Id(soon), TaskAt::Id(later)]).await.unwrap();
        let ids: Vec<_> = found.into_iter().flatten().map(|found| found.id).collect();
        assert_eq!(ids, [soon, later]);
        let wrong = FarAt { horizon_ms: 1, ..FarAt::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("[scheduler.far]"));
    }

    /// A file in the place of the folder, and a port on which nobody listens.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_starts_without_its_segments_and_takes_them_up_when_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (data, clock) = (dir.path(), Clock::system());
        std::fs::write(place::far(data), "no folder").unwrap();
        let durability = DurabilityAt::Process;
        let near = SlotsAt::Embedded.open(data, 16, durability, &clock).await.unwrap().store;
        let (both, far) = FarAt::default().open(data, near, false, durability, &clock).await.unwrap();
        let far = far.unwrap();
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
        assert!(both.get(Shard(3), tenant, &[TaskAt::Id(soon)]).await.unwrap()[0].is_some());
        assert!(both.get(Shard(3), tenant, &[TaskAt::Id(later)]).await.is_err());
        let away = far.away.expect("it is waited for");
        let said = format!("{:#}", away.connect().await.unwrap_err());
        assert!(said.contains("far timers cannot be opened"), "{said}");
        std::fs::remove_file(place::far(data)).unwrap();
        away.connect().await.unwrap();
        let found = both.get(Shard(3), tenant, &[TaskAt::Id(soon), TaskAt::Id(later)]).await.unwrap();
        assert_eq!(found.into_iter().flatten().count(), 2);
    }

    #[cfg(feature = "s3")]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_bucket_that_is_away_keeps_no_process_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let (data, clock, durability) = (dir.path(), Clock::system(), DurabilityAt::Process);
        let s3 = "s3 = { endpoint = \"http://127.0.0.1:1\", bucket = \"timers\", access_key_id = \"id\", \
                  secret_access_key = \"hush\" }";
        let near = SlotsAt::Embedded.open(data, 16, durability, &clock).await.unwrap().store;
        let at: FarAt = toml::from_str(s3).unwrap();
        let (_both, far) = at.open(data, near, false, durability, &clock).await.unwrap();
        let said = format!("{:#}", far.unwrap().away.expect("it is waited for").connect().await.unwrap_err());
        assert!(said.contains("127.0.0.1:1") && !said.contains("hush"), "{said}");
    }

    /// Segments of another log are there, and will be there tomorrow.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_of_another_log_is_refused_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (clock, durability) = (Clock::system(), DurabilityAt::Process);
        let at = FarAt { folder: Some(dir.path().join("shared")), ..FarAt::default() };
        let staged = dir.path().join("shared/segments/0123-1.far#7");
        for (name, is_refused) in [("first", false), ("second", true)] {
            let data = dir.path().join(name);
            std::fs::create_dir(&data).unwrap();
            let near = SlotsAt::Embedded.open(&data, 16, durability, &clock).await.unwrap().store;
            let opened = at.open(&data, near, false, durability, &clock).await;
            assert_eq!(
                opened.as_ref().is_err_and(|error| format!("{error:#}").contains("far log")),
                is_refused
            );
            if !is_refused {
                std::fs::create_dir_all(staged.parent().unwrap()).unwrap();
                std::fs::write(&staged, "the first one writes this").unwrap();
            }
        }
        assert!(staged.exists(), "a process that is refused deletes nothing");
    }

    /// Two processes on one store, each with a log of its own.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_second_keeper_of_one_store_is_refused_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (clock, durability) = (Clock::system(), DurabilityAt::Process);
        let near = SlotsAt::Embedded.open(dir.path(), 16, durability, &clock).await.unwrap().store;
        for (name, is_refused) in [("first", false), ("second", true), ("first", false)] {
            let data = dir.path().join(name);
            let opened = FarAt::default().open(&data, Arc::clone(&near), true, durability, &clock).await;
            let said = opened.as_ref().err().map(|error| format!("{error:#}"));
            assert_eq!(said.is_some_and(|said| said.contains("one process keeps")), is_refused);
            drop(opened);
            // A blocking thread may still have the log for a moment.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let forward = "forward_to = { endpoints = [\"http://127.0.0.1:1\"], bearer_key = \"hush\" }";
        let at: FarAt = toml::from_str(forward).unwrap();
        assert!(at.check().is_ok() && !format!("{at:?}").contains("hush"));
        let (_, far) = at.open(dir.path(), near, true, durability, &clock).await.unwrap();
        assert!(far.is_none());
        let both: FarAt = toml::from_str(&format!("folder = \"/far\"\n{forward}")).unwrap();
        assert!(format!("{:#}", both.check().unwrap_err()).contains("forward_to"));
    }

    #[test]
    fn segments_lie_in_a_folder_or_in_a_bucket_and_the_key_is_never_printed() {
        let s3 = "s3 = { endpoint = \"http://127.0.0.1:9000\", bucket = \"timers\", access_key_id = \"id\", \
                  secret_access_key = \"hush\" }";
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
        let elsewhere: FarAt = toml::from_str(&s3.replace("127.0.0.1", "10.0.0.5")).unwrap();
        let refused = format!("{:#}", elsewhere.check().unwrap_err());
        assert!(!Driver::S3.is_built() || refused.contains("plaintext = true"), "{refused}");
        for missing in ["bucket", "access_key_id", "secret_access_key"] {
            let without = s3.replace(&format!("{missing} = "), "region = ");
            assert!(toml::from_str::<FarAt>(&without).unwrap_err().to_string().contains(missing));
        }
    }
}
