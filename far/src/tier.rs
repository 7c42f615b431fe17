//! The far tier as a whole: how it is opened, what it holds, and why it may take nothing.

use crate::OpenFarError;
use crate::fail_points::FailPoints;
use crate::log::FarLog;
use crate::manifest::Manifest;
use crate::options::FarOptions;
use crate::probe::keeps_what_is_there;
use crate::row::FarTask;
use crate::segment::{ReadError, Segment};
use crate::state::State;
use crate::stats::{FarCounters, FarGauges, FarStats, FarTenantGauges};
use crate::turns::Turns;
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, watch};
use windfall_contract::Clock;
use windfall_contract::due::{Durability, SlotMinute, StoreError};

/// The folder of the segments.
pub(crate) const SEGMENTS: &str = "segments";

/// The far tier. Clones share one.
#[derive(Clone)]
pub struct FarTier(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub options: FarOptions,
    pub clock: Clock,
    pub log: Box<dyn FarLog>,
    /// Where the segments are, once they have answered.
    pub objects: OnceLock<Arc<dyn ObjectStore>>,
    /// Whether they have.
    pub opened: watch::Sender<bool>,
    pub state: Mutex<State>,
    /// The manifest that was written last. One flush or merge at a time.
    pub manifest: tokio::sync::Mutex<Manifest>,
    /// Drawn at random by each process: no segment has the name of an earlier one, so that nothing that a dead process
    /// had sent, and that arrives late, writes or deletes another's.
    pub run: u64,
    /// The number that the next segment's name gets.
    pub next_segment: AtomicU64,
    /// Whether there may be segments that no manifest names.
    pub has_orphans: AtomicBool,
    /// Whether a manifest was sent last of which nobody knows whether it is there.
    pub is_in_doubt: AtomicBool,
    pub counters: Arc<FarCounters>,
    /// Why nothing is taken, changed or loaded any more until the next start: log and segments do not belong together, or
    /// another process writes the segments.
    pub refused: OnceLock<String>,
    /// The changes that go on.
    pub turns: Turns,
    /// Wakes the loader up.
    pub wake: Notify,
    /// Changes whenever a batch is near.
    pub loaded: watch::Sender<u64>,
    pub fail_points: FailPoints,
}

impl FarTier {
    /// Opens the far tier: reads what is in the log alone, its manifest and its indexes.
    ///
    /// # Errors
    /// [`OpenFarError`].
    pub async fn open(
        options: FarOptions,
        log: Box<dyn FarLog>,
        objects: Arc<dyn ObjectStore>,
        clock: Clock,
    ) -> Result<Self, OpenFarError> {
        let tier = Self::start(options, log, clock).await?;
        tier.attach(objects).await?;
        Ok(tier)
    }

    /// Reads the log alone. Tasks are taken from now on, as far as there is room in memory. What needs the segments is
    /// unavailable until [`attach`](Self::attach) has succeeded.
    ///
    /// # Errors
    /// [`OpenFarError`]; it says nothing of the segments.
    pub async fn start(
        options: FarOptions,
        log: Box<dyn FarLog>,
        clock: Clock,
    ) -> Result<Self, OpenFarError> {
        options.check()?;
        let run = getrandom::u64().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let (manifest, first) = (Manifest::new(log.id()), log.first());
        let inner = Arc::new(Inner {
            options,
            clock,
            log,
            objects: OnceLock::new(),
            opened: watch::Sender::new(false),
            state: Mutex::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            run,
            next_segment: AtomicU64::new(1),
            has_orphans: AtomicBool::new(true),
            is_in_doubt: AtomicBool::new(false),
            counters: Arc::new(FarCounters::default()),
            refused: OnceLock::new(),
            turns: Turns::default(),
            wake: Notify::new(),
            loaded: watch::Sender::new(0),
            fail_points: FailPoints::default(),
        });
        let tier = Self(inner);
        // It may go further back than the manifest says: it is read once more when that is known.
        tier.blocking(move |inner| inner.replay(&mut inner.state.lock(), first)).await??;
        Ok(tier)
    }

    /// Opens the segments: reads the manifest and the indexes. Does nothing where that was done. May be repeated after an
    /// error, and dropped at any moment.
    ///
    /// # Errors
    /// [`OpenFarError`].
    pub async fn attach(&self, objects: Arc<dyn ObjectStore>) -> Result<(), OpenFarError> {
        let attached = self.try_attach(objects).await;
        if let Err(error) = &attached
            && !error.may_pass()
        {
            // What was answered Ok from now on would be in a log that is refused at the next start.
            self.0.refuse(error.to_string());
        }
        attached
    }

    async fn try_attach(&self, objects: Arc<dyn ObjectStore>) -> Result<(), OpenFarError> {
        self.0.check_refused()?;
        let mut manifest = self.0.manifest.lock().await;
        if self.is_open() {
            return Ok(());
        }
        let log = &self.0.log;
        keeps_what_is_there(&*objects, self.0.run).await?;
        let closed_upto = self.0.state.lock().figures.closed_upto;
        let last = Manifest::take_over(&*objects, log.id(), log.is_new(), self.0.run, closed_upto).await?;
        let segments = open_segments(&*objects, &last, &self.0.counters).await?;
        let flushed = last.flushed;
        self.blocking(move |inner| inner.read_from(flushed)).await??;
        {
            let mut state = self.0.state.lock();
            state.segments = Arc::new(segments);
            // The log may say more than a manifest that was written before it.
            state.gone_for_good_upto = state.gone_for_good_upto.max(last.gone_upto.unwrap_or(closed_upto));
            let gone_upto = state.gone_for_good_upto;
            state.forget_upto(gone_upto);
        }
        *manifest = last;
        self.0.objects.get_or_init(|| objects);
        drop(manifest);
        if let Err(error) = self.drop_orphans().await {
            tracing::warn!(%error, "segments that nobody names are deleted later");
        }
        self.0.opened.send_replace(true);
        Ok(())
    }

    /// Whether the segments are open.
    pub fn is_open(&self) -> bool {
        *self.0.opened.borrow()
    }

    /// Waits until the segments are open.
    pub(crate) async fn until_open(&self) {
        let mut opened = self.0.opened.subscribe();
        // The other end is in `self`.
        opened.wait_for(|is_open| *is_open).await.ok();
    }

    /// Where the segments are.
    pub(crate) fn objects(&self) -> Result<&Arc<dyn ObjectStore>, StoreError> {
        self.0.objects.get().ok_or_else(not_open)
    }

    /// Names its log.
    pub(crate) fn log_id(&self) -> u64 {
        self.0.log.id()
    }

    /// What an Ok survives.
    pub fn durability(&self) -> Durability {
        match self.0.options.is_synced {
            true => Durability::Machine,
            false => Durability::Process,
        }
    }

    /// Whether tasks are taken, changed and loaded.
    ///
    /// # Errors
    /// Why they are not.
    pub fn check(&self) -> Result<(), String> {
        if let Some(why) = self.0.refused.get() {
            return Err(format!("{why}; far timers are not taken, changed or loaded until the next start"));
        }
        match self.0.log.has_failed() {
            true => Err("a write to the log of far timers has failed; they are taken, changed and loaded again when what \
                         the log has is in segments, and it goes on in another file"
                .into()),
            false => Ok(()),
        }
    }

    /// How many tasks wait here, by tenant. While an hour is loaded, its tasks count here and near.
    pub fn counts(&self) -> BTreeMap<u16, u64> {
        let mut counts = BTreeMap::new();
        for hour in self.0.state.lock().figures.hours.values() {
            for (tenant, waiting) in &hour.waiting {
                *counts.entry(*tenant).or_default() += waiting;
            }
        }
        counts
    }

    /// How many tasks of each tenant wait here, by its name.
    pub fn tenants(&self) -> Vec<FarTenantGauges> {
        let counts = self.counts();
        let state = self.0.state.lock();
        let mut names: BTreeMap<u16, &String> = BTreeMap::new();
        names.extend(state.names.iter().map(|((tenant, _), (name, _))| (*tenant, name)));
        // A store that was made anew may have given a tenant another number.
        let mut waiting: BTreeMap<&String, u64> = BTreeMap::new();
        for (number, name) in names {
            *waiting.entry(name).or_default() += counts.get(&number).copied().unwrap_or_default();
        }
        let gauges = |(name, waiting): (&String, u64)| FarTenantGauges { tenant: name.clone(), waiting };
        waiting.into_iter().map(gauges).collect()
    }

    /// What was done.
    pub fn stats(&self) -> FarStats {
        self.0.counters.read()
    }

    /// What is held now.
    pub fn gauges(&self) -> FarGauges {
        let waiting = self.counts().values().sum();
        let state = self.0.state.lock();
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        FarGauges {
            waiting,
            segments: wide(state.segments.len()),
            segment_bytes: state.segments.iter().map(|segment| segment.meta.bytes).sum(),
            memory_bytes: wide(state.memory_bytes()),
            log_failed: u64::from(self.0.log.has_failed()),
            refused: u64::from(self.0.refused.get().is_some()),
        }
    }

    /// Runs `work` on a blocking thread. If the caller goes away, it still runs to its end.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

impl Inner {
    /// Takes, changes and loads nothing from now on.
    pub fn refuse(&self, why: String) {
        if self.refused.set(why.clone()).is_ok() {
            tracing::error!(why, "the far tier takes, changes and loads nothing until it is started again");
        }
    }

    /// An error where nothing is to be done any more.
    pub fn check_refused(&self) -> Result<(), StoreError> {
        self.refused.get().map_or(Ok(()), |why| Err(StoreError::Unavailable(why.clone())))
    }
}

async fn open_segments(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
    counters: &FarCounters,
) -> Result<Vec<Arc<Segment>>, OpenFarError> {
    let mut segments = Vec::with_capacity(manifest.segments.len());
    for meta in &manifest.segments {
        match Segment::open(objects, meta.clone()).await {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(ReadError::Store(error)) => return Err(error.into()),
            // The rest of the far tier must not stand still for it.
            Err(error) => {
                counters.segment_lost();
                tracing::error!(segment = %meta.name, tasks = meta.rows, %error, "a segment of the far tier is lost; its tasks will not fire");
            }
        }
    }
    Ok(segments)
}

pub(crate) fn not_open() -> StoreError {
    StoreError::Unavailable("the segments of the far tier have not answered yet; try again later".into())
}

pub(crate) fn segment_name(run: u64, number: u64) -> String {
    Path::from(format!("{SEGMENTS}/{run:016x}-{number:08}.far")).to_string()
}

pub(crate) fn due_ms(slot: SlotMinute, task: &FarTask) -> u64 {
    slot.start_ms() + u64::from(task.offset_ms)
}

pub(crate) fn dead() -> StoreError {
    StoreError::Unavailable("a test has ended the far tier".into())
}
