//! A record that makes the loop panic is found and archived alone; every other one is granted.
#![cfg(feature = "sabotage")]
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{World, record_of, record_with, rules};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_consumer::sabotage::{Stage, panic_at};
use windfall_consumer::{Options, Signatures, Supervisor, SupervisorState, Unsigned};
use windfall_contract::rewards::Rejection;
use windfall_contract::rules::Fuse;
use windfall_proto::record::Head;
use windfall_signing::{LiveRing, QueueTag, Ring, Signer, Verifier};

fn world(dir: &tempfile::TempDir) -> Arc<World> {
    World::new(4, 7, dir.path(), rules(&["cash", "badge"]))
}

/// 400 records, and the poisoned ones among them.
fn fill(world: &World, poisons: &[(usize, &str)]) {
    for n in 0..400 {
        if let Some((_, poison)) = poisons.iter().find(|(at, _)| *at == n) {
            world.append(n % 4, record_of("cash", poison, 7));
        }
        world.append(n % 4, record_of(if n % 3 == 0 { "badge" } else { "cash" }, &format!("good{n}"), 5));
    }
}

async fn is_settled_but_for(world: &Arc<World>, supervisor: Supervisor, poisons: &[&str]) {
    world.settle(Duration::from_secs(600)).await;
    {
        let state = world.state.lock();
        assert_eq!(state.archived_raw.len(), poisons.len(), "each poison once, and nothing else");
        let expected = poisons.iter().flat_map(|poison| (0..7).map(move |n| format!("{poison}-{n}.")));
        let expected: std::collections::BTreeMap<_, _> =
            expected.map(|order| (order, Rejection::Quarantined)).collect();
        assert_eq!(state.archived, expected);
        assert_eq!(state.credited.len(), 2_000, "all innocent ones are granted");
    }
    assert_eq!(world.opened.load(Ordering::SeqCst), 1, "no other member was given the record");
    assert_eq!(supervisor.stats().quarantined.get(), poisons.len() as u64);
    assert_eq!(supervisor.state(), SupervisorState::Running);
    // What comes later is as before.
    world.append(0, record_of("cash", "later", 5));
    world.settle(Duration::from_secs(60)).await;
    assert!(supervisor.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_panics_on_its_arrival_is_archived_alone() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    panic_at(Stage::Arrival, "poison-arrives");
    fill(&world, &[(201, "poison-arrives")]);
    let supervisor = world.supervise(Options::default());
    is_settled_but_for(&world, supervisor, &["poison-arrives"]).await;
}

/// A replay of what is quarantined grants its events, so what nobody has signed must not be among it. // I12
#[tokio::test(start_paused = true)]
async fn one_that_nobody_has_signed_is_archived_as_unverified() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    let ring = LiveRing::new(Ring::ephemeral("mall").unwrap());
    let signer = Signer::new(&ring, "mall", "acme").unwrap();
    let (verifier, unsigned) = (Verifier::new(&ring, "acme"), Unsigned::Refuse);
    *world.signatures.lock() = Some(Signatures { verifier, unsigned });
    panic_at(Stage::Arrival, "poison-unsigned");
    panic_at(Stage::Arrival, "poison-signed");
    let signed = |prefix| signer.sign_record(&record_of("cash", prefix, 7), QueueTag::of("rain")).unwrap();
    world.append(0, record_of("cash", "poison-unsigned", 7));
    world.append(0, signed("poison-signed"));
    world.append(0, signed("good"));
    let supervisor = world.supervise(Options::default());
    world.settle(Duration::from_secs(600)).await;
    {
        let state = world.state.lock();
        assert_eq!((state.archived_raw.len(), state.credited.len()), (2, 7));
        for (order, rejection) in &state.archived {
            let is_signed = order.starts_with("poison-signed");
            let expected = if is_signed { Rejection::Quarantined } else { Rejection::Unverified };
            assert_eq!(*rejection, expected, "{order}");
        }
    }
    assert_eq!(supervisor.stats().quarantined.get(), 2);
    assert!(supervisor.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn so_is_one_whose_answer_panics_where_each_record_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    world.each.store(true, Ordering::SeqCst);
    panic_at(Stage::Answer, "poison-answer");
    fill(&world, &[(13, "poison-answer")]);
    *world.grant_takes.lock() = Duration::from_millis(3);
    let supervisor = world.supervise(Options::default());
    world.settle(Duration::from_secs(600)).await;
    let state = world.state.lock();
    assert_eq!(state.archived_raw.len(), 1);
    assert!(state.archived.keys().all(|order| order.starts_with("poison-answer")));
    // The downstream had credited the poisoned ones before the loop saw the answer.
    assert_eq!(state.credited.len(), 2_007);
    assert_eq!((supervisor.stats().quarantined.get(), world.opened.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn so_is_one_that_panics_on_its_way_back_among_troubles() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    panic_at(Stage::WriteBack, "poison-back");
    // Of a type that the rules do not know: it goes back to a queue.
    let head = Head { bonus_type: "ticket", attempt: 0, failures: 0, not_before_ms: 0, count: 7 };
    fill(&world, &[]);
    world.append(1, record_with(head, "poison-back"));
    world.append(1, record_of("cash", "behind", 5));
    *world.troubles.lock() =
        fake::Troubles { retry: 5, undecided: 5, commit_fails: 10, poll_fails: 5, ..Default::default() };
    let supervisor = world.supervise(Options::default());
    world.settle(Duration::from_secs(600)).await;
    let state = world.state.lock();
    assert_eq!(state.archived_raw.len(), 1);
    assert!(state.archived.keys().all(|order| order.starts_with("poison-back")));
    assert_eq!(state.credited.len(), 2_005);
    assert_eq!((supervisor.stats().quarantined.get(), world.opened.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn several_are_found_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    let poisons = ["poison-1st", "poison-2nd", "poison-3rd", "poison-4th"];
    poisons.iter().for_each(|poison| panic_at(Stage::Arrival, poison));
    fill(&world, &[(7, poisons[0]), (8, poisons[1]), (150, poisons[2]), (399, poisons[3])]);
    let supervisor = world.supervise(Options::default());
    is_settled_but_for(&world, supervisor, &poisons).await;
}

#[tokio::test(start_paused = true)]
async fn records_that_wait_for_a_fuse_do_not_hide_it() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    world.set_rules(|rules| {
        rules.limits.types.get_mut("badge").unwrap().fuse = Fuse::Pause;
        rules.pacing.deadline_ms = 30_000;
    });
    panic_at(Stage::Arrival, "poison-fuse");
    fill(&world, &[(201, "poison-fuse")]);
    let supervisor = world.supervise(Options::default());
    while supervisor.stats().quarantined.get() == 0 {
        assert!(supervisor.state().is_alive(), "{}", supervisor.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.set_rules(|rules| rules.limits.types.get_mut("badge").unwrap().fuse = Fuse::Closed);
    is_settled_but_for(&world, supervisor, &["poison-fuse"]).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_finished_before_the_archive_has_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    world.troubles.lock().archive_down = 100;
    panic_at(Stage::Arrival, "poison-kept");
    fill(&world, &[(20, "poison-kept")]);
    let supervisor = world.supervise(Options::default());
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.open_orders().len(), 7, "the others are granted meanwhile");
    assert!(!world.is_drained() && world.state.lock().archived_raw.is_empty());
    assert_eq!(world.state.lock().requeued_records, 0, "it does not go round through the queues");
    world.troubles.lock().archive_down = 0;
    is_settled_but_for(&world, supervisor, &["poison-kept"]).await;
}

#[tokio::test(start_paused = true)]
async fn where_every_record_panics_few_are_archived_and_it_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(&dir);
    panic_at(Stage::Arrival, "everything-");
    (0..40).for_each(|n| world.append(n % 4, record_of("cash", &format!("everything-{n}"), 5)));
    let supervisor = world.supervise(Options::default());
    let crashed = supervisor.ended().await;
    assert!(crashed.0.starts_with("every record makes it panic"), "{crashed}");
    drop(supervisor);
    assert!(world.state.lock().archived_raw.len() <= 3);
    world.assert_promises();
}
