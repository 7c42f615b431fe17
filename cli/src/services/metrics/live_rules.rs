//! The metrics of the live rules, which are a document and count nothing by themselves.

use windfall_config::LiveRules;
use windfall_contract::metrics::{Metric, MetricKind};

/// The metrics of the live rules.
pub const METRICS: &[Metric<LiveRules>] = &[
    Metric {
        name: "windfall_rules_version",
        help: "The version of the live rules that runs",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |live, each| each(&[], live.current().version),
    },
    Metric {
        name: "windfall_rules_offered_version",
        help: "The version of the newest live rules that the process was offered, whether it runs them or refuses them",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |live, each| each(&[], live.status().offered),
    },
    Metric {
        name: "windfall_rules_refuses",
        help: "1 while the process refuses the newest live rules that it was offered, and runs older ones",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |live, each| each(&[], u64::from(live.status().refuses.is_some())),
    },
    Metric {
        name: "windfall_rules_refused_total",
        help: "Rules documents that were refused; the last good one stayed",
        kind: MetricKind::Counter,
        labels: &[],
        read: |live, each| each(&[], live.status().refusals),
    },
    Metric {
        name: "windfall_rules_source_failures_total",
        help: "Times that the source of the rules became unreadable; the last good ones stayed",
        kind: MetricKind::Counter,
        labels: &[],
        read: |live, each| each(&[], live.status().source_failures),
    },
    Metric {
        name: "windfall_rules_staged",
        help: "1 while the process tries a staged change of the rules",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |live, each| each(&[], u64::from(live.staged_here().is_some())),
    },
    Metric {
        name: "windfall_rules_staged_given_up",
        help: "1 while a change is staged that the process has given up, or does not try since it has started anew",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |live, each| {
            let staged = live.status().staged;
            each(&[], u64::from(staged.is_some_and(|staged| staged.given_up.is_some())));
        },
    },
    Metric {
        name: "windfall_limit_rate_per_second",
        help: "What the rules let through, by bonus type; `(global)`: over all types",
        kind: MetricKind::Gauge,
        labels: &["type"],
        read: |live, each| {
            let limits = &live.current().limits;
            limits.types.iter().for_each(|(name, own)| each(&[name], own.limit.rate_per_s));
            each(&["(global)"], limits.global.rate_per_s);
        },
    },
    Metric {
        name: "windfall_fuse_state",
        help: "1 for the state that the fuse of a bonus type is in",
        kind: MetricKind::Gauge,
        labels: &["type", "state"],
        read: |live, each| {
            let types = &live.current().limits.types;
            types.iter().for_each(|(name, own)| each(&[name, &own.fuse.to_string()], 1));
        },
    },
];
