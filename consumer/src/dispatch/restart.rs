//! The state that a loop which panicked leaves to the next one: its source, so that no other member of the group is
//! given the records that made it panic, and every record that it had not finished.

use crate::broker_link::{Source, Turned};
use crate::in_flight::{InFlightRecord, InFlightTable};
use crate::partition::Standing;
use crate::probation::{Probation, Suspicion, position};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use windfall_contract::broker::{InRecord, Position};

/// The state that a loop which panicked leaves behind.
pub(crate) struct Remains {
    pub source: Source,
    pub carried: Carried,
}

/// The state that the next loop takes over besides the source.
pub(crate) struct Carried {
    /// The turn with the broker that was under way.
    pub(super) turned: Option<Turned>,
    /// The partitions owned.
    pub(super) standings: BTreeMap<u32, Standing>,
    /// Finished records that the broker was not told of.
    pub(super) finished: Vec<Position>,
    pub suspicion: Suspicion,
}

/// The records that a loop has left behind.
pub(crate) struct LeftBehind {
    /// Those that it had taken in.
    pub in_flight: Vec<InRecord>,
    /// Those that it had fetched and not taken in.
    pub untouched: Vec<InRecord>,
}

/// Finds the records that a loop has left behind, of which `arriving` were not taken in yet. `None` where the process does not
/// hold every record that a window waits for.
pub(super) fn left_behind(
    standings: &BTreeMap<u32, Standing>,
    table: &InFlightTable,
    arriving: VecDeque<InRecord>,
    probation: &Probation,
) -> Option<LeftBehind> {
    let is_ours =
        |record: &InRecord| standings.get(&record.partition).is_some_and(|own| own.epoch == record.epoch);
    let mut in_flight: Vec<InRecord> = table.iter().map(as_delivered).filter(is_ours).collect();
    let mut arriving = arriving.into_iter().filter(is_ours);
    // The first of them may have been taken in already when the panic came.
    if let Some(first) = arriving.next() {
        let is_it = |known: &InRecord| position(known) == position(&first);
        if !in_flight.iter().chain(probation.records()).any(is_it) {
            in_flight.push(first);
        }
    }
    let untouched: Vec<InRecord> = arriving.collect();
    let mut known: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for record in in_flight.iter().chain(probation.records()) {
        known.entry(record.partition).or_default().insert(record.offset);
    }
    // I3: this process must hold every record that a window waits for, or the commit would pass it.
    let count = |partition: &u32| known.get(partition).map_or(0, |offsets| offsets.len() as u64);
    let is_whole = standings.iter().all(|(partition, at)| at.unfinished <= count(partition));
    is_whole.then_some(LeftBehind { in_flight, untouched })
}

fn as_delivered(record: &InFlightRecord) -> InRecord {
    let Position { partition, epoch, offset } = record.position;
    InRecord { partition, epoch, offset, key: Bytes::new(), payload: record.payload.clone() }
}
