//! `demo.calm`: 1,000,000 rewards without troubles through the whole way, by the program `windfall` beside this
//! one, in a process and a directory of its own. Events credited per second, from the first send to the last credit.
//! As further figures: the most memory of a run, the smallest part of the tokens that the token store got, and how large
//! that part is while 100,000 rewards a second are sent, in a run of its own. The row says which of its bars it reaches.

use crate::measure::{Row, Unit, median, per, scratch};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::process::{Command, Stdio};

const REWARDS: u64 = 1_000_000;
const RUNS: usize = 3;
/// The run at a fixed rate.
const SUSTAINED_PER_S: u64 = 100_000;
const SUSTAINED_S: u64 = 20;

/// What the row has to reach.
const CREDITED_PER_S_MIN: f64 = 100_000.0;
const PEAK_MEMORY_MB_MAX: f64 = 300.0;
const TOKENS_PERCENT_MIN: f64 = 50.0;
/// Of 100,000: a sender that waits for its next time is never early.
const SUSTAINED_SENT_PER_S_MIN: f64 = 99_000.0;
const SUSTAINED_TOKENS_PERCENT_MIN: f64 = 100.0;

/// What of the demo's report is used here; docs/demo.md names all.
#[derive(Deserialize)]
struct Report {
    ok: bool,
    rain: Rain,
    peak_memory_bytes: u64,
}

#[derive(Deserialize)]
struct Rain {
    rewards: u64,
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

impl Report {
    fn peak_memory_mb(&self) -> f64 {
        per(self.peak_memory_bytes, 1_000_000)
    }

    /// The part of the tokens that the token store got.
    fn tokens_percent(&self) -> f64 {
        let got = self.rain.rewards.saturating_sub(self.rain.tokens_dropped);
        per(got * 100, self.rain.rewards.max(1))
    }

    fn tell(&self, run: &str) {
        let Rain { credited_per_s, sent_per_s, send_us: Latencies { p50, p99 }, .. } = &self.rain;
        eprintln!(
            "  {run}: {credited_per_s:.0} credited/s, {sent_per_s:.0} sent/s, send_bonus p50 {p50:.1} µs, p99 {p99:.1} µs, peak \
             memory {:.0} MB, {:.1} % of the tokens stored",
            self.peak_memory_mb(),
            self.tokens_percent()
        );
    }
}

/// The figures that have a bar.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// The median of the runs.
    credited_per_s: f64,
    /// The most of a run.
    peak_memory_mb: f64,
    /// The least of a run.
    tokens_percent: f64,
    sustained_sent_per_s: f64,
    sustained_tokens_percent: f64,
}

impl Figures {
    /// The bars that are not reached, in words.
    fn missed(&self) -> Vec<String> {
        let at_least = [
            ("credited per second", self.credited_per_s, CREDITED_PER_S_MIN),
            ("per cent of the tokens at full speed", self.tokens_percent, TOKENS_PERCENT_MIN),
            ("sent per second at the fixed rate", self.sustained_sent_per_s, SUSTAINED_SENT_PER_S_MIN),
            (
                "per cent of the tokens at the fixed rate",
                self.sustained_tokens_percent,
                SUSTAINED_TOKENS_PERCENT_MIN,
            ),
        ];
        let mut missed: Vec<String> = at_least
            .into_iter()
            .filter(|(_, value, bar)| value < bar)
            .map(|(what, value, bar)| format!("{value:.1} {what}, at least {bar:.0} are asked for"))
            .collect();
        if self.peak_memory_mb > PEAK_MEMORY_MB_MAX {
            let memory_mb = self.peak_memory_mb;
            missed
                .push(format!("{memory_mb:.1} MB of memory, at most {PEAK_MEMORY_MB_MAX:.0} are asked for"));
        }
        missed
    }
}

pub fn measure(name: &'static str) -> Result<Row> {
    let mut rates_per_s = Vec::with_capacity(RUNS);
    let (mut peak_memory_mb, mut tokens_percent) = (0.0_f64, 100.0_f64);
    for run in 1..=RUNS {
        let report = demo(REWARDS, 0)?;
        report.tell(&format!("run {run} of {RUNS}"));
        rates_per_s.push(report.rain.credited_per_s);
        peak_memory_mb = peak_memory_mb.max(report.peak_memory_mb());
        tokens_percent = tokens_percent.min(report.tokens_percent());
    }
    let sustained = demo(SUSTAINED_PER_S * SUSTAINED_S, SUSTAINED_S)?;
    sustained.tell(&format!("{SUSTAINED_PER_S} a second for {SUSTAINED_S} s"));
    let figures = Figures {
        credited_per_s: median(rates_per_s),
        peak_memory_mb,
        tokens_percent,
        sustained_sent_per_s: sustained.rain.sent_per_s,
        sustained_tokens_percent: sustained.tokens_percent(),
    };
    let missed = figures.missed();
    match missed.is_empty() {
        true => eprintln!("  reached"),
        false => eprintln!("  not reached: {}", missed.join("; ")),
    }
    Ok(Row::new(name, figures.credited_per_s, Unit::PerSecond, None)
        .with("peak_memory_mb", figures.peak_memory_mb)
        .with("tokens_stored_percent", figures.tokens_percent)
        .with("sustained_sent_per_s", figures.sustained_sent_per_s)
        .with("sustained_tokens_percent", figures.sustained_tokens_percent)
        .with("sustained_peak_memory_mb", sustained.peak_memory_mb())
        .with("sustained_send_p99_us", sustained.rain.send_us.p99)
        .with("bars_missed", per(missed.len() as u64, 1)))
}

/// Runs the demo of so many rewards over so many seconds; 0 means as fast as it goes.
fn demo(rewards: u64, seconds: u64) -> Result<Report> {
    let windfall = std::env::current_exe()?.with_file_name("windfall");
    let directory = scratch()?;
    let done = Command::new(&windfall)
        .args(["demo", "--calm", "--json", "--rewards", &rewards.to_string()])
        .args(["--seconds-of-rain", &seconds.to_string(), "--data"])
        .arg(directory.path().join("demo"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started; ./dev bench builds it", windfall.display()))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the demo ended with {}: {}", done.status, said.trim());
    let report: Report = serde_json::from_slice(&done.stdout).context("the demo's report cannot be read")?;
    ensure!(report.ok, "the demo's check found damage");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_THE_BARS: Figures = Figures {
        credited_per_s: 100_000.0,
        peak_memory_mb: 300.0,
        tokens_percent: 50.0,
        sustained_sent_per_s: 99_000.0,
        sustained_tokens_percent: 100.0,
    };

    #[test]
    fn each_bar_that_is_not_reached_is_named() {
        assert_eq!(AT_THE_BARS.missed(), Vec::<String>::new());
        let short = [
            (Figures { credited_per_s: 99_999.0, ..AT_THE_BARS }, "credited"),
            (Figures { peak_memory_mb: 300.1, ..AT_THE_BARS }, "memory"),
            (Figures { tokens_percent: 49.9, ..AT_THE_BARS }, "tokens at full speed"),
            (Figures { sustained_sent_per_s: 98_999.0, ..AT_THE_BARS }, "sent"),
            (Figures { sustained_tokens_percent: 99.9, ..AT_THE_BARS }, "tokens at the fixed rate"),
        ];
        for (figures, named) in short {
            let missed = figures.missed();
            assert!(missed.len() == 1 && missed[0].contains(named), "{named}: {missed:?}");
        }
    }

    #[test]
    fn the_part_of_the_tokens_is_that_of_all_rewards() {
        let report = |rewards, tokens_dropped| {
            let send_us = Latencies { p50: 1.0, p99: 3.0 };
            let rain = Rain { rewards, credited_per_s: 1.0, sent_per_s: 1.0, send_us, tokens_dropped };
            Report { ok: true, rain, peak_memory_bytes: 267_500_000 }
        };
        assert!((report(1_000_000, 430_000).tokens_percent() - 57.0).abs() < 1e-9);
        assert!((report(2_000_000, 0).tokens_percent() - 100.0).abs() < 1e-9);
        assert!(report(2_000_000, 1).tokens_percent() < SUSTAINED_TOKENS_PERCENT_MIN);
        assert!((report(1, 0).peak_memory_mb() - 267.5).abs() < 1e-9);
    }
}
