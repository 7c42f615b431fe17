//! What a job does, as arguments.

use super::super::now_ms;
use super::super::schedule::times::{duration_ms, time_ms};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use windfall_jobs::routing::Strategy;
use windfall_proto::v1::job_spec::{Destination, Schedule};
use windfall_proto::v1::{
    CronSchedule, ExecutorDestination, FixedDelay, FixedRate, JobBlock, JobDelivery, JobMisfire, JobPriority,
    JobRetries, JobRouting, JobSpec, OneTime, TargetDestination, TimeList,
};

/// The wait before a retry, where none is given.
const RETRY_WAIT_MS: u64 = 1_000;

/// When a job is due.
#[derive(Debug, Clone, clap::Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    when: When,
    /// The time zone of --cron, from the IANA database [default: UTC]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// The first occurrence of --every [default: multiples of the interval since 1970]
    #[arg(long, value_name = "TIME", value_parser = time_ms)]
    start: Option<u64>,
    /// No occurrence before this time
    #[arg(long, value_name = "TIME", value_parser = time_ms)]
    from: Option<u64>,
    /// No occurrence after this time
    #[arg(long, value_name = "TIME", value_parser = time_ms)]
    until: Option<u64>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct When {
    /// A cron expression: 5 fields as in Unix (`*/5 9-17 * * MON-FRI`), or 6 or 7 as in Quartz and XXL-JOB (`0 0/5 * * * ?`)
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Every so often, counted from a start: 30s, 5m, 2h or 30d
    #[arg(long, visible_alias = "fixed-rate", value_name = "DURATION", value_parser = duration_ms)]
    every: Option<u64>,
    /// So long after the end of each run: 30s, 5m, 2h or 30d
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    fixed_delay: Option<u64>,
    /// Once, at this time: 2027-02-06T12:00:00Z, or Unix milliseconds
    #[arg(long, value_name = "TIME", value_parser = time_ms)]
    at: Option<u64>,
    /// Once, so long from now
    #[arg(long = "in", value_name = "DURATION", value_parser = duration_ms)]
    after: Option<u64>,
    /// At each of these times, with commas between them
    #[arg(long, value_name = "TIMES", value_delimiter = ',', value_parser = time_ms)]
    times: Vec<u64>,
}

/// What a job does, and when.
#[derive(Debug, Clone, clap::Args)]
pub struct SpecArgs {
    #[command(flatten)]
    schedule: ScheduleArgs,
    #[command(flatten)]
    to: To,
    /// Which of the app's executors gets a run: first, last, round, random, consistent-hash, least-frequently-used,
    /// least-recently-used, failover, busyover, sharding-broadcast or least-loaded [default: round]
    #[arg(long, value_name = "STRATEGY", value_parser = routing)]
    routing: Option<JobRouting>,
    #[command(flatten)]
    params: Params,
    /// How often a failed run is tried again
    #[arg(long, value_name = "TIMES")]
    retries: Option<u32>,
    /// The wait before a retry [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    retry_wait: Option<u64>,
    /// Let the wait double from --retry-wait up to this
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    retry_wait_max: Option<u64>,
    /// The time within which a run must be reported as over: 1s to 1d, or `none` for no limit [default: 300s]
    #[arg(long, value_name = "DURATION", value_parser = timeout_s)]
    timeout: Option<u32>,
    /// What happens with occurrences that come late by more than 15 s: do-nothing, fire-once-now or fire-all:N, where N is how
    /// many are caught up with at most. A job with --at, --in or --fixed-delay is run however late [default: do-nothing]
    #[arg(long, value_name = "STRATEGY", value_parser = misfire)]
    misfire: Option<(JobMisfire, u32)>,
    /// What an executor does with a run while an earlier one of the job still goes: serial-execution, discard-later or
    /// cover-early [default: serial-execution]
    #[arg(long, value_name = "STRATEGY", value_parser = block)]
    block: Option<JobBlock>,
    /// Never send a run again of which nobody knows whether it was sent: it counts as missed
    #[arg(long, conflicts_with = "at_least_once")]
    at_most_once: bool,
    /// Send a run again of which nobody knows whether it was sent, under the same occurrence id: the default
    #[arg(long)]
    at_least_once: bool,
    /// Whose occurrences go first while there are too many: urgent, normal or bulk [default: normal]
    #[arg(long, value_name = "CLASS", value_parser = priority)]
    priority: Option<JobPriority>,
    /// A job that is run once when a run has succeeded; may be given several times
    #[arg(long, value_name = "JOB")]
    child: Vec<String>,
    /// Take all children away, so that no other job runs when a run has succeeded
    #[arg(long, conflicts_with = "child")]
    no_children: bool,
    /// Whom an alert about it is for; it is shown with the job
    #[arg(long, value_name = "ADDRESS")]
    alarm_email: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct To {
    /// The executor that runs it: the name under which executors register, `/`, and the name of the handler there
    #[arg(long, value_name = "APP/HANDLER", value_parser = executor)]
    executor: Option<(String, String)>,
    /// The target of the scheduler that gets its runs
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct Params {
    /// What its runs get, as text
    #[arg(long = "params", value_name = "TEXT")]
    text: Option<String>,
    /// What its runs get, as the content of a file
    #[arg(long = "params-file", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ScheduleArgs {
    /// The spec with the schedule that was given.
    pub fn apply(&self, mut spec: JobSpec) -> Result<JobSpec> {
        let When { cron, every, fixed_delay, at, after, times } = &self.when;
        let given = match (cron, every, fixed_delay, at, after) {
            (Some(expression), ..) => {
                Some(Schedule::Cron(CronSchedule { expression: expression.clone(), zone: String::new() }))
            }
            (_, Some(every_ms), ..) => {
                Some(Schedule::FixedRate(FixedRate { every_ms: *every_ms, start_ms: 0 }))
            }
            (_, _, Some(delay_ms), ..) => Some(Schedule::FixedDelay(FixedDelay { delay_ms: *delay_ms })),
            (_, _, _, Some(time_ms), _) => Some(Schedule::At(OneTime { time_ms: *time_ms })),
            (.., Some(after_ms)) => {
                Some(Schedule::At(OneTime { time_ms: now_ms().saturating_add(*after_ms) }))
            }
            _ if !times.is_empty() => Some(Schedule::Times(TimeList { times_ms: times.clone() })),
            _ => None,
        };
        // A cron expression that replaces another one keeps its zone.
        let zone_before = match &spec.schedule {
            Some(Schedule::Cron(cron)) => cron.zone.clone(),
            _ => String::new(),
        };
        spec.schedule = given.or(spec.schedule);
        match (&mut spec.schedule, &self.zone) {
            (Some(Schedule::Cron(cron)), zone) => cron.zone = zone.clone().unwrap_or(zone_before),
            (_, Some(_)) => bail!("--zone goes with --cron alone"),
            _ => {}
        }
        match (&mut spec.schedule, self.start) {
            (Some(Schedule::FixedRate(rate)), Some(start_ms)) => rate.start_ms = start_ms,
            (_, Some(_)) => {
                bail!("--start goes with --every alone; --from sets the first time of any schedule")
            }
            _ => {}
        }
        spec.starts_ms = self.from.unwrap_or(spec.starts_ms);
        spec.ends_ms = self.until.unwrap_or(spec.ends_ms);
        Ok(spec)
    }
}

impl SpecArgs {
    /// The spec with all that was given.
    pub fn apply(&self, spec: JobSpec) -> Result<JobSpec> {
        let mut spec = self.schedule.apply(spec)?;
        let routing_before = match &spec.destination {
            Some(Destination::Executor(executor)) => executor.routing,
            _ => 0,
        };
        if let Some((app, handler)) = self.to.executor.clone() {
            spec.destination =
                Some(Destination::Executor(ExecutorDestination { app, handler, routing: routing_before }));
        }
        if let Some(name) = self.to.target.clone() {
            spec.destination = Some(Destination::Target(TargetDestination { name }));
        }
        match (&mut spec.destination, self.routing) {
            (Some(Destination::Executor(executor)), Some(routing)) => executor.routing = routing.into(),
            (_, Some(_)) => bail!("--routing goes with --executor alone"),
            _ => {}
        }
        if let Some(params) = self.params.read()? {
            spec.params = params;
        }
        spec.retries = self.retries(spec.retries)?;
        if let Some(timeout_s) = self.timeout {
            (spec.timeout_s, spec.no_timeout) = (timeout_s, timeout_s == 0);
        }
        if let Some((misfire, limit)) = self.misfire {
            (spec.misfire, spec.fire_all_max) = (misfire.into(), limit);
        }
        spec.block = self.block.map_or(spec.block, Into::into);
        if self.at_most_once {
            spec.delivery = JobDelivery::AtMostOnce.into();
        }
        if self.at_least_once {
            spec.delivery = JobDelivery::AtLeastOnce.into();
        }
        spec.priority = self.priority.map_or(spec.priority, Into::into);
        if self.no_children || !self.child.is_empty() {
            spec.children = self.child.clone();
        }
        spec.alarm_email = self.alarm_email.clone().unwrap_or(spec.alarm_email);
        Ok(spec)
    }

    fn retries(&self, before: Option<JobRetries>) -> Result<Option<JobRetries>> {
        if self.retries.is_none() && self.retry_wait.is_none() && self.retry_wait_max.is_none() {
            return Ok(before);
        }
        let before = before.filter(|retries| retries.max > 0);
        let max = self.retries.or(before.as_ref().map(|retries| retries.max));
        let max = max.context("--retry-wait goes with --retries, which says how often")?;
        let known = before.unwrap_or(JobRetries { max, wait_ms: RETRY_WAIT_MS, wait_max_ms: 0 });
        Ok(Some(JobRetries {
            max,
            wait_ms: self.retry_wait.unwrap_or(known.wait_ms),
            wait_max_ms: self.retry_wait_max.unwrap_or(known.wait_max_ms),
        }))
    }
}

impl Params {
    fn read(&self) -> Result<Option<String>> {
        match (&self.text, &self.file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("the file {} cannot be read as text", path.display()))?;
                Ok(Some(text))
            }
            (None, None) => Ok(None),
        }
    }
}

/// Names are read as we write them, and as XXL-JOB does.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

fn routing(name: &str) -> Result<JobRouting, String> {
    let strategy: Strategy = plain(name).parse().map_err(|error| format!("{error}"))?;
    let wire = format!("JOB_ROUTING_{}", strategy.name().to_ascii_uppercase());
    JobRouting::from_str_name(&wire).ok_or_else(|| format!("`{name}` is no routing strategy"))
}

fn misfire(name: &str) -> Result<(JobMisfire, u32), String> {
    let plain = plain(name);
    let all = || {
        let limit = plain.strip_prefix("fire_all:")?.parse().ok()?;
        Some((JobMisfire::FireAll, limit))
    };
    match plain.as_str() {
        "do_nothing" => Ok((JobMisfire::DoNothing, 0)),
        "fire_once_now" => Ok((JobMisfire::FireOnceNow, 0)),
        _ => all().ok_or_else(|| {
            format!("`{name}` is none of do-nothing, fire-once-now and fire-all:N, where N is 1 to 1000")
        }),
    }
}

fn block(name: &str) -> Result<JobBlock, String> {
    match plain(name).as_str() {
        "serial_execution" | "serial" => Ok(JobBlock::SerialExecution),
        "discard_later" => Ok(JobBlock::DiscardLater),
        "cover_early" => Ok(JobBlock::CoverEarly),
        _ => Err(format!("`{name}` is none of serial-execution, discard-later and cover-early")),
    }
}

fn priority(name: &str) -> Result<JobPriority, String> {
    match plain(name).as_str() {
        "urgent" => Ok(JobPriority::Urgent),
        "normal" => Ok(JobPriority::Normal),
        "bulk" => Ok(JobPriority::Bulk),
        _ => Err(format!("`{name}` is none of urgent, normal and bulk")),
    }
}

fn executor(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((app, handler)) if !app.is_empty() && !handler.is_empty() => {
            Ok((app.to_owned(), handler.to_owned()))
        }
        _ => Err(format!("`{text}` is not APP/HANDLER, such as reports/daily")),
    }
}

/// Seconds; 0 where a run may take as long as it needs.
fn timeout_s(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        _ => seconds(text),
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    let ms = duration_ms(text)?;
    match u32::try_from(ms / 1_000) {
        Ok(seconds) if seconds > 0 && ms.is_multiple_of(1_000) => Ok(seconds),
        _ => Err(format!("`{text}` is no whole number of seconds, such as 90s or 5m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Trial {
        #[command(flatten)]
        args: SpecArgs,
    }

    fn apply(words: &[&str], spec: JobSpec) -> Result<JobSpec> {
        Trial::try_parse_from(["windfall"].iter().chain(words)).unwrap().args.apply(spec)
    }

    #[test]
    fn what_is_not_given_stays_as_it_is() {
        let first = [
            "--cron",
            "0 0/5 * * * ?",
            "--zone",
            "Asia/Shanghai",
            "--executor",
            "a/h",
            "--routing",
            "FAILOVER",
        ];
        let made = apply(&first, JobSpec::default()).unwrap();
        assert_eq!(apply(&[], made.clone()).unwrap(), made);
        let changed = apply(&["--cron", "0 0 3 * * ?", "--retries", "3", "--executor", "b/h"], made).unwrap();
        let cron = CronSchedule { expression: "0 0 3 * * ?".into(), zone: "Asia/Shanghai".into() };
        assert_eq!(changed.schedule, Some(Schedule::Cron(cron)));
        let Some(Destination::Executor(to)) = &changed.destination else { panic!("{changed:?}") };
        assert_eq!((to.app.as_str(), to.routing()), ("b", JobRouting::Failover));
        assert_eq!(changed.retries, Some(JobRetries { max: 3, wait_ms: 1_000, wait_max_ms: 0 }));
        let endless = apply(&["--timeout", "none"], changed.clone()).unwrap();
        assert_eq!((endless.timeout_s, endless.no_timeout), (0, true));
        let bounded = apply(&["--timeout", "90s"], endless).unwrap();
        assert_eq!((bounded.timeout_s, bounded.no_timeout), (90, false));
        let parent = apply(&["--child", "x", "--child", "y"], changed.clone()).unwrap();
        assert_eq!(apply(&["--timeout", "5s"], parent.clone()).unwrap().children, ["x", "y"]);
        assert!(apply(&["--no-children"], parent).unwrap().children.is_empty());
        let doubling = apply(&["--retry-wait-max", "1m", "--retry-wait", "5s"], changed).unwrap();
        assert_eq!(doubling.retries, Some(JobRetries { max: 3, wait_ms: 5_000, wait_max_ms: 60_000 }));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (words, said) in [
            (&["--every", "5s", "--zone", "UTC"][..], "--zone goes with --cron"),
            (&["--cron", "* * * * *", "--start", "7"], "--start goes with --every"),
            (&["--target", "hook", "--routing", "first"], "--routing goes with --executor"),
            (&["--retry-wait", "1s"], "--retry-wait goes with --retries"),
            (&["--params-file", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
        ] {
            let why = format!("{:#}", apply(words, JobSpec::default()).unwrap_err());
            assert!(why.contains(said), "{words:?}: {why}");
        }
    }

    #[test]
    fn names_are_read_as_we_write_them_and_as_xxl_job_does() {
        for strategy in Strategy::ALL {
            assert_eq!(routing(strategy.name()), routing(&strategy.name().to_ascii_uppercase()));
            assert!(routing(&strategy.name().replace('_', "-")).is_ok());
        }
        assert_eq!(misfire("FIRE_ONCE_NOW"), Ok((JobMisfire::FireOnceNow, 0)));
        assert_eq!(misfire("fire-all:7"), Ok((JobMisfire::FireAll, 7)));
        assert_eq!(
            (block("COVER_EARLY"), block("serial")),
            (Ok(JobBlock::CoverEarly), Ok(JobBlock::SerialExecution))
        );
        assert_eq!((timeout_s("90s"), timeout_s("5m"), timeout_s("none")), (Ok(90), Ok(300), Ok(0)));
        assert!(timeout_s("0s").is_err(), "a time of nothing is a slip");
    }
}
