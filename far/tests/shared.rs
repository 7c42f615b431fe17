//! Several processes on one slot store: one keeps the far tier, and the others ask it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use object_store::memory::InMemory;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Change, Changed, Durability, Found, Moved, NewRecord, Route, Shard, SlotStore, StoreError, TaskAt,
    TaskId, TaskKey, Waiting,
};
use windfall_far::{FarElsewhere, FarKeeper, FarNamedPage, FarOptions, FarSlots, FarTier, FileLog};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const START_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const SHARD: Shard = Shard(3);

/// The keeper's process, as the others reach it.
struct Keeper {
    slots: FarSlots,
    is_away: AtomicBool,
    refuses: AtomicBool,
    /// Of the changes, in the order in which they came.
    numbers: Mutex<Vec<(TaskId, u64)>>,
}

impl Keeper {
    fn ask(&self) -> Result<(), StoreError> {
        match self.is_away.load(SeqCst) {
            true => Err(StoreError::Unavailable("the keeper is away".into())),
            false => Ok(()),
        }
    }

    async fn target(&self, found: &Found) -> Result<String, StoreError> {
        let names = self.slots.names(found.record.route).await?;
        Ok(names.map_or(String::new(), |(_, target)| target))
    }
}

#[async_trait]
impl FarKeeper for Keeper {
    async fn add(
        &self,
        tenant: &str,
        tasks: Vec<(String, NewRecord)>,
        _durability: Durability,
    ) -> Result<Vec<Option<TaskId>>, StoreError> {
        self.ask()?;
        if self.refuses.load(SeqCst) {
            return Ok(vec![None; tasks.len()]);
        }
        let tenant = self.slots.tenant(tenant).await?;
        let mut ids = Vec::new();
        for (target, task) in tasks {
            let route = Route { tenant, target: self.slots.target(tenant, &target).await? };
            // Its own shards.
            match self.slots.add(Shard(9), &[NewRecord { route, ..task }]).await?[0] {
                Added::Stored(id) | Added::Exists(id) => ids.push(Some(id)),
            }
        }
        Ok(ids)
    }

    async fn change(
        &self,
        tenant: &str,
        id: TaskId,
        to: Option<Moved>,
        number: u64,
    ) -> Result<Changed, StoreError> {
        self.numbers.lock().unwrap().push((id, number));
        self.ask()?;
        let tenant = self.slots.tenant(tenant).await?;
        let change = Change { tenant, at: TaskAt::Id(id), to };
        Ok(self.slots.change(id.shard, &[change]).await?[0])
    }

    async fn get(&self, tenant: &str, id: TaskId) -> Result<Option<(String, Found)>, StoreError> {
        self.ask()?;
        let tenant = self.slots.tenant(tenant).await?;
        let Some(found) = self.slots.get(id.shard, tenant, &[TaskAt::Id(id)]).await?.remove(0) else {
            return Ok(None);
        };
        Ok(Some((self.target(&found).await?, found)))
    }

    async fn list(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<FarNamedPage, StoreError> {
        self.ask()?;
        let tenant = self.slots.tenant(tenant).await?;
        let page = self.slots.list_far(tenant, after, limit).await?;
        let mut tasks = Vec::new();
        for found in page.tasks {
            tasks.push((self.target(&found).await?, found));
        }
        Ok(FarNamedPage { tasks, next: page.next })
    }
}

struct Fleet {
    dir: tempfile::TempDir,
    now_ms: Arc<AtomicU64>,
    near: Arc<EmbeddedSlots>,
    keeper: Arc<Keeper>,
    far: FarTier,
    other: FarElsewhere,
    route: Route,
}

fn clock(now_ms: &Arc<AtomicU64>) -> Clock {
    let now_ms = Arc::clone(now_ms);
    Clock::from_unix_ms(move || now_ms.load(SeqCst))
}

async fn tier(log: &Path, now_ms: &Arc<AtomicU64>) -> FarTier {
    let log = Box::new(FileLog::open(log).unwrap());
    FarTier::open(FarOptions::default(), log, Arc::new(InMemory::new()), clock(now_ms)).await.unwrap()
}

impl Fleet {
    async fn new() -> Self {
        let (dir, now_ms) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(START_MS)));
        let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
        let near = EmbeddedSlots::open(&dir.path().join("near"), &options, clock(&now_ms)).unwrap();
        let far = tier(&dir.path().join("log"), &now_ms).await;
        let slots = FarSlots::start_shared(Arc::clone(&near) as _, far.clone());
        slots.claim().await.unwrap();
        let (is_away, refuses, numbers) = Default::default();
        let keeper = Arc::new(Keeper { slots, is_away, refuses, numbers });
        let asks = Arc::clone(&keeper) as Arc<dyn FarKeeper>;
        let other = FarElsewhere::new(Arc::clone(&near) as _, Some(asks), 2 * HOUR_MS, clock(&now_ms));
        // Numbers of tenants are not those of targets.
        near.tenant("nobody").await.unwrap();
        let tenant = other.tenant("shop").await.unwrap();
        other.target(tenant, "first").await.unwrap();
        let route = Route { tenant, target: other.target(tenant, "hook").await.unwrap() };
        Self { dir, now_ms, near, keeper, far, other, route }
    }

    fn task(&self, hours: u64, payload: &str) -> NewRecord {
        let due_ms = START_MS + hours * HOUR_MS + 7;
        NewRecord { due_ms, route: self.route, key: None, payload: payload.to_owned().into() }
    }

    async fn change(&self, id: TaskId, to: Option<Moved>) -> Result<Changed, StoreError> {
        let change = Change { tenant: self.route.tenant, at: TaskAt::Id(id), to };
        Ok(self.other.change(id.shard, &[change]).await?[0])
    }

    async fn get(&self, id: TaskId) -> Result<Option<Found>, StoreError> {
        Ok(self.other.get(id.shard, self.route.tenant, &[TaskAt::Id(id)]).await?.remove(0))
    }

    /// Time passes, and the keeper loads what is due soon, until so many are left.
    async fn wait(&self, hours: u64, left: u64) {
        self.now_ms.fetch_add(hours * HOUR_MS, SeqCst);
        let began = Instant::now();
        while self.far.gauges().waiting != left {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", self.far.gauges());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn ids(added: &[Added]) -> Vec<TaskId> {
    let id = |added: &Added| match added {
        Added::Stored(id) | Added::Exists(id) => *id,
    };
    added.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_asks_the_keeper_adds_finds_changes_and_cancels_far_tasks() {
    let fleet = Fleet::new().await;
    let key = Some(TaskKey::new(b"key").unwrap());
    let (shard, keyed) =
        (TaskKey::new(b"key").unwrap().shard(fleet.route.tenant, 16), fleet.task(30, "keyed"));
    let keyed = fleet.other.add(shard, &[NewRecord { key, ..keyed }]).await.unwrap();
    assert!(!ids(&keyed)[0].is_far(), "keys are unique near");
    let tasks = [1, 30, 1, 40, 50].map(|hours| fleet.task(hours, &format!("in {hours}")));
    let all = ids(&fleet.other.add(SHARD, &tasks).await.unwrap());
    assert_eq!(all.iter().map(TaskId::is_far).collect::<Vec<_>>(), [false, true, false, true, true]);
    for (id, task) in all.iter().zip(&tasks) {
        let found = fleet.get(*id).await.unwrap().unwrap();
        assert_eq!((found.id, found.record.route), (*id, fleet.route));
        assert_eq!(found.record.payload, task.payload);
    }
    // Cancelled far, and asked again after an answer that got lost.
    assert_eq!(fleet.change(all[1], None).await, Ok(Changed::Done(all[1])));
    assert_eq!(fleet.change(all[1], None).await, Ok(Changed::Cancelled));
    assert_eq!(fleet.get(all[1]).await.unwrap().map(|found| found.state), Some(Waiting::Cancelled));
    let to = Moved { due_ms: None, payload: Some("anew".into()) };
    assert_eq!(fleet.change(all[3], Some(to)).await, Ok(Changed::Done(all[3])));
    let later = ids(&fleet.other.add(SHARD, &[fleet.task(90, "in 90")]).await.unwrap())[0];
    fleet.wait(48, 2).await;
    // Loaded by now: cancelled near, by the id of the far tier, and through the keeper as well.
    assert_eq!(fleet.get(all[3]).await.unwrap().unwrap().record.payload, "anew");
    assert!(matches!(fleet.change(all[4], None).await, Ok(Changed::Done(_))));
    // What was not loaded is listed by the keeper.
    let far = fleet.other.list_far(fleet.route.tenant, None, 100).await.unwrap();
    let payloads: Vec<_> = far.tasks.iter().map(|found| (found.id, found.record.route)).collect();
    assert_eq!((payloads, far.next), (vec![(later, fleet.route)], None));
    let near = fleet.near.list(fleet.route.tenant, None, 100).await.unwrap().tasks;
    let mut payloads: Vec<_> = near.iter().map(|found| found.record.payload.clone()).collect();
    payloads.sort();
    assert_eq!(payloads, ["anew", "in 1", "in 1", "keyed"]);
}

/// Whatever it is that cannot be said, "there is no such task" is never the answer, and a cancel is never acknowledged
/// that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_the_keeper_knows_is_unavailable_without_it() {
    let fleet = Fleet::new().await;
    let far = ids(&fleet.other.add(SHARD, &[fleet.task(30, "far")]).await.unwrap())[0];
    fleet.keeper.is_away.store(true, SeqCst);
    assert!(fleet.other.add(SHARD, &[fleet.task(30, "more")]).await.is_err());
    assert!(fleet.get(far).await.is_err() && fleet.change(far, None).await.is_err());
    let near = ids(&fleet.other.add(SHARD, &[fleet.task(1, "near")]).await.unwrap())[0];
    assert_eq!(fleet.change(near, None).await, Ok(Changed::Done(near)));
    // What the keeper has surely not stored is stored near.
    fleet.keeper.is_away.store(false, SeqCst);
    fleet.keeper.refuses.store(true, SeqCst);
    let refused = ids(&fleet.other.add(SHARD, &[fleet.task(30, "refused")]).await.unwrap())[0];
    assert!(!refused.is_far() && fleet.get(refused).await.unwrap().is_some());
    // A process that knows of no keeper adds near, and finds what is near.
    let alone = FarElsewhere::new(Arc::clone(&fleet.near) as _, None, 2 * HOUR_MS, clock(&fleet.now_ms));
    let added = ids(&alone.add(SHARD, &[fleet.task(30, "stays near")]).await.unwrap())[0];
    assert!(!added.is_far());
    let (tenant, at) = (fleet.route.tenant, [TaskAt::Id(far)]);
    let cancel = Change { tenant, at: TaskAt::Id(far), to: None };
    for said in [
        alone.get(far.shard, tenant, &at).await.unwrap_err(),
        alone.change(far.shard, std::slice::from_ref(&cancel)).await.unwrap_err(),
    ] {
        assert!(matches!(&said, StoreError::Unavailable(what) if what.contains("forward_to")), "{said}");
    }
    fleet.wait(30, 0).await;
    assert!(alone.get(far.shard, tenant, &at).await.unwrap()[0].is_some(), "it is near by now");
    assert!(matches!(alone.change(far.shard, &[cancel]).await.unwrap()[..], [Changed::Done(_)]));
}

/// The keeper does not do one that arrives behind a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_numbered_in_the_order_in_which_they_are_asked_for() {
    let fleet = Fleet::new().await;
    let ids = ids(&fleet.other.add(SHARD, &[fleet.task(30, "one"), fleet.task(40, "two")]).await.unwrap());
    let to = |text: &str| Some(Moved { due_ms: None, payload: Some(text.to_owned().into()) });
    for (id, to) in [(ids[0], to("a")), (ids[1], to("b")), (ids[0], to("a")), (ids[0], None)] {
        fleet.keeper.is_away.store(true, SeqCst);
        fleet.change(id, to.clone()).await.unwrap_err();
        fleet.keeper.is_away.store(false, SeqCst);
        assert!(matches!(fleet.change(id, to).await, Ok(Changed::Done(_))));
    }
    let numbers = fleet.keeper.numbers.lock().unwrap().clone();
    assert_eq!(
        numbers.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [0, 0, 1, 1, 0, 0, 0, 0].map(|at| ids[at])
    );
    assert!(numbers.is_sorted_by(|(_, before), (_, after)| before < after), "{numbers:?}");
}

/// Two keepers would give equal ids to different tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_has_one_keeper_for_ever_whoever_comes_next() {
    let fleet = Fleet::new().await;
    let ours = ids(&fleet.other.add(SHARD, &[fleet.task(30, "ours")]).await.unwrap())[0];
    let second = tier(&fleet.dir.path().join("second"), &fleet.now_ms).await;
    let second = FarSlots::start_shared(Arc::clone(&fleet.near) as _, second);
    let refused = second.claim().await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unusable(what) if what.contains("one process keeps")),
        "{refused}"
    );
    assert!(second.add(SHARD, &[fleet.task(30, "theirs")]).await.is_err());
    assert!(
        second.change(ours.shard, &[Change { tenant: 2, at: TaskAt::Id(ours), to: None }]).await.is_err()
    );
    assert!(second.get(ours.shard, 2, &[TaskAt::Id(ours)]).await.is_err());
    // What is near is everybody's.
    let near = ids(&second.add(SHARD, &[fleet.task(1, "near")]).await.unwrap())[0];
    assert!(fleet.get(near).await.unwrap().is_some());
    drop(second);
    fleet.wait(30, 0).await;
    assert_eq!(fleet.get(ours).await.unwrap().unwrap().record.payload, "ours");
    assert_eq!(fleet.near.list(fleet.route.tenant, None, 100).await.unwrap().tasks.len(), 2);
    // Two at once: one of them has it.
    let fresh = tempfile::tempdir().unwrap();
    let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let near = EmbeddedSlots::open(&fresh.path().join("near"), &options, clock(&fleet.now_ms)).unwrap();
    let mut both = Vec::new();
    for name in ["a", "b"] {
        let far = tier(&fresh.path().join(name), &fleet.now_ms).await;
        both.push(FarSlots::start_shared(Arc::clone(&near) as _, far));
    }
    let (first, other) = tokio::join!(both[0].claim(), both[1].claim());
    assert!(first.is_ok() != other.is_ok(), "{first:?} {other:?}");
}
