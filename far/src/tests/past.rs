//! Hours that are over are kept for a while, without what was cancelled or changed since.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::due::{PastTasks, SlotMinute};

const KEEP_MS: u64 = 5 * HOUR_MS;

fn keeping() -> FarOptions {
    FarOptions { keep_ms: KEEP_MS, ..options() }
}

/// Every task of an hour that is kept, and how many others were cancelled and moved.
async fn past(world: &World, hour_ms: u64) -> Result<(BTreeMap<TaskId, String>, u64, u64), StoreError> {
    let (mut tasks, mut cancelled, mut moved) = (BTreeMap::new(), 0, 0);
    for shard in (0..16).map(Shard) {
        let mut after = None;
        loop {
            let page = world.far.page(SlotMinute::of(hour_ms), shard, after).await?;
            for task in page.tasks {
                assert_eq!((task.id.shard, task.id.slot), (shard, SlotMinute::of(task.due_ms)));
                let payload = String::from_utf8(task.payload.to_vec()).unwrap();
                assert!(tasks.insert(task.id, payload).is_none(), "{} is there twice", task.id);
            }
            (cancelled, moved) = (cancelled + page.cancelled, moved + page.moved);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok((tasks, cancelled, moved))
}

#[tokio::test]
async fn an_hour_that_is_over_is_kept_without_what_was_cancelled_or_moved_and_goes_in_the_end() {
    let mut world = World::with(keeping()).await;
    let due_ms = START_MS + 5 * HOUR_MS;
    let mut ids = Vec::new();
    for number in 0..60_u16 {
        let at_ms = due_ms + u64::from(number) * MINUTE_MS;
        ids.push(world.add(number % 16, at_ms, &number.to_string()).await.unwrap());
        if number == 20 {
            world.far.flush(0).await.unwrap();
        }
    }
    let away = Moved { due_ms: Some(due_ms + 50 * HOUR_MS), payload: None };
    let other = Moved { due_ms: None, payload: Some("other".into()) };
    world.change(ids[0], None).await.unwrap();
    world.change(ids[1], Some(away.clone())).await.unwrap();
    world.change(ids[2], Some(other.clone())).await.unwrap();
    assert!(past(&world, due_ms).await.is_err(), "it is not loaded");
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    for (id, to) in [(ids[3], None), (ids[4], Some(away)), (ids[5], Some(other))] {
        assert!(matches!(world.change(id, to.clone()).await, Ok(Changed::Done(_))));
        world.change(id, to).await.unwrap();
    }
    let mut expected: BTreeMap<_, _> =
        ids.iter().zip(0..).map(|(id, number)| (*id, number.to_string())).collect();
    expected.insert(ids[2], "other".into());
    [0, 1, 3, 4, 5].iter().for_each(|number: &usize| drop(expected.remove(&ids[*number])));
    let expected = Ok((expected, 2, 3));
    assert_eq!(past(&world, due_ms).await, expected);
    let world = world.restart().await;
    assert_eq!(past(&world, due_ms).await, expected, "from the log");
    world.far.flush(0).await.unwrap();
    assert_eq!(past(&world, due_ms).await, expected, "from segments");
    for number in 0..3 {
        world.add(number, due_ms + (20 + u64::from(number)) * HOUR_MS, "later").await.unwrap();
        world.far.flush(0).await.unwrap();
        world.far.compact().await.unwrap();
    }
    assert_eq!(past(&world, due_ms).await, expected, "merged");
    let mut world = world.restart().await;
    world.wait_ms(2 * HOUR_MS + KEEP_MS - 2);
    world.load().await.unwrap();
    world.far.compact().await.unwrap();
    assert_eq!(past(&world, due_ms).await, expected);
    assert_eq!(world.far.span().unwrap().from_ms, due_ms / HOUR_MS * HOUR_MS);
    world.wait_ms(HOUR_MS);
    world.far.compact().await.unwrap();
    assert!(past(&world, due_ms).await.is_err());
    assert!(world.far.span().unwrap().from_ms > due_ms);
    let left = world.objects.names("segments").len();
    assert!(left <= 3, "{left} segments are left");
    let world = world.restart().await;
    assert!(past(&world, due_ms).await.is_err(), "whatever the clock says");
    assert_eq!(
        past(&world, START_MS).await.err().map(|error| matches!(error, StoreError::Unusable(_))),
        Some(true)
    );
}

/// A cancel near that was acknowledged is known whatever dies, and wherever.
#[tokio::test]
async fn an_acknowledged_cancel_is_never_forgotten() {
    let points =
        [FailPoint::Sealed, FailPoint::SegmentWritten, FailPoint::ManifestWritten, FailPoint::Merged];
    for (round, point) in points.into_iter().enumerate() {
        let mut world = World::with(keeping()).await;
        let due_ms = START_MS + 5 * HOUR_MS;
        let (mut ids, mut cancelled) = (Vec::new(), BTreeSet::new());
        for number in 0..40_u16 {
            ids.push(world.add(number % 16, due_ms + u64::from(number), "x").await.unwrap());
            if number % 8 == 7 {
                world.far.flush(0).await.unwrap();
            }
        }
        world.wait_ms(4 * HOUR_MS + 1);
        world.load().await.unwrap();
        for (number, id) in ids.iter().enumerate() {
            if number % 3 == round % 3 {
                world.change(*id, None).await.unwrap();
                cancelled.insert(*id);
            }
            if number == 20 {
                world.die_at(point, 1);
                drop(world.far.flush(0).await);
                drop(world.far.merge().await);
                world = world.restart().await;
            }
            if number % 10 == 9 {
                world.far.flush(0).await.unwrap();
                world.far.compact().await.unwrap();
            }
        }
        let (tasks, ..) = past(&world, due_ms).await.unwrap();
        let expected: BTreeSet<_> = ids.iter().copied().filter(|id| !cancelled.contains(id)).collect();
        assert_eq!(tasks.into_keys().collect::<BTreeSet<_>>(), expected, "{point:?}");
    }
}

/// The last manifest is from a version that kept no rows.
async fn put_old_manifest(world: &World) {
    let mut old = world.far.0.manifest.lock().await.clone();
    old.gone_upto = None;
    old.put(&*world.objects).await.unwrap();
}

/// An hour that an earlier version had closed, and not loaded as a whole, may be in the log alone.
#[tokio::test]
async fn an_upgrade_in_the_middle_of_an_hour_loses_nothing() {
    for (point, flushes) in [
        (FailPoint::Closed, false),
        (FailPoint::Closed, true),
        (FailPoint::Ended, false),
        (FailPoint::Ended, true),
    ] {
        let mut world = World::with(keeping()).await;
        let mut expected = Vec::new();
        for number in 0..40_u64 {
            let due_ms = START_MS + 5 * HOUR_MS + number;
            let id = world.add(u16::try_from(number % 16).unwrap(), due_ms, "x").await.unwrap();
            expected.push((id, due_ms, "x".to_owned()));
        }
        expected.sort();
        world.wait_ms(4 * HOUR_MS + 1);
        world.die_at(point, 1);
        world.load().await.unwrap_err();
        put_old_manifest(&world).await;
        for _ in 0..2 {
            world = world.restart().await;
            if flushes {
                world.far.flush(0).await.unwrap();
                world.far.compact().await.unwrap();
            }
        }
        world.load().await.unwrap();
        assert_eq!(world.near_tasks().await, expected, "{point:?} {flushes}");
        assert!(past(&world, START_MS + 5 * HOUR_MS).await.is_err(), "what was changed near is not known");
        world.far.compact().await.unwrap();
        assert_eq!(world.far.gauges().memory_bytes, 0);
    }
}

/// Nothing is flushed, so no manifest is written but the one that each start writes.
#[tokio::test]
async fn a_quiet_process_keeps_its_hours_after_an_upgrade() {
    let world = World::with(keeping()).await;
    put_old_manifest(&world).await;
    let mut world = world.restart().await;
    let due_ms = START_MS + 5 * HOUR_MS;
    let id = world.add(1, due_ms, "kept").await.unwrap();
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    for _ in 0..2 {
        world = world.restart().await;
        let expected = BTreeMap::from([(id, "kept".to_owned())]);
        assert_eq!(past(&world, due_ms).await, Ok((expected, 0, 0)));
    }
}

/// Rows that are kept for a backfill alone must not keep tasks from being added.
#[tokio::test]
async fn while_the_object_store_is_away_hours_that_are_over_make_room() {
    let mut world = World::with(keeping()).await;
    let due_ms = START_MS + 5 * HOUR_MS;
    let big = "x".repeat(60_000);
    let mut ids = Vec::new();
    for number in 0..10 {
        ids.push(world.add(number, due_ms, &big).await.unwrap());
    }
    world.objects.set_away(true);
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    let mut added = 0;
    while let Ok(_id) = world.add(1, due_ms + 20 * HOUR_MS, &big).await {
        added += 1;
        assert!(added < 100);
    }
    assert!(added >= (1 << 20) / 61_000, "{added}");
    assert!(past(&world, due_ms).await.is_err(), "its rows made room");
    for id in &ids[..5] {
        assert!(matches!(world.change(*id, None).await, Ok(Changed::Done(_))));
    }
    // It dies before anything is written: what is in the log is kept again, and the cancels are known.
    world.objects.set_away(false);
    let world = world.restart().await;
    let (tasks, cancelled, _) = past(&world, due_ms).await.unwrap();
    assert_eq!((tasks.into_keys().collect::<Vec<_>>(), cancelled), (ids[5..].to_vec(), 5));
}

/// Nothing is kept, so nothing is in memory that is over.
#[tokio::test]
async fn an_hour_that_is_over_gives_its_memory_back_while_the_object_store_is_away() {
    let mut world = World::new().await;
    world.add(1, START_MS + 5 * HOUR_MS, "x").await.unwrap();
    world.objects.set_away(true);
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    assert_eq!((world.near_tasks().await.len(), world.far.gauges().memory_bytes), (1, 0));
}

/// What the other one cancels is not known here.
#[tokio::test]
async fn a_process_whose_segments_another_one_has_taken_over_shows_no_past() {
    let mut world = World::with(keeping()).await;
    let due_ms = START_MS + 5 * HOUR_MS;
    world.add(1, due_ms, "x").await.unwrap();
    world.far.flush(0).await.unwrap();
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    assert_eq!(past(&world, due_ms).await.unwrap().0.len(), 1);
    let (log, other_run) = (world.far.0.log.id(), world.far.0.run + 1);
    crate::manifest::Manifest::take_over(&*world.objects, log, false, other_run, 0).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(past(&world, due_ms).await, Err(StoreError::Unusable(_))));
    }
    assert!(world.add(1, due_ms + 9 * HOUR_MS, "later").await.is_err(), "it takes nothing any more");
}

/// What was cancelled near while nothing was kept is noted nowhere. An hour of that time must not be shown without it,
/// whether its rows are in the log alone or in segments, and whatever dies.
#[tokio::test]
async fn hours_of_a_time_when_nothing_was_kept_are_not_kept_whatever_the_next_options_say() {
    for (flushes, machine_dies) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new().await;
        let due_ms = START_MS + 5 * HOUR_MS;
        let early = [1, 2].map(|shard| (shard, due_ms + u64::from(shard)));
        let mut ids = Vec::new();
        for (shard, due_ms) in early {
            ids.push(world.add(shard, due_ms, "not kept").await.unwrap());
        }
        let later = world.add(1, due_ms + 9 * HOUR_MS, "kept").await.unwrap();
        if flushes {
            world.far.flush(0).await.unwrap();
        }
        world.wait_ms(4 * HOUR_MS + 1);
        world.load().await.unwrap();
        assert!(matches!(world.change(ids[0], None).await, Ok(Changed::Done(_))));
        world.options.keep_ms = 30 * HOUR_MS;
        world = match machine_dies {
            true => world.restart_machine().await,
            false => world.restart().await,
        };
        let said = past(&world, due_ms).await.unwrap_err();
        assert!(matches!(&said, StoreError::Unusable(what) if what.contains("not kept")), "{said}");
        assert!(world.far.span().unwrap().from_ms > due_ms);
        // What is loaded from now on is kept, and so is what becomes of it.
        world.wait_ms(9 * HOUR_MS);
        world.load().await.unwrap();
        let expected = BTreeMap::from([(later, "kept".to_owned())]);
        assert_eq!(past(&world, due_ms + 9 * HOUR_MS).await, Ok((expected, 0, 0)));
        assert!(matches!(world.change(later, None).await, Ok(Changed::Done(_))));
        for _ in 0..2 {
            world = world.restart().await;
            assert_eq!(past(&world, due_ms + 9 * HOUR_MS).await, Ok((BTreeMap::new(), 1, 0)));
            assert!(past(&world, due_ms).await.is_err());
            world.far.flush(0).await.unwrap();
            world.far.compact().await.unwrap();
        }
    }
}
