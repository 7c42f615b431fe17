//! `windfall demo --timers`: one minute of timers, with a dispatcher that is killed and a store that is closed and opened
//! again, and the proof at the end.

mod callers;
mod fleet;
mod journal;
mod plan;
mod proof;
mod report;

use super::data::DataDir;
use super::troubles::Happening;
use crate::demo::Interrupt;
use crate::outcome::Outcome;
use crate::place;
use anyhow::{Context, Result, bail};
use callers::Callers;
use fleet::Fleet;
use indicatif::HumanCount;
use journal::Journal;
use parking_lot::Mutex;
use plan::Plan;
use proof::Evidence;
use report::Report;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use windfall_contract::Clock;

/// Where the demo keeps its files without `--data`.
const DEFAULT_DATA: &str = ".windfall/demo-timers";
/// Without a delivery for so long, what is missing counts as lost.
const STALL: Duration = Duration::from_secs(30);
/// After the last delivery that is due, others that must not come have this time to come.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the store is closed.
const CLOSED: Duration = Duration::from_secs(1);
/// How long before a trouble timers may be due that it makes late.
const BEFORE_MS: u64 = 500;
/// How long after a kill timers may be due that it makes late: a lease, a beat, and the work that has piled up.
const AFTER_KILL_MS: u64 = 6_000;
/// The same after the store is open again.
const AFTER_OPENING_MS: u64 = 2_000;

/// The options of the demo of timers.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct TimersArgs {
    /// Show timers in place of rewards: so many are added, moved and cancelled over a minute, a dispatcher is killed, and
    /// the store is closed and opened again [default without a number: 300000]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "300000", help_heading = "Timers",
          value_parser = clap::value_parser!(u64).range(1_000..=10_000_000),
          conflicts_with_all = ["rewards", "users", "seconds_of_rain", "resume", "calm", "swap", "kafka",
                               "kafka2", "rocketmq", "redis", "postgres", "etcd", "ReachArgs"])]
    pub timers: Option<u64>,
    /// The seconds over which the timers' due times are spread
    #[arg(long, value_name = "N", default_value_t = 60, requires = "timers", help_heading = "Timers",
          value_parser = clap::value_parser!(u64).range(10..=3_600))]
    pub timers_seconds: u64,
}

/// What the demo is told besides.
pub struct Told<'a> {
    /// The number of timers.
    pub timers: u64,
    /// The seconds over which they are spread.
    pub seconds: u64,
    /// Decides which timers are changed.
    pub seed: u64,
    /// The directory of all files.
    pub data: Option<&'a Path>,
    /// Whether to print JSON.
    pub json: bool,
}

/// Runs the demo.
pub fn run(told: &Told<'_>) -> Result<Outcome> {
    let plan = Plan { timers: told.timers, seed: told.seed, spread_ms: told.seconds * 1_000 };
    let (path, _lock) = make_room(told.data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let Some(report) = runtime.block_on(show(plan, &path))? else {
        eprintln!("Stopped before the end, so nothing is proved. The store in {} is closed.", path.display());
        return Ok(Outcome::Interrupted);
    };
    if told.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(if report.ok { Outcome::Clean } else { Outcome::Damage })
}

/// The directory, which this process alone uses.
fn make_room(data: Option<&Path>) -> Result<(PathBuf, DataDir)> {
    let path = data.map_or_else(|| PathBuf::from(DEFAULT_DATA), Path::to_owned);
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let lock = DataDir::lock(&path)?;
    let slots = place::slots(&path);
    if slots.exists() {
        if data.is_some() {
            bail!("{} holds timers of an earlier run: name another directory, or delete it", path.display());
        }
        std::fs::remove_dir_all(&slots)
            .with_context(|| format!("the earlier demo in {} cannot be deleted", path.display()))?;
    }
    Ok((path, lock))
}

/// The minute as it passes.
struct Minute {
    plan: Plan,
    begin_ms: u64,
    begun: Instant,
    clock: Clock,
    journal: Arc<Journal>,
    happenings: Mutex<Vec<Happening>>,
    troubled: Mutex<Vec<(u64, u64)>>,
}

/// Runs the minute, and judges it. `None`: interrupted.
async fn show(plan: Plan, path: &Path) -> Result<Option<Report>> {
    let clock = Clock::system();
    let journal = Arc::new(Journal::new(plan.timers));
    let mut fleet = Fleet::new(path.to_owned(), plan.timers, Arc::clone(&journal), clock.clone());
    fleet.open().await?;
    let (stop, mut stopped) = watch::channel(false);
    let interrupt = Interrupt::listen(move || {
        stop.send_replace(true);
    });
    let minute = Minute {
        plan,
        begin_ms: clock.unix_ms(),
        begun: Instant::now(),
        clock,
        journal,
        happenings: Mutex::default(),
        troubled: Mutex::default(),
    };
    let done = tokio::select! {
        ended = minute.pass(&mut fleet) => Some(ended),
        _ = stopped.wait_for(|stop| *stop) => None,
        () = minute.tell() => None,
    };
    let left = fleet.end().await?;
    interrupt.abort();
    minute.line();
    let Some(ended) = done else { return Ok(None) };
    ended?;
    let (called, got) = minute.journal.read();
    let evidence = Evidence {
        called,
        got,
        killed: fleet.killed(),
        unnoted: fleet.unnoted(),
        left,
        troubled: minute.troubled.into_inner(),
    };
    Ok(Some(Report::new(path.display().to_string(), plan, &evidence, minute.happenings.into_inner())))
}

impl Minute {
    /// Callers and troubles, until everything has fired that must.
    async fn pass(&self, fleet: &mut Fleet) -> Result<()> {
        let callers = Callers {
            plan: self.plan,
            begin_ms: self.begin_ms,
            clock: self.clock.clone(),
            journal: Arc::clone(&self.journal),
            timers: fleet.timers(),
        };
        tokio::try_join!(callers.run(), self.troubles(fleet))?;
        self.all_fired().await;
        Ok(())
    }

    async fn troubles(&self, fleet: &mut Fleet) -> Result<()> {
        self.wait_until(30).await;
        self.happens("a dispatcher is killed; its leases run out, and the other one takes its shards over");
        let now_ms = self.clock.unix_ms();
        fleet.kill_first();
        self.troubled.lock().push((now_ms.saturating_sub(BEFORE_MS), now_ms + AFTER_KILL_MS));
        self.wait_until(50).await;
        self.happens("another dispatcher joins, and takes a part of the shards");
        fleet.join()?;
        self.wait_until(65).await;
        self.happens("the dispatchers leave in order, and the store is closed");
        let now_ms = self.clock.unix_ms();
        fleet.close().await;
        tokio::time::sleep(CLOSED).await;
        fleet.open().await?;
        self.troubled
            .lock()
            .push((now_ms.saturating_sub(BEFORE_MS), self.clock.unix_ms() + AFTER_OPENING_MS));
        self.happens("the store is open again, with two dispatchers");
        Ok(())
    }

    /// Waits for a share of the minute, in hundredths.
    async fn wait_until(&self, percent: u64) {
        let at = Duration::from_millis(self.plan.at_percent_ms(percent));
        tokio::time::sleep(at.saturating_sub(self.begun.elapsed())).await;
    }

    async fn all_fired(&self) {
        let mut last = (self.journal.delivered(), Instant::now());
        while self.journal.missing() > 0 && last.1.elapsed() < STALL {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let delivered = self.journal.delivered();
            if delivered != last.0 {
                last = (delivered, Instant::now());
            }
        }
        tokio::time::sleep(SETTLE).await;
    }

    fn happens(&self, what: &str) {
        let at_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        eprintln!("{:>7.1} s  {what}", self.begun.elapsed().as_secs_f64());
        self.happenings.lock().push(Happening { at_ms, what: what.to_owned() });
    }

    /// A line each second; never ends.
    async fn tell(&self) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            self.line();
        }
    }

    fn line(&self) {
        let counts = &self.journal.counts;
        let (fired, all) = self.journal.delivered();
        eprintln!(
            "{:>7.1} s  added {}, moved {}, cancelled {}, too late {}; fired {}, repeated {}",
            self.begun.elapsed().as_secs_f64(),
            HumanCount(counts.added.load(Relaxed)),
            HumanCount(counts.moved.load(Relaxed)),
            HumanCount(counts.cancelled.load(Relaxed)),
            HumanCount(counts.too_late.load(Relaxed)),
            HumanCount(fired),
            HumanCount(all - fired),
        );
    }
}
