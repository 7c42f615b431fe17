//! An independent peer: what RocketMQ's official Rust client sends we read, and what we send it reads.
//! It is a program of its own (`tools/interop/rocketmq`), so that its dependencies stay out of ours.

use super::ground::{Ground, drain, reader, write_payloads};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use windfall_contract::broker::Broker;
use windfall_queue_rocketmq::RocketBroker;

const COUNT: usize = 100;

fn program() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tools/interop/rocketmq/target/debug/windfall-rocketmq-peer");
    let program = std::env::var_os("WINDFALL_ROCKETMQ_PEER").map_or(default, PathBuf::from);
    assert!(program.is_file(), "{} is absent: run cargo build in tools/interop/rocketmq", program.display());
    program
}

/// Runs the peer; what it says at last.
async fn peer(words: Vec<String>) -> Value {
    let run = move || {
        let output = Command::new(program()).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text} {said}", output.status);
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn bodies(from: &str) -> BTreeSet<String> {
    (0..COUNT).map(|number| format!("{from}-{number}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn theirs_is_read_by_us() {
    let ground = Ground::shared().await;
    let broker = RocketBroker::open(&ground.options).unwrap();
    broker.ensure_topic("theirs", 4).unwrap();
    let mut reader = reader(&broker, "theirs", "g").await;
    let topic = format!("{}theirs", ground.options.prefix);
    let words = ["send".into(), ground.options.endpoints[0].clone(), topic, COUNT.to_string()];
    peer(words.to_vec()).await;
    let mut seen = Vec::new();
    let started = Instant::now();
    while seen.len() < COUNT && started.elapsed() < Duration::from_secs(60) {
        for record in drain(&mut reader, Duration::from_millis(200)).await {
            assert!(record.key.is_empty(), "they know no partition keys");
            seen.push(String::from_utf8(record.payload.to_vec()).unwrap());
        }
    }
    assert_eq!((seen.len(), seen.into_iter().collect()), (COUNT, bodies("peer")));
    reader.commit().await.unwrap();
    assert_eq!(broker.lag("theirs", "g").await.unwrap().records(), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn ours_is_read_by_them() {
    let ground = Ground::shared().await;
    let broker = RocketBroker::open(&ground.options).unwrap();
    broker.ensure_topic("ours", 4).unwrap();
    // The group begins at the first record.
    broker.consumer("ours", "peer").await.unwrap().close().await;
    // In batches, with keys, as every sender does.
    let payloads = bodies("ours").into_iter().map(String::into_bytes).collect();
    write_payloads(&broker, "ours", payloads).await;
    let name = |what: &str| format!("{}{what}", ground.options.prefix);
    let words = [
        "receive".into(),
        ground.options.endpoints[0].clone(),
        name("ours"),
        name("peer"),
        COUNT.to_string(),
        "2".into(),
    ];
    let answer = peer(words.to_vec()).await;
    println!("{COUNT} received and acknowledged by them within {} s", answer["seconds"]);
    let seen = answer["bodies"].as_array().unwrap().iter().map(|body| body.as_str().unwrap().to_owned());
    let seen: Vec<_> = seen.collect();
    assert_eq!((seen.len(), seen.into_iter().collect()), (COUNT, bodies("ours")));
    // What they have acknowledged is acknowledged.
    assert_eq!(broker.lag("ours", "peer").await.unwrap().records(), 0);
}
