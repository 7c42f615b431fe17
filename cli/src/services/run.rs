//! A role's life: open, serve, drain, close.

use super::dev;
use super::metrics;
use super::options::ServiceOptions;
use super::parts::Parts;
use super::role::Role;
use crate::logging::LogArgs;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use windfall_contract::Clock;
use windfall_edge::{AccessSource, Health, Metrics, Parts as Served};

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
    /// Try it out: make the key ring, the rules and the callers' keys where they are missing, and print the keys
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
    if let Some(listen) = args.listen {
        options.serve.listen = listen;
    }
    if is_dev && !options.serve.listen.ip().is_loopback() {
        bail!(
            "--dev serves without TLS, to callers whose keys were printed: make it listen on a loopback address"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let traces = {
        let _in_runtime = runtime.enter();
        log.start_with_traces(role.name(), &options.trace)?
    };
    let outcome = runtime.block_on(live(role, options, is_dev));
    traces.close();
    outcome
}

async fn live(role: Role, mut options: ServiceOptions, is_dev: bool) -> Result<Outcome> {
    let mut stops = Stops::listen()?;
    let clock = Clock::system();
    if is_dev {
        dev::prepare(&mut options, &clock)?;
    }
    let access = options.access_path();
    let access = AccessSource::follow(&access, windfall_contract::Clock::system())
        .with_context(|| format!("callers cannot be read from {}", access.display()))?;
    let drain = Duration::from_millis(options.drain_ms);
    // Half of the time is for calls in hand, the rest for what they left on its way.
    options.serve.stop_timeout_ms = options.serve.stop_timeout_ms.min(options.drain_ms / 2);
    let parts = Parts::open(role, &options, &clock).await?;
    let (health, measured) = (Health::new(), Metrics::new());
    metrics::export(&measured, &metrics::Sources::of(&parts));
    parts.watch(&health);
    let served = Served { router: parts.router(role, &options.tenant), access, metrics: measured, health };
    let server =
        windfall_edge::serve(&options.serve, served).await.context("the services cannot be served")?;
    // What a script waits for.
    println!("windfall {role} is ready at {}", server.address());
    let why = stops.first().await;
    tracing::info!(%role, why, "stops");
    let began = Instant::now();
    let left = |began: Instant| drain.saturating_sub(began.elapsed());
    let ending = async {
        // Callers go elsewhere first; then nothing new comes in, and what is in hand ends.
        let stopped = server.stop().await;
        if stopped.connections_cut > 0 {
            tracing::warn!(stopped.connections_cut, "calls were in hand for too long");
        }
        parts.close(left(began)).await
    };
    tokio::select! {
        closed = ending => closed.map(|()| Outcome::Clean),
        _ = stops.first() => {
            eprintln!("windfall: stopped by the second signal; what was in flight is delivered again at the next start");
            Ok(Outcome::Interrupted)
        }
    }
}

/// SIGTERM and Ctrl-C.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    fn listen() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn first(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
