//! One call: its attempts, the endpoints in turn, and the time-outs.

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

/// The connection to a service.
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
    /// It may be repeated: made twice, it does what it does once.
    Safe,
    /// It must not be repeated: each call counts.
    Never,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) message: R,
    /// Whether an earlier attempt of the same call may have been done.
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
                return Err(last_word(status, is_in_doubt));
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

/// How long the server asks to wait. The hint also promises that nothing was done.
pub(crate) fn retry_after_ms(status: &Status) -> Option<u64> {
    status.metadata().get(RETRY_AFTER_MS)?.to_str().ok()?.parse().ok()
}

/// Whether a server said it. What breaks on the way gets a code from tonic, too, at any time of the call, and has its
/// cause for a source: a connection that is reset "to calm down" is a RESOURCE_EXHAUSTED of a call that may be done.
fn is_of_server(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
}

/// Whether the call may have been done all the same.
fn leaves_doubt(status: &Status) -> bool {
    if !is_of_server(status) {
        return !was_never_sent(status);
    }
    status.code() != Code::ResourceExhausted && retry_after_ms(status).is_none()
}

/// Whether there was no connection to send it over.
fn was_never_sent(status: &Status) -> bool {
    let first = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<tonic::ConnectError>())
}

/// What the caller is told, to whom a code means what a server means by it.
fn last_word(last: Status, is_in_doubt: bool) -> Status {
    let is_certain = !may_help(&last) || !leaves_doubt(&last);
    if is_in_doubt && is_certain {
        unanswered(&last)
    } else if is_of_server(&last) {
        last
    } else {
        Status::unavailable(last.message())
    }
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
        // A connection that broke may have any code. The servers' refusals, and our own, are final.
        _ => !is_of_server(status),
    }
}

/// A random wait between half of `wait` and all of it, so that callers that were refused together do not come back
/// together.
fn jittered(wait: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or_default() % 1_024;
    wait / 2 + wait / 2 * random / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CallError;
    use std::sync::Arc;

    /// The status that tonic makes of a connection that broke.
    fn broken(code: Code) -> Status {
        let mut status = Status::new(code, "h2 protocol error");
        status.set_source(Arc::new(std::io::Error::other("reset")));
        status
    }

    fn said(code: Code) -> Status {
        Status::new(code, "said")
    }

    /// What is told of a call whose attempts end so, and how many were made.
    async fn told(repeat: Repeat, ends: &[Status]) -> (CallError, usize) {
        let link = Link::open(&ClientOptions::default()).unwrap();
        let made = AtomicUsize::new(0);
        let call = link.call(repeat, None, &(), |_, _| {
            let end = ends[made.fetch_add(1, Relaxed)].clone();
            async move { Err::<Response<()>, _>(end) }
        });
        let status = call.await.unwrap_err();
        (status.into(), made.load(Relaxed))
    }

    #[tokio::test]
    async fn what_breaks_on_the_way_is_no_refusal_whatever_its_code() {
        for code in [Code::ResourceExhausted, Code::PermissionDenied, Code::Internal, Code::InvalidArgument] {
            let unanswered = CallError::Unanswered("h2 protocol error".into());
            assert_eq!(told(Repeat::Never, &[broken(code)]).await, (unanswered.clone(), 1), "{code:?}");
            let ends = [broken(code), broken(code), broken(code)];
            assert_eq!(told(Repeat::Safe, &ends).await, (unanswered, 3), "{code:?}");
        }
        // Nor does it hint at anything.
        let mut hinting = broken(Code::Unavailable);
        hinting.metadata_mut().insert(RETRY_AFTER_MS, 7.into());
        assert!(matches!(told(Repeat::Never, &[hinting]).await, (CallError::Unanswered(_), 1)));
    }

    #[tokio::test]
    async fn a_refusal_is_certain_unless_an_earlier_attempt_broke() {
        let full = || said(Code::ResourceExhausted);
        let busy = CallError::Busy { what: "said".into(), after_ms: 0 };
        assert_eq!(told(Repeat::Safe, &[full(), full(), full()]).await, (busy, 3));
        let ends = [broken(Code::ResourceExhausted), full(), full()];
        assert!(matches!(told(Repeat::Safe, &ends).await, (CallError::Unanswered(_), 3)));
        let ends = [broken(Code::ResourceExhausted), said(Code::NotFound)];
        assert!(matches!(told(Repeat::Safe, &ends).await, (CallError::Unanswered(_), 2)));
        let ends = [full(), said(Code::NotFound)];
        assert_eq!(told(Repeat::Safe, &ends).await, (CallError::NotFound("said".into()), 2));
    }
}
