//! Timers: added, changed, cancelled and looked at.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::timers_client::TimersClient as Stub;
use windfall_proto::v1::{
    AddTimerReply, AddTimerRequest, AddTimerResult, AddTimersRequest, CancelTimerRequest, CancelTimerResult,
    CancelTimersRequest, ChangeTimerReply, EndDeadTimersRequest, GetTimerRequest, ListDeadTimersReply,
    ListDeadTimersRequest, ListTimersReply, ListTimersRequest, NewTimer, Timer, UpdateTimerRequest,
};

/// The scheduler's calls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TimersClient {
    link: Arc<Link>,
}

impl TimersClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Adds a timer. Without a key it is never repeated by itself, since a call that was not answered may have stored
    /// it: made again, there would be two.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn add(&self, request: AddTimerRequest) -> Result<AddTimerReply, CallError> {
        let repeat = repeat_of(request.timer.as_slice());
        let call = self
            .link
            .call(repeat, None, &request, |channel, request| async move { stub(channel).add(request).await });
        Ok(call.await?)
    }

    /// Adds up to 1,000 timers, with one answer for each, in order. It is repeated by itself only where each of them has
    /// a key.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn add_batch(&self, request: AddTimersRequest) -> Result<Vec<AddTimerResult>, CallError> {
        let repeat = repeat_of(&request.timers);
        let call = self.link.call(repeat, None, &request, |channel, request| async move {
            stub(channel).add_batch(request).await
        });
        Ok(call.await?.results)
    }

    /// Gives a waiting timer another time, another payload, or both.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn update(&self, request: UpdateTimerRequest) -> Result<ChangeTimerReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).update(request).await
        });
        Ok(call.await?)
    }

    /// Cancels a waiting timer.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn cancel(&self, request: CancelTimerRequest) -> Result<ChangeTimerReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).cancel(request).await
        });
        Ok(call.await?)
    }

    /// Cancels up to 1,000 timers, with one answer for each, in order.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn cancel_batch(
        &self,
        request: CancelTimersRequest,
    ) -> Result<Vec<CancelTimerResult>, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).cancel_batch(request).await
        });
        Ok(call.await?.results)
    }

    /// One timer.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::NotFound`] where it never was, or is over and gone.
    pub async fn get(&self, request: GetTimerRequest) -> Result<Timer, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get(request).await
        });
        call.await?.timer.ok_or_else(|| CallError::Unanswered("the answer is empty".into()))
    }

    /// A page of waiting timers, by id.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListTimersRequest) -> Result<ListTimersReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list(request).await
        });
        Ok(call.await?)
    }

    /// A page of timers that were given up, by id.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list_dead(&self, request: ListDeadTimersRequest) -> Result<ListDeadTimersReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_dead(request).await
        });
        Ok(call.await?)
    }

    /// Sends timers that were given up again, or deletes them; says for each id, in order, whether it was there. Never
    /// repeated by itself: made again after a lost answer it does not find them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn end_dead(&self, request: EndDeadTimersRequest) -> Result<Vec<bool>, CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).end_dead(request).await
        });
        Ok(call.await?.found)
    }
}

/// Timers with keys may be added again: the second one is not stored.
fn repeat_of(timers: &[NewTimer]) -> Repeat {
    if timers.iter().all(|timer| !timer.key.is_empty()) { Repeat::Safe } else { Repeat::Never }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_key_is_not_added_twice() {
        let plain = NewTimer { target: "hook".into(), ..NewTimer::default() };
        let named = NewTimer { key: "call-1".into(), ..plain.clone() };
        assert_eq!(repeat_of(&[named.clone(), named.clone()]), Repeat::Safe);
        assert_eq!(repeat_of(&[named, plain]), Repeat::Never);
    }
}
