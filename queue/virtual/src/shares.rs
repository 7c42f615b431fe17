//! Divides a fixed number of places among queues, so that one whose brokers are away cannot take the others' room.
//!
//! Half of the places are promised: each queue has an equal part of them for itself. The other half goes to whoever
//! needs it, but a queue may take at most twice as many beyond its part as are still free; so what a queue that is
//! stuck leaves to the others is never less than a third of that half. An eighth of all places is kept for bonus types
//! of priority 0 (cash), where the rules have such types and others. A queue that is alone has all places but this
//! eighth.

use super::topology::QueueId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// One place in so many is kept for bonus types of priority 0.
const FIRST_PART: usize = 8;

/// A number of places, divided among queues.
pub struct Shares {
    accounts: Mutex<Accounts>,
}

/// A place that is taken. It is given back when this is dropped.
pub struct Place {
    shares: Arc<Shares>,
    queue: Option<QueueId>,
}

#[derive(Default)]
struct Accounts {
    total: usize,
    used: usize,
    /// Places that are promised to queues and that these have not taken.
    promised: usize,
    /// Places that are kept for priority 0.
    kept_for_first: usize,
    /// Queues that the rules name.
    named: usize,
    /// The account of each queue; that of `None` holds records that belong to no queue.
    by_queue: HashMap<Option<QueueId>, Account>,
}

#[derive(Default)]
struct Account {
    used: usize,
    promised: usize,
}

impl Shares {
    /// A number of places that belong to no queue in particular yet.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { accounts: Mutex::new(Accounts { total, ..Accounts::default() }) })
    }

    /// Divides the places among the queues of other rules. `has_first` says whether these have bonus types of priority
    /// 0 and others. Who has more than its part now keeps it until it gives places back.
    pub fn divide(&self, queues: &[QueueId], has_first: bool) {
        let mut accounts = self.accounts.lock();
        let total = accounts.total;
        accounts.named = queues.len();
        accounts.kept_for_first = if has_first { total / FIRST_PART } else { 0 };
        let rest = total - accounts.kept_for_first;
        let promised = match queues.len() {
            0 => 0,
            1 => rest,
            count => rest / (2 * count),
        };
        accounts.by_queue.values_mut().for_each(|account| account.promised = 0);
        for queue in queues {
            accounts.by_queue.entry(Some(*queue)).or_default().promised = promised;
        }
        accounts.by_queue.retain(|_, account| account.used > 0 || account.promised > 0);
        let unused = |account: &Account| account.promised.saturating_sub(account.used);
        accounts.promised = accounts.by_queue.values().map(unused).sum();
    }

    /// A place for a record of a queue, `first` if it is of a bonus type of priority 0. `None` where the queue's share
    /// is spent, or no place is left at all.
    pub fn take(self: &Arc<Self>, queue: QueueId, first: bool) -> Option<Place> {
        let mut accounts = self.accounts.lock();
        accounts.may_take(queue, first).then(|| {
            accounts.enter(Some(queue));
            Place { shares: Arc::clone(self), queue: Some(queue) }
        })
    }

    /// A place that is taken whatever the shares say: its record is there already.
    pub fn hold(self: &Arc<Self>, queue: Option<QueueId>) -> Place {
        self.accounts.lock().enter(queue);
        Place { shares: Arc::clone(self), queue }
    }

    /// Places that are taken.
    pub fn used(&self) -> usize {
        self.accounts.lock().used
    }

    /// Whether no place is left, whoever asks.
    pub fn is_full(&self) -> bool {
        let accounts = self.accounts.lock();
        accounts.used >= accounts.total
    }

    /// Places that a queue holds.
    pub fn used_by(&self, queue: QueueId) -> usize {
        self.accounts.lock().by_queue.get(&Some(queue)).map_or(0, |account| account.used)
    }
}

impl Accounts {
    fn may_take(&self, queue: QueueId, first: bool) -> bool {
        let free = self.total.saturating_sub(self.used);
        let (used, promised) =
            self.by_queue.get(&Some(queue)).map_or((0, 0), |account| (account.used, account.promised));
        if used < promised {
            return free > 0;
        }
        let kept = if first { 0 } else { self.kept_for_first };
        let shared = free.saturating_sub(self.promised + kept);
        shared > 0 && (self.named < 2 || used - promised <= 2 * shared)
    }

    fn enter(&mut self, queue: Option<QueueId>) {
        let account = self.by_queue.entry(queue).or_default();
        self.promised -= usize::from(account.used < account.promised);
        account.used += 1;
        self.used += 1;
    }

    fn leave(&mut self, queue: Option<QueueId>) {
        if let Some(account) = self.by_queue.get_mut(&queue) {
            account.used = account.used.saturating_sub(1);
            self.promised += usize::from(account.used < account.promised);
        }
        self.used = self.used.saturating_sub(1);
    }
}

impl Place {
    /// Makes it a place of another queue, whatever that one's share.
    pub fn move_to(&mut self, queue: QueueId) {
        if self.queue == Some(queue) {
            return;
        }
        let mut accounts = self.shares.accounts.lock();
        accounts.leave(self.queue);
        accounts.enter(Some(queue));
        self.queue = Some(queue);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shares.accounts.lock().leave(self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: [QueueId; 4] = [QueueId(0), QueueId(1), QueueId(2), QueueId(3)];

    fn fill(shares: &Arc<Shares>, queue: QueueId, first: bool) -> Vec<Place> {
        std::iter::from_fn(|| shares.take(queue, first)).collect()
    }

    #[test]
    fn a_queue_that_is_alone_has_all_but_what_is_kept_for_cash() {
        let shares = Shares::new(80);
        shares.divide(&Q[..1], true);
        let coins = fill(&shares, Q[0], false);
        assert_eq!(coins.len(), 70);
        let cash = fill(&shares, Q[0], true);
        assert_eq!(cash.len(), 10);
        assert!(shares.is_full());
        drop((coins, cash));
        shares.divide(&Q[..1], false);
        assert_eq!(fill(&shares, Q[0], false).len(), 80);
        assert_eq!(shares.used(), 0);
    }

    #[test]
    fn queues_that_take_all_they_can_leave_the_others_their_part_and_more() {
        let shares = Shares::new(800);
        shares.divide(&Q, true);
        // 100 for cash, 350 promised, 350 shared.
        let one = fill(&shares, Q[0], false);
        assert!((87 + 200..87 + 250).contains(&one.len()), "{}", one.len());
        let two = fill(&shares, Q[1], false);
        let three = fill(&shares, Q[2], false);
        assert!(two.len() > 87 && three.len() > 87, "{} {}", two.len(), three.len());
        let four = fill(&shares, Q[3], false);
        assert!(four.len() > 87, "{}", four.len());
        let cash = fill(&shares, Q[3], true);
        assert!(cash.len() > 30, "{}", cash.len());
        assert!(shares.used() <= 800);
    }

    #[test]
    fn rules_that_come_later_promise_what_is_given_back() {
        let shares = Shares::new(100);
        shares.divide(&Q[..1], false);
        let mut all = fill(&shares, Q[0], false);
        assert_eq!(all.len(), 100);
        shares.divide(&Q[..2], false);
        assert!(shares.take(Q[1], false).is_none(), "nothing is free");
        all.truncate(90);
        assert_eq!(fill(&shares, Q[1], false).len(), 10, "what is given back is promised to the other");
        assert!(shares.take(Q[0], false).is_none(), "the one that has more than its part gets none of it");
        let mut moved = all.pop().unwrap();
        moved.move_to(Q[1]);
        assert_eq!((shares.used_by(Q[0]), shares.used_by(Q[1]), shares.used()), (89, 1, 90));
    }

    /// Whatever is taken, given back, moved and divided anew, the sums are right, and a promise is kept where there was
    /// room when it was made.
    #[test]
    fn random_traffic_keeps_the_books() {
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % 1_000_003).unwrap() % below
        };
        let shares = Shares::new(64);
        shares.divide(&Q, true);
        let mut held: Vec<Place> = Vec::new();
        for step in 0..20_000 {
            match random(8) {
                0..=3 => held.extend(shares.take(Q[random(4)], random(3) == 0)),
                4..=6 if !held.is_empty() => drop(held.swap_remove(random(held.len()))),
                7 if step % 50 == 0 => shares.divide(&Q[..1 + random(4)], random(2) == 0),
                _ => {}
            }
            let accounts = shares.accounts.lock();
            let used: usize = accounts.by_queue.values().map(|account| account.used).sum();
            let unused =
                accounts.by_queue.values().map(|account| account.promised.saturating_sub(account.used));
            assert_eq!((accounts.used, accounts.promised), (held.len(), unused.sum()));
            assert_eq!(used, held.len());
            assert!(used <= 64);
        }
    }
}
