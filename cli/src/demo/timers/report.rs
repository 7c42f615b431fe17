//! The report of the demo of timers: a table, or a JSON object with the same content.

use super::plan::Plan;
use super::proof::{Evidence, Figures, Repeats, Verdict};
use crate::demo::report::{Latencies, align_right, grouped, peak_memory_bytes, table};
use crate::demo::troubles::Happening;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt::Write as _;

/// The whole report. `docs/demo.md` describes each field.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Nothing lost, early, fired after its cancel, mismatched, left over or repeated without a reason.
    pub ok: bool,
    /// The data directory.
    pub data: String,
    /// Decided which timers were changed.
    pub seed: u64,
    /// The seconds over which their due times were spread.
    pub seconds: u64,
    /// Figures over all timers.
    pub total: Figures,
    /// Figures by what their callers were told last.
    pub by_answer: std::collections::BTreeMap<&'static str, Figures>,
    /// Why timers came again.
    pub repeated: Repeats,
    /// Tasks that the store counts as waiting at the end.
    pub left: u64,
    /// How late the target got timers that were due while nothing was broken, in milliseconds.
    pub calm_lateness_ms: Latencies,
    /// How late the target got all of them, in milliseconds.
    pub lateness_ms: Latencies,
    /// What was broken.
    pub happenings: Vec<Happening>,
    /// The first findings, in words.
    pub findings: Vec<String>,
    /// The most memory that this process has held, in bytes.
    pub peak_memory_bytes: u64,
}

impl Report {
    /// Judges, and builds the report.
    pub fn new(data: String, plan: Plan, evidence: &Evidence, happenings: Vec<Happening>) -> Self {
        let verdict = Verdict::of(evidence);
        Self {
            ok: verdict.is_clean(),
            data,
            seed: plan.seed,
            seconds: plan.spread_ms / 1_000,
            total: verdict.total(),
            by_answer: verdict.by_state.iter().map(|(state, figures)| (state.name(), *figures)).collect(),
            repeated: verdict.repeats,
            left: evidence.left,
            calm_lateness_ms: latencies(verdict.calm_late_ms.as_ref()),
            lateness_ms: latencies(verdict.late_ms.as_ref()),
            happenings,
            findings: verdict.findings,
            peak_memory_bytes: peak_memory_bytes(),
        }
    }

    /// The report as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("\n{}\n\n", self.figures());
        let Repeats { after_kill, after_lost_lease, unexplained } = self.repeated;
        #[allow(clippy::cast_precision_loss)] // for eyes
        let mib = self.peak_memory_bytes as f64 / f64::from(1 << 20);
        let calm = late(self.calm_lateness_ms);
        let all = late(self.lateness_ms);
        writeln!(
            text,
            "lateness           {calm}, while nothing was broken\n\
             \x20                  {all}, of all timers\n\
             repeated           {} that the killed dispatcher had not noted, {} after a lost lease, {} for no reason\n\
             left in the store  {}\n\
             peak memory        {mib:.0} MiB",
            grouped(after_kill),
            grouped(after_lost_lease),
            grouped(unexplained),
            grouped(self.left),
        )
        .ok();
        for finding in &self.findings {
            writeln!(text, "FOUND  {finding}").ok();
        }
        let verdict = match self.ok {
            true => {
                "OK: every timer that was answered Ok came at its time or was cancelled; nothing was lost, early, or \
                     fired after its cancel, and the kill explains what came again."
            }
            false => "DAMAGE: see above.",
        };
        writeln!(text, "{verdict}").ok();
        text
    }

    fn figures(&self) -> comfy_table::Table {
        let mut table = table(&[
            "answer",
            "timers",
            "fired",
            "lost",
            "early",
            "fired after cancel",
            "mismatched",
            "repeated",
        ]);
        let rows = self.by_answer.iter().map(|(name, figures)| (*name, figures));
        for (name, one) in rows.chain([("all", &self.total)]) {
            let numbers = [
                one.timers,
                one.fired,
                one.lost,
                one.early,
                one.fired_after_cancel,
                one.mismatched,
                one.repeated,
            ];
            table.add_row(std::iter::once(name.replace('_', " ")).chain(numbers.map(grouped)));
        }
        align_right(&mut table, 1);
        table
    }
}

#[allow(clippy::cast_precision_loss)] // milliseconds
fn latencies(histogram: Option<&Histogram<u64>>) -> Latencies {
    let at = |quantile: f64| histogram.map_or(0.0, |late_ms| late_ms.value_at_quantile(quantile) as f64);
    let max = histogram.map_or(0.0, |late_ms| late_ms.max() as f64);
    Latencies { p50: at(0.5), p99: at(0.99), p999: at(0.999), max }
}

fn late(late_ms: Latencies) -> String {
    let Latencies { p50, p99, p999, max } = late_ms;
    format!("p50 {p50:.0} ms, p99 {p99:.0} ms, p99.9 {p999:.0} ms, max {max:.0} ms")
}
