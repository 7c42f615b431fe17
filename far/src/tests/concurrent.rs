//! All loops at once, while tasks are added, changed and found.

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is flushed while others are merged counts as newer, and no object that counts is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flushes_merges_and_changes_go_on_side_by_side() {
    let world = World::new().await;
    let far = world.far.clone();
    let flushing = tokio::spawn({
        let far = far.clone();
        async move {
            loop {
                far.flush(0).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let merging = tokio::spawn({
        let far = far.clone();
        async move {
            loop {
                far.merge().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let mut expected = BTreeMap::new();
    // On a busy machine the loops come round less often.
    let came_round = || far.stats().flushes > 10 && far.stats().merges > 3;
    let mut round = 0_u64;
    while round < 60 || !came_round() {
        assert!(!flushing.is_finished() && !merging.is_finished(), "it has failed");
        let mut ids = Vec::new();
        for at in 0..20_u64 {
            let due_ms = START_MS + (4 + (at + round) % 6) * HOUR_MS + at;
            let id = world.add(u16::try_from(at % 16).unwrap(), due_ms, "first").await.unwrap();
            ids.push((id, due_ms));
        }
        for (nth, (id, due_ms)) in ids.into_iter().enumerate() {
            let payload = format!("{round} {nth}");
            let to = Moved { due_ms: None, payload: Some(payload.clone().into()) };
            assert_eq!(far.change(TENANT, id, Some(to)).await, Ok(FarChanged::Here(Changed::Done(id))));
            if nth % 3 == 0 {
                assert_eq!(far.change(TENANT, id, None).await, Ok(FarChanged::Here(Changed::Done(id))));
                let again = far.change(TENANT, id, None).await;
                assert_eq!(again, Ok(FarChanged::Here(Changed::Cancelled)));
            } else {
                expected.insert(id, (due_ms, payload));
            }
        }
        round += 1;
    }
    for task in [flushing, merging] {
        assert!(!task.is_finished(), "it has failed");
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
    }
    drop(far);
    let mut world = world.restart().await;
    assert_eq!((world.far.stats().lost_segments, world.waiting()), (0, expected.len() as u64));
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    let near = world.near_tasks().await;
    assert_eq!(near.len(), expected.len());
    for (id, due_ms, payload) in near {
        assert_eq!(expected.get(&id), Some(&(due_ms, payload)), "{id}");
    }
}
