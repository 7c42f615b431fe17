//! `windfall fake-downstream`: a paying system to try connectors on. No real money.

use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_connectors::fake::{FakeServer, ServerOptions, Trouble};
use windfall_connectors::signature::SigningKey;
use windfall_contract::Clock;

/// Arguments of `windfall fake-downstream`.
#[derive(Debug, Clone, clap::Args)]
pub struct FakeArgs {
    /// The address and port to listen on, for HTTP and gRPC; port 0 takes a free port
    #[arg(long, default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// The file that records its payments, one line for each; an earlier file is continued
    #[arg(long, default_value = "fake-downstream.book")]
    book: PathBuf,
    /// Payments per second, above which it answers that it is busy; 0 means no limit
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// How long an answer takes, in milliseconds
    #[arg(long, default_value_t = 2)]
    latency_ms: u64,
    /// Of 1,000 calls, this many are answered with "retry" and pay nothing
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    errors_per_mille: u32,
    /// Of 1,000 payments, this many are made and never answered
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    credited_then_timeout_per_mille: u32,
    /// Spoil answers after the payment, in one of these ways: nonsense, redirect, endless, stalled, cut, huge-head, wrong-type
    #[arg(long)]
    trouble: Option<Trouble>,
    /// Of 1,000 answers, this many are spoilt
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    trouble_per_mille: u32,
    /// The file with the secret that signs HTTP requests; needs --key-id
    #[arg(long, requires = "key_id")]
    secret_file: Option<PathBuf>,
    /// The id of the key in --secret-file
    #[arg(long, requires = "secret_file")]
    key_id: Option<String>,
    /// The file with the bearer key that gRPC calls must carry
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Take requests without a signature or key; allowed on a loopback address alone
    #[arg(long)]
    open: bool,
}

/// Runs it until it is told to stop.
pub fn fake_downstream(args: &FakeArgs) -> Result<Outcome> {
    if args.open && !args.listen.ip().is_loopback() {
        bail!("--open takes anybody's requests: make it listen on a loopback address");
    }
    if !args.open && args.secret_file.is_none() && args.key_file.is_none() {
        bail!(
            "nobody could call this downstream: give --secret-file and --key-id (HTTP), --key-file (gRPC), or --open"
        );
    }
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .with_context(|| format!("{} cannot be read", path.display()))
    };
    let signing_key = match (&args.key_id, &args.secret_file) {
        (Some(id), Some(file)) => Some(SigningKey::new(id, read(file)?.as_bytes())?),
        _ => None,
    };
    let options = ServerOptions {
        listen: args.listen,
        signing_keys: signing_key.into_iter().collect(),
        bearer_key: args.key_file.as_ref().map(read).transpose()?,
        open: args.open,
        trouble: args.trouble,
        trouble_per_mille: args.trouble_per_mille,
        ..ServerOptions::default()
    };
    let behaves = FakeOptions {
        rate_per_s: args.rate,
        burst: u32::try_from(args.rate / 10).unwrap_or(u32::MAX).max(1),
        latency_ms: args.latency_ms,
        retry_per_mille: args.errors_per_mille,
        paid_then_timeout_per_mille: args.credited_then_timeout_per_mille,
        ..FakeOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let downstream = FakeDownstream::open(&args.book, behaves, Clock::system())
            .with_context(|| format!("the book {} cannot be opened", args.book.display()))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let server = FakeServer::start(options, Arc::new(downstream), Clock::system())
            .await
            .with_context(|| format!("the address {} cannot be listened on", args.listen))?;
        println!("windfall fake-downstream is ready at {}", server.address());
        tokio::select! {
            _ = terminate.recv() => {}
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        let stats = server.stats();
        server.stop().await;
        println!("{} requests over HTTP, {} over gRPC, {} refused", stats.http, stats.grpc, stats.forbidden);
        Ok(Outcome::Clean)
    })
}
