//! Java executors of XXL-JOB, 2.4 and 3.3, as they are released, against the client and the server.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod java;

use java::{Java, PARAMS};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use windfall_contract::Clock;
use windfall_jobs::xxl::fake::FakeAdmin;
use windfall_jobs::xxl::{
    AccessToken, AddressRules, AppName, BlockStrategy, CallError, ClientOptions, Executor, HandleCode,
    LogRequest, Refusal, RunRequest, RunResult, ServerOptions, XxlClient, XxlServer,
};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than the whole test: what sleeps so long ends by being ended.
const VERY_LONG_MS: &str = "600000";
const APP: &str = "interop-mails";

/// One generation, with a scheduler of its own.
struct Fixture {
    admin: Arc<FakeAdmin>,
    server: XxlServer,
    client: XxlClient,
    executor: Executor,
    java: Java,
    _folder: tempfile::TempDir,
}

fn here() -> AddressRules {
    AddressRules::parse(&["127.0.0.1"]).unwrap()
}

fn client(token: &str) -> XxlClient {
    let options =
        ClientOptions { connect_timeout_ms: 20_000, call_timeout_ms: 60_000, ..ClientOptions::default() };
    XxlClient::new(options, Some(&AccessToken::new(token).unwrap()), here()).unwrap()
}

fn run(job_id: i32, log_id: i64, handler: &str, params: &str) -> RunRequest {
    RunRequest {
        job_id,
        handler: handler.into(),
        params: params.into(),
        block: BlockStrategy::SerialExecution,
        timeout_s: 0,
        log_id,
        log_date_time_ms: Clock::system().wall_ms(),
        broadcast_index: 0,
        broadcast_total: 1,
    }
}

impl Fixture {
    async fn start(jars: &Path) -> Self {
        let token = "interop-token";
        let admin = Arc::new(FakeAdmin::default());
        let options = ServerOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ServerOptions::default() };
        let own = Some(AccessToken::new(token).unwrap());
        let server = XxlServer::start(options, own, here(), admin.clone(), Clock::system()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let admin_url = format!("http://{}/xxl-job-admin", server.address());
        let mut java = Java::start(jars, &admin_url, APP, token, folder.path());
        let registered = async {
            loop {
                java.assert_runs();
                let found = admin.wait(|seen| seen.registered.first().cloned());
                if let Ok(executor) = timeout(Duration::from_millis(200), found).await {
                    return executor;
                }
            }
        };
        let executor = timeout(PATIENCE, registered).await.expect("the executor registers");
        assert_eq!(executor.app, AppName::parse(APP).unwrap());
        Self { admin, server, client: client(token), executor, java, _folder: folder }
    }

    async fn run(&self, request: &RunRequest) {
        self.client.run(&self.executor, request).await.unwrap();
    }

    async fn refusal(&self, request: &RunRequest) -> Option<Refusal> {
        self.client.run(&self.executor, request).await.unwrap_err().refusal()
    }

    async fn result(&self, log_id: i64) -> RunResult {
        let found = self.admin.wait(|seen| seen.results.iter().find(|one| one.run == log_id).cloned());
        let Ok(result) = timeout(PATIENCE, found).await else {
            panic!("run {log_id} is not reported; the executor said:\n{}", self.java.log())
        };
        result
    }

    /// The run is reported with this code and these words.
    async fn ends(&self, log_id: i64, code: HandleCode, said: &str) {
        let result = self.result(log_id).await;
        assert_eq!(result.handle_code, code, "{result:?}");
        assert!(result.message.contains(said), "{result:?} does not say {said:?}");
    }

    /// Waits until a run of the job goes.
    async fn busy(&self, job_id: i32) {
        let busy = async {
            loop {
                match self.client.idle_beat(&self.executor, job_id).await {
                    Err(error) if error.refusal() == Some(Refusal::Busy) => return,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(PATIENCE, busy).await.expect("the run begins");
    }

    async fn simple_runs(&self) {
        self.client.beat(&self.executor).await.unwrap();
        self.client.idle_beat(&self.executor, 1).await.unwrap();
        // The report of this one is refused, and comes again from the executor's file.
        self.admin.fail_next(1);
        self.run(&run(1, 1, "echo", PARAMS)).await;
        let failed = self.admin.wait(|seen| (seen.failed == 1).then_some(()));
        timeout(PATIENCE, failed).await.expect("the run is reported");

        let echo = run(1, 2, "echo", PARAMS);
        self.run(&echo).await;
        self.ends(2, HandleCode::Success, &format!("echo: {PARAMS}")).await;
        assert_eq!(self.result(2).await.log_date_time_ms, echo.log_date_time_ms);
        self.run(&run(2, 3, "fail", "")).await;
        self.ends(3, HandleCode::Failure, "failed as asked").await;
        self.run(&run(3, 4, "throw", "")).await;
        self.ends(4, HandleCode::Failure, "IllegalStateException: thrown as asked").await;
        self.run(&run(4, 5, "code", "")).await;
        self.ends(5, HandleCode::Failure, "code 300: as asked").await;
        let shard = RunRequest { broadcast_index: 1, broadcast_total: 3, ..run(5, 6, "shard", "") };
        self.run(&shard).await;
        self.ends(6, HandleCode::Success, "1 of 3").await;
        let late = RunRequest { timeout_s: 1, ..run(6, 7, "slow", VERY_LONG_MS) };
        self.run(&late).await;
        self.ends(7, HandleCode::Timeout, "job execute timeout").await;

        assert_eq!(self.refusal(&run(7, 8, "nobody", "")).await, Some(Refusal::NoHandler));
        let stranger = client("another").run(&self.executor, &run(7, 9, "echo", "")).await;
        assert_eq!(stranger.unwrap_err().refusal(), Some(Refusal::WrongToken));
        self.log_lines(&echo).await;
    }

    async fn log_lines(&self, request: &RunRequest) {
        let (log_id, log_date_time_ms) = (request.log_id, request.log_date_time_ms);
        let ask = |log_id, from_line| {
            self.client.log(&self.executor, LogRequest { log_id, log_date_time_ms, from_line })
        };
        let first = ask(log_id, 1).await.unwrap();
        assert!(first.text.contains("the parameter is höflich <b>"), "{first:?}");
        assert!(first.from_line == 1 && first.to_line >= 3 && !first.is_end, "{first:?}");
        let rest = ask(log_id, 3).await.unwrap();
        assert!(rest.from_line == 3 && first.text.contains(&rest.text), "{first:?} {rest:?}");
        assert!(rest.text.len() < first.text.len(), "{first:?} {rest:?}");
        let beyond = ask(log_id, 1_000).await.unwrap();
        assert!(beyond.text.is_empty() && beyond.to_line < 1_000, "{beyond:?}");
        let none = ask(999_999, 1).await.unwrap();
        assert!(none.is_end && none.to_line == 0, "{none:?}");
    }

    async fn block_strategies(&self) {
        self.run(&run(10, 20, "slow", VERY_LONG_MS)).await;
        self.busy(10).await;
        let with = |block, log_id| RunRequest { block, ..run(10, log_id, "slow", "0") };
        let discarded = with(BlockStrategy::DiscardLater, 21);
        assert_eq!(self.refusal(&discarded).await, Some(Refusal::Blocked));
        let waits = with(BlockStrategy::SerialExecution, 22);
        self.run(&waits).await;
        // As after an answer that was lost: the run is there once, which is no reason to try it elsewhere.
        let again = self.client.run(&self.executor, &waits).await.unwrap_err();
        assert_eq!(again.refusal(), Some(Refusal::Repeated));
        assert!(!again.is_certain());
        self.run(&with(BlockStrategy::CoverEarly, 23)).await;
        self.ends(20, HandleCode::Failure, "killed").await;
        self.ends(22, HandleCode::Failure, "job not executed, in the job queue, killed").await;
        self.ends(23, HandleCode::Success, "").await;

        let (first, second) = (run(11, 30, "slow", "2500"), run(11, 31, "slow", "0"));
        self.run(&first).await;
        self.run(&second).await;
        self.result(30).await;
        self.result(31).await;
        // By the executor's own log, since it may report the later one first if both wait to be reported.
        let (_, end) = self.first_and_last_second(&first).await;
        let (start, _) = self.first_and_last_second(&second).await;
        assert!(end <= start, "the second run began at {start}, before the first one's end at {end}");

        self.run(&run(12, 40, "slow", VERY_LONG_MS)).await;
        self.busy(12).await;
        self.client.kill(&self.executor, 12).await.unwrap();
        self.ends(40, HandleCode::Failure, "killed").await;
        self.client.kill(&self.executor, 12).await.unwrap();
        self.client.idle_beat(&self.executor, 12).await.unwrap();
    }

    /// The times of the first and the last line of a run's log, to the second.
    async fn first_and_last_second(&self, request: &RunRequest) -> (String, String) {
        let (log_id, log_date_time_ms) = (request.log_id, request.log_date_time_ms);
        let ask = LogRequest { log_id, log_date_time_ms, from_line: 1 };
        let log = self.client.log(&self.executor, ask).await.unwrap();
        let time = |line: &str| line.get(..19).filter(|text| text.starts_with("20")).map(str::to_owned);
        let mut times = log.text.lines().filter_map(time);
        let first = times.next().unwrap_or_else(|| panic!("a log without a time: {log:?}"));
        (first.clone(), times.next_back().unwrap_or(first))
    }

    async fn end(mut self) {
        // From the executor's file, at most 30 s after it was refused.
        self.ends(1, HandleCode::Success, "echo: ").await;
        self.run(&run(13, 50, "slow", VERY_LONG_MS)).await;
        self.busy(13).await;
        assert!(self.admin.seen().removed.is_empty());
        self.java.stop().await;
        assert_eq!(self.admin.seen().removed, std::slice::from_ref(&self.executor));
        self.ends(50, HandleCode::Failure, "killed").await;
        let error = self.client.run(&self.executor, &run(1, 60, "echo", "")).await.unwrap_err();
        assert!(matches!(error, CallError::NotSent { .. }), "{error}");

        let (seen, stats) = (self.admin.seen(), self.server.stats());
        assert_eq!((stats.wrong_tokens, stats.bad_calls, stats.failed_calls), (0, 0, 1), "{stats:?}");
        assert!(seen.registered.iter().all(|one| *one == self.executor));
        let mut runs: Vec<i64> = seen.results.iter().map(|one| one.run).collect();
        runs.sort_unstable();
        // A report that was answered too late for a busy machine may come twice.
        runs.dedup();
        assert_eq!(runs, [1, 2, 3, 4, 5, 6, 7, 20, 22, 23, 30, 31, 40, 50]);
        assert_eq!(self.server.close(PATIENCE).await.cut, 0);
    }
}

async fn all(jars: PathBuf) {
    let fixture = Fixture::start(&jars).await;
    fixture.simple_runs().await;
    fixture.block_strategies().await;
    fixture.end().await;
}

/// Both at the same time, for most of it is waiting.
#[test]
#[ignore = "starts Java executors"]
fn executors_of_both_generations_work_unmodified() {
    let jars = windfall_servers::xxl_job_jars().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let both = jars.map(|jars| (jars.display().to_string(), tokio::spawn(all(jars))));
        for (name, checked) in both {
            checked.await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    });
}
