//! Executors that end each run at once: in this process, over gRPC, and by the protocol of XXL-JOB.

use super::{APP, TENANT};
use anyhow::Result;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use windfall_contract::Clock;
use windfall_jobs::Jobs;
use windfall_jobs::executors::{AskError, ExecutorCalls, LogCall, LogLines, RunCall, XxlAdmin, XxlExecutors};
use windfall_jobs::rpc::{GrpcExecutors, GrpcOptions};
use windfall_jobs::runs::{Reported, Sent};
use windfall_jobs::xxl::fake::{FakeExecutor, FakeOptions};
use windfall_jobs::xxl::{AddressRules, AppName, ServerOptions, XxlServer};
use windfall_proto::v1;
use windfall_proto::v1::executor_server::{Executor, ExecutorServer};
use windfall_proto::v1::run_receipt::Receipt;

/// A call that came: the job, the time at which it was due, and the time at which it came.
pub struct Came {
    pub job: u64,
    pub due_ms: u64,
    pub at_ms: u64,
}

/// The calls that came.
pub struct Noted {
    clock: Clock,
    came: Mutex<Vec<Came>>,
}

impl Noted {
    pub const fn new(clock: Clock) -> Self {
        Self { clock, came: Mutex::new(Vec::new()) }
    }

    pub fn read<T>(&self, read: impl FnOnce(&[Came]) -> T) -> T {
        read(&self.came.lock())
    }

    fn add(&self, call: &RunCall) {
        let at_ms = self.clock.unix_ms();
        self.came.lock().push(Came { job: call.job, due_ms: call.due_ms, at_ms });
    }
}

/// An executor inside this process.
#[derive(Default)]
pub struct Here {
    /// Where calls are noted, if they are.
    pub noted: Option<Arc<Noted>>,
}

#[async_trait]
impl ExecutorCalls for Here {
    async fn run(&self, _address: &str, call: RunCall) -> Sent {
        if let Some(noted) = &self.noted {
            noted.add(&call);
        }
        Sent::Finished(Reported::Succeeded(String::new()))
    }

    async fn is_alive(&self, _address: &str) -> bool {
        true
    }

    async fn is_idle(&self, _address: &str, _job: u64) -> bool {
        true
    }

    async fn kill(&self, _address: &str, _job: u64, _run: u64) -> Result<(), AskError> {
        Ok(())
    }

    async fn log(&self, _: &str, _: LogCall) -> Result<LogLines, AskError> {
        Ok(LogLines::default())
    }
}

/// An executor over gRPC, in this process.
struct Wired;

#[async_trait]
impl Executor for Wired {
    async fn run_batch(
        &self,
        request: Request<v1::RunBatchRequest>,
    ) -> Result<Response<v1::RunBatchReply>, Status> {
        let receipt = |_| {
            let result = v1::RunResult::Succeeded.into();
            let finished = v1::RunFinished { result, message: String::new() };
            v1::RunReceipt { receipt: Some(Receipt::Finished(finished)) }
        };
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
        Err(Status::unimplemented("this executor keeps no logs"))
    }
}

/// Serves an executor over gRPC: its address, and the task that serves it.
pub async fn serve_wired() -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = Server::builder()
        .add_service(ExecutorServer::new(Wired))
        .serve_with_incoming(TcpIncoming::from(listener));
    let serving = tokio::spawn(async move {
        if let Err(error) = serving.await {
            eprintln!("  the executor over gRPC has ended: {error}");
        }
    });
    Ok((address, serving))
}

/// How runs reach their executor.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Here,
    Grpc,
    Xxl,
}

/// An executor that runs.
pub enum Running {
    Here,
    Grpc(JoinHandle<()>),
    Xxl(Box<FakeExecutor>, XxlServer),
}

fn loopback() -> Result<AddressRules> {
    Ok(AddressRules::parse(&["127.0.0.1"])?)
}

impl Way {
    /// What speaks with the executor.
    pub fn calls(self) -> Result<Arc<dyn ExecutorCalls>> {
        let no_tokens = BTreeMap::new();
        Ok(match self {
            Self::Here => Arc::new(Here::default()),
            Self::Grpc => Arc::new(GrpcExecutors::new(GrpcOptions::default(), &no_tokens, loopback()?)?),
            Self::Xxl => Arc::new(XxlExecutors::new(&no_tokens, &loopback()?, None)?),
        })
    }

    /// Starts an executor, and registers it.
    pub async fn start(self, jobs: &Jobs) -> Result<Running> {
        match self {
            Self::Here => {
                jobs.register(TENANT, APP, "here").await?;
                Ok(Running::Here)
            }
            Self::Grpc => {
                let (address, serving) = serve_wired().await?;
                jobs.register(TENANT, APP, &format!("grpc://{address}")).await?;
                Ok(Running::Grpc(serving))
            }
            Self::Xxl => {
                let admin = Arc::new(XxlAdmin::new(jobs.clone(), TENANT.to_owned()));
                let options = ServerOptions { listen: "127.0.0.1:0".parse()?, ..ServerOptions::default() };
                let server = XxlServer::start(options, None, loopback()?, admin, Clock::system()).await?;
                let admin_url = Some(format!("http://{}/xxl-job-admin", server.address()));
                let options =
                    FakeOptions { admin_url, keep_max: 0, ..FakeOptions::new(AppName::parse(APP)?) };
                Ok(Running::Xxl(Box::new(FakeExecutor::start(options).await?), server))
            }
        }
    }
}

impl Running {
    pub async fn stop(self) {
        match self {
            Self::Here => {}
            Self::Grpc(serving) => serving.abort(),
            Self::Xxl(executor, server) => {
                executor.close().await;
                server.close(super::PATIENCE).await;
            }
        }
    }
}
