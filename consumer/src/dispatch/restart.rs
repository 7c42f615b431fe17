//! The state that a loop which panicked leaves to the next one: its source, so that no other member of the group is
//! given the records that made it panic, and every record that it had not finished.

use super::Dispatch;
use crate::broker_link::{Source, Turned};
use crate::in_flight::InFlightRecord;
use crate::partition::Standing;
use crate::probation::{Held, Suspicion, position};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use windfall_contract::broker::{InRecord, Position};

/// The state that a loop which panicked leaves behind.
pub(crate) struct Remains {
    pub source: Source,
    pub carried: Carried,
}

/// The state that the next loop takes over besides the source.
pub(crate) struct Carried {
    /// The turn with the broker that was under way.
    turned: Option<Turned>,
    /// The partitions owned.
    standings: BTreeMap<u32, Standing>,
    /// Finished records that the broker was not told of.
    finished: Vec<Position>,
    pub suspicion: Suspicion,
}

impl Dispatch {
    /// Whether a drain has been asked for.
    pub fn is_draining(&self) -> bool {
        self.drain.is_under_way()
    }

    /// The state that this loop leaves after a panic. `None` where the source is lost, or where it is not certain what
    /// was in flight:
    /// then the source is given up, and the broker delivers again what is not committed.
    pub async fn into_remains(mut self) -> Option<Remains> {
        if self.is_reassigning {
            return None;
        }
        let standings = self.flow.partitions.standings();
        let is_ours =
            |record: &InRecord| standings.get(&record.partition).is_some_and(|own| own.epoch == record.epoch);
        let mut in_flight: Vec<InRecord> = self.flow.table.iter().map(as_delivered).filter(is_ours).collect();
        let mut arriving = std::mem::take(&mut self.arriving).into_iter().filter(is_ours);
        // The first of them may have been taken in already when the panic came.
        if let Some(first) = arriving.next() {
            let is_it = |known: &InRecord| position(known) == position(&first);
            if !in_flight.iter().chain(self.probation.records()).any(is_it) {
                in_flight.push(first);
            }
        }
        let untouched: Vec<InRecord> = arriving.collect();
        let mut known: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for record in in_flight.iter().chain(self.probation.records()) {
            known.entry(record.partition).or_default().insert(record.offset);
        }
        // I3: this process must hold every record that a window waits for, or the commit would pass it.
        let count = |partition: &u32| known.get(partition).map_or(0, |offsets| offsets.len() as u64);
        if standings.iter().any(|(partition, at)| at.unfinished > count(partition)) {
            return None;
        }
        let suspicion = self.probation.after_panic(in_flight, untouched, &self.flow.table);
        let finished = self.flow.table.take_finished();
        let (source, turned) = self.broker.release().await?;
        Some(Remains { source, carried: Carried { turned, standings, finished, suspicion } })
    }

    /// Goes on with what an earlier loop has left: the same assignments, the same unfinished records.
    pub fn resume(&mut self, carried: Carried) {
        let now_ns = self.clock.monotonic_ns();
        let Carried { turned, standings, finished, suspicion } = carried;
        self.is_reassigning = true;
        for (partition, standing) in &standings {
            self.flow.partitions.resume(*partition, standing, now_ns);
        }
        self.flow.table.tell_again(finished);
        self.take_over(suspicion, now_ns);
        for (partition, standing) in &standings {
            self.flow.partitions.catch_up(*partition, standing.next);
        }
        self.is_reassigning = false;
        // I5: owned partitions count again with the first poll, which may be part of the turn.
        self.is_frozen(now_ns);
        if let Some(turned) = turned {
            self.turned(turned);
        }
    }

    fn take_over(&mut self, suspicion: Suspicion, now_ns: u64) {
        let Suspicion { records, suspects, group, quarantined, .. } = suspicion;
        let mut all: Vec<&InRecord> = records.iter().chain(&quarantined).collect();
        // A window takes its records in their order, whatever the order is in which they are let in.
        all.sort_unstable_by_key(|record| (record.partition, record.offset));
        let mut tickets = HashMap::new();
        for record in all {
            if let Some(ticket) = self.flow.deliver(record) {
                tickets.insert(position(record), ticket);
            }
        }
        for record in quarantined {
            let Some(ticket) = tickets.remove(&position(&record)) else { continue };
            let key = self.flow.quarantine(&record, ticket, now_ns);
            self.probation.quarantine(key, record);
        }
        for record in records {
            if let Some(ticket) = tickets.remove(&position(&record)) {
                self.probation.hold(Held { record, ticket });
            }
        }
        self.probation.begin(suspects, group);
    }

    /// Takes in records of an earlier loop, as far as there is room for them.
    pub(super) fn let_in(&mut self, now_ns: u64) {
        if !self.probation.is_active() || self.drain.is_under_way() {
            return;
        }
        let most = self.flow.records_to_fetch(now_ns);
        let many = self.probation.open(most, &self.flow.table, now_ns);
        self.flow.pace.polled(many);
        let wall_ms = self.clock.wall_ms();
        while let Some(Held { record, ticket }) = self.probation.next() {
            self.flow.take_in(record, ticket, now_ns, wall_ms);
            self.probation.is_in();
        }
    }
}

fn as_delivered(record: &InFlightRecord) -> InRecord {
    let Position { partition, epoch, offset } = record.position;
    InRecord { partition, epoch, offset, key: Bytes::new(), payload: record.payload.clone() }
}
