//! The fan-out: owns the producers, sends parcels, retries them, and knows how each topic is doing.

use super::flight::{AfterSend, Flight, Flights};
use super::topology::{QueueId, Side, TopicNow, Topology};
use super::{Parcel, Undelivered};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::breaker::Pass;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OpenError, OutRecord, SendRefused, Tag};
use windfall_contract::declare_metrics;
use windfall_contract::rules::Rules;

/// The longest that the retry thread sleeps, so that an injected clock is noticed.
const TICK_MS: u64 = 20;

/// How patient a fan-out is with its topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FanoutOptions {
    /// An answer later than this is taken for lost and the record sent to the next topic. 100 to 120,000;
    /// default 3,000: longer than a broker's longest ordinary pause, shorter than a user's patience. It doubles
    /// with each answer that a record has missed, up to 32 times: brokers that are all slower than this would
    /// else be sent the same record for ever.
    pub delivery_timeout_ms: u64,
    /// A topic that holds records and reports nothing for so long gets no new ones. 50 to 60,000; default 500.
    pub hang_ms: u64,
    /// Wait before the second round over all topics; doubles with each round. 1 to 60,000; default 20.
    pub backoff_first_ms: u64,
    /// The longest wait between two rounds. 1 to 60,000; default 1,000.
    pub backoff_max_ms: u64,
    /// Failures in a row that open a topic's breaker. 1 to 1,000; default 3.
    pub breaker_failures: u32,
    /// An open breaker lets one record probe this often. 1 to 60,000; default 250.
    pub breaker_probe_ms: u64,
    /// Parcels in it at most; `submit` gives back what is more. 1 to 1,048,576; default 65,536.
    pub parcels_max: usize,
}

impl Default for FanoutOptions {
    fn default() -> Self {
        Self {
            delivery_timeout_ms: 3_000,
            hang_ms: 500,
            backoff_first_ms: 20,
            backoff_max_ms: 1_000,
            breaker_failures: 3,
            breaker_probe_ms: 250,
            parcels_max: 65_536,
        }
    }
}

impl FanoutOptions {
    fn check(&self) -> Result<(), OpenError> {
        let parcels_max = u64::try_from(self.parcels_max).unwrap_or(u64::MAX);
        for (name, value, low, high) in [
            ("delivery_timeout_ms", self.delivery_timeout_ms, 100, 120_000),
            ("hang_ms", self.hang_ms, 50, 60_000),
            ("backoff_first_ms", self.backoff_first_ms, 1, 60_000),
            ("backoff_max_ms", self.backoff_max_ms, 1, 60_000),
            ("breaker_failures", self.breaker_failures.into(), 1, 1_000),
            ("breaker_probe_ms", self.breaker_probe_ms, 1, 60_000),
            ("parcels_max", parcels_max, 1, 1 << 20),
        ] {
            if value < low || value > high {
                let what = format!("fan-out option {name} = {value}: {low} to {high} is allowed");
                return Err(OpenError::Invalid(what));
            }
        }
        Ok(())
    }
}

/// What `close` could not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseReport {
    /// Parcels given back as [`Undelivered::Closed`].
    pub undelivered: usize,
}

declare_metrics! {
    /// Counters of a fan-out since it was opened.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct FanoutStats {
        gauge "windfall_queue_waiting_packs" "Packs that the virtual queues have taken and no broker has stored" {
            /// Parcels in it now.
            pub parcels: usize,
        }
        counter "windfall_queue_delivered_packs_total" "Packs that a broker has stored" {
            /// Parcels that a broker has stored.
            pub delivered: u64,
        }
        counter "windfall_queue_retries_total" "Packs taken up again after a failure, a lost answer or a wait" {
            /// Parcels taken up again after a failure, a lost answer or a wait.
            pub retries: u64,
        }
        .. {
            /// By topic.
            pub topics: Vec<TopicStats>,
        }
    }
}

declare_metrics! {
    /// Counters of one topic.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct TopicStats {
        counter "windfall_queue_records_total" ["fate"]
        "Records sent to a topic: taken by its producer, reported stored, and refused, failed or overdue" {
            /// Records that its producer took.
            pub sent: u64 as "sent",
            /// Records reported stored.
            pub stored: u64 as "stored",
            /// Records refused, failed or overdue.
            pub failed: u64 as "failed",
        }
        gauge "windfall_queue_in_flight_records" "Records of which the broker has not said what became of them" {
            /// Records whose fate is open.
            pub in_flight: u64,
        }
        gauge "windfall_queue_breaker_open" "1 while a topic is passed by because its breaker is open" {
            /// Whether its breaker is open now.
            pub breaker_open: bool,
        }
        counter "windfall_queue_breaker_trips_total" "Times that a topic's breaker opened" {
            /// Times that its breaker opened.
            pub breaker_trips: u64,
        }
        .. {
            /// Its name.
            pub topic: String,
        }
    }
}

/// Sends parcels to queues. Cheap to share; `close` it before the last handle goes.
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
            state: Mutex::new(State { flights: Flights::new(options.parcels_max), phase: Phase::Open }),
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
    /// Parcels on their way go on as they are. Opening a topic may wait for its broker: meanwhile everything else
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

    /// Sends a parcel over the topics of `candidates`, in that order, each queue's `Side` first. Never blocks.
    /// Its fate comes by the parcel's own methods, perhaps before this returns.
    pub fn submit(&self, candidates: &[(QueueId, Side)], parcel: Box<dyn Parcel>) {
        self.inner.submit(candidates, parcel);
    }

    /// Counters.
    pub fn stats(&self) -> FanoutStats {
        self.inner.stats()
    }

    /// Takes no more parcels, goes on delivering until none is left or `timeout` is over, closes the producers,
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
    flights: Flights,
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

    fn submit(&self, candidates: &[(QueueId, Side)], parcel: Box<dyn Parcel>) {
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
            return parcel.undelivered(Undelivered::NoQueue);
        }
        let refused = {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Open => (!state.flights.enter()).then_some(Undelivered::Full),
                Phase::Draining | Phase::Closed => Some(Undelivered::Closed),
            }
        };
        if let Some(why) = refused {
            return parcel.undelivered(why);
        }
        let now_ns = self.clock.monotonic_ns();
        let patience_ns = parcel.patience().map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = patience_ns.map(|patience_ns| now_ns.saturating_add(patience_ns));
        let flight = Flight {
            parcel,
            targets: targets.into_boxed_slice(),
            at: 0,
            rounds: 0,
            failed: 0,
            overdue: 0,
            until_ns,
        };
        self.dispatch(&topology, flight, now_ns);
    }

    /// Offers a parcel to each of its topics once, from the one that is next; puts it aside if none takes it.
    fn dispatch(&self, topology: &Topology, mut flight: Flight, now_ns: u64) {
        let mut too_large = 0;
        for _ in 0..flight.targets.len() {
            let topic = &topology.topics[flight.targets[flight.at]];
            if topic.health.ask(now_ns) == Pass::Go {
                match self.send(topic, flight, now_ns) {
                    Sent::Away => return,
                    Sent::Back(back, size) => {
                        flight = back;
                        too_large += usize::from(size);
                    }
                }
            }
            flight.at = (flight.at + 1) % flight.targets.len();
        }
        if too_large == flight.targets.len() {
            return self.give_up(flight, Undelivered::TooLarge);
        }
        self.put_aside(flight, now_ns);
    }

    fn send(&self, topic: &TopicNow, flight: Flight, now_ns: u64) -> Sent {
        let tag = self.state.lock().flights.reserve();
        topic.health.sending(now_ns);
        let record = OutRecord { key: flight.parcel.key(), payload: flight.parcel.payload() };
        match topic.producer.send(tag, record) {
            Ok(()) => {
                let timeout_ms = self.options.delivery_timeout_ms << flight.overdue.min(5);
                let overdue_at_ns = now_ns.saturating_add(timeout_ms * 1_000_000);
                let after = self.state.lock().flights.sent(tag, flight, overdue_at_ns);
                match after {
                    AfterSend::Sent => Sent::Away,
                    AfterSend::Early(flight, Delivery::Stored) => {
                        topic.health.stored(now_ns);
                        self.arrived(flight);
                        Sent::Away
                    }
                    AfterSend::Early(flight, Delivery::Failed(_) | Delivery::Unknown(_)) => {
                        topic.health.failed(now_ns);
                        Sent::Back(flight, false)
                    }
                }
            }
            Err(refused) => {
                self.state.lock().flights.refused(tag);
                let fault = matches!(refused, SendRefused::Unavailable(_) | SendRefused::Closed);
                topic.health.refused(fault, now_ns);
                Sent::Back(flight, matches!(refused, SendRefused::TooLarge { .. }))
            }
        }
    }

    /// No topic takes it now: another round after a wait, or none if its patience is over.
    fn put_aside(&self, mut flight: Flight, now_ns: u64) {
        if flight.until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            return self.give_up(flight, Undelivered::PatienceOver);
        }
        let doubled = self.options.backoff_first_ms.saturating_mul(1 << flight.rounds.min(16));
        let wait_ns = doubled.min(self.options.backoff_max_ms) * 1_000_000;
        let due_ns = now_ns.saturating_add(wait_ns);
        flight.rounds = flight.rounds.saturating_add(1);
        let due_ns = flight.until_ns.map_or(due_ns, |until_ns| due_ns.min(until_ns));
        self.wait(due_ns, flight);
    }

    fn wait(&self, due_ns: u64, flight: Flight) {
        let mut state = self.state.lock();
        if state.phase == Phase::Closed {
            drop(state);
            return self.give_up(flight, Undelivered::Closed);
        }
        state.flights.wait(due_ns, flight);
        drop(state);
        self.wake.notify_one();
    }

    // Both count the parcel out last: when `close` finds none left, every owner has heard.
    fn arrived(&self, flight: Flight) {
        self.delivered.fetch_add(1, Relaxed);
        flight.parcel.delivered();
        self.state.lock().flights.leave();
    }

    fn give_up(&self, flight: Flight, why: Undelivered) {
        flight.parcel.undelivered(why);
        self.state.lock().flights.leave();
    }

    fn reported(&self, tag: Tag, delivery: &Delivery) {
        let taken = self.state.lock().flights.reported(tag, delivery);
        let Some(mut flight) = taken else { return };
        let now_ns = self.clock.monotonic_ns();
        let topic = Arc::clone(&self.topology.read().topics[flight.targets[flight.at]]);
        match delivery {
            Delivery::Stored => {
                topic.health.stored(now_ns);
                self.arrived(flight);
            }
            Delivery::Failed(why) | Delivery::Unknown(why) => {
                tracing::debug!(topic = topic.name, why, "a record was not delivered; trying the next topic");
                topic.health.failed(now_ns);
                flight.at = (flight.at + 1) % flight.targets.len();
                flight.failed = flight.failed.wrapping_add(1);
                // The driver's thread only notes it; the retry thread sends. A record that each topic takes and
                // then fails must not go round and round while others keep the breakers closed.
                if (flight.failed as usize).is_multiple_of(flight.targets.len()) {
                    self.put_aside(flight, now_ns);
                } else {
                    self.wait(now_ns, flight);
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
                    (state.flights.take_overdue(now_ns), state.flights.take_due(now_ns))
                };
                if overdue.is_none() && due.is_none() {
                    break;
                }
                // Read after the parcels: one of them may be bound for a topic that was opened just now.
                let topology = Arc::clone(&self.topology.read());
                if let Some(mut flight) = overdue {
                    topology.topics[flight.targets[flight.at]].health.overdue(now_ns);
                    flight.at = (flight.at + 1) % flight.targets.len();
                    flight.overdue = flight.overdue.saturating_add(1);
                    if flight.until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                        self.give_up(flight, Undelivered::PatienceOver);
                    } else {
                        self.retries.fetch_add(1, Relaxed);
                        self.dispatch(&topology, flight, now_ns);
                    }
                }
                if let Some(flight) = due {
                    self.retries.fetch_add(1, Relaxed);
                    self.dispatch(&topology, flight, now_ns);
                }
            }
            let mut state = self.state.lock();
            if state.phase == Phase::Closed {
                return;
            }
            let now_ns = self.clock.monotonic_ns();
            let next_ns = state.flights.next_ns().map_or(u64::MAX, |at_ns| at_ns.saturating_sub(now_ns));
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
        while !left().is_zero() && self.state.lock().flights.parcels > 0 {
            std::thread::sleep(left().min(Duration::from_millis(1)));
        }
        let topics = self.topology.read().topics.clone();
        for topic in &topics {
            topic.producer.close(left());
        }
        let rest = {
            let mut state = self.state.lock();
            state.phase = Phase::Closed;
            state.flights.drain()
        };
        self.wake.notify_all();
        let undelivered = rest.len();
        for flight in rest {
            self.give_up(flight, Undelivered::Closed);
        }
        CloseReport { undelivered }
    }

    fn stats(&self) -> FanoutStats {
        let topics = self.topology.read().topics.clone();
        FanoutStats {
            parcels: self.state.lock().flights.parcels,
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
    Back(Flight, bool),
}
