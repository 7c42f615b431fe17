//! Calls of the services' public APIs with the key of who has signed in: the service decides what that key may do.

use crate::answer::{Answer, Refused};
use crate::upstream::{Asked, CallError, Called, Upstream};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};

/// The calls that the page makes. None sends a new reward, grants without an archived event, or withdraws. Some do pay: a
/// replay grants what was archived, an act that a second operator approves moves what it says, a payout that is acknowledged
/// as refused goes back to its user, and a timer or a job that is run again does what it was made for.
const PATHS: &[&str] = &[
    "/v1/archive/list",
    "/v1/archive/get",
    "/v1/archive/replay",
    "/v1/orders/get",
    "/v1/budgets/list",
    "/v1/reserved/list",
    "/v1/reserved/release",
    "/v1/withdrawals/held",
    "/v1/withdrawals/list",
    "/v1/statements/get",
    "/v1/payouts/list",
    "/v1/payouts/acknowledge",
    "/v1/acts/propose",
    "/v1/acts/list",
    "/v1/acts/get",
    "/v1/acts/approve",
    "/v1/acts/refuse",
    "/v1/audits/get",
    "/v1/audits/differences/list",
    "/v1/audits/differences/mark",
    "/v1/ledger/mark",
    "/v1/tokens/list",
    "/v1/tokens/verify",
    "/v1/wallet/get",
    "/v1/timers/get",
    "/v1/timers/list",
    "/v1/timers/cancel",
    "/v1/timers/dead/list",
    "/v1/timers/dead/end",
    "/v1/backfills/get",
    "/v1/jobs/get",
    "/v1/jobs/list",
    "/v1/jobs/versions",
    "/v1/jobs/set-paused",
    "/v1/jobs/run",
    "/v1/jobs/preview",
    "/v1/jobs/runs/list",
    "/v1/jobs/runs/get",
    "/v1/jobs/runs/again",
    "/v1/jobs/runs/kill",
    "/v1/jobs/runs/log",
    "/v1/jobs/runs/dead",
    "/v1/jobs/executors/list",
];

/// The header by which the page names the user that a call is about.
const USER: &str = "x-windfall-user";
/// The digits of a user's number at most.
const USER_DIGITS_MAX: usize = 19;

/// Whether the page makes such a call.
pub(crate) fn has(path: &str) -> bool {
    PATHS.contains(&path)
}

/// Calls the first service that has the path and can be reached. A call that was sent is never sent again.
pub(crate) async fn call(
    upstreams: &[Upstream],
    path: &str,
    request: &Request<Bytes>,
    key: &str,
) -> Result<Answer, Refused> {
    let nothing = || Refused::new(StatusCode::NOT_FOUND, "NOT_FOUND", "the console makes no such call");
    let path = PATHS.iter().find(|known| **known == path).ok_or_else(nothing)?;
    let user = user(request.headers())?;
    let mut unreachable = None;
    for upstream in upstreams.iter().filter(|upstream| upstream.serves(path)) {
        let body = request.body().clone();
        match upstream.call(Asked { method: Method::POST, path, key, user, body }).await {
            Ok(called) => return Ok(answer(called)),
            Err(error @ CallError::Unreachable(..)) => unreachable = Some(error),
            Err(error) => return Err(refused(&error)),
        }
    }
    match unreachable {
        Some(error) => Err(refused(&error)),
        None => Err(Refused::new(
            StatusCode::NOT_IMPLEMENTED,
            "UNIMPLEMENTED",
            format!("no service that the console knows has {path}"),
        )),
    }
}

/// As the service answered; its answer is JSON, whatever its status.
fn answer(called: Called) -> Answer {
    // A key that a service does not know is no reason to sign out of the console.
    let status = match called.status {
        StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
        status => status,
    };
    Answer::new(status, "application/json", called.body)
}

fn refused(error: &CallError) -> Refused {
    let (status, code) = match error {
        CallError::Unreachable(..) => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
        CallError::TimedOut(_) | CallError::Broken(_) => (StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED"),
        CallError::TooLong(_) => (StatusCode::BAD_GATEWAY, "OUT_OF_RANGE"),
    };
    Refused::new(status, code, error.to_string())
}

fn user(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let Some(user) = headers.get(USER) else { return Ok(None) };
    let is_number = |text: &&str| {
        !text.is_empty() && text.len() <= USER_DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let user = user.to_str().ok().filter(is_number);
    user.map(Some).ok_or_else(|| Refused::invalid("a user is a number"))
}
