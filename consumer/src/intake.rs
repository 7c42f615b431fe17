//! What a poll brought: assignments, revocations, records.

use crate::dispatch::{Dispatch, NS_PER_MS};
use crate::held::{Held, Key, Place};
use crate::lanes::Lane;
use crate::partitions::Partition;
use crate::stats::Cause;
use crate::window::Ticket;
use windfall_contract::broker::{Acks, Change, Epoch, InRecord, Polled, Position};
use windfall_contract::rewards::Rejection;
use windfall_contract::rules::Fuse;
use windfall_proto::record;
use windfall_proto::wire::{Malformed, Reader};

/// The field of a record that holds its events.
const EVENTS_FIELD: u64 = 6;
/// A partition's intake is paused for a full lane only when this many of its latest records in a row were for it.
const RUN_TO_PAUSE: u32 = 64;
/// What a poll brings when a full lane must not hide what lies behind it.
const FETCH_RECORDS_MIN: usize = 8;
/// The first poll, when nothing is known of the records.
const FETCH_RECORDS_FIRST: usize = 64;
/// Records in hand, of whatever state, beyond which nothing is fetched.
const RECORDS_IN_HAND_MAX: usize = 1 << 18;
/// Churn that may be owed before the fetch waits.
const CHURN_AHEAD_NS: u64 = 50 * NS_PER_MS;
/// The most that the fetch waits for churn.
const CHURN_OWED_MAX_NS: u64 = 1_000 * NS_PER_MS;

/// What a record's head says, once all of the record is known to be well-formed.
struct Read {
    lane: Option<usize>,
    attempt: u32,
    failures: u32,
    not_before_ms: i64,
    count: u32,
    events_at: usize,
}

impl Dispatch {
    pub fn take_in(&mut self, polled: Polled, of: u32, now_ns: u64) {
        // I5: of a topic that has grown we own a smaller part, though nothing of ours has changed.
        if std::mem::replace(&mut self.of, of) != of {
            self.share_changed(now_ns);
        }
        for change in polled.changes {
            match change {
                Change::Assigned { partition, epoch, next_offset } => {
                    self.assigned(partition, epoch, next_offset, now_ns);
                }
                Change::Revoked { partition, epoch } => self.revoked(partition, epoch, now_ns),
            }
        }
        // After the changes, before the records: what we own counts again when we know what it is.
        self.is_frozen(now_ns);
        if !polled.records.is_empty() {
            self.recent_records = self.recent_records * 3 / 4 + polled.records.len() as u64;
            self.lanes.all.iter_mut().for_each(|lane| lane.recent_events = lane.recent_events * 3 / 4);
        }
        self.stats.records_fetched.add(polled.records.len() as u64);
        let wall_ms = self.clock.wall_ms();
        for record in polled.records {
            self.arrived(record, now_ns, wall_ms);
        }
        self.stats.records_in_hand.set(self.book.len() as u64);
    }

    fn assigned(&mut self, partition: u32, epoch: Epoch, next_offset: u64, now_ns: u64) {
        if let Some(old) = self.partitions.all.get(&partition).map(|old| old.epoch) {
            self.revoked(partition, old, now_ns);
        }
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, next_offset, "assigned");
        self.partitions.all.insert(partition, Partition::new(epoch, next_offset, now_ns));
        self.share_changed(now_ns);
    }

    /// Commits what is finished and forgets the rest: the next owner is given it again, and what we have under
    /// way for it is harmless (I1) and has no effect on any window.
    fn revoked(&mut self, partition: u32, epoch: Epoch, now_ns: u64) {
        if self.partitions.all.get(&partition).is_none_or(|own| own.epoch != epoch) {
            return;
        }
        let Some(mut own) = self.partitions.all.remove(&partition) else { return };
        self.share_changed(now_ns);
        if self.acks == Acks::Prefix {
            self.owed_commits.extend(own.commit(partition));
        }
        // The window first: from here on its tickets do nothing.
        drop(own);
        let keys: Vec<Key> = self.book.keys().collect();
        for key in keys {
            if self.book.get(key).is_some_and(|held| held.position.partition == partition) {
                self.leave_place(key);
                self.book.remove(key);
            }
        }
        self.pauses.retain(|(paused, _)| *paused != partition);
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, "revoked");
    }

    fn share_changed(&mut self, now_ns: u64) {
        self.set_owned(now_ns);
        let Self { lanes, gate, rules, .. } = self;
        lanes.set_bounds(&rules.pacing, gate.limiter());
    }

    fn arrived(&mut self, record: InRecord, now_ns: u64, wall_ms: i64) {
        let own = self.partitions.all.get_mut(&record.partition).filter(|own| own.epoch == record.epoch);
        let Some(own) = own else { return };
        let Ok(ticket) = own.window.deliver(record.offset) else {
            self.stats.not_ascending.add(1);
            return;
        };
        let read = self.read(&record.payload);
        let ticket = mark(ticket);
        let InRecord { partition, epoch, offset, .. } = record;
        let mut held = Held {
            position: Position { partition, epoch, offset },
            ticket,
            payload: record.payload,
            lane: None,
            attempt: 0,
            failures: 0,
            not_before_ms: 0,
            since_ns: now_ns,
            place: Place::Gone,
            cut_at: 0,
            uncut: 0,
            open: 1,
            overdue: false,
            outlasts_room: false,
        };
        if let Ok(read) = &read {
            held.lane = read.lane;
            (held.attempt, held.failures) = (read.attempt, read.failures);
            held.not_before_ms = read.not_before_ms;
            (held.cut_at, held.uncut, held.open) = (read.events_at, read.count, read.count);
        }
        let (lane, payload) = (held.lane, held.payload.clone());
        let key = self.book.insert(held);
        if let Some(own) = self.partitions.all.get_mut(&record.partition) {
            own.delivered(lane);
        }
        match read {
            Ok(read) => {
                self.stats.events_fetched.add(read.count.into());
                self.place(key, &read, payload.len(), now_ns, wall_ms);
            }
            Err(bad) => {
                self.stats.malformed.add(1);
                let detail = format!("record {}/{}: {bad}", record.partition, record.offset);
                self.work_begins(key, now_ns);
                self.archive.push_record(key, payload, detail);
            }
        }
    }

    /// Reads the head, and walks over all events, so that a record is granted whole or archived whole.
    fn read(&mut self, payload: &[u8]) -> Result<Read, Malformed> {
        let (head, events) = record::split(payload)?;
        for event in events {
            event?;
        }
        Ok(Read {
            lane: self.lanes.find(head.bonus_type),
            attempt: head.attempt,
            failures: head.failures,
            not_before_ms: head.not_before_ms,
            count: head.count,
            events_at: events_at(payload)?,
        })
    }

    /// Decides where a record waits. Whatever is to become of it, it does not happen before it is due: what was
    /// sent back with a delay must not spin through the queue.
    fn place(&mut self, key: Key, read: &Read, bytes: usize, now_ns: u64, wall_ms: i64) {
        if read.failures > self.pacing().max_failures {
            self.work_begins(key, now_ns);
            let rejection = if read.lane.is_some() { Rejection::MaxFailures } else { Rejection::UnknownType };
            return self.archive_events(key, rejection);
        }
        match u64::try_from(read.not_before_ms.saturating_sub(wall_ms)) {
            Ok(early_ms) if early_ms > 0 => self.enter_room(key, early_ms, read.count, bytes, now_ns),
            _ => self.is_due(key, now_ns),
        }
    }

    /// From now on the record's age counts towards the head-of-line deadline. One that is not due has no work of its
    /// own yet, so it is not stuck, however long it waits.
    fn work_begins(&mut self, key: Key, now_ns: u64) {
        let Some(held) = self.book.get_mut(key) else { return };
        held.since_ns = now_ns;
        if let Some(own) = self.partitions.all.get_mut(&held.position.partition) {
            own.work_begins(key);
        }
    }

    /// A record has waited in the delay room for as long as one may. Where its due time is still ahead it takes
    /// another trip through its queue, and keeps that due time.
    pub fn leave_room(&mut self, key: Key, now_ns: u64) {
        match self.book.get(key).map(|held| held.outlasts_room) {
            Some(true) => self.send_back(key, Cause::NotDue),
            Some(false) => self.is_due(key, now_ns),
            None => {}
        }
    }

    /// Puts a record that is due into its lane, or back to a queue where its lane does not take it.
    pub fn is_due(&mut self, key: Key, now_ns: u64) {
        self.work_begins(key, now_ns);
        let Some(held) = self.book.get_mut(key) else { return };
        held.not_before_ms = 0;
        // Rules may have changed while it waited.
        let known = held.lane.filter(|&at| self.lanes.all[at].rule.is_some());
        match known.map(|at| self.lanes.all[at].fuse()) {
            None => self.send_back(key, Cause::UnknownType),
            Some(Fuse::Divert) => self.send_back(key, Cause::Fuse),
            Some(_) => self.enter_lane(key, now_ns),
        }
    }

    fn enter_lane(&mut self, key: Key, now_ns: u64) {
        let Some(held) = self.book.get_mut(key) else { return };
        let Some(lane) = held.lane.map(|at| &mut self.lanes.all[at]) else { return };
        lane.recent_events += u64::from(held.uncut);
        if lane.has_room(held.uncut, held.payload.len()) {
            held.place = Place::Lane;
            lane.push(key, held.uncut, held.payload.len(), now_ns);
            return;
        }
        let cause = if lane.fuse() == Fuse::Closed { Cause::Limit } else { Cause::Fuse };
        self.churned(now_ns);
        self.send_back(key, cause);
    }

    /// Half of the room is for those that are due within `hold_max`.
    fn enter_room(&mut self, key: Key, early_ms: u64, count: u32, bytes: usize, now_ns: u64) {
        let pacing = self.pacing();
        let part = if early_ms <= pacing.hold_max_ms { 1 } else { 2 };
        let has_room = self.room.events + u64::from(count) <= u64::from(pacing.lane_events_max) / part
            && self.room.bytes + bytes as u64 <= pacing.lane_bytes_max / part;
        if !has_room && self.room.records > 0 {
            self.churned(now_ns);
            return self.send_back(key, Cause::NotDue);
        }
        let longest_ms = pacing.longest_delay_ms();
        if let Some(held) = self.book.get_mut(key) {
            held.place = Place::Room;
            held.outlasts_room = early_ms > longest_ms;
            let leaves_ns = now_ns.saturating_add(early_ms.min(longest_ms).saturating_mul(NS_PER_MS));
            self.room.push(leaves_ns, key, count, bytes);
        }
    }

    /// A record goes back because there is no place for it: counts against `churn_per_s`. A lane that is emptied
    /// at once does not stop the fetch for longer than `CHURN_OWED_MAX_NS`.
    pub fn churned(&mut self, now_ns: u64) {
        let each_ns = 1_000 * NS_PER_MS / self.options.churn_per_s.max(1);
        let until_ns = self.churn_until_ns.max(now_ns) + each_ns;
        self.churn_until_ns = until_ns.min(now_ns + CHURN_OWED_MAX_NS);
    }

    /// How many records the lanes can take. A lane that is a quarter of what comes, or more, counts: the fetch
    /// waits until a quarter of it is free, and brings no more than fits even if all of it is for that lane. Room
    /// opens as fast as the lanes pass, so the fetch follows them. What smaller lanes cannot take goes back.
    pub fn records_to_fetch(&self, now_ns: u64) -> usize {
        // I9: as if every lane were full, and the room, and as much again were in calls and going back or to the
        // archive.
        let bytes_max = self.pacing().lane_bytes_max.saturating_mul(self.lanes.all.len() as u64 + 3);
        let is_full = self.book.len() >= RECORDS_IN_HAND_MAX
            || self.book.finished() >= RECORDS_IN_HAND_MAX
            || self.book.bytes() >= bytes_max
            || self.back.is_full(self.pacing());
        if is_full || self.churn_until_ns > now_ns + CHURN_AHEAD_NS {
            return 0;
        }
        let most = self.options.fetch_records_max;
        let recent: u64 = self.lanes.all.iter().map(|lane| lane.recent_events).sum();
        if recent == 0 || self.recent_records == 0 {
            return FETCH_RECORDS_FIRST.min(most);
        }
        let a_record = (recent / self.recent_records).max(1);
        let large = self.lanes.all.iter().filter(|lane| lane.recent_events * 4 >= recent);
        let fit = large.map(|lane| match lane.records_that_fit(a_record) {
            0 if self.may_overflow(lane, now_ns) => FETCH_RECORDS_MIN,
            records => usize::try_from(records).unwrap_or(most),
        });
        fit.min().unwrap_or(most).min(most)
    }

    /// Whether more may come in although a large lane is full, and go back, so that it does not block another
    /// type: when nothing passes there, or when a limit holds it back and a type that came lately has nothing
    /// left to do. A lane that a busy downstream holds back paces its topic.
    fn may_overflow(&self, full: &Lane, now_ns: u64) -> bool {
        let hold_max_ns = self.pacing().hold_max_ms.saturating_mul(NS_PER_MS);
        let passes = now_ns.saturating_sub(full.passed_ns) <= hold_max_ns && full.bound_events > 0;
        let starves = |lane: &Lane| lane.events == 0 && lane.recent_events > 0;
        !passes || full.is_limited && self.lanes.all.iter().any(starves)
    }

    /// Pauses the intake of partitions that hold nothing but records for a lane that is half full, and resumes it
    /// when the lane is at a quarter, or after `hold_max` to see whether something else has come. A window that
    /// spans too much pauses its partition too.
    pub fn decide_pauses(&mut self, now_ns: u64) {
        let hold_max_ns = self.pacing().hold_max_ms.saturating_mul(NS_PER_MS);
        let mut paused = 0;
        for (&number, own) in &mut self.partitions.all {
            let spans_too_much = own.spans_too_much();
            let lane = own.run.map(|(at, length)| (&self.lanes.all[at], length));
            let wants = match (lane, own.paused_ns) {
                _ if spans_too_much => true,
                // A lane that passes nothing would never let it resume, and one that takes nothing is full and
                // empty at once.
                (Some((lane, _)), _) if lane.fuse() != Fuse::Closed || lane.bound_events == 0 => false,
                (Some((lane, length)), None) => {
                    length >= RUN_TO_PAUSE && lane.events * 2 >= lane.bound_events
                }
                (Some((lane, _)), Some(since_ns)) => {
                    lane.events * 4 > lane.bound_events && now_ns.saturating_sub(since_ns) < hold_max_ns
                }
                (None, _) => false,
            };
            if wants != own.paused_ns.is_some() {
                own.paused_ns = wants.then_some(now_ns);
                self.pauses.push((number, wants));
            }
            paused += u64::from(wants);
        }
        self.stats.paused_partitions.set(paused);
    }

    /// Takes a record out of lane or room, wherever it waits.
    pub fn leave_place(&mut self, key: Key) {
        let Some(held) = self.book.get_mut(key) else { return };
        match (held.place, held.lane) {
            (Place::Lane, Some(at)) => self.lanes.all[at].forget(held.uncut, held.payload.len()),
            (Place::Room, _) => self.room.forget(held.uncut, held.payload.len()),
            _ => {}
        }
        held.place = Place::Gone;
    }
}

/// Where the first event's field starts.
fn events_at(payload: &[u8]) -> Result<usize, Malformed> {
    let mut reader = Reader::new(payload);
    loop {
        let at = reader.position();
        if reader.field()?.0 == EVENTS_FIELD {
            return Ok(at);
        }
    }
}

/// Keeps the ticket until its record is settled.
#[cfg(not(feature = "sabotage"))]
fn mark(ticket: Ticket) -> Option<Ticket> {
    Some(ticket)
}

/// Keeps the ticket until its record is settled, unless the promise is to be broken.
#[cfg(feature = "sabotage")]
fn mark(ticket: Ticket) -> Option<Ticket> {
    if crate::sabotage::is_early_mark() {
        ticket.finish();
        return None;
    }
    Some(ticket)
}
