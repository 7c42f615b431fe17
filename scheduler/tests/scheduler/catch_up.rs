//! How a target catches up after it was away for long, on a simulated clock.

use crate::model::{ModelStore, World, rules, simulate, sleep_ms, target_rules, wait_for};
use bytes::{BufMut, BytesMut};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use windfall_contract::due::Added;
use windfall_scheduler::{CatchUp, Class, DispatchOptions, Dispatcher, NewTask, TargetRules};

const RATE_PER_S: u64 = 100;

/// A shop whose target takes so many tasks per second, and another tenant beside it.
fn world(catch_up: CatchUp) -> World {
    let target = TargetRules { rate_per_s: Some(RATE_PER_S), catch_up, ..target_rules(3) };
    let tenants =
        vec![("shop", rules(Class::Normal, target)), ("calls", rules(Class::Normal, target_rules(3)))];
    World::new(ModelStore::new(16, 1, None), tenants)
}

/// Adds tasks with payloads of so many bytes, due within the next minute.
async fn add_minute(world: &World, tenant: &str, numbers: std::ops::Range<u64>, payload_bytes: usize) {
    let now_ms = world.store.now_ms();
    let count = numbers.end - numbers.start;
    let task = |number: u64| {
        let mut payload = BytesMut::from(&crate::model::payload(number)[..]);
        payload.put_bytes(0, payload_bytes);
        let due_ms = now_ms + (number - numbers.start) * 60_000 / count;
        NewTask { target: "out".into(), due_ms, key: None, payload: payload.freeze() }
    };
    let tasks: Vec<_> = numbers.clone().map(task).collect();
    for call in tasks.chunks(1_000) {
        let added = world.timers.add(tenant, call.to_vec()).await;
        assert!(added.iter().all(|added| matches!(added, Ok(Added::Stored(_)))));
    }
}

/// The target is away for these minutes, each of which has so many tasks, and then it is back for as many as it takes to
/// get all. Both tenants go on adding. Returns when the outage ended.
async fn outage(
    world: &World,
    dispatcher: &Dispatcher,
    minutes: u64,
    a_minute: u64,
    payload_bytes: usize,
    max_bytes: u64,
) -> u64 {
    world.target().is_away.store(true, Ordering::SeqCst);
    for minute in 0..minutes {
        add_minute(world, "shop", minute * a_minute..(minute + 1) * a_minute, payload_bytes).await;
        add_minute(world, "calls", minute * 60..(minute + 1) * 60, 0).await;
        sleep_ms(60_000).await;
        assert!(dispatcher.stats().memory_bytes.get() <= max_bytes);
    }
    world.target().is_away.store(false, Ordering::SeqCst);
    let back_ms = world.store.now_ms();
    let mut numbers = minutes * a_minute;
    for minute in minutes.. {
        add_minute(world, "shop", numbers..numbers + 600, payload_bytes).await;
        numbers += 600;
        add_minute(world, "calls", minute * 60..(minute + 1) * 60, 0).await;
        sleep_ms(60_000).await;
        assert!(dispatcher.stats().memory_bytes.get() <= max_bytes);
        if world.target().distinct() as u64 >= minutes * a_minute + (numbers - minutes * a_minute) - 600 {
            break;
        }
        assert!(minute < minutes * 10, "{} of {numbers}", world.target().distinct());
    }
    wait_for("all fire", 60_000, || world.target().distinct() as u64 == numbers).await;
    assert_eq!(world.target().numbers().len() as u64, numbers, "each once");
    assert!(world.target().got.lock().iter().all(|got| got.attempt == 1), "and no attempt is spent");
    let calls = world.targets["calls"].got.lock().clone();
    let latest = calls.iter().map(|got| got.at_ms - got.due_ms).max().unwrap();
    assert!(latest <= 1_000, "another tenant's task was {latest} ms late");
    back_ms
}

fn assert_throttled(world: &World) {
    for window in world.target().got.lock().windows(RATE_PER_S as usize + 30) {
        let took_ms = window[window.len() - 1].at_ms - window[0].at_ms;
        assert!(took_ms >= 900, "more than the rate and its burst in {took_ms} ms");
    }
}

#[test]
fn by_default_the_oldest_goes_first_at_the_targets_rate() {
    simulate(async {
        let world = world(CatchUp::default());
        let dispatcher = world.dispatcher("a");
        let back_ms = outage(&world, &dispatcher, 20, 600, 0, u64::MAX).await;
        assert_throttled(&world);
        let got = world.target().got.lock().clone();
        let (mut newest_ms, mut behind) = (0, 0);
        for delivery in got.iter().filter(|got| got.at_ms > back_ms + 2_000) {
            behind += u64::from(delivery.due_ms + 2_000 < newest_ms);
            newest_ms = newest_ms.max(delivery.due_ms);
        }
        // What a probe asked the target for while it was away goes to the end; it is asked once a second.
        assert!(behind <= 20 * 60 + 300, "{behind} of {} came behind newer ones", got.len());
    });
}

/// What the target got after the outage: what was due afterwards was on time, and the backlog came from its newest minute to
/// its oldest one, as far as `slack` minutes go. Returns how many of the backlog came in another order.
fn assert_newest_first(world: &World, back_ms: u64, slack: u64) {
    let got = world.target().got.lock().clone();
    let settled_ms = back_ms + 5_000;
    let late =
        got.iter().filter(|got| got.due_ms >= settled_ms).map(|got| got.at_ms - got.due_ms).max().unwrap();
    assert!(late <= 2_000, "what was due after the outage was {late} ms late");
    let mut oldest = u64::MAX;
    for delivery in got.iter().filter(|got| got.due_ms < back_ms && got.at_ms > settled_ms) {
        let minute = delivery.due_ms / 60_000;
        assert!(minute <= oldest.saturating_add(slack), "{delivery:?} came behind minute {oldest}");
        oldest = oldest.min(minute);
    }
    let minutes: BTreeSet<_> =
        got.iter().filter(|got| got.due_ms < back_ms).map(|got| got.due_ms / 60_000).collect();
    assert_eq!(Some(&oldest), minutes.first(), "the oldest minute comes last");
}

#[test]
fn with_the_newest_first_what_is_due_now_is_on_time_and_the_backlog_goes_backwards() {
    simulate(async {
        let world = world(CatchUp::NewestFirst);
        let dispatcher = world.dispatcher("a");
        let back_ms = outage(&world, &dispatcher, 20, 600, 0, u64::MAX).await;
        assert_throttled(&world);
        assert_newest_first(&world, back_ms, 0);
        sleep_ms(120_000).await;
        assert_eq!((world.store.waiting_count(), world.store.slot_count()), (0, 0));
        assert_eq!(dispatcher.stats().memory_bytes.get(), 0);
    });
}

/// The backlog has five times as many bytes as the memory.
#[test]
fn a_backlog_beyond_the_memory_goes_backwards_too_and_leaves_room_for_what_is_due_now() {
    simulate(async {
        let world = world(CatchUp::NewestFirst);
        let options = DispatchOptions { memory_bytes_max: 8 << 20, ..DispatchOptions::default() };
        let dispatcher = world.dispatcher_with("a", options);
        let back_ms = outage(&world, &dispatcher, 40, 600, 2_000, (8 << 20) + (70 << 10)).await;
        assert_newest_first(&world, back_ms, 2);
        assert!(dispatcher.stats().deferred.get() > 0);
        sleep_ms(120_000).await;
        assert_eq!((world.store.waiting_count(), world.store.slot_count()), (0, 0));
        assert_eq!(dispatcher.stats().memory_bytes.get(), 0);
    });
}

/// More minutes wait than slots are open.
#[test]
fn a_new_dispatcher_finds_the_newest_minutes_of_a_long_backlog_first() {
    simulate(async {
        let world = world(CatchUp::NewestFirst);
        let first = world.dispatcher("a");
        world.target().is_away.store(true, Ordering::SeqCst);
        for minute in 0..320 {
            add_minute(&world, "shop", minute * 32..(minute + 1) * 32, 0).await;
            sleep_ms(60_000).await;
        }
        drop(first);
        let _second = world.dispatcher("b");
        sleep_ms(20_000).await;
        world.target().is_away.store(false, Ordering::SeqCst);
        let back_ms = world.store.now_ms();
        sleep_ms(30_000).await;
        let got = world.target().got.lock().clone();
        assert!(got.len() as u64 >= 20 * RATE_PER_S, "{}", got.len());
        let newest = back_ms / 60_000;
        // A probe or two go before it is known to be back.
        let is_old = |due_ms: u64| newest - due_ms / 60_000 > 100;
        assert_eq!(got.iter().filter(|got| is_old(got.due_ms)).count(), 0);
        wait_for("all fire", 600_000, || world.target().distinct() == 320 * 32).await;
        assert_eq!(world.target().numbers().len(), 320 * 32);
    });
}

/// A task that failed is tried again at its time, however many newer ones there are.
#[test]
fn retries_keep_their_own_times() {
    simulate(async {
        let world = world(CatchUp::NewestFirst);
        let _dispatcher = world.dispatcher("a");
        world.target().is_away.store(true, Ordering::SeqCst);
        for minute in 0..10 {
            add_minute(&world, "shop", minute * 600..(minute + 1) * 600, 0).await;
            sleep_ms(60_000).await;
        }
        world.target().fails_one_of.store(7, Ordering::SeqCst);
        world.target().is_away.store(false, Ordering::SeqCst);
        wait_for("all are over", 120_000, || world.store.waiting_count() == 0).await;
        let got = world.target().got.lock().clone();
        let mut retried = 0;
        for again in got.iter().filter(|got| got.attempt == 2) {
            let first = got.iter().find(|got| got.number == again.number).unwrap();
            let waited_ms = again.at_ms - first.at_ms;
            assert!((50..=1_500).contains(&waited_ms), "{again:?} waited {waited_ms} ms");
            retried += 1;
        }
        assert!(retried > 500, "{retried}");
    });
}
