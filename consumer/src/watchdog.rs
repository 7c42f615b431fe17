//! The watchdog, and the gauges.

use crate::flow::Flow;
use crate::partitions::Overview;
use crate::units::NS_PER_MS;

/// Reports partitions that make no progress and tickets that were dropped, and sets the gauges of what is in flight.
pub(crate) fn look(flow: &mut Flow, now_ns: u64) {
    let pacing = &flow.rules.pacing;
    // A record that waits for its due time holds its partition back, and is no reason for an alarm.
    let patience_ms = pacing.deadline_ms.saturating_mul(2).saturating_add(pacing.longest_delay_ms());
    let overview = flow.partitions.look(&flow.table, patience_ms.saturating_mul(NS_PER_MS), now_ns);
    report(flow, &overview);
    flow.delay_queue.compact(&flow.table);
    flow.hand_over.compact(&flow.table, flow.delay_queue.len());
    flow.lanes.compact(&flow.table);
    let stats = &flow.stats;
    stats.stuck_partitions.set(overview.stuck);
    stats.window_depth.set(overview.depth);
    let oldest_ns = overview.oldest_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    stats.oldest_ms.set(oldest_ns / NS_PER_MS);
    stats.records_in_flight.set(flow.table.len() as u64);
    stats.delayed.set(flow.delay_queue.len() as u64);
    stats.waiting_for_key.set(flow.late_keys.len() as u64);
    stats.waiting_for_hand_over.set(flow.hand_over.len() as u64);
    stats.events_granting.set(flow.lanes.iter().map(|lane| lane.granting).sum());
    for lane in flow.lanes.iter() {
        lane.stats.lane_events.set(lane.waiting_events());
        let oldest_ns =
            lane.oldest_since_ns(&flow.table).map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        lane.stats.oldest_ms.set(oldest_ns / NS_PER_MS);
        lane.stats.breaker_open.set(u64::from(lane.health.is_open()));
    }
}

fn report(flow: &Flow, overview: &Overview) {
    for (partition, progress) in &overview.notable {
        if let Some((position, next)) = progress.newly_stuck {
            tracing::warn!(topic = %flow.topic, partition, position, next, "the partition makes no progress");
        }
        if let Some((count, first_offset)) = progress.dropped {
            flow.stats.tickets_dropped.add(count);
            tracing::error!(
                topic = %flow.topic, partition, count, first_offset, "tickets were dropped unfinished"
            );
        }
    }
}
