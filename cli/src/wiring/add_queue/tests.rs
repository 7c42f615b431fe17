//! The queue of adds on embedded brokers and an embedded store, which is away for a while.

use super::{AddQueuePart, AddTopic, RunningAddQueue};
use crate::wiring::Brokers;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::due::*;
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_scheduler::{
    AddError, AddQueueOptions, Class, DispatchOptions, Dispatcher, NewTask, TargetRules, TenantRules,
    Tenants, Timers, TimersOptions,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

/// A store that is away when a test wants it.
struct Faulty {
    store: Arc<EmbeddedSlots>,
    is_away: AtomicBool,
}

impl Faulty {
    fn there(&self) -> Result<&EmbeddedSlots, StoreError> {
        match self.is_away.load(SeqCst) {
            true => Err(StoreError::Unavailable("a test wants it".into())),
            false => Ok(&self.store),
        }
    }
}

#[async_trait]
impl SlotStore for Faulty {
    fn shards(&self) -> u16 {
        self.store.shards()
    }

    fn durability(&self) -> Durability {
        self.store.durability()
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        self.there()?.tenant(name).await
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        self.there()?.target(tenant, name).await
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        self.there()?.names(route).await
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        self.there()?.keep_names(known).await
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        self.there()?.add(shard, batch).await
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        self.there()?.load(shard, batch).await
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        self.there()?.queue_id(fresh).await
    }

    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        self.there()?.add_once(shard, batch, keys_kept_ms).await
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        self.there()?.cancel_once(shard, batch).await
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        self.there()?.change(shard, batch).await
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        self.there()?.get(shard, tenant, at).await
    }

    async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.there()?.list(tenant, after, limit).await
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        self.there()?.counts(shard).await
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        self.there()?.beat(instance, ttl_ms).await
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        self.there()?.acquire(shard, instance, ttl_ms).await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        self.there()?.renew(lease, ttl_ms).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.there()?.release(lease).await
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        self.there()?.advance(lease, ahead_ms, reads, max_bytes).await
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        self.there()?.state(lease, slot).await
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        self.there()?.finish(lease, slot, batch).await
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        self.there()?.drop_slot(lease, slot, entries).await
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        self.there()?.dead(tenant, after, limit).await
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        self.there()?.end_dead(shard, tenant, ids, again).await
    }
}

/// Keeps the payloads that it gets.
#[derive(Default)]
struct Came(Mutex<Vec<Vec<u8>>>);

#[async_trait]
impl Target for Came {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        self.0.lock().extend(batch.iter().map(|task| task.payload.to_vec()));
        vec![Fired::Done; batch.len()]
    }
}

fn brokers(folder: &Path) -> Brokers {
    let open = |name: &str| {
        let broker = EmbeddedBroker::open(&folder.join(name), &EmbeddedOptions::default());
        (name.to_owned(), broker.unwrap() as Arc<dyn Broker>)
    };
    ["a", "b"].map(open).into()
}

fn part(folder: &Path) -> AddQueuePart {
    let topic =
        |broker: &str| AddTopic { broker: broker.into(), topic: format!("timers-{broker}"), partitions: 2 };
    AddQueuePart {
        options: AddQueueOptions { settle_ms: 2_000, ..AddQueueOptions::default() },
        master: topic("a"),
        backup: topic("b"),
        folder: folder.join("timers-queue"),
    }
}

fn tenants() -> Arc<Tenants> {
    let targets = [("out".to_owned(), TargetRules::default())].into();
    let rules = TenantRules { waiting_max: 10_000, adds_per_s: 10_000, class: Class::Normal, targets };
    Arc::new(Tenants([("shop".to_owned(), rules)].into()))
}

fn task(number: usize, due_ms: u64) -> NewTask {
    let name = format!("order-{number}");
    let key = Some(TaskKey::new(name.as_bytes()).unwrap());
    NewTask { target: "out".into(), due_ms, key, payload: name.into() }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_are_written_while_the_store_is_away_and_fire_once_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, tenants) = (Clock::system(), tenants());
    let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let slots = EmbeddedSlots::open(&folder.path().join("slots"), &options, clock.clone()).unwrap();
    let faulty = Arc::new(Faulty { store: slots, is_away: AtomicBool::new(false) });
    let store = Arc::clone(&faulty) as Arc<dyn SlotStore>;
    let brokers = brokers(folder.path());
    let start =
        || RunningAddQueue::start(part(folder.path()), &tenants, &store, &brokers, None, &clock).unwrap();
    let came = Arc::<Came>::default();
    let targets = [(("shop".to_owned(), "out".to_owned()), Arc::clone(&came) as Arc<dyn Target>)].into();
    let dispatch = DispatchOptions::default();
    let (whose, slots) = (Arc::clone(&tenants), Arc::clone(&store));
    let dispatcher = Dispatcher::start(dispatch, whose, slots, targets, "one".into(), clock.clone());
    let timers = |running: &RunningAddQueue| {
        let (whose, slots, queue) = (Arc::clone(&tenants), Arc::clone(&store), running.queue.clone());
        Timers::start_with(TimersOptions::default(), whose, slots, Some(queue), clock.clone())
    };

    let first = start();
    until("the store's id", || first.queue.check().is_ok()).await;
    faulty.is_away.store(true, SeqCst);
    let due_ms = clock.unix_ms() + 500;
    let adding = timers(&first);
    let direct = adding.add("shop", vec![task(1_000, due_ms)]).await;
    assert!(matches!(direct[..], [Err(AddError::Store(_))]), "{direct:?}");
    let added = adding.add_by_queue("shop", (0..100).map(|number| task(number, due_ms)).collect()).await;
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    until("them to be held", || first.queue.stats().held.get() == 100).await;
    adding.close().await;
    first.close(Duration::from_secs(5)).await;

    // The next process takes what this one had read, and adds of its own.
    let second = start();
    let adding = timers(&second);
    let added = adding.add_by_queue("shop", (100..200).map(|number| task(number, due_ms)).collect()).await;
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    assert!(came.0.lock().is_empty());
    faulty.is_away.store(false, SeqCst);
    until("all to fire", || came.0.lock().len() >= 200).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let payloads = came.0.lock().clone();
    assert_eq!(payloads.iter().collect::<BTreeSet<_>>().len(), 200);
    assert_eq!(payloads.len(), 200, "each once");
    adding.close().await;
    second.close(Duration::from_secs(5)).await;
    dispatcher.drain(Duration::from_secs(5)).await;
}
