//! Grants rewards.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ClientOptions, OpenError};
use std::sync::Arc;
use windfall_proto::v1::rewards_client::RewardsClient as Stub;
use windfall_proto::v1::{BonusEvent, GrantAsyncRequest, GrantBatchRequest, GrantReply};

/// Grants events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RewardsClient {
    link: Arc<Link>,
}

impl RewardsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Grants at most 1,000 events, of any types: one answer per event, in order, final or with the time to ask again.
    ///
    /// # Errors
    /// [`CallError`] for all of them.
    pub async fn grant_batch(&self, events: Vec<BonusEvent>) -> Result<Vec<GrantReply>, CallError> {
        let request = GrantBatchRequest { events };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            Stub::new(channel).grant_batch(request).await
        });
        fitting(call.await?.replies, request.events.len())
    }

    /// Takes at most 1,000 events to be granted soon: one answer per event, in order.
    ///
    /// # Errors
    /// [`CallError`] for all of them.
    pub async fn grant_async(&self, events: Vec<BonusEvent>) -> Result<Vec<GrantReply>, CallError> {
        let request = GrantAsyncRequest { events };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            Stub::new(channel).grant_async(request).await
        });
        fitting(call.await?.replies, request.events.len())
    }
}

fn fitting(replies: Vec<GrantReply>, asked: usize) -> Result<Vec<GrantReply>, CallError> {
    if replies.len() == asked {
        Ok(replies)
    } else {
        Err(CallError::Unanswered("the answer does not fit the question".into()))
    }
}
