//! Calls executors.

use super::address::{Executor, ExecutorAddress};
use super::answer::{Answer, OK};
use super::dial::{DialError, Dialer};
use super::error::{CallError, Refusal};
use super::log::{LogLines, LogRequest};
use super::options::{ClientOptions, WrongOption};
use super::peers::{Peer, Peers, RunPath};
use super::rules::AddressRules;
use super::run::{RunBody, RunRequest};
use super::token::{APP_HEADER, AccessToken, TOKEN_HEADER};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of an answer's head that are read, and its fields.
const HEAD_MAX_BYTES: usize = 16 << 10;
const HEAD_MAX_FIELDS: usize = 64;

/// Calls executors over connections that are kept.
///
/// Calls at a time are bounded, for each executor and for all; a call waits for a place no longer than it may itself
/// take. A call that is dropped before its answer is as unknown as one without an answer.
///
/// A connection that the executor closed while it was unused is replaced in silence, but only where nothing of the
/// request was written yet.
pub struct XxlClient {
    client: Client<Dialer, Full<Bytes>>,
    token: Option<HeaderValue>,
    options: ClientOptions,
    places: Semaphore,
    peers: Peers,
}

/// The body of [`XxlClient::kill`] and [`XxlClient::idle_beat`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobBody {
    job_id: i32,
}

/// What one exchange gave, before it is put in words for the caller.
enum Failed {
    NotSent(String),
    Refused { code: i32, msg: String, refusal: Refusal },
    Unknown(String),
}

impl XxlClient {
    /// Makes a client that sends this token and goes where the rules permit. It connects to nothing yet.
    ///
    /// # Errors
    /// [`WrongOption`] names the option.
    pub fn new(
        options: ClientOptions,
        token: Option<&AccessToken>,
        rules: AddressRules,
    ) -> Result<Self, WrongOption> {
        options.check()?;
        let dialer = Dialer::new(rules, options.ca_file.as_deref(), options.connect_timeout_ms)?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(options.calls_per_executor_max)
            .pool_idle_timeout(Duration::from_millis(options.idle_timeout_ms))
            .http1_max_buf_size(HEAD_MAX_BYTES)
            .http1_max_headers(HEAD_MAX_FIELDS)
            .build(dialer);
        Ok(Self {
            client,
            token: token.and_then(AccessToken::header),
            places: Semaphore::new(options.calls_max),
            peers: Peers::new(options.executors_max, options.calls_per_executor_max),
            options,
        })
    }

    /// Whether the executor is there.
    ///
    /// # Errors
    /// [`CallError`]; each one says that it does not work now.
    pub async fn beat(&self, executor: &Executor) -> Result<(), CallError> {
        self.done(executor, "/beat", Bytes::new()).await
    }

    /// Whether no run of the job goes or waits there.
    ///
    /// # Errors
    /// [`CallError`]; [`Refusal::Busy`] where one does.
    pub async fn idle_beat(&self, executor: &Executor, job_id: i32) -> Result<(), CallError> {
        self.done(executor, "/idleBeat", json(&JobBody { job_id })).await
    }

    /// Hands over a run. Ok: it goes or waits there, in memory; its result comes to
    /// [`Admin::report`](super::Admin::report), or never where the executor dies.
    ///
    /// An executor that answers to have no `/run` is asked by `/trigger`, the name of newer ones. Without an answer
    /// nothing is asked again.
    ///
    /// # Errors
    /// [`CallError`] says whether it may run all the same.
    pub async fn run(&self, executor: &Executor, request: &RunRequest) -> Result<(), CallError> {
        let body = json(&RunBody::new(request));
        let peer = self.peer(&executor.address)?;
        let path = peer.run_path();
        let first = self.done_by(&peer, executor, path.text(), body.clone()).await;
        if first.as_ref().err().and_then(CallError::refusal) != Some(Refusal::NoSuchCall) {
            return first;
        }
        let other = self.done_by(&peer, executor, path.other().text(), body).await;
        match other.as_ref().map_err(CallError::refusal) {
            // It is no executor, or not any more: what was asked first stays.
            Err(Some(Refusal::NoSuchCall)) => peer.takes(RunPath::Run),
            // What answered nothing says nothing about its paths.
            Err(None) => {}
            Ok(()) | Err(Some(_)) => peer.takes(path.other()),
        }
        other
    }

    /// Ends the runs of a job, the one that goes and those that wait; each is reported as failed. Ok also where there
    /// was none.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn kill(&self, executor: &Executor, job_id: i32) -> Result<(), CallError> {
        self.done(executor, "/kill", json(&JobBody { job_id })).await
    }

    /// Reads the lines that a run wrote.
    ///
    /// # Errors
    /// [`CallError`]; also [`Unknown`](CallError::Unknown) where the lines are more than
    /// [`log_max_bytes`](ClientOptions::log_max_bytes).
    pub async fn log(&self, executor: &Executor, request: LogRequest) -> Result<LogLines, CallError> {
        let peer = self.peer(&executor.address)?;
        let answer: Option<LogLines> =
            self.call(&peer, executor, "/log", json(&request), self.options.log_max_bytes).await?;
        let nothing = || CallError::Unknown {
            address: executor.address.clone(),
            reason: "the answer has no lines".into(),
        };
        answer.ok_or_else(nothing)
    }

    /// Forgets what was learned about an executor that has gone.
    pub fn forget(&self, address: &ExecutorAddress) {
        self.peers.forget(address);
    }

    /// A call whose answer is a code alone.
    async fn done(&self, executor: &Executor, path: &str, body: Bytes) -> Result<(), CallError> {
        let peer = self.peer(&executor.address)?;
        self.done_by(&peer, executor, path, body).await
    }

    async fn done_by(
        &self,
        peer: &Peer,
        executor: &Executor,
        path: &str,
        body: Bytes,
    ) -> Result<(), CallError> {
        let answer_max = self.options.answer_max_bytes;
        let answer: Result<Option<IgnoredAny>, _> = self.call(peer, executor, path, body, answer_max).await;
        answer.map(|_| ())
    }

    fn peer(&self, address: &ExecutorAddress) -> Result<Arc<Peer>, CallError> {
        self.peers.of(address).ok_or_else(|| CallError::NotSent {
            address: address.clone(),
            reason: format!("{} executors have calls", self.options.executors_max),
        })
    }

    async fn call<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        executor: &Executor,
        path: &str,
        body: Bytes,
        answer_max: usize,
    ) -> Result<Option<T>, CallError> {
        let timeout = Duration::from_millis(self.options.call_timeout_ms);
        let outcome = match tokio::time::timeout(timeout, self.places(peer)).await {
            Ok(Some(_places)) => {
                let asked = tokio::time::timeout(timeout, self.ask(executor, path, body, answer_max));
                let late = || Failed::Unknown(format!("no whole answer within {} ms", timeout.as_millis()));
                asked.await.unwrap_or_else(|_| Err(late()))
            }
            Ok(None) | Err(_) => {
                Err(Failed::NotSent(format!("no call ended within {} ms", timeout.as_millis())))
            }
        };
        outcome.map_err(|failed| failed.of(&executor.address))
    }

    /// The executor's own place first, so that callers of one that hangs hold none of the others'.
    async fn places<'p>(&'p self, peer: &'p Peer) -> Option<(SemaphorePermit<'p>, SemaphorePermit<'p>)> {
        let own = peer.places.acquire().await.ok()?;
        let shared = self.places.acquire().await.ok()?;
        Some((own, shared))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        executor: &Executor,
        path: &str,
        body: Bytes,
        answer_max: usize,
    ) -> Result<Option<T>, Failed> {
        let request = self.request(executor, path, body)?;
        let response = self.client.request(request).await.map_err(|error| match DialError::find(&error) {
            Some(dial) => Failed::NotSent(dial.to_string()),
            None => Failed::Unknown(format!("the connection broke: {}", innermost(&error))),
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, answer_max).collect().await;
        let body = body.map_err(|error| Failed::Unknown(format!("no whole answer: {error}")))?.to_bytes();
        judge(head.status, &body)
    }

    fn request(&self, executor: &Executor, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failed> {
        let mut request = Request::post(format!("{}{path}", executor.address))
            .header(APP_HEADER, executor.app.as_str())
            .header(CONTENT_TYPE, "application/json;charset=UTF-8")
            .header(ACCEPT_ENCODING, "identity")
            .header(USER_AGENT, concat!("windfall/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(TOKEN_HEADER, token);
        }
        let request = request.body(Full::new(body));
        request.map_err(|error| Failed::NotSent(format!("it is no request: {error}")))
    }
}

impl Failed {
    fn of(self, address: &ExecutorAddress) -> CallError {
        let address = address.clone();
        match self {
            Self::NotSent(reason) => CallError::NotSent { address, reason },
            Self::Refused { code, msg, refusal } => CallError::Refused { address, code, msg, refusal },
            Self::Unknown(reason) => CallError::Unknown { address, reason },
        }
    }
}

/// Executors answer 200 to everything and put the code into the body; other numbers come from what stands between.
fn judge<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<Option<T>, Failed> {
    let code = i32::from(status.as_u16());
    let refused = |msg: String, refusal| Err(Failed::Refused { code, msg, refusal });
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return refused("HTTP 404".into(), Refusal::NoSuchCall),
        // A proxy's words for "no answer in time".
        StatusCode::REQUEST_TIMEOUT => return Err(Failed::Unknown("HTTP 408".into())),
        _ if status.is_client_error() || status.is_redirection() => {
            return refused(format!("HTTP {code}"), Refusal::Other);
        }
        _ => return Err(Failed::Unknown(format!("HTTP {code}"))),
    }
    let answer: Answer<T> = serde_json::from_slice(body)
        .map_err(|error| Failed::Unknown(format!("the answer cannot be read: {error}")))?;
    if answer.code == OK {
        return Ok(answer.value());
    }
    let (code, msg) = (answer.code, answer.message());
    let refusal = if code == 404 { Refusal::NoSuchCall } else { Refusal::of(&msg) };
    Err(Failed::Refused { code, msg, refusal })
}

/// Bodies of numbers and texts, which are always JSON.
fn json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}

/// The client library wraps what happened in words that say less.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xxl::AppName;

    #[tokio::test]
    async fn without_a_free_place_nothing_is_sent() {
        let options = ClientOptions {
            connect_timeout_ms: 50,
            call_timeout_ms: 100,
            calls_max: 1,
            calls_per_executor_max: 1,
            ..ClientOptions::default()
        };
        let rules = AddressRules::parse(&["127.0.0.1"]).unwrap();
        let client = XxlClient::new(options, None, rules).unwrap();
        let address = ExecutorAddress::parse("http://127.0.0.1:1").unwrap();
        let executor = Executor { app: AppName::parse("mails").unwrap(), address: address.clone() };
        let peer = client.peers.of(&address).unwrap();

        for permit in [&peer.places, &client.places] {
            let taken = permit.acquire().await.unwrap();
            let error = client.beat(&executor).await.unwrap_err();
            assert!(error.to_string().contains("no call ended within 100 ms"), "{error}");
            assert!(error.is_certain());
            drop(taken);
        }
        // Nobody listens on port 1, which only a call that has its places can find out.
        let error = client.beat(&executor).await.unwrap_err();
        assert!(error.is_certain() && !error.to_string().contains("no call ended"), "{error}");
        assert_eq!((peer.places.available_permits(), client.places.available_permits()), (1, 1));
    }
}
