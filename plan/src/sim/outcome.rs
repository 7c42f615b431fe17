//! What became of the backlog.

use crate::numbers::{real, round};

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// By type, in the order of the scenario.
    pub types: Vec<TypeOutcome>,
    /// The times of the samples, in seconds from the first send.
    pub sampled_s: Vec<f64>,
    /// Seconds from the first send to the last credit; `None` if the run was given up before.
    pub last_credit_s: Option<f64>,
    /// The part of the time up to the last credit in which the ledger's writers were busy, 0 to 1.
    pub ledger_busy: f64,
}

/// What became of one type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TypeOutcome {
    /// Its name.
    pub name: String,
    /// Rewards credited.
    pub credited: u64,
    /// Seconds from the first send to its last credit; `None` if not all of it was credited.
    pub last_credit_s: Option<f64>,
    /// The age at which half of it was credited, in seconds.
    pub age_p50_s: f64,
    /// The age that 99 of 100 stayed below.
    pub age_p99_s: f64,
    /// Rewards sent and not credited, at each sample.
    pub backlog: Vec<u64>,
    /// The largest of these.
    pub backlog_max: u64,
    /// Rewards that went back to their topic, each time counted.
    pub requeued: u64,
}

/// Counts what is credited.
pub(crate) struct Tally {
    pub outcome: TypeOutcome,
    /// Rewards in packs that are on their way or further.
    pub sent: u64,
    ages: Vec<(f64, u64)>,
}

impl Tally {
    pub fn new(name: &str) -> Self {
        let outcome = TypeOutcome { name: name.into(), ..TypeOutcome::default() };
        Self { outcome, sent: 0, ages: Vec::new() }
    }

    pub fn credited(&mut self, at_s: f64, sent_s: f64, events: u64) {
        self.outcome.credited += events;
        self.outcome.last_credit_s = Some(at_s);
        self.ages.push((at_s - sent_s, events));
    }

    /// Notes the backlog, of what was called for evenly so far.
    pub fn sample(&mut self, at_s: f64, load_s: f64, events: u64) {
        let sent = round(real(events) * (at_s / load_s).min(1.0));
        let backlog = sent.saturating_sub(self.outcome.credited);
        self.outcome.backlog.push(backlog);
        self.outcome.backlog_max = self.outcome.backlog_max.max(backlog);
    }

    pub fn finish(mut self, events: u64) -> TypeOutcome {
        self.ages.sort_by(|one, other| one.0.total_cmp(&other.0));
        (self.outcome.age_p50_s, self.outcome.age_p99_s) = (self.quantile(0.5), self.quantile(0.99));
        if self.outcome.credited < events {
            self.outcome.last_credit_s = None;
        }
        self.outcome
    }

    fn quantile(&self, part: f64) -> f64 {
        let wanted = real(self.outcome.credited) * part;
        let mut so_far = 0.0;
        for (age_s, events) in &self.ages {
            so_far += real(*events);
            if so_far >= wanted {
                return *age_s;
            }
        }
        0.0
    }
}
