//! The report of a demo or a reconciliation: a table, or a JSON object with the same content.

use super::data::DataDir;
use super::guest::GuestReport;
use super::troubles::Happening;
use crate::check::samples::Sample;
use crate::check::{Figures, Verdict};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::fmt::Write as _;

/// The whole report. `docs/demo.md` describes each field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Nothing lost, double, mismatched or over, and all sampled users agree.
    pub ok: bool,
    /// Everything that was sent has arrived. Without it, what is counted as lost may still be on its way in the
    /// spool and the queues: `windfall demo --resume` finishes it.
    pub finished: bool,
    /// The data directory.
    pub data: String,
    /// The figures of the rain; `None` for a reconciliation alone.
    pub rain: Option<RainReport>,
    /// Figures over all types.
    pub total: Figures,
    /// Figures by type.
    pub by_type: std::collections::BTreeMap<String, Figures>,
    /// The first findings of the check, in words.
    pub findings: Vec<String>,
    /// Sampled users.
    pub samples: Vec<Sample>,
    /// The most memory that this process has held, in bytes.
    pub peak_memory_bytes: u64,
}

/// The figures of the rain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RainReport {
    /// Whether the demo went on with what an earlier process had left.
    pub resumed: bool,
    /// The seed of the rain.
    pub seed: u64,
    /// Rewards asked for in all.
    pub rewards: u64,
    /// Users that they were spread over.
    pub users: u64,
    /// Events that were found in the spool at the start.
    pub inherited_events: u64,
    /// From the first send to the last, in seconds.
    pub rain_s: f64,
    /// From the first send to the last credit, in seconds.
    pub first_send_to_last_credit_s: f64,
    /// Calls answered Ok per second, while rewards were sent.
    pub sent_per_s: f64,
    /// Orders credited per second, from the first send to the last credit.
    pub credited_per_s: f64,
    /// How long a call of `send_bonus` took, in microseconds.
    pub send_us: Latencies,
    /// Calls repeated because the spool was full.
    pub spool_full_waits: u64,
    /// Events written back to a queue.
    pub requeued_events: u64,
    /// Grants of orders that had been credited before: duplicates that did no harm.
    pub duplicates_harmless: u64,
    /// Tokens that the store did not get because it was down or behind.
    pub tokens_dropped: u64,
    /// The counters of a second process that joined and left; `None` where there was none.
    pub guest: Option<GuestReport>,
    /// The faults that happened while rewards were sent.
    pub happenings: Vec<Happening>,
}

/// Quantiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latencies {
    /// The median.
    pub p50: f64,
    /// 99 of 100 are faster.
    pub p99: f64,
    /// 999 of 1,000 are faster.
    pub p999: f64,
    /// The slowest call.
    pub max: f64,
}

impl Report {
    /// Builds the report.
    pub fn new(data: &DataDir, rain: Option<RainReport>, verdict: Verdict, samples: Vec<Sample>) -> Self {
        let agree = samples.iter().all(|sample| sample.disagreements.is_empty());
        Self {
            ok: verdict.is_clean() && agree,
            finished: data.is_finished(),
            data: data.path().display().to_string(),
            rain,
            total: verdict.total,
            by_type: verdict.by_type,
            findings: verdict.findings,
            samples,
            peak_memory_bytes: peak_memory_bytes(),
        }
    }

    /// The report as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("\n{}\n", self.figures());
        if let Some(rain) = &self.rain {
            writeln!(text, "\n{}", rain.to_text()).ok();
        }
        #[allow(clippy::cast_precision_loss)] // for eyes
        let mib = self.peak_memory_bytes as f64 / f64::from(1 << 20);
        writeln!(text, "peak memory        {mib:.0} MiB").ok();
        writeln!(text, "\n{}", self.users()).ok();
        for finding in &self.findings {
            writeln!(text, "FOUND  {finding}").ok();
        }
        for sample in &self.samples {
            for wrong in &sample.disagreements {
                writeln!(text, "FOUND  user {}: {wrong}", sample.user_id).ok();
            }
        }
        if !self.finished {
            writeln!(
                text,
                "UNFINISHED: the demo was stopped or killed; what is counted as lost may still be on its way in the \
                 spool and the queues. Finish it with: windfall demo --resume --data {}",
                self.data
            )
            .ok();
        }
        let verdict = if self.ok {
            "OK: every reward that was answered Ok is credited once or archived; nothing lost, double, mismatched or over."
        } else {
            "DAMAGE: see above. The data directory is kept."
        };
        writeln!(text, "{verdict}").ok();
        text
    }

    fn figures(&self) -> Table {
        let mut table = table(&[
            "type",
            "sent",
            "refused",
            "unanswered",
            "credited",
            "archived",
            "lost",
            "double",
            "mismatched",
            "over",
        ]);
        let mut row = |name: &str, one: &Figures| {
            let numbers = [
                one.sent,
                one.refused,
                one.unanswered,
                one.credited,
                one.archived,
                one.lost,
                one.double,
                one.mismatched,
                one.budget_over,
            ];
            table.add_row(std::iter::once(name.to_owned()).chain(numbers.map(grouped)));
        };
        for (name, figures) in &self.by_type {
            row(name, figures);
        }
        row("all", &self.total);
        align_right(&mut table, 1);
        table
    }

    fn users(&self) -> Table {
        let mut table = table(&["user", "client tokens", "server tokens", "credited", "wallet", "agree"]);
        for sample in &self.samples {
            let wallet: Vec<String> =
                sample.balances.iter().map(|(name, balance)| format!("{name} {balance}")).collect();
            table.add_row([
                sample.user_id.to_string(),
                sample.client_tokens.to_string(),
                sample.server_tokens.to_string(),
                sample.credited.to_string(),
                wallet.join(", "),
                if sample.disagreements.is_empty() { "yes" } else { "NO" }.to_owned(),
            ]);
        }
        table
    }
}

impl RainReport {
    fn to_text(&self) -> String {
        let Latencies { p50, p99, p999, max } = self.send_us;
        format!(
            "send_bonus         p50 {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs, max {max:.1} µs\n\
             sent               {:.0}/s over {:.1} s of rain\n\
             credited           {:.0}/s from first send to last credit ({:.1} s)\n\
             on the way         {} events requeued, {} duplicates harmless, {} tokens not stored, {} waits for the spool",
            self.sent_per_s,
            self.rain_s,
            self.credited_per_s,
            self.first_send_to_last_credit_s,
            grouped(self.requeued_events),
            grouped(self.duplicates_harmless),
            grouped(self.tokens_dropped),
            grouped(self.spool_full_waits),
        )
    }
}

pub(super) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(head.iter().copied());
    table
}

pub(super) fn align_right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// The high-water mark of this process's memory, 0 where the system does not tell.
pub(super) fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
