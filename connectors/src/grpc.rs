//! Orders as calls of `windfall.v1.Downstream`.

use crate::allow::AllowList;
use crate::answer::{self, Doubt};
use crate::dial::{DialError, Dialer};
use crate::http::ANSWER_MAX_BYTES;
use crate::metrics::{Metrics, Snapshot};
use crate::options::{GrpcOptions, SetupError, read_secret};
use crate::target::Target;
use async_trait::async_trait;
use std::error::Error as _;
use std::time::Duration;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_proto::v1::PayRequest;
use windfall_proto::v1::downstream_client::DownstreamClient;
use zeroize::Zeroizing;

/// Bytes of an answer's header list.
const HEAD_MAX_BYTES: u32 = 16 << 10;
/// The time after which a silent connection is asked for a sign of life; it is closed when none comes.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a bearer key: 16 to 1,024.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=1_024;

/// Asks a downstream to pay by `windfall.v1.Downstream/Pay`. See the crate's documentation for the answers.
pub struct GrpcConnector {
    name: String,
    client: DownstreamClient<Channel>,
    authorization: MetadataValue<Ascii>,
    timeout: Duration,
    pause_ms: u64,
    metrics: Metrics,
}

impl GrpcConnector {
    /// Sets it up: reads the key and the authorities, checks the URL against the allow list. Connects to nothing yet.
    /// Must be called within a Tokio runtime, which runs its connection.
    ///
    /// # Errors
    /// [`SetupError`] names the option.
    pub fn new(name: &str, options: &GrpcOptions, clock: Clock) -> Result<Self, SetupError> {
        let wire = &options.wire;
        wire.check()?;
        let allow = AllowList::parse(&options.allow)?;
        let target = Target::parse(options.url.trim_end_matches('/'), &allow, wire.plaintext)?;
        let authorization = bearer(options)?;
        let origin = target.origin();
        let dialer = Dialer::new(target, allow, wire, b"h2", clock)?;
        let broken = |error: &dyn std::fmt::Display| SetupError::option("url", error.to_string());
        // Its own TLS is none of tonic's business, so it sees `http` and the requests' origin says `https`.
        let endpoint = Endpoint::from_shared(origin.replacen("https://", "http://", 1))
            .map_err(|error| broken(&error))?
            .origin(origin.parse().map_err(|error| broken(&error))?)
            .http2_max_header_list_size(HEAD_MAX_BYTES)
            .http2_keep_alive_interval(PROBE_AFTER)
            .keep_alive_timeout(PROBE_WAIT);
        let client = DownstreamClient::new(endpoint.connect_with_connector_lazy(dialer))
            .max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(Self {
            name: name.to_owned(),
            client,
            authorization,
            timeout: Duration::from_millis(wire.timeout_ms),
            pause_ms: wire.pause_ms,
            metrics: Metrics::default(),
        })
    }

    /// What it counted since it was made.
    pub fn metrics(&self) -> Snapshot {
        self.metrics.snapshot()
    }

    async fn ask(&self, order: &PayOrder<'_>) -> Result<PayAnswer, Doubt> {
        let mut request = Request::new(PayRequest {
            trade_no: order.trade_no.into(),
            user_id: order.user_id,
            activity: order.activity.into(),
            scene: order.scene.into(),
            bonus_type: order.bonus_type.into(),
            amount: order.amount,
        });
        request.metadata_mut().insert("authorization", self.authorization.clone());
        // A clone is a handle of the same connection.
        match self.client.clone().pay(request).await {
            Ok(reply) => answer::of_grpc(reply.get_ref()),
            Err(status) => match DialError::find(&status) {
                Some(dial) => {
                    if !matches!(dial, DialError::Paused { .. }) {
                        self.metrics.unreachable();
                    }
                    Ok(dial.answer(self.pause_ms))
                }
                // Also `Unavailable`: a server says it before and after the work alike.
                None => {
                    tracing::debug!(connector = self.name, order.trade_no, code = ?status.code(), "no answer");
                    // A status that the server sent has no cause on our side.
                    Err(if status.source().is_some() { Doubt::Broken } else { Doubt::Nonsense })
                }
            },
        }
    }
}

fn bearer(options: &GrpcOptions) -> Result<MetadataValue<Ascii>, SetupError> {
    let bad = |what: &str| SetupError::file("key_file", &options.key_file, what);
    let key = read_secret("key_file", &options.key_file)?;
    if !KEY_BYTES.contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        return Err(bad("holds no key of 16 to 1,024 visible ASCII characters"));
    }
    let text = Zeroizing::new([b"Bearer ", key.as_slice()].concat());
    let mut value = MetadataValue::try_from(text.as_slice()).map_err(|_| bad("holds no key"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[async_trait]
impl Connector for GrpcConnector {
    fn name(&self) -> &str {
        &self.name
    }

    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        let running = self.metrics.begin();
        let asked = tokio::time::timeout(self.timeout, self.ask(&order)).await;
        running.end(asked.unwrap_or(Err(Doubt::Timeout)))
    }
}
