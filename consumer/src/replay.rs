//! Gives the records of the spill log to the queues again, until none is left.

use crate::requeue::{RequeueOutcome, RequeueRecord, RequeueSink};
use crate::requeue_calls::RequeueCalls;
use crate::spill_log::{EntryId, RouteId, SpillError, SpillLog};
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// The number of entries that are replayed at once.
const REPLAY_MOST: usize = 32;
const REPLAY_EVERY_NS: u64 = 1_000 * NS_PER_MS;
/// Queues that are back get the spilled records within this time, and the next ones at once.
const REPLAY_PAUSE_MAX_NS: u64 = 10_000 * NS_PER_MS;

/// The replay of the process's spill log by one of its consumers. Several may replay at once: an entry is taken by
/// one of them at a time, and an entry whose replay is dropped waits for the next one.
///
/// A route whose queues refuse rests, and then one entry of it tries them: the entries of other routes do not wait
/// behind it.
pub(crate) struct Replay {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    log: Arc<SpillLog>,
    requeues: RequeueCalls<(EntryId, RouteId)>,
    /// The task that takes the next entries; there is one at most.
    takes: JoinSet<Result<Taken, SpillError>>,
    take_at_ns: u64,
    resting: HashMap<RouteId, Rest>,
    answered: Vec<(EntryId, RequeueOutcome)>,
    settles: JoinSet<Result<(), SpillError>>,
}

/// A route whose queues have refused.
#[derive(Debug, Clone, Copy)]
struct Rest {
    until_ns: u64,
    pause_ns: u64,
    /// Whether an entry is trying the queues now.
    is_tried: bool,
}

/// An answer of the sink or the log.
pub(crate) enum ReplayAnswer {
    Requeued((EntryId, RouteId), RequeueOutcome),
    Taken(Result<Result<Taken, SpillError>, JoinError>),
    Settled(Result<Result<(), SpillError>, JoinError>),
}

/// Entries taken, with their records.
pub(crate) struct Taken {
    entries: Unsettled,
    records: Vec<RequeueRecord>,
}

/// Entries that were taken, each with its outcome as far as it is known. They are settled when it is dropped: no other
/// code would report their outcome, and they would neither be replayed nor freed while the process lives.
struct Unsettled {
    log: Arc<SpillLog>,
    entries: Vec<(EntryId, RequeueOutcome)>,
}

impl Replay {
    pub fn new(
        topic: Arc<str>,
        sink: Arc<dyn RequeueSink>,
        log: Arc<SpillLog>,
        stats: Arc<ConsumerStats>,
    ) -> Self {
        Self {
            topic,
            stats,
            log,
            requeues: RequeueCalls::new(sink, REPLAY_MOST),
            takes: JoinSet::new(),
            take_at_ns: 0,
            resting: HashMap::new(),
            answered: Vec::new(),
            settles: JoinSet::new(),
        }
    }

    /// Settles what was answered, and takes the next entries when it is time for them, if it may.
    pub fn turn(&mut self, may_take: bool, now_ns: u64) {
        if !self.answered.is_empty() {
            let answered = std::mem::take(&mut self.answered);
            let answered = self.unsettled(answered);
            self.settles.spawn_blocking(move || answered.settle());
        }
        // What waits for one route's queues leaves room to the others.
        let has_room = self.takes.is_empty() && self.requeues.len() <= REPLAY_MOST / 2;
        if may_take && has_room && now_ns >= self.take_at_ns {
            let (log, most) = (Arc::clone(&self.log), REPLAY_MOST - self.requeues.len());
            let of_resting = |rest: &Rest| usize::from(!rest.is_tried && now_ns >= rest.until_ns);
            let of_route: HashMap<RouteId, usize> =
                self.resting.iter().map(|(&route, rest)| (route, of_resting(rest))).collect();
            self.takes.spawn_blocking(move || Taken::from_log(log, most, &of_route));
        }
    }

    /// Waits for an answer; for ever where none is due. Cancel-safe.
    pub async fn next(&mut self) -> ReplayAnswer {
        tokio::select! {
            (what, outcome) = self.requeues.next() => ReplayAnswer::Requeued(what, outcome),
            Some(taken) = self.takes.join_next() => ReplayAnswer::Taken(taken),
            Some(settled) = self.settles.join_next() => ReplayAnswer::Settled(settled),
        }
    }

    /// An answer that is there already.
    pub fn try_next(&mut self) -> Option<ReplayAnswer> {
        if let Some((what, outcome)) = self.requeues.try_next() {
            return Some(ReplayAnswer::Requeued(what, outcome));
        }
        if let Some(taken) = self.takes.try_join_next() {
            return Some(ReplayAnswer::Taken(taken));
        }
        self.settles.try_join_next().map(ReplayAnswer::Settled)
    }

    pub fn take_in(&mut self, answer: ReplayAnswer, now_ns: u64) {
        match answer {
            ReplayAnswer::Requeued((entry, route), outcome) => self.requeued(entry, route, outcome, now_ns),
            ReplayAnswer::Taken(taken) => {
                self.take_at_ns = now_ns + REPLAY_EVERY_NS;
                match taken {
                    Ok(Ok(taken)) => self.begin(taken),
                    Ok(Err(error)) => self.warn(&error, "the salvage file cannot be read"),
                    Err(error) => self.warn(&error, "the task that reads the salvage file ended by itself"),
                }
            }
            ReplayAnswer::Settled(Ok(Ok(()))) => {}
            ReplayAnswer::Settled(Ok(Err(error))) => self.warn(&error, "the salvage file could not be cut"),
            ReplayAnswer::Settled(Err(error)) => {
                self.warn(&error, "the task that cuts the salvage file ended by itself");
            }
        }
    }

    fn begin(&mut self, taken: Taken) {
        let Taken { mut entries, records } = taken;
        // From here on the calls have them.
        let ids = std::mem::take(&mut entries.entries);
        for ((entry, _), record) in ids.into_iter().zip(records) {
            let route = RouteId::of(&record);
            if let Some(rest) = self.resting.get_mut(&route) {
                rest.is_tried = true;
            }
            self.requeues.begin((entry, route), record);
        }
    }

    fn requeued(&mut self, entry: EntryId, route: RouteId, outcome: RequeueOutcome, now_ns: u64) {
        match outcome {
            RequeueOutcome::Stored => {
                self.stats.replayed.add(1);
                self.resting.remove(&route);
                // These queues take records again: the next ones follow at once, until none is left.
                self.take_at_ns = 0;
            }
            RequeueOutcome::Refused => {
                let rest = self.resting.entry(route).or_insert(Rest {
                    until_ns: 0,
                    pause_ns: REPLAY_EVERY_NS,
                    is_tried: false,
                });
                // Once per batch, however many entries of it were refused.
                if now_ns >= rest.until_ns {
                    rest.until_ns = now_ns + rest.pause_ns;
                    rest.pause_ns = (rest.pause_ns * 2).min(REPLAY_PAUSE_MAX_NS);
                }
                rest.is_tried = false;
            }
        }
        self.answered.push((entry, outcome));
    }

    fn unsettled(&self, entries: Vec<(EntryId, RequeueOutcome)>) -> Unsettled {
        Unsettled { log: Arc::clone(&self.log), entries }
    }

    fn warn(&self, error: &dyn std::fmt::Display, what: &str) {
        tracing::warn!(topic = %self.topic, %error, "{what}");
    }
}

impl Drop for Replay {
    /// Leaves the entries that are still with the sink to the next replay.
    fn drop(&mut self) {
        // What has been stored meanwhile need not be replayed again.
        while let Some(((entry, _), outcome)) = self.requeues.try_next() {
            self.answered.push((entry, outcome));
        }
        let in_flight = self.requeues.give_up().map(|(entry, _)| (entry, RequeueOutcome::Refused));
        let mut entries = std::mem::take(&mut self.answered);
        entries.extend(in_flight);
        drop(self.unsettled(entries));
    }
}

impl Taken {
    fn from_log(
        log: Arc<SpillLog>,
        most: usize,
        of_route: &HashMap<RouteId, usize>,
    ) -> Result<Self, SpillError> {
        let taken = log.take_by(most, |route| of_route.get(&route).copied().unwrap_or(most))?;
        let (ids, records): (Vec<EntryId>, Vec<RequeueRecord>) = taken.into_iter().unzip();
        let entries = ids.into_iter().map(|entry| (entry, RequeueOutcome::Refused)).collect();
        Ok(Self { entries: Unsettled { log, entries }, records })
    }
}

impl Unsettled {
    /// Settles each entry, though one fails: the first failure is returned.
    fn settle(mut self) -> Result<(), SpillError> {
        self.settle_all()
    }

    fn settle_all(&mut self) -> Result<(), SpillError> {
        let settle = |(entry, outcome)| self.log.settle(entry, outcome);
        std::mem::take(&mut self.entries).into_iter().map(settle).fold(Ok(()), Result::and)
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Err(error) = self.settle_all() {
            tracing::warn!(%error, "the salvage file could not be cut");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requeue::Done;
    use std::time::Duration;

    struct NoQueue;

    impl RequeueSink for NoQueue {
        fn requeue(&self, _: RequeueRecord, done: Done) {
            done(RequeueOutcome::Refused);
        }
    }

    fn log_of_three(dir: &std::path::Path) -> Arc<SpillLog> {
        let log = SpillLog::open(dir, 1 << 20).unwrap();
        let record = |n: i64| RequeueRecord {
            bonus_type: "cash".into(),
            activity: "spring".into(),
            scene: "rain".into(),
            first_user_id: n,
            key: vec![b'k'],
            payload: vec![b'p'],
            events: 1,
        };
        log.append(&[record(1), record(2), record(3)]).unwrap();
        Arc::new(log)
    }

    async fn until(log: &SpillLog, waiting: usize) {
        for _ in 0..10_000 {
            if log.waiting() == waiting {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} entries wait, not {waiting}", log.waiting());
    }

    /// The task had taken entries for a loop that then ended. Nobody settled them, so the other consumers of the
    /// process never replayed them, and a log that was emptied never shrank.
    #[tokio::test]
    async fn entries_taken_for_a_loop_that_has_ended_wait_for_whoever_replays_next() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_of_three(dir.path());
        let mut replay = Replay::new("rain".into(), Arc::new(NoQueue), Arc::clone(&log), Arc::default());
        replay.turn(true, 0);
        until(&log, 0).await;
        drop(replay);
        until(&log, 3).await;
    }

    /// Takes what is not for the one route whose queues are away.
    #[derive(Default)]
    struct AllBut(parking_lot::Mutex<Vec<i64>>);

    impl RequeueSink for AllBut {
        fn requeue(&self, record: RequeueRecord, done: Done) {
            if record.scene == "away" {
                return done(RequeueOutcome::Refused);
            }
            self.0.lock().push(record.first_user_id);
            done(RequeueOutcome::Stored);
        }
    }

    /// A thousand entries whose queues are away stood before the one that could go, and were taken again and again.
    #[tokio::test]
    async fn entries_of_a_route_whose_queues_are_away_do_not_starve_those_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(SpillLog::open(dir.path(), 1 << 20).unwrap());
        let record = |scene: &str, n: i64| RequeueRecord {
            bonus_type: "cash".into(),
            activity: "spring".into(),
            scene: scene.into(),
            first_user_id: n,
            key: vec![b'k'],
            payload: vec![b'p'],
            events: 1,
        };
        let mut records: Vec<_> = (0..1_000).map(|n| record("away", n)).collect();
        records.extend((0..100).map(|n| record("here", n)));
        log.append(&records).unwrap();
        let sink = Arc::new(AllBut::default());
        let mut replay = Replay::new("rain".into(), Arc::clone(&sink) as _, Arc::clone(&log), Arc::default());
        let mut now_ns = 0;
        while sink.0.lock().len() < 100 {
            assert!(now_ns < 10 * REPLAY_EVERY_NS, "only {} were replayed", sink.0.lock().len());
            replay.turn(true, now_ns);
            match tokio::time::timeout(Duration::from_millis(50), replay.next()).await {
                Ok(answer) => replay.take_in(answer, now_ns),
                Err(_) => now_ns += REPLAY_EVERY_NS,
            }
        }
        assert_eq!(*sink.0.lock(), (0..100).collect::<Vec<_>>(), "each once, the oldest first");
        drop(replay);
        until(&log, 1_000).await;
    }

    /// The same between an answer and the task that settles it.
    #[tokio::test]
    async fn entries_answered_for_a_loop_that_has_ended_are_settled() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_of_three(dir.path());
        let mut replay = Replay::new("rain".into(), Arc::new(NoQueue), Arc::clone(&log), Arc::default());
        replay.turn(true, 0);
        for _ in 0..4 {
            let answer = replay.next().await;
            replay.take_in(answer, 0);
        }
        assert_eq!(log.waiting(), 0, "all three were taken and refused, and none is settled yet");
        replay.turn(false, 0);
        drop(replay);
        until(&log, 3).await;
    }
}
