//! The SDK process of the fleet: an activity service that links the SDK and keeps a journal. It is the one part of the
//! soak that is built with the product.

use crate::ground::SDK;
use crate::journal::{Book, Journal, Order, now_ms};
use crate::load::{BY_SDK, order};
use crate::rules::{ACTIVITY, CASH, COIN};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use windfall_config::etcd::{EtcdOptions, EtcdSource};
use windfall_sdk::brokers::{KafkaOptions, RocketOptions};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SendError, User};

/// Its number among callers.
const CALLER: u64 = 12;
/// Its file of addresses in the directory of the run.
const PLACE: &str = "sdk.json";
/// While this file is in the directory of the run, it sends nothing new.
pub const PAUSE: &str = "sdk.pause";
/// Its journal in the directory of the run.
pub const JOURNAL: &str = "journal-sdk";

/// Arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct SdkArgs {
    /// The directory of the run
    #[arg(long)]
    run: PathBuf,
    /// The directory of this process
    #[arg(long)]
    data: PathBuf,
}

/// The addresses of the servers, for the process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    /// Bootstrap servers of broker a.
    pub kafka_a: String,
    /// Bootstrap servers of broker b.
    pub kafka_b: String,
    /// The proxy of broker c.
    pub proxy: String,
    /// The broker behind it.
    pub broker: String,
    /// The endpoint of the etcd that has the rules.
    pub etcd: String,
    /// Before the names of topics.
    pub prefix: String,
    /// The key ring.
    pub keys: PathBuf,
    /// The keys that its records are signed with.
    pub signing: Option<PathBuf>,
    /// Rewards per second of the whole load.
    pub rate_per_s: u64,
}

impl Place {
    /// Writes it for the process to find.
    pub fn write(&self, run: &Path) -> Result<()> {
        Ok(std::fs::write(run.join(PLACE), serde_json::to_vec(self)?)?)
    }
}

/// Sends until SIGTERM, then closes in order.
pub fn run(args: &SdkArgs) -> Result<()> {
    let place: Place = serde_json::from_slice(&std::fs::read(args.run.join(PLACE))?)?;
    let ends = on_sigterm()?;
    std::fs::create_dir_all(&args.data)?;
    let etcd = EtcdOptions {
        endpoints: vec![place.etcd.clone()],
        copy: Some(args.data.join("rules-copy.toml")),
        ..EtcdOptions::default()
    };
    let brokers = ["a", "b", "c"].map(str::to_owned).to_vec();
    let (rules, source) = EtcdSource::open(etcd, Some(brokers), now_ms)?;
    let kafka = |at: &str| KafkaOptions {
        bootstrap_servers: at.to_owned(),
        prefix: place.prefix.clone(),
        ..KafkaOptions::default()
    };
    let rocketmq = RocketOptions {
        endpoints: vec![place.proxy.clone()],
        admin: vec![place.broker.clone()],
        prefix: place.prefix.clone(),
        ..RocketOptions::default()
    };
    let builder = Sdk::builder("windfall");
    let builder = match &place.signing {
        Some(keys) => builder.signing_file(keys, SDK),
        None => builder,
    };
    let sdk = builder
        .rules(rules)
        .keys_file(&place.keys)
        .kafka_with("a", kafka(&place.kafka_a))
        .kafka_with("b", kafka(&place.kafka_b))
        .rocketmq_with("c", rocketmq)
        .spool_dir(args.data.join("spool"))
        .build()?;
    println!("the SDK is ready");
    send(&sdk, &args.run, &place, &ends)?;
    let report = sdk.close_blocking(Duration::from_secs(10));
    println!("closed: {report:?}");
    source.close();
    Ok(())
}

fn on_sigterm() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    let mut terminate = {
        let _in_runtime = runtime.enter();
        signal(SignalKind::terminate())?
    };
    // It ends with the process.
    std::thread::spawn(move || {
        runtime.block_on(terminate.recv());
        told.store(true, Relaxed);
    });
    Ok(ends)
}

fn send(sdk: &Sdk, run: &Path, place: &Place, ends: &AtomicBool) -> Result<()> {
    let path = run.join(JOURNAL);
    let mut journal = Journal::open(&path)?;
    let (mut open, mut number) = what_is_open(&path)?;
    let rains = [CASH, COIN]
        .map(|of| (of, RedPacketRain::new(sdk, ACTIVITY, of.name)))
        .map(|(of, rain)| rain.map(|rain| (of, rain)).with_context(|| format!("no rain of {}", of.name)));
    let [cash, coin] = rains;
    let (cash, coin) = (cash?, coin?);
    let step = Duration::from_micros(1_000_000 / (place.rate_per_s * BY_SDK / 100).max(1));
    let (began, pause) = (Instant::now(), run.join(PAUSE));
    let mut due = began;
    while !ends.load(Relaxed) {
        if open.len() < 1_000 && !pause.exists() {
            let of = if number % 10 < 7 { &cash } else { &coin };
            let round = now_ms() / 1_000 % 1_000_000;
            let fresh = order(CALLER, number, round, of.0);
            journal.asked(std::slice::from_ref(&fresh))?;
            open.push(fresh);
            number += 1;
        }
        let mut left = Vec::new();
        for order in open.drain(..) {
            let rain = if order.bonus_type == CASH.name { &cash.1 } else { &coin.1 };
            match take(rain, &order) {
                Ok(()) => journal.taken([order.trade_no.as_str()])?,
                Err(SendError::SpoolFull | SendError::Busy(_) | SendError::Unanswered(_)) => left.push(order),
                Err(error) => journal.refused(&order.trade_no, &error.to_string())?,
            }
        }
        open = left;
        due = (due + step).max(Instant::now() - Duration::from_secs(1));
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::sleep(if open.is_empty() { wait } else { wait.max(Duration::from_millis(100)) });
    }
    Ok(())
}

/// Sends by the helper of the scene, which makes the order number itself.
fn take(rain: &RedPacketRain, order: &Order) -> Result<(), SendError> {
    let mut parts = order.trade_no.split('/');
    let round = parts.nth(2).and_then(|part| part.parse().ok()).unwrap_or_default();
    let packet = parts.next_back().and_then(|part| part.parse().ok()).unwrap_or_default();
    rain.send(round, User::id(order.user_id), packet, Prize::of(order.amount)).map(drop)
}

/// The rewards that an earlier process asked for without getting an answer, and the next number.
fn what_is_open(journal: &Path) -> Result<(Vec<Order>, u64)> {
    let mut book = Book::default();
    book.read(journal)?;
    let number = book.0.len() as u64;
    let open = book.0.into_values().filter(|asked| asked.taken_ms.is_none() && asked.refused.is_none());
    Ok((open.map(|asked| asked.order).collect(), number))
}
