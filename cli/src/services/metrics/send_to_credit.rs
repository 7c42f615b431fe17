//! The histogram of the time from the send of a reward to its credit, which a table cannot say.

use std::fmt;
use std::time::Duration;
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Described, Metrics};
use windfall_reward_service::{RewardHandle, SEND_TO_CREDIT_BOUNDS_MS, SendToCredit};

const NAME: &str = "windfall_send_to_credit_seconds";
const HELP: &str = "Time from the send of a reward, or from when its sender wants it at the earliest, to its credit; each order counts once";

/// Exports the times of this reward service, where the process has one.
pub fn export(metrics: &Metrics, rewards: Option<RewardHandle>) {
    let described =
        Described { name: NAME.to_owned(), kind: "histogram", labels: vec!["type"], help: HELP.to_owned() };
    let times = move || -> Vec<(String, SendToCredit)> {
        let types = rewards.iter().flat_map(|rewards| rewards.stats().types);
        types.map(|(name, stats)| (name, stats.send_to_credit)).collect()
    };
    metrics.register_collector(described, Box::new(Times(Box::new(times))));
}

/// Reads the times of each bonus type.
struct Times(Box<dyn Fn() -> Vec<(String, SendToCredit)> + Send + Sync>);

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Times")
    }
}

impl Collector for Times {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Types of which nothing was credited have no time.
        let all: Vec<_> = (self.0)().into_iter().filter(|(_, times)| times.count() > 0).collect();
        if all.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(NAME, HELP, None, MetricType::Histogram)?;
        for (name, times) in &all {
            let bounds = SEND_TO_CREDIT_BOUNDS_MS.iter().map(|ms| seconds(*ms)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(times.buckets).collect();
            let labels = [("type", name.as_str())];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                seconds(times.sum_ms),
                times.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_has_the_times_of_types_that_were_credited() {
        let mut badge = SendToCredit { sum_ms: 4_020, ..SendToCredit::default() };
        (badge.buckets[4], badge.buckets[10]) = (2, 1);
        let all = vec![("badge".to_owned(), badge), ("cash".to_owned(), SendToCredit::default())];
        let metrics = Metrics::new();
        let described =
            Described { name: NAME.into(), kind: "histogram", labels: vec!["type"], help: HELP.into() };
        metrics.register_collector(described, Box::new(Times(Box::new(move || all.clone()))));
        let text = metrics.text().unwrap();
        for line in [
            r#"windfall_send_to_credit_seconds_sum{type="badge"} 4.02"#,
            r#"windfall_send_to_credit_seconds_count{type="badge"} 3"#,
            r#"windfall_send_to_credit_seconds_bucket{le="0.02",type="badge"} 2"#,
            r#"windfall_send_to_credit_seconds_bucket{le="5.0",type="badge"} 3"#,
            r#"windfall_send_to_credit_seconds_bucket{le="86400.0",type="badge"} 3"#,
            r#"windfall_send_to_credit_seconds_bucket{le="+Inf",type="badge"} 3"#,
        ] {
            assert!(text.contains(line), "{line} is missing: {text}");
        }
        assert!(!text.contains("cash"), "{text}");
        // A process without a reward service shows none.
        let metrics = Metrics::new();
        export(&metrics, None);
        assert!(!metrics.text().unwrap().contains(NAME));
    }
}
