//! Events that are being requeued, or stored in the spill log where no queue takes them. What was stored in one or the
//! other is reported to the loop, which settles it (I2, I3).

use crate::in_flight::Key;
use crate::outbox::{Outbox, PendingRequeue, RetryMetadata};
use crate::requeue::{RequeueOutcome, RequeueRecord, RequeueSink};
use crate::requeue_calls::RequeueCalls;
use crate::requeue_delay::Jitter;
use crate::spill_log::{RouteId, SpillError, SpillLog};
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};
use windfall_contract::rules::Pacing;

/// The number of records that the sink has at once; more wait until one of these is answered.
const REQUEUES_IN_FLIGHT_MAX: usize = 1024;
/// The number of records of one route that the sink has at once, so that queues that are away do not starve the others.
const REQUEUES_OF_ROUTE_MAX: usize = 256;
/// How long refused records wait before the queues are tried again, where the spill log fails too.
const TRY_AGAIN_NS: u64 = 500 * NS_PER_MS;

/// All events that are being requeued.
pub(crate) struct RetryState {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    log: Arc<SpillLog>,
    outbox: Outbox,
    /// The records that wait for room at the sink, by route.
    waiting: BTreeMap<RouteId, VecDeque<PendingRequeue>>,
    /// The route that was served last.
    served: Option<RouteId>,
    requeues: RequeueCalls<(RouteId, PendingRequeue)>,
    /// The number of each route's records that the sink has.
    with_sink: HashMap<RouteId, usize>,
    /// The refused records, which go to the spill log.
    refused: Vec<PendingRequeue>,
    /// The records that the one task of `appends` is appending to it.
    appending: Vec<PendingRequeue>,
    appends: JoinSet<Result<(), SpillError>>,
    /// The records that the log did not take either, until the queues are tried again.
    stranded: Vec<PendingRequeue>,
    try_again_ns: u64,
    jitter: Jitter,
    /// The number of events in records of all states.
    events: u64,
    /// Events that were stored and are not settled yet, by record.
    stored: Vec<(Key, u32)>,
}

/// An answer of the sink or the spill log.
pub(crate) enum RetryAnswer {
    Requeued((RouteId, PendingRequeue), RequeueOutcome),
    Appended(Result<Result<(), SpillError>, JoinError>),
}

impl RetryState {
    pub fn new(
        topic: Arc<str>,
        sink: Arc<dyn RequeueSink>,
        log: Arc<SpillLog>,
        jitter_seed: u64,
        stats: Arc<ConsumerStats>,
    ) -> Self {
        Self {
            topic,
            stats,
            log,
            outbox: Outbox::default(),
            waiting: BTreeMap::new(),
            served: None,
            with_sink: HashMap::new(),
            requeues: RequeueCalls::new(sink, REQUEUES_IN_FLIGHT_MAX),
            refused: Vec::new(),
            appending: Vec::new(),
            appends: JoinSet::new(),
            stranded: Vec::new(),
            try_again_ns: 0,
            jitter: Jitter::new(jitter_seed),
            events: 0,
            stored: Vec::new(),
        }
    }

    pub fn push(&mut self, metadata: &RetryMetadata, after_ms: u64, key: Key, event: Bytes) {
        self.events += 1;
        self.outbox.push(metadata, after_ms, key, event);
    }

    /// Writes back a malformed record as it came.
    pub fn push_record(&mut self, key: Key, record: Bytes) {
        self.events += 1;
        self.outbox.push_raw(key, record);
    }

    /// Whether no more should come in, because as much is being requeued as one lane may hold.
    pub fn is_full(&self, pacing: &Pacing) -> bool {
        self.events >= u64::from(pacing.lane_events_max)
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Gives to the sink what may go, and to the spill log what the sink has refused.
    pub fn turn(&mut self, pacing: &Pacing, now_ns: u64, wall_ms: impl FnOnce() -> i64) {
        if now_ns >= self.try_again_ns {
            for pending in std::mem::take(&mut self.stranded) {
                self.waits(pending);
            }
        }
        if !self.outbox.is_empty() {
            for pending in self.outbox.take(pacing, wall_ms(), &mut self.jitter) {
                self.waits(pending);
            }
        }
        while !self.requeues.is_full() {
            let Some((route, pending)) = self.next_waiting() else { break };
            let record = pending.build();
            let pending = self.keep_parts(pending);
            *self.with_sink.entry(route).or_default() += 1;
            self.requeues.begin((route, pending), record);
        }
        if !self.refused.is_empty() && self.appends.is_empty() {
            self.appending = std::mem::take(&mut self.refused);
            let records: Vec<RequeueRecord> = self.appending.iter().map(PendingRequeue::build).collect();
            let log = Arc::clone(&self.log);
            self.appends.spawn_blocking(move || log.append(&records));
        }
    }

    /// Keeps the records that a copy is of until it is stored.
    #[cfg(not(feature = "sabotage"))]
    #[inline]
    fn keep_parts(&mut self, pending: PendingRequeue) -> PendingRequeue {
        pending
    }

    /// Keeps the records that a copy is of until it is stored, unless the promise is to be broken.
    #[cfg(feature = "sabotage")]
    fn keep_parts(&mut self, mut pending: PendingRequeue) -> PendingRequeue {
        if crate::sabotage::is_early_copy() {
            self.stored.append(&mut pending.parts);
        }
        pending
    }

    fn waits(&mut self, pending: PendingRequeue) {
        self.waiting.entry(pending.route()).or_default().push_back(pending);
    }

    /// The next record that may go to the sink: routes take turns.
    fn next_waiting(&mut self) -> Option<(RouteId, PendingRequeue)> {
        let may_go = |route: &RouteId| {
            self.with_sink.get(route).is_none_or(|&records| records < REQUEUES_OF_ROUTE_MAX)
        };
        let mut behind = self.waiting.range((self.served.map_or(Unbounded, Excluded), Unbounded));
        let route = behind
            .find(|(route, _)| may_go(route))
            .or_else(|| self.waiting.iter().find(|(route, _)| may_go(route)));
        let route = *route?.0;
        self.served = Some(route);
        let queue = self.waiting.get_mut(&route)?;
        let pending = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&route);
        }
        Some((route, pending?))
    }

    /// Waits for an answer; for ever where none is due. Cancel-safe.
    pub async fn next(&mut self) -> RetryAnswer {
        tokio::select! {
            biased;
            (what, outcome) = self.requeues.next() => RetryAnswer::Requeued(what, outcome),
            Some(appended) = self.appends.join_next() => RetryAnswer::Appended(appended),
        }
    }

    /// An answer that is there already.
    pub fn try_next(&mut self) -> Option<RetryAnswer> {
        if let Some((what, outcome)) = self.requeues.try_next() {
            return Some(RetryAnswer::Requeued(what, outcome));
        }
        self.appends.try_join_next().map(RetryAnswer::Appended)
    }

    /// Takes in an answer. What it says is stored waits to be taken by [`take_stored`](Self::take_stored).
    pub fn take_in(&mut self, answer: RetryAnswer, now_ns: u64) {
        match answer {
            RetryAnswer::Requeued((route, pending), outcome) => {
                self.is_answered(route);
                match outcome {
                    RequeueOutcome::Stored => {
                        self.stats.requeues_stored.add(1);
                        self.is_stored(pending);
                    }
                    RequeueOutcome::Refused => {
                        self.stats.requeues_refused.add(1);
                        self.refused.push(pending);
                    }
                }
            }
            RetryAnswer::Appended(Ok(Ok(()))) => {
                let appended = std::mem::take(&mut self.appending);
                self.stats.salvaged.add(appended.len() as u64);
                appended.into_iter().for_each(|pending| self.is_stored(pending));
            }
            RetryAnswer::Appended(Ok(Err(error))) => self.append_failed(&error, now_ns),
            RetryAnswer::Appended(Err(error)) => self.append_failed(&error, now_ns),
        }
    }

    /// I3: these events are safe elsewhere, so their records need not keep them.
    pub fn take_stored(&mut self) -> impl Iterator<Item = (Key, u32)> {
        self.stored.drain(..)
    }

    fn is_answered(&mut self, route: RouteId) {
        if let Some(records) = self.with_sink.get_mut(&route) {
            *records = records.saturating_sub(1);
            if *records == 0 {
                self.with_sink.remove(&route);
            }
        }
    }

    fn is_stored(&mut self, pending: PendingRequeue) {
        self.events = self.events.saturating_sub(pending.events().into());
        self.stored.extend(pending.parts);
    }

    /// Keeps events that neither a queue nor the log has: they stay in flight, and the queues are tried again.
    fn append_failed(&mut self, error: &dyn std::fmt::Display, now_ns: u64) {
        self.stats.salvage_failed.add(1);
        let records = self.appending.len();
        tracing::error!(topic = %self.topic, %error, records, "refused records cannot be written to the salvage file");
        self.try_again_ns = now_ns + TRY_AGAIN_NS;
        self.stranded.append(&mut self.appending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlightTable;
    use crate::in_flight::tests::record_in;
    use crate::requeue::Done;
    use parking_lot::Mutex;
    use windfall_proto::event::EventRef;

    /// Keeps what is for the scene `away`, and stores everything else at once.
    #[derive(Default)]
    struct HalfAway(Mutex<Vec<Done>>, Mutex<usize>);

    impl RequeueSink for HalfAway {
        fn requeue(&self, record: RequeueRecord, done: Done) {
            if record.scene == "away" {
                return self.0.lock().push(done);
            }
            *self.1.lock() += 1;
            done(RequeueOutcome::Stored);
        }
    }

    /// Ten thousand copies for queues that do not answer stood before all others.
    #[test]
    fn copies_for_queues_that_are_away_leave_room_to_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(SpillLog::open(dir.path(), 1 << 20).unwrap());
        let sink = Arc::new(HalfAway::default());
        let mut retries = RetryState::new("rain".into(), Arc::clone(&sink) as _, log, 1, Arc::default());
        let key = InFlightTable::default().insert(record_in(0));
        let push = |retries: &mut RetryState, scene: &str, not_before_ms: i64| {
            let mut event = Vec::new();
            EventRef { trade_no: "1.", activity: "spring", scene, bonus_type: "cash", ..EventRef::default() }
                .encode([], &mut event);
            // Records of different due times do not travel together.
            let past = RetryMetadata {
                bonus_type: "cash".into(),
                attempt: 1,
                failures: 0,
                origin: 0,
                not_before_ms,
            };
            retries.push(&past, 0, key, event.into());
        };
        (1..=10_000).for_each(|n| push(&mut retries, "away", n));
        (10_001..=13_000).for_each(|n| push(&mut retries, "here", n));
        let pacing = Pacing::default();
        for _ in 0..20 {
            retries.turn(&pacing, 0, || 0);
            while let Some(answer) = retries.try_next() {
                retries.take_in(answer, 0);
            }
        }
        assert_eq!((sink.0.lock().len(), *sink.1.lock()), (REQUEUES_OF_ROUTE_MAX, 3_000));
    }
}
