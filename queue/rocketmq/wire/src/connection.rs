//! The connection to one of the proxies, with a deadline on each call.

use crate::error::{CallError, OptionsError};
use crate::options::ClientOptions;
use crate::proto;
use crate::proto::messaging_service_client::MessagingServiceClient;
use crate::request::Signer;
use parking_lot::Mutex;
use std::future::Future;
use std::time::Duration;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status};
use windfall_tls::TlsOptions;

/// The largest answer: a batch of 4 MB in one message, with room for what surrounds it.
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// The HTTP/2 stream window: the bytes that may be in flight before the reader must catch up. It fits a batch of large
/// messages, unlike the protocol's 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

pub(crate) struct Connection {
    places: Vec<(String, Endpoint)>,
    current: Mutex<Current>,
    pub(crate) signer: Signer,
    pub(crate) timeout: Duration,
}

struct Current {
    place: usize,
    stub: MessagingServiceClient<Channel>,
}

/// A gRPC stub and the address that it connects to.
pub(crate) struct Stub {
    pub(crate) calls: MessagingServiceClient<Channel>,
    pub(crate) place: String,
}

impl Connection {
    /// Makes no connection yet: the first call does. Needs a tokio runtime around it.
    pub(crate) fn open(options: &ClientOptions, client_id: String) -> Result<Self, OptionsError> {
        options.check()?;
        let tls = options.tls.as_ref().map(TlsOptions::grpc).transpose();
        let tls = tls.map_err(|error| OptionsError(error.to_string()))?;
        let places = options
            .endpoints
            .iter()
            .map(|place| Ok((place.clone(), endpoint(place, options, tls.as_ref())?)));
        let places = places.collect::<Result<Vec<_>, OptionsError>>()?;
        let Some((_, first)) = places.first() else {
            return Err(OptionsError("endpoints is empty".into()));
        };
        let current = Current { place: 0, stub: stub(first) };
        let signer = Signer::new(client_id, options.namespace.clone(), options.credentials.as_ref());
        Ok(Self { places, current: Mutex::new(current), signer, timeout: options.timeout })
    }

    pub(crate) fn stub(&self) -> Stub {
        let current = self.current.lock();
        let place = self.places.get(current.place).map_or("", |(place, _)| place.as_str());
        Stub { calls: current.stub.clone(), place: place.into() }
    }

    /// Leaves the proxy at `place`, if it is the one in use, for a new connection to the next proxy, if there is one.
    pub(crate) fn leave(&self, place: &str) {
        let mut current = self.current.lock();
        if self.places.get(current.place).is_some_and(|(here, _)| here == place) {
            let next = (current.place + 1) % self.places.len();
            if let Some((_, endpoint)) = self.places.get(next) {
                *current = Current { place: next, stub: stub(endpoint) };
            }
        }
    }

    /// Waits for an answer until the deadline.
    pub(crate) async fn answer<T>(
        &self,
        place: &str,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let error = match tokio::time::timeout(deadline, call).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => CallError::from_grpc(place, &status),
            Err(_) => CallError::unknown(place, format!("no answer within {deadline:?}")),
        };
        if matches!(error, CallError::NotSent { .. }) && self.places.len() > 1 {
            self.leave(place);
        }
        Err(error)
    }
}

/// Turns a status into OK or the server's error.
pub(crate) fn accepted(place: &str, status: Option<&proto::Status>) -> Result<(), CallError> {
    match status {
        Some(status) if status.code == i32::from(proto::Code::Ok) => Ok(()),
        Some(status) => Err(CallError::from_code(place, status.code, &status.message)),
        None => Err(CallError::unknown(place, "an answer without a status")),
    }
}

fn stub(endpoint: &Endpoint) -> MessagingServiceClient<Channel> {
    MessagingServiceClient::new(endpoint.connect_lazy()).max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn endpoint(
    place: &str,
    options: &ClientOptions,
    tls: Option<&ClientTlsConfig>,
) -> Result<Endpoint, OptionsError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let wrong = |error: tonic::transport::Error| OptionsError(format!("endpoint {place:?}: {error}"));
    let endpoint = Endpoint::from_shared(format!("{scheme}://{place}")).map_err(wrong)?;
    let endpoint = endpoint
        .connect_timeout(options.timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(wrong),
        None => Ok(endpoint),
    }
}
