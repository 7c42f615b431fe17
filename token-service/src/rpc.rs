//! The gRPC service `windfall.v1.Tokens` over a [`KeyRingVerifier`].

use crate::page_token::ListOf;
use crate::verifier::KeyRingVerifier;
use async_trait::async_trait;
use tonic::{Code, Request, Response, Status};
use windfall_contract::verifier::{ListError, PAGE_DEFAULT, PAGE_MAX, Page, Verdict, VerifyError};
use windfall_edge::{Call, retry_later};
use windfall_proto::order::check_name;
use windfall_proto::v1::{
    HeldToken, ListTokensReply, ListTokensRequest, TokenVerdict, VerifiedToken, VerifyTokensReply,
    VerifyTokensRequest, tokens_server,
};

/// The retry hint while the store is away.
const STORE_RETRY_MS: u64 = 200;

/// The service. Mount it as `TokensServer::new(TokenService::new(verifier))`.
#[derive(Debug, Clone)]
pub struct TokenService {
    verifier: KeyRingVerifier,
}

impl TokenService {
    /// The service over this verifier.
    pub const fn new(verifier: KeyRingVerifier) -> Self {
        Self { verifier }
    }
}

#[async_trait]
impl tokens_server::Tokens for TokenService {
    async fn list_tokens(
        &self,
        request: Request<ListTokensRequest>,
    ) -> Result<Response<ListTokensReply>, Status> {
        let call = Call::of(&request)?;
        let (tenant, user_id) = (&*call.caller.tenant, call.user()?);
        let ListTokensRequest { activity, page_size, page_token } = request.get_ref();
        if !activity.is_empty() {
            check_name(activity).map_err(|why| Status::invalid_argument(format!("activity {why}")))?;
        }
        let size = match usize::try_from(*page_size) {
            Ok(0) => PAGE_DEFAULT,
            Ok(size) if size <= PAGE_MAX => size,
            _ => {
                return Err(Status::invalid_argument(format!(
                    "page_size is {page_size}; at most {PAGE_MAX}"
                )));
            }
        };
        let list = ListOf { tenant, user_id, activity };
        let after = match page_token.as_str() {
            "" => None,
            token => {
                let after = list.read(token);
                Some(after.ok_or_else(|| Status::invalid_argument("page_token is not one of this list"))?)
            }
        };
        let wanted = (!activity.is_empty()).then_some(activity.as_str());
        let page = Page { after: after.as_deref(), size };
        let page = self.verifier.list(tenant, user_id, wanted, page).await.map_err(refused)?;
        let next_page_token = page.next.map_or_else(String::new, |after| list.token_after(&after));
        let tokens = page.tokens.into_iter();
        let tokens = tokens.map(|held| HeldToken { token: held.text.into(), content: Some(held.content) });
        Ok(Response::new(ListTokensReply { tokens: tokens.collect(), next_page_token }))
    }

    async fn verify_tokens(
        &self,
        request: Request<VerifyTokensRequest>,
    ) -> Result<Response<VerifyTokensReply>, Status> {
        let call = Call::of(&request)?;
        let (tenant, user_id) = (&*call.caller.tenant, call.user()?);
        let verdicts = self.verifier.verify(tenant, user_id, &request.get_ref().tokens).await;
        let verdicts = verdicts.map_err(|error @ VerifyError::TooMany { .. }| {
            Status::invalid_argument(format!("tokens: {error}"))
        })?;
        let tokens = verdicts.into_iter().map(verified).collect();
        Ok(Response::new(VerifyTokensReply { tokens }))
    }
}

fn verified(verdict: Verdict) -> VerifiedToken {
    let (verdict, content) = match verdict {
        Verdict::Valid(token) => (TokenVerdict::Valid, Some(token)),
        Verdict::Unknown => (TokenVerdict::Unknown, None),
        Verdict::Illegal => (TokenVerdict::Illegal, None),
        Verdict::Unavailable => (TokenVerdict::Unavailable, None),
    };
    VerifiedToken { verdict: verdict.into(), content }
}

fn refused(error: ListError) -> Status {
    match error {
        ListError::Size { .. } => Status::invalid_argument(error.to_string()),
        // What exactly the store said is for operators, who have it in the log.
        ListError::Store(_) => {
            retry_later(Code::Unavailable, "the token store cannot answer; ask again", STORE_RETRY_MS)
        }
    }
}
