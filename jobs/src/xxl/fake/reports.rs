//! The other direction of a fake executor: it registers, reports in batches, and repeats what was not taken.

use super::FakeOptions;
use crate::xxl::address::Executor;
use crate::xxl::answer::{Answer, OK};
use crate::xxl::result::ResultBody;
use crate::xxl::token::{APP_HEADER, AccessToken, TOKEN_HEADER};
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::IgnoredAny;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The results of one report at most.
const BATCH_MAX: usize = 1_000;
/// The pause before a report that was not taken is repeated. A Java executor waits 30 s.
const AGAIN: Duration = Duration::from_millis(50);

/// Reports until its last sender has gone.
pub(super) struct Reporter {
    link: Arc<Link>,
    executor: Executor,
    sender: mpsc::Sender<ResultBody>,
    leaving: CancellationToken,
    tasks: [JoinHandle<()>; 2],
}

struct Link {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    token: Option<HeaderValue>,
    app: String,
    reported: AtomicU64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RegistryBody<'a> {
    registry_group: &'static str,
    registry_key: &'a str,
    registry_value: &'a str,
}

impl Reporter {
    /// Registers, and goes on to.
    pub(super) async fn start(url: &str, options: &FakeOptions, executor: Executor) -> io::Result<Self> {
        let link = Arc::new(Link {
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
            url: url.trim_end_matches('/').to_owned(),
            token: options.token.as_ref().and_then(AccessToken::header),
            app: executor.app.to_string(),
            reported: AtomicU64::new(0),
        });
        link.register(&executor, "registry").await?;
        let (sender, results) = mpsc::channel(options.results_max);
        let leaving = CancellationToken::new();
        let beats = beat(Arc::clone(&link), executor.clone(), options.beat_ms, leaving.clone());
        let tasks = [tokio::spawn(report(Arc::clone(&link), results, leaving.clone())), tokio::spawn(beats)];
        Ok(Self { link, executor, sender, leaving, tasks })
    }

    pub(super) fn sender(&self) -> mpsc::Sender<ResultBody> {
        self.sender.clone()
    }

    pub(super) fn reported_count(&self) -> u64 {
        self.link.reported.load(Relaxed)
    }

    /// Takes its leave, and reports what waits.
    pub(super) async fn close(mut self) {
        self.leaving.cancel();
        for task in &mut self.tasks {
            task.await.ok();
        }
        if let Err(error) = self.link.register(&self.executor, "registryRemove").await {
            tracing::warn!(%error, "a fake executor could not take its leave");
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Registers again and again.
async fn beat(link: Arc<Link>, executor: Executor, beat_ms: u64, leaving: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(beat_ms)) => {}
            () = leaving.cancelled() => return,
        }
        if let Err(error) = link.register(&executor, "registry").await {
            tracing::warn!(%error, "a fake executor could not register");
        }
    }
}

/// Reports in batches, each until it is taken. Leaving, it reports what has come until then, each batch once.
async fn report(link: Arc<Link>, mut results: mpsc::Receiver<ResultBody>, leaving: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        tokio::select! {
            biased;
            count = results.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
            () = leaving.cancelled() => return,
        }
        while let Err(error) = link.post("callback", &batch).await {
            tracing::debug!(%error, "a report of a fake executor was not taken");
            if leaving.is_cancelled() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
        link.reported.fetch_add(batch.len() as u64, Relaxed);
        batch.clear();
    }
}

impl Link {
    async fn register(&self, executor: &Executor, call: &str) -> io::Result<()> {
        let body = RegistryBody {
            registry_group: "EXECUTOR",
            registry_key: executor.app.as_str(),
            registry_value: executor.address.as_str(),
        };
        self.post(call, &body).await
    }

    async fn post(&self, call: &str, body: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(body)?;
        let mut request = Request::post(format!("{}/api/{call}", self.url))
            .header(APP_HEADER, self.app.as_str())
            .header(CONTENT_TYPE, "application/json;charset=UTF-8");
        if let Some(token) = &self.token {
            request = request.header(TOKEN_HEADER, token);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        let response = self.client.request(request).await.map_err(io::Error::other)?;
        let answer = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let answer: Answer<IgnoredAny> = serde_json::from_slice(&answer)?;
        match answer.code {
            OK => Ok(()),
            code => Err(io::Error::other(format!("refused ({code}): {}", answer.message()))),
        }
    }
}
