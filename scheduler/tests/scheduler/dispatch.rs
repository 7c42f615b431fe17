//! What dispatchers promise, one story each, on a simulated clock.

use crate::model::{ModelStore, START_MS, World, rules, simulate, sleep_ms, target_rules, wait_for};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_contract::due::{Added, Changed, DUE_MAX_MS, Moved, TaskAt, TaskKey, Waiting};
use windfall_scheduler::{AddError, Class, DispatchOptions, NewTask, Retry, TargetRules};

const MINUTE_MS: u64 = 60_000;

#[test]
fn tasks_fire_once_at_their_time_and_their_slots_go() {
    simulate(async {
        let world = World::shop(16);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..2_000, |number| (number as i64 * 50) - 5_000).await;
        sleep_ms(110_000).await;
        assert_eq!(world.target().numbers().len(), 2_000);
        assert_eq!(world.target().distinct(), 2_000);
        for delivery in world.target().got.lock().iter() {
            assert!(delivery.at_ms >= delivery.due_ms, "{delivery:?} is early");
            assert!(delivery.at_ms <= delivery.due_ms.max(START_MS) + 400, "{delivery:?} is late");
            assert_eq!(delivery.attempt, 1);
        }
        sleep_ms(2 * MINUTE_MS).await;
        assert_eq!((world.store.slot_count(), world.store.waiting_count()), (0, 0));
        assert_eq!(dispatcher.stats().memory_bytes.get(), 0);
        assert_eq!((dispatcher.check())(), Ok(()));
    });
}

#[test]
fn a_cancelled_task_never_fires_and_a_moved_one_fires_at_its_new_time_under_its_first_id() {
    simulate(async {
        let world = World::shop(16);
        let _dispatcher = world.dispatcher("a");
        sleep_ms(2_000).await;
        let ids = world.add("shop", 0..300, |_| 5_000).await;
        sleep_ms(4_000).await;
        let cancelled =
            world.timers.cancel("shop", ids[..100].iter().map(|id| TaskAt::Id(*id)).collect()).await;
        assert!(cancelled.iter().zip(&ids).all(|(changed, id)| *changed == Ok(Changed::Done(*id))));
        let later = Moved { due_ms: Some(START_MS + 70_000), payload: Some(crate::model::payload(900)) };
        let moved = world.timers.update("shop", TaskAt::Id(ids[100]), later).await.unwrap();
        assert!(matches!(moved, Changed::Done(id) if id != ids[100]));
        let view = world.timers.get("shop", TaskAt::Id(ids[100])).await.unwrap().unwrap();
        assert_eq!((view.first_id, view.due_ms, view.state), (ids[100], START_MS + 70_000, Waiting::Waiting));
        sleep_ms(3_000).await;
        let mut numbers = world.target().numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, (101..300).collect::<Vec<_>>());
        assert_eq!(world.timers.cancel("shop", vec![TaskAt::Id(ids[200])]).await, [Ok(Changed::Firing)]);
        sleep_ms(70_000).await;
        let last = world.target().got.lock().last().cloned().unwrap();
        assert_eq!((last.number, last.id), (900, ids[100]));
        assert!(last.at_ms >= START_MS + 70_000);
    });
}

#[test]
fn a_key_is_free_again_when_its_task_is_over() {
    simulate(async {
        let world = World::shop(16);
        let _dispatcher = world.dispatcher("a");
        let key = TaskKey::new(b"call-7").unwrap();
        let due_ms = world.store.now_ms() + 1_000;
        let task = NewTask {
            target: "out".into(),
            due_ms,
            key: Some(key.clone()),
            payload: crate::model::payload(1),
        };
        let first = world.timers.add("shop", vec![task.clone(), task.clone()]).await;
        let Ok(Added::Stored(id)) = first[0] else { panic!("{first:?}") };
        assert_eq!(first[1], Ok(Added::Exists(id)));
        sleep_ms(2_000).await;
        assert_eq!(world.store.key_count(), 0);
        let again = world.timers.add("shop", vec![task]).await;
        assert!(matches!(again[0], Ok(Added::Stored(new)) if new != id));
    });
}

#[test]
fn shards_are_divided_and_a_rolling_restart_repeats_nothing() {
    simulate(async {
        let world = World::shop(64);
        world.target().takes_ms.store(300, Ordering::SeqCst);
        let mut a = world.dispatcher("a");
        let mut b = world.dispatcher("b");
        let total = 30_000_u64;
        for part in 0..30 {
            world.add("shop", part * 1_000..(part + 1) * 1_000, |number| 500 + (number % 1_000) as i64).await;
            sleep_ms(1_000).await;
            if part == 5 {
                let owners = world.store.owners();
                let of_a = owners.iter().flatten().filter(|owner| *owner == "a").count();
                assert!(owners.iter().all(Option::is_some) && (16..=48).contains(&of_a), "{owners:?}");
            }
            if part == 10 || part == 20 {
                let (drained, name) = match part {
                    10 => (std::mem::replace(&mut a, world.dispatcher("c")), "a"),
                    _ => (std::mem::replace(&mut b, world.dispatcher("d")), "b"),
                };
                let left = drained.drain(Duration::from_secs(10)).await;
                assert_eq!(left, windfall_scheduler::Drained::default(), "{name}");
            }
        }
        wait_for("all fire", 20_000, || world.target().distinct() == total as usize).await;
        assert_eq!(world.target().numbers().len(), total as usize, "nothing is repeated");
        let latest = world.target().got.lock().iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
        assert!(latest < 3_000, "a task was {latest} ms late over a restart");
    });
}

#[test]
fn shards_of_a_dispatcher_that_dies_are_taken_over_within_five_seconds() {
    simulate(async {
        let world = World::shop(64);
        let dying = world.dispatcher("a");
        let _other = world.dispatcher("b");
        sleep_ms(5_000).await;
        drop(dying);
        world.add("shop", 0..1_000, |_| 100).await;
        wait_for("all fire", 5_000, || world.target().distinct() == 1_000).await;
        assert!(world.store.owners().iter().all(|owner| owner.as_deref() == Some("b")));
    });
}

#[test]
fn a_lease_that_is_lost_in_the_middle_stops_the_fire_and_the_next_owner_goes_on() {
    simulate(async {
        let world = World::shop(16);
        world.target().takes_ms.store(1_000, Ordering::SeqCst);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..5_000, |_| 2_000).await;
        wait_for("some fire", 10_000, || !world.target().got.lock().is_empty()).await;
        let before = world.target().numbers().len();
        world.store.seize();
        wait_for("all fire", 30_000, || world.target().distinct() == 5_000).await;
        let repeated = world.target().numbers().len() - 5_000;
        assert!(repeated > 0 && repeated <= before + 64 * 300, "{repeated} of {before} were repeated");
        assert_eq!(dispatcher.stats().leases_lost.get(), 16);
        assert!(dispatcher.stats().unnoted.get() >= repeated as u64);
        sleep_ms(2 * MINUTE_MS).await;
        assert_eq!((world.store.slot_count(), world.store.waiting_count()), (0, 0));
    });
}

#[test]
fn a_store_that_is_away_for_half_a_minute_loses_and_repeats_nothing() {
    simulate(async {
        let world = World::shop(16);
        world.target().takes_ms.store(200, Ordering::SeqCst);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..10_000, |number| 3_000 + (number as i64) * 4).await;
        sleep_ms(10_000).await;
        world.store.away_for(Duration::from_secs(30));
        sleep_ms(4_000).await;
        let held = world.target().numbers().len();
        sleep_ms(24_000).await;
        assert_eq!(world.target().numbers().len(), held, "a lease that may be over fires nothing");
        assert!((dispatcher.check())().is_err());
        wait_for("all fire", 40_000, || world.target().distinct() == 10_000).await;
        assert_eq!(world.target().numbers().len(), 10_000, "nobody else had the leases");
        assert_eq!((dispatcher.check())(), Ok(()));
    });
}

#[test]
fn the_stores_clock_may_jump_ahead_and_back() {
    simulate(async {
        let world = World::shop(16);
        let _dispatcher = world.dispatcher("a");
        world.add("shop", 0..100, |_| 3_605_000).await;
        sleep_ms(3_000).await;
        assert_eq!(world.target().numbers().len(), 0);
        world.store.jump_ms(3_600_000);
        wait_for("they are due by the store's clock", 8_000, || world.target().distinct() == 100).await;
        world.store.jump_ms(-3_600_000);
        world.add("shop", 100..200, |_| 1_000).await;
        wait_for("what is due below the watermark fires at once", 8_000, || world.target().distinct() == 200)
            .await;
        assert!(world.target().numbers().len() <= 400);
    });
}

#[test]
fn failures_are_tried_again_and_given_up_and_a_dead_letter_can_be_sent_again() {
    simulate(async {
        let world =
            World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target_rules(3)))]);
        let dispatcher = world.dispatcher("a");
        world.target().fails_one_of.store(1, Ordering::SeqCst);
        let ids = world.add("shop", 0..10, |_| 500).await;
        sleep_ms(5_000).await;
        let attempts: Vec<_> = world.target().got.lock().iter().map(|got| got.attempt).collect();
        assert_eq!(attempts.len(), 30, "{attempts:?}");
        let dead = world.timers.dead("shop", None, 100).await.unwrap();
        assert_eq!(dead.len(), 10);
        assert_eq!((dead[0].attempts, dead[0].reason.as_str()), (3, "a test wants it"));
        assert_eq!(dead[0].target.as_deref(), Some("out"));
        assert_eq!(world.store.waiting_count(), 0);
        world.target().fails_one_of.store(0, Ordering::SeqCst);
        assert_eq!(world.timers.end_dead("shop", vec![ids[0]], true).await, Ok(vec![true]));
        assert_eq!(world.timers.end_dead("shop", ids[..2].to_vec(), false).await, Ok(vec![false, true]));
        sleep_ms(2_000).await;
        let last = world.target().got.lock().last().cloned().unwrap();
        assert_eq!((last.id, last.attempt), (ids[0], 1));
        let stats = dispatcher.stats();
        assert_eq!((stats.done.get(), stats.dead.get(), stats.retried.get()), (1, 10, 20));
    });
}

#[test]
fn attempts_are_counted_over_a_restart() {
    simulate(async {
        let retry = Retry::Fixed { attempts_max: 3, wait_ms: 1_000 };
        let target = TargetRules { retry, ..TargetRules::default() };
        let world = World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target))]);
        world.target().fails_one_of.store(1, Ordering::SeqCst);
        let first = world.dispatcher("a");
        world.add("shop", 0..1, |_| 100).await;
        wait_for("one attempt", 5_000, || world.target().got.lock().len() == 1).await;
        first.drain(Duration::from_secs(5)).await;
        let _second = world.dispatcher("b");
        sleep_ms(10_000).await;
        let attempts: Vec<_> = world.target().got.lock().iter().map(|got| got.attempt).collect();
        assert_eq!(attempts, [1, 2, 3]);
    });
}

#[test]
fn what_is_refused_is_given_up_at_once_and_a_target_that_panics_is_asked_again() {
    simulate(async {
        let world = World::shop(16);
        let dispatcher = world.dispatcher("a");
        world.target().panics.store(true, Ordering::SeqCst);
        world.add("shop", 0..10, |_| 100).await;
        wait_for("it panics", 5_000, || dispatcher.stats().panics.get() > 0).await;
        world.target().panics.store(false, Ordering::SeqCst);
        world.target().refuses.store(true, Ordering::SeqCst);
        wait_for("all are refused", 5_000, || dispatcher.stats().dead.get() == 10).await;
        // They are counted before the store has noted them.
        sleep_ms(1_000).await;
        let dead = world.timers.dead("shop", None, 100).await.unwrap();
        assert_eq!(dead.iter().map(|dead| dead.attempts).collect::<Vec<_>>(), [2; 10]);
    });
}

#[test]
fn after_an_outage_a_target_catches_up_at_its_rate_and_no_attempt_is_counted() {
    simulate(async {
        let target = TargetRules { rate_per_s: Some(100), ..target_rules(2) };
        let world = World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target))]);
        world.target().is_away.store(true, Ordering::SeqCst);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..1_000, |_| 1_000).await;
        sleep_ms(60_000).await;
        assert!(world.target().sizes.lock().len() < 120, "it is asked now and then alone");
        assert_eq!(dispatcher.stats().targets()[0].away.get(), 1);
        world.target().is_away.store(false, Ordering::SeqCst);
        let began_ms = world.store.now_ms();
        wait_for("all fire", 15_000, || world.target().distinct() == 1_000).await;
        assert!(world.target().got.lock().iter().all(|got| got.attempt == 1));
        for window in world.target().got.lock().windows(130) {
            assert!(
                window[129].at_ms - window[0].at_ms >= 900,
                "more than the rate and its burst in a second"
            );
        }
        assert!(world.store.now_ms() - began_ms >= 9_000);
    });
}

#[test]
fn one_task_for_which_its_target_is_always_away_holds_up_nobody_and_is_given_up() {
    for sub_batch in [1, 300] {
        simulate(async {
            let world = World::new(
                ModelStore::new(16, 1, None),
                vec![("shop", rules(Class::Normal, target_rules(4)))],
            );
            *world.target().is_away_for.lock() = Some(7);
            let options = DispatchOptions { batch_tasks_max: sub_batch, ..DispatchOptions::default() };
            let dispatcher = world.dispatcher_with("a", options);
            let ids = world.add("shop", 0..200, |number| 1_000 + (number as i64) * 100).await;
            sleep_ms(40_000).await;
            assert_eq!(world.target().distinct(), 199, "all others fire");
            let got = world.target().got.lock().clone();
            assert!(got.iter().all(|got| got.attempt == 1), "and no attempt of theirs is spent");
            let latest = got.iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
            assert!(latest < 3_000, "one of them was {latest} ms late");
            let dead = world.timers.dead("shop", None, 100).await.unwrap();
            assert_eq!(dead.iter().map(|dead| (dead.id, dead.attempts)).collect::<Vec<_>>(), [(ids[7], 4)]);
            assert_eq!(dispatcher.stats().targets()[0].away.get(), 0);
        });
    }
}

#[test]
fn a_target_with_little_room_gets_all_in_the_end_and_no_attempt_is_spent() {
    simulate(async {
        let world =
            World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target_rules(2)))]);
        world.target().room.store(5, Ordering::SeqCst);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..500, |_| 1_000).await;
        wait_for("all fire", 200_000, || world.target().distinct() == 500).await;
        assert!(world.target().got.lock().iter().all(|got| got.attempt == 1));
        let stats = dispatcher.stats();
        assert_eq!((stats.failed.get(), stats.dead.get()), (0, 0));
        assert!(stats.away.get() > 0);
    });
}

#[test]
fn a_target_that_is_away_for_hours_spends_no_attempt() {
    simulate(async {
        let world =
            World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target_rules(2)))]);
        let dispatcher = world.dispatcher("a");
        world.add("shop", 0..100, |_| 1_000).await;
        wait_for("it takes some", 5_000, || world.target().distinct() == 100).await;
        world.target().is_away.store(true, Ordering::SeqCst);
        world.add("shop", 100..1_000, |number| 1_000 + (number as i64) * 10).await;
        sleep_ms(3 * 60 * MINUTE_MS).await;
        let stats = dispatcher.stats();
        assert_eq!((stats.failed.get(), stats.retried.get(), stats.dead.get()), (0, 0, 0));
        assert!(stats.away.get() > 900, "each probe takes another one");
        world.target().is_away.store(false, Ordering::SeqCst);
        wait_for("all fire", 5_000, || world.target().distinct() == 1_000).await;
        assert!(world.target().got.lock().iter().all(|got| got.attempt == 1));
    });
}

#[test]
fn a_target_that_hangs_keeps_no_shard_from_moving_and_delays_no_other_target() {
    simulate(async {
        let wide = TargetRules { concurrency: 1_024, ..target_rules(10) };
        let tenants = ["hung", "well"].map(|name| (name, rules(Class::Normal, wide)));
        let world = World::new(ModelStore::new(64, 1, None), tenants.into());
        let (hung, well) = (&world.targets["hung"], &world.targets["well"]);
        hung.takes_ms.store(600_000, Ordering::SeqCst);
        let first = world.dispatcher("a");
        sleep_ms(2_000).await;
        world.add("hung", 0..2_000, |_| 500).await;
        wait_for("it hangs", 5_000, || hung.distinct() == 2_000).await;
        let _second = world.dispatcher("b");
        world.add("well", 0..4_000, |number| 100 + number as i64 * 5).await;
        sleep_ms(30_000).await;
        assert_eq!((well.distinct(), well.numbers().len()), (4_000, 4_000));
        let latest = well.got.lock().iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
        assert!(latest < 5_000, "one of them was {latest} ms late");
        let owners = world.store.owners();
        let of_b = owners.iter().flatten().filter(|owner| *owner == "b").count();
        assert!(owners.iter().all(Option::is_some) && (16..=48).contains(&of_b), "{owners:?}");
        let repeated = hung.numbers().len() as u64 - 2_000;
        let unnoted = first.stats().unnoted.get();
        assert!(repeated > 0 && unnoted == repeated, "{repeated} were repeated, {unnoted} were counted");
        sleep_ms(2 * 600_000).await;
        assert_eq!(hung.numbers().len() as u64, 2_000 + unnoted, "and none twice");
        assert_eq!(world.store.waiting_count(), 0);
    });
}

#[test]
fn a_call_that_does_not_end_counts_as_a_failed_attempt() {
    simulate(async {
        let world =
            World::new(ModelStore::new(16, 1, None), vec![("shop", rules(Class::Normal, target_rules(2)))]);
        world.target().takes_ms.store(600_000, Ordering::SeqCst);
        let options = DispatchOptions { fire_timeout_ms: 10_000, ..DispatchOptions::default() };
        let dispatcher = world.dispatcher_with("a", options);
        world.add("shop", 0..10, |_| 500).await;
        wait_for("all are given up", 120_000, || dispatcher.stats().dead.get() == 10).await;
        let stats = dispatcher.stats();
        assert_eq!((stats.unknown.get(), stats.panics.get()), (20, 0));
        let dead = world.timers.dead("shop", None, 1).await.unwrap();
        assert_eq!(dead[0].reason, "its target has not answered within `fire_timeout_ms`, 10000 ms");
    });
}

#[test]
fn one_tenants_many_do_not_delay_anothers_few_and_one_slow_target_holds_up_nobody() {
    simulate(async {
        let wide = TargetRules { concurrency: 1_024, ..target_rules(10) };
        let tenants = ["bulk", "crowd", "few"].map(|name| (name, rules(Class::Normal, wide)));
        let world = World::new(ModelStore::new(16, 1, None), tenants.into());
        world.targets["crowd"].takes_ms.store(20, Ordering::SeqCst);
        // It hangs for ten minutes, and has more than fits into the memory.
        world.targets["bulk"].takes_ms.store(600_000, Ordering::SeqCst);
        world.add("bulk", 0..60_000, |_| 5_000).await;
        world.add("crowd", 0..60_000, |_| 5_000).await;
        world.add("few", 0..10, |_| 5_000).await;
        let options = DispatchOptions {
            memory_bytes_max: 12 << 20,
            in_flight_batches_max: 8,
            ..DispatchOptions::default()
        };
        let dispatcher = world.dispatcher_with("a", options);
        wait_for("the few fire", 15_000, || world.targets["few"].distinct() == 10).await;
        let latest = world.targets["few"].got.lock().iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
        assert!(latest < 1_000, "they were {latest} ms late");
        wait_for("the crowd fires", 60_000, || world.targets["crowd"].distinct() == 60_000).await;
        assert_eq!(world.targets["crowd"].numbers().len(), 60_000);
        assert!(dispatcher.stats().deferred.get() > 0);
        assert!(dispatcher.stats().memory_bytes.get() <= 12 << 20);
    });
}

#[test]
fn a_hundred_thousand_of_one_millisecond_in_one_slot_fire() {
    simulate(async {
        let world = World::shop(16);
        world.add("shop", 0..100_000, |_| 20_000).await;
        let _dispatcher = world.dispatcher("a");
        wait_for("all fire", 30_000, || world.target().numbers().len() == 100_000).await;
        assert_eq!(world.target().distinct(), 100_000);
        sleep_ms(2 * MINUTE_MS).await;
        assert_eq!((world.store.slot_count(), world.store.waiting_count()), (0, 0));
    });
}

#[test]
fn payloads_of_nothing_and_of_the_most_and_times_of_any_kind() {
    simulate(async {
        let world = World::shop(16);
        let _dispatcher = world.dispatcher("a");
        let now_ms = world.store.now_ms();
        let century = 100 * 366 * 86_400_000_u64;
        let task = |due_ms, len| NewTask {
            target: "out".into(),
            due_ms,
            key: None,
            payload: Bytes::from(vec![7; len]),
        };
        let all = vec![
            task(0, 0),
            task(now_ms - 1, 64 << 10),
            task(now_ms + 1_000, 64 << 10),
            task(now_ms + 4 * century, 0),
            task(DUE_MAX_MS, 8),
        ];
        let added = world.timers.add("shop", all).await;
        assert!(added.iter().all(Result::is_ok), "{added:?}");
        let wrong = vec![task(DUE_MAX_MS + 1, 0), task(0, (64 << 10) + 1)];
        let refused = world.timers.add("shop", wrong).await;
        assert_eq!(
            refused,
            [Err(AddError::DueTooFar(DUE_MAX_MS + 1)), Err(AddError::PayloadTooLong(65_537))]
        );
        sleep_ms(3_000).await;
        let due: Vec<_> = world.target().got.lock().iter().map(|got| got.due_ms).collect();
        assert_eq!(due.len(), 3);
        assert!(due.contains(&0), "it is told when it was asked to be due");
        let (page, next) = world.timers.list("shop", None, 10).await.unwrap();
        assert_eq!((page.len(), next), (2, None));
    });
}

#[test]
fn quotas_refuse_with_a_reason() {
    simulate(async {
        let small =
            windfall_scheduler::TenantRules { waiting_max: 15, ..rules(Class::Normal, target_rules(3)) };
        let world = World::new(ModelStore::new(16, 1, None), vec![("shop", small)]);
        let due_ms = world.store.now_ms() + MINUTE_MS;
        let task = NewTask { target: "out".into(), due_ms, key: None, payload: Bytes::new() };
        let added = world.timers.add("shop", vec![task.clone(); 20]).await;
        assert_eq!(added.iter().filter(|added| added.is_ok()).count(), 15);
        assert_eq!(added[15], Err(AddError::QuotaWaiting { waiting: 0, max: 15 }));
        assert_eq!(
            world.timers.add("nobody", vec![task.clone()]).await,
            [Err(AddError::UnknownTenant("nobody".into()))]
        );
        let elsewhere = NewTask { target: "x".into(), ..task };
        assert_eq!(
            world.timers.add("shop", vec![elsewhere]).await,
            [Err(AddError::UnknownTarget("x".into()))]
        );
        assert_eq!(world.timers.tenants()[0].waiting, 15);
        let stats = world.timers.stats();
        assert_eq!((stats.stored, stats.over_waiting, stats.invalid), (15, 5, 2));
        world.timers.close().await;
    });
}
