//! A user's tokens.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ClientOptions, OpenError};
use crate::user::EndUser;
use std::sync::Arc;
use windfall_proto::v1::tokens_client::TokensClient as Stub;
use windfall_proto::v1::{ListTokensReply, ListTokensRequest, VerifiedToken, VerifyTokensRequest};

/// Lists and verifies tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TokensClient {
    link: Arc<Link>,
}

impl TokensClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// A page of the user's tokens.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(
        &self,
        user: EndUser<'_>,
        request: ListTokensRequest,
    ) -> Result<ListTokensReply, CallError> {
        let call = self.link.call(Repeat::Safe, Some(user), &request, |channel, request| async move {
            Stub::new(channel).list_tokens(request).await
        });
        Ok(call.await?)
    }

    /// Verifies at most 512 token texts: one answer per text, in order.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn verify(
        &self,
        user: EndUser<'_>,
        tokens: Vec<String>,
    ) -> Result<Vec<VerifiedToken>, CallError> {
        let request = VerifyTokensRequest { tokens };
        let call = self.link.call(Repeat::Safe, Some(user), &request, |channel, request| async move {
            Stub::new(channel).verify_tokens(request).await
        });
        let verified = call.await?.tokens;
        if verified.len() == request.tokens.len() {
            Ok(verified)
        } else {
            Err(CallError::Unanswered("the answer does not fit the question".into()))
        }
    }
}
