//! Whatever settings validate, and whatever is away for a while: all is granted soon after it is back, an outage copies
//! no more than was in flight, and the same seed takes the same way.
//!
//! `WINDFALL_PROGRESS_SEEDS=from..to` tells other stories.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{Outage, Rng, World, record_of, rules};
use std::time::Duration;
use windfall_consumer::Options;
use windfall_contract::rules::{Fuse, Limit, Pacing};

const TYPES: [&str; 3] = ["cash", "coin", "badge"];
const OUTAGES: [Outage; 5] =
    [Outage::Store, Outage::Busy, Outage::Silent, Outage::Timeouts, Outage::Refusals];

/// Draws between the two, small numbers as often as large ones.
fn of_any_size(rng: &mut Rng, from: u64, to: u64) -> u64 {
    let sizes = u64::from((to / from.max(1)).max(1).ilog2());
    let size = 1 << rng.below(sizes + 1);
    (from.max(1) * size + rng.below(from.max(1) * size)).clamp(from, to)
}

/// Any pacing that validates; the ranges are those of `samples/rules.toml`.
fn any_pacing(rng: &mut Rng) -> Pacing {
    let deadline_ms = of_any_size(rng, 100, 600_000);
    let requeue_delay_max_ms = of_any_size(rng, 1, 3_600_000);
    Pacing {
        hold_max_ms: of_any_size(rng, 0, 10_000.min(deadline_ms)),
        deadline_ms,
        requeue_delay_ms: of_any_size(rng, 1, 60_000.min(requeue_delay_max_ms)),
        requeue_delay_max_ms,
        // What a downstream says no to for long enough is archived, which is another story.
        max_failures: 1_000,
        grant_batch: 1 + u32::try_from(rng.below(64)).unwrap(),
        in_hand_max: 64 + u32::try_from(rng.below(1_000)).unwrap(),
        lane_events_max: 4_096,
        lane_bytes_max: 1 << 20,
    }
}

fn publish(world: &World, rng: &mut Rng, step: u64) {
    for n in 0..rng.below(12) {
        let bonus_type = TYPES[usize::try_from(rng.below(3)).unwrap()];
        let count = u32::try_from(1 + rng.below(200)).unwrap();
        let partition = usize::try_from(rng.below(3)).unwrap();
        world.append(partition, record_of(bonus_type, &format!("{step}-{n}"), count));
    }
}

async fn story(seed: u64) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng(seed);
    let mut rules = rules(&TYPES);
    rules.pacing = any_pacing(&mut rng);
    for limit in rules.limits.types.values_mut() {
        limit.limit = Limit { rate_per_s: 500 + rng.below(5_000), burst: 50 };
    }
    let pacing = rules.pacing.clone();
    println!("seed {seed}: {pacing:?}");
    let world = World::new(3, seed, dir.path(), rules);
    world.each.store(rng.per_cent(30), std::sync::atomic::Ordering::SeqCst);
    let options = Options { commit_every_ms: 10, session_timeout_ms: 1_000, ..Options::default() };
    let consumer = world.start(options);
    for step in 0..6 {
        publish(&world, &mut rng, step);
        tokio::time::sleep(Duration::from_millis(rng.below(2_000))).await;
        let outage = OUTAGES[usize::try_from(rng.below(5)).unwrap()];
        let of_all = rng.per_cent(60);
        let of_one = TYPES[usize::try_from(rng.below(3)).unwrap()].to_owned();
        let (copied, in_flight) = (consumer.stats().requeued_all(), world.open_orders().len() as u64);
        *world.outage.lock() = Some((outage, (!of_all).then(|| [of_one.clone()].into())));
        if rng.per_cent(20) {
            world.set_rules(|rules| rules.limits.types.get_mut(&of_one).unwrap().fuse = Fuse::Pause);
        }
        publish(&world, &mut rng, 100 + step);
        tokio::time::sleep(Duration::from_millis(of_any_size(&mut rng, 100, 300_000))).await;
        *world.outage.lock() = None;
        world.set_rules(|rules| rules.limits.types.get_mut(&of_one).unwrap().fuse = Fuse::Closed);
        let copied = consumer.stats().requeued_all() - copied;
        // What waits in place is never copied; the first calls of a downstream that says no are.
        let may_copy = if outage == Outage::Refusals { in_flight + 8 * 64 } else { in_flight };
        assert!(!of_all || copied <= may_copy, "{outage:?}: {copied} copied, {in_flight} were in flight");
    }
    let longest_ms = 3 * pacing.requeue_delay_max_ms + 2 * pacing.deadline_ms;
    world.settle(Duration::from_millis(longest_ms) + Duration::from_secs(60)).await;
    assert!(world.state.lock().archived.is_empty());
    // What happens in the same millisecond happens in any order: reading the spill log takes real time.
    let mut trace = std::mem::take(&mut *world.trace.lock());
    trace.sort();
    trace
}

fn told(seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(story(seed))
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("WINDFALL_PROGRESS_SEEDS") else { return 0..24 };
    let (from, to) = asked.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn any_settings_make_progress_and_an_outage_copies_what_was_in_flight_at_most() {
    for seed in seeds() {
        let twice = std::panic::catch_unwind(|| (told(seed), told(seed)));
        let Ok((first, second)) = twice else { panic!("seed {seed}") };
        let differs = first.iter().zip(&second).find(|(first, second)| first != second);
        assert!(differs.is_none() && first.len() == second.len(), "seed {seed}: {differs:?}");
    }
}
