//! The rules by which a record goes from one topic to the next, and the thread that retries.

use super::fanout::{Inner, Phase};
use super::in_flight::{AfterSend, InFlightSend};
use super::outbox::Outbox;
use super::pending::{PendingRecord, Undelivered};
use super::topology::{QueueId, Side, Topology};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use windfall_contract::breaker::Pass;
use windfall_contract::broker::{Delivery, OutRecord, Producer, SendRefused, Tag};

/// The longest that the retry thread sleeps, so that an injected clock is noticed and outboxes are tended.
const TICK_MS: u64 = 20;

enum Sent {
    /// A producer, or even a broker, has the record.
    Away,
    /// No topic took the record; true if it was refused for its size.
    Back(InFlightSend, bool),
}

impl Inner {
    pub(super) fn submit(&self, candidates: &[(QueueId, Side)], record: Box<dyn PendingRecord>) {
        let topology = Arc::clone(&self.topology.read());
        let targets = topology.targets(candidates);
        if targets.is_empty() {
            return record.undelivered(Undelivered::NoQueue);
        }
        let (first, mut queues) = (record.is_first(), candidates.iter());
        let place = {
            // Under the lock, so that `close` misses nobody.
            let state = self.state.lock();
            match state.phase {
                Phase::Open => {
                    queues.find_map(|(queue, _)| self.shares.take(*queue, first)).ok_or(Undelivered::Full)
                }
                Phase::Draining | Phase::Closed => Err(Undelivered::Closed),
            }
        };
        let place = match place {
            Ok(place) => place,
            Err(why) => return record.undelivered(why),
        };
        let now_ns = self.clock.monotonic_ns();
        let patience_ns = record.patience().map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = patience_ns.map(|patience_ns| now_ns.saturating_add(patience_ns));
        let send = InFlightSend {
            record,
            candidates: candidates.into(),
            targets,
            serial: topology.serial,
            at: 0,
            rounds: 0,
            failed: 0,
            overdue: 0,
            until_ns,
            place,
        };
        self.dispatch(&topology, send, now_ns);
    }

    /// Offers a record to each of its topics once, from the one that is next; puts it aside if none takes it.
    fn dispatch(&self, topology: &Topology, mut send: InFlightSend, now_ns: u64) {
        if send.serial != topology.serial && !retarget(topology, &mut send) {
            return self.give_up(send, Undelivered::NoQueue);
        }
        let mut too_large = 0;
        for _ in 0..send.targets.len() {
            let topic = Arc::clone(send.target());
            if let Some(producer) = topic.producer()
                && topic.health.ask(now_ns) == Pass::Go
            {
                match self.send(&topic, &producer, send, now_ns) {
                    Sent::Away => return,
                    Sent::Back(back, size) => {
                        send = back;
                        too_large += usize::from(size);
                    }
                }
            }
            send.advance();
        }
        if too_large == send.targets.len() {
            return self.give_up(send, Undelivered::TooLarge);
        }
        self.put_aside(send, now_ns);
    }

    fn send(&self, topic: &Outbox, producer: &Arc<dyn Producer>, send: InFlightSend, now_ns: u64) -> Sent {
        // Asked first: should the owner's code panic, nothing is counted yet.
        let record = OutRecord { key: send.record.key(), payload: send.record.payload() };
        let tag = self.state.lock().table.reserve();
        topic.health.sending(now_ns);
        // A driver that panics may have taken the record or not: it is sent again, as if its answer was lost. // I2
        match self.opener.guarded(|| producer.send(tag, record)) {
            None => {
                self.state.lock().table.refused(tag);
                topic.health.refused(Some("its driver panicked"), now_ns);
                Sent::Back(send, false)
            }
            Some(Ok(())) => {
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
                    AfterSend::Early(send, Delivery::Failed(why) | Delivery::Unknown(why)) => {
                        topic.health.failed(&why, now_ns);
                        Sent::Back(send, false)
                    }
                }
            }
            Some(Err(refused)) => {
                self.state.lock().table.refused(tag);
                match &refused {
                    SendRefused::Unavailable(why) => topic.health.refused(Some(why), now_ns),
                    SendRefused::Closed => {
                        topic.health.refused(Some("its producer is closed"), now_ns);
                        topic.lost(producer, now_ns);
                    }
                    SendRefused::Full | SendRefused::TooLarge { .. } => topic.health.refused(None, now_ns),
                }
                Sent::Back(send, matches!(refused, SendRefused::TooLarge { .. }))
            }
        }
    }

    /// Puts a record aside that no topic takes now: another round follows after a wait, unless its patience is over.
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

    // Both give the place back last: when `close` finds none taken, every owner has heard.
    fn arrived(&self, send: InFlightSend) {
        self.delivered.fetch_add(1, Relaxed);
        let InFlightSend { record, place, .. } = send;
        record.delivered();
        drop(place);
    }

    pub(super) fn give_up(&self, send: InFlightSend, why: Undelivered) {
        let InFlightSend { record, place, .. } = send;
        record.undelivered(why);
        drop(place);
    }

    pub(super) fn reported(&self, tag: Tag, delivery: &Delivery) {
        let taken = self.state.lock().table.reported(tag, delivery);
        let Some(mut send) = taken else { return };
        let now_ns = self.clock.monotonic_ns();
        match delivery {
            Delivery::Stored => {
                send.target().health.stored(now_ns);
                self.arrived(send);
            }
            Delivery::Failed(why) | Delivery::Unknown(why) => {
                let topic = send.target();
                tracing::debug!(
                    topic = topic.key.name,
                    why,
                    "a record was not delivered; trying the next topic"
                );
                topic.health.failed(why, now_ns);
                send.advance();
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

    /// The retry thread. A record that it holds when it panics is dropped, so its owner gets it back.
    pub(super) fn run_supervised(&self) {
        let is_over = || self.state.lock().phase == Phase::Closed;
        self.health.supervise("windfall-fanout", is_over, || self.run());
    }

    /// Sends what is due or overdue, and tends the outboxes.
    fn run(&self) {
        loop {
            let now_ns = self.clock.monotonic_ns();
            self.tend();
            while self.retry_one(now_ns) {}
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

    /// Takes up one record that is overdue and one that is due; whether there was any.
    fn retry_one(&self, now_ns: u64) -> bool {
        let (overdue, due) = {
            let mut state = self.state.lock();
            (state.table.take_overdue(now_ns), state.table.take_due(now_ns))
        };
        if overdue.is_none() && due.is_none() {
            return false;
        }
        let topology = Arc::clone(&self.topology.read());
        if let Some(mut send) = overdue {
            send.target().health.overdue(now_ns);
            send.advance();
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
        true
    }
}

/// Gives a record the topics of the rules in force, if they have changed since it was sent. Returns whether there are
/// any.
fn retarget(topology: &Topology, send: &mut InFlightSend) -> bool {
    let targets = topology.targets(&send.candidates);
    let next = targets.iter().position(|target| Arc::ptr_eq(target, send.target()));
    if targets.is_empty() {
        return false;
    }
    send.at = next.unwrap_or(0);
    send.targets = targets;
    send.serial = topology.serial;
    true
}
