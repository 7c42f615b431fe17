//! A far tier whose objects have no answer when it begins.

use super::*;
use windfall_contract::due::{PastTasks, SlotMinute};

const DUE_MS: u64 = START_MS + 6 * HOUR_MS;

/// The process begins again, and its objects are away.
async fn start(world: World) -> World {
    let World { dir, disk, now_ms, objects, near, far, options, .. } = world;
    drop(far);
    objects.set_away(true);
    let log = SyncedLog { inner: open_log(dir.path()).await, disk: Arc::clone(&disk) };
    let far = FarTier::start(options.clone(), Box::new(log), clock(&now_ms)).await.unwrap();
    World { dir, disk, now_ms, objects, near, far, reading: None, options }
}

fn attach(world: &World) -> impl Future<Output = Result<(), OpenFarError>> {
    let (far, objects) = (world.far.clone(), Arc::clone(&world.objects));
    async move { far.attach(objects).await }
}

fn is_unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(what)) if what.contains("not answered yet"))
}

#[tokio::test]
async fn tasks_are_taken_before_the_segments_answer_and_nothing_is_lost_by_another_death() {
    let mut world = World::new().await;
    let mut expected = Vec::new();
    let soon = world.add(1, START_MS + 3 * HOUR_MS, "soon").await.unwrap();
    expected.push((world.add(1, DUE_MS, "in a segment").await.unwrap(), DUE_MS, "in a segment".to_owned()));
    let cancelled = world.add(1, DUE_MS, "cancelled").await.unwrap();
    world.far.flush(0).await.unwrap();
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Done(cancelled)));
    // Its hour is near as a whole.
    world.wait_ms(5 * HOUR_MS / 2);
    world.load().await.unwrap();
    for round in 0..3 {
        world = start(world).await;
        assert!(matches!(attach(&world).await, Err(OpenFarError::Objects(_))));
        assert!(!world.far.is_open());
        let payload = format!("early {round}");
        let id = world.add(1, DUE_MS, &payload).await.unwrap();
        expected.push((id, DUE_MS, payload));
        assert!(is_unavailable(world.far.get(TENANT, id).await));
        assert!(is_unavailable(world.far.get(TENANT, cancelled).await));
        assert!(is_unavailable(world.far.change(TENANT, id, None).await));
        assert!(is_unavailable(world.far.flush(0).await));
        // What the log alone knows to be near is asked there.
        assert_eq!(world.far.get(TENANT, soon).await, Ok(FarFound::Near));
        assert_eq!(world.far.change(TENANT, soon, None).await, Ok(FarChanged::Near));
        assert_eq!(world.waiting(), 2 + round);
    }
    world.objects.set_away(false);
    attach(&world).await.unwrap();
    attach(&world).await.unwrap();
    assert!(world.far.is_open());
    let found = world.get(expected[0].0).await.unwrap().unwrap();
    assert_eq!(found.record.payload, "in a segment");
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Cancelled));
    world.far.flush(0).await.unwrap();
    let mut world = world.restart().await;
    world.wait_ms(4 * HOUR_MS);
    world.load().await.unwrap();
    let mut near = world.near_tasks().await;
    near.retain(|(id, ..)| *id != soon);
    expected.sort();
    near.sort();
    assert_eq!(near, expected);
}

#[tokio::test]
async fn what_is_taken_before_the_segments_answer_is_bounded() {
    let world = start(World::new().await).await;
    let big = "x".repeat(60_000);
    let mut taken = 0;
    let refused = loop {
        match world.add(1, DUE_MS, &big).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 100);
    };
    assert!(taken > 10 && refused.to_string().contains("no room"), "{taken}: {refused}");
    world.objects.set_away(false);
    attach(&world).await.unwrap();
    world.far.flush(0).await.unwrap();
    world.add(1, DUE_MS, &big).await.unwrap();
    assert_eq!(world.waiting(), taken + 1);
}

/// A process that died between a manifest and the end of the parts before it: what is in both is there once.
#[tokio::test]
async fn a_log_that_goes_further_back_than_the_manifest_says_repeats_nothing() {
    let mut world = World::new().await;
    let kept = world.add(1, DUE_MS, "kept").await.unwrap();
    let cancelled = world.add(1, DUE_MS, "cancelled").await.unwrap();
    assert_eq!(world.change(cancelled, None).await, Ok(Changed::Done(cancelled)));
    world.die_at(FailPoint::ManifestWritten, 1);
    world.far.flush(0).await.unwrap_err();
    let mut world = start(world).await;
    assert_eq!(world.waiting(), 1);
    let later = world.add(1, DUE_MS, "later").await.unwrap();
    world.objects.set_away(false);
    attach(&world).await.unwrap();
    assert_eq!((world.waiting(), world.far.gauges().segments), (2, 1));
    world.far.flush(0).await.unwrap();
    world.wait_ms(6 * HOUR_MS);
    world.load().await.unwrap();
    let mut near = world.near_tasks().await;
    near.sort();
    assert_eq!(near, [(kept, DUE_MS, "kept".to_owned()), (later, DUE_MS, "later".to_owned())]);
}

/// Segments of another log are found when they answer, and nothing of them changes.
#[tokio::test]
async fn segments_of_another_log_are_never_opened() {
    let world = World::new().await;
    let theirs = world.add(1, DUE_MS, "theirs").await.unwrap();
    world.far.flush(0).await.unwrap();
    let log = Box::new(FileLog::open(&world.dir.path().join("other")).unwrap());
    let far = FarTier::start(options(), log, clock(&world.now_ms)).await.unwrap();
    let refused = far.attach(Arc::clone(&world.objects) as _).await;
    assert!(matches!(refused, Err(OpenFarError::OtherLog { .. })));
    assert!(!far.is_open());
    let world = world.restart().await;
    assert_eq!(world.get(theirs).await.unwrap().unwrap().record.payload, "theirs");
}

/// What was cancelled near while the segments had no answer is not fired again by a backfill.
#[tokio::test]
async fn a_cancel_near_before_the_segments_answer_is_known_to_a_backfill() {
    let mut world = World::with(FarOptions { keep_ms: 5 * HOUR_MS, ..options() }).await;
    let due_ms = START_MS + 3 * HOUR_MS;
    let fires = world.add(1, due_ms, "fires").await.unwrap();
    let cancelled = world.add(1, due_ms, "cancelled").await.unwrap();
    world.far.flush(0).await.unwrap();
    world.wait_ms(5 * HOUR_MS / 2);
    world.load().await.unwrap();
    let mut world = start(world).await;
    assert!(is_unavailable(world.far.span()));
    assert!(is_unavailable(world.far.page(SlotMinute::of(due_ms), Shard(1), None).await));
    assert!(matches!(world.change(cancelled, None).await, Ok(Changed::Done(_))));
    world.objects.set_away(false);
    attach(&world).await.unwrap();
    for round in 0..2 {
        let span = world.far.span().unwrap();
        assert!((span.from_ms..span.to_ms).contains(&due_ms), "{span:?}");
        let page = world.far.page(SlotMinute::of(due_ms), Shard(1), None).await.unwrap();
        let ids: Vec<_> = page.tasks.iter().map(|task| task.id).collect();
        assert_eq!((ids, page.cancelled), (vec![fires], 1), "{round}");
        world.far.flush(0).await.unwrap();
        world = world.restart().await;
    }
}
