//! `windfall.v1.Rewards`.

use super::events::{self, Events};
use super::status;
use crate::contract::{Failed, GrantReply, Rejection, RetryReason, Rewards};
use crate::service::RewardHandle;
use futures_util::future::{join, join_all};
use tonic::{Request, Response, Status};
use windfall_edge::Call;
use windfall_proto::v1;
use windfall_proto::v1::rewards_server;

/// Grants over a wire, on a running reward service. Role: grant.
#[derive(Clone)]
pub struct RewardsService {
    rewards: RewardHandle,
}

impl RewardsService {
    /// On this reward service.
    pub const fn new(rewards: RewardHandle) -> Self {
        Self { rewards }
    }

    /// One reply an event, in order. The types run at once: a slow downstream holds up its own type alone.
    async fn grant_all(&self, events: Events) -> Vec<GrantReply> {
        let Events { count, groups, malformed } = events;
        let mut replies = vec![GrantReply::Rejected(Rejection::Malformed); count];
        let granting = join_all(groups.iter().map(|(bonus_type, group)| async move {
            (&group.at, self.rewards.grant_batch(bonus_type, &group.events).await)
        }));
        let failed: Vec<Failed> = malformed
            .iter()
            .map(|(_, payload, why)| Failed {
                payload: payload.clone(),
                rejection: Rejection::Malformed,
                detail: why.to_string(),
            })
            .collect();
        let archiving =
            async { if failed.is_empty() { Ok(()) } else { self.rewards.archive(&failed).await } };
        let (granted, archived) = join(granting, archiving).await;
        for (places, own) in granted {
            places.iter().zip(own).for_each(|(at, reply)| replies[*at] = reply);
        }
        if archived.is_err() {
            // Rejected is final only once it is in the archive (I2).
            for (at, ..) in &malformed {
                replies[*at] = self.rewards.inner.later("", RetryReason::StoreUnavailable, 1);
            }
        }
        replies
    }
}

#[tonic::async_trait]
impl rewards_server::Rewards for RewardsService {
    async fn grant(&self, request: Request<v1::GrantRequest>) -> Result<Response<v1::GrantReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let event = request.into_inner().event;
        let events = events::read(event.as_slice(), &tenant)?;
        let replies = self.grant_all(events).await;
        let reply = replies.first().ok_or_else(|| Status::invalid_argument("event is missing"))?;
        Ok(Response::new(status::reply(reply)))
    }

    async fn grant_batch(
        &self,
        request: Request<v1::GrantBatchRequest>,
    ) -> Result<Response<v1::GrantBatchReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let events = events::read(&request.into_inner().events, &tenant)?;
        let replies = self.grant_all(events).await;
        Ok(Response::new(v1::GrantBatchReply { replies: replies.iter().map(status::reply).collect() }))
    }

    async fn grant_async(
        &self,
        _request: Request<v1::GrantAsyncRequest>,
    ) -> Result<Response<v1::GrantAsyncReply>, Status> {
        Err(Status::unimplemented("this reward service has no queue to write to"))
    }
}
