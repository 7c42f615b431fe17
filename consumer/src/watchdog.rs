//! The watchdog, and the gauges.

use crate::in_flight::InFlightTable;
use crate::lanes::Lanes;
use crate::partitions::Overview;
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;

/// How many records are in flight, and where they wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub in_flight: usize,
    pub delayed: usize,
    pub for_key: usize,
    pub for_hand_over: usize,
}

/// Reports partitions that make no progress and tickets that were dropped.
pub(crate) fn report(topic: &str, overview: &Overview, stats: &ConsumerStats) {
    for (partition, progress) in &overview.notable {
        if let Some((position, next)) = progress.newly_stuck {
            tracing::warn!(%topic, partition, position, next, "the partition makes no progress");
        }
        if let Some((count, first_offset)) = progress.dropped {
            stats.tickets_dropped.add(count);
            tracing::error!(%topic, partition, count, first_offset, "tickets were dropped unfinished");
        }
    }
}

/// Sets the gauges of what is in flight.
pub(crate) fn show(overview: &Overview, waiting: Waiting, stats: &ConsumerStats, now_ns: u64) {
    stats.stuck_partitions.set(overview.stuck);
    stats.window_depth.set(overview.depth);
    stats.oldest_ms.set(age_ms(overview.oldest_since_ns, now_ns));
    stats.records_in_flight.set(waiting.in_flight as u64);
    stats.delayed.set(waiting.delayed as u64);
    stats.waiting_for_key.set(waiting.for_key as u64);
    stats.waiting_for_hand_over.set(waiting.for_hand_over as u64);
}

/// Sets the gauges of the lanes.
pub(crate) fn show_lanes(lanes: &Lanes, table: &InFlightTable, stats: &ConsumerStats, now_ns: u64) {
    stats.events_granting.set(lanes.iter().map(|lane| lane.granting()).sum());
    for lane in lanes.iter() {
        lane.stats.lane_events.set(lane.waiting_events());
        lane.stats.oldest_ms.set(age_ms(lane.oldest_since_ns(table), now_ns));
        lane.stats.breaker_open.set(u64::from(lane.health().is_open()));
    }
}

fn age_ms(since_ns: Option<u64>, now_ns: u64) -> u64 {
    since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns)) / NS_PER_MS
}
