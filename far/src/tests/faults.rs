//! What breaks, and what must hold all the same.

use super::*;
use std::collections::BTreeMap;
use windfall_contract::due::FAR_INDEX;

/// Adds tasks to every shard and many minutes of some hours. Returns what has to fire.
async fn fill(world: &World, count: u64) -> BTreeMap<TaskId, (u64, String)> {
    let mut all = BTreeMap::new();
    for at in 0..count {
        let due_ms = START_MS + (4 + at % 5) * HOUR_MS + (at * 7) % 60 * MINUTE_MS + at % 1_000;
        let payload = format!("task {at} {}", "x".repeat(100));
        let id = world.add(u16::try_from(at % 16).unwrap(), due_ms, &payload).await.unwrap();
        assert!(id.index >= FAR_INDEX);
        all.insert(id, (due_ms, payload));
    }
    all
}

async fn assert_near(world: &World, expected: &BTreeMap<TaskId, (u64, String)>) {
    let near = world.near_tasks().await;
    assert_eq!(near.len(), expected.len());
    for (id, due_ms, payload) in near {
        assert_eq!(expected.get(&id), Some(&(due_ms, payload)), "{id}");
    }
}

/// The process dies at each step; after a restart everything is loaded once, as it was acknowledged.
#[tokio::test]
async fn a_death_at_each_step_loses_and_repeats_nothing() {
    for point in FailPoint::ALL {
        for nth in 1..=2 {
            let mut world = World::new().await;
            let mut expected = BTreeMap::new();
            for round in 0..4 {
                expected.extend(fill(&world, 150).await);
                let cancelled = *expected.keys().nth(round).unwrap();
                assert_eq!(world.change(cancelled, None).await, Ok(Changed::Done(cancelled)));
                expected.remove(&cancelled);
                world.far.flush(0).await.unwrap();
            }
            let (moved, moved_ms) = (*expected.keys().nth(77).unwrap(), START_MS + 50 * HOUR_MS);
            world.die_at(point, nth);
            let unknown = world.add(1, START_MS + 5 * HOUR_MS, "unknown").await;
            let steps = async |world: &mut World| {
                let to = Moved { due_ms: Some(moved_ms), payload: None };
                world.change(moved, Some(to)).await?;
                world.far.flush(0).await?;
                world.far.merge().await?;
                world.wait_ms(10 * HOUR_MS);
                world.load().await?;
                world.far.compact().await
            };
            let ended = steps(&mut world).await;
            let has_died = world.far.0.fail_points.is_dead();
            assert_eq!(ended.is_err() || unknown.is_err(), has_died, "{point:?} {nth}: {ended:?}");
            assert!(has_died || nth > 1, "{point:?} is never reached");
            let mut world = world.restart().await;
            world.wait_ms(10 * HOUR_MS);
            world.load().await.unwrap();
            world.far.compact().await.unwrap();
            let mut near = BTreeMap::new();
            for (id, due_ms, payload) in world.near_tasks().await {
                assert_eq!(near.insert(id, (due_ms, payload)), None, "{point:?} {nth}: {id} is there twice");
            }
            // Nobody was told what became of the add; of the move only where it was answered.
            near.retain(|_, (_, payload)| payload != "unknown" || unknown.is_ok() && ended.is_ok());
            let is_moved = near.get(&moved).is_some_and(|(due_ms, _)| *due_ms == moved_ms);
            if is_moved {
                expected.entry(moved).and_modify(|(due_ms, _)| *due_ms = moved_ms);
            }
            assert!(is_moved || ended.is_err(), "{point:?} {nth}: the move is lost");
            if let (Ok(unknown), Ok(())) = (unknown, ended) {
                expected.insert(unknown, (START_MS + 5 * HOUR_MS, "unknown".into()));
            }
            assert!(near == expected, "{point:?} {nth}: {} of {}", near.len(), expected.len());
            assert_eq!(world.waiting(), 0);
            assert_eq!(world.objects.names("segments"), Vec::<String>::new(), "{point:?} {nth}");
        }
    }
}

#[tokio::test]
async fn while_the_object_store_is_away_tasks_are_taken_as_far_as_there_is_room() {
    let mut world = World::new().await;
    let mut expected = fill(&world, 500).await;
    world.far.flush(0).await.unwrap();
    world.objects.set_away(true);
    expected.extend(fill(&world, 500).await);
    assert!(world.far.flush(0).await.is_err());
    // A look that needs a segment cannot be answered, and says so.
    let flushed = *expected.keys().next().unwrap();
    assert!(world.get(flushed).await.is_err() || world.change(flushed, None).await.is_ok());
    let big = "x".repeat(60_000);
    let mut refused = None;
    for at in 0..40 {
        match world.add(1, START_MS + 20 * HOUR_MS, &big).await {
            Ok(id) => {
                expected.insert(id, (START_MS + 20 * HOUR_MS, big.clone()));
            }
            Err(error) => refused = refused.or(Some((at, error))),
        }
    }
    let (at, error) = refused.expect("memory is bounded");
    assert!(at > 10 && error.to_string().contains("no room"), "{at}: {error}");
    world.objects.set_away(false);
    world.far.compact().await.unwrap();
    let changed = world.change(flushed, None).await;
    assert!(matches!(changed, Ok(Changed::Done(_) | Changed::Cancelled)));
    expected.remove(&flushed);
    assert!(world.add(1, START_MS + 20 * HOUR_MS, "room").await.is_ok());
    let mut world = world.restart().await;
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    expected.retain(|_, (due_ms, _)| *due_ms < START_MS + 10 * HOUR_MS);
    assert_near(&world, &expected).await;
}

#[tokio::test]
async fn a_flipped_bit_costs_its_block_and_is_said() {
    let world = World::new().await;
    let mut expected = BTreeMap::new();
    for _ in 0..10 {
        expected.extend(fill(&world, 400).await);
    }
    world.far.flush(0).await.unwrap();
    let name = format!("segments/{}", world.objects.names("segments")[0]);
    world.objects.flip(&name, 100);
    let mut world = world.restart().await;
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    let near = world.near_tasks().await;
    assert!(near.len() < expected.len() && near.len() > expected.len() / 2, "{}", near.len());
    for (id, due_ms, payload) in near {
        assert_eq!(expected.get(&id), Some(&(due_ms, payload)), "{id}");
    }
    assert!(world.far.stats().damaged_blocks > 0);
    world.far.compact().await.unwrap();
    assert_eq!(world.far.gauges().segments, 0);
    let world = world.restart().await;
    assert_eq!(world.objects.names("segments").len(), 1, "it is kept for people");
}

#[tokio::test]
async fn a_flipped_bit_in_an_index_costs_nothing_and_a_merge_keeps_what_it_cannot_read() {
    let world = World::new().await;
    let mut expected = fill(&world, 300).await;
    world.far.flush(0).await.unwrap();
    let index_at = world.far.0.state.lock().segments[0].meta.index_at;
    let first = format!("segments/{}", world.objects.names("segments")[0]);
    world.objects.flip(&first, usize::try_from(index_at).unwrap() + 3);
    let mut world = world.restart().await;
    assert_eq!(world.far.stats().lost_segments, 0);
    for _ in 0..2 {
        expected.extend(fill(&world, 300).await);
        world.far.flush(0).await.unwrap();
    }
    world.objects.flip(&first, 50);
    world.far.merge().await.unwrap();
    assert_eq!(world.far.stats().merges, 1);
    assert!(world.objects.names("segments").contains(&first["segments/".len()..].to_owned()));
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    world.far.compact().await.unwrap();
    let near = world.near_tasks().await;
    assert!(near.len() >= 600 && near.len() < 900, "{}", near.len());
    let world = world.restart().await;
    assert_eq!(world.objects.names("segments").len(), 1, "it is kept for people");
}

/// What is cut off is lost, and the other segments are loaded all the same.
#[tokio::test]
async fn an_object_that_was_cut_short_costs_what_is_missing() {
    for (is_restarted, by) in [(false, 2_000), (true, 2_000), (true, 10)] {
        let world = World::new().await;
        let mut expected = fill(&world, 200).await;
        world.far.flush(0).await.unwrap();
        let first = format!("segments/{}", world.objects.names("segments")[0]);
        expected.extend(fill(&world, 200).await);
        world.far.flush(0).await.unwrap();
        world.objects.cut(&first, by);
        let mut world = if is_restarted { world.restart().await } else { world };
        world.wait_ms(10 * HOUR_MS);
        world.load().await.unwrap();
        let near = world.near_tasks().await;
        let is_whole = by < 100;
        assert!((200..=400).contains(&near.len()), "{is_restarted} {by}: {}", near.len());
        assert_eq!(near.len() == 400, is_whole, "{is_restarted} {by}: only the second index is cut");
        let stats = world.far.stats();
        assert_eq!(stats.lost_segments + stats.damaged_blocks > 0, !is_whole, "{stats:?}");
    }
}

/// Taken for a failed flush, the segment that the durable manifest names was deleted, and its tasks were gone.
#[tokio::test]
async fn a_manifest_counts_though_those_before_it_cannot_be_deleted() {
    let world = World::new().await;
    let mut expected = fill(&world, 20).await;
    world.far.flush(0).await.unwrap();
    expected.extend(fill(&world, 20).await);
    world.objects.set_keeps_all(true);
    world.far.flush(0).await.unwrap();
    world.far.drop_orphans().await.unwrap();
    world.objects.set_keeps_all(false);
    let mut world = world.restart().await;
    assert_eq!(world.waiting(), 40);
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    assert_near(&world, &expected).await;
}

#[tokio::test]
async fn another_log_than_the_one_of_the_segments_is_refused() {
    let world = World::new().await;
    fill(&world, 10).await;
    world.far.flush(0).await.unwrap();
    let log = FileLog::open(&world.dir.path().join("other")).unwrap();
    let objects = Arc::clone(&world.objects) as _;
    let opened = FarTier::open(options(), Box::new(log), objects, clock(&world.now_ms)).await;
    assert!(matches!(opened, Err(OpenFarError::OtherLog { .. })));
}

#[tokio::test]
async fn segments_become_few_and_large() {
    let mut world = World::new().await;
    let mut expected = BTreeMap::new();
    for _ in 0..12 {
        expected.extend(fill(&world, 100).await);
        world.far.flush(0).await.unwrap();
        world.far.compact().await.unwrap();
    }
    // Five hours: at most four segments each, and two that wait to be merged.
    assert!(world.far.gauges().segments <= 5 * 4 + 2, "{:?}", world.far.gauges());
    assert_eq!(u64::try_from(world.objects.names("segments").len()).unwrap(), world.far.gauges().segments);
    assert_eq!(world.objects.names("manifest").len(), 2);
    assert_eq!(world.waiting(), 1_200);
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    assert_near(&world, &expected).await;
}

/// Two processes that took an object store for theirs would overwrite each other's manifests there.
#[tokio::test]
async fn an_object_store_that_overwrites_what_is_there_is_refused_and_nothing_of_it_changes() {
    let mut world = World::new().await;
    let expected = fill(&world, 100).await;
    world.far.flush(0).await.unwrap();
    let names = world.objects.names("manifest");
    world.objects.set_puts(Puts::Unconditional);
    let World { dir, disk, now_ms, objects, near, far, options, .. } = world;
    drop(far);
    let refused = open(dir.path(), &disk, &objects, &now_ms, &options).await.err().unwrap();
    assert!(matches!(refused, OpenFarError::Overwrites { .. }), "{refused}");
    assert_eq!((objects.names("manifest"), objects.names("probe")), (names, Vec::new()));
    objects.set_puts(Puts::Done);
    let far = open(dir.path(), &disk, &objects, &now_ms, &options).await.unwrap();
    world = World { dir, disk, now_ms, objects, near, far, reading: None, options };
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    assert_near(&world, &expected).await;
}

/// Nobody knows what is on the disk, and a second sync proves nothing.
#[tokio::test]
async fn behind_a_failed_sync_nothing_is_acknowledged_until_the_log_goes_on_in_another_file() {
    let mut world = World::with(FarOptions { is_synced: true, ..options() }).await;
    let due_ms = START_MS + 30 * HOUR_MS;
    let safe = world.add(1, due_ms, "safe").await.unwrap();
    let cancelled = world.add(2, due_ms, "cancelled").await.unwrap();
    let changed = world.add(3, due_ms, "changed").await.unwrap();
    assert_eq!(world.far.check(), Ok(()));
    world.disk.fails.store(true, SeqCst);
    // It is in memory from now on, and perhaps nowhere else.
    world.change(cancelled, None).await.unwrap_err();
    world.change(cancelled, None).await.expect_err("the repeat finds it cancelled, and must not say so");
    world.get(cancelled).await.unwrap_err();
    world.add(4, due_ms, "refused").await.unwrap_err();
    world.change(changed, Some(Moved { due_ms: None, payload: Some("refused".into()) })).await.unwrap_err();
    assert!(world.far.check().unwrap_err().contains("log of far timers"));
    assert_eq!(world.far.gauges().log_failed, 1);
    // Neither without the object store nor without the disk.
    world.disk.fails.store(false, SeqCst);
    world.objects.set_away(true);
    world.far.flush(usize::MAX).await.unwrap_err();
    world.objects.set_away(false);
    world.disk.fails.store(true, SeqCst);
    world.far.flush(usize::MAX).await.unwrap_err();
    assert!(world.far.check().is_err() && world.change(cancelled, None).await.is_err());
    world.disk.fails.store(false, SeqCst);
    world.far.flush(usize::MAX).await.unwrap();
    assert_eq!((world.far.check(), world.far.gauges().log_failed), (Ok(()), 0));
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Cancelled));
    let later = world.add(4, due_ms, "later").await.unwrap();
    let mut world = world.restart_machine().await;
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Cancelled));
    assert_eq!(world.get(safe).await.unwrap().unwrap().record.payload, "safe");
    world.wait_ms(30 * HOUR_MS);
    world.load().await.unwrap();
    let near = world.near_tasks().await;
    assert_eq!(near.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [safe, changed, later]);
}

/// The slot store has it for ever; the log of a machine that dies then would begin another batch of the same number.
#[tokio::test]
async fn a_batch_whose_beginning_is_not_synced_is_not_sent() {
    let mut world = World::new().await;
    let mut expected = fill(&world, 200).await;
    world.far.flush(0).await.unwrap();
    world.disk.fails.store(true, SeqCst);
    world.wait_ms(10 * HOUR_MS);
    for _ in 0..3 {
        world.load().await.unwrap_err();
        assert_eq!(world.near_tasks().await, []);
    }
    world.disk.fails.store(false, SeqCst);
    world.load().await.expect_err("the log takes nothing, so it promises nothing");
    assert_eq!(world.near_tasks().await, []);
    let mut world = world.restart_machine().await;
    world.load().await.unwrap();
    assert_near(&world, &expected).await;
    let cancelled = *expected.keys().next().unwrap();
    assert!(matches!(world.change(cancelled, None).await, Ok(Changed::Done(_))));
    expected.remove(&cancelled);
    assert_near(&world, &expected).await;
}

/// Wherever it dies on its way into another file, what was acknowledged is there, and what was not may be.
#[tokio::test]
async fn a_death_while_the_log_goes_on_in_another_file_loses_nothing() {
    for point in [FailPoint::Sealed, FailPoint::SegmentWritten, FailPoint::ManifestWritten] {
        for again in [false, true] {
            let mut world = World::new().await;
            let mut expected = fill(&world, 200).await;
            world.far.flush(0).await.unwrap();
            expected.extend(fill(&world, 100).await);
            let cancelled = *expected.keys().nth(150).unwrap();
            assert_eq!(world.change(cancelled, None).await, Ok(Changed::Done(cancelled)));
            expected.remove(&cancelled);
            world.disk.fails.store(true, SeqCst);
            world.wait_ms(4 * HOUR_MS);
            // A batch is noted before it is sent, and that is synced.
            world.load().await.unwrap_err();
            world.disk.fails.store(false, SeqCst);
            world.die_at(point, 1);
            world.far.flush(usize::MAX).await.unwrap_err();
            world = world.restart().await;
            // It may have been read from a part that never reached the disk.
            world.far.flush(usize::MAX).await.unwrap();
            if again {
                expected.extend(fill_later(&world, 50).await);
                world.far.flush(0).await.unwrap();
                world = world.restart_machine().await;
            }
            world.wait_ms(10 * HOUR_MS);
            world.load().await.unwrap();
            assert_near(&world, &expected).await;
        }
    }
}

/// The part before the new one is torn behind its last sync, and the new one is there.
#[tokio::test]
async fn a_machine_that_dies_while_the_log_goes_on_in_another_file_loses_nothing_acknowledged() {
    for point in [FailPoint::Sealed, FailPoint::SegmentWritten, FailPoint::ManifestWritten] {
        for torn in [0, 5] {
            let mut world = World::with(FarOptions { is_synced: true, ..options() }).await;
            let mut expected = fill(&world, 50).await;
            let ids: Vec<_> = expected.keys().copied().collect();
            assert_eq!(world.change(ids[10], None).await, Ok(Changed::Done(ids[10])));
            world.disk.fails.store(true, SeqCst);
            world.change(ids[20], None).await.unwrap_err();
            world.disk.fails.store(false, SeqCst);
            let synced = world.disk.synced.load(SeqCst);
            world.die_at(point, 1);
            world.far.flush(usize::MAX).await.unwrap_err();
            let part = world.dir.path().join("log").join(format!("{:020}.log", 0));
            let file = std::fs::OpenOptions::new().write(true).open(part).unwrap();
            file.set_len(16 + synced + torn).unwrap();
            let mut world = world.restart_machine().await;
            let unsure = world.far.flush(usize::MAX).await.map(|()| ids[20]).unwrap();
            let again = world.change(unsure, None).await.unwrap();
            let is_in_segment = point == FailPoint::ManifestWritten;
            assert_eq!(again, if is_in_segment { Changed::Cancelled } else { Changed::Done(unsure) });
            expected.retain(|id, _| ![ids[10], unsure].contains(id));
            expected.extend(fill_later(&world, 20).await);
            let mut world = world.restart_machine().await;
            assert_eq!(world.change(ids[10], None).await, Ok(Changed::Cancelled));
            world.wait_ms(10 * HOUR_MS);
            world.load().await.unwrap();
            assert_near(&world, &expected).await;
        }
    }
}

/// The part of its row is torn, and the part that was begun anew says that it is on its way.
#[tokio::test]
async fn a_move_behind_a_failed_sync_is_loaded_once() {
    let mut world = World::with(FarOptions { is_synced: true, ..options() }).await;
    let mut expected = fill(&world, 20).await;
    let moved = *expected.keys().next().unwrap();
    world.disk.fails.store(true, SeqCst);
    let to = Moved { due_ms: Some(START_MS + 20 * HOUR_MS), payload: None };
    world.change(moved, Some(to)).await.unwrap_err();
    world.disk.fails.store(false, SeqCst);
    let synced = world.disk.synced.load(SeqCst);
    world.die_at(FailPoint::Sealed, 1);
    world.far.flush(usize::MAX).await.unwrap_err();
    let part = world.dir.path().join("log").join(format!("{:020}.log", 0));
    std::fs::OpenOptions::new().write(true).open(part).unwrap().set_len(16 + synced).unwrap();
    let mut world = world.restart_machine().await;
    world.far.flush(usize::MAX).await.unwrap();
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    expected.get_mut(&moved).unwrap().0 = START_MS + 20 * HOUR_MS;
    assert_near(&world, &expected).await;
}

/// Tasks of an hour that is not closed yet.
async fn fill_later(world: &World, count: u64) -> BTreeMap<TaskId, (u64, String)> {
    let mut all = BTreeMap::new();
    for at in 0..count {
        let (due_ms, payload) = (START_MS + 9 * HOUR_MS + at, format!("later {at}"));
        let id = world.add(u16::try_from(at % 16).unwrap(), due_ms, &payload).await.unwrap();
        all.insert(id, (due_ms, payload));
    }
    all
}
