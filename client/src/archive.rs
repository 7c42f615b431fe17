//! The failure archive and the budgets, for operators' tools.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::archive_client::ArchiveClient as Stub;
use windfall_proto::v1::{
    AcceptLedgerReply, AcceptLedgerRequest, BudgetLine, GetArchivedReply, GetArchivedRequest,
    GetLedgerMarkReply, GetLedgerMarkRequest, GetOrderReply, GetOrderRequest, GetStatementReply,
    GetStatementRequest, GrantReply, ListArchiveReply, ListArchiveRequest, ListBudgetsRequest, ListHeldReply,
    ListHeldRequest, ListReservedReply, ListReservedRequest, ListWithdrawalsReply, ListWithdrawalsRequest,
    ReleaseReservedRequest, ReplayArchivedRequest,
};

/// The failure archive and the budgets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ArchiveClient {
    link: Arc<Link>,
}

impl ArchiveClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListArchiveRequest) -> Result<ListArchiveReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_archive(request).await
        });
        Ok(call.await?)
    }

    /// One entry, with its bytes and its replays.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, id: i64) -> Result<GetArchivedReply, CallError> {
        let request = GetArchivedRequest { id };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_archived(request).await
        });
        Ok(call.await?)
    }

    /// Grants an entry again. Each call is kept with who made it, so it is never repeated by itself; asking again is
    /// safe, for an order credits once.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn replay(&self, id: i64, actor: String) -> Result<GrantReply, CallError> {
        self.replay_despite_signature(id, actor, String::new()).await
    }

    /// The same for a record of which nothing proves who wrote it: the caller vouches for it, and `reason` is kept with the
    /// replay. An empty reason vouches for nothing.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn replay_despite_signature(
        &self,
        id: i64,
        actor: String,
        reason: String,
    ) -> Result<GrantReply, CallError> {
        let request = ReplayArchivedRequest { id, actor, despite_signature: reason };
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).replay_archived(request).await
        });
        call.await?.reply.ok_or_else(|| CallError::Unanswered("the answer is empty".into()))
    }

    /// A page of orders whose budget has been held for long, sorted by order number.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn reserved(&self, request: ListReservedRequest) -> Result<ListReservedReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_reserved(request).await
        });
        Ok(call.await?)
    }

    /// Ends a reserved order. Never repeated by itself: made again after a lost answer it is `NotFound`. The activity may be
    /// empty where only one has a reserved order with this number.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn release(&self, activity: String, trade_no: String, actor: String) -> Result<(), CallError> {
        let request = ReleaseReservedRequest { trade_no, actor, activity };
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).release_reserved(request).await
        });
        call.await?;
        Ok(())
    }

    /// Where a reward is, by its order number, in this activity, or in all of them where it is empty.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn order(&self, activity: String, trade_no: String) -> Result<GetOrderReply, CallError> {
        let request = GetOrderRequest { trade_no, activity };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_order(request).await
        });
        Ok(call.await?)
    }

    /// A page of withdrawals that have been held for long, sorted by id.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn held(&self, request: ListHeldRequest) -> Result<ListHeldReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_held(request).await
        });
        Ok(call.await?)
    }

    /// Whether the ledger holds its mark.
    ///
    /// # Errors
    /// [`CallError`]; `Refused` where the ledger has none.
    pub async fn ledger_mark(&self) -> Result<GetLedgerMarkReply, CallError> {
        let request = GetLedgerMarkRequest {};
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_ledger_mark(request).await
        });
        Ok(call.await?)
    }

    /// Accepts the ledger of this generation as it is. Safe to repeat: a generation is accepted once, and the answer
    /// says by whom.
    ///
    /// # Errors
    /// [`CallError`]; `Refused` where the ledger has another generation, or is not known to lack anything.
    pub async fn accept_ledger(&self, request: AcceptLedgerRequest) -> Result<AcceptLedgerReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).accept_ledger(request).await
        });
        Ok(call.await?)
    }

    /// A page of a user's statement, newest line first, with the balances where it begins.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn statement(&self, request: GetStatementRequest) -> Result<GetStatementReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_statement(request).await
        });
        Ok(call.await?)
    }

    /// A page of a user's withdrawals, the one that was held last first, or of those of all users that are held, by time. It may be
    /// empty though another one follows.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn withdrawals(
        &self,
        request: ListWithdrawalsRequest,
    ) -> Result<ListWithdrawalsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_withdrawals(request).await
        });
        Ok(call.await?)
    }

    /// Every budget as it stands.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn budgets(&self) -> Result<Vec<BudgetLine>, CallError> {
        let call =
            self.link.call(Repeat::Safe, None, &ListBudgetsRequest {}, |channel, request| async move {
                stub(channel).list_budgets(request).await
            });
        Ok(call.await?.budgets)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
