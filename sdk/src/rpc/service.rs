//! The gRPC service `windfall.v1.Send`.

use super::status::{failure, status};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::fmt;
use tonic::{Request, Response, Status};
use windfall_edge::Call;
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::{
    SendBonusBatchReply, SendBonusBatchRequest, SendBonusReply, SendBonusRequest, SendBonusResult,
    send_bonus_result, send_server,
};

/// The number of requests in one batch at most.
pub const BATCH_MAX: usize = 512;
/// The number of requests that are sent without letting other tasks run: some 0.1 ms.
const SENT_AT_A_TIME: usize = 64;

/// Takes rewards for the tenants whose SDKs it was given. Mount it as `SendServer::new(gateway)`.
pub struct Gateway<S> {
    by_tenant: BTreeMap<String, S>,
}

impl<S: SendBonus + 'static> Gateway<S> {
    /// A gateway for these tenants; callers of others are turned away. The owner of an SDK closes it, after
    /// the server.
    pub const fn new(by_tenant: BTreeMap<String, S>) -> Self {
        Self { by_tenant }
    }

    fn of_caller(&self, call: &Call) -> Result<&S, Status> {
        let tenant = &*call.caller.tenant;
        self.by_tenant.get(tenant).ok_or_else(|| {
            Status::permission_denied(format!("no rewards are sent here for the app `{tenant}`"))
        })
    }
}

impl<S> fmt::Debug for Gateway<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("tenants", &self.by_tenant.keys()).finish()
    }
}

#[async_trait]
impl<S: SendBonus + 'static> send_server::Send for Gateway<S> {
    async fn send_bonus(
        &self,
        request: Request<SendBonusRequest>,
    ) -> Result<Response<SendBonusReply>, Status> {
        let call = Call::of(&request)?.clone();
        let sdk = self.of_caller(&call)?;
        let sent = sdk.send_bonus(traced(request.into_inner(), &call)).await;
        sent.map(Response::new).map_err(|error| status(&error))
    }

    async fn send_bonus_batch(
        &self,
        request: Request<SendBonusBatchRequest>,
    ) -> Result<Response<SendBonusBatchReply>, Status> {
        let call = Call::of(&request)?.clone();
        let sdk = self.of_caller(&call)?;
        let requests = request.into_inner().requests;
        if requests.len() > BATCH_MAX {
            let message = format!("requests: {} of them; at most {BATCH_MAX} a batch", requests.len());
            return Err(Status::invalid_argument(message));
        }
        let mut results = Vec::with_capacity(requests.len());
        for (nth, request) in requests.into_iter().enumerate() {
            if nth > 0 && nth.is_multiple_of(SENT_AT_A_TIME) {
                tokio::task::yield_now().await;
            }
            results.push(result(sdk.send_bonus(traced(request, &call)).await));
        }
        Ok(Response::new(SendBonusBatchReply { results }))
    }
}

/// Gives the event the trace of the call, where it has none of its own.
fn traced(mut request: SendBonusRequest, call: &Call) -> SendBonusRequest {
    if let Some(trace_id) = call.trace_id
        && request.trace_id.is_empty()
    {
        request.trace_id = trace_id.to_vec();
    }
    request
}

fn result(sent: Result<SendBonusReply, SendError>) -> SendBonusResult {
    let result = match sent {
        Ok(reply) => send_bonus_result::Result::Token(reply.token),
        Err(error) => send_bonus_result::Result::Failure(failure(&error)),
    };
    SendBonusResult { result: Some(result) }
}
