//! Runs that wait in this process to be sent, and the room for them. Room is taken before a run is begun, and given back when
//! it leaves the queue: what has no room stays with the scheduler or in the store. What comes by one door takes no room from
//! the others.

use crate::definition::{Definition, Priority};
use crate::runs::{Run, RunNumber};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Runs that wait by each door at most.
const ROOM_EACH: usize = 1_000;
/// How long room is waited for.
const ROOM_WAIT: Duration = Duration::from_secs(1);
const DOORS: usize = 4;

/// A run that this process has to send: it has begun it, and nobody else sends it until its lease is over.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub number: RunNumber,
    pub run: Run,
    /// The version in which the run was written.
    pub version: u64,
    pub definition: Arc<Definition>,
    /// When its lease began, by the monotonic clock: earlier than by the store's.
    pub begun_ns: u64,
}

/// By where runs come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// Occurrences and calls, by their priority.
    First(Priority),
    /// What is sent again, and parts of a broadcast.
    Again,
}

/// A run with its room.
pub(crate) struct Queued {
    pub ticket: Ticket,
    _room: OwnedSemaphorePermit,
}

/// The other end of the queue.
pub(crate) type Tickets = mpsc::Receiver<Queued>;

/// The queue's end where runs are put in.
pub(crate) struct Outbox {
    doors: [Arc<Semaphore>; DOORS],
    tickets: mpsc::Sender<Queued>,
}

/// Room for some runs. What is not used is given back when it is dropped.
pub(crate) struct Room {
    permits: OwnedSemaphorePermit,
    tickets: mpsc::Sender<Queued>,
}

impl Outbox {
    pub fn new() -> (Self, Tickets) {
        // Whoever has room never finds the queue full.
        let (tickets, taken) = mpsc::channel(DOORS * ROOM_EACH);
        let doors = std::array::from_fn(|_| Arc::new(Semaphore::new(ROOM_EACH)));
        (Self { doors, tickets }, taken)
    }

    /// Room for so many runs, as soon as it is there; `None` where there is none for a while, or never again.
    pub async fn reserve(&self, door: Door, count: usize) -> Option<Room> {
        let permits = Arc::clone(self.door(door)).acquire_many_owned(u32::try_from(count).ok()?);
        let permits = tokio::time::timeout(ROOM_WAIT, permits).await.ok()?.ok()?;
        Some(Room { permits, tickets: self.tickets.clone() })
    }

    /// Room for as many runs as there is now, at most `count`; `None` where there is none.
    pub fn try_reserve(&self, door: Door, count: usize) -> Option<Room> {
        let door = self.door(door);
        let count = u32::try_from(count.min(door.available_permits())).ok().filter(|count| *count > 0)?;
        let permits = Arc::clone(door).try_acquire_many_owned(count).ok()?;
        Some(Room { permits, tickets: self.tickets.clone() })
    }

    /// Gives room to nobody any more.
    pub fn close(&self) {
        self.doors.iter().for_each(|door| door.close());
    }

    const fn door(&self, door: Door) -> &Arc<Semaphore> {
        let [urgent, normal, bulk, again] = &self.doors;
        match door {
            Door::First(Priority::Urgent) => urgent,
            Door::First(Priority::Normal) => normal,
            Door::First(Priority::Bulk) => bulk,
            Door::Again => again,
        }
    }
}

impl Room {
    pub fn len(&self) -> usize {
        self.permits.num_permits()
    }

    /// Puts a run into the queue; gives it back where there is no room for it, or the queue is closed.
    pub fn send(&mut self, ticket: Ticket) -> Result<(), Box<Ticket>> {
        let Some(room) = self.permits.split(1) else { return Err(Box::new(ticket)) };
        self.tickets.try_send(Queued { ticket, _room: room }).map_err(|not_sent| {
            let (mpsc::error::TrySendError::Full(queued) | mpsc::error::TrySendError::Closed(queued)) =
                not_sent;
            Box::new(queued.ticket)
        })
    }
}
