//! The consumer's rules (design §6), one by one, in paused time.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{Outage, Troubles, WALL_START_MS, World, record_of, record_with, rules};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;
use windfall_consumer::{Cause, ConsumerHandle, Options, RequeueRecord, SpillLog};
use windfall_contract::rewards::Rejection;
use windfall_contract::rules::{Fuse, Limit, Rules};
use windfall_proto::record::Head;

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    world: Arc<World>,
    consumer: ConsumerHandle,
    _dir: TempDir,
}

fn options() -> Options {
    Options { commit_every_ms: 10, session_timeout_ms: 1_000, ..Options::default() }
}

fn scene(partitions: usize, rules: Rules) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(partitions, 7, dir.path(), rules);
    let consumer = world.start(options());
    Scene { world, consumer, _dir: dir }
}

impl Scene {
    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.world.assert_promises();
    }

    fn granted(&self, bonus_type: &str) -> u64 {
        self.world.state.lock().granted_by_type.get(bonus_type).copied().unwrap_or(0)
    }

    fn fuse(&self, bonus_type: &str, fuse: Fuse) {
        self.world.set_rules(|rules| rules.limits.types.get_mut(bonus_type).unwrap().fuse = fuse);
    }

    fn limit(&self, bonus_type: &str, rate_per_s: u64, burst: u32) {
        let limit = Limit { rate_per_s, burst };
        self.world.set_rules(|rules| rules.limits.types.get_mut(bonus_type).unwrap().limit = limit);
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_granted_in_batches_across_records() {
    let scene = scene(1, rules(&["cash"]));
    for n in 0..64 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 3));
    }
    scene.world.settle(5 * SECOND).await;
    // 192 events in batches of 32.
    assert!(scene.world.state.lock().calls <= 8, "{} calls", scene.world.state.lock().calls);
}

#[tokio::test(start_paused = true)]
async fn no_more_events_are_in_calls_than_allowed() {
    let scene = scene(2, rules(&["cash", "coin"]));
    *scene.world.grant_takes.lock() = Duration::from_millis(20);
    for n in 0..200 {
        scene.world.append(n % 2, record_of(["cash", "coin"][n % 2], &format!("a{n}"), 20));
    }
    scene.world.settle(60 * SECOND).await;
    let most = scene.world.state.lock().most_events_in_calls;
    assert!((256..=512).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_type_whose_downstream_hangs_blocks_neither_others_nor_the_commits() {
    let scene = scene(1, rules(&["cash", "coin", "badge"]));
    scene.world.hanging_types.lock().insert("badge".into());
    for n in 0..300 {
        scene.world.append(0, record_of(["badge", "coin", "cash"][n % 3], &format!("a{n}"), 10));
    }
    scene.wait(SECOND).await;
    assert_eq!((scene.granted("cash"), scene.granted("coin")), (1_000, 1_000));
    // Past the deadline (2 s) the badges are on their way again, and what was behind them is committed.
    scene.wait(3 * SECOND).await;
    assert!(scene.consumer.stats().requeued(Cause::Deadline) > 0);
    assert!(scene.world.state.lock().committed[0] >= 300);
    scene.world.hanging_types.lock().clear();
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn where_each_record_is_finished_one_that_hangs_holds_nothing_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(1, 7, dir.path(), rules(&["cash", "badge"]));
    world.each.store(true, Ordering::SeqCst);
    world.hanging_types.lock().insert("badge".into());
    world.append(0, record_of("badge", "slow", 1));
    for n in 0..99 {
        world.append(0, record_of("cash", &format!("a{n}"), 10));
    }
    let consumer = world.start(options());
    tokio::time::sleep(SECOND).await;
    // Well before the deadline of the first record.
    assert_eq!(world.state.lock().finished.len(), 99);
    // A new process is given the one that was not finished, and no other.
    drop(consumer);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.hanging_types.lock().clear();
    let before = world.state.lock().granted_by_type["cash"];
    let _consumer = world.start(options());
    world.settle(60 * SECOND).await;
    assert_eq!(world.state.lock().granted_by_type["cash"], before, "finished records came again");
}

#[tokio::test(start_paused = true)]
async fn a_slow_type_does_not_block_another_even_where_it_is_most_of_the_topic() {
    let scene = scene(2, rules(&["cash", "coin"]));
    scene.limit("cash", 100, 10);
    for n in 0..400 {
        scene.world.append(n % 2, record_of(if n % 5 == 4 { "coin" } else { "cash" }, &format!("a{n}"), 10));
    }
    scene.wait(SECOND).await;
    assert_eq!(scene.granted("coin"), 800);
    let cash = scene.granted("cash");
    assert!((50..=110).contains(&cash), "{cash} in a second at 100/s and a burst of 10");
    scene.limit("cash", 1_000_000, 100_000);
    scene.world.settle(60 * SECOND).await;
}

/// Kills leave copies of what is credited in a queue. They wait for no token that what is not credited needs: else the
/// backlog would grow, and with it the number of copies that the next kill makes.
#[tokio::test(start_paused = true)]
async fn copies_of_what_is_credited_do_not_take_the_limit_of_what_is_not() {
    let scene = scene(1, rules(&["cash"]));
    scene.limit("cash", 100, 20);
    *scene.world.grant_takes.lock() = Duration::from_millis(5);
    for _ in 0..100 {
        scene.world.append(0, record_of("cash", "a", 50));
    }
    scene.world.append(0, record_of("cash", "new", 100));
    // 5,100 events would take 51 s.
    scene.world.settle(10 * SECOND).await;
    assert_eq!(scene.world.state.lock().credited.len(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_and_what_fits_hold_max_is_held_not_requeued() {
    let scene = scene(1, rules(&["cash"]));
    scene.limit("cash", 1_000, 50);
    scene.world.append(0, record_of("cash", "a", 150));
    scene.wait(Duration::from_millis(100)).await;
    let granted = scene.granted("cash");
    assert!((50..=150).contains(&granted), "{granted}");
    scene.world.settle(SECOND).await;
    assert_eq!(scene.consumer.stats().requeued_all(), 0, "150 events at 1,000/s pass within 200 ms");
}

#[tokio::test(start_paused = true)]
async fn a_partition_of_one_limited_type_is_paused_before_it_is_churned() {
    let scene = scene(1, rules(&["cash"]));
    scene.limit("cash", 2_000, 200);
    for n in 0..1_000 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 10));
    }
    scene.wait(2 * SECOND).await;
    let granted = scene.granted("cash");
    assert!((3_600..=4_200).contains(&granted), "{granted} in 2 s at 2,000/s");
    assert!(scene.world.state.lock().pauses > 0);
    let requeued = scene.consumer.stats().requeued_all();
    assert!(requeued * 5 < granted, "{requeued} requeued for {granted} granted");
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_zero_copies_once_what_blocks_commits_and_never_archives() {
    let scene = scene(1, rules(&["cash", "coin"]));
    scene.limit("cash", 0, 1);
    for n in 0..20 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 5));
        scene.world.append(0, record_of("coin", &format!("b{n}"), 5));
    }
    scene.wait(60 * SECOND).await;
    assert_eq!((scene.granted("cash"), scene.granted("coin")), (0, 100));
    {
        let state = scene.world.state.lock();
        assert!(state.archived.is_empty() && state.most_failures == 0);
        // At the deadline they held up the commits of the coins. Since then nothing waits behind them.
        assert_eq!(state.most_attempts, 1, "requeues of one event in a minute");
    }
    scene.limit("cash", 1_000, 1_000);
    scene.world.settle(10 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_zero_neither_pauses_partitions_nor_spins() {
    let scene = scene(1, rules(&["cash"]));
    scene.limit("cash", 0, 1);
    // In a row, far more than may be sent back at once: the fetch waits, the partition has but this type.
    for n in 0..2_000 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 1));
    }
    scene.wait(SECOND).await;
    // A lane that takes nothing is empty, so it would be paused and resumed with every turn of the loop.
    assert_eq!(scene.world.state.lock().pauses, 0);
    scene.limit("cash", 1_000_000, 1_000);
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_takes_longer_than_hold_max_copies_nothing() {
    let scene = scene(1, rules(&["cash"]));
    scene.limit("cash", 1, 1);
    for n in 0..6_000 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 1));
    }
    // An event waits a second, longer than `hold_max`, and the last of those in memory longer than the deadline.
    scene.wait(60 * SECOND).await;
    assert!((55..=60).contains(&scene.granted("cash")), "{}", scene.granted("cash"));
    scene.limit("cash", 1_000_000, 1_000);
    scene.world.settle(10 * SECOND).await;
    assert_eq!(scene.consumer.stats().requeued_all(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_type_is_held_then_requeued_and_granted_when_the_fuse_closes() {
    let scene = scene(1, rules(&["cash", "coin"]));
    scene.fuse("cash", Fuse::Pause);
    scene.world.append(0, record_of("cash", "a", 50));
    scene.world.append(0, record_of("coin", "b", 50));
    scene.wait(Duration::from_millis(1_500)).await;
    assert_eq!((scene.granted("cash"), scene.granted("coin")), (0, 50));
    assert_eq!(scene.consumer.stats().requeued_all(), 0, "held in its lane");
    scene.wait(SECOND).await;
    assert_eq!(scene.consumer.stats().requeued(Cause::Deadline), 50, "before it blocks the commits");
    scene.wait(60 * SECOND).await;
    assert_eq!(scene.granted("cash"), 0);
    scene.fuse("cash", Fuse::Closed);
    scene.world.settle(5 * SECOND).await;
    assert_eq!(scene.world.state.lock().most_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_type_that_fills_its_lane_lets_others_through() {
    let scene = scene(1, rules(&["cash", "coin"]));
    scene.fuse("cash", Fuse::Pause);
    for n in 0..600 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 10));
    }
    scene.world.append(0, record_of("coin", "b", 50));
    scene.wait(Duration::from_millis(1_900)).await;
    assert_eq!((scene.granted("cash"), scene.granted("coin")), (0, 50));
    scene.fuse("cash", Fuse::Closed);
    scene.world.settle(60 * SECOND).await;
}

/// The lane of a type whose only call has failed is empty, since the event was requeued: only its copy, which lies behind what is
/// held, can show that the downstream is there. It was not fetched before somebody let the held type go.
async fn a_type_whose_only_call_failed_is_fetched_again_behind_one_that(holds: impl Fn(&Scene)) {
    let scene = scene(1, rules(&["cash", "coin"]));
    holds(&scene);
    *scene.world.troubles.lock() = Troubles { retry: 100, ..Troubles::default() };
    scene.world.append(0, record_of("coin", "b", 1));
    for n in 0..600 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 10));
    }
    scene.wait(Duration::from_millis(100)).await;
    assert_eq!(scene.consumer.stats().requeued(Cause::Failed), 1);
    *scene.world.troubles.lock() = Troubles::default();
    scene.wait(15 * SECOND).await;
    assert_eq!(
        (scene.granted("cash"), scene.granted("coin")),
        (0, 2),
        "asked for once more, and granted then"
    );
    assert_eq!(scene.world.state.lock().credited.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_type_whose_only_call_failed_is_fetched_again_behind_a_paused_one() {
    a_type_whose_only_call_failed_is_fetched_again_behind_one_that(|scene| scene.fuse("cash", Fuse::Pause))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_type_whose_only_call_failed_is_fetched_again_behind_one_that_may_not_pass() {
    a_type_whose_only_call_failed_is_fetched_again_behind_one_that(|scene| scene.limit("cash", 0, 0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_diverted_type_is_requeued_at_once_and_comes_back() {
    let scene = scene(1, rules(&["cash"]));
    scene.fuse("cash", Fuse::Pause);
    scene.world.append(0, record_of("cash", "held", 20));
    scene.wait(Duration::from_millis(200)).await;
    scene.fuse("cash", Fuse::Divert);
    scene.wait(Duration::from_millis(100)).await;
    assert!(scene.consumer.stats().requeued(Cause::Fuse) >= 20, "what the lane held goes too");
    scene.wait(30 * SECOND).await;
    assert_eq!(scene.granted("cash"), 0);
    scene.fuse("cash", Fuse::Closed);
    scene.world.settle(5 * SECOND).await;
    assert!(scene.world.state.lock().archived.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_grants_lead_to_the_archive_after_max_failures_and_not_before() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.set_rules(|rules| rules.pacing.max_failures = 3);
    *scene.world.troubles.lock() = Troubles { retry: 100, ..Troubles::default() };
    scene.world.append(0, record_of("cash", "a", 10));
    scene.world.settle(60 * SECOND).await;
    let state = scene.world.state.lock();
    assert_eq!(state.archived.len(), 10);
    assert!(state.archived.values().all(|rejection| *rejection == Rejection::MaxFailures));
    assert_eq!(state.most_failures, 3);
    assert_eq!(state.events_in_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn undecided_grants_never_lead_to_the_archive() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.set_rules(|rules| rules.pacing.max_failures = 3);
    *scene.world.troubles.lock() = Troubles { undecided: 100, ..Troubles::default() };
    scene.world.append(0, record_of("cash", "a", 10));
    scene.wait(60 * SECOND).await;
    assert!(scene.world.state.lock().archived.is_empty());
    *scene.world.troubles.lock() = Troubles::default();
    scene.world.settle(10 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_part_that_failed_goes_back() {
    let scene = scene(1, rules(&["cash"]));
    *scene.world.troubles.lock() = Troubles { retry: 20, ..Troubles::default() };
    for n in 0..10 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 100));
    }
    scene.world.settle(60 * SECOND).await;
    let state = scene.world.state.lock();
    // 1,000 events, a fifth of what is asked fails: 1 / 0.8 grants an event.
    let granted = state.granted_by_type["cash"];
    assert!((1_150..1_350).contains(&granted), "{granted}");
    let requeued = state.requeued_records;
    assert!(requeued < 60, "{requeued} records for about 250 events: they travel together");
}

#[tokio::test(start_paused = true)]
async fn when_every_queue_refuses_events_wait_in_the_spill_log_across_a_crash() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.dead_sink.store(true, Ordering::SeqCst);
    *scene.world.troubles.lock() = Troubles { retry: 100, ..Troubles::default() };
    scene.world.append(0, record_of("cash", "a", 10));
    scene.wait(SECOND).await;
    assert!(scene.world.is_drained(), "committed: the file has it");
    assert_eq!(scene.world.open_orders().len(), 10);
    let Scene { world, consumer, _dir } = scene;
    drop(consumer);
    tokio::time::sleep(Duration::from_millis(50)).await;
    *world.troubles.lock() = Troubles::default();
    let consumer = world.start(options());
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(world.open_orders().len(), 10, "the queues still refuse");
    world.dead_sink.store(false, Ordering::SeqCst);
    world.settle(60 * SECOND).await;
    assert!(consumer.stats().replayed.get() >= 1);
}

#[tokio::test(start_paused = true)]
async fn once_the_queues_are_back_the_spill_log_empties_without_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let waiting: Vec<RequeueRecord> = (0..400)
        .map(|n| {
            let head = Head { bonus_type: "cash", attempt: 1, failures: 0, not_before_ms: 0, count: 1 };
            RequeueRecord {
                bonus_type: "cash".into(),
                activity: "spring".into(),
                scene: "rain".into(),
                first_user_id: 0,
                key: format!("a{n}-0.1").into_bytes(),
                payload: record_with(head, &format!("a{n}")),
                events: 1,
            }
        })
        .collect();
    SpillLog::open(dir.path(), 1 << 20).unwrap().append(&waiting).unwrap();
    let world = World::new(1, 7, dir.path(), rules(&["cash"]));
    let consumer = world.start(options());
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(consumer.stats().replayed.get(), 400);
    world.settle(5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_neither_queue_nor_file_takes_stays_in_the_window() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.dead_sink.store(true, Ordering::SeqCst);
    // A few are decided, so that those which are not have failed by themselves.
    *scene.world.troubles.lock() = Troubles { retry: 90, ..Troubles::default() };
    // Far more than the file's 1 MiB.
    for n in 0..30 {
        scene.world.append(0, record_of("cash", &format!("{n}{}", "x".repeat(1_500)), 100));
    }
    scene.wait(20 * SECOND).await;
    assert!(scene.consumer.stats().salvage_failed.get() > 0);
    assert!(!scene.world.is_drained());
    *scene.world.troubles.lock() = Troubles::default();
    scene.world.dead_sink.store(false, Ordering::SeqCst);
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_not_due_waits_and_does_not_spin() {
    let scene = scene(1, rules(&["cash"]));
    let due = |ms: i64| Head {
        bonus_type: "cash",
        attempt: 1,
        failures: 0,
        not_before_ms: WALL_START_MS + ms,
        count: 10,
    };
    scene.world.append(0, record_with(due(1_000), "soon"));
    scene.world.append(0, record_with(due(20_000), "late"));
    scene.wait(Duration::from_millis(950)).await;
    assert_eq!(scene.granted("cash"), 0);
    scene.wait(Duration::from_millis(150)).await;
    assert_eq!(scene.granted("cash"), 10);
    scene.wait(Duration::from_millis(17_000)).await;
    assert_eq!(scene.granted("cash"), 10);
    // The deadline is 2 s: about nine trips in 18 s.
    assert!(scene.world.state.lock().requeued_records <= 10);
    scene.world.settle(5 * SECOND).await;
}

/// The story of a record of 256 events that went round for ever: PostgreSQL was away for 70 s, its due time had grown
/// past the head-of-line deadline, and each write-back for its age set a new one.
#[tokio::test(start_paused = true)]
async fn what_an_outage_has_delayed_beyond_the_deadline_is_granted_after_the_outage() {
    let shipped = Rules { pacing: windfall_contract::rules::Pacing::default(), ..rules(&["cash"]) };
    assert!(shipped.pacing.requeue_delay_max_ms > shipped.pacing.deadline_ms);
    let longest = Duration::from_millis(shipped.pacing.longest_delay_ms());
    let scene = scene(2, shipped);
    *scene.world.troubles.lock() = Troubles { undecided: 100, ..Troubles::default() };
    for n in 0..8 {
        scene.world.append(n % 2, record_of("cash", &format!("a{n}"), 256));
    }
    scene.wait(70 * SECOND).await;
    *scene.world.troubles.lock() = Troubles::default();
    let requeued = scene.world.state.lock().requeued_records;
    scene.world.settle(longest + SECOND).await;
    assert_eq!(
        scene.world.state.lock().requeued_records,
        requeued,
        "nothing is written back for its age alone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_due_time_that_only_a_wrong_clock_sets_is_clamped_and_goes_round_never() {
    let scene = scene(1, rules(&["cash"]));
    for (at, not_before_ms) in [i64::MAX, WALL_START_MS + 601_000].into_iter().enumerate() {
        let head = Head { bonus_type: "cash", attempt: 3, failures: 0, not_before_ms, count: 10 };
        scene.world.append(0, record_with(head, &format!("a{at}")));
    }
    scene.wait(599 * SECOND).await;
    assert_eq!((scene.granted("cash"), scene.consumer.stats().not_before_clamped.get()), (0, 2));
    scene.world.settle(2 * SECOND).await;
    assert_eq!(scene.consumer.stats().requeued_all(), 0);
}

#[tokio::test(start_paused = true)]
async fn while_no_type_can_flow_nothing_is_copied_however_much_waits() {
    let scene = scene(2, rules(&["cash", "coin"]));
    scene.fuse("cash", Fuse::Pause);
    scene.limit("coin", 0, 1);
    // Three times what the lanes may hold, and records that are not due.
    for n in 0..1_200 {
        scene.world.append(n % 2, record_of(["cash", "coin"][n / 2 % 2], &format!("a{n}"), 10));
    }
    for n in 0..300 {
        let not_before_ms = WALL_START_MS + 100_000;
        let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms, count: 10 };
        scene.world.append(0, record_with(head, &format!("b{n}")));
    }
    scene.wait(60 * SECOND).await;
    assert_eq!(scene.consumer.stats().requeued_all(), 0);
    let in_flight = scene.consumer.stats().records_in_flight.get();
    assert!(in_flight < 900, "{in_flight} records: the rest waits in the broker");
    scene.fuse("cash", Fuse::Closed);
    scene.limit("coin", 1_000_000, 1_000);
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_type_whose_downstream_is_away_goes_back_only_to_let_others_pass() {
    let scene = scene(1, rules(&["cash", "coin"]));
    *scene.world.outage.lock() = Some((Outage::Timeouts, Some(["cash".to_owned()].into())));
    // More than its lane may hold, and coins behind it.
    for n in 0..400 {
        scene.world.append(0, record_of("cash", &format!("a{n}"), 10));
    }
    scene.world.append(0, record_of("coin", "b", 50));
    scene.wait(1_900 * SECOND / 1_000).await;
    assert_eq!(scene.granted("coin"), 50);
    // The overflow went back once to let the coins pass, and at the deadline what held up their commit. Since then a
    // look behind the full lane each half minute finds no other type.
    scene.wait(3 * SECOND).await;
    let copied = scene.consumer.stats().requeued_all();
    assert!(copied <= 5 * 4_000, "{copied} of 4,000");
    scene.wait(600 * SECOND).await;
    let copied = scene.consumer.stats().requeued_all() - copied;
    assert!(copied <= 20 * 2_000, "{copied} in 20 looks");
    assert!(scene.world.state.lock().archived.is_empty(), "a time-out of all is no failed grant");
    *scene.world.outage.lock() = None;
    scene.world.settle(15 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn draining_writes_back_what_is_not_due_with_its_due_time() {
    let scene = scene(1, rules(&["cash"]));
    let due_ms = WALL_START_MS + 1_900;
    let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: due_ms, count: 10 };
    scene.world.append(0, record_with(head, "a"));
    scene.wait(Duration::from_millis(100)).await;
    let report = scene.consumer.drain(Duration::from_millis(400)).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    let state = scene.world.state.lock();
    let requeued = windfall_proto::record::split(&state.partitions[0][1].payload).unwrap().0;
    assert_eq!((requeued.attempt, requeued.not_before_ms), (1, due_ms));
}

#[tokio::test(start_paused = true)]
async fn more_delayed_records_than_there_is_room_for_churn_slowly() {
    let scene = scene(1, rules(&["cash", "coin"]));
    for n in 0..600 {
        let head = Head {
            bonus_type: "cash",
            attempt: 0,
            failures: 0,
            not_before_ms: WALL_START_MS + 4_000,
            count: 10,
        };
        scene.world.append(0, record_with(head, &format!("a{n}")));
    }
    scene.world.append(0, record_of("coin", "b", 10));
    scene.wait(3 * SECOND).await;
    assert_eq!(scene.granted("coin"), 10, "behind 6,000 events that are not due");
    let requeued = scene.world.state.lock().requeued_records;
    assert!(requeued < 3 * 1_100, "{requeued} in 3 s, at 1,000 records a second at most");
    assert_eq!(scene.granted("cash"), 0);
    scene.world.settle(120 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_record_is_archived_whole_and_does_not_stop_its_partition() {
    let scene = scene(1, rules(&["cash"]));
    let mut cut = record_of("cash", "cut", 5);
    cut.pop();
    for bad in [b"".to_vec(), b"nonsense".to_vec(), cut.clone()] {
        scene.world.append(0, bad);
        scene.world.append(0, record_of("cash", &format!("good{}", scene.world.orders().len()), 5));
    }
    scene.world.settle(5 * SECOND).await;
    assert!(scene.world.is_drained());
    let state = scene.world.state.lock();
    assert_eq!(state.archived_raw.len(), 3);
    assert_eq!(state.archived_raw[2], cut);
    assert_eq!(state.credited.len(), 15, "nothing of the cut record was granted");
}

#[tokio::test(start_paused = true)]
async fn malformed_records_that_nobody_takes_are_bounded_in_bytes() {
    let scene = scene(1, rules(&["cash"]));
    *scene.world.troubles.lock() = Troubles { archive_down: 100, ..Troubles::default() };
    scene.world.dead_sink.store(true, Ordering::SeqCst);
    for _ in 0..400 {
        scene.world.append(0, vec![0xff; 64 << 10]);
    }
    scene.wait(SECOND).await;
    // 25 MiB in the topic; 4 MiB of lanes and what stands for them, and one fetch of 4 MiB beyond.
    let in_flight = scene.consumer.stats().records_in_flight.get();
    assert!((64..=130).contains(&in_flight), "{in_flight} records of 64 KiB");
    *scene.world.troubles.lock() = Troubles::default();
    scene.world.dead_sink.store(false, Ordering::SeqCst);
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_type_that_the_rules_do_not_know_waits_for_them() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.append(0, record_of("gift", "a", 10));
    scene.wait(SECOND).await;
    assert!(scene.consumer.stats().requeued(Cause::UnknownType) >= 10);
    scene.world.set_rules(|current| {
        *current = Rules { version: current.version, ..rules(&["cash", "gift"]) };
    });
    scene.world.settle(10 * SECOND).await;
    assert_eq!(scene.granted("gift"), 10);
}

#[tokio::test(start_paused = true)]
async fn a_type_that_stays_unknown_is_archived() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.set_rules(|rules| rules.pacing.max_failures = 4);
    scene.world.append(0, record_of("gift", "a", 10));
    scene.world.settle(30 * SECOND).await;
    let state = scene.world.state.lock();
    assert!(state.archived.values().all(|rejection| *rejection == Rejection::UnknownType));
    assert_eq!(state.archived.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn cash_takes_from_the_global_bucket_first() {
    let scene = scene(1, rules(&["cash", "coin"]));
    scene.world.set_rules(|rules| rules.limits.global = Limit { rate_per_s: 1_000, burst: 100 });
    for n in 0..30 {
        scene.world.append(0, record_of(["coin", "cash"][n % 2], &format!("a{n}"), 10));
    }
    scene.wait(Duration::from_millis(140)).await;
    let (cash, coin) = (scene.granted("cash"), scene.granted("coin"));
    assert!(cash >= 100 && coin == 0 || cash == 150, "{cash} cash, {coin} coins");
    scene.world.settle(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_frozen_instance_admits_nothing_before_it_has_polled() {
    let scene = scene(1, rules(&["cash"]));
    scene.fuse("cash", Fuse::Pause);
    scene.world.append(0, record_of("cash", "a", 10));
    scene.wait(Duration::from_millis(100)).await;
    // Stopped for longer than the session time-out; when it runs again the broker does not answer at once.
    scene.world.stuck_broker.store(true, Ordering::SeqCst);
    scene.wait(Duration::from_millis(100)).await;
    scene.world.clock.ahead_ms.fetch_add(1_100, Ordering::SeqCst);
    scene.fuse("cash", Fuse::Closed);
    scene.wait(Duration::from_millis(300)).await;
    assert_eq!(scene.granted("cash"), 0);
    assert_eq!(scene.consumer.stats().frozen.get(), 1);
    assert_eq!(scene.world.may_pass_per_s("cash"), 0.0, "nor do other topics of the process with its share");
    assert_eq!(scene.consumer.stats().requeued(Cause::Limit), 0, "and what its lane held stays there");
    scene.world.stuck_broker.store(false, Ordering::SeqCst);
    scene.wait(Duration::from_millis(200)).await;
    assert!(scene.world.may_pass_per_s("cash") > 0.0);
    scene.world.settle(5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn the_share_shrinks_when_the_topic_grows_elsewhere() {
    let scene = scene(1, rules(&["cash"]));
    scene.wait(Duration::from_millis(100)).await;
    let alone = scene.world.may_pass_per_s("cash");
    scene.world.grow();
    scene.wait(SECOND).await;
    assert_eq!(scene.world.may_pass_per_s("cash"), alone / 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_is_committed_as_far_as_it_is_finished_and_late_answers_do_nothing() {
    let scene = scene(2, rules(&["cash"]));
    *scene.world.grant_takes.lock() = Duration::from_millis(300);
    scene.world.append(0, record_of("cash", "a", 10));
    scene.wait(Duration::from_millis(50)).await;
    scene.world.rebalance(0);
    scene.wait(Duration::from_millis(100)).await;
    assert_eq!(scene.world.state.lock().committed[0], 0);
    scene.world.settle(5 * SECOND).await;
    assert!(scene.consumer.stats().late_answers.get() > 0);
    let state = scene.world.state.lock();
    assert!(state.credited.values().all(|&times| times == 2), "asked twice, credited once");
}

#[tokio::test(start_paused = true)]
async fn draining_finishes_what_is_in_flight() {
    let scene = scene(1, rules(&["cash"]));
    *scene.world.grant_takes.lock() = Duration::from_millis(100);
    scene.world.append(0, record_of("cash", "a", 40));
    scene.wait(Duration::from_millis(50)).await;
    let report = scene.consumer.drain(5 * SECOND).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(scene.world.is_drained() && scene.world.open_orders().is_empty());
}

#[tokio::test(start_paused = true)]
async fn draining_writes_back_what_hangs_or_is_held() {
    let scene = scene(1, rules(&["cash", "coin"]));
    scene.world.hanging_types.lock().insert("cash".into());
    scene.fuse("coin", Fuse::Pause);
    scene.world.append(0, record_of("cash", "a", 40));
    scene.world.append(0, record_of("coin", "b", 40));
    scene.wait(Duration::from_millis(50)).await;
    let began = tokio::time::Instant::now();
    let report = scene.consumer.drain(SECOND).await.unwrap();
    assert!(began.elapsed() < 2 * SECOND);
    assert!(report.is_clean(), "{report:?}");
    let state = scene.world.state.lock();
    assert!(state.committed[0] >= 2);
    assert!(state.violations.is_empty(), "{:?}", state.violations);
}

#[tokio::test(start_paused = true)]
async fn draining_ends_in_time_even_if_nobody_answers() {
    let scene = scene(1, rules(&["cash"]));
    scene.world.hanging_types.lock().insert("cash".into());
    scene.world.append(0, record_of("cash", "a", 40));
    scene.wait(Duration::from_millis(50)).await;
    scene.world.stuck_broker.store(true, Ordering::SeqCst);
    scene.world.dead_sink.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    let report = scene.consumer.drain(SECOND).await.unwrap();
    assert!(began.elapsed() < 9 * SECOND);
    assert!(!report.closed);
    scene.world.assert_promises();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_makes_no_progress_is_reported() {
    let scene = scene(1, rules(&["cash"]));
    *scene.world.troubles.lock() = Troubles { archive_down: 100, ..Troubles::default() };
    scene.world.dead_sink.store(true, Ordering::SeqCst);
    // Nobody takes it: not the archive, not a queue, not the file.
    scene.world.append(0, vec![0xff; 2 << 20]);
    scene.wait(15 * SECOND).await;
    assert_eq!(scene.consumer.stats().stuck_partitions.get(), 1);
    *scene.world.troubles.lock() = Troubles::default();
    scene.wait(15 * SECOND).await;
    assert!(scene.world.state.lock().archived_raw.len() == 1 || !scene.world.is_drained());
}
