//! One registry of metrics per process, read at each scrape, with a description of everything in it.
//!
//! What other crates count is declared there, with [`windfall_contract::declare_metrics`], and exported here table by
//! table. What this crate counts is declared in [`Metrics::new`] and in `server/metrics.rs`.
//! It uses `prometheus-client`, the Prometheus project's own crate: no global registry, typed labels, and collectors
//! that are asked at scrape time, which is what components with counters of their own need. (The crate `prometheus`
//! wants a metric object to be kept up to date beside each counter.)

use crate::refusal::{Reason, Transport};
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
use windfall_contract::metrics::{Metric, MetricKind};

/// The buckets of latency histograms, in seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What is known about a registered metric: the operators' documentation is checked against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its whole name, as a scrape shows it (a histogram's without `_bucket`, `_sum` and `_count`).
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// Its help text.
    pub help: String,
}

/// Takes one `S` and the values of the labels that tell it from others of its kind.
pub type EachOf<'a, S> = dyn FnMut(&[&str], &S) + 'a;

/// The process's metrics: those of this crate, and those that others export. Cheap to clone: all clones are one.
///
/// ```
/// use windfall_edge::Metrics;
///
/// windfall_contract::declare_metrics! {
///     pub struct Lag {
///         gauge "windfall_queue_lag_records" "Records that are not fetched yet" { pub records: u64 }
///     }
/// }
///
/// let metrics = Metrics::new();
/// metrics.export(Lag::METRICS, &["topic"], |each| each(&["cash"], &Lag { records: 7 }));
/// assert!(metrics.text()?.contains("windfall_queue_lag_records{topic=\"cash\"} 7.0"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    described: Mutex<Vec<Described>>,
    calls: Family<CallLabels, Counter>,
    latency: Family<MethodLabels, Histogram, fn() -> Histogram>,
    refused: Family<ReasonLabels, Counter>,
    calls_in_flight: Gauge,
    body_bytes_in_flight: Gauge,
    connections: Gauge,
    newcomers: Gauge,
    connections_cut: Family<ReasonLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    /// The transport: operators know the label by this name.
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
    /// A registry with this crate's metrics.
    pub fn new() -> Self {
        let inner = Inner {
            registry: Mutex::new(Registry::default()),
            described: Mutex::new(Vec::new()),
            calls: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            refused: Family::default(),
            calls_in_flight: Gauge::default(),
            body_bytes_in_flight: Gauge::default(),
            connections: Gauge::default(),
            newcomers: Gauge::default(),
            connections_cut: Family::default(),
        };
        let of_call = ["face", "service", "method", "code"];
        let own = |what, labels: &[&'static str], metric: Own| inner.own(what, labels, metric);
        own(
            ("windfall_edge_calls_total", "Calls answered, by code"),
            &of_call,
            Own::new("counter", inner.calls.clone()),
        );
        own(
            ("windfall_edge_call_seconds", "Time from the head of a call to the head of its answer"),
            &of_call[..3],
            Own::new("histogram", inner.latency.clone()),
        );
        own(
            ("windfall_edge_refused_calls_total", "Calls that did not reach their service, by reason"),
            &["reason"],
            Own::new("counter", inner.refused.clone()),
        );
        own(
            ("windfall_edge_calls_in_hand", "Calls in flight"),
            &[],
            Own::new("gauge", inner.calls_in_flight.clone()),
        );
        own(
            ("windfall_edge_bodies_in_hand_bytes", "Request bodies in memory"),
            &[],
            Own::new("gauge", inner.body_bytes_in_flight.clone()),
        );
        own(
            ("windfall_edge_connections", "Connections open"),
            &[],
            Own::new("gauge", inner.connections.clone()),
        );
        own(
            (
                "windfall_edge_unauthenticated_connections",
                "Connections open on which no call has been authenticated yet",
            ),
            &[],
            Own::new("gauge", inner.newcomers.clone()),
        );
        own(
            ("windfall_edge_cut_connections_total", "Connections that the server ended, by reason"),
            &["reason"],
            Own::new("counter", inner.connections_cut.clone()),
        );
        Self(Arc::new(inner))
    }

    /// Exports a whole table: `source` hands over every `S` that there is at the time of a scrape, with the values of
    /// the labels `outer`. It must not wait: it copies numbers. Export each table once.
    pub fn export<S: ?Sized + 'static>(
        &self,
        table: &'static [Metric<S>],
        outer: &'static [&'static str],
        source: impl Fn(&mut EachOf<'_, S>) + Send + Sync + 'static,
    ) {
        let described = table.iter().map(|metric| Described {
            name: metric.name.to_owned(),
            kind: kind_name(metric.kind),
            labels: outer.iter().chain(metric.labels).copied().collect(),
            help: metric.help.to_owned(),
        });
        self.0.described.lock().extend(described);
        let exported = Exported { table, outer, source: Box::new(source) };
        self.0.registry.lock().register_collector(Box::new(exported));
    }

    /// Adds a collector of `prometheus-client`, for what a table cannot say: histograms, for instance.
    pub fn register_collector(&self, described: Described, collector: Box<dyn Collector>) {
        self.0.described.lock().push(described);
        self.0.registry.lock().register_collector(collector);
    }

    /// Everything that a scrape can show, in the order in which it was registered.
    pub fn described(&self) -> Vec<Described> {
        self.0.described.lock().clone()
    }

    /// The answer to a scrape: OpenMetrics text 1.0.
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
        transport: Transport,
        (service, method): (&'static str, &'static str),
        code: &'static str,
        took: Duration,
    ) {
        let face = transport.name();
        self.0.calls.get_or_create(&CallLabels { face, service, method, code }).inc();
        self.0.latency.get_or_create(&MethodLabels { face, service, method }).observe(took.as_secs_f64());
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.0.refused.get_or_create(&ReasonLabels { reason: reason.name() }).inc();
    }

    pub(crate) fn connection_cut(&self, reason: &'static str) {
        self.0.connections_cut.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn calls_in_flight(&self) -> &Gauge {
        &self.0.calls_in_flight
    }

    pub(crate) fn body_bytes_in_flight(&self) -> &Gauge {
        &self.0.body_bytes_in_flight
    }

    pub(crate) fn connections(&self) -> &Gauge {
        &self.0.connections
    }

    pub(crate) fn newcomers(&self) -> &Gauge {
        &self.0.newcomers
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

/// Puts a metric of this name and help into the registry.
type Register = Box<dyn FnOnce(&mut Registry, &str, &str)>;

/// Hands over every `S` that there is.
type Source<S> = Box<dyn Fn(&mut EachOf<'_, S>) + Send + Sync>;

/// A metric of this crate that is being registered.
struct Own {
    kind: &'static str,
    register: Register,
}

impl Own {
    fn new(kind: &'static str, metric: impl prometheus_client::registry::Metric) -> Self {
        let register = |registry: &mut Registry, name: &str, help: &str| {
            let named = [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)].into_iter();
            match named.filter_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, unit))).next() {
                Some((name, unit)) => registry.register_with_unit(name, help, unit, metric),
                None => registry.register(name, help, metric),
            }
        };
        Self { kind, register: Box::new(register) }
    }
}

impl Inner {
    fn own(&self, (name, help): (&str, &str), labels: &[&'static str], own: Own) {
        (own.register)(&mut self.registry.lock(), plain_name(name), help);
        let (name, help) = (name.to_owned(), help.to_owned());
        self.described.lock().push(Described { name, kind: own.kind, labels: labels.to_vec(), help });
    }
}

/// A metric's name without `_total`, which the exporter appends to a counter by itself.
fn plain_name(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

const fn kind_name(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    }
}

/// A table, and where its values are read.
struct Exported<S: ?Sized + 'static> {
    table: &'static [Metric<S>],
    outer: &'static [&'static str],
    source: Source<S>,
}

/// One sample of a metric: the names and values of its labels, and the number.
type Sample = (Vec<(&'static str, String)>, u64);

impl<S: ?Sized> Exported<S> {
    /// The samples of each metric, from one reading of the source.
    fn read(&self) -> Vec<Vec<Sample>> {
        let mut samples: Vec<Vec<Sample>> = self.table.iter().map(|_| Vec::new()).collect();
        (self.source)(&mut |outer, stats| {
            for (metric, samples) in self.table.iter().zip(&mut samples) {
                (metric.read)(stats, &mut |own, value| {
                    let names = self.outer.iter().chain(metric.labels).copied();
                    let values = outer.iter().chain(own).map(|&value| value.to_owned());
                    debug_assert_eq!(outer.len() + own.len(), self.outer.len() + metric.labels.len());
                    samples.push((names.zip(values).collect(), value));
                });
            }
        });
        samples
    }
}

impl<S: ?Sized> fmt::Debug for Exported<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.table.iter().map(|metric| metric.name)).finish()
    }
}

impl<S: ?Sized> Collector for Exported<S> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (metric, samples) in self.table.iter().zip(self.read()) {
            if samples.is_empty() {
                continue;
            }
            let (name, kind) = match metric.kind {
                MetricKind::Counter => (plain_name(metric.name), MetricType::Counter),
                MetricKind::Gauge => (metric.name, MetricType::Gauge),
            };
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for (labels, value) in &samples {
                let mut encoder = family.encode_family(labels)?;
                // Beyond 2^53 a scrape is off by one in 10^16.
                #[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
                let value = *value as f64;
                match metric.kind {
                    MetricKind::Counter => {
                        encoder.encode_counter(&value, None::<&Exemplar<NoLabelSet, f64>>)?
                    }
                    MetricKind::Gauge => encoder.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Transport;

    #[test]
    fn a_scrape_shows_this_crates_metrics_as_they_are_described() {
        let metrics = Metrics::new();
        metrics.answered(Transport::Http, ("Send", "SendBonus"), "OK", Duration::from_millis(3));
        metrics.refused(Reason::NoRoute);
        metrics.connection_cut("too_many");
        let text = metrics.text().unwrap();
        for Described { name, kind, labels, help } in metrics.described() {
            let plain = plain_name(&name);
            assert!(text.contains(&format!("# TYPE {plain} {kind}\n")), "{name} is no {kind}: {text}");
            assert!(text.contains(&format!("# HELP {plain} {help}.\n")), "{name} has another help: {text}");
            let sample = text.lines().find(|line| line.starts_with(&name)).unwrap();
            let shown = sample.split_once('{').map_or("", |(_, rest)| rest);
            let shown = shown.split(',').filter_map(|label| Some(label.split_once('=')?.0));
            let shown: Vec<&str> = shown.filter(|label| *label != "le").collect();
            assert_eq!(shown, labels, "{name}");
        }
    }
}
