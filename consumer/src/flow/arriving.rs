//! Arrival: a record gets its place in the window, and comes in if it is known who wrote it.

use super::Flow;
use crate::archive::ArchiveItem;
use crate::arrival::{self, Judgement};
use crate::in_flight::{InFlightRecord, Key};
use crate::record_head;
use crate::signatures::{Admitted, News};
use crate::stage::{Stage, handles};
use crate::window::Ticket;
use std::collections::HashSet;
use windfall_contract::broker::{InRecord, Position};
use windfall_contract::rewards::Rejection;

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
        if self.partitions.under(record.partition, record.epoch).is_some() {
            self.judge(arrival::unread(record, ticket, now_ns), true, now_ns, wall_ms);
        }
    }

    /// Lets a record in, or lets it wait for a key, or sends it to the archive. I12: nothing of it is looked at before it
    /// is known who wrote it.
    fn judge(&mut self, record: InFlightRecord, may_wait: bool, now_ns: u64, wall_ms: i64) {
        let (why, may_wait) = match arrival::judge(&self.entrance, &record, may_wait, now_ns) {
            Judgement::Admitted(admitted) => return self.admit(record, admitted, now_ns, wall_ms),
            Judgement::Refused { why, may_wait } => (why, may_wait),
        };
        let Position { partition, epoch, offset } = record.position;
        if let Some(own) = self.partitions.under(partition, epoch) {
            own.delivered(None);
        }
        let (payload, bytes_max) = (record.payload.clone(), self.rules.pacing.lane_bytes_max);
        let key = self.table.insert(record);
        let waits = may_wait && self.late_keys.wait(key, &why, payload.len() as u64, bytes_max, now_ns);
        if !waits {
            // It goes to the archive as it came, however long the archive takes, and never back to a queue: another topic
            // may take what this one refuses.
            self.stats.count_refused(&why);
            let detail = format!("record {}/{partition}/{offset}: {why}", self.topic);
            self.archive.push(ArchiveItem::whole(key, payload, Rejection::Unverified, detail));
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
        record.comes_in(lane, origin, head.as_ref().ok(), now_ns);
        let key = self.table.insert(record);
        match head {
            Ok(head) => {
                self.stats.events_fetched.add(head.count.into());
                self.place(key, &head, now_ns, wall_ms);
            }
            Err(bad) => {
                self.stats.malformed.add(1);
                let detail = format!("record {partition}/{offset}: {bad}");
                self.work_begins(key, now_ns);
                self.archive.push(ArchiveItem::record(key, payload, detail));
            }
        }
    }

    /// Takes in a record that is not to be handled: it goes to the archive as it came, and nowhere else, however long
    /// the archive takes.
    pub fn quarantine(&mut self, record: &InRecord, ticket: Ticket, now_ns: u64) -> Key {
        let key = self.table.insert(arrival::unread(record.clone(), ticket, now_ns));
        let (rejection, detail) = arrival::why_quarantined(&self.entrance, &self.topic, record);
        self.archive.push(ArchiveItem::whole(key, record.payload.clone(), rejection, detail));
        key
    }

    /// Judges what waits for a key anew if there is another ring or there are other rules. What was waited for in vain, or
    /// would stop its partition, goes to the archive.
    pub(super) fn look_at_late_keys(&mut self, now_ns: u64, wall_ms: i64) {
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
