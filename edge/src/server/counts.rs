//! Who counts the connections of a port.

use super::tls::Tls;
use crate::metrics::Metrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::metrics::{Metric, MetricKind};

/// What counts connections: the metrics of the services' port, or the counts of another port.
#[derive(Clone)]
pub(super) enum Counts {
    Server(Metrics),
    Listener(Arc<ListenerCounts>),
}

/// What a [`Listener`](super::Listener) counts.
pub struct ListenerCounts {
    open: AtomicU64,
    newcomers: AtomicU64,
    /// By reason; there are about a dozen.
    cut: Mutex<BTreeMap<&'static str, u64>>,
    tls: Option<Arc<Tls>>,
}

impl Counts {
    pub(super) fn opened(&self) {
        match self {
            Self::Server(metrics) => {
                metrics.connections().inc();
            }
            Self::Listener(counts) => {
                counts.open.fetch_add(1, Relaxed);
            }
        }
    }

    pub(super) fn closed(&self) {
        match self {
            Self::Server(metrics) => {
                metrics.connections().dec();
            }
            Self::Listener(counts) => {
                counts.open.fetch_sub(1, Relaxed);
            }
        }
    }

    pub(super) fn cut(&self, why: &'static str) {
        match self {
            Self::Server(metrics) => metrics.connection_cut(why),
            Self::Listener(counts) => *counts.cut.lock().entry(why).or_default() += 1,
        }
    }

    pub(super) fn newcomers(&self, count: usize) {
        match self {
            Self::Server(metrics) => {
                metrics.newcomers().set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            Self::Listener(counts) => counts.newcomers.store(count as u64, Relaxed),
        }
    }
}

impl ListenerCounts {
    /// What it exports; whoever exports it says by a label which listener it is.
    pub const METRICS: &'static [Metric<Self>] = &[
        Metric {
            name: "windfall_listener_connections",
            help: "Connections open on a port beside that of the services",
            kind: MetricKind::Gauge,
            labels: &[],
            read: |counts, each| each(&[], counts.open.load(Relaxed)),
        },
        Metric {
            name: "windfall_listener_unauthenticated_connections",
            help: "Connections of such a port on which no call has been authenticated yet",
            kind: MetricKind::Gauge,
            labels: &[],
            read: |counts, each| each(&[], counts.newcomers.load(Relaxed)),
        },
        Metric {
            name: "windfall_listener_cut_connections_total",
            help: "Connections of such a port that the process ended, by reason",
            kind: MetricKind::Counter,
            labels: &["reason"],
            read: |counts, each| counts.cut().into_iter().for_each(|(why, count)| each(&[why], count)),
        },
        Metric {
            name: "windfall_listener_certificates_refused_total",
            help: "Renewed certificates of such a port that cannot be used; the last good ones stay",
            kind: MetricKind::Counter,
            labels: &[],
            read: |counts, each| counts.tls.iter().for_each(|tls| each(&[], tls.refused())),
        },
    ];

    pub(super) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { open: AtomicU64::new(0), newcomers: AtomicU64::new(0), cut: Mutex::default(), tls }
    }

    /// The connections that it ended, by reason.
    pub fn cut(&self) -> BTreeMap<&'static str, u64> {
        self.cut.lock().clone()
    }
}

impl fmt::Debug for ListenerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerCounts")
            .field("open", &self.open)
            .field("newcomers", &self.newcomers)
            .field("cut", &self.cut())
            .finish_non_exhaustive()
    }
}
