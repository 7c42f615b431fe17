//! `windfall demo`: a red-packet rain over the whole way, with troubles, and the proof at the end.

mod backend_args;
mod backends;
pub mod data;
pub mod guest;
pub mod parts;
mod pipeline;
pub mod rain;
mod reach;
pub mod report;
mod rules;
mod servers;
mod timers;
mod troubles;
mod view;

use crate::check::journal::Line;
use crate::check::samples::{self, Sample, Sources, sampled_users};
use crate::check::{journal, ledger_side};
use crate::outcome::Outcome;
use crate::place;
use anyhow::{Context, Result, bail};
use backend_args::{BackendArgs, ServersArgs};
use backends::Backends;
use data::{DataDir, Manifest};
use pipeline::{Pipeline, Snapshot};
use rain::{NumberSet, Progress};
use report::{Latencies, RainReport, Report};
use servers::ServersProgram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::block_in_place;
use troubles::{Ran, Stage};
use view::View;
use windfall_connectors::fake::FakeOptions;
use windfall_ledger::LedgerReader;
use windfall_token::KeyRing;

/// Without progress for so long, the drain gives up and leaves the rest for `--resume`. The start of a killed broker takes a
/// minute and a half where others have the processors.
const STALL: Duration = Duration::from_secs(180);
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(20);
/// Where a demo without `--data` keeps its files.
const DEFAULT_DATA: &str = ".windfall/demo";

/// Arguments of `windfall demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// The number of rewards to give out
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rewards: u64,
    /// The number of users that the rewards are spread over
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    users: u64,
    /// Spread the rain over this many seconds; 0 means as fast as it goes [default: 10; on real servers 60; with --calm
    /// 0]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds_of_rain: Option<u64>,
    /// The seed of the random choices: who receives which reward, the sampled users and the faults; with --timers, which
    /// timers are changed
    #[arg(long, default_value_t = 2027)]
    seed: u64,
    /// The directory of all files [default: .windfall/demo, with --timers .windfall/demo-timers; made anew each time]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Finish what a killed demo left in --data, with the rewards, users and seed of that demo
    #[arg(long, requires = "data")]
    resume: bool,
    /// Break nothing, and set budgets that suffice
    #[arg(long)]
    calm: bool,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    servers: ServersArgs,
    #[command(flatten)]
    timers: timers::TimersArgs,
    /// Print one JSON object on standard output and nothing else there (docs/demo.md names its fields)
    #[arg(long)]
    json: bool,
}

/// Runs a demo.
pub fn demo(args: &DemoArgs) -> Result<Outcome> {
    if let Some(timers) = args.timers.timers {
        let seconds = args.timers.timers_seconds;
        let data = args.data.as_deref();
        return timers::run(&timers::Told { timers, seconds, seed: args.seed, data, json: args.json });
    }
    let program = args.servers.program();
    let (data, manifest) = open_data(args, program.as_ref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rain = runtime.block_on(make_it_rain(&data, &manifest, program.as_ref(), args.resume))?;
    let Some(rain) = rain else {
        eprintln!(
            "Stopped. What is on its way is kept; finish it with: windfall demo --resume --data {}",
            data.path().display()
        );
        return Ok(Outcome::Interrupted);
    };
    data.finish()?;
    // What the check reads shall come in place of what the pipeline held. mimalloc gives its part back by itself.
    crate::memory::give_back();
    let report = runtime.block_on(check(&data, &manifest, Some(rain)))?;
    print(&report, args.json)
}

/// Checks the files of an earlier demo.
pub fn reconcile(data: &Path, json: bool) -> Result<Outcome> {
    let (data, manifest) = DataDir::open(data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(check(&data, &manifest, None))?;
    print(&report, json)
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

fn open_data(args: &DemoArgs, program: Option<&ServersProgram>) -> Result<(DataDir, Manifest)> {
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
        false => args.backends.resolve(&run_name(), program)?,
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
                    .with_context(|| format!("the earlier demo in {} cannot be deleted", path.display()))?;
            }
            path
        }
    };
    let data = DataDir::create(&path, &manifest)?;
    let store = manifest.backends.rules().store(data.path(), None)?;
    rules::write(&*store, manifest.rewards, manifest.calm, now_ms())?;
    Ok((data, manifest))
}

/// Opens the pipeline, makes it rain, lets things go wrong, waits for the end. `None`: interrupted.
async fn make_it_rain(
    data: &DataDir,
    manifest: &Manifest,
    program: Option<&ServersProgram>,
    resumed: bool,
) -> Result<Option<RainReport>> {
    let path = data.path();
    data.begin()?;
    let intended = if resumed { intended(path)? } else { NumberSet::default() };
    if resumed {
        block_in_place(|| {
            let store = manifest.backends.rules().store(path, None)?;
            match rules::exist(&*store)? {
                // The killed process may have died between cutting a limit and raising it.
                true => troubles::rules_as_they_were(&*store),
                false => rules::write(&*store, manifest.rewards, manifest.calm, now_ms()),
            }
        })?;
    }
    let mut badges = FakeOptions { seed: manifest.seed, ..parts::badge_options() };
    if !manifest.calm {
        badges.retry_per_mille = 50;
        badges.paid_then_timeout_per_mille = 10;
    }
    let pipeline = Arc::new(Pipeline::open(path, &manifest.backends, badges, manifest.seed).await?);
    let inherited = &pipeline.wiring.inherited;
    let inherited_events = inherited.events;
    let progress = Arc::new(Progress::default());
    let view = Arc::new(View::new(manifest.rewards));
    if resumed {
        view.say(&format!(
            "resumed: {} of {} rewards were asked for before, {} events were found in the spool",
            intended.len(),
            manifest.rewards,
            inherited_events
        ));
    }
    for left in &inherited.set_aside {
        view.say(&format!("set aside, to be looked at: {left}"));
    }
    let stopping = Arc::clone(&progress);
    let interrupt = Interrupt::listen(move || stopping.stop.store(true, Relaxed));
    let watcher = watch(Arc::clone(&pipeline), Arc::clone(&progress), Arc::clone(&view));

    let started = Instant::now();
    let pouring = pour(&pipeline, path, manifest, intended, &progress);
    let troubling = async {
        let rain =
            Duration::from_secs(if manifest.seconds_of_rain == 0 { 10 } else { manifest.seconds_of_rain });
        if manifest.calm {
            return Ok(Ran::default());
        }
        for line in left_running(&manifest.backends, program.is_some()) {
            view.say(&line);
        }
        let stage = Stage::new(&pipeline, path, &manifest.backends, program)?;
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
    let end = pipeline.snapshot().await;
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
    Ok(Some(rain_report(manifest, resumed, inherited_events, &end, &progress, &latencies_ns, times, ran)))
}

/// Prints which real servers no trouble stops, and why.
fn left_running(backends: &Backends, has_program: bool) -> Vec<String> {
    let is_ours = |name: &str| backends.controlled.iter().any(|own| own == name);
    let (ours, others): (Vec<&str>, Vec<&str>) =
        backends.servers().map(|(name, _)| name).partition(|name| is_ours(name));
    let mut lines = Vec::new();
    if !others.is_empty() {
        lines.push(format!("{}: given by address, so no trouble freezes or kills it", others.join(", ")));
    }
    if !ours.is_empty() && !has_program {
        lines.push(format!(
            "{}: no trouble freezes or kills it, because the program windfall-servers is not named \
             (--servers-program or WINDFALL_SERVERS_PROGRAM)",
            ours.join(", ")
        ));
    }
    lines
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

/// How long records that the killed process had received from RocketMQ stay hidden; no lag counts them meanwhile.
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

/// Runs the independent check on files that no process holds open any more.
async fn check(data: &DataDir, manifest: &Manifest, rain: Option<RainReport>) -> Result<Report> {
    let ledger = block_in_place(|| manifest.backends.ledger().open_reader(data.path()))?;
    let verdict = block_in_place(|| {
        ledger_side::check(data.path(), &*manifest.backends.rules().store(data.path(), None)?, &ledger)
    })?;
    let samples = check_samples(data.path(), manifest, &ledger).await?;
    Ok(Report::new(data, rain, verdict, samples))
}

async fn check_samples(data: &Path, manifest: &Manifest, ledger: &LedgerReader) -> Result<Vec<Sample>> {
    let tokens = manifest.backends.tokens().open(data).await?;
    let keys = KeyRing::load(&place::keys(data)).context("the key ring cannot be read")?;
    let sources = Sources { data, ledger, tokens: &*tokens, keys: &keys, app_id: parts::APP_ID };
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
            view.show(&progress, &pipeline.snapshot().await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}

/// Ctrl-C: the first stops what goes on and closes in order, the second ends at once.
struct Interrupt;

impl Interrupt {
    fn listen(stop: impl Fn() + Send + 'static) -> tokio::task::JoinHandle<()> {
        static AGAIN: AtomicBool = AtomicBool::new(false);
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                stop();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_no_trouble_stops_are_named() {
        let backends = Backends {
            kafka: Some("host:9092".into()),
            redis: Some("redis://127.0.0.1".into()),
            controlled: vec!["redis".into()],
            ..Backends::default()
        };
        let with = left_running(&backends, true);
        assert!(with.len() == 1 && with[0].starts_with("kafka: given by address"), "{with:?}");
        let without = left_running(&backends, false);
        assert!(without.len() == 2 && without[1].starts_with("redis: "), "{without:?}");
        assert!(left_running(&Backends::default(), false).is_empty());
    }
}
