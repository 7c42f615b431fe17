//! What a run comes to, for people and as JSON.

use crate::job_oracle::JobTally;
use crate::oracle::{KINDS, Verdict};
use crate::plan::Fault;
use crate::queue_oracle::QueueTally;
use crate::timer_oracle::TimerTally;
use serde_json::{Value, json};
use std::fmt;

/// A whole run.
#[derive(Debug)]
pub struct Report {
    /// The line that replays it.
    pub replay: String,
    /// How long the load lasted, in seconds.
    pub load_s: f64,
    /// The faults that there were.
    pub faults: Vec<Fault>,
    /// The result of the oracle.
    pub verdict: Verdict,
    /// How long after the last fault nothing was left, and how long was allowed, in seconds; `None` if it never was.
    pub drained_s: (Option<f64>, f64),
    /// How many events were left to do when the last fault was over.
    pub backlog: u64,
    /// Processes that ended by themselves, or did not stop in order.
    pub exits: Vec<String>,
    /// The steps that the soak itself could not do.
    pub failures: Vec<String>,
}

impl Report {
    /// Whether nothing at all was wrong.
    pub fn is_sound(&self) -> bool {
        self.damage() == 0 && self.is_drained() && self.exits.is_empty() && self.failures.is_empty()
    }

    /// Damage of all kinds.
    pub fn damage(&self) -> u64 {
        KINDS.iter().map(|kind| self.verdict.count(kind)).sum()
    }

    fn is_drained(&self) -> bool {
        self.drained_s.0.is_some_and(|took| took <= self.drained_s.1)
    }

    /// The same as one JSON value.
    pub fn json(&self) -> Value {
        json!({
            "ok": self.is_sound(),
            "replay": self.replay,
            "load_s": self.load_s,
            "faults": self.faults.iter().map(|fault| {
                json!({"at_ms": fault.at_ms, "for_ms": fault.for_ms, "what": fault.action.to_string()})
            }).collect::<Vec<_>>(),
            "by_type": self.verdict.by_type.iter().map(|(of, [asked, taken, credited, archived])| {
                json!({"type": of, "asked": asked, "taken": taken, "credited": credited, "archived": archived})
            }).collect::<Vec<_>>(),
            "damage": self.verdict.damage,
            "latency_ms": {
                "p50": self.verdict.latency_ms[0],
                "p99": self.verdict.latency_ms[1],
                "max": self.verdict.latency_ms[2],
            },
            "timers": self.verdict.timers,
            "task_queue": self.verdict.queues,
            "jobs": self.verdict.jobs,
            "backlog_after_last_fault": self.backlog,
            "drained_s": self.drained_s.0,
            "drained_allowed_s": self.drained_s.1,
            "exits": self.exits,
            "failures": self.failures,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<8} {:>9} {:>9} {:>9} {:>9}", "type", "asked", "taken", "credited", "archived")?;
        for (of, [asked, taken, credited, archived]) in &self.verdict.by_type {
            writeln!(f, "{of:<8} {asked:>9} {taken:>9} {credited:>9} {archived:>9}")?;
        }
        for kind in KINDS {
            writeln!(f, "{kind:<12} {}", self.verdict.count(kind))?;
            for example in self.verdict.damage.get(kind).iter().flat_map(|damage| &damage.examples) {
                writeln!(f, "    {example}")?;
            }
        }
        let TimerTally { asked, added, moved, cancelled, fired, repeated, late_ms } = self.verdict.timers;
        let [p50, p99, max] = late_ms;
        writeln!(
            f,
            "timers: {asked} asked for, {added} added for good, {moved} moved, {cancelled} cancelled, {fired} fired, \
             {repeated} repeated for a reason; half within {p50} ms, 99 % within {p99} ms, all within {max} ms"
        )?;
        queues_and_jobs(f, &self.verdict)?;
        let [p50, p99, max] = self.verdict.latency_ms;
        writeln!(
            f,
            "from the answer to the credit: half within {p50} ms, 99 % within {p99} ms, all within {max} ms"
        )?;
        let (took, allowed) = self.drained_s;
        match took {
            Some(took) => writeln!(
                f,
                "drained {took:.1} s after the last fault, with {} rewards left then; {allowed:.1} s are allowed",
                self.backlog
            )?,
            None => writeln!(
                f,
                "not drained within {allowed:.1} s; {} rewards were left at the last fault",
                self.backlog
            )?,
        }
        for exit in &self.exits {
            writeln!(f, "process: {exit}")?;
        }
        for failure in &self.failures {
            writeln!(f, "the soak could not: {failure}")?;
        }
        let word = if self.is_sound() { "sound" } else { "DAMAGE" };
        writeln!(
            f,
            "{word}: {} faults in {:.0} s of load. Again by: {}",
            self.faults.len(),
            self.load_s,
            self.replay
        )
    }
}

fn queues_and_jobs(f: &mut fmt::Formatter<'_>, verdict: &Verdict) -> fmt::Result {
    let QueueTally { asked, published, acknowledged, delivered, revived, unanswered } = verdict.queues;
    writeln!(
        f,
        "task queue: {asked} jobs asked for, {published} answered, {acknowledged} of them acknowledged; they came {delivered} \
         times, {revived} of them from the dead letter; {unanswered} calls that consume had no answer"
    )?;
    let Some(tally) = verdict.jobs else { return Ok(()) };
    let JobTally { once, expected, came, retried, repeated, missed, late_ms, late_after_kill_ms } = tally;
    let [p50, p99, max] = late_ms;
    writeln!(
        f,
        "jobs: {once} that are due once, {expected} occurrences had to be decided, {came} came, {retried} tried again, \
         {repeated} repeated and {missed} missed for a reason; half within {p50} ms, 99 % within {p99} ms, all within {max} ms, \
         within {late_after_kill_ms} ms after the kill of a scheduler"
    )
}
