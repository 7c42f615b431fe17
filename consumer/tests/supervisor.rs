//! What a supervisor does about a broker that is away, about panics, and about records that cause them.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{World, record_of, rules};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_consumer::{Options, Supervisor, SupervisorState};

fn world(partitions: usize, dir: &tempfile::TempDir) -> Arc<World> {
    World::new(partitions, 7, dir.path(), rules(&["cash", "badge"]))
}

async fn until(supervisor: &Supervisor, wanted: impl Fn(&SupervisorState) -> bool) {
    let mut states = supervisor.watch();
    let waiting = states.wait_for(wanted);
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_for_hours_is_taken_up_within_five_seconds_of_its_return() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(1, &dir);
    world.is_away.store(true, Ordering::SeqCst);
    world.append(0, record_of("cash", "a", 10));
    let supervisor = world.supervise(Options::default());
    tokio::time::sleep(Duration::from_secs(3 * 3_600)).await;
    let state = supervisor.state();
    assert!(state.is_alive() && !state.is_ready(), "{state}");
    assert_eq!(state.to_string(), "opening: the broker cannot be reached: nobody is there");
    assert_eq!((supervisor.stats().running.get(), supervisor.stats().panics.get()), (0, 0));
    world.is_away.store(false, Ordering::SeqCst);
    let back = tokio::time::Instant::now();
    until(&supervisor, |state| *state == SupervisorState::Running).await;
    assert!(back.elapsed() <= Duration::from_secs(5), "{:?}", back.elapsed());
    world.settle(Duration::from_secs(10)).await;
    assert_eq!(supervisor.stats().running.get(), 1);
    assert!(supervisor.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_broker_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(1, &dir);
    world.is_away.store(true, Ordering::SeqCst);
    let supervisor = world.supervise(Options::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let states = supervisor.watch();
    let draining = supervisor.drain(Duration::from_secs(600));
    assert_eq!(*states.borrow(), SupervisorState::Draining, "it is asked at once");
    let began = tokio::time::Instant::now();
    assert!(draining.await.unwrap().is_clean());
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(*states.borrow(), SupervisorState::Closed);
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_it_goes_on_with_the_same_source_and_its_numbers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(3, &dir);
    (0..300).for_each(|n| world.append(n % 3, record_of("cash", &format!("a{n}"), 5)));
    let supervisor = world.supervise(Options::default());
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(3)).await;
        world.loop_panics.store(1, Ordering::SeqCst);
    }
    world.settle(Duration::from_secs(120)).await;
    (300..400).for_each(|n| world.append(n % 3, record_of("cash", &format!("a{n}"), 5)));
    world.settle(Duration::from_secs(120)).await;
    let stats = Arc::clone(supervisor.stats());
    assert!(stats.panics.get() >= 1 && stats.quarantined.get() == 0);
    assert_eq!(stats.credited.get() + stats.already_credited.get(), stats.finished());
    assert_eq!(stats.credited.get(), 2_000, "each of them once, over all loops");
    assert_eq!(world.opened.load(Ordering::SeqCst), 1, "the group was never left");
    assert!(supervisor.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_panics_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(2, &dir);
    (0..50).for_each(|n| world.append(n % 2, record_of("cash", &format!("a{n}"), 5)));
    let supervisor = world.supervise(Options::default());
    tokio::time::sleep(Duration::from_millis(2)).await;
    world.poll_panics.store(2, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.settle(Duration::from_secs(60)).await;
    assert_eq!((world.opened.load(Ordering::SeqCst), supervisor.stats().panics.get()), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_after_panics_in_a_row_without_progress() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(1, &dir);
    let supervisor = world.supervise(Options { panics_max: 5, ..Options::default() });
    until(&supervisor, |state| *state == SupervisorState::Running).await;
    world.loop_panics.store(u64::MAX, Ordering::SeqCst);
    let crashed = supervisor.ended().await;
    assert_eq!(crashed.0, "5 panics in a row without progress, the last: a test wants the loop to panic");
    let state = supervisor.state();
    assert!(!state.is_alive() && !state.is_ready());
    assert_eq!((supervisor.stats().panics.get(), supervisor.stats().running.get()), (5, 0));
    assert_eq!(supervisor.ended().await, crashed, "as often as it is asked");
    assert_eq!(supervisor.drain(Duration::from_secs(1)).await, Err(crashed));
}

#[tokio::test(start_paused = true)]
async fn a_finished_tail_is_committed_though_nothing_new_comes_after_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(1, &dir);
    (0..20).for_each(|n| world.append(0, record_of("cash", &format!("a{n}"), 5)));
    let supervisor = world.supervise(Options { commit_every_ms: 60_000, ..Options::default() });
    while supervisor.stats().credited.get() < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!world.is_drained());
    world.loop_panics.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(70)).await;
    world.settle(Duration::from_secs(60)).await;
    assert_eq!(supervisor.stats().already_credited.get(), 0, "nothing was delivered again");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_supervisor_says_that_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(1, &dir);
    let supervisor = world.supervise(Options::default());
    let mut states = supervisor.watch();
    drop(supervisor);
    states.wait_for(|state| *state == SupervisorState::Closed).await.unwrap();
}
