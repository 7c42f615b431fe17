//! Jobs, runs and executors for people.

use super::super::utc;
use serde_json::{Value, json};
use windfall_jobs::schedule::local_time;
use windfall_proto::v1::job_spec::{Destination, Schedule};
use windfall_proto::v1::{Job, JobDelivery, JobRun, JobSpec, JobVersion, RegisteredExecutor};

/// What a table shows of a text.
const SHOWN: usize = 60;

pub fn job_row(job: &Job) -> Value {
    let spec = job.spec.clone().unwrap_or_default();
    json!({
        "name": job.name,
        "schedule": schedule(&spec),
        "to": destination(&spec),
        "next": if job.paused { "paused".to_owned() } else { time(job.next_ms) },
        "version": job.version,
    })
}

pub fn version_row(version: &JobVersion) -> Value {
    let spec = version.spec.clone().unwrap_or_default();
    let change = version.change.clone().unwrap_or_default();
    json!({
        "version": version.version,
        "schedule": schedule(&spec),
        "to": destination(&spec),
        "paused": version.paused,
        "when": time(change.at_ms),
        "by": change.by,
        "why": change.why,
    })
}

pub fn run_row(run: &JobRun) -> Value {
    let is_over = run.outcome != 0;
    let state = if is_over { name(run.outcome().as_str_name()) } else { name(run.state().as_str_name()) };
    let part = match run.part_total {
        0 => String::new(),
        total => format!("{} of {total}", run.part_index + 1),
    };
    let at = if is_over { "ended" } else { "until" };
    json!({
        "run": run.run.to_string(),
        "due": time(run.due_ms),
        "cause": name(run.cause().as_str_name()),
        "attempt": run.attempt,
        "part": part,
        "state": state,
        at: time(run.at_ms),
        "executor": run.executor,
        "message": shown(&run.message),
    })
}

pub fn executor_row(executor: &RegisteredExecutor) -> Value {
    json!({
        "address": executor.address,
        "since": time(executor.since_ms),
        "gone without a heartbeat at": time(executor.until_ms),
    })
}

/// A job, a line for each of its properties that says something.
pub fn job_text(job: &Job) -> String {
    let spec = job.spec.clone().unwrap_or_default();
    let change = job.change.clone().unwrap_or_default();
    let mut lines = vec![
        ("name", job.name.clone()),
        ("number", job.number.to_string()),
        ("version", format!("{} ({}, by {})", job.version, time(change.at_ms), change.by)),
        ("why", change.why),
        ("paused", if job.paused { "yes".into() } else { String::new() }),
        ("schedule", schedule(&spec)),
        ("from", bound(spec.starts_ms)),
        ("until", bound(spec.ends_ms)),
        ("to", destination(&spec)),
        ("params", shown(&spec.params)),
        ("time-out", if spec.no_timeout { "none".into() } else { format!("{} s", spec.timeout_s) }),
        ("retries", retries(&spec)),
        ("misfire", misfire(&spec)),
        ("block", name(spec.block().as_str_name())),
        ("delivery", name(spec.delivery().as_str_name())),
        ("priority", name(spec.priority().as_str_name())),
        ("children", spec.children.join(", ")),
        ("alarm e-mail", spec.alarm_email.clone()),
        ("last", bound(job.last_ms)),
        ("left out", if job.missed > 0 { job.missed.to_string() } else { String::new() }),
    ];
    if spec.delivery() == JobDelivery::AtMostOnce {
        lines.retain(|(name, _)| *name != "retries");
    }
    let mut text = String::new();
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("{name:<13} {value}\n"));
    }
    text
}

/// The next occurrences, in the zone of a cron expression too.
pub fn next_lines(spec: &JobSpec, times_ms: &[u64]) -> String {
    let zone = match &spec.schedule {
        Some(Schedule::Cron(cron)) if !cron.zone.is_empty() && cron.zone != "UTC" => Some(&cron.zone),
        _ => None,
    };
    let mut text = String::new();
    for (place, time_ms) in times_ms.iter().enumerate() {
        let head = if place == 0 { "next" } else { "" };
        let local = zone.and_then(|zone| local_time(*time_ms, zone)).map(|local| format!("  {local}"));
        text.push_str(&format!("{head:<13} {}{}\n", utc(*time_ms), local.unwrap_or_default()));
    }
    if matches!(spec.schedule, Some(Schedule::FixedDelay(_))) && !times_ms.is_empty() {
        text.push_str("              and so on after the end of each run\n");
    }
    text
}

fn schedule(spec: &JobSpec) -> String {
    match &spec.schedule {
        Some(Schedule::Cron(cron)) => format!("{}  {}", cron.expression, cron.zone),
        Some(Schedule::FixedRate(rate)) => format!("every {}", duration(rate.every_ms)),
        Some(Schedule::FixedDelay(delay)) => format!("{} after each run", duration(delay.delay_ms)),
        Some(Schedule::At(at)) => format!("once at {}", utc(at.time_ms)),
        Some(Schedule::Times(times)) => format!("at {} times", times.times_ms.len()),
        None => String::new(),
    }
}

fn destination(spec: &JobSpec) -> String {
    match &spec.destination {
        Some(Destination::Executor(to)) => {
            format!("{}/{} ({})", to.app, to.handler, name(to.routing().as_str_name()))
        }
        Some(Destination::Target(to)) => format!("target {}", to.name),
        None => String::new(),
    }
}

fn retries(spec: &JobSpec) -> String {
    match &spec.retries {
        Some(retries) if retries.max > 0 && retries.wait_max_ms > 0 => {
            let (wait, longest) = (duration(retries.wait_ms), duration(retries.wait_max_ms));
            format!("{}, after {wait} and twice as long each time, up to {longest}", retries.max)
        }
        Some(retries) if retries.max > 0 => format!("{}, after {}", retries.max, duration(retries.wait_ms)),
        _ => "none".into(),
    }
}

fn misfire(spec: &JobSpec) -> String {
    match spec.fire_all_max {
        0 => name(spec.misfire().as_str_name()),
        limit => format!("{} up to {limit}", name(spec.misfire().as_str_name())),
    }
}

/// The name of an enum's value without what its type puts before it: `JOB_ROUTING_LEAST_LOADED` is `least-loaded`.
fn name(full: &str) -> String {
    const PREFIXES: [&str; 9] = [
        "JOB_ROUTING_",
        "JOB_MISFIRE_",
        "JOB_BLOCK_",
        "JOB_DELIVERY_",
        "JOB_PRIORITY_",
        "JOB_RUN_STATE_",
        "JOB_RUN_OUTCOME_",
        "JOB_RUN_CAUSE_",
        "RUN_RESULT_",
    ];
    let short = PREFIXES.iter().find_map(|prefix| full.strip_prefix(prefix)).unwrap_or(full);
    short.to_ascii_lowercase().replace('_', "-")
}

fn time(ms: u64) -> String {
    if ms == 0 { "–".to_owned() } else { utc(ms) }
}

fn bound(ms: u64) -> String {
    if ms == 0 { String::new() } else { utc(ms) }
}

/// A duration in the largest unit that says it exactly.
fn duration(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.iter().find(|(unit_ms, _)| ms > 0 && ms.is_multiple_of(*unit_ms)) {
        Some((unit_ms, unit)) => format!("{}{unit}", ms / unit_ms),
        None => format!("{ms}ms"),
    }
}

/// The beginning of a text, without line breaks.
fn shown(text: &str) -> String {
    let mut short: String =
        text.chars().take(SHOWN).map(|sign| if sign.is_control() { ' ' } else { sign }).collect();
    if text.chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::{CronSchedule, JobRouting, JobRunOutcome};

    #[test]
    fn values_are_shown_as_they_are_given() {
        assert_eq!(name(JobRouting::LeastLoaded.as_str_name()), "least-loaded");
        assert_eq!(name(JobRunOutcome::TimedOut.as_str_name()), "timed-out");
        let shown_as = [1_500, 5_000, 300_000, 7_200_000, 86_400_000].map(duration);
        assert_eq!(shown_as, ["1500ms", "5s", "5m", "2h", "1d"]);
        assert_eq!(shown("a\nb"), "a b");
        assert_eq!(shown(&"x".repeat(61)).chars().count(), 61);
    }

    #[test]
    fn occurrences_are_shown_in_the_zone_of_the_job_too() {
        let cron = CronSchedule { expression: "0 0 9 * * ?".into(), zone: "Asia/Shanghai".into() };
        let spec = JobSpec { schedule: Some(Schedule::Cron(cron)), ..JobSpec::default() };
        let lines = next_lines(&spec, &[1_795_482_000_000]);
        assert!(lines.contains("2026-11-24T01:00:00Z  2026-11-24T09:00:00+08:00"), "{lines}");
    }
}
