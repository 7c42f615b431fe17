//! Java executors of XXL-JOB, 2.4 and 3.3, as they are released, with whole jobs: from a definition to the end of its runs.
//!
//! All is put together as a scheduler does it: each generation is a tenant of one `Jobs`, with a token of its own, and has two
//! executors of one app.
#![cfg(feature = "rpc")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod java;

use java::{Java, PARAMS};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_contract::entries::EntryStore;
use windfall_jobs::definition::{ChangeNote, JobName, JobSpec};
use windfall_jobs::executors::{BySchemes, LogLines, XxlAdmin, XxlExecutors};
use windfall_jobs::rpc::{GrpcExecutors, GrpcOptions};
use windfall_jobs::runs::{Cause, Outcome, Run, RunNumber, RunState};
use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions};
use windfall_jobs::xxl::{AccessToken, AddressRules, Door, ServerOptions, XxlServer};
use windfall_jobs::{Jobs, JobsError, JobsOptions, JobsParts};
use windfall_scheduler::{DispatchOptions, Dispatcher, Tenants, Timers, TimersOptions};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);
const APP: &str = "interop-jobs";
const EVERY_SECOND: &str = r#"{"cron": {"expression": "* * * * * ?"}}"#;

/// Waits until there is something to be seen; how long that takes is not what is tested.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "it did not come to pass: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn token_of(tenant: &str) -> String {
    format!("token-of-{tenant}")
}

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn note() -> ChangeNote {
    ChangeNote { at_ms: 1, by: "test".into(), why: "a test".into() }
}

/// Whether all is known of a run: its report may overtake the answer to the call, which says who has it.
fn is_noted(run: &Run) -> bool {
    run.is_over() && run.executor.is_some()
}

fn outcome(run: &Run) -> Outcome {
    match run.state {
        RunState::Ended { outcome, .. } => outcome,
        _ => panic!("the run is not over: {run:?}"),
    }
}

/// When a run of the handler `gate` began and ended, by the clock of its executor.
fn times(run: &Run) -> (i64, i64) {
    let (began, ended) = run.message.split_once(' ').unwrap();
    (began.parse().unwrap(), ended.parse().unwrap())
}

/// Lets runs go on that wait for this file.
fn open(gate: &str) {
    std::fs::write(gate, "").unwrap();
}

/// Jobs with all that belongs to them.
struct Scheduler {
    jobs: Jobs,
    dispatcher: Dispatcher,
    timers: Timers,
    server: XxlServer,
    _folder: TempDir,
}

impl Scheduler {
    async fn start(tenants: &[String]) -> Self {
        let token = |tenant: &String| (tenant.clone(), AccessToken::new(&token_of(tenant)).unwrap());
        let tokens: BTreeMap<String, AccessToken> = tenants.iter().map(token).collect();
        let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::system());
        let (timers_at, jobs_at) = (folder.path().join("timers"), folder.path().join("jobs"));
        let slots: Arc<dyn SlotStore> =
            EmbeddedSlots::open(&timers_at, &EmbeddedSlotsOptions::default(), clock.clone()).unwrap();
        let store: Arc<dyn EntryStore> =
            EmbeddedEntries::open(&jobs_at, &EmbeddedEntriesOptions::default(), clock.clone()).unwrap();

        let rules = AddressRules::parse(&["127.0.0.1"]).unwrap();
        let grpc = GrpcExecutors::new(GrpcOptions::default(), &tokens, rules.clone()).unwrap();
        let http = XxlExecutors::new(&tokens, &rules, None).unwrap();
        let calls = Arc::new(BySchemes { grpc: Arc::new(grpc), http: Arc::new(http) });
        let scheduled = Arc::new(Tenants(Jobs::tenants()));
        let timers = Timers::start(
            TimersOptions::default(),
            Arc::clone(&scheduled),
            Arc::clone(&slots),
            clock.clone(),
        );
        let parts = JobsParts {
            store,
            timers: timers.clone(),
            calls,
            targets: BTreeMap::new(),
            clock: clock.clone(),
        };
        let jobs = Jobs::start(JobsOptions { executors_every_ms: 200, ..JobsOptions::default() }, parts);
        let dispatcher = Dispatcher::start(
            DispatchOptions::default(),
            scheduled,
            slots,
            jobs.targets(),
            "instance-1".to_owned(),
            clock.clone(),
        );

        let door = |(tenant, token): (&String, &AccessToken)| Door {
            token: Some(token.clone()),
            admin: Arc::new(XxlAdmin::new(jobs.clone(), tenant.clone())),
        };
        let doors: Vec<Door> = tokens.iter().map(door).collect();
        let options = ServerOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ServerOptions::default() };
        let server = XxlServer::start_with(options, doors, rules, clock).await.unwrap();
        Self { jobs, dispatcher, timers, server, _folder: folder }
    }

    /// Waits until runs can be sent to so many executors.
    async fn knows(&self, executors: u64) {
        let stats = self.jobs.stats();
        until("the executors are read", async || (stats.executors.get() >= executors).then_some(())).await;
    }

    async fn stop(self) {
        let (calls, counted) = (self.server.stats(), self.jobs.stats());
        assert_eq!(calls.wrong_tokens, 0, "{calls:?}");
        assert_eq!((counted.panics.get(), counted.unreadable.get()), (0, 0));
        assert_eq!(self.dispatcher.drain(PATIENCE).await.unnoted_tasks, 0);
        assert_eq!(self.server.close(PATIENCE).await.cut, 0);
        assert!(self.jobs.close(PATIENCE).await);
        self.timers.close().await;
    }
}

/// The jobs of one generation's executors.
struct Generation {
    tenant: String,
    jobs: Jobs,
    /// Of its executors, in the order in which strategies go by them.
    addresses: [String; 2],
    folder: TempDir,
}

impl Generation {
    /// Starts two executors, and waits for their first heartbeats.
    async fn start(scheduler: &Scheduler, tenant: &str, jars: &Path) -> (Self, [Java; 2]) {
        let (folder, jobs) = (tempfile::tempdir().unwrap(), scheduler.jobs.clone());
        let admin_url = format!("http://{}/xxl-job-admin", scheduler.server.address());
        let mut javas = ["a", "b"].map(|executor| {
            let own = folder.path().join(executor);
            std::fs::create_dir(&own).unwrap();
            Java::start(jars, &admin_url, APP, &token_of(tenant), &own)
        });
        javas.sort_by(|one, other| one.address().cmp(other.address()));
        let addresses = [javas[0].address().to_owned(), javas[1].address().to_owned()];
        let began = Instant::now();
        loop {
            javas.iter_mut().for_each(Java::assert_runs);
            let found = jobs.executors(tenant, APP).await.unwrap();
            let mut registered: Vec<String> = found.into_iter().map(|executor| executor.address).collect();
            registered.sort_unstable();
            if registered == addresses {
                break;
            }
            let logs = || javas.iter().map(Java::log).collect::<Vec<_>>().join("\n\n");
            assert!(began.elapsed() < PATIENCE, "{tenant}: {registered:?} are registered\n{}", logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (Self { tenant: tenant.to_owned(), jobs, addresses, folder }, javas)
    }

    async fn put(&self, job: &str, handler: &str, routing: &str, more: &str) {
        // It is due tomorrow, and runs when it is told to.
        let start_ms = Clock::system().unix_ms() + 86_400_000;
        let schedule = format!(r#"{{"fixed_rate": {{"every_ms": 86400000, "start_ms": {start_ms}}}}}"#);
        self.put_at(&schedule, job, handler, routing, more).await;
    }

    async fn put_at(&self, schedule: &str, job: &str, handler: &str, routing: &str, more: &str) {
        let executor = format!(r#"{{"app": "{APP}", "handler": "{handler}", "routing": "{routing}"}}"#);
        let spec = format!(r#"{{"schedule": {schedule}, "destination": {{"executor": {executor}}}{more}}}"#);
        let spec: JobSpec = serde_json::from_str(&spec).unwrap();
        self.jobs.put(&self.tenant, &name(job), &spec, Some(0), note()).await.unwrap();
    }

    async fn run(&self, job: &str, params: &str) -> RunNumber {
        self.jobs.run(&self.tenant, &name(job), Some(params.to_owned())).await.unwrap()
    }

    async fn find(&self, number: RunNumber) -> Run {
        self.jobs.find_run(&self.tenant, number).await.unwrap().run
    }

    async fn runs(&self, job: &str) -> Vec<Run> {
        let views = self.jobs.runs(&self.tenant, &name(job), None, 100).await.unwrap();
        views.into_iter().map(|view| view.run).collect()
    }

    /// `None`: its executor has not answered in time, or has no such log yet.
    async fn log(&self, number: RunNumber, from_line: u32) -> Option<LogLines> {
        self.jobs.log(&self.tenant, number, from_line).await.ok().filter(|lines| !lines.is_end)
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
        until(&format!("{}: {what}", self.tenant), look).await
    }

    /// Waits until the handler `gate` goes, as its log says.
    async fn begun(&self, number: RunNumber) -> Run {
        self.until("a run begins", async || {
            let lines = self.log(number, 1).await?;
            let run = self.find(number).await;
            assert!(!run.is_over(), "{}: {run:?}", self.tenant);
            let has_begun = lines.text.contains("waits for");
            (has_begun && matches!(run.state, RunState::Running { .. })).then_some(run)
        })
        .await
    }

    /// Waits until an executor has said that it has a run.
    async fn taken(&self, number: RunNumber) {
        self.until("a run is taken", async || {
            let run = self.find(number).await;
            assert!(!run.is_over(), "{}: {run:?}", self.tenant);
            (matches!(run.state, RunState::Running { .. }) && run.unanswered == 0).then_some(())
        })
        .await;
    }

    async fn ended(&self, number: RunNumber, how: Outcome) -> Run {
        let run = self
            .until("a run ends", async || {
                let run = self.find(number).await;
                is_noted(&run).then_some(run)
            })
            .await;
        assert_eq!(outcome(&run), how, "{}: {run:?}", self.tenant);
        run
    }

    /// A file that is not there yet.
    fn gate(&self, job: &str) -> String {
        self.folder.path().join(job).display().to_string()
    }

    /// A file that is there.
    fn open_gate(&self) -> String {
        self.folder.path().display().to_string()
    }

    async fn all(self, [_first, mut last]: [Java; 2]) {
        tokio::join!(self.each_second_is_run(), self.a_broadcast_goes_to_both());
        // From here on only the first executor is there. The others are done long before the lost run has timed out.
        let ((), (), (), (), discarded, covered, failed) = tokio::join!(
            self.a_run_whose_executor_dies_goes_to_the_other_one(&mut last),
            self.a_run_waits_for_the_one_before_it(),
            self.a_killed_run_ends_and_those_behind_it_are_tried_again(),
            self.the_log_is_read(),
            self.a_later_run_is_discarded(),
            self.an_earlier_run_is_covered(),
            self.what_fails_is_tried_again_and_then_dead(),
        );
        let dead = self.jobs.dead_runs(&self.tenant, None, 100).await.unwrap();
        let dead: BTreeSet<RunNumber> = dead.into_iter().map(|view| view.number).collect();
        assert_eq!(dead, BTreeSet::from([discarded, covered, failed]), "{}", self.tenant);
    }

    async fn each_second_is_run(&self) {
        let params = format!(r#", "params": {}"#, serde_json::to_string(PARAMS).unwrap());
        self.put_at(EVERY_SECOND, "each-second", "echo", "round", &params).await;
        let both = BTreeSet::from(self.addresses.clone());
        let ended = self
            .until("occurrences have run at both executors", async || {
                let mut runs = self.runs("each-second").await;
                runs.retain(is_noted);
                let at: BTreeSet<_> = runs.iter().filter_map(|run| run.executor.clone()).collect();
                (at == both).then_some(runs)
            })
            .await;
        self.jobs.set_paused(&self.tenant, &name("each-second"), true, note()).await.unwrap();
        for run in &ended {
            assert_eq!(outcome(run), Outcome::Succeeded, "{}: {run:?}", self.tenant);
            assert_eq!((run.cause, run.due_ms % 1_000, run.attempt), (Cause::Schedule, 0, 1), "{run:?}");
            assert_eq!(run.message, format!("echo: {PARAMS}"), "{}", self.tenant);
        }
        let due: BTreeSet<u64> = ended.iter().map(|run| run.due_ms).collect();
        assert_eq!(due.len(), ended.len(), "{}: an occurrence was run twice: {ended:?}", self.tenant);
    }

    async fn a_broadcast_goes_to_both(&self) {
        self.put("broadcast", "shard", "sharding_broadcast", "").await;
        self.run("broadcast", "").await;
        let mut parts = self
            .until("both parts of a broadcast end", async || {
                let runs = self.runs("broadcast").await;
                (runs.len() == 2 && runs.iter().all(is_noted)).then_some(runs)
            })
            .await;
        parts.sort_by_key(|run| run.part.unwrap().index);
        for (index, run) in parts.iter().enumerate() {
            assert_eq!(outcome(run), Outcome::Succeeded, "{}: {run:?}", self.tenant);
            assert_eq!(run.message, format!("{index} of 2"), "{}", self.tenant);
            assert_eq!(run.executor.as_ref(), Some(&self.addresses[index]), "{}: {run:?}", self.tenant);
        }
    }

    async fn a_run_whose_executor_dies_goes_to_the_other_one(&self, last: &mut Java) {
        let [other, own] = &self.addresses;
        let more = r#", "timeout_s": 4, "retries": {"fixed": {"max": 3, "wait_ms": 0}}"#;
        self.put("lost", "gate", "last", more).await;
        let gate = self.gate("lost");
        let number = self.run("lost", &gate).await;
        let run = self.begun(number).await;
        last.kill();
        assert_eq!((run.executor.as_ref(), run.attempt), (Some(own), 1), "{}: {run:?}", self.tenant);
        // Where the executor was too busy to answer in time, nobody knows whether it has the run: then it is sent again in the
        // same attempt.
        let is_acknowledged = run.unanswered == 0;
        self.until("the run times out, and goes at the other executor", async || {
            let run = self.find(number).await;
            let is_timed_out = run.message.contains("it was not reported within its time-out");
            let is_lost = !is_acknowledged || (is_timed_out && run.attempt > 1);
            let is_there = run.executor.as_ref() == Some(other);
            (is_lost && is_there && matches!(run.state, RunState::Running { .. })).then_some(())
        })
        .await;
        open(&gate);
        let run = self.ended(number, Outcome::Succeeded).await;
        assert_eq!(run.executor.as_ref(), Some(other), "{}: {run:?}", self.tenant);
    }

    async fn a_run_waits_for_the_one_before_it(&self) {
        self.put("waits", "gate", "first", r#", "block": "serial_execution""#).await;
        let gate = self.gate("waits");
        let first = self.run("waits", &gate).await;
        self.begun(first).await;
        let second = self.run("waits", &self.open_gate()).await;
        // It would begin at once, and before the first one ends.
        self.taken(second).await;
        open(&gate);
        let (_, end) = times(&self.ended(first, Outcome::Succeeded).await);
        let (start, _) = times(&self.ended(second, Outcome::Succeeded).await);
        assert!(end <= start, "{}: the second run began at {start}, the first ended at {end}", self.tenant);
    }

    /// The protocol of XXL-JOB names the job and not the run: all runs of the job end.
    async fn a_killed_run_ends_and_those_behind_it_are_tried_again(&self) {
        let more = r#", "retries": {"fixed": {"max": 1, "wait_ms": 0}}"#;
        self.put("killed", "gate", "first", more).await;
        let first = self.run("killed", &self.gate("killed")).await;
        self.begun(first).await;
        let second = self.run("killed", &self.open_gate()).await;
        self.taken(second).await;
        match self.jobs.kill(&self.tenant, first, "the test").await {
            // One that is busy may answer too late, and does it all the same.
            Ok(true) | Err(JobsError::Executor { .. }) => {}
            other => panic!("{}: {other:?}", self.tenant),
        }
        let second = self.ended(second, Outcome::Succeeded).await;
        assert_eq!(second.attempt, 2, "{}: it did not wait behind the first one: {second:?}", self.tenant);
        let killed = self.ended(first, Outcome::Killed).await;
        assert_eq!((killed.message.as_str(), killed.attempt), ("ended by the test", 1), "{}", self.tenant);
        self.until("the log of a killed run says so", async || {
            let lines = self.log(first, 1).await?;
            lines.text.contains("stopReason:scheduling center kill job").then_some(())
        })
        .await;
        assert_eq!(self.jobs.kill(&self.tenant, first, "the test").await, Ok(false), "{}", self.tenant);
    }

    async fn the_log_is_read(&self) {
        self.put("logs", "echo", "first", "").await;
        let number = self.run("logs", PARAMS).await;
        self.ended(number, Outcome::Succeeded).await;
        let rest = self.until("a log is read", async || self.log(number, 2).await).await;
        // Read later: the executor still adds that it has reported the run.
        let whole = self.until("a log is read", async || self.log(number, 1).await).await;
        assert!(whole.text.contains("the parameter is höflich <b>"), "{}: {whole:?}", self.tenant);
        assert!(whole.text.contains(&rest.text), "{}: {whole:?} {rest:?}", self.tenant);
        assert!(!rest.text.contains("job execute start"), "{}: {rest:?}", self.tenant);
        assert!(rest.next_line > 3 && whole.next_line >= rest.next_line, "{whole:?} {rest:?}");
    }

    /// Gives the run that is dead.
    async fn a_later_run_is_discarded(&self) -> RunNumber {
        self.put("discards", "gate", "first", r#", "block": "discard_later""#).await;
        let gate = self.gate("discards");
        let first = self.run("discards", &gate).await;
        self.begun(first).await;
        let second = self.run("discards", &self.open_gate()).await;
        let discarded = self.ended(second, Outcome::Failed).await;
        assert!(discarded.message.contains("block strategy effect"), "{}: {discarded:?}", self.tenant);
        let goes = self.find(first).await;
        assert!(matches!(goes.state, RunState::Running { .. }), "{}: {goes:?}", self.tenant);
        open(&gate);
        self.ended(first, Outcome::Succeeded).await;
        second
    }

    /// Gives the run that is dead.
    async fn an_earlier_run_is_covered(&self) -> RunNumber {
        self.put("covers", "gate", "first", r#", "block": "cover_early""#).await;
        let first = self.run("covers", &self.gate("covers")).await;
        self.begun(first).await;
        let second = self.run("covers", &self.open_gate()).await;
        self.ended(second, Outcome::Succeeded).await;
        let covered = self.ended(first, Outcome::Failed).await;
        let said = covered.message.as_str();
        let is_covered = said.contains("block strategy effect") && said.contains("[job running, killed]");
        assert!(is_covered, "{}: {covered:?}", self.tenant);
        first
    }

    /// Gives the run that is dead.
    async fn what_fails_is_tried_again_and_then_dead(&self) -> RunNumber {
        let more = r#", "retries": {"fixed": {"max": 2, "wait_ms": 50}}"#;
        self.put("fails", "fail", "first", more).await;
        let number = self.run("fails", "").await;
        let failed = self.ended(number, Outcome::Failed).await;
        assert_eq!((failed.attempt, failed.message.as_str()), (3, "failed as asked"), "{}", self.tenant);
        let log = self.until("a log is read", async || self.log(number, 1).await).await;
        assert!(log.text.matches("job execute start").count() >= 3, "{}: {log:?}", self.tenant);
        number
    }
}

/// Both at the same time, for most of it is waiting.
#[test]
#[ignore = "starts Java executors"]
fn executors_of_both_generations_work_with_whole_jobs() {
    let jars = windfall_servers::xxl_job_jars().unwrap();
    let tenants = jars.each_ref().map(|jars| jars.file_name().unwrap().to_string_lossy().into_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let scheduler = Scheduler::start(&tenants).await;
        let ((two, two_javas), (three, three_javas)) = tokio::join!(
            Generation::start(&scheduler, &tenants[0], &jars[0]),
            Generation::start(&scheduler, &tenants[1], &jars[1]),
        );
        scheduler.knows(4).await;
        tokio::join!(two.all(two_javas), three.all(three_javas));
        scheduler.stop().await;
    });
}
