//! What needs a person's look: the same as on the console's page Flow.

use super::picture::{Picture, ProcessState, Topic, Type};
use super::rates::Sample;
use super::words::{count, short};
use serde::Serialize;

/// How much the fleet needs a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Not at all.
    #[default]
    Well,
    /// Something waits, or is switched off.
    Look,
    /// Something is broken.
    Bad,
}

/// Something that needs a person's look.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// How much it needs one.
    pub level: Level,
    /// What it is, in a sentence.
    pub text: String,
}

impl Level {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Look => "needs a look",
            Self::Bad => "bad",
        }
    }
}

/// Everything that needs a look, the worst first.
pub fn findings(picture: &Picture, sample: &Sample) -> Vec<Finding> {
    let mut found = Vec::new();
    of_processes(picture, &mut found);
    of_ledger(sample, &mut found);
    picture.topics.iter().for_each(|topic| of_topic(topic, &mut found));
    picture.types.iter().for_each(|one| of_type(one, &mut found));
    of_ends(picture, sample, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn bad(found: &mut Vec<Finding>, text: impl Into<String>) {
    found.push(Finding { level: Level::Bad, text: text.into() });
}

fn look(found: &mut Vec<Finding>, text: impl Into<String>) {
    found.push(Finding { level: Level::Look, text: text.into() });
}

fn of_processes(picture: &Picture, found: &mut Vec<Finding>) {
    for process in &picture.processes {
        let (name, why) = (&process.name, process.why.join("; "));
        match process.state {
            ProcessState::Away => bad(found, format!("{name} does not answer: {why}.")),
            ProcessState::NotReady => bad(found, format!("{name} is not ready: {why}.")),
            ProcessState::Ready if !why.is_empty() => bad(found, format!("{name} works without {why}.")),
            ProcessState::Ready => {}
        }
        if process.refuses_rules {
            bad(found, format!("{name} refuses the newest rules."));
        }
        if let (Some(runs), Some(newest)) = (process.rules_version, picture.rules_version)
            && runs < newest
        {
            look(found, format!("{name} runs version {runs} of the rules, another process {newest}."));
        }
    }
}

fn of_ledger(sample: &Sample, found: &mut Vec<Finding>) {
    if sample.is_set("windfall_ledger_back_in_time", &[]) {
        bad(found, "The ledger went back in time: nothing is paid out.");
    } else if sample.is_set("windfall_ledger_payouts_stopped", &[]) {
        bad(found, "Payouts are stopped: the ledger's mark could not be read.");
    }
    if sample.is_set("windfall_ledger_closed", &[]) {
        bad(found, "The ledger's writer has ended: a process must be started again.");
    }
    if sample.is_set("windfall_ledger_rules_behind", &[]) {
        bad(found, "A process runs older rules than the ledger has seen, and grants nothing.");
    }
    // Several auditors see the same differences.
    let open: f64 =
        sample.all("windfall_audit_differences", &[("state", "open")]).map(|(_, series)| series.max).sum();
    if open > 0.0 {
        let open = short(open);
        bad(
            found,
            format!("The auditor has found {open} differences in the ledger that nobody has acknowledged."),
        );
    }
}

fn of_topic(topic: &Topic, found: &mut Vec<Finding>) {
    let name = &topic.name;
    if topic.is_breaker_open {
        bad(found, format!("The breaker of topic {name} is open."));
    }
    if topic.stuck > 0 {
        bad(found, format!("Topic {name}: {} partitions make no progress.", topic.stuck));
    }
    if topic.consumers == Some(0) {
        bad(found, format!("Topic {name} is not being read."));
    }
}

fn of_type(one: &Type, found: &mut Vec<Finding>) {
    let name = &one.name;
    if one.is_breaker_open {
        bad(found, format!("Nothing of {name} is decided: its payer does not answer."));
    }
    if one.fuse != "closed" {
        look(found, format!("The fuse of {name} is at {}.", one.fuse));
    }
    match one.limit_per_s {
        Some(0.0) => look(found, format!("The limit of {name} is 0: nothing of it is granted.")),
        Some(limit) if one.waiting > 0 && one.rate_per_s.is_some_and(|rate| rate >= limit * 0.95) => {
            look(found, format!("{name} waits for its limit of {}/s.", short(limit)));
        }
        _ => {}
    }
}

fn of_ends(picture: &Picture, sample: &Sample, found: &mut Vec<Finding>) {
    let full = picture.senders.full_per_s.unwrap_or(0.0);
    if full > 0.0 {
        bad(found, format!("Senders refuse {} calls per second: the spool is full.", short(full)));
    }
    let max = |metric| sample.max(metric, &[]).unwrap_or(0.0);
    let undecided = max("windfall_undecided_orders") + max("windfall_undecided_withdrawals");
    if undecided > 0.0 {
        let what = "orders or withdrawals have had no answer of their payer for 10 minutes.";
        bad(found, format!("{} {what}", short(undecided)));
    }
    let unacknowledged = max("windfall_payouts_to_acknowledge");
    if unacknowledged > 0.0 {
        let what = "withdrawals were acknowledged by no front end for 10 minutes.";
        bad(found, format!("{} {what}", short(unacknowledged)));
    }
    for end in &picture.ends {
        let growth = end.per_s.unwrap_or(0.0);
        match end.name {
            "archived" if growth > 0.0 => {
                look(found, format!("{} events per second go to the archive.", short(growth)));
            }
            "quarantined" if growth > 0.0 => {
                bad(found, "A record made a consumer panic again and again, and was archived whole.");
            }
            "unverified" if growth > 0.0 => {
                bad(found, "Records come whose signature is missing or wrong: they are archived whole.");
            }
            "salvaged" if end.count > 0 => {
                let what = "records wait in the salvage file: no queue took them.";
                look(found, format!("{} {what}", count(end.count)));
            }
            "reserved" if end.count > 0 => {
                look(found, format!("{} orders have held budget for more than a minute.", count(end.count)));
            }
            "held" if end.count > 0 => {
                look(found, format!("{} withdrawals wait for their payer.", count(end.count)));
            }
            _ => {}
        }
    }
}
