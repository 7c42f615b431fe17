//! The consumers of this process: which share each has, and what they hold unfinished.

use super::member::Member;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use windfall_contract::broker::Epoch;

/// The time after which the server has certainly shown records that were given back. It does so after 2 to 3 s; until
/// then no count includes them.
const BETWEEN: Duration = Duration::from_secs(6);

/// Topic and group, as the server knows them.
pub(super) type Place = (String, String);

#[derive(Default)]
pub(super) struct Registry {
    places: Mutex<HashMap<Place, Members>>,
}

#[derive(Default)]
struct Members {
    seats: Vec<Taken>,
    last_epoch: u32,
    /// How many records were given back, and when the server will have shown them.
    between: Vec<(usize, Instant)>,
}

struct Taken {
    partition: u32,
    /// The epoch, which tells seats of one share apart.
    epoch: Epoch,
    member: Weak<Member>,
}

/// A consumer's share; free again when it has left.
pub(super) struct Seat {
    registry: Arc<Registry>,
    place: Place,
    pub(super) partition: u32,
    pub(super) epoch: Epoch,
}

impl Registry {
    /// The lowest share that no consumer of this process has; beyond `instances`, shares are shared.
    pub(super) fn sit(self: &Arc<Self>, place: &Place, instances: u32) -> Seat {
        let mut places = self.places.lock();
        let members = places.entry(place.clone()).or_default();
        let taken = |partition: &u32| members.seats.iter().any(|seat| seat.partition == *partition);
        let seats = u32::try_from(members.seats.len()).unwrap_or(u32::MAX);
        let partition = (0..instances).find(|partition| !taken(partition)).unwrap_or(seats % instances);
        members.last_epoch += 1;
        let epoch = Epoch(members.last_epoch);
        members.seats.push(Taken { partition, epoch, member: Weak::new() });
        Seat { registry: Arc::clone(self), place: place.clone(), partition, epoch }
    }

    /// Records that consumers of this process have received and not finished, or have just given back.
    pub(super) fn unfinished(&self, place: &Place, now: Instant) -> usize {
        let mut places = self.places.lock();
        let Some(members) = places.get_mut(place) else { return 0 };
        members.between.retain(|(_, until)| *until > now);
        let held = members.seats.iter().filter_map(|seat| seat.member.upgrade());
        let held: usize = held.map(|member| member.unfinished()).sum();
        held + members.between.iter().map(|(count, _)| count).sum::<usize>()
    }
}

impl Seat {
    pub(super) fn taken_by(&self, member: &Arc<Member>) {
        let mut places = self.registry.places.lock();
        let seats = places.get_mut(&self.place).map(|members| members.seats.iter_mut());
        if let Some(mine) = seats.into_iter().flatten().find(|seat| seat.epoch == self.epoch) {
            mine.member = Arc::downgrade(member);
        }
    }

    /// Leaves the seat, having given back so many records.
    pub(super) fn leave(&mut self, given_back: usize) {
        if given_back > 0
            && let Some(members) = self.registry.places.lock().get_mut(&self.place)
        {
            members.between.push((given_back, Instant::now() + BETWEEN));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(members) = self.registry.places.lock().get_mut(&self.place) {
            members.seats.retain(|seat| seat.epoch != self.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More consumers than shares: each gives up its own seat, not that of another with the same share.
    #[test]
    fn a_seat_is_its_own() {
        let registry = Arc::new(Registry::default());
        let place = ("t".to_owned(), "g".to_owned());
        let epochs = || -> Vec<_> {
            let places = registry.places.lock();
            places.values().flat_map(|members| &members.seats).map(|seat| seat.epoch).collect()
        };
        let seats = [registry.sit(&place, 2), registry.sit(&place, 2), registry.sit(&place, 2)];
        assert_eq!(seats.each_ref().map(|seat| seat.partition), [0, 1, 0]);
        let [first, second, third] = seats;
        drop(third);
        assert_eq!(epochs(), [first.epoch, second.epoch]);
        drop(first);
        assert_eq!(epochs(), [second.epoch]);
        assert_eq!(registry.sit(&place, 2).partition, 0);
        drop(second);
        assert_eq!(epochs(), []);
    }
}
