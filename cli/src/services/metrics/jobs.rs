//! The metrics of cron and one-off jobs.

use crate::wiring::ReadXxlStats;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Described, Metrics};
use windfall_jobs::xxl::ServerStats;
use windfall_jobs::{JobsStats, LATENESS_BUCKETS_MS};

const LATENESS: &str = "windfall_jobs_start_lateness_seconds";
const LATENESS_HELP: &str = "Time from when an occurrence was due to when the first call for its run began";

/// The jobs of a process, if it runs any.
pub type Jobs = Option<Arc<JobsStats>>;

pub(super) fn export(metrics: &Metrics, jobs: &Jobs, xxl: &Option<ReadXxlStats>) {
    let own = xxl.clone();
    metrics.export(ServerStats::METRICS, &[], move |each| own.iter().for_each(|read| each(&[], &read())));
    let own = jobs.clone();
    metrics.export(JobsStats::METRICS, &[], move |each| own.iter().for_each(|jobs| each(&[], jobs.as_ref())));
    let described = Described {
        name: LATENESS.into(),
        kind: "histogram",
        labels: Vec::new(),
        help: LATENESS_HELP.into(),
    };
    metrics.register_collector(described, Box::new(Lateness(jobs.clone())));
}

/// A histogram of how late runs are started.
struct Lateness(Jobs);

impl fmt::Debug for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LATENESS)
    }
}

impl Collector for Lateness {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(jobs) = &self.0 else { return Ok(()) };
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
        let ends = LATENESS_BUCKETS_MS.iter().map(|end_ms| seconds(*end_ms)).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> =
            ends.zip(jobs.lateness.iter().map(windfall_jobs::Count::get)).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = seconds(jobs.lateness_sum_ms.get());
        encoder
            .encode_descriptor(LATENESS, LATENESS_HELP, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
