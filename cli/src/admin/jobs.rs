//! `windfall jobs`: cron and one-off jobs of a running scheduler, for people and scripts, over gRPC.

mod follow;
mod plan;
mod spec_args;
mod views;

use super::ask::{Server, more, show, value};
use crate::outcome::Outcome;
use anyhow::{Result, bail};
use serde_json::{Value, json};
use spec_args::{ScheduleArgs, SpecArgs};
use views::{executor_row, job_row, job_text, next_lines, run_row, version_row};
use windfall_client::{CallError, JobsClient};
use windfall_proto::v1::{
    GetJobRequest, GetRunRequest, Job, JobRun, JobSpec, JobVersion, JobVersionsRequest, KillRunRequest,
    ListDeadRunsRequest, ListExecutorsRequest, ListJobsRequest, ListRunsRequest, PreviewJobRequest,
    PutJobRequest, RegisteredExecutor, RemoveJobRequest, RunAgainRequest, RunJobRequest, SetJobPausedRequest,
};

/// Occurrences that are shown with a job.
const SHOWN: u32 = 5;

/// `windfall jobs …`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  windfall jobs add report --cron '0 0/5 * * * ?' --zone Asia/Shanghai --executor reports/daily --routing failover
  windfall jobs add close-sale --at 2027-02-06T12:00:00Z --target hook --params '{\"sale\": 7}'
  windfall jobs set report --retries 3 --retry-wait 10s --why 'the database restarts at night'
  windfall jobs show report
  windfall jobs runs report
  windfall jobs log 7169 --follow
  windfall jobs dead
  windfall jobs again 7169")]
pub struct JobsArgs {
    #[command(flatten)]
    server: Server,
    /// The tenant whose jobs these are [default: the app of the key's caller]
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Ask,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Ask {
    /// List jobs
    List {
        /// Only jobs behind this name, which is the last one of the page before
        #[arg(long, default_value = "", hide_default_value = true)]
        after: String,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Show a job and when it is due next
    Show {
        /// The job
        name: String,
    },
    /// Make a job, after saying when it is due; a job of this name that is there already is left as it is
    #[command(after_help = "Examples:
  windfall jobs add report --cron '0 0/5 * * * ?' --zone Asia/Shanghai --executor reports/daily
  windfall jobs add sweep --every 30s --executor cleaner/sweep --routing least-loaded --block discard-later
  windfall jobs add poll --fixed-delay 10s --executor poller/next
  windfall jobs add remind --in 2h --target hook --params 'call 7'
  windfall jobs add charge --cron '0 0 3 * * ?' --executor billing/charge --at-most-once")]
    Add {
        /// Its name: 1 to 100 letters, digits, dots, dashes and underscores
        name: String,
        #[command(flatten)]
        spec: Box<SpecArgs>,
        /// Why, for whoever looks at the job later
        #[arg(long, default_value = "", hide_default_value = true)]
        why: String,
    },
    /// Change a job: what is not given stays as it is
    Set {
        /// The job
        name: String,
        #[command(flatten)]
        spec: Box<SpecArgs>,
        /// Why, for whoever looks at the job later
        #[arg(long, default_value = "", hide_default_value = true)]
        why: String,
    },
    /// Run a job once, now, also if it is paused, and print the number of the run
    Run {
        /// The job
        name: String,
        /// Parameters in place of the job's own
        #[arg(long)]
        params: Option<String>,
    },
    /// Pause a job: it has no scheduled runs until it is resumed
    Pause {
        /// The job
        name: String,
        /// Why, for whoever looks at the job later
        #[arg(long, default_value = "", hide_default_value = true)]
        why: String,
    },
    /// Let a paused job go on from now
    Resume {
        /// The job
        name: String,
        /// Why, for whoever looks at the job later
        #[arg(long, default_value = "", hide_default_value = true)]
        why: String,
    },
    /// Remove a job; runs that an executor has go on there, and their ends are not noted
    Remove {
        /// The job
        name: String,
    },
    /// List the runs of a job, the newest first, or show one run
    Runs {
        /// The job
        #[arg(required_unless_present = "run", conflicts_with = "run")]
        name: Option<String>,
        /// Show the run of this number
        #[arg(long, value_name = "RUN")]
        run: Option<u64>,
        /// Only runs behind this one, which is the last one of the page before
        #[arg(long, value_name = "RUN", default_value_t = 0, hide_default_value = true)]
        after: u64,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// List runs that ended badly: failed, timed out or missed
    Dead {
        /// Only runs behind this one, which is the last one of the page before
        #[arg(long, value_name = "RUN", default_value_t = 0, hide_default_value = true)]
        after: u64,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Run runs that are over once more, each under its number and its occurrence id
    Again {
        /// The numbers of the runs
        #[arg(required = true)]
        runs: Vec<u64>,
    },
    /// Print what a run has logged, which its executor keeps
    Log {
        /// The number of the run
        run: u64,
        /// The first line to print
        #[arg(long, value_name = "LINE", default_value_t = 1)]
        from: u32,
        /// Go on with new lines until the run is over
        #[arg(long)]
        follow: bool,
    },
    /// End a run: its executor is asked to end it, and it is not tried again
    Kill {
        /// The number of the run
        run: u64,
    },
    /// List the executors that are registered for an app
    Executors {
        /// The app
        app: String,
    },
    /// List the versions of a job: who changed it, when and why
    Versions {
        /// The job
        name: String,
    },
    /// Upload a plan of up to millions of lines, each with a time and a payload that goes to a target
    ///
    /// Each line becomes a timer under a key of its own, `plan/NAME/ID`, so that a repeated upload adds nothing twice while it
    /// waits. An upload that was broken off goes on where it was, which FILE.progress notes.
    #[command(after_help = "Examples:
  windfall jobs plan tomorrow.ndjson --target hook
  windfall jobs plan tomorrow.ndjson --target rewards --name 2027-02-06 --restart

A line: {\"user\": 42, \"time\": \"2027-02-06T12:00:00Z\", \"payload\": {\"sale\": 7}, \"id\": \"42-1\"}
The time may be Unix milliseconds. Without an id, the line's number stands for it. A payload that is an object gets the
user, where it has none of its own; one that is a text goes as it is.

Exit code 1: some lines were refused or left out; they are told or counted.")]
    Plan(plan::PlanArgs),
    /// Say when a schedule is due, and make nothing
    #[command(after_help = "Examples:
  windfall jobs preview --cron '0 30 2 * * ?' --zone Europe/Berlin --count 10
  windfall jobs preview --cron '*/10 9-17 * * MON-FRI'")]
    Preview {
        #[command(flatten)]
        schedule: ScheduleArgs,
        /// How many occurrences
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        count: u32,
    },
}

/// Runs the command and prints its outcome.
pub fn run(args: &JobsArgs) -> Result<Outcome> {
    if let Ask::Plan(plan) = &args.command {
        return or_again(plan::run(plan, &args.server, &args.tenant, args.json));
    }
    let options = args.server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let asking =
            Asking { client: JobsClient::open(options)?, tenant: args.tenant.clone(), json: args.json };
        or_again(asking.ask(&args.command).await)
    })
}

/// A call that was not answered is not one that was wrong.
fn or_again(asked: Result<Outcome>) -> Result<Outcome> {
    match asked {
        Err(error) => match error.downcast_ref::<CallError>() {
            Some(CallError::Busy { .. } | CallError::Unanswered(_)) => {
                eprintln!("windfall: {error:#}");
                Ok(Outcome::Damage)
            }
            _ => Err(error),
        },
        answered => answered,
    }
}

/// Who is asked, for whom, and how answers are shown.
struct Asking {
    client: JobsClient,
    tenant: String,
    json: bool,
}

impl Asking {
    async fn ask(&self, command: &Ask) -> Result<Outcome> {
        match command {
            Ask::List { after, limit } => self.list(after.clone(), *limit).await,
            Ask::Show { name } => self.show_job(&self.get(name).await?, "").await,
            Ask::Add { name, spec, why } => self.add(name, spec, why).await,
            Ask::Set { name, spec, why } => self.set(name, spec, why).await,
            Ask::Run { name, params } => self.run(name, params.clone()).await,
            Ask::Pause { name, why } => self.set_paused(name, true, why).await,
            Ask::Resume { name, why } => self.set_paused(name, false, why).await,
            Ask::Remove { name } => self.remove(name).await,
            Ask::Runs { name, run: None, after, limit } => {
                self.runs(name.clone().unwrap_or_default(), *after, *limit).await
            }
            Ask::Runs { run: Some(run), .. } => self.show_run(*run).await,
            Ask::Dead { after, limit } => self.dead(*after, *limit).await,
            Ask::Again { runs } => self.again(runs).await,
            Ask::Log { run, from, follow } => {
                follow::log(&self.client, &self.tenant, *run, *from, *follow).await
            }
            Ask::Kill { run } => self.kill(*run).await,
            Ask::Executors { app } => self.executors(app).await,
            Ask::Versions { name } => self.versions(name).await,
            Ask::Preview { schedule, count } => self.preview(schedule, *count).await,
            // It asks for timers: `run` has seen to it.
            Ask::Plan(_) => Ok(Outcome::Clean),
        }
    }

    fn tenant(&self) -> String {
        self.tenant.clone()
    }

    fn rows<T: serde::Serialize>(&self, all: &[T], row: impl Fn(&T) -> Value) {
        let rows: Vec<Value> = all.iter().map(|one| if self.json { value(one) } else { row(one) }).collect();
        show(&rows, self.json);
    }

    async fn list(&self, after: String, limit: u32) -> Result<Outcome> {
        let request = ListJobsRequest { tenant: self.tenant(), after, page_size: limit };
        let reply = self.client.list(request).await?;
        self.rows::<Job>(&reply.jobs, job_row);
        more(!reply.next_after.is_empty(), reply.next_after);
        Ok(Outcome::Clean)
    }

    async fn get(&self, name: &str) -> Result<Job> {
        Ok(self.client.get(GetJobRequest { tenant: self.tenant(), name: name.to_owned() }).await?)
    }

    async fn times(&self, spec: &JobSpec, count: u32) -> Result<Vec<u64>> {
        let request = PreviewJobRequest { spec: Some(spec.clone()), after_ms: 0, count };
        Ok(self.client.preview(request).await?.times_ms)
    }

    /// Prints a job with its next occurrences; `said` says what became of it.
    async fn show_job(&self, job: &Job, said: &str) -> Result<Outcome> {
        for child in &job.missing_children {
            eprintln!(
                "windfall: there is no job `{child}`: it is not run after {} until somebody makes it",
                job.name
            );
        }
        let spec = job.spec.clone().unwrap_or_default();
        let times = if job.paused { Vec::new() } else { self.times(&spec, SHOWN).await? };
        if self.json {
            println!("{:#}", json!({"job": value(job), "next_times_ms": times}));
            return Ok(Outcome::Clean);
        }
        print!("{}{}", job_text(job), next_lines(&spec, &times));
        if !said.is_empty() {
            println!("{said}");
        }
        Ok(Outcome::Clean)
    }

    async fn add(&self, name: &str, args: &SpecArgs, why: &str) -> Result<Outcome> {
        let spec = args.apply(JobSpec::default())?;
        if spec.schedule.is_none() {
            bail!("the job would never be due: give --cron, --every, --fixed-delay, --at, --in or --times");
        }
        if spec.destination.is_none() {
            bail!("nobody would run the job: give --executor APP/HANDLER, or --target NAME");
        }
        let times = self.times(&spec, SHOWN).await?;
        if !self.json {
            // To standard error, so that a script which reads the answer does not see it.
            eprint!("{}", next_lines(&spec, &times));
        }
        let job = match self.put(name, spec, Some(0), why).await {
            Ok(job) => job,
            Err(error) => return Err(self.not_made(name, error).await),
        };
        match self.json {
            true => println!("{:#}", json!({"job": value(&job), "next_times_ms": times})),
            false => println!("{name}  is made, in version {}", job.version),
        }
        Ok(Outcome::Clean)
    }

    /// Why a job was not made: mostly because there is one of this name.
    async fn not_made(&self, name: &str, error: anyhow::Error) -> anyhow::Error {
        let is_refused = matches!(error.downcast_ref(), Some(CallError::Refused(_)));
        if is_refused && self.get(name).await.is_ok() {
            return error.context(format!(
                "there is a job `{name}` already, which stays as it is: `windfall jobs set {name} …` changes it"
            ));
        }
        error.context(format!("the job `{name}` was not made"))
    }

    async fn set(&self, name: &str, args: &SpecArgs, why: &str) -> Result<Outcome> {
        let before = self.get(name).await?;
        let spec = args.apply(before.spec.unwrap_or_default())?;
        let job = self.put(name, spec, Some(before.version), why).await?;
        let said = match job.version == before.version {
            true => format!("{name}  is so already, in version {}", job.version),
            false => format!("{name}  is changed, and now in version {}", job.version),
        };
        self.show_job(&job, &said).await
    }

    async fn put(&self, name: &str, spec: JobSpec, expected: Option<u64>, why: &str) -> Result<Job> {
        let request = PutJobRequest {
            tenant: self.tenant(),
            name: name.to_owned(),
            spec: Some(spec),
            expected_version: expected,
            why: why.to_owned(),
        };
        Ok(self.client.put(request).await?)
    }

    async fn run(&self, name: &str, params: Option<String>) -> Result<Outcome> {
        let request = RunJobRequest { tenant: self.tenant(), name: name.to_owned(), params };
        let run = self.client.run(request).await?.run;
        match self.json {
            true => println!("{:#}", json!({"run": run.to_string()})),
            false => println!("{run}  is started; `windfall jobs runs --run {run}` shows how it goes"),
        }
        Ok(Outcome::Clean)
    }

    async fn set_paused(&self, name: &str, paused: bool, why: &str) -> Result<Outcome> {
        let (tenant, name, why) = (self.tenant(), name.to_owned(), why.to_owned());
        let job = self.client.set_paused(SetJobPausedRequest { tenant, name, paused, why }).await?;
        let said = format!("{}  {}", job.name, if paused { "is paused" } else { "goes on" });
        self.show_job(&job, &said).await
    }

    async fn remove(&self, name: &str) -> Result<Outcome> {
        let request = RemoveJobRequest { tenant: self.tenant(), name: name.to_owned() };
        let found = self.client.remove(request).await?.found;
        if !found {
            bail!("the tenant has no job `{name}`");
        }
        match self.json {
            true => println!("{:#}", json!({"removed": name})),
            false => println!("{name}  is removed"),
        }
        Ok(Outcome::Clean)
    }

    async fn runs(&self, name: String, after: u64, limit: u32) -> Result<Outcome> {
        let request = ListRunsRequest { tenant: self.tenant(), name, after, page_size: limit };
        let reply = self.client.list_runs(request).await?;
        self.rows::<JobRun>(&reply.runs, run_row);
        more(reply.next_after > 0, reply.next_after);
        Ok(Outcome::Clean)
    }

    async fn show_run(&self, run: u64) -> Result<Outcome> {
        let found = self.client.get_run(GetRunRequest { tenant: self.tenant(), run }).await?;
        println!("{:#}", if self.json { value(&found) } else { run_row(&found) });
        Ok(Outcome::Clean)
    }

    async fn dead(&self, after: u64, limit: u32) -> Result<Outcome> {
        let request = ListDeadRunsRequest { tenant: self.tenant(), limit, after };
        let reply = self.client.list_dead(request).await?;
        self.rows::<JobRun>(&reply.runs, run_row);
        more(reply.next_after > 0, reply.next_after);
        Ok(Outcome::Clean)
    }

    async fn again(&self, runs: &[u64]) -> Result<Outcome> {
        let (mut rows, mut done) = (Vec::new(), 0);
        for run in runs {
            let again = self.client.run_again(RunAgainRequest { tenant: self.tenant(), run: *run }).await;
            done += usize::from(again.is_ok());
            let said = again.err().map_or_else(|| "it runs again".to_owned(), |error| error.to_string());
            rows.push(json!({"run": run.to_string(), "said": said}));
        }
        show(&rows, self.json);
        match done {
            0 => bail!("none of the runs runs again"),
            done if done == runs.len() => Ok(Outcome::Clean),
            done => {
                eprintln!("windfall: {done} of {} run again", runs.len());
                Ok(Outcome::Damage)
            }
        }
    }

    async fn kill(&self, run: u64) -> Result<Outcome> {
        let was_over = self.client.kill(KillRunRequest { tenant: self.tenant(), run }).await?.was_over;
        match (self.json, was_over) {
            (true, true) => println!("{:#}", json!({"was_over": run.to_string()})),
            (true, false) => println!("{:#}", json!({"killed": run.to_string()})),
            (false, true) => println!("{run}  was over before, and is as it was"),
            (false, false) => println!("{run}  is ended"),
        }
        Ok(Outcome::Clean)
    }

    async fn executors(&self, app: &str) -> Result<Outcome> {
        let request = ListExecutorsRequest { tenant: self.tenant(), app: app.to_owned() };
        let reply = self.client.list_executors(request).await?;
        self.rows::<RegisteredExecutor>(&reply.executors, executor_row);
        Ok(Outcome::Clean)
    }

    async fn versions(&self, name: &str) -> Result<Outcome> {
        let request = JobVersionsRequest { tenant: self.tenant(), name: name.to_owned() };
        let reply = self.client.versions(request).await?;
        self.rows::<JobVersion>(&reply.versions, version_row);
        Ok(Outcome::Clean)
    }

    async fn preview(&self, args: &ScheduleArgs, count: u32) -> Result<Outcome> {
        let spec = args.apply(JobSpec::default())?;
        if spec.schedule.is_none() {
            bail!("there is no schedule: give --cron, --every, --fixed-delay, --at, --in or --times");
        }
        let times = self.times(&spec, count).await?;
        match self.json {
            true => println!("{:#}", json!({"next_times_ms": times})),
            false => print!("{}", next_lines(&spec, &times)),
        }
        Ok(Outcome::Clean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Trial {
        #[command(flatten)]
        args: JobsArgs,
    }

    fn parse(words: &[&str]) -> Result<JobsArgs, clap::Error> {
        Trial::try_parse_from(["windfall"].iter().chain(words)).map(|trial| trial.args)
    }

    #[test]
    fn a_job_has_one_schedule_and_one_destination() {
        let cron = ["add", "a", "--cron", "0 0/5 * * * ?"];
        let with = |more: &[&'static str]| parse(&[&cron[..], more].concat());
        for good in [
            &["--zone", "Asia/Shanghai", "--executor", "app/handler", "--routing", "failover"][..],
            &["--target", "hook", "--params", "x", "--retries", "3", "--retry-wait", "1s"],
            &["--executor", "a/h", "--misfire", "FIRE_ONCE_NOW", "--block", "COVER_EARLY"],
            &[
                "--executor",
                "a/h",
                "--misfire",
                "fire-all:10",
                "--at-most-once",
                "--child",
                "b",
                "--child",
                "c",
            ],
            &["--executor", "a/h", "--timeout", "90s", "--priority", "urgent", "--why", "because", "--json"],
        ] {
            assert!(with(good).is_ok(), "{good:?}: {}", with(good).unwrap_err());
        }
        for bad in [
            &["--every", "5s", "--executor", "a/h"][..],
            &["--executor", "a/h", "--target", "hook"],
            &["--executor", "a"],
            &["--executor", "a/h", "--routing", "best"],
            &["--executor", "a/h", "--misfire", "fire-all"],
            &["--executor", "a/h", "--timeout", "500ms"],
            &["--executor", "a/h", "--params", "x", "--params-file", "y"],
        ] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
        for good in [
            &["list"][..],
            &["show", "a"],
            &["set", "a", "--zone", "UTC"],
            &["run", "a", "--params", "x"],
            &["runs", "a", "--limit", "5"],
            &["runs", "--run", "7"],
            &["log", "7", "--follow", "--from", "3"],
            &["again", "7", "8"],
            &["preview", "--cron", "*/5 * * * *", "--count", "3"],
            &["plan", "day.ndjson", "--target", "hook", "--name", "day", "--calls", "4"],
            &["add", "a", "--times", "2027-02-06T12:00:00Z,1795345200000", "--target", "hook"],
            &["add", "a", "--every", "5s", "--start", "2027-02-06T12:00:00Z", "--target", "hook"],
            &["add", "a", "--fixed-rate", "5s", "--target", "hook"],
        ] {
            assert!(parse(good).is_ok(), "{good:?}: {}", parse(good).unwrap_err());
        }
        for bad in [&["runs"][..], &["runs", "a", "--run", "7"], &["again"], &["preview", "--count", "0"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
