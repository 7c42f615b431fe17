//! The RocketMQ driver on a real server: the conformance suite, and what may happen to a server.
#![allow(clippy::unwrap_used)] // tests

#[path = "rocketmq/ground.rs"]
mod ground;
#[path = "rocketmq/interop.rs"]
mod interop;
#[path = "rocketmq/refusals.rs"]
mod refusals;
#[path = "rocketmq/strangers.rs"]
mod strangers;
#[path = "rocketmq/tls.rs"]
mod tls;
#[path = "rocketmq/troubles.rs"]
mod troubles;

use ground::{Ground, drain, prefix, reader, write};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::broker::{CHECKS, Fixture};
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};

/// One check's broker: all checks run at once, so each has names of its own.
struct Stage {
    options: RocketOptions,
    /// Of each broker that was opened.
    reasons_to_repeat: Mutex<Vec<Arc<AtomicU64>>>,
}

#[async_trait::async_trait]
impl Fixture for Stage {
    fn name(&self) -> &str {
        "rocketmq"
    }

    fn prefix(&self) -> &str {
        // The driver puts its own before each name.
        ""
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(90)
    }

    fn quiet(&self) -> Duration {
        // Hidden for 16 s and shown up to 3 s later.
        Duration::from_secs(22)
    }

    fn reasons_to_repeat(&self) -> u64 {
        self.reasons_to_repeat.lock().iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    async fn open(&self) -> Result<Arc<dyn Broker>, OpenError> {
        let broker = Arc::new(RocketBroker::open(&self.options)?);
        self.reasons_to_repeat.lock().push(broker.reasons_to_repeat());
        Ok(broker)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn conformance() {
    let ground = Ground::shared().await;
    let only = std::env::var("CHECK").ok();
    let checks = CHECKS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    let runs = checks.map(|(name, _)| {
        let prefix = format!("{}{name}-", ground.options.prefix);
        // All checks at once on a busy machine, where a second member may take 8 s to join: a shorter hiding
        // ends before it is extended.
        let stage = Stage {
            options: RocketOptions { prefix, invisible_ms: 16_000, instances: 4, ..ground.options.clone() },
            reasons_to_repeat: Mutex::default(),
        };
        async move {
            let started = Instant::now();
            let outcome = windfall_conformance::broker::run_one(&stage, name).await;
            println!("{name}: {:?} {outcome:?}", started.elapsed());
            outcome.err().map(|what| (*name, what))
        }
    });
    let failed: Vec<_> = futures_util::future::join_all(runs).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What is held is extended for as long as polls come: three times its hiding, and nobody else gets it. A machine that is too busy
/// to extend in time has a reason to repeat, which is counted; then the same is tried again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn held_for_long() {
    let ground = Ground::shared().await;
    for attempt in 0..4 {
        let options = RocketOptions { prefix: prefix(), invisible_ms: 12_000, ..ground.options.clone() };
        let broker = RocketBroker::open(&options).unwrap();
        let Err(what) = holds_for_long(&broker).await else { return };
        assert!(broker.reasons_to_repeat().load(Ordering::Relaxed) > 0, "{what}, for no reason");
        println!("attempt {attempt}: {what}, since the machine was too busy to extend in time");
    }
    panic!("records came again in every attempt");
}

async fn holds_for_long(broker: &RocketBroker) -> Result<(), &'static str> {
    broker.ensure_topic("long", 4).unwrap();
    let mut holder = reader(broker, "long", "g").await;
    write(broker, "long", 0..50).await;
    let held = holder.read(50, Duration::from_secs(60)).await.unwrap();
    assert_eq!(held.len(), 50);
    let mut other = reader(broker, "long", "g").await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(38) {
        if !drain(&mut holder, Duration::from_millis(50)).await.is_empty() {
            return Err("a record came to its holder again");
        }
        if !drain(&mut other, Duration::from_millis(50)).await.is_empty() {
            return Err("a record came to another");
        }
    }
    holder.commit().await.unwrap();
    assert_eq!(broker.lag("long", "g").await.unwrap().records(), 0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(17) {
        if !drain(&mut other, Duration::from_millis(100)).await.is_empty() {
            return Err("a record came again though it was finished");
        }
    }
    Ok(())
}

/// A member that leaves gives back what it holds; another has it within seconds, not after the hiding's 30.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn given_back() {
    let ground = Ground::shared().await;
    let broker = RocketBroker::open(&ground.options).unwrap();
    broker.ensure_topic("back", 4).unwrap();
    for (round, by_close) in [(0, true), (1, false)] {
        let mut leaver = reader(&broker, "back", "g").await;
        write(&broker, "back", round * 40..round * 40 + 40).await;
        leaver.read(40, Duration::from_secs(60)).await.unwrap();
        let left = Instant::now();
        if by_close {
            leaver.close().await
        } else {
            drop(leaver)
        }
        let mut next = reader(&broker, "back", "g").await;
        next.read(40, Duration::from_secs(60)).await.unwrap();
        let took = left.elapsed();
        println!("given back within {took:?}");
        assert!(took < Duration::from_secs(20), "the hiding of 30 s, not the return, brought them: {took:?}");
        next.commit().await.unwrap();
        next.close().await;
    }
}
