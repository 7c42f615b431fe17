//! The metrics of cron and one-off jobs.

use crate::wiring::ReadXxlStats;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::metrics::{Metric, MetricKind};
use windfall_edge::prometheus_client::collector::Collector;
use windfall_edge::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use windfall_edge::prometheus_client::metrics::MetricType;
use windfall_edge::{Described, Metrics};
use windfall_jobs::xxl::ServerStats;
use windfall_jobs::{JobsStats, LATENESS_BUCKETS_MS};

const LATENESS: &str = "windfall_jobs_start_lateness_seconds";
const LATENESS_HELP: &str = "Time from when an occurrence was due to when its run was started";

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&JobsStats, &mut windfall_contract::metrics::Each<'_>),
) -> Metric<JobsStats> {
    Metric { name, help, kind: MetricKind::Counter, labels: &[], read }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&JobsStats, &mut windfall_contract::metrics::Each<'_>),
) -> Metric<JobsStats> {
    Metric { name, help, kind: MetricKind::Gauge, labels: &[], read }
}

const METRICS: &[Metric<JobsStats>] = &[
    counter("windfall_jobs_started_total", "Scheduled occurrences that were started", |jobs, each| {
        each(&[], jobs.started.get());
    }),
    counter(
        "windfall_jobs_left_out_total",
        "Occurrences that the misfire strategy of their job left out",
        |jobs, each| each(&[], jobs.left_out.get()),
    ),
    counter(
        "windfall_jobs_stale_total",
        "Due tasks of jobs that had been changed, paused or removed, or of occurrences that had been decided",
        |jobs, each| each(&[], jobs.stale.get()),
    ),
    counter("windfall_jobs_sent_total", "Runs that were sent to an executor or a target", |jobs, each| {
        each(&[], jobs.sent.get());
    }),
    counter(
        "windfall_jobs_sent_again_total",
        "Runs that were sent again because nobody knew whether they had been",
        |jobs, each| each(&[], jobs.sent_again.get()),
    ),
    counter("windfall_jobs_retried_total", "Attempts that came after a failed one", |jobs, each| {
        each(&[], jobs.retried.get());
    }),
    Metric {
        name: "windfall_jobs_ended_total",
        help: "Runs that ended, by how",
        kind: MetricKind::Counter,
        labels: &["outcome"],
        read: |jobs, each| {
            each(&["succeeded"], jobs.succeeded.get());
            each(&["failed"], jobs.failed.get());
            each(&["timed_out"], jobs.timed_out.get());
            each(&["missed"], jobs.missed.get());
            each(&["killed"], jobs.killed.get());
        },
    },
    counter(
        "windfall_jobs_reports_unknown_total",
        "Reports about runs that are not known, or were over",
        |jobs, each| each(&[], jobs.reports_unknown.get()),
    ),
    counter(
        "windfall_jobs_overdue_found_total",
        "Occurrences whose due task was missing, and that were found by the look for overdue ones",
        |jobs, each| each(&[], jobs.overdue_found.get()),
    ),
    counter(
        "windfall_jobs_children_lost_total",
        "Children of runs that were not run: there is no such job, or it could not be started for a day",
        |jobs, each| each(&[], jobs.children_lost.get()),
    ),
    counter(
        "windfall_jobs_store_errors_total",
        "Calls of the stores that failed, and were made again",
        |jobs, each| each(&[], jobs.store_failed.get()),
    ),
    counter(
        "windfall_jobs_panics_total",
        "Looks, calls and notes of runs that ended by a panic",
        |jobs, each| each(&[], jobs.panics.get()),
    ),
    counter(
        "windfall_jobs_unreadable_total",
        "Entries of jobs that cannot be read, each time that one is come upon",
        |jobs, each| each(&[], jobs.unreadable.get()),
    ),
    gauge(
        "windfall_jobs_executors",
        "Executors that are registered, as this process has read it",
        |jobs, each| each(&[], jobs.executors.get()),
    ),
    gauge("windfall_jobs_waiting_runs", "Runs that wait in this process to be sent", |jobs, each| {
        each(&[], jobs.waiting.get());
    }),
];

const XXL_METRICS: &[Metric<ServerStats>] = &[
    Metric {
        name: "windfall_jobs_xxl_calls_total",
        help: "Calls of executors that speak the protocol of XXL-JOB, by what became of them",
        kind: MetricKind::Counter,
        labels: &["answer"],
        read: |xxl, each| {
            each(&["registered"], xxl.registrations);
            each(&["removed"], xxl.removals);
            each(&["reported"], xxl.reports);
            each(&["wrong_token"], xxl.wrong_tokens);
            each(&["bad"], xxl.bad_calls);
            each(&["failed"], xxl.failed_calls);
        },
    },
    Metric {
        name: "windfall_jobs_xxl_results_total",
        help: "Results of runs that executors of XXL-JOB have reported, repeated ones included",
        kind: MetricKind::Counter,
        labels: &[],
        read: |xxl, each| each(&[], xxl.results),
    },
];

/// The jobs of a process, if it runs any.
pub type Jobs = Option<Arc<JobsStats>>;

pub(super) fn export(metrics: &Metrics, jobs: &Jobs, xxl: &Option<ReadXxlStats>) {
    let own = xxl.clone();
    metrics.export(XXL_METRICS, &[], move |each| own.iter().for_each(|read| each(&[], &read())));
    let own = jobs.clone();
    metrics.export(METRICS, &[], move |each| own.iter().for_each(|jobs| each(&[], jobs.as_ref())));
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
