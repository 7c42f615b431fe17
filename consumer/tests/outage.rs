//! An outage: what waits is not copied, and what waited is granted soon after.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{Outage, World, record_of, rules};
use std::time::Duration;
use windfall_consumer::{ConsumerHandle, Options};
use windfall_contract::rules::{Limit, Pacing, Rules};

const TYPES: [&str; 3] = ["cash", "coin", "badge"];
const PACK: u32 = 256;
const PACKS: u32 = 1_563;
/// Of each type.
const RATE_PER_S: u64 = 4_000;

/// The shipped pacing, limits that take 35 s for the backlog, and a backlog of 400,000 events.
fn shipped() -> Rules {
    let mut rules = Rules { pacing: Pacing::default(), ..rules(&TYPES) };
    for limit in rules.limits.types.values_mut() {
        limit.limit = Limit { rate_per_s: RATE_PER_S, burst: 1_000 };
    }
    rules
}

fn options() -> Options {
    Options { commit_every_ms: 100, session_timeout_ms: 10_000, ..Options::default() }
}

/// Events in lanes and in calls.
fn events_in_flight(consumer: &ConsumerHandle) -> u64 {
    let waiting: u64 = consumer.stats().types().iter().map(|stats| stats.lane_events.get()).sum();
    waiting + consumer.stats().events_granting.get()
}

fn open_events(world: &World) -> u64 {
    u64::from(PACKS * PACK) - world.state.lock().credited.len() as u64
}

async fn backlog_under(outage: Outage, lasts: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(3, 11, dir.path(), shipped());
    for n in 0..PACKS as usize {
        world.append(n % 3, record_of(TYPES[n / 3 % 3], &format!("r{n}"), PACK));
    }
    let consumer = world.start(options());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let in_flight = events_in_flight(&consumer);
    assert!(open_events(&world) < 300_000);
    assert_eq!(consumer.stats().requeued_all(), 0, "limits alone copy nothing");
    *world.outage.lock() = Some((outage, None));
    tokio::time::sleep(lasts).await;
    *world.outage.lock() = None;
    let left = open_events(&world);
    let began = tokio::time::Instant::now();
    let patience = Duration::from_secs(left / RATE_PER_S / TYPES.len() as u64 + 15);
    while open_events(&world) > 0 {
        assert!(began.elapsed() < patience, "{} of {left} are open", open_events(&world));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let copied = consumer.stats().requeued_all();
    println!(
        "{outage:?} for {lasts:?}: {in_flight} events in flight, {left} left, {copied} copied, done {:?} after the return",
        began.elapsed()
    );
    assert!(copied <= in_flight, "{copied} events were copied, {in_flight} were in flight");
    assert!(world.state.lock().archived.is_empty());
    world.settle(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_70_s_copies_nothing_but_what_was_in_flight() {
    backlog_under(Outage::Store, Duration::from_secs(70)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_an_hour_copies_nothing_but_what_was_in_flight() {
    backlog_under(Outage::Store, Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_busy_for_an_hour_copies_nothing_but_what_was_in_flight() {
    backlog_under(Outage::Busy, Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_silent_for_70_s_copies_nothing_but_what_was_in_flight() {
    backlog_under(Outage::Silent, Duration::from_secs(70)).await;
}

#[tokio::test(start_paused = true)]
async fn downstreams_that_do_not_answer_for_an_hour_lead_neither_to_copies_nor_to_the_archive() {
    backlog_under(Outage::Timeouts, Duration::from_secs(3_600)).await;
}
