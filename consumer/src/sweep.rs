//! What time brings: deadlines, due records, bounds that follow the limits, partitions that do not move, gauges.

use crate::dispatch::{Dispatch, NS_PER_MS};
use crate::held::{Key, Place};
use crate::stats::Cause;
use windfall_contract::rules::Fuse;

const LOOK_EVERY_NS: u64 = 100 * NS_PER_MS;

impl Dispatch {
    pub fn sweep(&mut self, now_ns: u64) {
        let deadline_ns = self.pacing().deadline_ms.saturating_mul(NS_PER_MS);
        let mut write_back = now_ns.checked_sub(deadline_ns).map(|before_ns| (before_ns, Cause::Deadline));
        if let Some(drain) = &mut self.drain
            && now_ns >= drain.write_back_ns
            && !drain.has_written_back
        {
            drain.has_written_back = true;
            write_back = Some((u64::MAX, Cause::Drain));
            for key in self.room.take_all(&self.book) {
                self.send_back(key, Cause::Drain);
            }
        }
        if let Some((before_ns, cause)) = write_back {
            self.write_back_older(before_ns, cause);
        }
        while let Some(key) = self.room.pop_due(&self.book, now_ns) {
            if let Some(held) = self.book.get_mut(key) {
                held.place = Place::Gone;
            }
            self.leave_room(key, now_ns);
        }
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS {
            self.looked_ns = now_ns;
            // Frozen, the share is none for now: what waits in the lanes stays there.
            if !self.was_frozen {
                let Self { lanes, gate, rules, .. } = self;
                lanes.set_bounds(&rules.pacing, gate.limiter());
                self.trim_lanes();
            }
            self.look(now_ns);
        }
    }

    /// Head of line: records whose own work began at `before_ns` or earlier and is not finished go back, so that a
    /// stuck downstream never stalls a partition's commits. A record that is not due yet is not stuck: written back
    /// for its age it would get a new due time each time and never be granted.
    fn write_back_older(&mut self, before_ns: u64, cause: Cause) {
        let mut overdue = Vec::new();
        for own in self.partitions.all.values_mut() {
            while let Some(key) = own.oldest(&self.book) {
                if self.book.get(key).is_none_or(|held| held.since_ns > before_ns) {
                    break;
                }
                own.take_oldest();
                overdue.push(key);
            }
        }
        if overdue.is_empty() {
            return;
        }
        for key in overdue {
            if let Some(held) = self.book.get_mut(key) {
                held.overdue = true;
                self.send_back(key, cause);
            }
        }
        self.abandon_overdue_calls(cause);
    }

    /// New rules: what waits in the lane of a diverted type, or of one that is no longer known, goes back.
    pub fn flush_lanes(&mut self, now_ns: u64) {
        for at in 0..self.lanes.all.len() {
            if self.lanes.all[at].rule.is_none() {
                self.flush_lane(at, Cause::UnknownType, now_ns);
            } else if self.lanes.all[at].fuse() == Fuse::Divert {
                self.flush_lane(at, Cause::Fuse, now_ns);
            }
        }
        self.trim_lanes();
    }

    /// A limit was cut: what no longer passes within `hold_max` goes back, the last first.
    fn trim_lanes(&mut self) {
        for at in 0..self.lanes.all.len() {
            let lane = &self.lanes.all[at];
            // One record may be larger than the bound; it stays, or nothing would ever pass.
            let mut excess = lane.events.saturating_sub(lane.bound_events.max(1));
            if excess == 0 {
                continue;
            }
            let keys: Vec<Key> = lane.keys().rev().collect();
            let cause = if lane.fuse() == Fuse::Closed { Cause::Limit } else { Cause::Fuse };
            for key in keys {
                let waiting = self.book.get(key).filter(|held| held.place == Place::Lane);
                let Some(events) = waiting.map(|held| u64::from(held.uncut)) else { continue };
                if excess == 0 || excess < events && self.lanes.all[at].bound_events > 0 {
                    break;
                }
                excess = excess.saturating_sub(events);
                self.send_back(key, cause);
            }
        }
    }

    /// The watchdog, and the gauges.
    fn look(&mut self, now_ns: u64) {
        let pacing = self.pacing();
        // A record that waits for its due time holds its partition back, and is no reason for an alarm.
        let patience_ms = pacing.deadline_ms.saturating_mul(2).saturating_add(pacing.longest_delay_ms());
        let patience_ns = patience_ms.saturating_mul(NS_PER_MS);
        let (mut stuck, mut depth, mut oldest_ns) = (0, 0, now_ns);
        for (number, own) in &mut self.partitions.all {
            let progress = own.look(now_ns, patience_ns);
            if progress.newly_stuck {
                let (position, next) = (own.window.advance(), own.window.next_offset());
                tracing::warn!(topic = %self.topic, partition = number, position, next, "makes no progress");
            }
            if let Some((count, first_offset)) = progress.dropped {
                self.stats.tickets_dropped.add(count);
                tracing::error!(topic = %self.topic, partition = number, count, first_offset, "tickets dropped");
            }
            stuck += u64::from(own.is_stuck);
            depth += own.window.in_hand();
            own.compact(&self.book);
            if let Some(held) = own.oldest(&self.book).and_then(|key| self.book.get(key)) {
                oldest_ns = oldest_ns.min(held.since_ns);
            }
        }
        self.room.compact(&self.book);
        self.lanes.all.iter_mut().for_each(|lane| lane.compact(&self.book));
        let stats = &self.stats;
        stats.stuck_partitions.set(stuck);
        stats.window_depth.set(depth);
        stats.oldest_ms.set((now_ns - oldest_ns) / NS_PER_MS);
        stats.records_in_hand.set(self.book.len() as u64);
        stats.delayed.set(self.room.records as u64);
        stats.events_granting.set(self.lanes.all.iter().map(|lane| lane.granting).sum());
        for lane in &self.lanes.all {
            lane.stats.lane_events.set(lane.events);
        }
    }
}
