//! What backfills promise, on a simulated clock: ids that are fired again are those of the range that were not cancelled,
//! each once.

use crate::model::{
    ModelStore, Rng, START_MS, World, payload, rules, simulate, sleep_ms, target_rules, wait_for,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use windfall_contract::Clock;
use windfall_contract::due::{
    FAR_INDEX, FarRecord, LoadBatch, PastPage, PastSpan, PastTasks, Route, Shard, SlotMinute, SlotStore,
    StoreError, TaskId,
};
use windfall_scheduler::{
    BackfillError, BackfillParts, BackfillRequest, BackfillState, BackfillStatus, Backfills, Class,
    DispatchStats, Dispatcher, TargetRules,
};

const HOUR_MS: u64 = 3_600_000;
const SHARDS: u16 = 16;
/// The numbers by which the far tier knows tenant and target; the store has others.
const OLD_ROUTE: Route = Route { tenant: 77, target: 88 };

/// What became of a task that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Loaded,
    Cancelled,
    Moved,
}

/// A far tier that keeps what a test says.
struct Kept {
    tasks: Mutex<BTreeMap<TaskId, (FarRecord, Fate)>>,
    span: PastSpan,
    /// From this hour on nothing can be read any more.
    gone_from: Mutex<Option<SlotMinute>>,
}

#[async_trait]
impl PastTasks for Kept {
    fn span(&self) -> Result<PastSpan, StoreError> {
        Ok(self.span)
    }

    fn names(&self, route: Route) -> Option<(String, String)> {
        (route == OLD_ROUTE).then(|| ("shop".to_owned(), "out".to_owned()))
    }

    async fn page(
        &self,
        hour: SlotMinute,
        shard: Shard,
        after: Option<TaskId>,
    ) -> Result<PastPage, StoreError> {
        let mut page = PastPage::default();
        if self.gone_from.lock().is_some_and(|from| hour >= from) {
            return Err(StoreError::Unusable("the timers of this hour are not kept".into()));
        }
        for (id, (task, fate)) in self.tasks.lock().iter() {
            if id.slot.0 / 60 != hour.0 / 60 || id.shard != shard || Some(*id) <= after {
                continue;
            }
            match fate {
                Fate::Loaded => page.tasks.push(task.clone()),
                Fate::Cancelled => page.cancelled += 1,
                Fate::Moved => page.moved += 1,
            }
            if page.tasks.len() == 7 {
                page.next = Some(*id);
                break;
            }
        }
        Ok(page)
    }
}

/// So many tasks of two hours before the start, one of ten cancelled and one of ten moved.
fn kept(count: u64, seed: u64) -> Arc<Kept> {
    let mut random = Rng(seed);
    let from_ms = START_MS / HOUR_MS * HOUR_MS - 3 * HOUR_MS;
    let mut tasks = BTreeMap::new();
    for number in 0..count {
        let due_ms = from_ms + random.below(2 * HOUR_MS);
        let shard = Shard(random.below(u64::from(SHARDS)) as u16);
        let id = TaskId { shard, slot: SlotMinute::of(due_ms), index: FAR_INDEX + number as u32 };
        let fate = match random.below(10) {
            0 => Fate::Cancelled,
            1 => Fate::Moved,
            _ => Fate::Loaded,
        };
        tasks.insert(id, (FarRecord { id, due_ms, route: OLD_ROUTE, payload: payload(number) }, fate));
    }
    let span = PastSpan { from_ms, to_ms: from_ms + 2 * HOUR_MS };
    Arc::new(Kept { tasks: Mutex::new(tasks), span, gone_from: Mutex::default() })
}

fn world() -> World {
    world_with(target_rules(3))
}

fn world_with(target: TargetRules) -> World {
    let tenants =
        vec![("calls", rules(Class::Normal, target_rules(3))), ("shop", rules(Class::Normal, target))];
    World::new(ModelStore::new(SHARDS, 1, None), tenants)
}

fn backfills(world: &World, dispatcher: &Dispatcher, past: Option<Arc<Kept>>) -> Backfills {
    backfills_of(world, dispatcher.stats(), past)
}

fn backfills_of(world: &World, fired: Arc<DispatchStats>, past: Option<Arc<Kept>>) -> Backfills {
    let store = Arc::clone(&world.store);
    Backfills::new(BackfillParts {
        store: Arc::clone(&world.store) as Arc<dyn SlotStore>,
        past: past.map(|past| past as Arc<dyn PastTasks>),
        tenants: Arc::clone(&world.tenants),
        fired,
        clock: Clock::from_unix_ms(move || store.now_ms()),
    })
}

fn request(kept: &Kept) -> BackfillRequest {
    let PastSpan { from_ms, to_ms } = kept.span;
    let rate_per_s = 100_000;
    let (tenant, target, name) = (None, None, String::new());
    BackfillRequest { from_ms, to_ms, tenant, target, name, rate_per_s, is_dry_run: false }
}

fn of_fate(kept: &Kept, request: &BackfillRequest, wanted: Fate) -> BTreeSet<TaskId> {
    let tasks = kept.tasks.lock();
    let in_range = tasks.values().filter(|(task, _)| (request.from_ms..request.to_ms).contains(&task.due_ms));
    in_range.filter(|(_, fate)| *fate == wanted).map(|(task, _)| task.id).collect()
}

async fn ended(backfills: &Backfills, id: &str) -> BackfillStatus {
    wait_for("the run ends", 600_000, || {
        !matches!(backfills.get(id).unwrap().state, BackfillState::Running(_))
    })
    .await;
    backfills.get(id).unwrap()
}

fn got(world: &World) -> Vec<TaskId> {
    world.target().got.lock().iter().map(|got| got.id).collect()
}

fn assert_each_once(world: &World, expected: &BTreeSet<TaskId>) {
    let got = got(world);
    assert_eq!(&got.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(got.len(), expected.len(), "none is fired twice");
}

#[test]
fn a_store_that_lost_everything_gets_what_was_not_cancelled_each_id_once_while_others_fire() {
    for seed in 1..=3 {
        simulate(async {
            let (world, kept) = (world(), kept(2_000, seed));
            let dispatcher = world.dispatcher("a");
            let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
            let mut request = BackfillRequest { rate_per_s: 200, ..request(&kept) };
            (request.from_ms, request.to_ms) = (request.from_ms + 12_345, request.to_ms - 54_321);
            let expected = of_fate(&kept, &request, Fate::Loaded);
            world.add("calls", 0..1_000, |number| (number * 8) as i64).await;
            let began_ms = world.store.now_ms();
            let run = backfills.start(request, "a test").unwrap();
            let status = ended(&backfills, &run.id).await;
            assert_eq!(status.state, BackfillState::Done);
            assert!(
                world.store.now_ms() - began_ms >= expected.len() as u64 * 1_000 / 200,
                "it is throttled"
            );
            assert_eq!(status.fired, [(("shop".into(), "out".into()), expected.len() as u64)].into());
            assert_eq!((status.waiting, status.unknown, status.shards), (0, 0, (SHARDS, SHARDS)));
            wait_for("all fire", 5_000, || world.target().distinct() == expected.len()).await;
            sleep_ms(5_000).await;
            assert_each_once(&world, &expected);
            for got in world.target().got.lock().iter() {
                assert_eq!(
                    got.due_ms,
                    kept.tasks.lock()[&got.id].0.due_ms,
                    "the time that was asked for first"
                );
            }
            let calls = world.targets["calls"].got.lock().clone();
            assert_eq!(calls.len(), 1_000);
            let latest = calls.iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
            assert!(latest <= 1_000, "what was due meanwhile was {latest} ms late");
            assert_eq!(backfills.stats().fired.get(), expected.len() as u64);
        });
    }
}

#[test]
fn a_dry_run_counts_and_fires_nothing() {
    simulate(async {
        let (world, kept) = (world(), kept(500, 5));
        let dispatcher = world.dispatcher("a");
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let request = BackfillRequest { is_dry_run: true, ..request(&kept) };
        let expected = of_fate(&kept, &request, Fate::Loaded).len() as u64;
        let run = backfills.start(request.clone(), "a test").unwrap();
        let status = ended(&backfills, &run.id).await;
        assert_eq!(status.fired, [(("shop".into(), "out".into()), expected)].into());
        assert_eq!(status.cancelled, of_fate(&kept, &request, Fate::Cancelled).len() as u64);
        assert_eq!(status.moved, of_fate(&kept, &request, Fate::Moved).len() as u64);
        let of_calls = BackfillRequest { tenant: Some("calls".into()), ..request };
        let run = backfills.start(of_calls, "a test").unwrap();
        assert_eq!(ended(&backfills, &run.id).await.fired, BTreeMap::new());
        sleep_ms(10_000).await;
        assert_eq!((got(&world).len(), backfills.stats().fired.get()), (0, 0));
        assert_eq!(backfills.stats().runs_done.get(), 0);
        assert_eq!(world.store.waiting_count(), 0);
    });
}

/// The alert rests on the count.
#[test]
fn a_run_that_fails_is_counted_as_failed_and_goes_on_when_it_is_begun_again() {
    simulate(async {
        let (world, kept) = (world(), kept(500, 6));
        let dispatcher = world.dispatcher("a");
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let request = request(&kept);
        *kept.gone_from.lock() = Some(SlotMinute::of(kept.span.from_ms + HOUR_MS));
        let run = backfills.start(request.clone(), "a test").unwrap();
        let status = ended(&backfills, &run.id).await;
        assert!(
            matches!(&status.state, BackfillState::Failed(why) if why.contains("not kept")),
            "{status:?}"
        );
        *kept.gone_from.lock() = None;
        let run = backfills.start(request.clone(), "a test").unwrap();
        assert_eq!(ended(&backfills, &run.id).await.state, BackfillState::Done);
        let stats = backfills.stats();
        let ends = [&stats.runs_done, &stats.runs_cancelled, &stats.runs_failed].map(|ends| ends.get());
        assert_eq!(ends, [1, 0, 1]);
        let expected = of_fate(&kept, &request, Fate::Loaded);
        wait_for("all have fired", 600_000, || got(&world).len() >= expected.len()).await;
        assert_each_once(&world, &expected);
    });
}

/// Some tasks were loaded late and wait, because their target is away; an earlier run has stored others.
#[test]
fn what_still_waits_is_not_fired_twice() {
    simulate(async {
        let (world, kept) = (world(), kept(600, 7));
        let dispatcher = world.dispatcher("a");
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let request = request(&kept);
        let expected = of_fate(&kept, &request, Fate::Loaded);
        world.target().is_away.store(true, Ordering::SeqCst);
        let tenant = world.store.tenant("shop").await.unwrap();
        let route = Route { tenant, target: world.store.target(tenant, "out").await.unwrap() };
        let mut loaded = 0;
        for (sequence, id) in (1..).zip(expected.iter().step_by(3)) {
            let record = FarRecord { route, ..kept.tasks.lock()[id].0.clone() };
            let batch = LoadBatch { log: 5, sequence, follows: None, records: vec![record] };
            world.store.load(id.shard, &batch).await.unwrap();
            loaded += 1;
        }
        sleep_ms(3_000).await;
        let run = backfills.start(request.clone(), "a test").unwrap();
        sleep_ms(5_000).await;
        let said = backfills.get(&run.id).unwrap().state;
        let BackfillState::Running(Some(why)) = said else { panic!("{said:?}") };
        assert!(why.contains("shop/out, which is away"), "{why}");
        let ended_early = backfills.cancel(&run.id).await.unwrap();
        assert_eq!(ended_early.state, BackfillState::Cancelled);
        world.target().is_away.store(false, Ordering::SeqCst);
        world.target().takes_ms.store(60_000, Ordering::SeqCst);
        let run = backfills.start(request, "a test").unwrap();
        sleep_ms(2_000).await;
        world.target().takes_ms.store(0, Ordering::SeqCst);
        let status = ended(&backfills, &run.id).await;
        assert_eq!(status.state, BackfillState::Done);
        assert!(status.waiting > 0 && status.waiting <= loaded, "{status:?}");
        wait_for("all fire", 180_000, || world.store.waiting_count() == 0).await;
        let got = got(&world);
        assert_eq!(got.iter().copied().collect::<BTreeSet<_>>(), expected);
        // What had fired when the second run looked is fired again, and nothing else.
        let repeated = got.len() - expected.len();
        assert_eq!(repeated as u64, loaded - status.waiting);
    });
}

#[test]
fn a_run_that_dies_may_be_run_again() {
    simulate(async {
        let (world, kept) = (world(), kept(1_500, 9));
        let dispatcher = world.dispatcher("a");
        let request = BackfillRequest { rate_per_s: 500, ..request(&kept) };
        let expected = of_fate(&kept, &request, Fate::Loaded);
        let dying = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        dying.start(request.clone(), "a test").unwrap();
        sleep_ms(1_000).await;
        drop(dying);
        sleep_ms(1_000).await;
        let before = got(&world).len();
        assert!(before > 0 && before < expected.len(), "{before}");
        let again = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let dry = BackfillRequest { is_dry_run: true, ..request.clone() };
        let left = (expected.len() - before) as u64;
        for (request, count) in [(dry, left), (request.clone(), left), (request.clone(), 0)] {
            let run = again.start(request, "a test").unwrap();
            let status = ended(&again, &run.id).await;
            assert_eq!(status.state, BackfillState::Done);
            assert_eq!(status.fired.values().sum::<u64>(), count);
            assert_eq!(status.before, expected.len() as u64 - count);
        }
        wait_for("all fire", 5_000, || world.store.waiting_count() == 0).await;
        assert_each_once(&world, &expected);
        let once_more = BackfillRequest { name: "once more".into(), ..request };
        let run = again.start(once_more, "a test").unwrap();
        assert_eq!(ended(&again, &run.id).await.before, 0);
        wait_for("all fire again", 5_000, || got(&world).len() == 2 * expected.len()).await;
    });
}

/// Calls to the store and their answers get lost, and the process dies again and again.
#[test]
fn a_run_that_dies_without_an_answer_stores_nothing_twice() {
    simulate(async {
        let (world, kept) = (world(), kept(2_000, 17));
        let request = BackfillRequest { rate_per_s: 1_000, ..request(&kept) };
        let expected = of_fate(&kept, &request, Fate::Loaded);
        let begin = || {
            let backfills = backfills_of(&world, Arc::default(), Some(Arc::clone(&kept)));
            let run = backfills.start(request.clone(), "a test").unwrap();
            (backfills, run.id)
        };
        world.store.lose_one_of(8);
        for round in 0..20 {
            let (dying, _) = begin();
            sleep_ms(1_500 + 37 * round).await;
            drop(dying);
        }
        world.store.lose_one_of(0);
        let (last, id) = begin();
        let status = ended(&last, &id).await;
        assert_eq!(status.state, BackfillState::Done);
        assert!(status.before > 0, "{status:?}");
        assert_eq!(world.store.waiting_count(), expected.len() as u64);
        let _dispatcher = world.dispatcher("a");
        wait_for("all fire", 5_000, || world.store.waiting_count() == 0).await;
        assert_each_once(&world, &expected);
    });
}

#[test]
fn a_target_with_a_rate_keeps_half_of_it_for_what_is_due_now() {
    simulate(async {
        let target = TargetRules { rate_per_s: Some(100), ..target_rules(3) };
        let (world, kept) = (world_with(target), kept(1_000, 11));
        let dispatcher = world.dispatcher("a");
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let expected = of_fate(&kept, &request(&kept), Fate::Loaded);
        let run = backfills.start(request(&kept), "a test").unwrap();
        let began_ms = world.store.now_ms();
        let own = world.add("shop", 10_000..10_400, |number| (number - 10_000) as i64 * 30).await;
        ended(&backfills, &run.id).await;
        wait_for("all fire", 5_000, || world.store.waiting_count() == 0).await;
        assert!(world.store.now_ms() - began_ms >= expected.len() as u64 * 20);
        let all = world.target().got.lock().clone();
        let of_now = all.iter().filter(|got| own.contains(&got.id));
        let latest = of_now.map(|got| got.at_ms - got.due_ms).max().unwrap();
        assert!(latest <= 1_500, "what was due meanwhile was {latest} ms late");
    });
}

#[test]
fn a_store_that_is_away_for_a_while_is_asked_again_and_stores_each_once() {
    simulate(async {
        let (world, kept) = (world(), kept(1_000, 13));
        let dispatcher = world.dispatcher("a");
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let request = BackfillRequest { rate_per_s: 200, ..request(&kept) };
        let expected = of_fate(&kept, &request, Fate::Loaded);
        let run = backfills.start(request, "a test").unwrap();
        sleep_ms(1_000).await;
        world.store.away_for(std::time::Duration::from_secs(10));
        sleep_ms(2_000).await;
        assert!(matches!(backfills.get(&run.id).unwrap().state, BackfillState::Running(Some(_))));
        assert_eq!(ended(&backfills, &run.id).await.state, BackfillState::Done);
        wait_for("all fire", 10_000, || world.store.waiting_count() == 0).await;
        assert_eq!(got(&world).into_iter().collect::<BTreeSet<_>>(), expected);
    });
}

#[test]
fn what_cannot_be_is_refused_and_one_run_goes_on_at_a_time() {
    simulate(async {
        let (world, kept) = (world(), kept(1_000, 15));
        let dispatcher = world.dispatcher("a");
        let none = backfills(&world, &dispatcher, None);
        assert!(matches!(none.start(request(&kept), "a test"), Err(BackfillError::NotNow(_))));
        let backfills = backfills(&world, &dispatcher, Some(Arc::clone(&kept)));
        let good = BackfillRequest { rate_per_s: 10, ..request(&kept) };
        let future_ms = world.store.now_ms() + HOUR_MS;
        for (wrong, named) in [
            (BackfillRequest { to_ms: good.from_ms, ..good.clone() }, "before its end"),
            (BackfillRequest { to_ms: future_ms, ..good.clone() }, "in the future"),
            (BackfillRequest { rate_per_s: 0, ..good.clone() }, "rate"),
            (BackfillRequest { name: "x".repeat(65), ..good.clone() }, "name"),
            (BackfillRequest { tenant: Some("nobody".into()), ..good.clone() }, "no tenant `nobody`"),
            (BackfillRequest { target: Some("nowhere".into()), ..good.clone() }, "`nowhere`"),
            (BackfillRequest { from_ms: good.from_ms - 1, ..good.clone() }, "before what is kept"),
            (BackfillRequest { to_ms: good.to_ms + 1, ..good.clone() }, "not loaded"),
        ] {
            let refused = backfills.start(wrong.clone(), "a test").unwrap_err().to_string();
            assert!(refused.contains(named), "{wrong:?}: {refused}");
        }
        let run = backfills.start(good.clone(), "a test").unwrap();
        sleep_ms(1_000).await;
        let second = backfills.start(good, "a test");
        assert!(matches!(&second, Err(BackfillError::NotNow(what)) if what.contains(&run.id)), "{second:?}");
        assert_eq!(backfills.cancel("another").await, None);
        let ended = backfills.cancel(&run.id).await.unwrap();
        assert_eq!(ended.state, BackfillState::Cancelled);
        sleep_ms(10_000).await;
        let stored: u64 = ended.fired.values().sum();
        assert_eq!(got(&world).len() as u64, stored, "what was stored fires, and no more");
        backfills.close().await;
    });
}
