//! Arrival: a record gets its place in the window, and comes in if it is known who wrote it.

use crate::archive::ArchiveItem;
use crate::flow::Flow;
#[cfg(not(feature = "sabotage"))]
use crate::flow::{Stage, handles};
use crate::in_flight::{InFlightRecord, Key};
use crate::late_keys::LateKeys;
use crate::probation::position;
use crate::record_head;
#[cfg(feature = "sabotage")]
use crate::sabotage::{Stage, handles};
use crate::signatures::{Admitted, News};
use crate::window::Ticket;
use bytes::Bytes;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use windfall_contract::broker::{InRecord, Position};
use windfall_contract::rewards::Rejection;
use windfall_signing::Refused;

impl Flow {
    pub fn arrived(&mut self, record: InRecord, now_ns: u64, wall_ms: i64) {
        if let Some(ticket) = self.deliver(&record) {
            self.take_in(record, ticket, now_ns, wall_ms);
        }
    }

    /// Takes a record into its window, if its partition is owned.
    pub fn deliver(&mut self, record: &InRecord) -> Option<Ticket> {
        let own = self.partitions.under(record.partition, record.epoch)?;
        let ticket = own.deliver(record.offset);
        if ticket.is_err() {
            self.stats.not_ascending.add(1);
        }
        ticket.ok()
    }

    /// Takes in a record that is in its window, if its partition is still owned.
    pub fn take_in(&mut self, record: InRecord, ticket: Ticket, now_ns: u64, wall_ms: i64) {
        handles(Stage::Arrival, &record.payload);
        let InRecord { partition, epoch, offset, payload, .. } = record;
        if self.partitions.under(partition, epoch).is_none() {
            return;
        }
        let position = Position { partition, epoch, offset };
        let whole = InFlightRecord::whole(position, keep(ticket), payload, now_ns);
        self.judge(whole, true, now_ns, wall_ms);
    }

    /// Lets a record in, or lets it wait for a key, or sends it to the archive. I12: nothing of it is looked at before it
    /// is known who wrote it.
    fn judge(&mut self, record: InFlightRecord, may_wait: bool, now_ns: u64, wall_ms: i64) {
        let refused = match self.entrance.check(&record.payload) {
            Ok(admitted) => return self.admit(record, admitted, now_ns, wall_ms),
            Err(refused) => refused,
        };
        let position = record.position;
        if let Some(own) = self.partitions.under(position.partition, position.epoch) {
            own.delivered(None);
        }
        let may_wait = may_wait
            && LateKeys::takes_since(record.since_ns, now_ns)
            && LateKeys::can_come(&refused, self.entrance.highest_key());
        let (payload, bytes_max) = (record.payload.clone(), self.rules.pacing.lane_bytes_max);
        let key = self.table.insert(record);
        let waits = may_wait && self.late_keys.wait(key, &refused, payload.len() as u64, bytes_max, now_ns);
        if !waits {
            self.refuse(key, position, payload, &refused);
        }
    }

    fn admit(&mut self, mut record: InFlightRecord, admitted: Admitted, now_ns: u64, wall_ms: i64) {
        let Admitted { origin, is_unsigned } = admitted;
        self.stats.unsigned.add(is_unsigned.into());
        let Position { partition, epoch, offset } = record.position;
        let payload = record.payload.clone();
        let head = record_head::read(&payload);
        let lane = head.as_ref().ok().and_then(|head| self.lanes.find(head.bonus_type));
        if let Some(own) = self.partitions.under(partition, epoch) {
            own.delivered(lane);
        }
        (record.lane, record.origin) = (lane, origin);
        (record.since_ns, record.held_since_ns) = (now_ns, now_ns);
        match head {
            Ok(head) => {
                (record.attempt, record.failures) = (head.attempt, head.failures);
                record.not_before_ms = head.not_before_ms;
                (record.cut_at, record.uncut) = (head.events_at, head.count);
                record.open = head.count;
                let key = self.table.insert(record);
                self.stats.events_fetched.add(head.count.into());
                self.place(key, &head, now_ns, wall_ms);
            }
            Err(bad) => {
                let key = self.table.insert(record);
                self.stats.malformed.add(1);
                let detail = format!("record {partition}/{offset}: {bad}");
                self.work_begins(key, now_ns);
                self.archive.push(ArchiveItem::record(key, payload, detail));
            }
        }
    }

    /// Takes in a record that is not to be handled: it goes to the archive as it came, and nowhere else, however long
    /// the archive takes. I12: what would have been refused is archived as that, since a replay of the others grants them.
    pub fn quarantine(&mut self, record: &InRecord, ticket: Ticket, now_ns: u64) -> Key {
        let position = position(record);
        let payload = record.payload.clone();
        let in_flight = InFlightRecord::whole(position, keep(ticket), payload.clone(), now_ns);
        let key = self.table.insert(in_flight);
        let mut detail =
            format!("record {}/{}/{} made a consumer panic", self.topic, position.partition, position.offset);
        // The check itself may be what panics.
        let checked = catch_unwind(AssertUnwindSafe(|| self.entrance.check(&payload).err()));
        let rejection = match checked {
            Ok(None) => Rejection::Quarantined,
            Ok(Some(refused)) => {
                detail.push_str(&format!(", and is refused: {refused}"));
                Rejection::Unverified
            }
            Err(_) => {
                detail.push_str(" when its signature was verified");
                Rejection::Unverified
            }
        };
        self.archive.push(ArchiveItem::whole(key, payload, rejection, detail));
        key
    }

    /// Sends a record that is not to be granted to the archive, because of its signature. It goes there as it came,
    /// however long the archive takes, and never back to a queue: another topic may take what this one refuses.
    fn refuse(&mut self, key: Key, position: Position, payload: Bytes, refused: &Refused) {
        self.stats.count_refused(refused);
        let Position { partition, offset, .. } = position;
        let detail = format!("record {}/{partition}/{offset}: {refused}", self.topic);
        self.archive.push(ArchiveItem::whole(key, payload, Rejection::Unverified, detail));
    }

    /// Judges what waits for a key anew if there is another ring or there are other rules. What was waited for in vain, or
    /// would stop its partition, goes to the archive.
    pub fn look_at_late_keys(&mut self, now_ns: u64, wall_ms: i64) {
        // First: news also ends the time in which a key is not waited for again, whether or not a record waits.
        let news = self.entrance.news();
        let has_news = news.is_some();
        if news == Some(News::Ring) {
            // Each is verified again, once for each other ring.
            self.key_gone.note(self.table.admitted(|payload| self.entrance.destroyed(payload)));
        }
        self.refuse_destroyed();
        let taken = if has_news {
            self.late_keys.take_all()
        } else if self.late_keys.len() == 0 {
            return;
        } else {
            let full: HashSet<u32> = self.partitions.full_windows().into_iter().collect();
            let is_table_full = self.is_table_full();
            let of = |key| self.table.get(key).map(|record| record.position.partition);
            self.late_keys
                .take_overdue(|key| is_table_full || of(key).is_some_and(|of| full.contains(&of)), now_ns)
        };
        for key in taken {
            if let Some(record) = self.table.remove(key) {
                self.judge(record, has_news, now_ns, wall_ms);
            }
        }
    }
}

/// Keeps the ticket until its record is settled.
#[cfg(not(feature = "sabotage"))]
fn keep(ticket: Ticket) -> Option<Ticket> {
    Some(ticket)
}

/// Keeps the ticket until its record is settled, unless the promise is to be broken.
#[cfg(feature = "sabotage")]
fn keep(ticket: Ticket) -> Option<Ticket> {
    if crate::sabotage::is_early_mark() {
        ticket.finish();
        return None;
    }
    Some(ticket)
}
