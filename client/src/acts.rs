//! Acts of two operators, for operators' tools.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::acts_client::ActsClient as Stub;
use windfall_proto::v1::{
    Act, ApproveActReply, ApproveActRequest, CarryOutActReply, CarryOutActRequest, GetActRequest,
    ListActsReply, ListActsRequest, ProposeActReply, ProposeActRequest, RefuseActReply, RefuseActRequest,
    SurveyOrdersReply, SurveyOrdersRequest,
};

/// Acts of two operators. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ActsClient {
    link: Arc<Link>,
}

impl ActsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Proposes an act. Safe to repeat: the same act with the same reason and evidence is one act.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn propose(&self, request: ProposeActRequest) -> Result<ProposeActReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).propose_act(request).await
        });
        Ok(call.await?)
    }

    /// A page of acts, by number.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListActsRequest) -> Result<ListActsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_acts(request).await
        });
        Ok(call.await?)
    }

    /// One act, with how what it is about stands now.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, id: i64) -> Result<Act, CallError> {
        let request = GetActRequest { id };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_act(request).await
        });
        call.await?.act.ok_or_else(|| CallError::Unanswered("the answer is empty".into()))
    }

    /// Approves an act, which does it. Safe to repeat: it is done once, and the answer says how it ended.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn approve(&self, id: i64, actor: String) -> Result<ApproveActReply, CallError> {
        let request = ApproveActRequest { id, actor };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).approve_act(request).await
        });
        Ok(call.await?)
    }

    /// Counts a part of what a correction would take back.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn survey(&self, request: SurveyOrdersRequest) -> Result<SurveyOrdersReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).survey_orders(request).await
        });
        Ok(call.await?)
    }

    /// Carries a page of an approved correction out. Safe to repeat: no order is taken back twice.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn carry_out(&self, request: CarryOutActRequest) -> Result<CarryOutActReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).carry_out_act(request).await
        });
        Ok(call.await?)
    }

    /// Refuses an act. Safe to repeat.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn refuse(&self, id: i64, actor: String, reason: String) -> Result<RefuseActReply, CallError> {
        let request = RefuseActRequest { id, actor, reason };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).refuse_act(request).await
        });
        Ok(call.await?)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
