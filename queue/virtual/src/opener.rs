//! Opens and closes producers on threads of the fan-out, so that nobody waits for a broker that does not answer.
//!
//! An outbox that has no producer has one thread, which tries until it has one; so a broker that hangs in `producer`
//! holds up the topics of no other broker. The threads end with the fan-out. One that a driver holds captive then is
//! reported; it ends when its driver answers, and closes what it was given.

use super::options::FanoutOptions;
use super::outbox::{Outbox, TopicKey};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, DeliverySink, OpenError, Producer};

/// The wait after the first attempt that failed; it doubles up to `FanoutOptions::open_backoff_max_ms`.
const BACKOFF_FIRST_MS: u64 = 50;
/// How long the producer of a topic that is gone may take to close. It holds nothing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What opening needs, and the threads that do it.
pub(super) struct Opener {
    pub(super) brokers: BTreeMap<String, Arc<dyn Broker>>,
    pub(super) sink: Arc<dyn DeliverySink>,
    pub(super) options: FanoutOptions,
    pub(super) clock: Clock,
    signal: Mutex<Signal>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Times that a driver panicked while it opened or closed a topic, or took a record.
    pub(super) panics: AtomicU64,
}

#[derive(Default)]
struct Signal {
    /// Counts the rules that were taken over: what was invalid may be valid now.
    rules: u64,
    stop: bool,
}

impl Opener {
    pub(super) fn new(
        brokers: BTreeMap<String, Arc<dyn Broker>>,
        sink: Arc<dyn DeliverySink>,
        options: FanoutOptions,
        clock: Clock,
    ) -> Self {
        Self {
            brokers,
            sink,
            options,
            clock,
            signal: Mutex::default(),
            changed: Condvar::new(),
            threads: Mutex::default(),
            panics: AtomicU64::new(0),
        }
    }

    /// Rules were taken over: whoever waits before the next attempt looks again.
    pub(super) fn rules_changed(&self) {
        self.signal.lock().rules += 1;
        self.changed.notify_all();
    }

    /// Starts the thread that opens an outbox.
    pub(super) fn open(self: &Arc<Self>, outbox: &Arc<Outbox>) {
        let (own, taken) = (Arc::clone(self), Arc::clone(outbox));
        self.spawn("windfall-open", outbox, move || own.open_until_ready(&taken));
    }

    /// Starts the thread that closes the producer of a topic that is gone.
    pub(super) fn close(self: &Arc<Self>, outbox: &Arc<Outbox>, producer: Arc<dyn Producer>) {
        let own = Arc::clone(self);
        self.spawn("windfall-shut", outbox, move || {
            own.guarded(|| producer.close(CLOSE_TIMEOUT));
        });
    }

    fn spawn(&self, name: &str, outbox: &Arc<Outbox>, work: impl FnOnce() + Send + 'static) {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        let own = Arc::clone(outbox);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
            work();
            own.done();
        });
        match spawned {
            Ok(thread) => threads.push(thread),
            // The outbox is looked at again in a moment.
            Err(error) => {
                outbox.not_opened(format!("no thread can be started: {error}"), false);
                outbox.done();
            }
        }
    }

    fn open_until_ready(&self, outbox: &Outbox) {
        let mut backoff_ms = BACKOFF_FIRST_MS;
        while outbox.is_wanted() && !self.signal.lock().stop {
            let rules = self.signal.lock().rules;
            let opened = self.guarded(|| self.attempt(outbox));
            let (why, wait_ms) = match opened {
                Some(Ok(producer)) => {
                    if let Err(late) = outbox.opened(producer, self.clock.monotonic_ns()) {
                        self.guarded(|| late.close(Duration::ZERO));
                    }
                    return;
                }
                Some(Err(error @ OpenError::Invalid(_))) => {
                    outbox.not_opened(error.to_string(), true);
                    self.pause(rules, self.options.invalid_retry_ms);
                    continue;
                }
                Some(Err(error)) => (error.to_string(), backoff_ms),
                None => ("its driver panicked".to_owned(), backoff_ms),
            };
            outbox.not_opened(why, false);
            self.pause(rules, wait_ms);
            backoff_ms = (backoff_ms * 2).min(self.options.open_backoff_max_ms);
        }
    }

    fn attempt(&self, outbox: &Outbox) -> Result<Arc<dyn Producer>, OpenError> {
        let TopicKey { broker: name, name: topic } = &outbox.key;
        let broker = self.brokers.get(name).ok_or_else(|| {
            OpenError::Invalid(format!(
                "topic `{topic}` is on broker `{name}`, which the options do not name"
            ))
        })?;
        broker.ensure_topic(topic, outbox.partitions)?;
        broker.producer(topic, Arc::clone(&self.sink))
    }

    /// Calls a driver; `None` if it panicked.
    pub(super) fn guarded<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        if outcome.is_err() {
            self.panics.fetch_add(1, Relaxed);
        }
        outcome.ok()
    }

    /// Waits until the time is over, other rules come or the fan-out ends.
    fn pause(&self, rules: u64, wait_ms: u64) {
        let mut signal = self.signal.lock();
        if !signal.stop && signal.rules == rules {
            self.changed.wait_for(&mut signal, Duration::from_millis(wait_ms));
        }
    }

    /// Ends the threads, and waits for them at most `timeout`.
    pub(super) fn stop(&self, timeout: Duration) {
        self.signal.lock().stop = true;
        self.changed.notify_all();
        let started_ns = self.clock.monotonic_ns();
        let is_over = || {
            let gone_ns = self.clock.monotonic_ns().saturating_sub(started_ns);
            Duration::from_nanos(gone_ns) >= timeout
        };
        let mut threads = std::mem::take(&mut *self.threads.lock());
        loop {
            for thread in threads.extract_if(.., |thread| thread.is_finished()) {
                if thread.join().is_err() {
                    tracing::error!("a thread that opens topics had panicked");
                }
            }
            if threads.is_empty() {
                return;
            }
            if is_over() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let captive = threads.len();
        tracing::warn!(
            captive,
            "brokers are slow to open topics; the threads that wait for them end when they answer"
        );
    }
}
