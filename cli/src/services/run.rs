//! A role's life: open, serve, drain, close.

use super::auditor;
use super::console::{self, Showing};
use super::dev;
use super::metrics;
use super::options::ServiceOptions;
use super::parts::Parts;
use super::role::Role;
use super::task_queue::{self, Pools, Pulling};
use crate::drivers::RulesFollower;
use crate::logging::LogArgs;
use crate::outcome::Outcome;
use crate::wiring::Hopeless;
use anyhow::{Context, Result, anyhow, bail};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use windfall_auditor::AuditsService;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_edge::{AccessSource, Health, Metrics, Need, Parts as Served, Router, check_plaintext};

/// Rules that are there are read within this time; after it health is served meanwhile.
const RULES_AT_ONCE: Duration = Duration::from_secs(5);
/// A process that is not ready so long after its start says why.
const READY_AT_ONCE: Duration = Duration::from_secs(3);
/// The pause between two checks whether the process is ready.
const READY_LOOK: Duration = Duration::from_millis(20);
/// How long the end of a process waits for calls that block.
const BLOCKED: Duration = Duration::from_secs(10);

/// Arguments of every role.
#[derive(Debug, Clone, clap::Args)]
pub struct ServiceArgs {
    /// The options file (TOML), which docs/services.md describes. An environment variable such as
    /// WINDFALL_OPTION_SERVE__LISTEN replaces the file's `serve.listen`
    #[arg(long)]
    config: Option<PathBuf>,
    /// The directory of this process's own files, in place of the option `data`
    #[arg(long)]
    data: Option<PathBuf>,
    /// The address and port to listen on, in place of the option `serve.listen`; port 0 takes a free port
    #[arg(long)]
    listen: Option<SocketAddr>,
}

/// Arguments of `windfall serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Try it out: make the key ring, the rules, the callers' keys and, on Kafka or RocketMQ, the signing keys where they are
    /// missing, and print the callers' keys
    #[arg(long)]
    dev: bool,
}

/// `windfall serve`: all roles in one process.
pub fn serve(args: &ServeArgs, log: &LogArgs) -> Result<Outcome> {
    start(Role::Serve, &args.service, args.dev, log)
}

/// `windfall <role>`.
pub fn run(role: Role, args: &ServiceArgs, log: &LogArgs) -> Result<Outcome> {
    start(role, args, false, log)
}

fn start(role: Role, args: &ServiceArgs, is_dev: bool, log: &LogArgs) -> Result<Outcome> {
    let mut options = ServiceOptions::load(args.config.as_deref(), args.data.clone())?;
    options.check_apps(role)?;
    if let Some(listen) = args.listen {
        options.serve.listen = listen;
    }
    if is_dev && !options.serve.listen.ip().is_loopback() {
        bail!(
            "--dev serves without TLS, to callers whose keys were printed: make it listen on a loopback address"
        );
    }
    // Before any work begins: the port is opened last, and a process that is refused then has granted rewards already, and does
    // so again at each of its starts.
    let serve = &options.serve;
    check_plaintext("serve.listen", serve.listen, serve.tls.is_some(), serve.plaintext)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let traces = {
        let _in_runtime = runtime.enter();
        log.start_with_traces(role.name(), &options.trace)?
    };
    let outcome = runtime.block_on(live(role, options, is_dev));
    traces.close();
    // Everything that matters has ended by now. A disk that hangs must not hold up the end of the process.
    runtime.shutdown_timeout(BLOCKED);
    outcome
}

async fn live(role: Role, mut options: ServiceOptions, is_dev: bool) -> Result<Outcome> {
    let mut stops = Stops::listen()?;
    let clock = Clock::system();
    if role == Role::TaskQueue {
        return task_queue::live(&options, &mut stops, &clock).await;
    }
    if role == Role::Console {
        return console::live(&options, &mut stops, &clock).await;
    }
    if role == Role::Auditor {
        return auditor::live(&options, &mut stops, &clock).await;
    }
    if is_dev {
        dev::prepare(&mut options, &clock)?;
    }
    options.check_unsigned(options.work_of(role), None)?;
    let access = options.access_path();
    let access = AccessSource::follow(&access, windfall_contract::Clock::system())
        .with_context(|| format!("callers cannot be read from {}", access.display()))?;
    // Half of the time is for calls in flight, the rest for what they left on its way.
    options.serve.stop_timeout_ms = options.serve.stop_timeout_ms.min(options.drain_ms / 2);
    let health = Health::new();
    let rules = tokio::select! {
        rules = wait_for_rules(role, &options, &access, &health, &clock) => rules?,
        why = stops.first() => {
            tracing::info!(%role, why, "stops before it has the rules");
            return Ok(Outcome::Clean);
        }
    };
    let pools = Pools::open(&options, role, &clock).await?;
    let parts = Parts::open(role, &options, rules, &pools.stores(), &health, &clock).await?;
    let (pulling, followed) = match options.has_task_queues(role) {
        true => {
            let timers = parts.scheduling.as_ref().map(|scheduling| &scheduling.timers);
            let pulling = Pulling::start(&options, pools, timers, &parts.tasks, &health, &clock).await?;
            (Some(pulling), Vec::new())
        }
        false => (None, pools.follow(&parts.tasks, &health, Need::Weak)),
    };
    let measured = Metrics::new();
    let pools = pulling.as_ref().map(Pulling::counters).unwrap_or_default();
    let audit = match options.has_auditor(role) {
        true => Some(options.start_auditor(&clock)?),
        false => None,
    };
    let ports = pulling.as_ref().map(Pulling::ports).unwrap_or_default();
    let sources = metrics::Sources::of(&parts, &health).with_pools(pools).with_ports(ports);
    let sources = sources.with_audit(audit.clone());
    metrics::export(&measured, &sources);
    if let Some(pulling) = &pulling {
        pulling.show_metrics(measured.clone());
    }
    let mut router = parts.router(role, &options.tenant);
    if let Some(audit) = &audit {
        router = router.audits(Arc::new(AuditsService::new(audit.clone())));
    }
    let showing = match options.has_console(role) {
        true => Some(Showing::open(&options, role, &access, Some(&measured), &clock)?),
        false => None,
    };
    if let Some(showing) = &showing {
        router = router.pages(showing.pages());
    }
    let served = Served { router, access, metrics: measured, health: health.clone() };
    let server =
        windfall_edge::serve(&options.serve, served).await.context("the services cannot be served")?;
    let address = server.address();
    let watching = showing.map(|showing| showing.start(&server, &parts.tasks, options.serve.tls.is_some()));
    let outcome = tokio::select! {
        why = stops.first() => {
            tracing::info!(%role, why, "stops");
            Ok(Outcome::Clean)
        }
        why = parts.tasks.hopeless() => {
            tracing::error!(%role, %why, "the process cannot go on");
            match why {
                Hopeless::Failed(_) => Ok(Outcome::Failed),
                Hopeless::Refused(why) => Err(anyhow!(why)),
            }
        }
        never = tell_readiness(role, address, &health) => never,
    };
    let drain = Duration::from_millis(options.drain_ms);
    let began = Instant::now();
    let left = |began: Instant| drain.saturating_sub(began.elapsed());
    let ending = async {
        // Callers go elsewhere first; then nothing new comes in, and what is in flight ends.
        if let Some(watching) = watching {
            watching.end().await;
        }
        let stopped = server.stop().await;
        if stopped.connections_cut > 0 {
            tracing::warn!(stopped.connections_cut, "calls were in flight for too long");
        }
        if let Some(pulling) = pulling {
            pulling.close(left(began) / 2).await;
        }
        if let Some(audit) = audit {
            // Before the writer of a ledger in a file, which closes it last. A step in a database that does not answer is not
            // waited for: what has to be committed and written at the end needs the time.
            if tokio::time::timeout(left(began) / 4, auditor::close(audit)).await.is_err() {
                tracing::warn!("a step of the auditor did not end in time; its database rolls it back");
            }
        }
        let closed = parts.close(left(began)).await;
        for task in followed {
            task.end().await;
        }
        closed
    };
    tokio::select! {
        closed = ending => match outcome {
            Ok(Outcome::Clean) => closed.map(|()| Outcome::Clean),
            // Whatever else fails at the end, this is what the next start depends on.
            outcome => {
                if let Err(error) = closed {
                    tracing::error!(error = format!("{error:#}"), "the process did not close in order");
                }
                outcome
            }
        },
        _ = stops.first() => {
            eprintln!("windfall: stopped by the second signal; what was in flight is delivered again at the next start");
            Ok(Outcome::Interrupted)
        }
    }
}

/// The live rules. While they are waited for, nothing is served but health, which says so.
async fn wait_for_rules(
    role: Role,
    options: &ServiceOptions,
    access: &AccessSource,
    health: &Health,
    clock: &Clock,
) -> Result<(LiveRules, RulesFollower)> {
    let mut opening = std::pin::pin!(options.open_rules(health, clock));
    let first = tokio::time::timeout(RULES_AT_ONCE, &mut opening).await;
    if let Ok(rules) = first {
        return rules;
    }
    let waiting = Served {
        router: Router::default(),
        access: access.clone(),
        metrics: Metrics::new(),
        health: health.clone(),
    };
    let server =
        windfall_edge::serve(&options.serve, waiting).await.context("the services cannot be served")?;
    println!("windfall {role} is up at {} and waits for the live rules", server.address());
    let rules = opening.await;
    server.stop().await;
    health.ready(true);
    rules
}

/// Says on standard output when the process is ready, which is what a script waits for; and once why it is not, where
/// that takes a while.
pub(super) async fn tell_readiness(role: Role, address: SocketAddr, health: &Health) -> ! {
    let began = Instant::now();
    let mut is_told = false;
    while !health.is_ready() {
        if !is_told && began.elapsed() > READY_AT_ONCE {
            is_told = true;
            let reasons: Vec<_> =
                health.failing().into_iter().map(|(part, why)| format!("{part}: {why}")).collect();
            println!("windfall {role} is up at {address} and not ready: {}", reasons.join("; "));
        }
        tokio::time::sleep(READY_LOOK).await;
    }
    println!("windfall {role} is ready at {address}");
    std::future::pending().await
}

/// SIGTERM and Ctrl-C.
pub(super) struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    fn listen() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn first(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
