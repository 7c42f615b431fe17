//! One registry of metrics a process, read at scrape.
//!
//! By `prometheus-client`, the Prometheus project's own: no global registry, typed labels, and collectors that are
//! asked at scrape time, which is what components with counters of their own need. (The crate `prometheus` wants a
//! metric object to be kept up to date beside each counter.)

use crate::refusal::{Face, Reason};
use http::{HeaderValue, Response, header};
use http_body_util::Full;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tonic::body::Body;

/// Seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What one reading of a metric gives: labels and a number.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values. Every sample of a metric has the same names; few values each.
    pub labels: Vec<(&'static str, String)>,
    /// The number, in the unit that the metric's name ends in.
    pub value: f64,
}

/// What the numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The process's metrics: those of this crate, and those that others register. Cheap to clone: all clones are one.
///
/// ```
/// use windfall_edge::{Kind, Metrics, Sample};
///
/// let metrics = Metrics::new();
/// metrics.register("windfall_queue_lag_records", "Records not yet fetched.", Kind::Gauge, || {
///     vec![Sample { labels: vec![("topic", "cash".to_owned())], value: 7.0 }]
/// });
/// assert!(metrics.text()?.contains("windfall_queue_lag_records{topic=\"cash\"} 7.0"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    calls: Family<CallLabels, Counter>,
    latency: Family<MethodLabels, Histogram, fn() -> Histogram>,
    refused: Family<ReasonLabels, Counter>,
    calls_in_hand: Gauge,
    body_bytes_in_hand: Gauge,
    connections: Gauge,
    connections_cut: Family<ReasonLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    face: &'static str,
    service: &'static str,
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    face: &'static str,
    service: &'static str,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl Metrics {
    /// With this crate's metrics, documented in their help texts.
    pub fn new() -> Self {
        let inner = Inner {
            registry: Mutex::new(Registry::default()),
            calls: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            refused: Family::default(),
            calls_in_hand: Gauge::default(),
            body_bytes_in_hand: Gauge::default(),
            connections: Gauge::default(),
            connections_cut: Family::default(),
        };
        {
            let mut registry = inner.registry.lock();
            // A counter's name gets its `_total` when it is written.
            registry.register("windfall_edge_calls", "Calls answered, by code", inner.calls.clone());
            registry.register_with_unit(
                "windfall_edge_call",
                "Time from the head of a call to the head of its answer",
                Unit::Seconds,
                inner.latency.clone(),
            );
            registry.register(
                "windfall_edge_refused_calls",
                "Calls that did not reach their service",
                inner.refused.clone(),
            );
            registry.register("windfall_edge_calls_in_hand", "Calls in hand", inner.calls_in_hand.clone());
            registry.register_with_unit(
                "windfall_edge_bodies_in_hand",
                "Request bodies in memory",
                Unit::Bytes,
                inner.body_bytes_in_hand.clone(),
            );
            registry.register("windfall_edge_connections", "Connections open", inner.connections.clone());
            registry.register(
                "windfall_edge_cut_connections",
                "Connections that were cut off",
                inner.connections_cut.clone(),
            );
        }
        Self(Arc::new(inner))
    }

    /// Adds a metric that is read at each scrape. The reading must not wait: it copies numbers. `name` is a whole
    /// name, `windfall_…`, that ends in its unit (`_seconds`, `_bytes`, `_records`), a counter's in `_total` after it;
    /// register each once.
    pub fn register(
        &self,
        name: &str,
        help: &str,
        kind: Kind,
        read: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) {
        let name = match kind {
            Kind::Counter => name.strip_suffix("_total").unwrap_or(name),
            Kind::Gauge => name,
        };
        let reading = Reading { name: name.to_owned(), help: help.to_owned(), kind, read: Box::new(read) };
        self.0.registry.lock().register_collector(Box::new(reading));
    }

    /// Adds a collector of `prometheus-client`: histograms, for instance.
    pub fn register_collector(&self, collector: Box<dyn Collector>) {
        self.0.registry.lock().register_collector(collector);
    }

    /// What a scrape gets: OpenMetrics text 1.0.
    ///
    /// # Errors
    /// A collector that was added failed.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0.registry.lock())?;
        Ok(text)
    }

    pub(crate) fn response(&self) -> Result<Response<Body>, fmt::Error> {
        let mut response = Response::new(Body::new(Full::from(self.text()?)));
        let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    pub(crate) fn answered(
        &self,
        face: Face,
        (service, method): (&'static str, &'static str),
        code: &'static str,
        took: Duration,
    ) {
        let face = face.name();
        self.0.calls.get_or_create(&CallLabels { face, service, method, code }).inc();
        self.0.latency.get_or_create(&MethodLabels { face, service, method }).observe(took.as_secs_f64());
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.0.refused.get_or_create(&ReasonLabels { reason: reason.name() }).inc();
    }

    pub(crate) fn connection_cut(&self, reason: &'static str) {
        self.0.connections_cut.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn calls_in_hand(&self) -> &Gauge {
        &self.0.calls_in_hand
    }

    pub(crate) fn body_bytes_in_hand(&self) -> &Gauge {
        &self.0.body_bytes_in_hand
    }

    pub(crate) fn connections(&self) -> &Gauge {
        &self.0.connections
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

struct Reading {
    name: String,
    help: String,
    kind: Kind,
    read: Box<dyn Fn() -> Vec<Sample> + Send + Sync>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let samples = (self.read)();
        if samples.is_empty() {
            return Ok(());
        }
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let mut metric = encoder.encode_descriptor(&self.name, &self.help, None, kind)?;
        for Sample { labels, value } in &samples {
            let mut encoder = metric.encode_family(labels)?;
            match self.kind {
                Kind::Counter => encoder.encode_counter(value, None::<&Exemplar<NoLabelSet, f64>>)?,
                Kind::Gauge => encoder.encode_gauge(value)?,
            }
        }
        Ok(())
    }
}
