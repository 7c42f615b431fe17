//! How things are measured: the median of many short runs, alternating with those of the baseline, so that
//! whatever else the machine does hits both alike.

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::BTreeMap;
use tempfile::TempDir;

/// Runs of one candidate. Odd, so that the median is one of them.
const RUNS: usize = 201;
/// About how long one run takes: shorter than a scheduler's slice.
const RUN_NS: f64 = 1_000_000.0;

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    name: &'static str,
    value: f64,
    unit: Unit,
    baseline: Option<f64>,
    /// Value ÷ baseline.
    ratio: Option<f64>,
    /// Further figures of the same run; each name ends in its unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    more: BTreeMap<&'static str, f64>,
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, Serialize)]
pub enum Unit {
    /// Nanoseconds per call, or per event of the call where the row says so; less is better.
    #[serde(rename = "ns")]
    NsACall,
    /// Events per second; more is better.
    #[serde(rename = "/s")]
    PerSecond,
    /// Bytes; less is better.
    #[serde(rename = "B")]
    Bytes,
    /// Milliseconds; less is better.
    #[serde(rename = "ms")]
    Ms,
}

impl Unit {
    /// The value as the table shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NsACall => "ns",
            Self::PerSecond => "/s",
            Self::Bytes => "B",
            Self::Ms => "ms",
        }
    }
}

impl Row {
    /// With a ratio where there is a baseline.
    pub fn new(name: &'static str, value: f64, unit: Unit, baseline: Option<f64>) -> Self {
        let ratio = baseline.map(|baseline| value / baseline);
        Self { name, value, unit, baseline, ratio, more: BTreeMap::new() }
    }

    /// One more figure of the same run.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.more.insert(name, value);
        self
    }

    /// For the table.
    pub fn columns(&self) -> (&'static str, f64, Unit, Option<f64>, Option<f64>) {
        (self.name, self.value, self.unit, self.baseline, self.ratio)
    }

    /// For the lines below the row.
    pub const fn more(&self) -> &BTreeMap<&'static str, f64> {
        &self.more
    }
}

/// Makes so many calls, one after the other, on this thread.
pub type Calls<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// The median of the nanoseconds per call of each candidate, by CPU time of this thread: what others do on the same
/// cores in between does not count.
pub fn ns_a_call<const N: usize>(mut candidates: [Calls<'_>; N]) -> Result<[f64; N]> {
    let mut calls = [0; N];
    for (calls, candidate) in calls.iter_mut().zip(&mut candidates) {
        *calls = calls_a_run(candidate)?;
    }
    let mut costs_ns = [const { Vec::new() }; N];
    for _ in 0..RUNS {
        for ((candidate, calls), costs_ns) in candidates.iter_mut().zip(calls).zip(&mut costs_ns) {
            costs_ns.push(cost_ns(candidate, calls)?);
        }
    }
    Ok(costs_ns.map(median))
}

/// How many calls last about [`RUN_NS`], after a warm-up.
fn calls_a_run(candidate: &mut Calls<'_>) -> Result<u64> {
    let mut calls = 100;
    loop {
        let cost_ns = cost_ns(candidate, calls)?.max(0.1);
        let enough = RUN_NS / cost_ns;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // small, positive
        let (so_far, enough) = (calls as f64, enough as u64 + 1);
        if so_far * cost_ns > RUN_NS / 10.0 {
            return Ok(enough);
        }
        calls *= 4;
    }
}

fn cost_ns(candidate: &mut Calls<'_>, calls: u64) -> Result<f64> {
    let before = thread_cpu_ns();
    candidate(calls)?;
    Ok(per(thread_cpu_ns() - before, calls))
}

/// CPU time, user and system, of all threads of this process.
pub fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

fn thread_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let spent = clock_gettime(clock);
    spent.tv_sec.unsigned_abs() * 1_000_000_000 + spent.tv_nsec.unsigned_abs()
}

/// `sum` ÷ `count`.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub fn per(sum: u64, count: u64) -> f64 {
    sum as f64 / count as f64
}

/// The middle one; of an even number, the larger of the two. 0 where there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A directory that goes with its handle, beside this program: what is called temporary is memory on many systems.
pub fn scratch() -> Result<TempDir> {
    let program = std::env::current_exe()?;
    let beside = program.parent().context("this program lies nowhere")?;
    tempfile::Builder::new()
        .prefix("windfall-bench-")
        .tempdir_in(beside)
        .with_context(|| format!("no directory can be made in {}", beside.display()))
}
