//! Events whose senders want them to be granted long after now, and the service that keeps them, which refuses, hangs,
//! answers late and loses answers.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use async_trait::async_trait;
use fake::{WALL_START_MS, World, record_of, record_with, rules};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use windfall_consumer::{ConsumerHandle, Options};
use windfall_contract::long_delays::{DelayedEvent, LongDelays, NotHandedOver};
use windfall_proto::event::{self, EventRef};
use windfall_proto::record::{self, Head};

const SECOND: Duration = Duration::from_secs(1);
/// Later than any delay that a consumer keeps by itself: a day.
const LONG_MS: i64 = 86_400_000;

/// What the service does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    /// It says no, and has nothing of it.
    Refuses,
    /// It has room for so many events in each call, as with a quota.
    Has(usize),
    /// It stores all of it and says nothing.
    LosesAnswers,
    /// It stores all of it after so many seconds, and then answers.
    AnswersAfter(u64),
    /// It never answers, and stores nothing.
    Hangs,
    /// Its answer has fewer parts than the question.
    AnswersShort,
    Panics,
}

/// Keeps what it takes. An event that it has already adds nothing.
struct Service {
    world: Arc<World>,
    mood: Mutex<Mood>,
    kept: Mutex<BTreeSet<(u64, Vec<u8>)>>,
    calls: Mutex<Vec<usize>>,
    /// Order numbers that it will never take begin so.
    never: &'static str,
}

impl Service {
    fn keep(&self, events: &[DelayedEvent]) {
        for delayed in events {
            let order = event::trade_no(&delayed.event).unwrap().to_owned();
            self.world.state.lock().handed_over.insert(order);
            self.kept.lock().insert((delayed.due_ms, delayed.event.to_vec()));
        }
    }
}

#[async_trait]
impl LongDelays for Service {
    fn check(&self, delayed: &DelayedEvent) -> Result<(), String> {
        match event::trade_no(&delayed.event).unwrap().starts_with(self.never) {
            true => Err("another app's".into()),
            false => Ok(()),
        }
    }

    async fn hand_over(&self, events: &[DelayedEvent], together: usize) -> Vec<Result<(), NotHandedOver>> {
        assert!((1..=events.len()).contains(&together), "{together} of {} come in one record", events.len());
        self.calls.lock().push(events.len());
        let no = || Err(NotHandedOver("a bad moment".into()));
        let mood = *self.mood.lock();
        match mood {
            Mood::Takes => self.keep(events),
            Mood::Refuses => return vec![no(); events.len()],
            Mood::Has(room) => {
                let room = room.min(events.len());
                self.keep(&events[..room]);
                return (0..events.len()).map(|at| if at < room { Ok(()) } else { no() }).collect();
            }
            Mood::LosesAnswers => {
                self.keep(events);
                std::future::pending::<()>().await;
            }
            Mood::AnswersAfter(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                self.keep(events);
            }
            Mood::Hangs => std::future::pending::<()>().await,
            Mood::AnswersShort => return vec![Ok(()); events.len() - 1],
            Mood::Panics => panic!("a test wants the service to panic"),
        }
        vec![Ok(()); events.len()]
    }
}

struct Scene {
    world: Arc<World>,
    service: Arc<Service>,
    consumer: ConsumerHandle,
    _dir: tempfile::TempDir,
}

fn scene(mood: Mood) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(1, 7, dir.path(), rules(&["cash", "coin"]));
    let service = Arc::new(Service {
        world: Arc::clone(&world),
        mood: Mutex::new(mood),
        kept: Mutex::default(),
        calls: Mutex::default(),
        never: "foreign",
    });
    *world.long_delays.lock() = Some(Arc::clone(&service) as Arc<dyn LongDelays>);
    let consumer = world.start(options());
    Scene { world, service, consumer, _dir: dir }
}

fn options() -> Options {
    Options { commit_every_ms: 10, session_timeout_ms: 1_000, ..Options::default() }
}

impl Scene {
    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.world.assert_promises();
    }

    /// Waits until everything that was appended is committed.
    async fn drained(&self, patience: Duration) {
        let end = tokio::time::Instant::now() + patience;
        while !self.world.is_drained() {
            assert!(tokio::time::Instant::now() < end, "{:?}", self.world.state.lock().committed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.world.assert_promises();
    }

    fn granted(&self, bonus_type: &str) -> u64 {
        self.world.state.lock().granted_by_type.get(bonus_type).copied().unwrap_or(0)
    }

    fn append(&self, prefix: &str, count: u32, early_ms: i64) {
        let not_before_ms = WALL_START_MS + early_ms;
        let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms, count };
        self.world.append(0, asked_for(head, prefix));
    }

    fn kept(&self) -> usize {
        self.service.kept.lock().len()
    }

    fn set(&self, mood: Mood) {
        *self.service.mood.lock() = mood;
    }
}

/// A record whose events say themselves when they are due.
fn asked_for(head: Head<'_>, prefix: &str) -> Vec<u8> {
    let event = |nth: u32| {
        let (trade_no, mut bytes) = (format!("{prefix}-{nth}."), Vec::new());
        EventRef {
            trade_no: &trade_no,
            activity: "spring",
            bonus_type: head.bonus_type,
            ..EventRef::default()
        }
        .encode([], &mut bytes);
        event::put_not_before(&mut bytes, head.not_before_ms);
        bytes
    };
    let events: Vec<Vec<u8>> = (0..head.count).map(event).collect();
    record::build(head, events.iter().map(Vec::as_slice))
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_due_long_after_now_is_handed_over_and_finished_and_others_flow() {
    let scene = scene(Mood::Takes);
    scene.append("a", 3, LONG_MS);
    scene.append("b", 1, i64::MAX - WALL_START_MS);
    scene.world.append(0, record_of("coin", "c", 5));
    scene.drained(SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash"), scene.granted("coin")), (4, 0, 5));
    let due = u64::try_from(WALL_START_MS + LONG_MS).unwrap();
    let kept = scene.service.kept.lock();
    assert_eq!(kept.iter().filter(|(due_ms, _)| *due_ms == due).count(), 3);
    let stats = scene.consumer.stats();
    assert_eq!((stats.handed_over.get(), stats.not_handed_over.get()), (4, 0));
    assert_eq!((stats.requeued_all(), stats.not_before_clamped.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn up_to_ten_minutes_ahead_an_event_waits_here_and_is_granted_at_its_time() {
    let scene = scene(Mood::Takes);
    scene.append("a", 2, 600_000);
    scene.wait(599 * SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash")), (0, 0));
    scene.world.settle(2 * SECOND).await;
    assert_eq!(scene.granted("cash"), 2);
}

/// What a consumer's own clock that is a day ahead has put off must not come back a day later.
#[tokio::test(start_paused = true)]
async fn what_only_a_wrong_clock_puts_off_is_brought_back_and_not_handed_over() {
    let scene = scene(Mood::Takes);
    let not_before_ms = WALL_START_MS + LONG_MS;
    let head = Head { bonus_type: "cash", attempt: 1, failures: 0, not_before_ms, count: 2 };
    scene.world.append(0, record_with(head, "a"));
    // Its sender wanted it in eleven minutes, and the record says something else.
    let wanted = Head { not_before_ms: WALL_START_MS + 660_000, count: 1, ..head };
    let mut record = Vec::new();
    Head { count: 1, ..head }.encode(&mut record);
    let own = asked_for(wanted, "b");
    let (_, mut events) = record::split(&own).unwrap();
    record::push_event(&mut record, &own[events.next().unwrap().unwrap()]);
    scene.world.append(0, record);
    scene.append("foreign", 1, LONG_MS);
    scene.wait(599 * SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash")), (0, 0));
    scene.world.settle(2 * SECOND).await;
    assert_eq!(scene.consumer.stats().not_before_clamped.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn while_the_service_takes_nothing_events_wait_others_flow_and_nothing_is_lost() {
    for mood in [Mood::Refuses, Mood::Hangs, Mood::AnswersShort, Mood::Panics] {
        let scene = scene(mood);
        scene.append("a", 3, LONG_MS);
        scene.world.append(0, record_of("coin", "c", 5));
        scene.wait(120 * SECOND).await;
        assert_eq!((scene.granted("cash"), scene.granted("coin")), (0, 5), "{mood:?}");
        assert!(!scene.world.is_drained(), "{mood:?}: nobody has it yet");
        let calls = scene.service.calls.lock().len();
        assert!((8..60).contains(&calls), "{mood:?}: {calls} calls in two minutes");
        scene.set(Mood::Takes);
        scene.drained(15 * SECOND).await;
        assert_eq!((scene.kept(), scene.consumer.stats().requeued_all()), (3, 0), "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_or_late_is_asked_for_again_with_the_same_events() {
    for mood in [Mood::LosesAnswers, Mood::AnswersAfter(60)] {
        let scene = scene(mood);
        scene.append("a", 3, LONG_MS);
        scene.wait(5 * SECOND).await;
        assert!(!scene.world.is_drained(), "{mood:?}");
        scene.set(Mood::Takes);
        scene.drained(30 * SECOND).await;
        assert_eq!(scene.kept(), 3, "{mood:?}: a repeat adds nothing");
        assert!(scene.service.calls.lock().len() >= 2, "{mood:?}");
        assert_eq!(scene.granted("cash"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_lets_a_part_of_a_call_through_and_the_rest_comes_later() {
    let scene = scene(Mood::Has(5));
    for nth in 0..30 {
        scene.append(&format!("a{nth}"), 1, LONG_MS);
    }
    scene.wait(SECOND).await;
    let stored = scene.consumer.stats().handed_over.get();
    assert!(stored >= 5 && scene.consumer.stats().not_handed_over.get() > 0, "{stored}");
    scene.drained(30 * SECOND).await;
    assert_eq!(scene.kept(), 30);
    assert_eq!(scene.consumer.stats().handed_over.get(), 30);
}

/// It keeps no other one from being taken, and is taken when there is room for all of it.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_larger_than_the_service_takes_waits_as_a_whole_and_others_go_over() {
    let scene = scene(Mood::Has(2));
    scene.append("large", 3, LONG_MS);
    for nth in 0..9 {
        scene.append(&format!("a{nth}"), 1, LONG_MS);
    }
    scene.wait(60 * SECOND).await;
    assert_eq!(scene.consumer.stats().handed_over.get(), 9);
    assert!(!scene.world.is_drained());
    scene.set(Mood::Takes);
    scene.drained(30 * SECOND).await;
    assert_eq!(scene.kept(), 12);
}

#[tokio::test(start_paused = true)]
async fn many_records_that_are_too_large_keep_new_ones_waiting_for_a_moment_alone() {
    let scene = scene(Mood::Has(2));
    for nth in 0..60 {
        scene.append(&format!("large{nth}"), 3, LONG_MS);
    }
    scene.wait(60 * SECOND).await;
    assert_eq!(scene.consumer.stats().handed_over.get(), 0);
    for nth in 0..20 {
        scene.append(&format!("a{nth}"), 1, LONG_MS);
    }
    scene.wait(12 * SECOND).await;
    assert_eq!(scene.consumer.stats().handed_over.get(), 20);
    scene.set(Mood::Takes);
    scene.drained(60 * SECOND).await;
    assert_eq!(scene.kept(), 200);
}

/// Calls are as large as ever once the service is back.
#[tokio::test(start_paused = true)]
async fn after_an_outage_packed_records_go_over_many_at_a_time() {
    let scene = scene(Mood::Refuses);
    for nth in 0..200 {
        scene.append(&format!("a{nth}"), 3, LONG_MS);
    }
    scene.wait(120 * SECOND).await;
    scene.set(Mood::Takes);
    scene.service.calls.lock().clear();
    scene.drained(30 * SECOND).await;
    assert_eq!(scene.kept(), 600);
    let calls = scene.service.calls.lock().clone();
    assert!(calls.len() < 20, "{calls:?}");
}

/// The service was away for longer than the delay.
#[tokio::test(start_paused = true)]
async fn an_event_whose_time_comes_while_the_service_is_away_is_granted_here() {
    let scene = scene(Mood::Refuses);
    scene.append("a", 2, 700_000);
    scene.wait(699 * SECOND).await;
    assert_eq!(scene.granted("cash"), 0, "never early");
    scene.world.settle(2 * SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash")), (0, 2));
}

/// The answer comes when the event has been granted here: the service sends it again, and its order number credits once.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_event_was_granted_here_finishes_nothing_twice() {
    let scene = scene(Mood::Refuses);
    scene.append("a", 1, 601_000);
    scene.wait(Duration::from_millis(600_500)).await;
    scene.set(Mood::AnswersAfter(1));
    scene.wait(SECOND).await;
    scene.append("b", 1, 0);
    scene.world.settle(20 * SECOND).await;
    assert_eq!(scene.granted("cash"), 2);
    assert_eq!(scene.consumer.stats().handed_over.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn more_than_there_is_room_for_goes_round_with_its_due_time_and_does_not_stop_what_is_behind_it() {
    let scene = scene(Mood::Refuses);
    for nth in 0..600 {
        scene.append(&format!("a{nth}"), 10, LONG_MS);
    }
    scene.wait(SECOND).await;
    for nth in 0..20 {
        scene.world.append(0, record_of("coin", &format!("b{nth}"), 10));
        scene.wait(SECOND).await;
    }
    scene.wait(5 * SECOND).await;
    assert_eq!(scene.granted("coin"), 200, "behind 6,000 events that are due tomorrow");
    let requeued = scene.world.state.lock().requeued_records;
    assert!(requeued > 0 && requeued < 27 * 1_100, "{requeued} in 27 s, at 1,000 records a second at most");
    scene.set(Mood::Takes);
    scene.drained(60 * SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash")), (6_000, 0), "with the due time that each had");
}

#[tokio::test(start_paused = true)]
async fn a_drain_writes_back_what_nobody_took_and_the_next_consumer_hands_it_over() {
    let scene = scene(Mood::Hangs);
    scene.append("a", 3, LONG_MS);
    scene.wait(SECOND).await;
    let report = scene.consumer.drain(Duration::from_millis(400)).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    *scene.service.mood.lock() = Mood::Takes;
    let next = scene.world.start(options());
    while !scene.world.is_drained() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scene.world.assert_promises();
    assert_eq!((scene.service.kept.lock().len(), next.stats().handed_over.get()), (3, 3));
}

/// It dies between the answer and the commit: the record is delivered again, and handed over again.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_dies_before_its_commit_hands_over_again_and_adds_nothing() {
    let scene = scene(Mood::LosesAnswers);
    scene.append("a", 3, LONG_MS);
    scene.wait(SECOND).await;
    assert_eq!(scene.kept(), 3);
    drop(scene.consumer);
    tokio::time::sleep(SECOND).await;
    *scene.service.mood.lock() = Mood::Takes;
    let next = scene.world.start(options());
    while !scene.world.is_drained() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((scene.service.kept.lock().len(), next.stats().handed_over.get()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_moves_during_a_call_is_handed_over_by_its_next_owner() {
    let scene = scene(Mood::AnswersAfter(1));
    scene.append("a", 3, LONG_MS);
    scene.wait(SECOND / 2).await;
    scene.world.rebalance(0);
    scene.drained(30 * SECOND).await;
    assert_eq!((scene.kept(), scene.granted("cash")), (3, 0));
    // The first call was for the earlier assignment.
    assert_eq!(scene.service.calls.lock().len(), 2);
}
