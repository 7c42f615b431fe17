//! Reads of segments that take long.

use super::*;
use crate::{FarElsewhere, FarKeeper, FarNamedPage, FarSlots};
use async_trait::async_trait;
use futures_util::FutureExt;
use windfall_contract::due::{Added, Durability};

const DUE_MS: u64 = START_MS + 6 * HOUR_MS;

fn payload(text: &str) -> Option<Moved> {
    Some(Moved { due_ms: None, payload: Some(text.to_owned().into()) })
}

/// The caller of a change that hangs has given it up, asked again, and changed the task once more.
#[tokio::test]
async fn a_change_that_hangs_in_a_slow_read_undoes_no_later_one() {
    let world = World::new().await;
    let id = world.add(1, DUE_MS, "first").await.unwrap();
    world.far.flush(0).await.unwrap();
    let far = Arc::new(FarSlots::start(world.near.clone(), world.far.clone()));
    let change = |text: &str| [Change { tenant: TENANT, at: TaskAt::Id(id), to: payload(text) }];
    let hang = |text: &str| {
        let (far, change) = (Arc::clone(&far), change(text));
        tokio::spawn(async move { far.change(Shard(1), &change).await })
    };
    let held = world.objects.hold_reads();
    let hangs = hang("second");
    world.objects.until_held(1).await;
    world.objects.hold_no_more();
    assert_eq!(far.change(Shard(1), &change("second")).await, Ok(vec![Changed::Done(id)]));
    assert_eq!(far.change(Shard(1), &change("third")).await, Ok(vec![Changed::Done(id)]));
    held.add_permits(100);
    let late = hangs.await.unwrap();
    assert!(matches!(&late, Err(StoreError::Unavailable(what)) if what.contains("meanwhile")), "{late:?}");
    assert_eq!(world.get(id).await.unwrap().unwrap().record.payload, "third");
    // One that nobody has overtaken is done, however late.
    world.far.flush(0).await.unwrap();
    let held = world.objects.hold_reads();
    let hangs = hang("fourth");
    world.objects.until_held(2).await;
    held.add_permits(100);
    assert_eq!(hangs.await.unwrap(), Ok(vec![Changed::Done(id)]));
    world.objects.hold_no_more();
    assert_eq!(world.get(id).await.unwrap().unwrap().record.payload, "fourth");
    // Two changes of one task in one call are done in their order.
    let twice = [change("fifth"), change("sixth")].concat();
    assert_eq!(far.change(Shard(1), &twice).await, Ok(vec![Changed::Done(id); 2]));
    assert_eq!(world.get(id).await.unwrap().unwrap().record.payload, "sixth");
}

/// Calls of many callers are gathered. A near task must not wait for a segment, or be changed long after its caller has
/// asked again.
#[tokio::test]
async fn near_tasks_are_changed_while_segments_do_not_answer() {
    let world = World::new().await;
    let id = world.add(1, DUE_MS, "far").await.unwrap();
    world.far.flush(0).await.unwrap();
    let far = Arc::new(FarSlots::start(world.near.clone(), world.far.clone()));
    let near = NewRecord { due_ms: START_MS + HOUR_MS, route: ROUTE, key: None, payload: "near".into() };
    let Added::Stored(near) = far.add(Shard(1), &[near]).await.unwrap()[0] else { panic!("it exists") };
    let held = world.objects.hold_reads();
    let cancels = [id, near].map(|id| Change { tenant: TENANT, at: TaskAt::Id(id), to: None });
    let hangs = tokio::spawn({
        let far = Arc::clone(&far);
        async move { far.change(Shard(1), &cancels).await }
    });
    world.objects.until_held(1).await;
    let found = world.near.get(Shard(1), TENANT, &[TaskAt::Id(near)]).await.unwrap().remove(0);
    assert!(found.is_none_or(|found| found.state == Waiting::Cancelled));
    held.add_permits(100);
    assert_eq!(hangs.await.unwrap(), Ok(vec![Changed::Done(id), Changed::Done(near)]));
}

/// With reads slower than its caller waits, a change would never be done if each repeat overtook the one before.
#[tokio::test]
async fn a_repeat_overtakes_nothing() {
    let world = World::new().await;
    let id = world.add(1, DUE_MS, "first").await.unwrap();
    world.far.flush(0).await.unwrap();
    let far = Arc::new(FarSlots::start(world.near.clone(), world.far.clone()));
    let hang = || {
        let far = Arc::clone(&far);
        let change = [Change { tenant: TENANT, at: TaskAt::Id(id), to: payload("second") }];
        tokio::spawn(async move { far.change(Shard(1), &change).await })
    };
    let held = world.objects.hold_reads();
    let first = hang();
    world.objects.until_held(1).await;
    let repeat = hang();
    world.objects.until_held(2).await;
    held.add_permits(1);
    assert_eq!(first.await.unwrap(), Ok(vec![Changed::Done(id)]));
    held.add_permits(1);
    assert_eq!(repeat.await.unwrap(), Ok(vec![Changed::Done(id)]));
    world.objects.hold_no_more();
    assert_eq!(world.get(id).await.unwrap().unwrap().record.payload, "second");
}

/// Calls of many callers are gathered: what one of them overtook must not keep the others from being done.
#[tokio::test]
async fn an_overtaken_change_keeps_no_other_one_of_its_batch() {
    let world = World::new().await;
    let overtaken = world.add(1, DUE_MS, "first").await.unwrap();
    let moved = world.add(1, DUE_MS, "moved").await.unwrap();
    let mut all = vec![overtaken];
    for _ in 0..40 {
        all.push(world.add(1, DUE_MS, "first").await.unwrap());
    }
    world.far.flush(0).await.unwrap();
    let far = Arc::new(FarSlots::start(world.near.clone(), world.far.clone()));
    let change = |id, to| Change { tenant: TENANT, at: TaskAt::Id(id), to };
    let to = Some(Moved { due_ms: Some(DUE_MS + HOUR_MS), payload: None });
    let answer = far.change(Shard(1), &[change(moved, to)]).await.unwrap();
    assert!(matches!(answer[..], [Changed::Done(_)]), "{answer:?}");
    all.push(moved);
    let held = world.objects.hold_reads();
    let batch: Vec<_> = all.iter().map(|id| change(*id, payload("second"))).collect();
    let hangs = tokio::spawn({
        let far = Arc::clone(&far);
        async move { far.change(Shard(1), &batch).await }
    });
    world.objects.until_held(16).await;
    world.objects.hold_no_more();
    let later = far.change(Shard(1), &[change(overtaken, payload("third"))]).await;
    assert_eq!(later, Ok(vec![Changed::Done(overtaken)]));
    held.add_permits(100);
    let answer = hangs.await.unwrap();
    assert!(
        matches!(&answer, Err(StoreError::Unavailable(what)) if what.contains("meanwhile")),
        "{answer:?}"
    );
    for id in all {
        let payload = world.get(id).await.unwrap().unwrap().record.payload;
        assert_eq!(payload, if id == overtaken { "third" } else { "second" }, "{id}");
    }
}

/// Another process' way to the far tier, with nothing in between.
struct Keeper(Arc<FarSlots>);

#[async_trait]
impl FarKeeper for Keeper {
    async fn add(
        &self,
        _: &str,
        _: Vec<(String, NewRecord)>,
        _: Durability,
    ) -> Result<Vec<Option<TaskId>>, StoreError> {
        unreachable!("nothing is added")
    }

    async fn change(&self, _: &str, id: TaskId, to: Option<Moved>, _: u64) -> Result<Changed, StoreError> {
        Ok(self.0.change(id.shard, &[Change { tenant: TENANT, at: TaskAt::Id(id), to }]).await?[0])
    }

    async fn get(&self, _: &str, _: TaskId) -> Result<Option<(String, Found)>, StoreError> {
        unreachable!("nothing is asked for")
    }

    async fn list(&self, _: &str, _: Option<TaskId>, _: usize) -> Result<FarNamedPage, StoreError> {
        unreachable!("nothing is listed")
    }
}

/// Near tasks of the same batch are changed first, and the near store may hang meanwhile.
#[test]
fn a_change_that_hangs_behind_near_ones_undoes_no_later_one() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Whoever has the one thread for files holds the stores up.
    let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(later_overtakes_hanging());
}

async fn later_overtakes_hanging() {
    for is_elsewhere in [false, true] {
        let world = World::new().await;
        let id = world.add(1, DUE_MS, "first").await.unwrap();
        let keeper = Arc::new(FarSlots::start(world.near.clone(), world.far.clone()));
        let elsewhere = FarElsewhere::new(
            world.near.clone(),
            Some(Arc::new(Keeper(Arc::clone(&keeper)))),
            2 * HOUR_MS,
            clock(&world.now_ms),
        );
        assert_eq!(elsewhere.tenant("shop").await, Ok(TENANT));
        let store: &dyn SlotStore = if is_elsewhere { &elsewhere } else { &*keeper };
        let near = NewRecord { due_ms: START_MS + HOUR_MS, route: ROUTE, key: None, payload: "near".into() };
        let Added::Stored(near) = world.near.add(Shard(1), &[near]).await.unwrap()[0] else {
            panic!("it exists")
        };
        let change = |id, text| Change { tenant: TENANT, at: TaskAt::Id(id), to: payload(text) };
        let batch = [change(near, "second"), change(id, "second")];
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let holding = tokio::task::spawn_blocking(move || held.recv());
        let mut hangs = store.change(Shard(1), &batch);
        assert!((&mut hangs).now_or_never().is_none(), "it waits for the near store");
        release.send(()).unwrap();
        holding.await.unwrap().unwrap();
        assert_eq!(store.change(Shard(1), &[change(id, "third")]).await, Ok(vec![Changed::Done(id)]));
        let late = hangs.await;
        assert!(
            matches!(&late, Err(StoreError::Unavailable(what)) if what.contains("meanwhile")),
            "{late:?}"
        );
        assert_eq!(world.get(id).await.unwrap().unwrap().record.payload, "third");
    }
}
