//! The metrics of task queues.

use std::fmt;
use std::sync::Arc;
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Described, Metrics};
use windfall_task_queue::{PoolStats, QueueCounters, QueueGauges, QueueStats, WAIT_BUCKETS_MS, WaitTimes};

/// The pools of a process.
pub type Pools = Vec<(String, Arc<QueueCounters>)>;

const WAIT: &str = "windfall_taskqueue_wait_seconds";
const WAIT_HELP: &str = "Time from the publishing of a job to each time that it was taken";
const LABELS: &[&str] = &["pool", "namespace", "queue"];

pub(super) fn export(metrics: &Metrics, pools: &Pools) {
    let own = pools.clone();
    metrics.export(QueueStats::METRICS, LABELS, move |each| {
        for (pool, counters) in &own {
            counters.each_queue(|namespace, queue, stats, _| each(&[pool, namespace, queue], stats));
        }
    });
    let own = pools.clone();
    metrics.export(QueueGauges::METRICS, LABELS, move |each| {
        for (pool, counters) in &own {
            counters.each_waiting(|namespace, queue, gauges| each(&[pool, namespace, queue], gauges));
        }
    });
    let own = pools.clone();
    metrics.export(PoolStats::METRICS, &["pool"], move |each| {
        own.iter().for_each(|(pool, counters)| each(&[pool], &counters.pool()));
    });
    let described =
        Described { name: WAIT.into(), kind: "histogram", labels: LABELS.to_vec(), help: WAIT_HELP.into() };
    metrics.register_collector(described, Box::new(WaitHistograms(pools.clone())));
}

/// A histogram for each queue.
struct WaitHistograms(Pools);

impl fmt::Debug for WaitHistograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WAIT)
    }
}

impl Collector for WaitHistograms {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut all: Vec<([(&str, String); 3], WaitTimes)> = Vec::new();
        for (pool, counters) in &self.0 {
            counters.each_queue(|namespace, queue, _, times| {
                let labels =
                    [("pool", pool), ("namespace", &namespace.to_owned()), ("queue", &queue.to_owned())];
                all.push((labels.map(|(name, value)| (name, value.clone())), *times));
            });
        }
        if all.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(WAIT, WAIT_HELP, None, MetricType::Histogram)?;
        for (labels, WaitTimes { buckets, sum_ms }) in &all {
            let ends = WAIT_BUCKETS_MS.iter().map(|end_ms| seconds(*end_ms)).chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = ends.zip(buckets.iter().copied()).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            family.encode_family(labels)?.encode_histogram::<NoLabelSet>(
                seconds(*sum_ms),
                count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
