//! `windfall-soak`: a fleet of real processes on real servers, under load and under faults that a seed decides, and an
//! oracle that looks for damage. `./dev soak` runs it; docs/soak.md explains it.
//!
//! The way of a run: [`plan`] draws the faults, [`ground`] starts the servers, [`fleet`] the processes, [`load`] the
//! callers with their [`journal`]s, [`timers`] those of timers, [`queue_load`] those of the task queue, [`job_load`] those of
//! jobs with their [`executor`], [`chaos`] does the faults, and [`oracle`], [`timer_oracle`], [`queue_oracle`] and
//! [`job_oracle`] compare journals, SQL rows ([`sql`]) and the book of the downstream system ([`shop`]).

mod chaos;
mod control;
mod draw;
mod event_book;
mod executor;
mod fleet;
mod ground;
mod job_book;
mod job_load;
mod job_oracle;
mod journal;
mod load;
mod oracle;
mod plan;
mod queue_book;
mod queue_load;
mod queue_oracle;
mod report;
mod rules;
mod run;
mod scheduler_calls;
mod sdk_process;
mod shop;
mod sql;
mod timer_journal;
mod timer_oracle;
mod timers;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use control::Control;
use plan::Kind;
use run::Options;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Run a fleet of real processes on real servers under faults that a seed decides, and look for damage.
///
/// Exit codes: 0 nothing was wrong, 1 there is damage, 2 the arguments are wrong, 3 the soak itself failed, 130
/// interrupted.
#[derive(Debug, Parser)]
#[command(name = "windfall-soak", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Decides the faults; the same seed, minutes and kinds give the same faults [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// How long the load lasts, in minutes: 0.2 to 1440
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Rewards per second: 20 to 100000
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(20..=100_000))]
    rate: u64,
    /// How much longer than backlog ÷ rate the rewards may take after the last fault, in seconds: more on a machine that
    /// has too few processors for the fleet
    #[arg(long, default_value_t = 30)]
    slack: u32,
    /// Only these kinds of fault, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Option<Vec<Kind>>,
    /// Break something on purpose; exit code 0 then means that the oracle found it
    #[arg(long, value_enum)]
    control: Option<Control>,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Keep the directory of the run (logs, journals) also where nothing was wrong
    #[arg(long)]
    keep: bool,
    /// The program `windfall` [default: beside this program]
    #[arg(long, env = "WINDFALL_BINARY")]
    windfall: Option<PathBuf>,
    /// The program `windfall` of an earlier version: all processes begin with it, and each restart in turn takes the
    /// other version, at least twice in a run [default: one version alone]
    #[arg(long)]
    earlier: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The SDK process of a run, which the soak starts
    #[command(hide = true)]
    SdkProcess(sdk_process::SdkArgs),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Some(Command::SdkProcess(own)) => sdk_process::run(own).map(|()| 0),
        None if !(0.2..=1_440.0).contains(&arguments.minutes) => {
            eprintln!("soak: --minutes is {}, but only 0.2 to 1440 is allowed", arguments.minutes);
            Ok(2)
        }
        None => soak(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::from(3)
        }
    }
}

fn soak(arguments: &Arguments) -> Result<u8> {
    let stop = on_interrupt()?;
    let seed = arguments.seed.unwrap_or_else(|| journal::now_ms() % 1_000_000);
    let options = Options {
        seed,
        length: Duration::from_secs_f64(arguments.minutes * 60.0),
        rate_per_s: arguments.rate,
        kinds: arguments.faults.clone().unwrap_or_else(|| Kind::value_variants().to_vec()),
        control: arguments.control,
        earlier: earlier(arguments)?,
        slack: Duration::from_secs(arguments.slack.into()),
        replay: replay(arguments, seed),
    };
    let dir = tempfile::Builder::new()
        .prefix("windfall-soak-")
        // PostgreSQL's user must be able to enter.
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .context("no directory can be made for this run")?;
    let program = program(arguments)?;
    let result = run::run(&options, dir.path(), &program, &stop);
    let is_sound = matches!(&result, Ok(None)) || matches!(&result, Ok(Some(report)) if report.is_sound());
    if arguments.keep || !is_sound && arguments.control.is_none() {
        eprintln!("soak: logs and journals are in {}", dir.keep().display());
    }
    let Some(report) = result? else {
        eprintln!("soak: interrupted; all that it started has ended");
        return Ok(130);
    };
    if arguments.json {
        println!("{:#}", report.json());
    } else {
        print!("{report}");
    }
    let Some(control) = arguments.control else { return Ok(u8::from(!report.is_sound())) };
    let found = report.verdict.count(control.shows_as());
    eprintln!("soak: the control {control:?} shows as {found} × {}", control.shows_as());
    Ok(u8::from(found == 0))
}

/// The line that does the same again.
fn replay(arguments: &Arguments, seed: u64) -> String {
    let mut line =
        format!("./dev soak --seed {seed} --minutes {} --rate {}", arguments.minutes, arguments.rate);
    if let Some(kinds) = &arguments.faults {
        let names: Vec<String> =
            kinds.iter().filter_map(|kind| Some(kind.to_possible_value()?.get_name().to_owned())).collect();
        line.push_str(&format!(" --faults {}", names.join(",")));
    }
    if let Some(control) = arguments.control.and_then(|control| control.to_possible_value()) {
        line.push_str(&format!(" --control {}", control.get_name()));
    }
    if arguments.slack != 30 {
        line.push_str(&format!(" --slack {}", arguments.slack));
    }
    if let Some(program) = &arguments.earlier {
        line.push_str(&format!(" --earlier {}", program.display()));
    }
    line
}

fn program(arguments: &Arguments) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("windfall");
    let program = arguments.windfall.clone().unwrap_or(beside);
    if !program.is_file() {
        bail!("there is no program {}; `./dev soak` builds it, or name it by --windfall", program.display());
    }
    Ok(program)
}

fn earlier(arguments: &Arguments) -> Result<Option<PathBuf>> {
    match &arguments.earlier {
        Some(program) if !program.is_file() => bail!("there is no program {}", program.display()),
        other => Ok(other.clone()),
    }
}

/// Set by Ctrl-C and SIGTERM. A second one ends the soak at once, and leaves what it started.
fn on_interrupt() -> Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let (mut interrupt, mut terminate) = {
        let _in_runtime = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    // It ends with the process.
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                if told.swap(true, SeqCst) {
                    std::process::exit(130);
                }
                eprintln!("soak: ending what was started; once more ends at once");
            }
        });
    });
    Ok(stop)
}
