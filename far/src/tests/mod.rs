//! The far tier beside an embedded slot store, on a clock and an object store that a test sets.

mod concurrent;
mod early;
mod faults;
mod late;
mod list;
mod model;
mod objects;
mod past;
mod slow;

use crate::fail_points::FailPoint;
use crate::loader::Reading;
use crate::{FarChanged, FarFound, FarLog, FarOptions, FarTier, FileLog, LogError, OpenFarError};
use bytes::Bytes;
use objects::{FaultyObjects, Puts};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tempfile::TempDir;
use windfall_contract::Clock;
use windfall_contract::due::{
    Change, Changed, Found, Moved, NewRecord, Route, Shard, SlotStore, StoreError, TaskAt, TaskId, Waiting,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const START_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;
const TENANT: u16 = 1;
const ROUTE: Route = Route { tenant: TENANT, target: 2 };

/// A far tier, and what survives its death.
struct World {
    dir: TempDir,
    disk: Arc<Disk>,
    now_ms: Arc<AtomicU64>,
    objects: Arc<FaultyObjects>,
    near: Arc<EmbeddedSlots>,
    far: FarTier,
    reading: Option<Reading>,
    options: FarOptions,
}

/// The disk of the log.
#[derive(Default)]
struct Disk {
    /// Up to where the log survives the death of the machine.
    synced: AtomicU64,
    /// Whether it syncs nothing.
    fails: AtomicBool,
}

fn options() -> FarOptions {
    FarOptions {
        flush_bytes: 64 << 10,
        memory_bytes_max: 1 << 20,
        merge_segments: 3,
        keep_ms: 0,
        ..FarOptions::default()
    }
}

impl World {
    async fn new() -> Self {
        Self::with(options()).await
    }

    async fn with(options: FarOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let objects = Arc::new(FaultyObjects::new(&dir.path().join("objects")));
        let slots = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
        let near = EmbeddedSlots::open(&dir.path().join("near"), &slots, clock(&now_ms)).unwrap();
        let disk = Arc::new(Disk::default());
        let far = open(dir.path(), &disk, &objects, &now_ms, &options).await.unwrap();
        Self { dir, disk, now_ms, objects, near, far, reading: None, options }
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
    }

    /// The process of the far tier is killed, and another one begins.
    async fn restart(self) -> Self {
        self.try_restart().await.unwrap()
    }

    async fn try_restart(self) -> Result<Self, OpenFarError> {
        let Self { dir, disk, now_ms, objects, near, far, options, .. } = self;
        drop(far);
        let far = open(dir.path(), &disk, &objects, &now_ms, &options).await?;
        Ok(Self { dir, disk, now_ms, objects, near, far, reading: None, options })
    }

    /// The machine dies: what of the log was not synced is gone.
    async fn restart_machine(self) -> Self {
        let Self { dir, disk, now_ms, objects, near, far, options, .. } = self;
        drop(far);
        drop(open_log(dir.path()).await);
        let parts = std::fs::read_dir(dir.path().join("log")).unwrap().map(|entry| entry.unwrap().path());
        let start_of = |path: &Path| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let last = parts.filter_map(|path| Some((start_of(&path)?, path))).max().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(last.1).unwrap();
        file.set_len(16 + disk.synced.load(SeqCst).saturating_sub(last.0)).unwrap();
        let far = open(dir.path(), &disk, &objects, &now_ms, &options).await.unwrap();
        Self { dir, disk, now_ms, objects, near, far, reading: None, options }
    }

    async fn add(&self, shard: u16, due_ms: u64, payload: &str) -> Result<TaskId, StoreError> {
        let task = NewRecord { due_ms, route: ROUTE, key: None, payload: payload.to_owned().into() };
        let added = self.far.add(Shard(shard), vec![task]).await?;
        Ok(added[0].expect("the hour is not closed"))
    }

    /// As a caller sees it: the far tier is asked first.
    async fn change(&mut self, id: TaskId, to: Option<Moved>) -> Result<Changed, StoreError> {
        let far = self.far.clone();
        let changing = far.change(TENANT, id, to.clone());
        tokio::pin!(changing);
        let changed = loop {
            tokio::select! {
                biased;
                changed = &mut changing => break changed?,
                // A move waits for the loader.
                turned = self.far.load_turn(&*self.near, &mut self.reading) => {
                    if let Err(error) = turned {
                        self.reading = None;
                        if self.far.0.fail_points.is_dead() {
                            return Err(error);
                        }
                    }
                    tokio::task::yield_now().await;
                }
            }
        };
        match changed {
            FarChanged::Here(changed) => Ok(changed),
            FarChanged::Near | FarChanged::MovedNear => {
                let change = [Change { tenant: TENANT, at: TaskAt::Id(id), to }];
                let changed = self.near.change(id.shard, &change).await?;
                self.far.note_changes(id.shard, &change, &changed).await?;
                Ok(changed[0])
            }
        }
    }

    async fn get(&self, id: TaskId) -> Result<Option<Found>, StoreError> {
        match self.far.get(TENANT, id).await? {
            FarFound::Here(found) => Ok(Some(found)),
            FarFound::Near => Ok(self.near.get(id.shard, TENANT, &[TaskAt::Id(id)]).await?.remove(0)),
        }
    }

    /// Loads what is to be loaded by now.
    async fn load(&mut self) -> Result<(), StoreError> {
        loop {
            match self.far.load_turn(&*self.near, &mut self.reading).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    self.reading = None;
                    return Err(error);
                }
            }
        }
    }

    /// What waits near: first id, due time, payload, in the order of the first ids.
    async fn near_tasks(&self) -> Vec<(TaskId, u64, String)> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.near.list(TENANT, after, 1_000).await.unwrap();
            all.extend(page.tasks.into_iter().map(|found| {
                assert_eq!(found.state, Waiting::Waiting);
                let due_ms = found.id.slot.start_ms() + u64::from(found.record.offset_ms);
                let payload = String::from_utf8(found.record.payload.to_vec()).unwrap();
                (found.record.first_id.unwrap_or(found.id), due_ms, payload)
            }));
            after = page.next;
            if after.is_none() {
                all.sort();
                return all;
            }
        }
    }

    fn die_at(&self, point: FailPoint, nth: u32) {
        self.far.0.fail_points.die_at(point, nth);
    }

    fn waiting(&self) -> u64 {
        self.far.counts().get(&TENANT).copied().unwrap_or(0)
    }
}

fn clock(now_ms: &Arc<AtomicU64>) -> Clock {
    let now_ms = Arc::clone(now_ms);
    Clock::from_unix_ms(move || now_ms.load(SeqCst))
}

async fn open_log(dir: &Path) -> FileLog {
    loop {
        // A blocking thread of the dead one may still have it for a moment.
        match FileLog::open(&dir.join("log")) {
            Ok(log) => return log,
            Err(LogError::InUse(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn open(
    dir: &Path,
    disk: &Arc<Disk>,
    objects: &Arc<FaultyObjects>,
    now_ms: &Arc<AtomicU64>,
    options: &FarOptions,
) -> Result<FarTier, OpenFarError> {
    let log = SyncedLog { inner: open_log(dir).await, disk: Arc::clone(disk) };
    FarTier::open(options.clone(), Box::new(log), Arc::clone(objects) as _, clock(now_ms)).await
}

/// Says up to where the log was synced.
struct SyncedLog {
    inner: FileLog,
    disk: Arc<Disk>,
}

impl SyncedLog {
    fn ask(&self) -> Result<(), LogError> {
        match self.disk.fails.load(SeqCst) {
            true => Err(LogError::Io { place: "the disk".into(), what: "a test".into() }),
            false => Ok(()),
        }
    }
}

impl FarLog for SyncedLog {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    fn is_new(&self) -> bool {
        self.inner.is_new()
    }

    fn first(&self) -> u64 {
        self.inner.first()
    }

    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    fn append(&self, frame: &[u8]) -> Result<u64, LogError> {
        self.inner.append(frame)
    }

    fn end(&self) -> u64 {
        self.inner.end()
    }

    fn sync(&self, position: u64) -> Result<(), LogError> {
        if position > self.disk.synced.load(SeqCst) {
            self.ask().inspect_err(|error| self.inner.fail(error))?;
        }
        self.inner.sync(position)?;
        self.disk.synced.fetch_max(position, SeqCst);
        Ok(())
    }

    fn begin_part(&self) -> Result<u64, LogError> {
        self.ask().inspect_err(|error| self.inner.fail(error))?;
        let start = self.inner.begin_part()?;
        self.disk.synced.fetch_max(start, SeqCst);
        Ok(start)
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }

    fn begin_anew(&self, frames: &[Bytes]) -> Result<u64, LogError> {
        self.ask()?;
        let start = self.inner.begin_anew(frames)?;
        self.disk.synced.fetch_max(self.inner.end(), SeqCst);
        Ok(start)
    }

    fn go_on_from(&self, position: u64) {
        self.inner.go_on_from(position);
    }

    fn forget(&self, position: u64) -> Result<(), LogError> {
        self.inner.forget(position)
    }

    fn replay(
        &self,
        position: u64,
        each: &mut dyn FnMut(Bytes) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.inner.replay(position, each)
    }
}

#[tokio::test]
async fn a_task_keeps_its_id_from_the_log_to_the_slot_store() {
    let mut world = World::new().await;
    let due_ms = START_MS + 30 * HOUR_MS + 5;
    assert!(world.far.takes(due_ms) && !world.far.takes(START_MS + HOUR_MS));
    let ids = [
        world.add(3, due_ms, "fires").await.unwrap(),
        world.add(3, due_ms, "cancelled far").await.unwrap(),
        world.add(3, due_ms + HOUR_MS, "cancelled near").await.unwrap(),
        world.add(4, due_ms, "changed").await.unwrap(),
    ];
    let cancelled = Changed::Done(ids[1]);
    assert_eq!(world.change(ids[1], None).await, Ok(cancelled));
    let other = world.far.change(9, ids[0], None).await;
    assert_eq!(other, Ok(FarChanged::Near), "another tenant's");
    world.far.flush(0).await.unwrap();
    assert_eq!(world.change(ids[1], None).await, Ok(Changed::Cancelled));
    let to = Moved { due_ms: None, payload: Some("anew".into()) };
    assert_eq!(world.change(ids[3], Some(to.clone())).await, Ok(Changed::Done(ids[3])));
    assert_eq!(world.change(ids[3], Some(to)).await, Ok(Changed::Done(ids[3])), "asked again");
    assert_eq!(world.waiting(), 3);
    let mut world = world.restart().await;
    assert_eq!(world.waiting(), 3);
    for (id, payload) in [(ids[0], "fires"), (ids[2], "cancelled near"), (ids[3], "anew")] {
        let found = world.get(id).await.unwrap().unwrap();
        assert_eq!((found.id, found.state, found.record.payload), (id, Waiting::Waiting, payload.into()));
    }
    assert_eq!(world.near_tasks().await, []);
    world.wait_ms(30 * HOUR_MS);
    world.load().await.unwrap();
    assert!(!world.far.takes(due_ms + HOUR_MS) && world.waiting() == 0);
    for id in [ids[0], ids[2], ids[3]] {
        assert_eq!(world.get(id).await.unwrap().unwrap().record.first_id, Some(id));
    }
    let moved = Moved { due_ms: Some(due_ms + 9 * HOUR_MS), payload: None };
    assert!(matches!(world.change(ids[3], Some(moved)).await, Ok(Changed::Done(_))));
    assert!(matches!(world.change(ids[2], None).await, Ok(Changed::Done(_))));
    let expected = [(ids[0], due_ms, "fires".into()), (ids[3], due_ms + 9 * HOUR_MS, "anew".into())];
    assert_eq!(world.near_tasks().await, expected);
    world.far.compact().await.unwrap();
    assert_eq!(world.far.gauges().segments, 0, "what is over is deleted");
    assert_eq!(world.objects.names("segments"), Vec::<String>::new());
}

#[tokio::test]
async fn a_task_that_is_moved_is_near_with_its_id() {
    let mut world = World::new().await;
    let due_ms = START_MS + 30 * HOUR_MS;
    let id = world.add(5, due_ms, "moves").await.unwrap();
    for (hours, payload) in [(3, None), (60, Some("again".into()))] {
        let to = Moved { due_ms: Some(START_MS + hours * HOUR_MS), payload };
        assert!(matches!(world.change(id, Some(to)).await, Ok(Changed::Done(_))));
        let found = world.get(id).await.unwrap().unwrap();
        assert_eq!((found.state, found.record.first_id), (Waiting::Waiting, Some(id)));
    }
    let mut world = world.restart().await;
    assert_eq!(world.near_tasks().await, [(id, START_MS + 60 * HOUR_MS, "again".into())]);
    world.wait_ms(40 * HOUR_MS);
    world.load().await.unwrap();
    assert_eq!(world.near_tasks().await.len(), 1, "its old place is empty");
    assert!(matches!(world.change(id, None).await, Ok(Changed::Done(_))));
    assert_eq!(world.change(id, None).await, Ok(Changed::Cancelled));
}
