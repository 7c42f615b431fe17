//! The gRPC service `windfall.v1.Rewards`.

use super::events::{self, Events};
use super::status;
use crate::async_grant::AsyncGrants;
use crate::handle::RewardHandle;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use tonic::{Request, Response, Status};
use windfall_contract::rewards::{Failed, GrantReply, Rejection, RetryReason, Rewards};
use windfall_edge::Call;
use windfall_proto::v1;
use windfall_proto::v1::rewards_server;

/// Grants over a wire, on a running reward service. Role: grant.
#[derive(Clone)]
pub struct RewardsService {
    rewards: RewardHandle,
    later: Option<AsyncGrants>,
}

impl RewardsService {
    /// Makes the service on this reward service. `GrantAsync` answers `UNIMPLEMENTED`.
    pub const fn new(rewards: RewardHandle) -> Self {
        Self { rewards, later: None }
    }

    /// Makes the service with a queue for `GrantAsync`.
    pub fn with_queue(later: AsyncGrants) -> Self {
        Self { rewards: later.rewards().clone(), later: Some(later) }
    }

    /// Grants each type's events and returns one reply per event, in order. The types run at once: a slow downstream
    /// holds up its own type alone.
    async fn each_type(&self, events: Events, way: Way<'_>) -> Vec<v1::GrantReply> {
        let Events { count, groups, malformed } = events;
        let mut replies = vec![status::reply(&GrantReply::Rejected(Rejection::Malformed)); count];
        let granting = join_all(groups.iter().map(|(bonus_type, group)| async move {
            (&group.at, self.one_type(bonus_type, &group.events, way).await)
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
                let later = self.rewards.inner.later("", RetryReason::StoreUnavailable, 1);
                replies[*at] = status::reply(&later);
            }
        }
        replies
    }

    async fn one_type(&self, bonus_type: &str, events: &[Bytes], way: Way<'_>) -> Vec<v1::GrantReply> {
        match way {
            Way::Now => {
                self.rewards.grant_batch(bonus_type, events).await.iter().map(status::reply).collect()
            }
            Way::Later(later) => later.accept(bonus_type, events).await.iter().map(status::later).collect(),
        }
    }
}

/// How the events of a call are granted.
#[derive(Clone, Copy)]
enum Way<'l> {
    Now,
    Later(&'l AsyncGrants),
}

#[tonic::async_trait]
impl rewards_server::Rewards for RewardsService {
    async fn grant(&self, request: Request<v1::GrantRequest>) -> Result<Response<v1::GrantReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let event = request.into_inner().event;
        let events = events::read(event.as_slice(), &tenant)?;
        let replies = self.each_type(events, Way::Now).await;
        let reply = replies.into_iter().next();
        Ok(Response::new(reply.ok_or_else(|| Status::invalid_argument("event is missing"))?))
    }

    async fn grant_batch(
        &self,
        request: Request<v1::GrantBatchRequest>,
    ) -> Result<Response<v1::GrantBatchReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let events = events::read(&request.into_inner().events, &tenant)?;
        let replies = self.each_type(events, Way::Now).await;
        Ok(Response::new(v1::GrantBatchReply { replies }))
    }

    async fn grant_async(
        &self,
        request: Request<v1::GrantAsyncRequest>,
    ) -> Result<Response<v1::GrantAsyncReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let Some(later) = &self.later else {
            return Err(Status::unimplemented("this reward service has no queue to write to"));
        };
        let mut events = request.into_inner().events;
        let now_ms = self.rewards.inner.clock.wall_ms();
        for event in &mut events {
            // As the SDK does for those who send to a queue.
            for time_ms in [&mut event.award_time_ms, &mut event.first_sent_ms] {
                *time_ms = if *time_ms == 0 { now_ms } else { *time_ms };
            }
        }
        let events = events::read(&events, &tenant)?;
        let replies = self.each_type(events, Way::Later(later)).await;
        Ok(Response::new(v1::GrantAsyncReply { replies }))
    }
}
