//! Gives the records of the spill log to the queues again, until none is left.

use crate::requeue::{RequeueOutcome, RequeueRecord, RequeueSink};
use crate::requeue_calls::RequeueCalls;
use crate::spill_log::{EntryId, SpillError, SpillLog};
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// Entries that are replayed at once.
const REPLAY_MOST: usize = 32;
const REPLAY_EVERY_NS: u64 = 1_000 * NS_PER_MS;
/// Queues that are back get the spilled records within this time, and the next ones at once.
const REPLAY_PAUSE_MAX_NS: u64 = 10_000 * NS_PER_MS;

/// The replay of the process's spill log by one of its consumers. Several may replay at once: an entry is taken by
/// one of them at a time, and dropped with its replay it waits again for whoever replays next.
pub(crate) struct Replay {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    log: Arc<SpillLog>,
    requeues: RequeueCalls<EntryId>,
    /// Takes the next entries; one task at most.
    takes: JoinSet<Result<Taken, SpillError>>,
    take_at_ns: u64,
    pause_ns: u64,
    answered: Vec<(EntryId, RequeueOutcome)>,
    settles: JoinSet<Result<(), SpillError>>,
}

/// What a sink or the log has answered.
pub(crate) enum ReplayAnswer {
    Requeued(EntryId, RequeueOutcome),
    Taken(Result<Result<Taken, SpillError>, JoinError>),
    Settled(Result<Result<(), SpillError>, JoinError>),
}

/// Entries taken, with their records.
pub(crate) struct Taken {
    entries: Unsettled,
    records: Vec<RequeueRecord>,
}

/// Entries that were taken, each with its outcome as far as it is known. They are settled when it is dropped: nobody
/// else would say what became of them, and they would neither be replayed nor freed while the process lives.
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
            pause_ns: REPLAY_EVERY_NS,
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
        let is_idle = self.takes.is_empty() && self.requeues.len() == 0;
        if may_take && is_idle && now_ns >= self.take_at_ns {
            let log = Arc::clone(&self.log);
            self.takes.spawn_blocking(move || Taken::from_log(log));
        }
    }

    /// Waits for an answer; for ever where none is due. Cancel-safe.
    pub async fn next(&mut self) -> ReplayAnswer {
        tokio::select! {
            (entry, outcome) = self.requeues.next() => ReplayAnswer::Requeued(entry, outcome),
            Some(taken) = self.takes.join_next() => ReplayAnswer::Taken(taken),
            Some(settled) = self.settles.join_next() => ReplayAnswer::Settled(settled),
        }
    }

    /// An answer that is there already.
    pub fn try_next(&mut self) -> Option<ReplayAnswer> {
        if let Some((entry, outcome)) = self.requeues.try_next() {
            return Some(ReplayAnswer::Requeued(entry, outcome));
        }
        if let Some(taken) = self.takes.try_join_next() {
            return Some(ReplayAnswer::Taken(taken));
        }
        self.settles.try_join_next().map(ReplayAnswer::Settled)
    }

    pub fn take_in(&mut self, answer: ReplayAnswer, now_ns: u64) {
        match answer {
            ReplayAnswer::Requeued(entry, outcome) => self.requeued(entry, outcome),
            ReplayAnswer::Taken(taken) => {
                self.take_at_ns = now_ns + self.pause_ns;
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
            self.requeues.begin(entry, record);
        }
    }

    fn requeued(&mut self, entry: EntryId, outcome: RequeueOutcome) {
        match outcome {
            RequeueOutcome::Stored => {
                self.stats.replayed.add(1);
                self.pause_ns = REPLAY_EVERY_NS;
            }
            // Once per batch, however many entries of it were refused.
            RequeueOutcome::Refused if self.requeues.len() == 0 => {
                self.pause_ns = (self.pause_ns * 2).min(REPLAY_PAUSE_MAX_NS);
            }
            RequeueOutcome::Refused => {}
        }
        if self.requeues.len() == 0 && outcome == RequeueOutcome::Stored {
            // The queues take records again: the next ones follow at once, until none is left.
            self.take_at_ns = 0;
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
    /// Leaves the entries that are still with the sink to whoever replays next.
    fn drop(&mut self) {
        let in_flight = self.requeues.give_up().map(|entry| (entry, RequeueOutcome::Refused));
        let mut entries = std::mem::take(&mut self.answered);
        entries.extend(in_flight);
        drop(self.unsettled(entries));
    }
}

impl Taken {
    fn from_log(log: Arc<SpillLog>) -> Result<Self, SpillError> {
        let (ids, records): (Vec<EntryId>, Vec<RequeueRecord>) = log.take(REPLAY_MOST)?.into_iter().unzip();
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
