//! `windfall demo`: a red-packet rain over the whole way, with troubles, and the proof at the end.

pub mod guest;
pub mod rain;
pub mod report;
mod rules;
mod troubles;
mod view;

use crate::backends::{BackendArgs, Backends};
use crate::check::journal::Line;
use crate::check::samples::{self, Sample, Sources, sampled_users};
use crate::check::{journal, ledger_side};
use crate::data::{DataDir, Manifest, place};
use crate::pipeline::{self, Pipeline, PipelineOptions, Snapshot};
use anyhow::{Context, Result, bail};
use rain::{NumberSet, Progress};
use report::{Latencies, RainReport, Report};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::block_in_place;
use troubles::{Ran, Stage};
use view::View;
use windfall_ledger::LedgerReader;
use windfall_token::KeyRing;

/// Without progress for so long, the drain gives up and leaves the rest for `--resume`.
const STALL: Duration = Duration::from_secs(60);
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(10);
/// Where a demo without `--data` keeps its files.
const DEFAULT_DATA: &str = ".windfall/demo";

/// Arguments of `windfall demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Rewards to give out
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rewards: u64,
    /// Users that they are spread over
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    users: u64,
    /// Spread the rain over so many seconds; 0: as fast as it goes. Default: 10, or 0 with --calm
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds_of_rain: Option<u64>,
    /// Seed of who gets what and of the troubles
    #[arg(long, default_value_t = 2027)]
    seed: u64,
    /// Keep everything in this directory. Default: .windfall/demo, made anew each time
    #[arg(long)]
    data: Option<PathBuf>,
    /// Finish what a killed demo left in --data; its own rewards, users and seed hold
    #[arg(long, requires = "data")]
    resume: bool,
    /// Without troubles
    #[arg(long)]
    calm: bool,
    #[command(flatten)]
    backends: BackendArgs,
    /// Print one JSON object on standard output and nothing else there (docs/demo.md names its fields)
    #[arg(long)]
    json: bool,
}

/// Arguments of `windfall reconcile`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReconcileArgs {
    /// The data directory of a demo
    #[arg(long)]
    data: PathBuf,
    /// Print one JSON object on standard output and nothing else there
    #[arg(long)]
    json: bool,
}

/// What came of it, for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Clean,
    /// The check found damage.
    Damage,
    /// Stopped before the end; `--resume` goes on.
    Interrupted,
}

/// Runs a demo.
pub fn demo(args: &DemoArgs) -> Result<Outcome> {
    let (data, manifest) = open_data(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rain = runtime.block_on(make_it_rain(&data, &manifest, args.resume))?;
    let Some(rain) = rain else {
        eprintln!(
            "Stopped. What is on its way is kept; finish it with: windfall demo --resume --data {}",
            data.path().display()
        );
        return Ok(Outcome::Interrupted);
    };
    data.finish()?;
    let report = runtime.block_on(check(&data, &manifest, Some(rain)))?;
    print(&report, args.json)
}

/// Checks the files of an earlier demo.
pub fn reconcile(args: &ReconcileArgs) -> Result<Outcome> {
    let (data, manifest) = DataDir::open(&args.data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(check(&data, &manifest, None))?;
    print(&report, args.json)
}

/// Keeps what a run leaves on shared servers apart from other runs.
fn run_name() -> String {
    format!("{:x}_{}", now_ms(), std::process::id())
}

fn print(report: &Report, json: bool) -> Result<Outcome> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(if report.ok { Outcome::Clean } else { Outcome::Damage })
}

fn open_data(args: &DemoArgs) -> Result<(DataDir, Manifest)> {
    if let (true, Some(path)) = (args.resume, &args.data) {
        if !args.backends.is_empty() {
            bail!(
                "--resume goes on with the parts that the demo began with; leave --kafka and the like away"
            );
        }
        return DataDir::open(path);
    }
    let backends = match args.backends.is_empty() {
        true => Backends::default(),
        false => args.backends.resolve(&run_name())?,
    };
    // Real servers take seconds to come back; the rain must outlast their troubles.
    let with_troubles = if backends.is_embedded() { 10 } else { 60 };
    let manifest = Manifest {
        format: 0,
        rewards: args.rewards,
        users: args.users,
        seed: args.seed,
        seconds_of_rain: args.seconds_of_rain.unwrap_or(if args.calm { 0 } else { with_troubles }),
        calm: args.calm,
        backends,
    };
    let path = match &args.data {
        Some(path) => path.clone(),
        None => {
            let path = PathBuf::from(DEFAULT_DATA);
            if path.exists() {
                // Ours, by its name and its manifest; not while another demo runs in it.
                drop(DataDir::open(&path).context("the demo's own directory cannot be made anew")?);
                std::fs::remove_dir_all(&path)
                    .with_context(|| format!("cannot delete the earlier demo in {}", path.display()))?;
            }
            path
        }
    };
    let data = DataDir::create(&path, &manifest)?;
    let store = manifest.backends.rules_store(data.path())?;
    rules::write(&*store, manifest.rewards, manifest.calm, now_ms())?;
    Ok((data, manifest))
}

/// Opens the pipeline, makes it rain, lets things go wrong, waits for the end. `None`: interrupted.
async fn make_it_rain(data: &DataDir, manifest: &Manifest, resumed: bool) -> Result<Option<RainReport>> {
    let path = data.path();
    data.begin()?;
    let intended = if resumed { intended(path)? } else { NumberSet::default() };
    if resumed {
        block_in_place(|| {
            let store = manifest.backends.rules_store(path)?;
            match rules::exist(&*store)? {
                // The killed process may have died between cutting a limit and raising it.
                true => troubles::rules_as_they_were(&*store),
                false => rules::write(&*store, manifest.rewards, manifest.calm, now_ms()),
            }
        })?;
    }
    let mut options = PipelineOptions::new(path, manifest.backends.clone(), manifest.seed);
    if !manifest.calm {
        options.badges.retry_per_mille = 50;
        options.badges.paid_then_timeout_per_mille = 10;
    }
    let (pipeline, inherited) = Pipeline::open(path, options).await?;
    let pipeline = Arc::new(pipeline);
    let progress = Arc::new(Progress::default());
    let view = Arc::new(View::new(manifest.rewards));
    if resumed {
        view.say(&format!(
            "resumed: {} of {} rewards were asked for before, {} events were found in the spool",
            intended.len(),
            manifest.rewards,
            inherited.events
        ));
    }
    for left in &inherited.set_aside {
        view.say(&format!("set aside, to be looked at: {left}"));
    }
    let interrupt = Interrupt::listen(Arc::clone(&progress));
    let watcher = watch(Arc::clone(&pipeline), Arc::clone(&progress), Arc::clone(&view));

    let started = Instant::now();
    let pouring = pour(&pipeline, path, manifest, intended, &progress);
    let troubling = async {
        let rain =
            Duration::from_secs(if manifest.seconds_of_rain == 0 { 10 } else { manifest.seconds_of_rain });
        if manifest.calm {
            return Ok(Ran::default());
        }
        let stage = Stage::new(&pipeline, path, &manifest.backends)?;
        troubles::run(&stage, manifest, rain, &progress.stop, |what| view.say(what)).await
    };
    let (poured, ran) = tokio::join!(pouring, troubling);
    let (latencies_ns, rain) = poured?;
    let ran = ran?;
    if resumed && manifest.backends.rocketmq.is_some() {
        wait_for_hidden(&progress, started).await;
    }
    let last_credit = drain(&pipeline, &progress, started).await?;
    interrupt.abort();
    watcher.abort();
    // Both end by the abort; waiting for them lets go of what they share.
    interrupt.await.ok();
    watcher.await.ok();
    let end = pipeline.snapshot().await?;
    view.show(&progress, &end);
    view.finish();
    let pipeline = Arc::into_inner(pipeline).context("a task still holds the pipeline")?;
    let closed = pipeline.close(CLOSE).await?;
    let Some(last_credit) = last_credit else { return Ok(None) };
    if closed.packs_left > 0 || closed.records_left > 0 {
        bail!(
            "closing left {} packs and {} records; go on with --resume",
            closed.packs_left,
            closed.records_left
        );
    }
    let times = Times { rain, last_credit };
    Ok(Some(rain_report(manifest, resumed, inherited.events, &end, &progress, &latencies_ns, times, ran)))
}

#[derive(Clone, Copy)]
struct Times {
    rain: Duration,
    last_credit: Duration,
}

async fn pour(
    pipeline: &Arc<Pipeline>,
    data: &Path,
    manifest: &Manifest,
    intended: NumberSet,
    progress: &Arc<Progress>,
) -> Result<(hdrhistogram::Histogram<u64>, Duration)> {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let rate_per_s =
        (manifest.seconds_of_rain > 0).then(|| manifest.rewards as f64 / manifest.seconds_of_rain as f64);
    let plan = rain::Plan {
        rewards: manifest.rewards,
        users: manifest.users,
        seed: manifest.seed,
        rate_per_s,
        done: intended.len(),
        threads: std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8)),
    };
    let sampled = sampled_users(manifest.users, manifest.seed);
    let (sdk, data, progress) = (pipeline.sdk.clone(), data.to_owned(), Arc::clone(progress));
    tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        let latencies = rain::pour(&sdk, &data, plan, &intended, &sampled, &progress)?;
        Ok((latencies, started.elapsed()))
    })
    .await?
}

/// What the killed process had received from RocketMQ is hidden for so long, and no lag counts it meanwhile.
const HIDDEN: Duration = Duration::from_secs(40);

async fn wait_for_hidden(progress: &Progress, started: Instant) {
    while started.elapsed() < HIDDEN && !progress.stop.load(Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing is on its way. Says when the last reward was credited; `None` if it was stopped.
async fn drain(pipeline: &Pipeline, progress: &Progress, started: Instant) -> Result<Option<Duration>> {
    if progress.stop.load(Relaxed) {
        return Ok(None);
    }
    match pipeline.drained(STALL, || progress.stop.load(Relaxed)).await? {
        pipeline::Drained::All { last_moved } => Ok(Some(last_moved.duration_since(started))),
        pipeline::Drained::Stopped => Ok(None),
        pipeline::Drained::Stalled(now) => {
            bail!("nothing has moved for {} s: {now:?}; go on with --resume", STALL.as_secs())
        }
    }
}

#[allow(clippy::too_many_arguments)] // one place puts the report together
#[allow(clippy::cast_precision_loss)] // for eyes
fn rain_report(
    manifest: &Manifest,
    resumed: bool,
    inherited_events: u64,
    end: &Snapshot,
    progress: &Progress,
    latencies_ns: &hdrhistogram::Histogram<u64>,
    times: Times,
    ran: Ran,
) -> RainReport {
    let guest = ran.guest.clone().unwrap_or_default();
    let per_s = |count: u64, time: Duration| count as f64 / time.as_secs_f64().max(0.001);
    let us = |quantile: f64| latencies_ns.value_at_quantile(quantile) as f64 / 1_000.0;
    RainReport {
        resumed,
        seed: manifest.seed,
        rewards: manifest.rewards,
        users: manifest.users,
        inherited_events,
        rain_s: times.rain.as_secs_f64(),
        first_send_to_last_credit_s: times.last_credit.as_secs_f64(),
        sent_per_s: per_s(progress.sent.load(Relaxed), times.rain),
        credited_per_s: per_s(view::credited(end) + guest.credited, times.last_credit),
        send_us: Latencies {
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            max: latencies_ns.max() as f64 / 1_000.0,
        },
        spool_full_waits: progress.waits.load(Relaxed),
        requeued_events: end.requeued + guest.requeued,
        duplicates_harmless: guest.already_credited
            + end.rewards.types.values().map(|one| one.already_credited).sum::<u64>(),
        tokens_dropped: end.sdk.tokens_dropped,
        guest: ran.guest,
        happenings: ran.happened,
    }
}

/// The independent check, on files that nobody holds open any more.
async fn check(data: &DataDir, manifest: &Manifest, rain: Option<RainReport>) -> Result<Report> {
    let ledger = block_in_place(|| manifest.backends.ledger_reader(data.path()))?;
    let verdict = block_in_place(|| {
        ledger_side::check(data.path(), &*manifest.backends.rules_store(data.path())?, &ledger)
    })?;
    let samples = check_samples(data.path(), manifest, &ledger).await?;
    Ok(Report::new(data, rain, verdict, samples))
}

async fn check_samples(data: &Path, manifest: &Manifest, ledger: &LedgerReader) -> Result<Vec<Sample>> {
    let tokens = manifest.backends.tokens(data).await?;
    let keys = KeyRing::load(&place::keys(data)).context("the key ring cannot be read")?;
    let sources = Sources { data, ledger, tokens: &*tokens, keys: &keys, app_id: pipeline::APP_ID };
    samples::check(&sources, &sampled_users(manifest.users, manifest.seed)).await
}

/// The numbers that an earlier process intended.
fn intended(data: &Path) -> Result<NumberSet> {
    let mut numbers = NumberSet::default();
    if data.join(journal::DIR).exists() {
        journal::read(data, |line| {
            if let Line::Intent(intent) = line {
                numbers.insert(intent.number);
            }
            Ok(())
        })?;
    }
    Ok(numbers)
}

/// Shows the live view until it is aborted.
fn watch(pipeline: Arc<Pipeline>, progress: Arc<Progress>, view: Arc<View>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            match pipeline.snapshot().await {
                Ok(now) => view.show(&progress, &now),
                Err(error) => view.say(&format!("no figures: {error:#}")),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}

/// Ctrl-C: the first stops the rain and closes in order, the second ends at once.
struct Interrupt;

impl Interrupt {
    fn listen(progress: Arc<Progress>) -> tokio::task::JoinHandle<()> {
        static AGAIN: AtomicBool = AtomicBool::new(false);
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                progress.stop.store(true, Relaxed);
                if AGAIN.swap(true, Relaxed) {
                    std::process::exit(130);
                }
                eprintln!("stopping; once more to end at once");
            }
        })
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
