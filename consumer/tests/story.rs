//! Whole lives of a consumer under random trouble: whatever the seed brings, every event ends credited or
//! archived (I2), and no commit passes one that is not finished (I3).
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{Rng, Troubles, World, record_of, rules};
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_consumer::Options;

const TYPES: [&str; 3] = ["cash", "coin", "badge"];

fn options() -> Options {
    Options { commit_every_ms: 10, session_timeout_ms: 1_000, ..Options::default() }
}

/// Publishes, rebalances and kills at moments that the seed picks, then lets it settle.
async fn live(seed: u64, troubles: Troubles) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng(seed);
    let world = World::new(3, seed, dir.path(), rules(&TYPES));
    *world.troubles.lock() = troubles;
    // Every other story is told on a broker that wants to hear of each record.
    world.each.store(seed % 2 == 1, Ordering::SeqCst);
    let mut consumer = Some(world.start(options()));
    let mut malformed = 0;
    for step in 0..60 {
        match rng.below(12) {
            0..=6 => {
                for n in 0..rng.below(8) {
                    let bonus_type = TYPES[usize::try_from(rng.below(3)).unwrap()];
                    let count = u32::try_from(1 + rng.below(20)).unwrap();
                    let partition = usize::try_from(rng.below(3)).unwrap();
                    let payload = record_of(bonus_type, &format!("{seed}-{step}-{n}"), count);
                    world.append(partition, payload);
                }
            }
            7 => world.rebalance(u32::try_from(rng.below(3)).unwrap()),
            8 => {
                // A crash: everything in memory is gone.
                drop(consumer.take());
                tokio::time::sleep(Duration::from_millis(50)).await;
                consumer = Some(world.start(options()));
            }
            9 => {
                malformed += 1;
                world.append(0, b"\x0a\x04cash\x28\x02\x32\x01x".to_vec());
            }
            _ => tokio::time::sleep(Duration::from_millis(rng.below(100))).await,
        }
        tokio::time::sleep(Duration::from_millis(rng.below(10))).await;
    }
    world.settle(Duration::from_secs(600)).await;
    *world.troubles.lock() = Troubles::default();
    let report = consumer.unwrap().drain(Duration::from_secs(10)).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    world.assert_promises();
    let state = world.state.lock();
    assert_eq!(state.events_in_calls, 0);
    assert_eq!(state.archived_raw.is_empty(), malformed == 0, "malformed records are archived");
}

fn story(seeds: std::ops::Range<u64>, troubles: Troubles) {
    for seed in seeds {
        let told = std::panic::catch_unwind(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(live(seed, troubles));
        });
        assert!(told.is_ok(), "seed {seed} with {troubles:?}");
    }
}

#[test]
fn fair_weather() {
    story(0..10, Troubles::default());
}

#[test]
fn grants_that_fail_hang_or_lose_their_answer() {
    let troubles = Troubles {
        retry: 10,
        timeout_after_credit: 5,
        undecided: 5,
        reject: 2,
        hang: 2,
        short_answer: 3,
        ..Troubles::default()
    };
    story(100..120, troubles);
}

#[test]
fn queues_that_refuse_and_a_broker_that_fails() {
    let troubles = Troubles {
        retry: 20,
        refuse_requeue: 30,
        lose_requeue_answer: 5,
        commit_fails: 20,
        poll_fails: 10,
        archive_down: 50,
        reject: 5,
        ..Troubles::default()
    };
    story(200..220, troubles);
}
