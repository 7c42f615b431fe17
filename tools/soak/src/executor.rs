//! An executor of jobs: a small gRPC server of the soak's own, which notes each run. Most runs it ends at once; some it
//! accepts, so that they have to be reported, and some fail in their first attempt.

use crate::control::Control;
use crate::draw::mix;
use crate::event_book::Writing;
use crate::job_book::{JobBook, JobEvent, Note};
use crate::journal::now_ms;
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use windfall_proto::v1;
use windfall_proto::v1::executor_server::{Executor, ExecutorServer};
use windfall_proto::v1::run_receipt::Receipt;

/// The handler of jobs that may be run once at most; their runs do not fail on purpose.
pub const MOST: &str = "most";
/// The handler of all others.
pub const LEAST: &str = "least";
/// Runs that may wait for their report.
const REPORTS_MAX: usize = 1_000;
/// How often it looks whether it gets a processor, and how much later that may be.
const LOOK: Duration = Duration::from_millis(200);
const STALL_MS: u64 = 800;

/// The journal of jobs, which their callers and the executor write.
pub type JobPad = Arc<Mutex<Writing<JobBook>>>;

/// The journal, held.
pub fn held(pad: &JobPad) -> MutexGuard<'_, Writing<JobBook>> {
    pad.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Noting {
    pad: JobPad,
    to_report: Arc<Mutex<Vec<u64>>>,
    control: Option<Control>,
}

/// The running executor. It ends when it is dropped.
pub struct RunningExecutor {
    noting: Noting,
    address: String,
    _runtime: Runtime,
}

impl RunningExecutor {
    /// Listens on a free port.
    pub fn start(pad: &JobPad, control: Option<Control>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.context("the executor of jobs cannot listen")?;
        let address = format!("grpc://{}", listener.local_addr()?);
        let noting = Noting { pad: Arc::clone(pad), to_report: Arc::default(), control };
        let serving = Server::builder()
            .add_service(ExecutorServer::new(noting.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        // Both end with the runtime.
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                eprintln!("soak: the executor of jobs has ended: {error}");
            }
        });
        runtime.spawn(watch(Arc::clone(pad)));
        Ok(Self { noting, address, _runtime: runtime })
    }

    /// The address where it is called.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The runs that have to be reported now. What is not reported after all is given back by [`Self::report_later`].
    pub fn take_reports(&self) -> Vec<u64> {
        std::mem::take(&mut *self.noting.to_report())
    }

    /// These have to be reported still.
    pub fn report_later(&self, runs: Vec<u64>) {
        self.noting.to_report().extend(runs);
    }
}

/// Notes when this process gets no processor.
async fn watch(pad: JobPad) {
    let mut last_ms = now_ms();
    loop {
        tokio::time::sleep(LOOK).await;
        let (from_ms, to_ms) = (last_ms, now_ms());
        if to_ms.saturating_sub(from_ms) > STALL_MS {
            held(&pad).note(JobEvent::Stalled { from_ms, to_ms });
        }
        last_ms = to_ms;
    }
}

impl Noting {
    fn to_report(&self) -> MutexGuard<'_, Vec<u64>> {
        self.to_report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, run: v1::ExecutorRun) -> Receipt {
        let draw = mix(run.job ^ run.due_ms.rotate_left(20)) % 8;
        let may_fail = run.handler != MOST || self.control == Some(Control::Repeat);
        let is_failed = draw == 1 && run.attempt == 1 && may_fail;
        let is_accepted = draw == 0;
        let mut to_report = self.to_report();
        if is_accepted && to_report.len() >= REPORTS_MAX {
            return Receipt::Later("too many reports wait".into());
        }
        held(&self.pad).note(JobEvent::Came(Note {
            job: run.job,
            run: run.run,
            occurrence: run.occurrence_id,
            params: run.params,
            due_ms: run.due_ms,
            attempt: run.attempt,
            at_ms: now_ms(),
            is_failed,
        }));
        if is_accepted {
            to_report.push(run.run);
            return Receipt::Accepted(v1::RunAccepted {});
        }
        let result = if is_failed { v1::RunResult::Failed } else { v1::RunResult::Succeeded };
        Receipt::Finished(v1::RunFinished { result: result.into(), message: "noted".into() })
    }
}

#[tonic::async_trait]
impl Executor for Noting {
    async fn run_batch(
        &self,
        request: Request<v1::RunBatchRequest>,
    ) -> Result<Response<v1::RunBatchReply>, Status> {
        let receipt = |run| v1::RunReceipt { receipt: Some(self.run(run)) };
        let receipts = request.into_inner().runs.into_iter().map(receipt).collect();
        Ok(Response::new(v1::RunBatchReply { receipts }))
    }

    async fn beat(&self, _: Request<v1::BeatRequest>) -> Result<Response<v1::BeatReply>, Status> {
        Ok(Response::new(v1::BeatReply {}))
    }

    async fn idle_beat(
        &self,
        _: Request<v1::IdleBeatRequest>,
    ) -> Result<Response<v1::IdleBeatReply>, Status> {
        Ok(Response::new(v1::IdleBeatReply { is_idle: true }))
    }

    async fn kill(&self, _: Request<v1::KillJobRequest>) -> Result<Response<v1::KillJobReply>, Status> {
        Ok(Response::new(v1::KillJobReply {}))
    }

    async fn log(&self, _: Request<v1::ReadLogRequest>) -> Result<Response<v1::RunLogReply>, Status> {
        Err(Status::unimplemented("the soak keeps no logs of runs"))
    }
}
