//! The metrics of the process itself: what it lacks, and what of it has panicked.

use crate::wiring::Tasks;
use windfall_contract::metrics::{Metric, MetricKind};
use windfall_edge::Health;

/// The metrics of the parts that the process works with.
pub const PARTS: &[Metric<Health>] = &[Metric {
    name: "windfall_part_ready",
    help: "1 while the process can reach a part that it works with, 0 while the part is missing",
    kind: MetricKind::Gauge,
    labels: &["part"],
    read: |health, each| {
        health.parts().iter().for_each(|(part, is_there)| each(&[part], u64::from(*is_there)));
    },
}];

/// The metrics of its long-lived tasks.
pub const TASKS: &[Metric<Tasks>] = &[Metric {
    name: "windfall_task_panics_total",
    help: "Panics of a long-lived task of the process, each of which started it again",
    kind: MetricKind::Counter,
    labels: &["task"],
    read: |tasks, each| tasks.panics().iter().for_each(|(task, panics)| each(&[task], *panics)),
}];
