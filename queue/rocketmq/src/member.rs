//! What a consumer and its tasks share.

use super::held::Held;
use super::options::RocketOptions;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use windfall_contract::broker::{Epoch, Fetch};
use windfall_rocketmq_wire::{CallError, Client, InMessage};

/// The number of held records, in whatever state, at which no more are requested: records that cannot be acknowledged
/// stay here.
const UNFINISHED_MAX: usize = 1 << 18;

/// A member of a group.
pub(super) struct Member {
    pub(super) client: Client,
    pub(super) options: RocketOptions,
    /// The topic's name at the server.
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) epoch: Epoch,
    pub(super) state: Mutex<State>,
    /// Signals that records came, or that a request failed.
    pub(super) arrived: Notify,
    /// Signals that a poll asks for more, or that it is time to stop.
    pub(super) wanted: Notify,
    /// Signals that an extension or an acknowledgement has ended.
    pub(super) settled: Notify,
    stopping: AtomicBool,
    reasons_to_repeat: Arc<AtomicU64>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) held: Held,
    /// The number of records that the last poll asked for, and when it did.
    demand: usize,
    last_poll: Option<Instant>,
    pub(super) paused: bool,
    /// Records that were requested and have not arrived.
    promised: usize,
    /// Why no records come; `None` while they could.
    pub(super) trouble: Option<String>,
    /// When a request, even one that brought nothing, last went well.
    last_success: Option<Instant>,
}

impl Member {
    pub(super) fn new(
        client: Client,
        options: RocketOptions,
        topic: String,
        (partition, epoch): (u32, Epoch),
        reasons_to_repeat: Arc<AtomicU64>,
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
            reasons_to_repeat,
        }
    }

    /// Counts records that may come again though they are finished.
    pub(super) fn may_repeat(&self, records: usize) {
        self.reasons_to_repeat.fetch_add(records as u64, Ordering::Relaxed);
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
        // I9.
        let full = state.held.ready_bytes() >= self.options.prefetch_bytes
            || state.held.unfinished() + state.promised >= UNFINISHED_MAX;
        if state.paused || full || coming >= target {
            return None;
        }
        // Each stream asks for its share: one that waits at an empty broker must not have asked for all.
        let share = target.div_ceil(self.options.receive_streams.max(1)).min(target - coming);
        let count = u16::try_from(share).unwrap_or(u16::MAX).min(self.options.receive_records);
        state.promised += usize::from(count);
        Some(count)
    }

    /// Notes the end of a request that had asked for `promised` records.
    pub(super) fn fulfilled(&self, promised: u16, outcome: &Result<usize, CallError>, now: Instant) {
        let mut state = self.state.lock();
        state.promised -= usize::from(promised);
        match outcome {
            Ok(_) => (state.trouble, state.last_success) = (None, Some(now)),
            Err(error) if state.last_success.is_none_or(|last| now > last + self.patience()) => {
                state.trouble = Some(error.to_string());
            }
            // One broker of several: the others still bring records.
            Err(_) => {}
        }
        drop(state);
        self.arrived.notify_waiters();
    }

    /// The time that a stream may need for one request at a silent broker and the next at another.
    fn patience(&self) -> Duration {
        2 * (Duration::from_millis(self.options.receive_wait_ms) + self.options.timeout())
    }

    pub(super) fn arrived(&self, message: InMessage) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.held.arrived(message, now, self.options.invisible());
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

    /// The number of records that are received and not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.state.lock().held.unfinished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::broker::OpenError;
    use windfall_rocketmq_wire::{Body, Role};

    /// Of a server that is not there.
    fn member(options: RocketOptions) -> Result<Member, OpenError> {
        let options = RocketOptions { endpoints: vec!["127.0.0.1:1".into()], ..options };
        let role = Role::Consumer { group: "g".into(), topics: vec!["t".into()] };
        let client = Client::open(&options.client(), role);
        let client = client.map_err(|error| OpenError::Invalid(error.to_string()))?;
        Ok(Member::new(client, options, "t".into(), (0, Epoch(1)), Arc::default()))
    }

    fn poll(member: &Member, max_records: usize) {
        member.polled(Fetch { max_records, max_bytes: 1 << 20, wait: Duration::ZERO });
    }

    #[tokio::test]
    async fn streams_share_what_is_asked_for() -> Result<(), OpenError> {
        let member = member(RocketOptions::default())?;
        assert_eq!(member.promise(), None, "nobody asks");
        poll(&member, 5);
        let promises: Vec<_> = std::iter::from_fn(|| member.promise()).collect();
        assert_eq!(promises, [3, 3, 3, 1]);
        poll(&member, 1000);
        assert_eq!(member.promise(), Some(32));
        Ok(())
    }

    /// I9: acknowledgements fail while records come.
    #[tokio::test]
    async fn what_is_unfinished_has_a_bound() -> Result<(), OpenError> {
        let member = member(RocketOptions::default())?;
        let fetch = Fetch { max_records: 1 << 20, max_bytes: 1 << 20, wait: Duration::ZERO };
        member.polled(fetch);
        for _ in 0..UNFINISHED_MAX {
            member.arrived(InMessage {
                id: String::new(),
                handle: "h".into(),
                properties: [].into(),
                body: Body::Plain(Default::default()),
                attempt: 1,
            });
        }
        member.state.lock().held.take(fetch, 0, Epoch(1));
        assert_eq!(member.promise(), None);
        member.state.lock().held.remove(0);
        assert_eq!(member.promise(), Some(32));
        assert_eq!(member.promise(), None);
        Ok(())
    }

    #[tokio::test]
    async fn one_broker_of_two_is_no_trouble() -> Result<(), OpenError> {
        let member = member(RocketOptions::default())?;
        let trouble = || member.state.lock().trouble.clone();
        let dead = Err(CallError::NotSent { place: "p".into(), what: "refused".into() });
        let now = Instant::now();
        member.fulfilled(0, &dead, now);
        assert!(trouble().is_some(), "nothing has ever come");
        member.fulfilled(0, &Ok(0), now);
        assert_eq!(trouble(), None);
        let patience = member.patience();
        member.fulfilled(0, &dead, now + patience);
        assert_eq!(trouble(), None);
        member.fulfilled(0, &dead, now + patience + Duration::from_millis(1));
        assert!(trouble().is_some_and(|what| what.contains("refused")));
        Ok(())
    }
}
