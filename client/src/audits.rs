//! The auditor of a ledger, for operators' tools.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::audits_client::AuditsClient as Stub;
use windfall_proto::v1::{
    AppendPayerLinesReply, AppendPayerLinesRequest, BeginPayerStatementRequest, ComparePayerStatementRequest,
    GetAuditReply, GetAuditRequest, ListDifferencesReply, ListDifferencesRequest, ListPayerStatementsReply,
    ListPayerStatementsRequest, MarkDifferenceRequest, PayerStatement,
};

/// The auditor of a ledger. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuditsClient {
    link: Arc<Link>,
}

impl AuditsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// How far the auditor has come, and how many differences there are.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self) -> Result<GetAuditReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &GetAuditRequest {}, |channel, request| async move {
            stub(channel).get_audit(request).await
        });
        Ok(call.await?)
    }

    /// A page of differences.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListDifferencesRequest) -> Result<ListDifferencesReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_differences(request).await
        });
        Ok(call.await?)
    }

    /// Notes a person's word about a difference. Never repeated by itself: asked again after a lost answer, a difference that
    /// was resolved is not found.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn mark(&self, request: MarkDifferenceRequest) -> Result<(), CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).mark_difference(request).await
        });
        call.await?;
        Ok(())
    }

    /// Begins the upload of a payer's statement, or finds the one that began under the same name.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn begin_statement(
        &self,
        request: BeginPayerStatementRequest,
    ) -> Result<PayerStatement, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).begin_payer_statement(request).await
        });
        Ok(call.await?)
    }

    /// Appends a batch of lines to a payer's statement, each once, however often it is sent.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn append_lines(
        &self,
        request: AppendPayerLinesRequest,
    ) -> Result<AppendPayerLinesReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).append_payer_lines(request).await
        });
        Ok(call.await?)
    }

    /// Compares a payer's statement for a moment, and says how far it has come.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn compare_statement(
        &self,
        request: ComparePayerStatementRequest,
    ) -> Result<PayerStatement, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).compare_payer_statement(request).await
        });
        Ok(call.await?)
    }

    /// A page of payers' statements.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn statements(
        &self,
        request: ListPayerStatementsRequest,
    ) -> Result<ListPayerStatementsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_payer_statements(request).await
        });
        Ok(call.await?)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
