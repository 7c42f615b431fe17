//! Withdrawals that a front end pays out elsewhere.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::payouts_client::PayoutsClient as Stub;
use windfall_proto::v1::{
    AcknowledgePayoutReply, AcknowledgePayoutRequest, ListToPayOutReply, ListToPayOutRequest,
};

/// Withdrawals that a front end pays out elsewhere. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PayoutsClient {
    link: Arc<Link>,
}

impl PayoutsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// A page of what nobody has acknowledged.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListToPayOutRequest) -> Result<ListToPayOutReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_to_pay_out(request).await
        });
        Ok(call.await?)
    }

    /// Says how a payout ended. Safe to repeat: the same result is noted once.
    ///
    /// # Errors
    /// [`CallError`]; `Refused` where a connector pays it, or where it has ended the other way.
    pub async fn acknowledge(
        &self,
        request: AcknowledgePayoutRequest,
    ) -> Result<AcknowledgePayoutReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).acknowledge_payout(request).await
        });
        Ok(call.await?)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
