//! Consumers that wait for a job.

use super::QueueError;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tokio::sync::Notify;
use windfall_contract::task_queue::QueueName;

/// How many consumers may wait at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollLimits {
    pub(crate) all_max: usize,
    pub(crate) token_max: usize,
}

/// The consumers that wait, by queue.
pub(crate) struct Polls {
    limits: PollLimits,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    count: usize,
    by_poller: HashMap<u64, usize>,
    /// In the order in which they came.
    by_queue: BTreeMap<QueueName, VecDeque<Arc<Waiter>>>,
}

struct Waiter {
    number: u64,
    /// It was woken and has not looked yet: the next job is for somebody else.
    is_woken: AtomicBool,
    notify: Notify,
}

/// A consumer that waits; it waits no more when this is dropped.
pub(crate) struct Poll<'a> {
    polls: &'a Polls,
    waiter: Arc<Waiter>,
    queues: Vec<QueueName>,
    poller: u64,
}

impl Polls {
    pub(crate) fn new(limits: PollLimits) -> Self {
        Self { limits, waiting: Mutex::default() }
    }

    pub(crate) fn begin(&self, queues: &[QueueName], poller: u64) -> Result<Poll<'_>, QueueError> {
        let mut waiting = self.waiting.lock();
        if waiting.count >= self.limits.all_max {
            return Err(QueueError::TooManyPolls);
        }
        let own = waiting.by_poller.entry(poller).or_default();
        if *own >= self.limits.token_max {
            return Err(QueueError::TooManyPollsOfToken);
        }
        *own += 1;
        waiting.count += 1;
        waiting.next += 1;
        let waiter = Arc::new(Waiter {
            number: waiting.next,
            is_woken: AtomicBool::new(false),
            notify: Notify::new(),
        });
        for queue in queues {
            waiting.by_queue.entry(queue.clone()).or_default().push_back(Arc::clone(&waiter));
        }
        Ok(Poll { polls: self, waiter, queues: queues.to_vec(), poller })
    }

    /// Wakes as many as there are jobs, those first that came first.
    pub(crate) fn wake(&self, queue: &QueueName, jobs: usize) {
        let waiting = self.waiting.lock();
        let Some(waiters) = waiting.by_queue.get(queue) else { return };
        let asleep = waiters.iter().filter(|waiter| !waiter.is_woken.load(SeqCst));
        for waiter in asleep.take(jobs) {
            waiter.is_woken.store(true, SeqCst);
            waiter.notify.notify_one();
        }
    }

    /// The queues that somebody waits for, behind `after` and then from the beginning, at most `most`.
    pub(crate) fn queues(&self, after: Option<&QueueName>, most: usize) -> Vec<QueueName> {
        let waiting = self.waiting.lock();
        let behind = waiting.by_queue.keys().filter(|queue| after.is_none_or(|after| *queue > after));
        let before = waiting.by_queue.keys().filter(|queue| after.is_some_and(|after| *queue <= after));
        behind.chain(before).take(most).cloned().collect()
    }

    /// How many consumers wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.lock().count
    }
}

impl Poll<'_> {
    /// Until there may be a job for it.
    pub(crate) async fn woken(&self) {
        self.waiter.notify.notified().await;
        self.waiter.is_woken.store(false, SeqCst);
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut waiting = self.polls.waiting.lock();
        waiting.count -= 1;
        if let Some(own) = waiting.by_poller.get_mut(&self.poller) {
            *own -= 1;
            if *own == 0 {
                waiting.by_poller.remove(&self.poller);
            }
        }
        for queue in &self.queues {
            if let Some(waiters) = waiting.by_queue.get_mut(queue) {
                // Numbers grow towards the end.
                if let Ok(at) = waiters.binary_search_by_key(&self.waiter.number, |waiter| waiter.number) {
                    waiters.remove(at);
                }
                if waiters.is_empty() {
                    waiting.by_queue.remove(queue);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_came_first_are_woken_first_and_each_limit_has_its_error() {
        let polls = Polls::new(PollLimits { all_max: 3, token_max: 2 });
        let queue = [QueueName::new("n", "q").unwrap()];
        let (first, second) = (polls.begin(&queue, 1).unwrap(), polls.begin(&queue, 1).unwrap());
        assert_eq!(polls.begin(&queue, 1).map(drop), Err(QueueError::TooManyPollsOfToken));
        let third = polls.begin(&queue, 2).unwrap();
        assert_eq!(polls.begin(&queue, 3).map(drop), Err(QueueError::TooManyPolls));
        polls.wake(&queue[0], 1);
        first.woken().await;
        polls.wake(&queue[0], 1);
        polls.wake(&queue[0], 1);
        first.woken().await;
        second.woken().await;
        drop((first, second));
        polls.wake(&queue[0], 9);
        third.woken().await;
        drop(third);
        assert_eq!((polls.count(), polls.queues(None, 9).len()), (0, 0));
        assert!(polls.begin(&queue, 1).is_ok());
    }

    #[test]
    fn the_queues_are_gone_through_in_turn() {
        let polls = Polls::new(PollLimits { all_max: 9, token_max: 9 });
        let names = ["a", "b", "c"].map(|queue| QueueName::new("n", queue).unwrap());
        let _waiting: Vec<_> = names.iter().map(|name| polls.begin(std::slice::from_ref(name), 1)).collect();
        assert_eq!(polls.queues(None, 2), names[..2]);
        assert_eq!(polls.queues(Some(&names[1]), 2), [names[2].clone(), names[0].clone()]);
        assert_eq!(polls.queues(Some(&names[2]), 9).len(), 3);
    }
}
