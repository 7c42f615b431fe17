//! The metrics of downstream systems: a table, and a histogram, which a table cannot say.

use std::fmt;
use std::sync::Arc;
use windfall_connectors::{LATENCY_BOUNDS_MS, Snapshot};
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Described, Metrics};

/// Reads what one connector has counted.
pub type ReadSnapshot = Arc<dyn Fn() -> Snapshot + Send + Sync>;

const LATENCY: &str = "windfall_connector_seconds";
const LATENCY_HELP: &str = "How long calls of downstream systems took";

/// Exports what these connectors count, by their names.
pub fn export(metrics: &Metrics, all: Vec<(String, ReadSnapshot)>) {
    let own = all.clone();
    metrics.export(Snapshot::METRICS, &["connector"], move |each| {
        own.iter().for_each(|(name, read)| each(&[name], &read()));
    });
    let described = Described {
        name: LATENCY.to_owned(),
        kind: "histogram",
        labels: vec!["connector"],
        help: LATENCY_HELP.to_owned(),
    };
    metrics.register_collector(described, Box::new(Latencies(all)));
}

struct Latencies(Vec<(String, ReadSnapshot)>);

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Collector for Latencies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(LATENCY, LATENCY_HELP, None, MetricType::Histogram)?;
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
        export(&metrics, vec![("bank".into(), Arc::new(move || snapshot))]);
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
