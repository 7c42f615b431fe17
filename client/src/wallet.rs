//! A user's wallet: balances, movements and withdrawals.

use crate::error::{CallError, WithdrawError};
use crate::link::{Link, Repeat};
use crate::options::{ClientOptions, OpenError};
use crate::user::EndUser;
use std::sync::Arc;
use windfall_proto::v1::wallet_client::WalletClient as Stub;
use windfall_proto::v1::{GetWalletReply, GetWalletRequest, WithdrawReply, WithdrawRequest};

/// A user's wallet. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WalletClient {
    link: Arc<Link>,
}

impl WalletClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Balances and a page of movements, the newest first, with the pending rewards on the first page. The page behind it begins
    /// at `flow_after`, which is the reply's `flow_next`; an empty one ends the history.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(
        &self,
        user: EndUser<'_>,
        request: GetWalletRequest,
    ) -> Result<GetWalletReply, CallError> {
        let call = self.link.call(Repeat::Safe, Some(user), &request, |channel, request| async move {
            Stub::new(channel).get_wallet(request).await
        });
        Ok(call.await?)
    }

    /// Withdraws, once for `withdrawal_id`: it is safe to repeat, and repeated where no answer comes.
    ///
    /// # Errors
    /// [`WithdrawError`].
    pub async fn withdraw(
        &self,
        user: EndUser<'_>,
        request: WithdrawRequest,
    ) -> Result<WithdrawReply, WithdrawError> {
        let call = self.link.call(Repeat::Safe, Some(user), &request, |channel, request| async move {
            Stub::new(channel).withdraw(request).await
        });
        Ok(call.await?)
    }
}
