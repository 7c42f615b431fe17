//! Grants: by the ledger itself, or by the downstream that pays the type.

use crate::handle::RewardHandle;
use crate::inbox::NotTaken;
use crate::job::{Decision, How, Job};
use crate::traced::Traced;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;
use tracing::Instrument;
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, RetryReason, Rewards};
use windfall_ledger::Attempt;

/// The least wait of an event whose type an operator has paused.
const PAUSED_RETRY_MS: u64 = 1_000;

#[async_trait]
impl Rewards for RewardHandle {
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        if self.fuses.as_ref().is_some_and(|may_grant| !may_grant(bonus_type)) {
            let reply = GrantReply::Retry { after_ms: PAUSED_RETRY_MS, reason: RetryReason::Paused };
            self.inner.counters.count(bonus_type, std::iter::repeat_n(&reply, events.len()));
            return vec![reply; events.len()];
        }
        let how = self.how(bonus_type, Attempt::Normal);
        let traced = Traced::begin(bonus_type, events);
        let span = tracing::info_span!("grant_batch", bonus_type, events = events.len());
        let replies = self.grant_as(bonus_type, events, how).instrument(span).await;
        traced.end(&replies);
        replies
    }

    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Archive { failed: failed.to_vec(), reply };
        match self.inner.push(job) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(ArchiveUnavailable("too many calls wait; try again".into())),
            Err(NotTaken::Closed) => return Err(ArchiveUnavailable("the reward service is closed".into())),
        }
        match answer.await {
            Ok(done) => done.map_err(ArchiveUnavailable),
            Err(_) => Err(ArchiveUnavailable("the reward service was closed".into())),
        }
    }
}

impl RewardHandle {
    /// Grants like [`Rewards::grant_batch`]; a replay may also credit what was rejected before.
    pub(crate) async fn grant_as(&self, bonus_type: &str, events: &[Bytes], how: How) -> Vec<GrantReply> {
        if events.is_empty() {
            return Vec::new();
        }
        let name = Arc::from(bonus_type);
        if matches!(how, How::Reserve(..)) {
            return self.grant_external(&name, events, how).await;
        }
        let decisions = self.decide(&name, events.to_vec(), how).await;
        let mut replies = vec![self.inner.come_again(); events.len()];
        let mut reserved = Vec::new();
        for (at, decision) in decisions.into_iter().enumerate() {
            match decision {
                Decision::Reply(reply) => replies[at] = reply,
                Decision::Ask(_) => reserved.push(at),
            }
        }
        if !reserved.is_empty() {
            // A downstream was to pay them when their type was its, and may have: it alone is asked (I1). One that has
            // ended meanwhile is not reserved anew.
            let own: Vec<Bytes> = reserved.iter().map(|at| events[*at].clone()).collect();
            let how = How::Reserve(Attempt::Normal, Arc::from(""));
            let asked = self.grant_external(&name, &own, how).await;
            reserved.into_iter().zip(asked).for_each(|(at, reply)| replies[at] = reply);
        }
        replies
    }
}
