//! Backfills of timers, for operators' tools.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::backfills_client::BackfillsClient as Stub;
use windfall_proto::v1::{Backfill, CancelBackfillRequest, GetBackfillRequest, StartBackfillRequest};

/// Fires past timers again. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BackfillsClient {
    link: Arc<Link>,
}

impl BackfillsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Begins a run. Never repeated by itself: after a lost answer, [`get`](Self::get) without an id shows whether a run
    /// goes on.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn start(&self, request: StartBackfillRequest) -> Result<Backfill, CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).start_backfill(request).await
        });
        Ok(call.await?)
    }

    /// A run of the process that is asked; the last one where the id is empty.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, id: String) -> Result<Backfill, CallError> {
        let request = GetBackfillRequest { id };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_backfill(request).await
        });
        Ok(call.await?)
    }

    /// Ends a run.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn cancel(&self, id: String) -> Result<Backfill, CallError> {
        let request = CancelBackfillRequest { id };
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).cancel_backfill(request).await
        });
        Ok(call.await?)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
