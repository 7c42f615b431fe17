//! The fan-out: the handle that senders hold, and what it consists of. How a record goes from topic to topic stands in
//! `sending`.

use super::in_flight::InFlightTable;
use super::opener::Opener;
use super::options::FanoutOptions;
use super::outbox::Duty;
use super::pending::{PendingRecord, Undelivered};
use super::shares::Shares;
use super::stats::{CloseReport, FanoutStats, TopicState, TopicStats, TopicStatus};
use super::supervise::ThreadHealth;
use super::topology::{QueueId, Side, Topology};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OpenError, Tag};
use windfall_contract::rules::Rules;

/// The longest that a close waits for threads that open topics.
const OPENERS_END: Duration = Duration::from_secs(1);

/// Sends records to queues. Cheap to share; `close` it before the last handle goes.
pub struct Fanout {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Fanout {
    /// Starts a fan-out over the queues of `rules` on `brokers` (by name). It does not wait for any broker: each topic
    /// is opened in the background, again and again until its broker lets it, and records take other topics meanwhile.
    ///
    /// # Errors
    /// [`OpenError`] of an option that is out of its range, or of a thread that cannot be started; nothing is left
    /// running.
    pub fn open(
        rules: &Rules,
        brokers: BTreeMap<String, Arc<dyn Broker>>,
        options: FanoutOptions,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let inner = Arc::new_cyclic(|own: &Weak<Inner>| {
            let sink = Arc::new(Sink(own.clone()));
            Inner {
                topology: RwLock::new(Arc::new(Topology::default())),
                applying: Mutex::default(),
                state: Mutex::new(State { table: InFlightTable::new(), phase: Phase::Open }),
                shares: Shares::new(options.records_max),
                wake: Condvar::new(),
                opener: Arc::new(Opener::new(brokers, sink, options.clone(), clock.clone())),
                options,
                clock,
                delivered: AtomicU64::new(0),
                retries: AtomicU64::new(0),
                health: ThreadHealth::default(),
            }
        });
        inner.apply(rules)?;
        let worker = Arc::clone(&inner);
        let worker = std::thread::Builder::new()
            .name("windfall-fanout".into())
            .spawn(move || worker.run_supervised())
            .map_err(|error| OpenError::Io { place: "retry thread".into(), what: error.to_string() })?;
        Ok(Self { inner, worker: Mutex::new(Some(worker)) })
    }

    /// Takes over queues, ratios and topics of other rules; rules older than those in force are ignored. It does not
    /// wait for any broker. Topics that stay keep their producers, new ones are opened in the background, and the
    /// outboxes of topics that are gone are closed when the outcome of every record that they hold is known. A record that waits
    /// takes the topics of the new rules, and is given back as [`Undelivered::NoQueue`] where its queue is gone.
    ///
    /// # Errors
    /// [`OpenError::Invalid`]: this process has seen 65,536 names of queues already. The queues stay as they were.
    pub fn apply(&self, rules: &Rules) -> Result<(), OpenError> {
        self.inner.apply(rules)
    }

    /// The id of a queue that the rules name now or named before.
    pub fn queue(&self, name: &str) -> Option<QueueId> {
        self.inner.topology.read().queue_ids.get(name).copied()
    }

    /// The side that a user's events take first; `None` where the rules no longer have the queue.
    pub fn side(&self, queue: QueueId, user_id: i64) -> Option<Side> {
        self.inner.topology.read().queue(queue).map(|now| now.side(user_id))
    }

    /// Sends a record over the topics of `candidates`, in that order, each queue's `Side` first. Never blocks.
    /// The outcome is reported by the record's own methods, perhaps before this returns.
    pub fn submit(&self, candidates: &[(QueueId, Side)], record: Box<dyn PendingRecord>) {
        self.inner.submit(candidates, record);
    }

    /// Divides places of the caller's own among the queues of rules that this fan-out has taken over.
    pub fn divide(&self, shares: &Shares, rules: &Rules) {
        let topology = Arc::clone(&self.inner.topology.read());
        divide(shares, rules, &topology);
    }

    /// How the outbox of each topic is doing: of those that the rules name, and of those that are draining.
    pub fn topics(&self) -> Vec<TopicStatus> {
        let topology = Arc::clone(&self.inner.topology.read());
        topology.outboxes.iter().map(|outbox| outbox.status(&self.inner.clock)).collect()
    }

    /// Waits until every topic that the rules name has been opened, at most `timeout`; returns whether they are. No
    /// caller needs to wait before it sends. Blocks.
    pub fn wait_until_open(&self, timeout: Duration) -> bool {
        let left = self.inner.timer(timeout);
        loop {
            if self.topics().iter().all(|topic| topic.state != TopicState::Opening) {
                return true;
            }
            if left().is_zero() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The counters since the fan-out was opened.
    pub fn stats(&self) -> FanoutStats {
        self.inner.stats()
    }

    /// Takes no more records, goes on delivering until none is left or `timeout` is over, closes the producers,
    /// and gives back what is left. A second call does nothing. Blocks.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        let report = self.inner.close(timeout);
        if let Some(worker) = self.worker.lock().take()
            && worker.join().is_err()
        {
            tracing::error!("the fan-out's retry thread had panicked");
        }
        report
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// It delivers the records that it has, and takes no more.
    Draining,
    Closed,
}

pub(super) struct State {
    pub(super) table: InFlightTable,
    pub(super) phase: Phase,
}

pub(super) struct Inner {
    pub(super) topology: RwLock<Arc<Topology>>,
    /// A lock that is held while the topology is replaced, so that no change is lost.
    applying: Mutex<()>,
    pub(super) state: Mutex<State>,
    /// The shares, which say how many records each queue may have in flight.
    pub(super) shares: Arc<Shares>,
    pub(super) wake: Condvar,
    pub(super) opener: Arc<Opener>,
    pub(super) options: FanoutOptions,
    pub(super) clock: Clock,
    pub(super) delivered: AtomicU64,
    pub(super) retries: AtomicU64,
    /// The health of the retry thread.
    pub(super) health: ThreadHealth,
}

/// The sink of every producer. It holds the fan-out weakly, so that producers do not keep it alive.
struct Sink(Weak<Inner>);

impl DeliverySink for Sink {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        if let Some(inner) = self.0.upgrade() {
            inner.reported(tag, &delivery);
        }
    }
}

impl Inner {
    fn apply(&self, rules: &Rules) -> Result<(), OpenError> {
        let _one_at_a_time = self.applying.lock();
        let now = Arc::clone(&self.topology.read());
        if rules.version < now.version {
            return Ok(());
        }
        let next = now.next(rules, &self.options, self.clock.monotonic_ns())?;
        divide(&self.shares, rules, &next);
        *self.topology.write() = Arc::new(next);
        self.opener.rules_changed();
        self.wake.notify_one();
        Ok(())
    }

    /// Starts the threads that open and close the outboxes' producers, and forgets outboxes that are gone.
    pub(super) fn tend(&self) {
        let topology = Arc::clone(&self.topology.read());
        let now_ns = self.clock.monotonic_ns();
        let mut gone = Vec::new();
        for outbox in &topology.outboxes {
            match outbox.duty(now_ns) {
                Duty::Nothing => {}
                Duty::Open => self.opener.open(outbox),
                Duty::Close(producer) => self.opener.close(outbox, producer),
                Duty::Forget => gone.push(Arc::clone(outbox)),
            }
        }
        if !gone.is_empty() {
            let _one_at_a_time = self.applying.lock();
            let mut next = Topology::clone(&self.topology.read());
            next.outboxes.retain(|outbox| !gone.iter().any(|gone| Arc::ptr_eq(gone, outbox)));
            *self.topology.write() = Arc::new(next);
        }
    }

    fn close(&self, timeout: Duration) -> CloseReport {
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Open {
                return CloseReport::default();
            }
            state.phase = Phase::Draining;
        }
        let left = self.timer(timeout);
        while !left().is_zero() && self.shares.used() > 0 {
            std::thread::sleep(left().min(Duration::from_millis(1)));
        }
        self.shut(&left);
        self.opener.stop(left().min(OPENERS_END));
        // Those that rules brought, or that were opened, in the meantime.
        self.shut(&left);
        let rest = {
            let mut state = self.state.lock();
            state.phase = Phase::Closed;
            state.table.drain()
        };
        self.wake.notify_all();
        let undelivered = rest.len();
        for send in rest {
            self.give_up(send, Undelivered::Closed);
        }
        CloseReport { undelivered }
    }

    fn shut(&self, left: &impl Fn() -> Duration) {
        let outboxes = self.topology.read().outboxes.clone();
        for outbox in &outboxes {
            if let Some(producer) = outbox.shut(self.clock.monotonic_ns()) {
                producer.close(left());
            }
        }
    }

    /// How much of `timeout` is left, from now on.
    fn timer(&self, timeout: Duration) -> impl Fn() -> Duration + '_ {
        let started_ns = self.clock.monotonic_ns();
        move || {
            let gone_ns = self.clock.monotonic_ns().saturating_sub(started_ns);
            timeout.saturating_sub(Duration::from_nanos(gone_ns))
        }
    }

    fn stats(&self) -> FanoutStats {
        // By name: a topic that moves to another broker has two outboxes for a while.
        let mut topics: BTreeMap<String, TopicStats> = BTreeMap::new();
        let topology = Arc::clone(&self.topology.read());
        for outbox in &topology.outboxes {
            let name = &outbox.key.name;
            let known = topics.entry(name.clone());
            let stats = known.or_insert_with(|| TopicStats { topic: name.clone(), ..TopicStats::default() });
            stats.sent += outbox.health.sent.load(Relaxed);
            stats.stored += outbox.health.stored.load(Relaxed);
            stats.failed += outbox.health.failed.load(Relaxed);
            stats.in_flight += outbox.health.in_flight();
            stats.breaker_open |= outbox.health.is_open() && outbox.is_wanted();
            stats.breaker_trips += outbox.health.trips();
            stats.open_failures += outbox.open_failures.load(Relaxed);
        }
        FanoutStats {
            pending_records: self.shares.used(),
            delivered: self.delivered.load(Relaxed),
            retries: self.retries.load(Relaxed),
            driver_panics: self.opener.panics.load(Relaxed),
            retry_panics: self.health.panics(),
            is_failing: self.health.is_failing(),
            topics: topics.into_values().collect(),
        }
    }
}

fn divide(shares: &Shares, rules: &Rules, topology: &Topology) {
    let queues: Vec<_> =
        rules.queues.keys().filter_map(|name| topology.queue_ids.get(name).copied()).collect();
    shares.divide(&queues, has_first(rules));
}

/// Whether the rules have bonus types of priority 0 (cash) and others: then some room is kept for the first.
fn has_first(rules: &Rules) -> bool {
    let mut priorities = rules.limits.types.values().map(|own| own.priority == 0);
    let first = priorities.next();
    first.is_some_and(|first| priorities.any(|other| other != first))
}
