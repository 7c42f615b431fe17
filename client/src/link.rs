//! One call: attempts, endpoints in turn, time limits.

use crate::options::{ClientOptions, OpenError, WAIT_FIRST, WAIT_MAX};
use crate::user::EndUser;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Metadata of an answer that nothing was done, with the wait after which it may be: milliseconds.
const RETRY_AFTER_MS: &str = "retry-after-ms";

/// The way to a service.
pub(crate) struct Link {
    channels: Vec<Channel>,
    next: AtomicUsize,
    bearer: Option<MetadataValue<Ascii>>,
    attempts: u32,
    attempt_timeout: Duration,
}

/// How often a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Made twice it does what it does once.
    Safe,
    /// Each counts.
    Never,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) message: R,
    /// An earlier attempt of the same call may have been done.
    pub(crate) is_in_doubt: bool,
}

impl Link {
    pub(crate) fn open(options: &ClientOptions) -> Result<Self, OpenError> {
        Ok(Self {
            channels: options.channels()?,
            next: AtomicUsize::new(0),
            bearer: options.bearer()?,
            attempts: options.attempts,
            attempt_timeout: Duration::from_millis(options.attempt_timeout_ms),
        })
    }

    /// Makes a call, and makes it again where that is safe and may help.
    pub(crate) async fn call<M: Clone, R, F>(
        &self,
        repeat: Repeat,
        user: Option<EndUser<'_>>,
        message: &M,
        call: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<R, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.ask(repeat, user, message, call).await.map(|answer| answer.message)
    }

    /// The same, for answers that may say of a part of the call that it was not done.
    pub(crate) async fn ask<M: Clone, R, F>(
        &self,
        repeat: Repeat,
        user: Option<EndUser<'_>>,
        message: &M,
        call: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<Answer<R>, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let first = self.next.fetch_add(1, Relaxed);
        let attempts = if repeat == Repeat::Safe { self.attempts } else { 1 };
        let mut wait = WAIT_FIRST;
        let mut is_in_doubt = false;
        for attempt in 0.. {
            let turn = first.wrapping_add(attempt);
            let channel = self.channels[turn % self.channels.len()].clone();
            let asked = call(channel, self.request(message.clone(), user)?);
            let answer = match tokio::time::timeout(self.attempt_timeout, asked).await {
                Ok(answer) => answer,
                Err(_) => Err(Status::deadline_exceeded(format!(
                    "no answer within {} ms",
                    self.attempt_timeout.as_millis()
                ))),
            };
            let status = match answer {
                Ok(answer) => return Ok(Answer { message: answer.into_inner(), is_in_doubt }),
                Err(status) => status,
            };
            let is_last = attempt + 1 >= usize::try_from(attempts).unwrap_or(1);
            if is_last || !may_help(&status) {
                let is_certain = !may_help(&status) || !leaves_doubt(&status);
                return Err(if is_in_doubt && is_certain { unanswered(&status) } else { status });
            }
            is_in_doubt |= leaves_doubt(&status);
            let asked_for = retry_after_ms(&status).map_or(wait, Duration::from_millis);
            tokio::time::sleep(jittered(asked_for.min(WAIT_MAX))).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
        unreachable!("the last attempt returns")
    }

    fn request<M>(&self, message: M, user: Option<EndUser<'_>>) -> Result<Request<M>, Status> {
        let mut request = Request::new(message);
        // The server need not go on with what nobody waits for.
        request.set_timeout(self.attempt_timeout);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        if let Some(user) = user {
            user.write(request.metadata_mut())?;
        }
        Ok(request)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("endpoints", &self.channels.len()).finish_non_exhaustive()
    }
}

/// How long the server asks to wait. That it says so is its word that nothing was done.
pub(crate) fn retry_after_ms(status: &Status) -> Option<u64> {
    status.metadata().get(RETRY_AFTER_MS)?.to_str().ok()?.parse().ok()
}

/// Whether the call may have been done all the same.
fn leaves_doubt(status: &Status) -> bool {
    status.code() != Code::ResourceExhausted && retry_after_ms(status).is_none() && !was_never_sent(status)
}

/// Whether there was no connection to send it over.
fn was_never_sent(status: &Status) -> bool {
    let first = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<tonic::ConnectError>())
}

/// What the last attempt says is true of that attempt; an earlier one may have been done. Without a hint, which would
/// be word that nothing was. What is wrong in the call itself, every attempt was told.
fn unanswered(last: &Status) -> Status {
    match last.code() {
        Code::InvalidArgument | Code::Unimplemented => last.clone(),
        code => Status::unavailable(format!(
            "an earlier attempt was not answered; the last one: {code:?}: {}",
            last.message()
        )),
    }
}

/// Whether another attempt may get another answer.
fn may_help(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Aborted
        | Code::Unknown
        | Code::ResourceExhausted => true,
        // A connection that broke may call itself so; what a server calls so is the same the next time.
        Code::Internal => std::error::Error::source(status).is_some(),
        // Our own refusals, and those that are final.
        _ => false,
    }
}

/// Between half of it and all of it, so that callers that were refused together do not come back together.
fn jittered(wait: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or_default() % 1_024;
    wait / 2 + wait / 2 * random / 1_024
}
