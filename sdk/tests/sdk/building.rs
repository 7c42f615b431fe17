//! The builder, closing on a runtime, and dropping on one.

use crate::stage::{Mood, Scripted, Stage, brokers, comes_back, one_queue, request, rules, wait_until};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_sdk::{
    BuildError, Prize, RedPacketRain, Sdk, SdkBuilder, SdkOptions, SpoolMode, TopicState, User,
};
use windfall_token::{Algorithm, KeyFile};

/// A builder for files below `root`, with brokers that the test scripts.
pub fn builder(root: &Path, a: &Arc<Scripted>, b: &Arc<Scripted>) -> SdkBuilder {
    std::fs::write(root.join("rules.toml"), rules(1, &[("q", 100)], &[("*", "q")])).unwrap();
    if !root.join("keys.toml").exists() {
        KeyFile::create(&root.join("keys.toml"), Algorithm::HmacSha256, 0).unwrap();
    }
    let mut builder = Sdk::builder("windfall")
        .rules_file(root.join("rules.toml"))
        .keys_file(root.join("keys.toml"))
        .spool_dir(root.join("spool"));
    for (name, broker) in brokers(a, b) {
        builder = builder.broker(name, broker);
    }
    builder
}

fn send(sdk: &Sdk) {
    let rain = RedPacketRain::new(sdk, "spring-2027", "cash").unwrap();
    rain.send(1, User::id(42), 0, Prize::of(888)).unwrap();
}

#[test]
fn what_is_missing_is_named_with_the_call_that_gives_it() {
    let root = tempfile::tempdir().unwrap();
    for (built, call) in [
        (Sdk::builder("windfall").build(), "spool_dir"),
        (Sdk::builder("windfall").spool(SpoolMode::LossyMemory).build(), "keys_file"),
        (Sdk::builder("windfall").spool(SpoolMode::LossyMemory).keys_file("k").build(), "rules_file"),
    ] {
        let Err(error) = built else { panic!("built without {call}") };
        assert!(matches!(error, BuildError::Missing { call: named, .. } if named == call), "{error}");
        assert!(error.to_string().contains(call), "{error}");
    }
    let (a, b) = (Scripted::new(Mood::Store), Scripted::new(Mood::Store));
    let no_keys = builder(root.path(), &a, &b).keys_file(root.path().join("other.toml")).build();
    assert!(matches!(no_keys, Err(BuildError::Keys { .. })));
    // The rules name brokers that this one does not have.
    let ring = windfall_token::KeyRing::ephemeral().unwrap();
    let rules_only = Sdk::builder("windfall").rules_file(root.path().join("rules.toml")).keys(ring);
    let no_broker = rules_only.spool(SpoolMode::LossyMemory).build();
    assert!(matches!(no_broker, Err(BuildError::Rules(_))), "{:?}", no_broker.err());
}

#[test]
fn what_was_built_sends_and_its_next_start_inherits() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (Scripted::new(Mood::Refuse), Scripted::new(Mood::Refuse));
    let sdk = builder(root.path(), &a, &b).build().unwrap();
    send(&sdk);
    assert_eq!(sdk.close_blocking(Duration::ZERO).packs_left, 1);
    drop(sdk);

    for broker in [&a, &b] {
        *broker.mood.lock() = Mood::Store;
    }
    let sdk = builder(root.path(), &a, &b).build().unwrap();
    assert_eq!(sdk.inherited().events, 1);
    assert_eq!(sdk.close_blocking(Duration::from_secs(60)).packs_left, 0);
    assert_eq!(a.records.lock().len(), 1);
}

#[tokio::test]
async fn closing_on_a_runtime_stops_nobody_else() {
    let stage = Stage::with_brokers(SdkOptions::default(), &one_queue(), Mood::Refuse);
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    // On one thread: the ticks go on only if the close does not block it, and it is they that let its brokers go.
    let closing = stage.sdk.close(Duration::from_secs(60));
    let ticking = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for broker in [&stage.a, &stage.b] {
            *broker.mood.lock() = Mood::Store;
        }
    };
    let (report, ()) = tokio::join!(closing, ticking);
    assert_eq!(report.packs_left, 0, "the ticks were held up until the close had given up");
}

#[tokio::test]
async fn dropping_on_a_runtime_does_not_block_and_hands_over_what_there_is() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (Scripted::new(Mood::Store), Scripted::new(Mood::Store));
    let path = root.path().to_owned();
    let own = (Arc::clone(&a), Arc::clone(&b));
    let built = tokio::task::spawn_blocking(move || builder(&path, &own.0, &own.1).build());
    let sdk = built.await.unwrap().unwrap();
    send(&sdk);
    {
        // The pump cannot hand over its pack while the broker is held: a drop that waited for it would never end.
        let _held = a.records.lock();
        drop(sdk);
    }
    let arrived = move || wait_until("the event has arrived", || a.records.lock().len() == 1);
    tokio::task::spawn_blocking(arrived).await.unwrap();
}

/// A start used to fail after ten seconds where one broker was away, though the other one would have taken everything.
#[test]
fn a_start_without_brokers_takes_rewards_and_sends_them_when_one_comes() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (Scripted::new(Mood::Store), Scripted::new(Mood::Store));
    a.is_away.store(true, SeqCst);
    // This one does not even answer.
    let door = b.door.lock();
    let (path, own) = (root.path().to_owned(), (Arc::clone(&a), Arc::clone(&b)));
    // Twelve starts: with ten seconds for each they would take two minutes.
    let sdk = comes_back("a start waits for its brokers", move || {
        for _ in 1..12 {
            drop(builder(&path, &own.0, &own.1).spool(SpoolMode::LossyMemory).build().unwrap());
        }
        builder(&path, &own.0, &own.1).build().unwrap()
    });
    for _ in 0..10 {
        send(&sdk);
    }
    assert!(sdk.topics().iter().all(|topic| topic.state == TopicState::Opening), "{:?}", sdk.topics());
    a.is_away.store(false, SeqCst);
    wait_until("they have arrived", || sdk.stats().packs_in_flight == 0 && !a.records.lock().is_empty());
    assert_eq!(sdk.close_blocking(Duration::from_millis(200)).packs_left, 0);
    drop(door);
}
