//! The consumers of this process: which share each has, and what they hold unfinished.

use super::member::Member;
use crate::contract::Epoch;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The server shows given back records 2 to 3 s later; until then they are nowhere to be seen.
const BETWEEN: Duration = Duration::from_secs(6);

/// Topic and group, as the server knows them.
pub(super) type Place = (String, String);

#[derive(Default)]
pub(super) struct Registry {
    places: Mutex<HashMap<Place, Members>>,
}

#[derive(Default)]
struct Members {
    seats: Vec<(u32, Weak<Member>)>,
    last_epoch: u32,
    /// Given back, and when the server will have shown them.
    between: Vec<(usize, Instant)>,
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
        let taken = |partition: &u32| members.seats.iter().any(|(seat, _)| seat == partition);
        let seats = u32::try_from(members.seats.len()).unwrap_or(u32::MAX);
        let partition = (0..instances).find(|partition| !taken(partition)).unwrap_or(seats % instances);
        members.last_epoch += 1;
        members.seats.push((partition, Weak::new()));
        Seat { registry: Arc::clone(self), place: place.clone(), partition, epoch: Epoch(members.last_epoch) }
    }

    /// Records that consumers of this process have received and not finished, or have just given back.
    pub(super) fn unfinished(&self, place: &Place, now: Instant) -> usize {
        let mut places = self.places.lock();
        let Some(members) = places.get_mut(place) else { return 0 };
        members.between.retain(|(_, until)| *until > now);
        let held = members.seats.iter().filter_map(|(_, member)| member.upgrade());
        let held: usize = held.map(|member| member.unfinished()).sum();
        held + members.between.iter().map(|(count, _)| count).sum::<usize>()
    }
}

impl Seat {
    pub(super) fn taken_by(&self, member: &Arc<Member>) {
        let mut places = self.registry.places.lock();
        let seats = places.get_mut(&self.place).map(|members| members.seats.iter_mut());
        let mine = seats
            .into_iter()
            .flatten()
            .find(|(partition, member)| *partition == self.partition && member.strong_count() == 0);
        if let Some((_, seat)) = mine {
            *seat = Arc::downgrade(member);
        }
    }

    /// So many records were given back.
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
            let mine = members.seats.iter().position(|(partition, _)| *partition == self.partition);
            if let Some(mine) = mine {
                members.seats.swap_remove(mine);
            }
        }
    }
}
