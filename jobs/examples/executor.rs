//! An executor over gRPC: it registers, prints the runs that it gets, and ends them well.
//!
//! ```text
//! windfall serve --dev --config jobs.toml --data /tmp/windfall      # [jobs] in jobs.toml
//! export WINDFALL_KEY=…                                             # the key that it prints for `scheduler`
//! cargo run -p windfall-jobs --features rpc --example executor
//! windfall jobs add hello --every 5s --executor demo/hello --params world
//! ```

use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use windfall_proto::v1;
use windfall_proto::v1::executor_server::{Executor, ExecutorServer};
use windfall_proto::v1::jobs_client::JobsClient;
use windfall_proto::v1::run_receipt::Receipt;

/// Below a third of the time after which a silent executor is gone.
const HEARTBEAT: Duration = Duration::from_secs(20);

struct Printing;

#[async_trait::async_trait]
impl Executor for Printing {
    async fn run_batch(
        &self,
        request: Request<v1::RunBatchRequest>,
    ) -> Result<Response<v1::RunBatchReply>, Status> {
        let receipt = |run: v1::ExecutorRun| {
            println!("{} {} {} (attempt {})", run.occurrence_id, run.handler, run.params, run.attempt);
            let result = v1::RunResult::Succeeded.into();
            let finished = v1::RunFinished { result, message: "printed".into() };
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
        // Runs end before they are answered, so none goes here.
        Ok(Response::new(v1::IdleBeatReply { is_idle: true }))
    }

    async fn kill(&self, _: Request<v1::KillJobRequest>) -> Result<Response<v1::KillJobReply>, Status> {
        Ok(Response::new(v1::KillJobReply {}))
    }

    async fn log(&self, _: Request<v1::ReadLogRequest>) -> Result<Response<v1::RunLogReply>, Status> {
        Err(Status::unimplemented("this executor keeps no logs"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::var("WINDFALL_SERVER").unwrap_or_else(|_| "http://127.0.0.1:8080".into());
    let key =
        std::env::var("WINDFALL_KEY").map_err(|_| "set WINDFALL_KEY to a key with the role `schedule`")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("grpc://{}", listener.local_addr()?);
    println!("an executor of the app `demo` at {address}");
    let mut jobs = JobsClient::connect(scheduler).await?;
    let serving = Server::builder()
        .add_service(ExecutorServer::new(Printing))
        .serve_with_incoming(TcpIncoming::from(listener));
    let beating = async {
        loop {
            let tenant = String::new();
            let here = v1::RegisterExecutorRequest { tenant, app: "demo".into(), address: address.clone() };
            let mut request = Request::new(here);
            request.metadata_mut().insert("authorization", format!("Bearer {key}").parse()?);
            if let Err(status) = jobs.register(request).await {
                eprintln!("not registered: {}", status.message());
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    };
    tokio::select! {
        served = serving => Ok(served?),
        beaten = beating => beaten,
    }
}
