//! Reads of segments that take long.

use super::*;
use crate::FarSlots;
use windfall_contract::due::Added;

const DUE_MS: u64 = START_MS + 6 * HOUR_MS;

fn payload(text: &str) -> Option<Moved> {
    Some(Moved { due_ms: None, payload: Some(text.to_owned().into()) })
}

/// Its caller has given it up, asked again, and changed the task once more.
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
