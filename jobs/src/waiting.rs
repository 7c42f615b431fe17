//! Runs that wait for their turn to be sent, by priority; what is sent together; and how many calls a destination may have.

use crate::definition::{Destination, Priority};
use crate::outbox::{Queued, Ticket};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that one app or one target may have open, as a part of all: one that hangs leaves room for the others.
const SHARE_OF_CALLS: usize = 2;
/// Destinations whose calls are counted; those without calls are forgotten beyond it.
const DESTINATIONS_MAX: usize = 10_000;
/// How many of each priority go in a round: each has its floor.
const TURNS: [(Priority, usize); 3] = [(Priority::Urgent, 8), (Priority::Normal, 4), (Priority::Bulk, 1)];

/// A destination: a tenant, and its app or target.
pub(crate) type Place = (String, String);

/// What is sent by one task: an executor's run by itself, runs for one target together.
pub(crate) enum Work {
    Executor(Box<Queued>, String, String),
    Target(String, String, Vec<Queued>),
}

/// Runs for one target and of one priority go together; each executor's run goes by itself.
fn works(batch: impl Iterator<Item = Queued>) -> Vec<Work> {
    let (mut works, mut targets) = (Vec::new(), BTreeMap::<_, Vec<Queued>>::new());
    for queued in batch {
        let spec = &queued.ticket.definition.spec;
        match &spec.destination {
            Destination::Executor { app, handler, .. } => {
                let (app, handler) = (app.clone(), handler.clone());
                works.push(Work::Executor(Box::new(queued), app, handler));
            }
            Destination::Target { name } => {
                let target = (spec.priority, queued.ticket.definition.tenant.clone(), name.clone());
                targets.entry(target).or_default().push(queued);
            }
        }
    }
    works.extend(targets.into_iter().map(|((_, tenant, name), queued)| Work::Target(tenant, name, queued)));
    works
}

impl Work {
    pub fn queued(&self) -> &[Queued] {
        match self {
            Self::Executor(queued, ..) => std::slice::from_ref(queued),
            Self::Target(_, _, queued) => queued,
        }
    }

    fn priority(&self) -> Priority {
        self.queued().first().map_or(Priority::Normal, |queued| queued.ticket.definition.spec.priority)
    }

    pub fn destination(&self) -> Place {
        match self {
            // No target's name has a zero byte.
            Self::Executor(queued, app, _) => (queued.ticket.definition.tenant.clone(), format!("{app}\0")),
            Self::Target(tenant, name, _) => (tenant.clone(), name.clone()),
        }
    }

    /// What is left of it without the runs that began to wait before a time, and these.
    fn without_old(self, before_ns: u64) -> (Option<Self>, Vec<Queued>) {
        let is_old = |queued: &Queued| queued.ticket.begun_ns < before_ns;
        match self {
            Self::Executor(queued, ..) if is_old(&queued) => (None, vec![*queued]),
            work @ Self::Executor(..) => (Some(work), Vec::new()),
            Self::Target(tenant, name, queued) => {
                let (old, left): (Vec<_>, Vec<_>) = queued.into_iter().partition(is_old);
                ((!left.is_empty()).then_some(Self::Target(tenant, name, left)), old)
            }
        }
    }
}

/// Work by priority, in turns.
#[derive(Default)]
pub(crate) struct Waiting {
    queues: BTreeMap<Priority, VecDeque<Work>>,
    /// What is left of this round.
    left: BTreeMap<Priority, usize>,
    /// What waits for a place at its destination.
    held: BTreeMap<Place, VecDeque<Work>>,
    /// Runs of all these.
    runs: usize,
}

impl Waiting {
    /// How many runs wait.
    pub const fn len(&self) -> usize {
        self.runs
    }

    pub fn push(&mut self, batch: impl Iterator<Item = Queued>) {
        for work in works(batch) {
            self.runs += work.queued().len();
            self.queues.entry(work.priority()).or_default().push_back(work);
        }
    }

    /// Whether something does not wait for a place.
    pub fn has_ready(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
    }

    /// Keeps work back until there is a place at its destination.
    pub fn hold(&mut self, place: Place, work: Work) {
        self.runs += work.queued().len();
        self.held.entry(place).or_default().push_back(work);
    }

    /// There is a place at a destination: what has waited for it longest is next.
    pub fn release(&mut self, place: &Place) {
        let Some(held) = self.held.get_mut(place) else { return };
        if let Some(work) = held.pop_front() {
            self.queues.entry(work.priority()).or_default().push_front(work);
        }
        if held.is_empty() {
            self.held.remove(place);
        }
    }

    pub fn pop(&mut self) -> Option<Work> {
        for _ in 0..2 {
            for (priority, _) in TURNS {
                let Some(left) = self.left.get_mut(&priority).filter(|left| **left > 0) else { continue };
                if let Some(work) = self.queues.get_mut(&priority).and_then(VecDeque::pop_front) {
                    *left -= 1;
                    self.runs -= work.queued().len();
                    return Some(work);
                }
            }
            self.left = TURNS.into();
        }
        None
    }

    /// Takes out the runs of which the lease began before a time.
    pub fn take_old(&mut self, before_ns: u64) -> Vec<Queued> {
        let mut all = Vec::new();
        for queue in self.queues.values_mut().chain(self.held.values_mut()) {
            for work in std::mem::take(queue) {
                let (left, old) = work.without_old(before_ns);
                queue.extend(left);
                all.extend(old);
            }
        }
        self.held.retain(|_, held| !held.is_empty());
        self.runs -= all.len();
        all
    }
}

/// The calls that each app and each target has open.
pub(crate) struct Destinations {
    each_max: usize,
    open: HashMap<Place, Arc<Semaphore>>,
}

impl Destinations {
    pub fn new(calls_max: usize) -> Self {
        Self { each_max: calls_max.div_ceil(SHARE_OF_CALLS), open: HashMap::new() }
    }

    /// A place for a call; `None` where the destination has as many as it may.
    pub fn take(&mut self, destination: Place) -> Option<OwnedSemaphorePermit> {
        if self.open.len() > DESTINATIONS_MAX {
            self.open.retain(|_, open| open.available_permits() < self.each_max);
        }
        let open = self.open.entry(destination).or_insert_with(|| Arc::new(Semaphore::new(self.each_max)));
        Arc::clone(open).try_acquire_owned().ok()
    }
}

/// The runs without their room, which is given back.
pub(crate) fn tickets(queued: Vec<Queued>) -> Vec<Ticket> {
    queued.into_iter().map(|queued| queued.ticket).collect()
}
