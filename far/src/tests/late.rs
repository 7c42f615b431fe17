//! What arrives late or twice, what has no answer, and what nobody should have sent.

use super::*;
use crate::FarSlots;
use windfall_contract::due::{DUE_MAX_MS, FAR_INDEX, PAYLOAD_MAX_BYTES};

const DUE_MS: u64 = START_MS + 5 * HOUR_MS;

async fn payloads(mut world: World) -> Vec<String> {
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    world.near_tasks().await.into_iter().map(|(_, _, payload)| payload).collect()
}

/// The manifest of a process that has died arrives when the next one has read the one before it, and has deleted what it
/// does not name.
#[tokio::test]
async fn a_manifest_that_arrives_late_does_not_count() {
    let mut world = World::new().await;
    world.add(1, DUE_MS, "first").await.unwrap();
    world.far.flush(0).await.unwrap();
    world.add(1, DUE_MS, "second").await.unwrap();
    // The segment is written, and its manifest is on its way.
    world.objects.set_puts(Puts::Late("manifest"));
    assert!(world.far.flush(0).await.is_err());
    assert_eq!(world.objects.names("segments").len(), 2);
    world.objects.set_puts(Puts::Done);
    world = world.restart().await;
    world.objects.arrive().await;
    world = world.restart().await;
    assert_eq!(world.far.stats().lost_segments, 0);
    assert_eq!(payloads(world).await, ["first", "second"]);
}

/// No segment of a process has the name of one that an earlier process had sent.
#[tokio::test]
async fn a_segment_that_arrives_late_overwrites_none() {
    let mut world = World::new().await;
    world.add(1, DUE_MS, "first").await.unwrap();
    world.objects.set_puts(Puts::Late("segments"));
    assert!(world.far.flush(0).await.is_err());
    world.objects.set_puts(Puts::Done);
    world = world.restart().await;
    world.add(2, DUE_MS, &"second".repeat(100)).await.unwrap();
    world.far.flush(0).await.unwrap();
    world.objects.arrive().await;
    assert_eq!(world.objects.names("segments").len(), 2);
    world = world.restart().await;
    assert_eq!(world.objects.names("segments").len(), 1, "nobody names it");
    assert_eq!(payloads(world).await, ["first".to_owned(), "second".repeat(100)]);
}

#[tokio::test]
async fn an_answer_that_gets_lost_loses_and_repeats_nothing() {
    let mut world = World::new().await;
    for round in 0..4_u64 {
        for at in 0..20_u64 {
            let due_ms = DUE_MS + at % 3 * HOUR_MS;
            world.add(u16::try_from(at % 4).unwrap(), due_ms, &format!("{round} {at:02}")).await.unwrap();
        }
        let folder = if round % 2 == 0 { "segments" } else { "manifest" };
        world.objects.set_puts(Puts::Unanswered(folder));
        assert!(world.far.flush(0).await.is_err());
        world.objects.set_puts(Puts::Done);
        if round == 1 {
            world = world.restart().await;
        }
        world.far.flush(0).await.unwrap();
        world.objects.set_puts(Puts::Unanswered(folder));
        drop(world.far.merge().await);
        world.objects.set_puts(Puts::Done);
    }
    world.far.compact().await.unwrap();
    world.far.0.has_orphans.store(true, SeqCst);
    world.far.compact().await.unwrap();
    let segments = world.far.gauges().segments;
    assert_eq!(world.objects.names("segments").len() as u64, segments, "what failed leaves nothing behind");
    let mut loaded = payloads(world).await;
    loaded.sort();
    let all = (0..4).flat_map(|round| (0..20).map(move |at| format!("{round} {at:02}")));
    assert_eq!(loaded, all.collect::<Vec<_>>());
}

/// A process that does not know that another one has taken over writes nothing that counts, and says so.
#[tokio::test]
async fn a_process_that_was_replaced_writes_no_manifest() {
    let world = World::new().await;
    world.add(1, DUE_MS, "first").await.unwrap();
    let log = world.dir.path().join("log");
    let copy = world.dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for part in std::fs::read_dir(&log).unwrap() {
        let part = part.unwrap();
        std::fs::copy(part.path(), copy.join(part.file_name())).unwrap();
    }
    let log = Box::new(FileLog::open(&copy).unwrap());
    let objects = Arc::clone(&world.objects) as _;
    let _other = FarTier::open(options(), log, objects, clock(&world.now_ms)).await.unwrap();
    let refused = world.far.flush(0).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unusable(what) if what.contains("another process")), "{refused}");
    // Both would give the same ids, and an Ok of this one would be in a log that nobody opens again.
    assert!(world.add(1, DUE_MS, "second").await.is_err());
    assert!(world.far.flush(0).await.is_err());
}

/// The log is older than what the segments were written from: found when the segments answer at last.
#[tokio::test]
async fn a_log_that_went_back_takes_nothing_once_the_segments_say_so() {
    let world = World::new().await;
    world.add(1, DUE_MS, "first").await.unwrap();
    let log = world.dir.path().join("log");
    let old = world.dir.path().join("old");
    std::fs::create_dir(&old).unwrap();
    for part in std::fs::read_dir(&log).unwrap() {
        let part = part.unwrap();
        std::fs::copy(part.path(), old.join(part.file_name())).unwrap();
    }
    world.far.flush(0).await.unwrap();
    let restored = Box::new(FileLog::open(&old).unwrap());
    let far = FarTier::start(options(), restored, clock(&world.now_ms)).await.unwrap();
    let route = windfall_contract::due::Route { tenant: 1, target: 1 };
    let task = || NewRecord { due_ms: DUE_MS, route, key: None, payload: "late".into() };
    assert!(far.add(Shard(1), vec![task()]).await.is_ok(), "nothing says yet that it is wrong");
    let wrong = far.attach(Arc::clone(&world.objects) as _).await.unwrap_err();
    assert!(!wrong.may_pass(), "{wrong}");
    assert!(far.add(Shard(1), vec![task()]).await.is_err());
}

#[tokio::test]
async fn segments_without_a_manifest_are_refused_and_kept() {
    let world = World::new().await;
    world.add(1, DUE_MS, "first").await.unwrap();
    world.far.flush(0).await.unwrap();
    let (folder, aside) = (world.dir.path().join("objects/manifest"), world.dir.path().join("aside"));
    std::fs::rename(&folder, &aside).unwrap();
    let (dir, objects, now_ms) = (world.dir.path().to_owned(), world.objects.clone(), world.now_ms.clone());
    let disk = Arc::clone(&world.disk);
    let World { far, near, dir: kept, .. } = world;
    drop((far, near));
    let opened = open(&dir, &disk, &objects, &now_ms, &options()).await;
    assert!(matches!(opened, Err(OpenFarError::NoManifest { .. })));
    assert_eq!(objects.names("segments").len(), 1);
    std::fs::remove_dir_all(&folder).ok();
    std::fs::rename(&aside, &folder).unwrap();
    assert_eq!(open(&dir, &disk, &objects, &now_ms, &options()).await.unwrap().gauges().segments, 1);
    drop(kept);
}

/// A segment with a cancel is gone with its hour, and one with the task is still there for its other hours: an hour that
/// was over stays over when the machine dies.
#[tokio::test]
async fn an_hour_that_is_over_stays_over_when_the_machine_dies() {
    let mut world = World::new().await;
    world.add(1, DUE_MS, "fires").await.unwrap();
    world.add(1, DUE_MS + 2 * HOUR_MS, "later").await.unwrap();
    let cancelled = world.add(9, DUE_MS, "cancelled").await.unwrap();
    world.far.flush(0).await.unwrap();
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Done(cancelled)));
    world.far.flush(0).await.unwrap();
    world.wait_ms(4 * HOUR_MS + HOUR_MS / 2);
    world.load().await.unwrap();
    world.far.compact().await.unwrap();
    assert_eq!(world.objects.names("segments").len(), 1);
    let world = world.restart_machine().await;
    assert_eq!(payloads(world).await, ["fires", "later"]);
}

/// A change that no slot store takes would damage the log, or stop the loader for ever.
#[tokio::test]
async fn a_change_that_nobody_takes_is_refused() {
    let mut world = World::new().await;
    let id = world.add(1, DUE_MS, "first").await.unwrap();
    let far = FarSlots::start(world.near.clone(), world.far.clone());
    for wrong in [
        Moved { due_ms: None, payload: Some(vec![1; PAYLOAD_MAX_BYTES + 1].into()) },
        Moved { due_ms: Some(DUE_MAX_MS + 1), payload: None },
    ] {
        let refused = world.change(id, Some(wrong.clone())).await;
        assert!(matches!(refused, Err(StoreError::Unusable(_))), "{refused:?}");
        let change = Change { tenant: TENANT, at: TaskAt::Id(id), to: Some(wrong) };
        assert!(matches!(far.change(id.shard, &[change]).await, Err(StoreError::Unusable(_))));
    }
    drop(far);
    let world = world.restart().await;
    assert_eq!(payloads(world).await, ["first"]);
}

/// The minute of the old id passes long before a later time; the id that the caller gets leads to the task until then.
#[tokio::test]
async fn who_moves_a_task_learns_where_it_lies() {
    let world = World::new().await;
    let far = FarSlots::start(world.near.clone(), world.far.clone());
    let id = world.add(3, DUE_MS, "moved").await.unwrap();
    assert!(id.index >= FAR_INDEX);
    let to = Moved { due_ms: Some(DUE_MS + 200 * HOUR_MS), payload: None };
    let change = Change { tenant: TENANT, at: TaskAt::Id(id), to: Some(to) };
    let changed = far.change(id.shard, std::slice::from_ref(&change)).await.unwrap();
    let [Changed::Done(new)] = changed[..] else { panic!("{changed:?}") };
    assert!(!new.is_far() && new.slot.start_ms() > DUE_MS + 199 * HOUR_MS, "{new}");
    let found = far.get(new.shard, TENANT, &[TaskAt::Id(new)]).await.unwrap();
    assert_eq!(found[0].as_ref().map(|found| found.record.first_id), Some(Some(id)));
    assert_eq!(far.change(id.shard, &[change]).await.unwrap(), [Changed::Done(new)], "asked again");
    let to_now = Moved { due_ms: Some(START_MS - 1), payload: None };
    let other = world.add(3, DUE_MS, "now").await.unwrap();
    let change = Change { tenant: TENANT, at: TaskAt::Id(other), to: Some(to_now) };
    assert!(matches!(far.change(other.shard, &[change]).await.unwrap()[..], [Changed::Done(_)]));
}

/// Changes take memory as adds do, while segments can be read and none can be written.
#[tokio::test]
async fn changes_are_bounded_while_nothing_can_be_written() {
    let world = World::new().await;
    let big = "x".repeat(PAYLOAD_MAX_BYTES);
    let mut ids = Vec::new();
    for at in 0..300_u64 {
        ids.push(world.add(1, DUE_MS + at, "small").await.unwrap());
    }
    world.far.flush(0).await.unwrap();
    world.objects.set_puts(Puts::Refused);
    let mut done = 0;
    for id in ids {
        let to = Moved { due_ms: None, payload: Some(big.clone().into()) };
        match world.far.change(TENANT, id, Some(to)).await {
            Ok(changed) => assert_eq!(changed, FarChanged::Here(Changed::Done(id))),
            Err(error) => {
                assert!(error.to_string().contains("no room"), "{error}");
                break;
            }
        }
        done += 1;
    }
    assert!((100..200).contains(&done), "{done}");
    world.objects.set_puts(Puts::Done);
    world.far.flush(0).await.unwrap();
    assert_eq!(world.far.gauges().memory_bytes, 0);
}

/// What could not be opened is kept for people when its hours are over.
#[tokio::test]
async fn a_segment_that_was_lost_is_kept() {
    let mut world = World::new().await;
    world.add(1, DUE_MS, "lost").await.unwrap();
    world.far.flush(0).await.unwrap();
    let name = format!("segments/{}", world.objects.names("segments")[0]);
    let meta = world.far.0.state.lock().segments[0].meta.clone();
    for index in 0..2 {
        world.objects.flip(&name, usize::try_from(meta.index_at + index * meta.index_bytes).unwrap());
    }
    world = world.restart().await;
    assert_eq!(world.far.stats().lost_segments, 1);
    world.wait_ms(10 * HOUR_MS);
    world.load().await.unwrap();
    world.far.compact().await.unwrap();
    let world = world.restart().await;
    assert_eq!((world.objects.names("segments").len(), world.far.stats().lost_segments), (1, 0));
}

/// A task that is changed again and again takes no more memory. The log must not grow for ever all the same: it is read
/// when the far tier is opened.
#[tokio::test]
async fn a_log_that_is_long_ends_in_a_segment() {
    let mut world = World::new().await;
    let id = world.add(1, DUE_MS, "first").await.unwrap();
    for at in 0..40_u8 {
        let to = Moved { due_ms: None, payload: Some(vec![b'a' + at % 26; 20_000].into()) };
        assert_eq!(world.change(id, Some(to)).await, Ok(Changed::Done(id)));
    }
    assert!(world.far.gauges().memory_bytes < 64 << 10);
    world.far.compact().await.unwrap();
    assert_eq!((world.far.stats().flushes, world.far.0.log.part_bytes() < 10_000), (1, true));
    world.objects.set_puts(Puts::Refused);
    let mut last = 0;
    loop {
        let to = Moved { due_ms: None, payload: Some(vec![last; 60_000].into()) };
        match world.change(id, Some(to)).await {
            Ok(changed) => assert_eq!(changed, Changed::Done(id)),
            Err(error) => {
                assert!(error.to_string().contains("no room"), "{error}");
                break;
            }
        }
        drop(world.far.compact().await);
        last = (last + 1) % 100 + 1;
        assert!(world.far.0.log.part_bytes() < 100 << 20);
    }
}

/// Cancels of one call are looked for side by side, and two changes of one task in their order.
#[tokio::test]
async fn a_batch_of_changes_is_done_as_a_whole_and_in_order() {
    let world = World::new().await;
    let far = FarSlots::start(world.near.clone(), world.far.clone());
    let mut ids = Vec::new();
    for at in 0..100_u64 {
        ids.push(world.add(3, DUE_MS + at * MINUTE_MS % (3 * HOUR_MS), "task").await.unwrap());
    }
    world.far.flush(0).await.unwrap();
    let change = |id: &TaskId, to: Option<Moved>| Change { tenant: TENANT, at: TaskAt::Id(*id), to };
    let cancels: Vec<_> = ids[..90].iter().map(|id| change(id, None)).collect();
    let done: Vec<_> = ids[..90].iter().map(|id| Changed::Done(*id)).collect();
    assert_eq!(far.change(Shard(3), &cancels).await.unwrap(), done);
    let anew = Moved { due_ms: None, payload: Some("anew".into()) };
    let twice = [change(&ids[95], Some(anew)), change(&ids[95], None), change(&ids[96], None)];
    let expected = [ids[95], ids[95], ids[96]].map(Changed::Done);
    assert_eq!(far.change(Shard(3), &twice).await.unwrap(), expected);
    let all: Vec<_> = ids.iter().map(|id| TaskAt::Id(*id)).collect();
    let found = far.get(Shard(3), TENANT, &all).await.unwrap();
    let waiting = found.iter().flatten().filter(|found| found.state == Waiting::Waiting);
    assert_eq!((found.len(), waiting.count()), (100, 8));
}

/// A slot store that was made anew gives the numbers of tenants to others. What is owed to one must not go to another.
#[tokio::test]
async fn tasks_are_not_loaded_into_a_store_that_means_others_by_their_numbers() {
    let mut world = World::new().await;
    let shop = world.near.tenant("shop").await.unwrap();
    let route = Route { tenant: shop, target: world.near.target(shop, "rewards").await.unwrap() };
    let far = FarSlots::start(world.near.clone(), world.far.clone());
    let task = NewRecord { due_ms: DUE_MS, route, key: None, payload: "owed".into() };
    assert_eq!(far.add(Shard(1), &[task]).await.unwrap().len(), 1);
    drop(far);
    world.far.flush(0).await.unwrap();
    world = world.restart().await;
    let slots = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let other = EmbeddedSlots::open(&world.dir.path().join("anew"), &slots, clock(&world.now_ms)).unwrap();
    let foe = other.tenant("foe").await.unwrap();
    assert_eq!((foe, other.target(foe, "rewards").await.unwrap()), (route.tenant, route.target));
    let old = std::mem::replace(&mut world.near, other);
    world.wait_ms(10 * HOUR_MS);
    let refused = world.load().await.unwrap_err().to_string();
    assert!(refused.contains("shop/rewards") && refused.contains("foe/rewards"), "{refused}");
    assert_eq!(world.near.counts(Shard(1)).await.unwrap().len(), 0);
    world.near = old;
    world.load().await.unwrap();
    assert_eq!(world.near.counts(Shard(1)).await.unwrap(), [(shop, 1)].into());
}

/// A caller has lost the answer to a cancel, and asks again when the hour has been loaded without the task.
#[tokio::test]
async fn what_was_cancelled_before_its_hour_was_loaded_is_said_to_be_cancelled_as_long_as_the_hour_is_kept() {
    let mut world = World::with(FarOptions { keep_ms: 2 * HOUR_MS, ..options() }).await;
    let cancelled = world.add(1, DUE_MS, "cancelled").await.unwrap();
    world.far.flush(0).await.unwrap();
    let in_log = world.add(2, DUE_MS, "cancelled, too").await.unwrap();
    let fires = world.add(1, DUE_MS, "fires").await.unwrap();
    for id in [cancelled, in_log] {
        assert_eq!(world.change(id, None).await, Ok(Changed::Done(id)));
    }
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    let mut far = FarSlots::start(world.near.clone(), world.far.clone());
    let never = TaskId { index: fires.index + 77, ..fires };
    for is_kept in [true, false] {
        for id in [cancelled, in_log] {
            let found = far.get(id.shard, TENANT, &[TaskAt::Id(id)]).await.unwrap().remove(0);
            let expected = is_kept.then_some(Waiting::Cancelled);
            assert_eq!(found.map(|found| found.state), expected, "kept: {is_kept}");
            let other = far.get(id.shard, 9, &[TaskAt::Id(id)]).await.unwrap();
            assert_eq!(other, [None], "another tenant's");
            for to in [None, Some(Moved { due_ms: Some(DUE_MS + 9 * HOUR_MS), payload: None })] {
                let change = [Change { tenant: TENANT, at: TaskAt::Id(id), to }];
                let expected = if is_kept { Changed::Cancelled } else { Changed::Unknown };
                assert_eq!(far.change(id.shard, &change).await, Ok(vec![expected]));
            }
        }
        let found = far.get(Shard(1), TENANT, &[TaskAt::Id(fires), TaskAt::Id(never)]).await.unwrap();
        let states: Vec<_> = found.into_iter().map(|found| found.map(|found| found.state)).collect();
        assert_eq!(states[1], None);
        if !is_kept {
            break;
        }
        assert_eq!(states[0], Some(Waiting::Waiting));
        drop(far);
        world.wait_ms(5 * HOUR_MS);
        world.far.compact().await.unwrap();
        far = FarSlots::start(world.near.clone(), world.far.clone());
    }
}
