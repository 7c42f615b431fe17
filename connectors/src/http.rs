//! Orders as signed HTTP requests.

use crate::allow::AllowList;
use crate::answer::{self, Doubt, OrderJson};
use crate::dial::{DialError, Dialer};
use crate::metrics::{Metrics, Snapshot};
use crate::options::{HttpOptions, SetupError, WireOptions};
use crate::sign::Sign;
use crate::target::{Target, Template};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};

/// Bytes of an answer's body that are read.
pub const ANSWER_MAX_BYTES: usize = 64 << 10;
/// Bytes of an answer's head that are read, and its fields.
const HEAD_MAX_BYTES: usize = 16 << 10;
const HEAD_MAX_FIELDS: usize = 64;

/// A client of one host.
pub(crate) type PostClient = Client<Dialer, Full<Bytes>>;

/// Asks a downstream to pay by a signed POST. See the crate's documentation for request and answers.
pub struct HttpConnector {
    name: String,
    template: Template,
    origin: String,
    sign: Sign,
    client: PostClient,
    timeout: Duration,
    pause_ms: u64,
    metrics: Metrics,
    clock: Clock,
}

impl HttpConnector {
    /// Sets it up: reads the secret and the authorities, checks the URL against the allow list. Connects to nothing
    /// yet.
    ///
    /// # Errors
    /// [`SetupError`] names the option.
    pub fn new(name: &str, options: &HttpOptions, clock: Clock) -> Result<Self, SetupError> {
        let wire = &options.wire;
        wire.check()?;
        let allow = AllowList::parse(&options.allow)?;
        let template = Template::parse(&options.url, &allow, wire.plaintext)?;
        let sign = Sign::new(options, &template.target)?;
        let client = post_client(template.target.clone(), allow, wire, clock.clone())?;
        Ok(Self {
            name: name.to_owned(),
            origin: template.target.origin(),
            template,
            sign,
            client,
            timeout: Duration::from_millis(wire.timeout_ms),
            pause_ms: wire.pause_ms,
            metrics: Metrics::default(),
            clock,
        })
    }

    /// What it counted since it was made.
    pub fn metrics(&self) -> Snapshot {
        self.metrics.snapshot()
    }

    async fn ask(&self, order: &PayOrder<'_>) -> Result<PayAnswer, Doubt> {
        let Some(request) = self.request(order) else {
            // Nothing was sent. It will not become better; the archive of what failed too often shows it.
            tracing::warn!(connector = self.name, order.trade_no, "this order cannot stand in the URL");
            return Ok(PayAnswer::Retry { after_ms: self.pause_ms });
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                return match DialError::find(&error) {
                    Some(dial) => {
                        if !matches!(dial, DialError::Paused { .. }) {
                            self.metrics.unreachable();
                        }
                        Ok(dial.answer(self.pause_ms))
                    }
                    None => {
                        tracing::debug!(connector = self.name, order.trade_no, %error, "no answer");
                        Err(Doubt::Broken)
                    }
                };
            }
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await.map_err(|error| {
            tracing::debug!(connector = self.name, order.trade_no, %error, "half an answer");
            if error.is::<http_body_util::LengthLimitError>() { Doubt::Nonsense } else { Doubt::Broken }
        })?;
        let answer = answer::of_http(head.status.as_u16(), &head.headers, &body.to_bytes(), order.trade_no);
        if answer.is_err() {
            tracing::warn!(connector = self.name, order.trade_no, status = %head.status, "nothing certain");
        }
        answer
    }

    fn request(&self, order: &PayOrder<'_>) -> Option<Request<Full<Bytes>>> {
        let path = self.template.fill(order)?;
        let body = serde_json::to_vec(&OrderJson::from(order)).ok()?;
        let request = Request::post(format!("{}{path}", self.origin));
        self.sign
            .headers(request, &path, order.trade_no, self.clock.wall_ms(), &body)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(ACCEPT_ENCODING, "identity")
            .header(USER_AGENT, concat!("windfall/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body.into()))
            .ok()
    }
}

#[async_trait]
impl Connector for HttpConnector {
    fn name(&self) -> &str {
        &self.name
    }

    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        let running = self.metrics.begin();
        let asked = tokio::time::timeout(self.timeout, self.ask(&order)).await;
        running.end(asked.unwrap_or(Err(Doubt::Timeout)))
    }
}

/// A client of one host, at addresses that the list allows. HTTP/1.1 alone: a call has its connection for itself, and a
/// broken one leaves no other in doubt.
pub(crate) fn post_client(
    target: Target,
    allow: AllowList,
    wire: &WireOptions,
    clock: Clock,
) -> Result<PostClient, SetupError> {
    let dialer = Dialer::new(target, allow, wire, b"http/1.1", clock)?;
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(wire.idle_max)
        .pool_idle_timeout(Duration::from_millis(wire.idle_ms))
        .http1_max_buf_size(HEAD_MAX_BYTES)
        .http1_max_headers(HEAD_MAX_FIELDS)
        .build(dialer))
}
