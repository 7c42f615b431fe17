//! Runs for one executor: those that come within a moment go in one call.

use super::executors::{GrpcOptions, said};
use super::messages::reported;
use super::spec::wire_block;
use crate::executors::RunCall;
use crate::runs::Sent;
use crate::xxl::dial::DialError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use windfall_proto::v1;
use windfall_proto::v1::executor_client::ExecutorClient;

/// Runs of one call at most.
const BATCH_MAX: usize = 256;

/// A run that waits for its answer.
struct Waiting {
    run: v1::ExecutorRun,
    answer: oneshot::Sender<Sent>,
}

/// An executor, and the runs that are gathered for it.
pub(super) struct Peer {
    client: ExecutorClient<Channel>,
    app: String,
    bearer: Option<MetadataValue<Ascii>>,
    options: GrpcOptions,
    waiting: Mutex<Vec<Waiting>>,
}

impl Peer {
    pub fn new(
        client: ExecutorClient<Channel>,
        app: String,
        bearer: Option<MetadataValue<Ascii>>,
        options: GrpcOptions,
    ) -> Self {
        Self { client, app, bearer, options, waiting: Mutex::default() }
    }

    /// A handle of its connection.
    pub fn client(&self) -> ExecutorClient<Channel> {
        self.client.clone()
    }

    /// A request with the token.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(Duration::from_millis(self.options.call_timeout_ms));
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        request
    }

    /// Hands a run over, with those that come within the next moment. The task that does so is the tracker's, so that a caller
    /// who goes away takes no other one's run with it.
    pub async fn run(self: Arc<Self>, call: RunCall, tasks: &TaskTracker) -> Sent {
        let (answer, answered) = oneshot::channel();
        let (is_first, full) = {
            let mut waiting = self.waiting.lock();
            waiting.push(Waiting { run: wire(call), answer });
            let full = (waiting.len() >= BATCH_MAX).then(|| std::mem::take(&mut *waiting));
            (waiting.len() == 1, full)
        };
        if let Some(batch) = full {
            tasks.spawn(async move { self.send(batch).await });
        } else if is_first {
            tasks.spawn(async move {
                tokio::time::sleep(Duration::from_millis(self.options.linger_ms)).await;
                let batch = std::mem::take(&mut *self.waiting.lock());
                self.send(batch).await;
            });
        }
        let gone = |_| Sent::Unknown("the call has ended without an answer".to_owned());
        answered.await.unwrap_or_else(gone)
    }

    async fn send(&self, batch: Vec<Waiting>) {
        if batch.is_empty() {
            return;
        }
        let (runs, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|it| (it.run, it.answer)).unzip();
        let request = self.request(v1::RunBatchRequest { app: self.app.clone(), runs });
        let timeout = Duration::from_millis(self.options.call_timeout_ms);
        let mut client = self.client();
        let receipts = match tokio::time::timeout(timeout, client.run_batch(request)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner().receipts),
            Ok(Err(status)) => Err(not_taken(&status)),
            Err(_) => Err(Sent::Unknown(format!("no answer within {} ms", timeout.as_millis()))),
        };
        let (mut receipts, all) = match receipts {
            Ok(receipts) => {
                (receipts.into_iter(), Sent::Unknown("the answer has no receipt of this run".to_owned()))
            }
            Err(all) => (Vec::new().into_iter(), all),
        };
        for answer in answers {
            let sent = receipts.next().map_or_else(|| all.clone(), sent);
            // Whoever asked may be gone.
            answer.send(sent).ok();
        }
    }
}

/// What a call that failed says of its runs.
fn not_taken(status: &Status) -> Sent {
    let why = said(status);
    match status.code() {
        _ if DialError::find(status).is_some() => Sent::NotSent(why),
        // No handler has seen it.
        Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied => Sent::NotSent(why),
        _ => Sent::Unknown(why),
    }
}

fn sent(receipt: v1::RunReceipt) -> Sent {
    use v1::run_receipt::Receipt;
    match receipt.receipt {
        Some(Receipt::Accepted(v1::RunAccepted {})) => Sent::Accepted,
        Some(Receipt::Finished(v1::RunFinished { result, message })) => match reported(result, message) {
            Some(reported) => Sent::Finished(reported),
            None => Sent::Unknown(format!("the answer has the result {result}, which is none")),
        },
        Some(Receipt::Refused(why)) => Sent::Refused(why),
        Some(Receipt::Later(why)) => Sent::Later(why),
        None => Sent::Unknown("the answer has an empty receipt of this run".to_owned()),
    }
}

fn wire(call: RunCall) -> v1::ExecutorRun {
    v1::ExecutorRun {
        run: call.run,
        job: call.job,
        occurrence_id: call.occurrence_id,
        handler: call.handler,
        params: call.params,
        block: wire_block(call.block).into(),
        timeout_s: call.timeout_s,
        due_ms: call.due_ms,
        attempt: call.attempt,
        part_index: call.part.index,
        part_total: call.part.total,
    }
}
