//! The bounded queue in front of the writers. When it is full, it refuses at once (I9).

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// The weight of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Weight {
    pub events: usize,
    pub bytes: usize,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    Closed,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<(Weight, J)>,
    waiting: Weight,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Inbox<J> {
    state: Mutex<State<J>>,
    filled: Condvar,
    max: Weight,
}

impl<J> Inbox<J> {
    pub fn new(max: Weight) -> Self {
        let state = State { jobs: VecDeque::new(), waiting: Weight::default(), closed: false };
        Self { state: Mutex::new(state), filled: Condvar::new(), max }
    }

    /// Takes a job. A job heavier than the whole queue is taken when the queue is empty.
    pub fn push(&self, weight: Weight, job: J) -> Result<(), NotTaken> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NotTaken::Closed);
        }
        let waiting = Weight {
            events: state.waiting.events.saturating_add(weight.events),
            bytes: state.waiting.bytes.saturating_add(weight.bytes),
        };
        if !state.jobs.is_empty() && (waiting.events > self.max.events || waiting.bytes > self.max.bytes) {
            return Err(NotTaken::Full);
        }
        state.waiting = waiting;
        state.jobs.push_back((weight, job));
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for jobs and moves them to `into`: all that wait, up to so many events, but at least one. False
    /// once it is closed and empty.
    pub fn take(&self, events_max: usize, into: &mut Vec<J>) -> bool {
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return false;
            }
            self.filled.wait(&mut state);
        }
        let mut taken = 0_usize;
        while let Some((weight, _)) = state.jobs.front() {
            let weight = *weight;
            if taken > 0 && taken.saturating_add(weight.events) > events_max {
                break;
            }
            taken = taken.saturating_add(weight.events);
            state.waiting.events -= weight.events;
            state.waiting.bytes -= weight.bytes;
            into.extend(state.jobs.pop_front().map(|(_, job)| job));
        }
        true
    }

    /// Takes no more jobs; those that wait are still handed out.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    /// Drops all jobs that wait, outside of the lock: their callers are told.
    pub fn drop_all(&self) {
        let mut state = self.state.lock();
        state.waiting = Weight::default();
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    pub fn events(&self) -> usize {
        self.state.lock().waiting.events
    }
}

/// Closes an inbox when the thread that serves it ends, however it ends: remaining jobs are dropped, which answers
/// their callers.
pub(crate) struct CloseAtEnd<J> {
    inbox: Arc<Inbox<J>>,
    who: &'static str,
}

impl<J> CloseAtEnd<J> {
    pub fn new(inbox: Arc<Inbox<J>>, who: &'static str) -> Self {
        Self { inbox, who }
    }
}

impl<J> Drop for CloseAtEnd<J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("{} has panicked; every call is told to come again", self.who);
        }
        self.inbox.close();
        self.inbox.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(events: usize, bytes: usize) -> Weight {
        Weight { events, bytes }
    }

    #[test]
    fn it_is_bounded_in_events_and_in_bytes() {
        let inbox = Inbox::new(weight(10, 100));
        inbox.push(weight(6, 10), 'a').unwrap();
        assert_eq!(inbox.push(weight(5, 10), 'b'), Err(NotTaken::Full));
        assert_eq!(inbox.push(weight(1, 91), 'c'), Err(NotTaken::Full));
        inbox.push(weight(4, 90), 'd').unwrap();
        let mut out = Vec::new();
        assert!(inbox.take(6, &mut out));
        assert_eq!(out, ['a'], "a transaction's size is bounded");
        assert!(inbox.take(6, &mut out));
        assert_eq!(out, ['a', 'd']);
        inbox.push(weight(50, 500), 'e').unwrap();
        assert!(inbox.take(6, &mut out), "a job that is larger than all is not stuck for ever");
        assert_eq!(inbox.events(), 0);
    }

    #[test]
    fn closed_it_hands_out_what_waits_and_ends() {
        let inbox = Inbox::new(weight(10, 100));
        inbox.push(weight(1, 1), 'a').unwrap();
        inbox.close();
        assert_eq!(inbox.push(weight(1, 1), 'b'), Err(NotTaken::Closed));
        let mut out = Vec::new();
        assert!(inbox.take(6, &mut out));
        assert!(!inbox.take(6, &mut out));
    }
}
