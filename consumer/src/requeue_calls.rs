//! Records that were given to the sink and whose outcome is not known yet.

use crate::requeue::{Done, RequeueOutcome, RequeueRecord, RequeueSink};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Calls of [`RequeueSink::requeue`] in flight, each with what it was made for.
pub(crate) struct RequeueCalls<T> {
    sink: Arc<dyn RequeueSink>,
    in_flight: HashMap<u64, T>,
    most: usize,
    next_id: u64,
    answer: mpsc::Sender<(u64, RequeueOutcome)>,
    answers: mpsc::Receiver<(u64, RequeueOutcome)>,
}

/// Answers when it is called, or when it is dropped.
struct Reply {
    id: u64,
    answer: mpsc::Sender<(u64, RequeueOutcome)>,
    outcome: RequeueOutcome,
}

impl Drop for Reply {
    fn drop(&mut self) {
        // There is one place for each call in flight, so it cannot be full; it is closed when the loop has gone.
        self.answer.try_send((self.id, self.outcome)).ok();
    }
}

impl<T> RequeueCalls<T> {
    /// At most `most` calls are in flight at once.
    pub fn new(sink: Arc<dyn RequeueSink>, most: usize) -> Self {
        let (answer, answers) = mpsc::channel(most);
        Self { sink, in_flight: HashMap::new(), most, next_id: 0, answer, answers }
    }

    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// Gives a record to the sink. The caller checks that there is room.
    pub fn begin(&mut self, purpose: T, record: RequeueRecord) {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, purpose);
        let mut reply = Reply { id, answer: self.answer.clone(), outcome: RequeueOutcome::Refused };
        let done: Done = Box::new(move |outcome| {
            reply.outcome = outcome;
            drop(reply);
        });
        self.sink.requeue(record, done);
    }

    /// Waits for the outcome of a call; for ever where there is none. Cancel-safe.
    pub async fn next(&mut self) -> (T, RequeueOutcome) {
        loop {
            let Some(answer) = self.answers.recv().await else { return std::future::pending().await };
            if let Some(known) = self.known(answer) {
                return known;
            }
        }
    }

    /// An outcome that is known already.
    pub fn try_next(&mut self) -> Option<(T, RequeueOutcome)> {
        let answer = self.answers.try_recv().ok()?;
        self.known(answer)
    }

    /// Gives up the calls in flight and returns their purposes; their outcomes are not waited for any more.
    pub fn give_up(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.in_flight).into_values()
    }

    /// Each call has one answer, so that none is taken twice.
    fn known(&mut self, (id, outcome): (u64, RequeueOutcome)) -> Option<(T, RequeueOutcome)> {
        self.in_flight.remove(&id).map(|purpose| (purpose, outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Keeps what it is given until the test answers.
    #[derive(Default)]
    struct Slow(Mutex<Vec<Done>>);

    impl RequeueSink for Slow {
        fn requeue(&self, _: RequeueRecord, done: Done) {
            self.0.lock().push(done);
        }
    }

    fn record() -> RequeueRecord {
        RequeueRecord {
            bonus_type: "cash".into(),
            activity: "spring".into(),
            scene: "rain".into(),
            first_user_id: 1,
            key: vec![b'k'],
            payload: vec![b'p'],
            events: 1,
        }
    }

    #[test]
    fn each_call_has_one_outcome_and_one_that_is_never_answered_is_refused() {
        let sink = Arc::new(Slow::default());
        let mut calls = RequeueCalls::new(Arc::clone(&sink) as Arc<dyn RequeueSink>, 2);
        calls.begin("stored", record());
        calls.begin("dropped", record());
        assert!(calls.is_full() && calls.try_next().is_none(), "nothing is answered yet");
        let dropped = sink.0.lock().pop();
        drop(dropped);
        let stored = sink.0.lock().pop().unwrap();
        stored(RequeueOutcome::Stored);
        assert_eq!(calls.try_next(), Some(("dropped", RequeueOutcome::Refused)));
        assert_eq!(calls.try_next(), Some(("stored", RequeueOutcome::Stored)));
        assert_eq!((calls.try_next(), calls.len()), (None, 0));
    }
}
