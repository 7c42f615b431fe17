//! An executor that runs nothing: it answers as its script says, remembers what it was asked, and reports results. For
//! tests and measurements.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use windfall_jobs::xxl::fake::{FakeExecutor, FakeOptions};
//! use windfall_jobs::xxl::{AddressRules, AppName, ClientOptions, XxlClient};
//!
//! let fake = FakeExecutor::start(FakeOptions::new(AppName::parse("mails")?)).await?;
//! let here = AddressRules::parse(&["127.0.0.1"])?;
//! let client = XxlClient::new(ClientOptions::default(), None, here)?;
//! client.beat(fake.executor()).await?;
//! fake.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod reports;
mod script;

pub use admin::{AdminSeen, FakeAdmin};
pub use script::{FakeOptions, Generation, Reply, Script};

use super::address::{Executor, ExecutorAddress};
use super::result::{HandleCode, ResultBody};
use super::run::RunRequest;
use super::token::{APP_HEADER, TOKEN_HEADER};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use reports::Reporter;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The paths that are counted at most.
const PATHS_MAX: usize = 100;

/// A running fake. Dropped, it ends at once, as a killed process does.
pub struct FakeExecutor {
    executor: Executor,
    state: Arc<State>,
    reporter: Option<Reporter>,
    connections: TaskTracker,
    ends: CancellationToken,
    acceptor: JoinHandle<()>,
}

struct State {
    options: FakeOptions,
    script: Mutex<Script>,
    seen: Seen,
    reports: Option<tokio::sync::mpsc::Sender<ResultBody>>,
}

#[derive(Default)]
struct Seen {
    runs: AtomicU64,
    kept: Mutex<Vec<RunRequest>>,
    beats: AtomicU64,
    connections: AtomicU64,
    killed: Mutex<Vec<i32>>,
    paths: Mutex<BTreeMap<String, u64>>,
    busy: Mutex<HashSet<i32>>,
}

impl Seen {
    fn count(&self, path: &str) {
        let mut paths = self.paths.lock();
        if let Some(count) = paths.get_mut(path) {
            *count += 1;
        } else if paths.len() < PATHS_MAX {
            paths.insert(path.to_owned(), 1);
        }
    }
}

/// The connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the script ends the connection")]
struct Reset;

impl FakeExecutor {
    /// Listens on a free port of 127.0.0.1. It registers where its options name a server.
    ///
    /// # Errors
    /// No port could be opened, or the server did not take the registration.
    pub async fn start(options: FakeOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = format!("http://{}/", listener.local_addr()?);
        let address = ExecutorAddress::parse(&address).map_err(io::Error::other)?;
        let executor = Executor { app: options.app.clone(), address };
        let reporter = match &options.admin_url {
            Some(url) => Some(Reporter::start(url, &options, executor.clone()).await?),
            None => None,
        };
        let state = Arc::new(State {
            script: Mutex::new(options.script.clone()),
            reports: reporter.as_ref().map(Reporter::sender),
            options,
            seen: Seen::default(),
        });
        let (connections, ends) = (TaskTracker::new(), CancellationToken::new());
        let acceptor = accept(listener, Arc::clone(&state), connections.clone(), ends.clone());
        let acceptor = tokio::spawn(acceptor);
        Ok(Self { executor, state, reporter, connections, ends, acceptor })
    }

    /// Its application and address.
    pub const fn executor(&self) -> &Executor {
        &self.executor
    }

    /// From now on it answers runs so.
    pub fn set_script(&self, script: Script) {
        *self.state.script.lock() = script;
    }

    /// From now on an idle beat finds this job busy, or idle again.
    pub fn set_busy(&self, job_id: i32, is_busy: bool) {
        let mut busy = self.state.seen.busy.lock();
        if is_busy {
            busy.insert(job_id)
        } else {
            busy.remove(&job_id)
        };
    }

    /// How many runs came, those that were refused included.
    pub fn runs_count(&self) -> u64 {
        self.state.seen.runs.load(Relaxed)
    }

    /// The first runs that came, as many as the options say.
    pub fn runs(&self) -> Vec<RunRequest> {
        self.state.seen.kept.lock().clone()
    }

    /// How many beats came.
    pub fn beats_count(&self) -> u64 {
        self.state.seen.beats.load(Relaxed)
    }

    /// How many connections came.
    pub fn connections_count(&self) -> u64 {
        self.state.seen.connections.load(Relaxed)
    }

    /// The jobs whose runs were to be ended, in their order.
    pub fn killed(&self) -> Vec<i32> {
        self.state.seen.killed.lock().clone()
    }

    /// The paths that were asked for, and how often.
    pub fn paths(&self) -> BTreeMap<String, u64> {
        self.state.seen.paths.lock().clone()
    }

    /// Results that the server has taken.
    pub fn reported_count(&self) -> u64 {
        self.reporter.as_ref().map_or(0, Reporter::reported_count)
    }

    /// Reports a result by the way of the others, for a run that was taken without one.
    ///
    /// # Panics
    /// Where the options name no server.
    pub async fn report(&self, run: &RunRequest, handle_code: HandleCode, message: &str) {
        let reports = self.state.reports.as_ref().expect("the options of the fake name no server");
        reports.send(result_of(run, handle_code, message)).await.ok();
    }

    /// Ends in order: reports what waits, and takes its leave where it registered.
    pub async fn close(mut self) {
        self.ends.cancel();
        self.connections.close();
        self.connections.wait().await;
        if let Some(reporter) = self.reporter.take() {
            reporter.close().await;
        }
    }
}

impl Drop for FakeExecutor {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.ends.cancel();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, connections: TaskTracker, ends: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ends.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else { continue };
        state.seen.connections.fetch_add(1, Relaxed);
        connections.spawn(serve(stream, Arc::clone(&state), ends.clone()));
    }
}

async fn serve(stream: TcpStream, state: Arc<State>, ends: CancellationToken) {
    stream.set_nodelay(true).ok();
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { state.answer(request).await }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Callers come and go.
        _ended = connection => {}
        () = ends.cancelled() => {}
    }
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Reset> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        self.seen.count(path);
        let body = body.collect().await.map_err(|_| Reset)?.to_bytes();
        if self
            .options
            .token
            .as_ref()
            .is_some_and(|token| !token.is_carried_by(head.headers.get(TOKEN_HEADER)))
        {
            return Ok(self.refuse("The access token is wrong."));
        }
        let app = head.headers.get(APP_HEADER);
        if self.options.generation == Generation::Next
            && app.is_none_or(|app| app.as_bytes() != self.options.app.as_str().as_bytes())
        {
            return Ok(self.refuse("The appname is wrong."));
        }
        match path {
            "/beat" => {
                self.seen.beats.fetch_add(1, Relaxed);
                Ok(self.succeed())
            }
            "/idleBeat" if self.seen.busy.lock().contains(&job_of(&body)) => {
                Ok(self.refuse("job thread is running or has trigger queue."))
            }
            "/idleBeat" => Ok(self.succeed()),
            "/kill" => {
                self.seen.killed.lock().push(job_of(&body));
                Ok(self.succeed())
            }
            "/log" => Ok(self.lines(&body)),
            path if path == self.options.generation.run_path() => self.run(&body).await,
            path => Ok(self.refuse(&format!("invalid request, uri-mapping({path}) not found."))),
        }
    }

    async fn run(&self, body: &[u8]) -> Result<Response<Full<Bytes>>, Reset> {
        let Ok(run) = serde_json::from_slice::<RunRequest>(body) else {
            return Ok(self.refuse("request error:this is no run"));
        };
        self.seen.runs.fetch_add(1, Relaxed);
        let script = Arc::clone(&self.script.lock());
        let reply = script(&run);
        if self.options.keep_max > 0 {
            let mut kept = self.seen.kept.lock();
            if kept.len() < self.options.keep_max {
                kept.push(run.clone());
            }
        }
        match reply {
            Reply::Take => Ok(self.succeed()),
            Reply::Finish(code, message) => {
                if let Some(reports) = &self.reports {
                    // A full queue slows the callers down, as a Java executor's does not.
                    reports.send(result_of(&run, code, &message)).await.ok();
                }
                Ok(self.succeed())
            }
            Reply::Refuse(msg) => Ok(self.refuse(&msg)),
            Reply::Hang => std::future::pending().await,
            Reply::Reset => Err(Reset),
            Reply::Raw(status, body) => {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Reset)?;
                Ok(response)
            }
        }
    }

    fn succeed(&self) -> Response<Full<Bytes>> {
        plain(Bytes::from_static(br#"{"code":200}"#))
    }

    fn refuse(&self, msg: &str) -> Response<Full<Bytes>> {
        plain(serde_json::json!({ "code": 500, "msg": msg }).to_string().into())
    }

    fn lines(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let asked: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let text = &self.options.log_text;
        let lines = serde_json::json!({
            "fromLineNum": asked["fromLineNum"],
            "toLineNum": text.lines().count(),
            "logContent": text,
            "isEnd": false,
        });
        let name = if self.options.generation == Generation::Two { "content" } else { "data" };
        plain(serde_json::json!({ "code": 200, name: lines }).to_string().into())
    }
}

fn plain(body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html;charset=UTF-8"));
    response
}

fn job_of(body: &[u8]) -> i32 {
    let asked: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    asked["jobId"].as_i64().and_then(|id| i32::try_from(id).ok()).unwrap_or_default()
}

fn result_of(run: &RunRequest, code: HandleCode, message: &str) -> ResultBody {
    ResultBody {
        log_id: run.log_id,
        log_date_time_ms: run.log_date_time_ms,
        handle_code: code.code(),
        handle_msg: (!message.is_empty()).then(|| message.to_owned()),
    }
}
