//! A downstream that has no room: it holds up neither other types nor itself.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{OneServer, Outage, World, record_of, rules};
use std::time::Duration;
use windfall_consumer::{Cause, Options};
use windfall_contract::rules::{Pacing, Rules};

fn options() -> Options {
    Options { commit_every_ms: 100, session_timeout_ms: 10_000, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn cash_comes_through_behind_a_type_whose_downstream_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(1, 5, dir.path(), rules(&["cash", "gift"]));
    *world.outage.lock() = Some((Outage::DownstreamBusy, Some(["gift".to_owned()].into())));
    world.append(0, record_of("cash", "first", 10));
    // More than the lane of the gifts holds, and not so little that nobody looks behind it any more.
    for n in 0..220 {
        world.append(0, record_of("gift", &format!("g{n}"), 10));
    }
    let _consumer = world.start(Options { churn_per_s: 20, ..options() });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let granted = || world.state.lock().granted_by_type.get("cash").copied().unwrap_or(0);
    assert_eq!(granted(), 10);
    world.append(0, record_of("cash", "late", 50));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(granted(), 60, "the gifts keep the cash from being fetched");
    *world.outage.lock() = None;
    world.settle(Duration::from_secs(60)).await;
    assert!(world.state.lock().archived.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_downstream_pays_at_half_its_speed_at_least_and_nothing_is_copied_or_archived() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(1, 5, dir.path(), Rules { pacing: Pacing::default(), ..rules(&["gift"]) });
    *world.one_server.lock() = Some(OneServer::new());
    for n in 0..200 {
        world.append(0, record_of("gift", &format!("g{n}"), 10));
    }
    let consumer = world.start(options());
    for second in (20..=200).step_by(20) {
        tokio::time::sleep(Duration::from_secs(20)).await;
        println!("{second} s: {} of 2,000 paid", world.state.lock().credited.len());
    }
    assert_eq!(world.state.lock().credited.len(), 2_000, "fewer than 10 of 20 payments a second");
    world.settle(Duration::from_secs(10)).await;
    let stats = consumer.stats();
    let (failed, late) = (stats.requeued(Cause::Failed), stats.requeued(Cause::Deadline));
    assert_eq!((failed, late, stats.requeued_all()), (0, 0, 0), "copied");
    assert!(world.state.lock().archived.is_empty());
}
