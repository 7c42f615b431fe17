//! `windfall join`: another process that consumes for a running demo, until it is told to leave.

use super::backends::Kind;
use super::data::Manifest;
use super::parts::{self, Place};
use crate::outcome::Outcome;
use crate::place;
use crate::wiring::{Consuming, Wiring, Work};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use windfall_connectors::fake::FakeOptions;
use windfall_reward_service::RewardHandle;

/// How long a guest may take to leave.
const LEAVE: Duration = Duration::from_secs(15);

/// The line that a guest prints once it has credited something.
const WORKS: &str = "The second process has credited its first reward.";

/// Arguments of `windfall join`.
#[derive(Debug, Clone, clap::Args)]
pub struct JoinArgs {
    /// The data directory of a running demo with --kafka, --rocketmq (or --kafka2), --redis and --postgres
    #[arg(long)]
    data: PathBuf,
    /// Also leave when standard input ends
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

/// The counters of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    /// Orders that it credited.
    pub credited: u64,
    /// Grants of orders that had been credited before.
    pub already_credited: u64,
    /// Events that it wrote back to a queue.
    pub requeued: u64,
}

/// The topic that a guest consumes: cash is paid by the ledger, which all processes share, and Kafka divides it.
pub fn topic(manifest: &Manifest) -> Option<&'static str> {
    let parts = &manifest.backends;
    if parts.redis.is_none() || parts.postgres.is_none() {
        return None;
    }
    let topics = [("a", "cash-a"), ("b", "cash-b")];
    // Its copies go to every queue, so no broker may be one that only the demo's own process can open.
    let all_real = topics.iter().all(|(broker, _)| parts.kind(broker) != Kind::Embedded);
    topics.into_iter().find_map(|(broker, topic)| {
        (all_real && matches!(parts.kind(broker), Kind::Kafka(..))).then_some(topic)
    })
}

/// Joins, consumes and leaves.
pub fn join(args: &JoinArgs) -> Result<Outcome> {
    let manifest = Manifest::read(&args.data)?;
    let Some(topic) = topic(&manifest) else {
        bail!(
            "{} cannot be joined: its demo needs --kafka, --rocketmq or --kafka2, --redis and --postgres",
            args.data.display()
        );
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(consume(&args.data, &manifest, topic, args.until_input_ends))?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(Outcome::Clean)
}

async fn consume(
    data: &Path,
    manifest: &Manifest,
    topic: &str,
    until_input_ends: bool,
) -> Result<GuestReport> {
    let mut terminated = signal(SignalKind::terminate())?;
    std::fs::create_dir_all(place::guest(data)).context("the guest's directory cannot be made")?;
    let place = Place::of_guest(data);
    // Badges are paid by the demo's own process alone; should one come here, it comes again elsewhere.
    let away = FakeOptions { retry_per_mille: 1_000, ..parts::badge_options() };
    let (_, parts) = parts::open(&place, &manifest.backends, away, manifest.seed).await?;
    let options = parts::wiring_options(&place, vec![topic.to_owned()], manifest.seed ^ 1);
    let wiring = Wiring::start(Work { consumes: true, ..Work::default() }, parts, options).await?;
    let rewards = wiring.rewards.clone().context("a guest without a reward service")?;
    eprintln!("The second process has joined and consumes the topic {topic}.");
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        () = input_ended(), if until_input_ends => {}
        () = first_credit(&rewards) => {}
    }
    let counters = wiring.consuming.as_ref().map(Consuming::counters).unwrap_or_default();
    let requeued = counters.iter().map(|(_, stats)| stats.requeued_all()).sum();
    let salvage = wiring.consuming.as_ref().map(|consuming| Arc::clone(&consuming.salvage));
    wiring.close(LEAVE).await?;
    let waiting = salvage.map_or(0, |salvage| salvage.pending());
    if waiting > 0 {
        bail!("{waiting} records wait in the guest's salvage file; join again to send them");
    }
    let types = rewards.stats().types;
    Ok(GuestReport {
        credited: types.values().map(|one| one.credited).sum(),
        already_credited: types.values().map(|one| one.already_credited).sum(),
        requeued,
    })
}

/// Prints a line once an order is credited; never ends.
async fn first_credit(rewards: &RewardHandle) {
    while rewards.stats().types.values().all(|one| one.credited == 0) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!("{WORKS}");
    std::future::pending().await
}

async fn input_ended() {
    let mut input = tokio::io::stdin();
    let mut buffer = [0; 64];
    while matches!(input.read(&mut buffer).await, Ok(1..)) {}
}

/// A guest that the demo has started. It leaves when this is dropped, and when the demo dies: its input ends.
pub struct Guest {
    child: tokio::process::Child,
    log: PathBuf,
}

impl Guest {
    /// Starts a guest.
    pub fn start(data: &Path) -> Result<Self> {
        let own = std::env::current_exe().context("the demo's own binary cannot be found")?;
        std::fs::create_dir_all(place::guest(data)).context("the guest's directory cannot be made")?;
        let log = place::guest(data).join("log");
        let out = File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        let child = tokio::process::Command::new(own)
            .args(["join", "--until-input-ends", "--data"])
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(out)
            .spawn()
            .context("a second consumer process cannot be started")?;
        Ok(Self { child, log })
    }

    /// Whether it has credited something.
    pub fn works(&self) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|said| said.contains(WORKS))
    }

    /// Tells it to leave, and waits until it has.
    pub async fn leave(mut self) -> Result<GuestReport> {
        drop(self.child.stdin.take());
        let output = tokio::time::timeout(LEAVE * 2, self.child.wait_with_output())
            .await
            .context("the second consumer process does not leave")??;
        if !output.status.success() {
            bail!(
                "the second consumer process failed ({}); it said why in {}",
                output.status,
                self.log.display()
            );
        }
        serde_json::from_slice(&output.stdout)
            .context("the second consumer process gave a report that cannot be read")
    }
}
