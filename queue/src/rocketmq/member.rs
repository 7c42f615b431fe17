//! What a consumer and its tasks share.

use super::held::Held;
use super::options::RocketOptions;
use crate::contract::{Epoch, Fetch};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use windfall_rocketmq::{CallError, Client, InMessage};

/// A member of a group.
pub(super) struct Member {
    pub(super) client: Client,
    pub(super) options: RocketOptions,
    /// As the server knows it.
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) epoch: Epoch,
    pub(super) state: Mutex<State>,
    /// Records came, or a request failed.
    pub(super) arrived: Notify,
    /// A poll asks for more, or it is time to stop.
    pub(super) wanted: Notify,
    /// An extension or an acknowledgement came to its end.
    pub(super) settled: Notify,
    stopping: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) held: Held,
    /// What the last poll asked for, and when.
    demand: usize,
    last_poll: Option<Instant>,
    pub(super) paused: bool,
    /// Asked for and not yet arrived.
    promised: usize,
    /// Why nothing comes; none while something could.
    pub(super) trouble: Option<String>,
}

impl Member {
    pub(super) fn new(
        client: Client,
        options: RocketOptions,
        topic: String,
        partition: u32,
        epoch: Epoch,
    ) -> Self {
        Self {
            client,
            options,
            topic,
            partition,
            epoch,
            state: Mutex::default(),
            arrived: Notify::new(),
            wanted: Notify::new(),
            settled: Notify::new(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn polled(&self, fetch: Fetch) {
        let mut state = self.state.lock();
        state.demand = fetch.max_records;
        state.last_poll = Some(Instant::now());
        drop(state);
        self.wanted.notify_waiters();
    }

    /// Whether polls still come: only then is what we hold kept from others.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        let patience = Duration::from_millis(self.options.session_timeout_ms);
        self.state.lock().last_poll.is_some_and(|last| now.duration_since(last) < patience)
    }

    /// How many records a request may ask for now; they are promised from then on.
    pub(super) fn promise(&self) -> Option<u16> {
        let mut state = self.state.lock();
        let target = state.demand.saturating_mul(2).min(self.options.prefetch_records);
        let coming = state.held.ready() + state.promised;
        if state.paused || coming >= target || state.held.ready_bytes() >= self.options.prefetch_bytes {
            return None;
        }
        let count = u16::try_from(target - coming).unwrap_or(u16::MAX).min(self.options.receive_records);
        state.promised += usize::from(count);
        Some(count)
    }

    /// A request that had asked for `promised` is over.
    pub(super) fn fulfilled(&self, promised: u16, outcome: &Result<usize, CallError>) {
        let mut state = self.state.lock();
        state.promised -= usize::from(promised);
        state.trouble = outcome.as_ref().err().map(ToString::to_string);
        drop(state);
        self.arrived.notify_waiters();
    }

    pub(super) fn arrived(&self, message: InMessage) {
        // Hidden since a moment ago, but the margin of extensions is half of the duration.
        let hidden_until = Instant::now() + self.options.invisible();
        let mut state = self.state.lock();
        state.held.arrived(message, hidden_until);
        drop(state);
        self.arrived.notify_waiters();
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wanted.notify_waiters();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Received and not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.state.lock().held.unfinished()
    }
}
