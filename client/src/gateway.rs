//! Sends rewards through a gateway, with the SDK's trait.

use crate::error::{send_error, send_failure};
use crate::link::{Answer, Link, Repeat};
use crate::options::{ClientOptions, OpenError};
use async_trait::async_trait;
use prost::Message;
use std::sync::Arc;
use tonic::{Code, Status};
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::{
    SendBonusBatchReply, SendBonusBatchRequest, SendBonusReply, SendBonusRequest, SendBonusResult,
    send_bonus_result::Result as Taken, send_client::SendClient,
};

/// The number of requests in one call at most.
const BATCH_MAX: usize = 512;
/// The bytes of one call at most: well below what a server takes by default.
const BATCH_MAX_BYTES: usize = 1 << 20;

/// Sends rewards from an activity service that does not link the SDK. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct GatewayClient {
    link: Arc<Link>,
}

impl GatewayClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    async fn send_part(&self, requests: Vec<SendBonusRequest>) -> Vec<Result<SendBonusReply, SendError>> {
        let batch = SendBonusBatchRequest { requests };
        let call = self.link.ask(Repeat::Safe, None, &batch, |channel, request| async move {
            SendClient::new(channel).send_bonus_batch(request).await
        });
        let answer: Result<Answer<SendBonusBatchReply>, Status> = call.await;
        let SendBonusBatchRequest { requests } = batch;
        match answer {
            Ok(Answer { message: reply, is_in_doubt }) if reply.results.len() == requests.len() => requests
                .iter()
                .zip(reply.results)
                .map(|(request, result)| read(request, result, is_in_doubt))
                .collect(),
            Ok(_) => {
                let what = "the gateway's answer does not fit the question";
                requests.iter().map(|_| Err(SendError::Unanswered(what.into()))).collect()
            }
            Err(status) => requests.iter().map(|request| Err(send_error(request, &status))).collect(),
        }
    }
}

#[async_trait]
impl SendBonus for GatewayClient {
    async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            SendClient::new(channel).send_bonus(request).await
        });
        call.await.map_err(|status| send_error(&request, &status))
    }

    async fn send_bonus_batch(
        &self,
        requests: Vec<SendBonusRequest>,
    ) -> Vec<Result<SendBonusReply, SendError>> {
        let mut answers = Vec::with_capacity(requests.len());
        let (mut part, mut bytes) = (Vec::new(), 0);
        for request in requests {
            let len = request.encoded_len();
            if part.len() == BATCH_MAX || bytes + len > BATCH_MAX_BYTES && !part.is_empty() {
                answers.extend(self.send_part(std::mem::take(&mut part)).await);
                bytes = 0;
            }
            bytes += len;
            part.push(request);
        }
        if !part.is_empty() {
            answers.extend(self.send_part(part).await);
        }
        answers
    }
}

fn read(
    request: &SendBonusRequest,
    result: SendBonusResult,
    is_in_doubt: bool,
) -> Result<SendBonusReply, SendError> {
    match result.result {
        Some(Taken::Token(token)) => Ok(SendBonusReply { token }),
        // An earlier attempt was told the same where the request itself is wrong; else it may have been taken.
        Some(Taken::Failure(failure)) if is_in_doubt && failure.code != i32::from(Code::InvalidArgument) => {
            let message = failure.message;
            Err(SendError::Unanswered(format!(
                "an earlier attempt was not answered; the last one: {message}"
            )))
        }
        Some(Taken::Failure(failure)) => Err(send_failure(request, &failure)),
        None => Err(SendError::Unanswered("the gateway's answer says neither yes nor no".into())),
    }
}
