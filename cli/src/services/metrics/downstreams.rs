//! The numbers of downstream systems.

use super::sample;
use crate::services::parts::Parts;
use std::fmt;
use std::sync::Arc;
use windfall_connectors::{LATENCY_BOUNDS_MS, Snapshot};
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Kind, Metrics};

type Read = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// Registers what connectors count.
pub fn register(metrics: &Metrics, parts: &Parts) {
    if parts.connectors.is_empty() {
        return;
    }
    count(
        metrics,
        parts.connectors.iter().map(|wired| (wired.name.clone(), Arc::clone(&wired.snapshot))).collect(),
    );
}

fn count(metrics: &Metrics, all: Vec<(String, Read)>) {
    let own = all.clone();
    metrics.register(
        "windfall_connector_answers_total",
        "Calls of downstream systems, by answer",
        Kind::Counter,
        move || by(&own, "answer", |snapshot| snapshot.answers().to_vec()),
    );
    let own = all.clone();
    metrics.register(
        "windfall_connector_unknown_total",
        "Calls that may have paid, by why nobody knows",
        Kind::Counter,
        move || {
            by(&own, "cause", |snapshot| {
                vec![
                    ("timeout", snapshot.timeouts),
                    ("broken", snapshot.broken),
                    ("nonsense", snapshot.nonsense),
                    ("given_up", snapshot.given_up),
                ]
            })
        },
    );
    metrics.register_collector(Box::new(Latencies(all)));
}

fn by(
    all: &[(String, Read)],
    label: &'static str,
    pick: impl Fn(&Snapshot) -> Vec<(&'static str, u64)>,
) -> Vec<windfall_edge::Sample> {
    let of_one = |(name, read): &(String, Read)| {
        let picked = pick(&read());
        let name = name.clone();
        picked
            .into_iter()
            .map(move |(of, value)| sample([("connector", name.clone()), (label, of.to_owned())], value))
    };
    all.iter().flat_map(of_one).collect()
}

struct Latencies(Vec<(String, Read)>);

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Collector for Latencies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "windfall_connector_seconds",
            "How long calls of downstream systems took",
            None,
            MetricType::Histogram,
        )?;
        for (name, read) in &self.0 {
            let latency = read().latency;
            let bounds = LATENCY_BOUNDS_MS.iter().map(|ms| seconds(ms * 1_000)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(latency.buckets).collect();
            let labels = [("connector", name.as_str())];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                seconds(latency.sum_us),
                latency.count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

fn seconds(us: u64) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_connectors::Latency;

    #[test]
    fn a_scrape_has_causes_and_times() {
        let mut buckets = [0; LATENCY_BOUNDS_MS.len() + 1];
        (buckets[1], buckets[13]) = (3, 1);
        let latency = Latency { buckets, sum_us: 20_500_000, count: 4 };
        let snapshot = Snapshot { unknown: 1, nonsense: 1, latency, ..Snapshot::default() };
        let metrics = Metrics::new();
        count(&metrics, vec![("bank".into(), Arc::new(move || snapshot))]);
        let text = metrics.text().unwrap();
        for line in [
            r#"windfall_connector_unknown_total{connector="bank",cause="nonsense"} 1"#,
            r#"windfall_connector_seconds_sum{connector="bank"} 20.5"#,
            r#"windfall_connector_seconds_count{connector="bank"} 4"#,
            r#"windfall_connector_seconds_bucket{le="0.002",connector="bank"} 3"#,
            r#"windfall_connector_seconds_bucket{le="10.0",connector="bank"} 3"#,
            r#"windfall_connector_seconds_bucket{le="+Inf",connector="bank"} 4"#,
        ] {
            assert!(text.contains(line), "{line} is missing: {text}");
        }
    }
}
