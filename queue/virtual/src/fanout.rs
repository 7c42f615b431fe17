//! The fan-out: owns the producers, sends records, retries them, and knows how each topic is doing.

use super::in_flight::{AfterSend, InFlightSend, InFlightTable};
use super::options::FanoutOptions;
use super::pending::{PendingRecord, Undelivered};
use super::stats::{CloseReport, FanoutStats, TopicStats};
use super::topology::{QueueId, Side, TopicNow, Topology};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::breaker::Pass;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OpenError, OutRecord, SendRefused, Tag};
use windfall_contract::rules::Rules;

/// The longest that the retry thread sleeps, so that an injected clock is noticed.
const TICK_MS: u64 = 20;

/// Sends records to queues. Cheap to share; `close` it before the last handle goes.
pub struct Fanout {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Fanout {
    /// Opens the topics of `rules` on `brokers` (by name) and starts the retry thread.
    ///
    /// # Errors
    /// [`OpenError`] of an option out of its range, or of the first topic that cannot be opened; nothing is left
    /// running.
    pub fn open(
        rules: &Rules,
        brokers: BTreeMap<String, Arc<dyn Broker>>,
        options: FanoutOptions,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let inner = Arc::new_cyclic(|own: &Weak<Inner>| Inner {
            topology: RwLock::new(Arc::new(Topology::default())),
            applying: Mutex::default(),
            state: Mutex::new(State { table: InFlightTable::new(options.records_max), phase: Phase::Open }),
            wake: Condvar::new(),
            brokers,
            sink: Arc::new(Sink(own.clone())),
            options,
            clock,
            delivered: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        inner.apply(rules)?;
        let worker = Arc::clone(&inner);
        let worker =
            std::thread::Builder::new()
                .name("windfall-fanout".into())
                .spawn(move || worker.run())
                .map_err(|error| OpenError::Io { place: "retry thread".into(), what: error.to_string() })?;
        Ok(Self { inner, worker: Mutex::new(Some(worker)) })
    }

    /// Takes over queues, ratios and new topics of other rules; rules older than those in force are passed over.
    /// Records on their way go on as they are. Opening a topic may wait for its broker: meanwhile everything else
    /// goes on with the rules that were.
    ///
    /// # Errors
    /// [`OpenError`]: a new topic cannot be opened; the queues stay as they were.
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
    /// Its fate comes by the record's own methods, perhaps before this returns.
    pub fn submit(&self, candidates: &[(QueueId, Side)], record: Box<dyn PendingRecord>) {
        self.inner.submit(candidates, record);
    }

    /// Counters.
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
enum Phase {
    Open,
    /// Delivers what it has, takes no more.
    Draining,
    Closed,
}

struct State {
    table: InFlightTable,
    phase: Phase,
}

struct Inner {
    topology: RwLock<Arc<Topology>>,
    /// Held while topics are opened, so that two `apply` do not open one twice.
    applying: Mutex<()>,
    state: Mutex<State>,
    wake: Condvar,
    brokers: BTreeMap<String, Arc<dyn Broker>>,
    sink: Arc<dyn DeliverySink>,
    options: FanoutOptions,
    clock: Clock,
    delivered: AtomicU64,
    retries: AtomicU64,
}

/// Producers outlive nothing: they hold the fan-out weakly.
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
        // A broker may take its time here. Neither senders nor drivers wait for it: they read the old topology.
        let next = now.next(rules, &self.brokers, &self.sink, &self.options)?;
        *self.topology.write() = Arc::new(next);
        Ok(())
    }

    fn submit(&self, candidates: &[(QueueId, Side)], record: Box<dyn PendingRecord>) {
        let topology = Arc::clone(&self.topology.read());
        let mut targets = Vec::with_capacity(candidates.len() * 2);
        for (queue, side) in candidates {
            for topic in topology.queue(*queue).into_iter().flat_map(|now| now.topics(*side)) {
                if !targets.contains(&topic) {
                    targets.push(topic);
                }
            }
        }
        if targets.is_empty() {
            return record.undelivered(Undelivered::NoQueue);
        }
        let refused = {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Open => (!state.table.enter()).then_some(Undelivered::Full),
                Phase::Draining | Phase::Closed => Some(Undelivered::Closed),
            }
        };
        if let Some(why) = refused {
            return record.undelivered(why);
        }
        let now_ns = self.clock.monotonic_ns();
        let patience_ns = record.patience().map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = patience_ns.map(|patience_ns| now_ns.saturating_add(patience_ns));
        let send = InFlightSend {
            record,
            targets: targets.into_boxed_slice(),
            at: 0,
            rounds: 0,
            failed: 0,
            overdue: 0,
            until_ns,
        };
        self.dispatch(&topology, send, now_ns);
    }

    /// Offers a record to each of its topics once, from the one that is next; puts it aside if none takes it.
    fn dispatch(&self, topology: &Topology, mut send: InFlightSend, now_ns: u64) {
        let mut too_large = 0;
        for _ in 0..send.targets.len() {
            let topic = &topology.topics[send.targets[send.at]];
            if topic.health.ask(now_ns) == Pass::Go {
                match self.send(topic, send, now_ns) {
                    Sent::Away => return,
                    Sent::Back(back, size) => {
                        send = back;
                        too_large += usize::from(size);
                    }
                }
            }
            send.at = (send.at + 1) % send.targets.len();
        }
        if too_large == send.targets.len() {
            return self.give_up(send, Undelivered::TooLarge);
        }
        self.put_aside(send, now_ns);
    }

    fn send(&self, topic: &TopicNow, send: InFlightSend, now_ns: u64) -> Sent {
        let tag = self.state.lock().table.reserve();
        topic.health.sending(now_ns);
        let record = OutRecord { key: send.record.key(), payload: send.record.payload() };
        match topic.producer.send(tag, record) {
            Ok(()) => {
                let timeout_ms = self.options.delivery_timeout_ms << send.overdue.min(5);
                let overdue_at_ns = now_ns.saturating_add(timeout_ms * 1_000_000);
                let after = self.state.lock().table.sent(tag, send, overdue_at_ns);
                match after {
                    AfterSend::Sent => Sent::Away,
                    AfterSend::Early(send, Delivery::Stored) => {
                        topic.health.stored(now_ns);
                        self.arrived(send);
                        Sent::Away
                    }
                    AfterSend::Early(send, Delivery::Failed(_) | Delivery::Unknown(_)) => {
                        topic.health.failed(now_ns);
                        Sent::Back(send, false)
                    }
                }
            }
            Err(refused) => {
                self.state.lock().table.refused(tag);
                let fault = matches!(refused, SendRefused::Unavailable(_) | SendRefused::Closed);
                topic.health.refused(fault, now_ns);
                Sent::Back(send, matches!(refused, SendRefused::TooLarge { .. }))
            }
        }
    }

    /// No topic takes it now: another round after a wait, or none if its patience is over.
    fn put_aside(&self, mut send: InFlightSend, now_ns: u64) {
        if send.until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            return self.give_up(send, Undelivered::PatienceOver);
        }
        let doubled = self.options.backoff_first_ms.saturating_mul(1 << send.rounds.min(16));
        let wait_ns = doubled.min(self.options.backoff_max_ms) * 1_000_000;
        let due_ns = now_ns.saturating_add(wait_ns);
        send.rounds = send.rounds.saturating_add(1);
        let due_ns = send.until_ns.map_or(due_ns, |until_ns| due_ns.min(until_ns));
        self.wait(due_ns, send);
    }

    fn wait(&self, due_ns: u64, send: InFlightSend) {
        let mut state = self.state.lock();
        if state.phase == Phase::Closed {
            drop(state);
            return self.give_up(send, Undelivered::Closed);
        }
        state.table.wait(due_ns, send);
        drop(state);
        self.wake.notify_one();
    }

    // Both count the record out last: when `close` finds none left, every owner has heard.
    fn arrived(&self, send: InFlightSend) {
        self.delivered.fetch_add(1, Relaxed);
        send.record.delivered();
        self.state.lock().table.leave();
    }

    fn give_up(&self, send: InFlightSend, why: Undelivered) {
        send.record.undelivered(why);
        self.state.lock().table.leave();
    }

    fn reported(&self, tag: Tag, delivery: &Delivery) {
        let taken = self.state.lock().table.reported(tag, delivery);
        let Some(mut send) = taken else { return };
        let now_ns = self.clock.monotonic_ns();
        let topic = Arc::clone(&self.topology.read().topics[send.targets[send.at]]);
        match delivery {
            Delivery::Stored => {
                topic.health.stored(now_ns);
                self.arrived(send);
            }
            Delivery::Failed(why) | Delivery::Unknown(why) => {
                tracing::debug!(topic = topic.name, why, "a record was not delivered; trying the next topic");
                topic.health.failed(now_ns);
                send.at = (send.at + 1) % send.targets.len();
                send.failed = send.failed.wrapping_add(1);
                // The driver's thread only notes it; the retry thread sends. A record that each topic takes and
                // then fails must not go round and round while others keep the breakers closed.
                if (send.failed as usize).is_multiple_of(send.targets.len()) {
                    self.put_aside(send, now_ns);
                } else {
                    self.wait(now_ns, send);
                }
            }
        }
    }

    fn run(&self) {
        loop {
            let now_ns = self.clock.monotonic_ns();
            loop {
                let (overdue, due) = {
                    let mut state = self.state.lock();
                    (state.table.take_overdue(now_ns), state.table.take_due(now_ns))
                };
                if overdue.is_none() && due.is_none() {
                    break;
                }
                // Read after the records: one of them may be bound for a topic that was opened just now.
                let topology = Arc::clone(&self.topology.read());
                if let Some(mut send) = overdue {
                    topology.topics[send.targets[send.at]].health.overdue(now_ns);
                    send.at = (send.at + 1) % send.targets.len();
                    send.overdue = send.overdue.saturating_add(1);
                    if send.until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                        self.give_up(send, Undelivered::PatienceOver);
                    } else {
                        self.retries.fetch_add(1, Relaxed);
                        self.dispatch(&topology, send, now_ns);
                    }
                }
                if let Some(send) = due {
                    self.retries.fetch_add(1, Relaxed);
                    self.dispatch(&topology, send, now_ns);
                }
            }
            let mut state = self.state.lock();
            if state.phase == Phase::Closed {
                return;
            }
            let now_ns = self.clock.monotonic_ns();
            let next_ns = state.table.next_ns().map_or(u64::MAX, |at_ns| at_ns.saturating_sub(now_ns));
            if next_ns > 0 {
                self.wake.wait_for(&mut state, Duration::from_nanos(next_ns.min(TICK_MS * 1_000_000)));
            }
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
        let started_ns = self.clock.monotonic_ns();
        let left = || {
            let gone = Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(started_ns));
            timeout.saturating_sub(gone)
        };
        while !left().is_zero() && self.state.lock().table.records > 0 {
            std::thread::sleep(left().min(Duration::from_millis(1)));
        }
        let topics = self.topology.read().topics.clone();
        for topic in &topics {
            topic.producer.close(left());
        }
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

    fn stats(&self) -> FanoutStats {
        let topics = self.topology.read().topics.clone();
        FanoutStats {
            pending_records: self.state.lock().table.records,
            delivered: self.delivered.load(Relaxed),
            retries: self.retries.load(Relaxed),
            topics: topics
                .iter()
                .map(|topic| TopicStats {
                    topic: topic.name.clone(),
                    sent: topic.health.sent.load(Relaxed),
                    stored: topic.health.stored.load(Relaxed),
                    failed: topic.health.failed.load(Relaxed),
                    in_flight: topic.health.in_flight(),
                    breaker_open: topic.health.is_open(),
                    breaker_trips: topic.health.trips(),
                })
                .collect(),
        }
    }
}

enum Sent {
    /// A producer has it, or a broker even.
    Away,
    /// Not taken; whether for its size.
    Back(InFlightSend, bool),
}
