//! Exports the counters of a server's parts.

use super::tls::Tls;
use crate::access::AccessSource;
use crate::metrics::Metrics;
use std::sync::Arc;
use windfall_contract::metrics::{Metric, MetricKind};

const ACCESS: &[Metric<AccessSource>] = &[
    Metric {
        name: "windfall_edge_access_changes_total",
        help: "Versions of the access file that came into force",
        kind: MetricKind::Counter,
        labels: &[],
        read: |access, each| each(&[], access.changes()),
    },
    Metric {
        name: "windfall_edge_access_refused_total",
        help: "Versions of the access file that were refused; the last good one stayed",
        kind: MetricKind::Counter,
        labels: &[],
        read: |access, each| each(&[], access.refused()),
    },
    Metric {
        name: "windfall_edge_user_key_fetches_total",
        help: "Fetches of the keys that user tokens are signed with, by result",
        kind: MetricKind::Counter,
        labels: &["result"],
        read: |access, each| {
            let (ok, failed) = access.user_key_fetches();
            each(&["ok"], ok);
            each(&["failed"], failed);
        },
    },
    Metric {
        name: "windfall_edge_access_version",
        help: "Always 1; the label is the start of the SHA-256 of the access file in force",
        kind: MetricKind::Gauge,
        labels: &["version"],
        read: |access, each| each(&[&access.version()], 1),
    },
];

const TLS: &[Metric<Tls>] = &[Metric {
    name: "windfall_edge_certificates_refused_total",
    help: "Renewed certificates that cannot be used; the last good ones stay",
    kind: MetricKind::Counter,
    labels: &[],
    read: |tls, each| each(&[], tls.refused()),
}];

/// Exports the counters; without TLS its metrics are described all the same, and have no values.
pub(super) fn export(metrics: &Metrics, access: &AccessSource, tls: Option<&Arc<Tls>>) {
    let (access, tls) = (access.clone(), tls.cloned());
    metrics.export(ACCESS, &[], move |each| each(&[], &access));
    metrics.export(TLS, &[], move |each| {
        if let Some(tls) = &tls {
            each(&[], tls);
        }
    });
}
