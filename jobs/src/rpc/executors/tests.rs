use super::*;
use crate::definition::Block;
use crate::runs::{Part, Reported};
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use windfall_proto::v1::executor_server::{Executor, ExecutorServer};
use windfall_proto::v1::run_receipt::Receipt;

/// An executor that answers by the handler's name, and notes the sizes of batches and the keys that it was shown.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Vec<(usize, String)>>>);

#[async_trait]
impl Executor for Fake {
    async fn run_batch(
        &self,
        request: Request<v1::RunBatchRequest>,
    ) -> Result<Response<v1::RunBatchReply>, Status> {
        let key = request.metadata().get("authorization").and_then(|key| key.to_str().ok());
        let key = key.unwrap_or_default().to_owned();
        let runs = request.into_inner().runs;
        self.0.lock().push((runs.len(), key));
        let receipt = |run: v1::ExecutorRun| match run.handler.as_str() {
            "accepts" => Some(Receipt::Accepted(v1::RunAccepted {})),
            "ends" => Some(Receipt::Finished(v1::RunFinished { result: 2, message: run.params })),
            "refuses" => Some(Receipt::Refused("no".into())),
            "later" => Some(Receipt::Later("full".into())),
            _ => None,
        };
        if runs.iter().any(|run| run.handler == "breaks") {
            return Err(Status::internal("broken"));
        }
        if runs.iter().any(|run| run.handler == "hangs") {
            std::future::pending::<()>().await;
        }
        let receipts = runs.into_iter().map(|run| v1::RunReceipt { receipt: receipt(run) }).collect();
        Ok(Response::new(v1::RunBatchReply { receipts }))
    }

    async fn beat(&self, _: Request<v1::BeatRequest>) -> Result<Response<v1::BeatReply>, Status> {
        Ok(Response::new(v1::BeatReply {}))
    }

    async fn idle_beat(
        &self,
        request: Request<v1::IdleBeatRequest>,
    ) -> Result<Response<v1::IdleBeatReply>, Status> {
        Ok(Response::new(v1::IdleBeatReply { is_idle: request.get_ref().job == 1 }))
    }

    async fn kill(&self, request: Request<v1::KillJobRequest>) -> Result<Response<v1::KillJobReply>, Status> {
        let v1::KillJobRequest { app, job, run } = request.into_inner();
        Err(Status::not_found(format!("no run {run} of the job {job} of {app}")))
    }

    async fn log(&self, request: Request<v1::ReadLogRequest>) -> Result<Response<v1::RunLogReply>, Status> {
        let next_line = request.get_ref().from_line + 1;
        Ok(Response::new(v1::RunLogReply { text: "line\n".into(), next_line, is_end: true }))
    }
}

async fn serve(fake: &Fake) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("grpc://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(ExecutorServer::new(fake.clone()));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

fn calls(options: GrpcOptions) -> Arc<dyn ExecutorCalls> {
    let tokens = BTreeMap::from([("shop".to_owned(), AccessToken::new("s3cret").unwrap())]);
    let rules = AddressRules::parse(&["127.0.0.1"]).unwrap();
    GrpcExecutors::new(options, &tokens, rules).unwrap().of("shop", "mailer").unwrap()
}

fn call(run: u64, handler: &str) -> RunCall {
    RunCall {
        run,
        job: 1,
        occurrence_id: format!("1-{run}"),
        handler: handler.into(),
        params: format!("p{run}"),
        block: Block::SerialExecution,
        timeout_s: 1,
        due_ms: 1,
        sent_ms: 2,
        attempt: 1,
        part: Part { index: 0, total: 1 },
    }
}

#[tokio::test]
async fn runs_of_a_moment_go_in_one_call_and_each_has_its_own_answer() {
    let fake = Fake::default();
    let address = serve(&fake).await;
    let calls = calls(GrpcOptions { linger_ms: 100, ..GrpcOptions::default() });
    let handlers = ["accepts", "ends", "refuses", "later", "nothing"];
    let runs = handlers.iter().zip(1..).map(|(handler, run)| calls.run(&address, call(run, handler)));
    let sent = join_all(runs).await;
    assert_eq!(
        sent[..4],
        [
            Sent::Accepted,
            Sent::Finished(Reported::Failed("p2".into())),
            Sent::Refused("no".into()),
            Sent::Later("full".into()),
        ]
    );
    assert!(matches!(&sent[4], Sent::Unknown(why) if why.contains("empty receipt")), "{:?}", sent[4]);
    assert_eq!(*fake.0.lock(), [(5, "Bearer s3cret".to_owned())]);
    // More than one call holds are several.
    let sent = join_all((0..600).map(|run| calls.run(&address, call(run, "accepts")))).await;
    assert!(sent.iter().all(|sent| *sent == Sent::Accepted));
    let sizes: Vec<usize> = fake.0.lock().iter().skip(1).map(|(size, _)| *size).collect();
    assert_eq!(
        (sizes.iter().sum::<usize>(), sizes.iter().all(|size| *size <= 256)),
        (600, true),
        "{sizes:?}"
    );
}

#[tokio::test]
async fn what_may_have_come_is_unknown_and_what_found_nobody_was_not_sent() {
    let fake = Fake::default();
    let address = serve(&fake).await;
    let calls =
        calls(GrpcOptions { call_timeout_ms: 300, connect_timeout_ms: 200, ..GrpcOptions::default() });
    let broken = calls.run(&address, call(1, "breaks")).await;
    assert!(matches!(&broken, Sent::Unknown(why) if why.contains("broken")), "{broken:?}");
    let hanging = calls.run(&address, call(2, "hangs")).await;
    assert!(matches!(&hanging, Sent::Unknown(_)), "{hanging:?}");
    // Nobody listens on port 1, and the other address is not allowed.
    for nobody in ["grpc://127.0.0.1:1", "grpc://127.0.0.2:1", "http://127.0.0.1:1"] {
        let sent = calls.run(nobody, call(3, "accepts")).await;
        assert!(matches!(&sent, Sent::NotSent(_)), "{nobody}: {sent:?}");
        assert!(!calls.is_alive(nobody).await);
    }
}

#[tokio::test]
async fn an_executor_is_asked_about_itself_its_jobs_and_its_logs() {
    let address = serve(&Fake::default()).await;
    let calls = calls(GrpcOptions::default());
    assert!(calls.is_alive(&address).await);
    assert!(calls.is_idle(&address, 1).await && !calls.is_idle(&address, 2).await);
    let refused = calls.kill(&address, 1, 9).await.unwrap_err();
    let is_asked = |why: &str| why.contains("no run 9 of the job 1 of mailer");
    assert!(matches!(&refused, AskError::Refused(why) if is_asked(why)), "{refused:?}");
    let lines = calls.log(&address, LogCall { run: 7, due_ms: 1, sent_ms: 2, from_line: 4 }).await.unwrap();
    assert_eq!(lines, LogLines { text: "line\n".into(), next_line: 5, is_end: true });
}
