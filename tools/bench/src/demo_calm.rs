//! `demo.calm`: 1,000,000 rewards without troubles through the whole way, by the program `windfall` beside this
//! one, in a process and a directory of its own. Events credited per second, from the first send to the last credit.

use crate::measure::{Row, Unit, median, scratch};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::process::{Command, Stdio};

const REWARDS: &str = "1000000";
const RUNS: usize = 3;

/// What of the demo's report is used here; docs/demo.md names all.
#[derive(Deserialize)]
struct Report {
    ok: bool,
    rain: Rain,
    peak_memory_bytes: u64,
}

#[derive(Deserialize)]
struct Rain {
    credited_per_s: f64,
    sent_per_s: f64,
    send_us: Latencies,
    tokens_dropped: u64,
}

#[derive(Deserialize)]
struct Latencies {
    p50: f64,
    p99: f64,
}

pub fn measure(name: &'static str) -> Result<Row> {
    let mut rates_per_s = Vec::with_capacity(RUNS);
    for run in 1..=RUNS {
        let Report { ok, rain, peak_memory_bytes } = demo()?;
        ensure!(ok, "the demo's check found damage");
        eprintln!(
            "  run {run} of {RUNS}: {:.0} credited/s, {:.0} sent/s, send_bonus p50 {:.1} µs, p99 {:.1} µs, peak memory {} MB, {} tokens not stored",
            rain.credited_per_s,
            rain.sent_per_s,
            rain.send_us.p50,
            rain.send_us.p99,
            peak_memory_bytes / 1_000_000,
            rain.tokens_dropped
        );
        rates_per_s.push(rain.credited_per_s);
    }
    Ok(Row::new(name, median(rates_per_s), Unit::PerSecond, None))
}

fn demo() -> Result<Report> {
    let windfall = std::env::current_exe()?.with_file_name("windfall");
    let directory = scratch()?;
    let done = Command::new(&windfall)
        .args(["demo", "--calm", "--json", "--rewards", REWARDS, "--data"])
        .arg(directory.path().join("demo"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started; ./dev bench builds it", windfall.display()))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the demo ended with {}: {}", done.status, said.trim());
    serde_json::from_slice(&done.stdout).context("the demo's report cannot be read")
}
