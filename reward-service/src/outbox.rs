//! Writes the events of reserved orders again that have not come, so that no order stays reserved because a process
//! died, a broker lost a record, or the caller did not ask again.
//! The order store is the outbox: it has every field of an event that decides its grant. An extra copy credits nothing
//! twice (I1). Copies are kept few by writing an order's event when the order is `after_ms` old, then at twice, four
//! times and eight times that age, and so on; and by one owner for each order and due time, over all processes on the ledger
//! ([`Ledger::take_copies`](windfall_ledger::Ledger::take_copies)).
//!
//! Where the ledger's user may not make the tables that this needs, each process writes copies of its own, as processes of
//! older versions do.

use crate::async_grant::AsyncGrants;
use crate::decode::event_of;
use crate::handle::CallError;
use bytes::Bytes;
use windfall_ledger::{CopyKey, ListCopies, Listing, LostOrder, ReservedOrder, TakeCopies, WrittenCopy};

/// The number of orders that are read or taken at a time.
const PAGE: u32 = 1_000;
/// The number of pages that one look lists, and takes, at most: what is left is for the next one.
const PAGES_MAX: usize = 50;

/// When orders are written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// The age of an order at the first time. Longer than events wait in their queue as a rule: 1 ms to a day; the
    /// default is 600,000 ms.
    pub after_ms: u64,
    /// The time between two looks, 1 ms to an hour; the default is 10,000 ms. Where each process writes copies of its own,
    /// two looks that are further apart leave out what was due in between until its age has doubled.
    pub every_ms: u64,
    /// How long an order belongs to the process that has taken it, 1 ms to an hour: longer than a queue takes to answer. If it
    /// was not written by then, any process takes it. The default is 60,000 ms.
    pub lease_ms: u64,
}

impl Default for Again {
    fn default() -> Self {
        Self { after_ms: 600_000, every_ms: 10_000, lease_ms: 60_000 }
    }
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewritten {
    /// Orders whose events were written again.
    pub written: u64,
    /// Orders that no queue took; they are due again when their lease ends, or, if they are not shared, when their age has
    /// doubled.
    pub failed: u64,
    /// Budget keys whose orders were left, since their queue is behind.
    pub behind: u64,
    /// Whether this process writes copies of its own, since the ledger's user may not make the tables of shared ones.
    pub is_alone: bool,
}

impl Again {
    fn after_ms(self) -> u64 {
        self.after_ms.clamp(1, 86_400_000)
    }

    fn every_ms(self) -> u64 {
        self.every_ms.clamp(1, 3_600_000)
    }

    fn lease_ms(self) -> u64 {
        self.lease_ms.clamp(1, 3_600_000)
    }

    /// Whether an order of this age is due in the look that ends a period.
    fn is_due(self, age_ms: u64) -> bool {
        let Some(doublings) = (age_ms / self.after_ms()).checked_ilog2() else { return false };
        // No more than the age, so it does not overflow.
        age_ms - (self.after_ms() << doublings) < self.every_ms()
    }

    /// When an order that is written now is due again: as soon as its age has doubled, counted from `after_ms` on.
    fn next_write_ms(self, created_ms: i64, now_ms: i64) -> i64 {
        let age_ms = u64::try_from(now_ms.saturating_sub(created_ms)).unwrap_or(0);
        let doublings = (age_ms / self.after_ms()).checked_ilog2().map_or(0, |doublings| doublings + 1);
        let next_ms = u128::from(self.after_ms()) << doublings;
        created_ms.saturating_add(i64::try_from(next_ms).unwrap_or(i64::MAX))
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl AsyncGrants {
    /// Looks once. If it is cancelled, the events that it has written stay written, and what it has taken is due again when
    /// its lease ends. `is_behind` says whether the queue of this activity, scene and bonus type is behind: then an order is
    /// old because its event waits there, and a copy would only make the queue longer. Such orders are written when they were
    /// due `after_ms` ago, so that a queue that never empties does not keep a lost event lost.
    ///
    /// # Errors
    /// [`CallError`]: look again later.
    pub async fn write_again(
        &self,
        again: Again,
        is_behind: impl Fn(&str, &str, &str) -> bool,
    ) -> Result<Rewritten, CallError> {
        if !self.list(again).await? {
            return self.write_own_copies(again, is_behind).await;
        }
        let keys = self.rewards().call(|ledger| ledger.copy_keys()).await?;
        let behind_of = |key: &CopyKey| is_behind(&key.activity, &key.scene, &key.bonus_type);
        let (behind, flowing): (Vec<CopyKey>, Vec<CopyKey>) = keys.into_iter().partition(behind_of);
        let mut done = Rewritten { behind: behind.len() as u64, ..Rewritten::default() };
        self.write_due(again, &flowing, 0, &mut done).await?;
        self.write_due(again, &behind, again.after_ms(), &mut done).await?;
        Ok(done)
    }

    /// Lists orders that came of age. Returns whether the tables are there.
    async fn list(&self, again: Again) -> Result<bool, CallError> {
        for _ in 0..PAGES_MAX {
            let how = ListCopies {
                now_ms: self.now_ms(),
                after_ms: signed(again.after_ms()),
                pause_ms: signed(again.every_ms()),
                ahead_ms: signed(again.lease_ms().max(again.after_ms())),
                limit: PAGE,
            };
            match self.rewards().call(move |ledger| ledger.list_copies(&how)).await? {
                Listing::NoTables => return Ok(false),
                Listing::Page(orders) if orders >= u64::from(PAGE) => {}
                Listing::Page(_) | Listing::NotNow => break,
            }
        }
        Ok(true)
    }

    /// Takes and writes the orders of these budget keys that were due so long ago.
    async fn write_due(
        &self,
        again: Again,
        keys: &[CopyKey],
        overdue_ms: u64,
        done: &mut Rewritten,
    ) -> Result<(), CallError> {
        let budget_keys: Vec<i64> = keys.iter().map(|key| key.budget_key).collect();
        for _ in 0..PAGES_MAX {
            if budget_keys.is_empty() {
                break;
            }
            let (own, now_ms) = (budget_keys.clone(), self.now_ms());
            let taken = self.rewards().call(move |ledger| {
                ledger.take_copies(&TakeCopies {
                    budget_keys: &own,
                    due_ms: now_ms.saturating_sub(signed(overdue_ms)),
                    lease_ends_ms: now_ms.saturating_add(signed(again.lease_ms())),
                    limit: PAGE,
                })
            });
            let taken = taken.await?;
            self.write_taken(again, taken.orders, done).await?;
            if taken.due < u64::from(PAGE) {
                break;
            }
        }
        Ok(())
    }

    async fn write_taken(
        &self,
        again: Again,
        orders: Vec<LostOrder>,
        done: &mut Rewritten,
    ) -> Result<(), CallError> {
        if orders.is_empty() {
            return Ok(());
        }
        let events: Vec<Bytes> = orders.iter().map(|one| event_of(&one.order)).collect();
        let answers = self.queue().enqueue(&events, true).await;
        let count = orders.len() as u64;
        // If we die here, they are due again when the lease ends: written once more, and credited once (I1).
        let is_written = |(one, answer): (LostOrder, Result<(), _>)| answer.is_ok().then_some(one);
        let written: Vec<LostOrder> = orders.into_iter().zip(answers).filter_map(is_written).collect();
        done.written += written.len() as u64;
        done.failed += count - written.len() as u64;
        let now_ms = self.now_ms();
        let noted = self.rewards().call(move |ledger| {
            let note = |one: &LostOrder| (one.budget_key, again.next_write_ms(one.order.created_ms, now_ms));
            let notes: Vec<WrittenCopy<'_>> = written
                .iter()
                .map(|one| {
                    let (budget_key, next_write_ms) = note(one);
                    WrittenCopy { budget_key, key: &one.order.key, next_write_ms }
                })
                .collect();
            ledger.note_copies(&notes)
        });
        noted.await
    }

    /// Reads every reserved order, and writes those that came of age in the period that this look ends. Every process that
    /// does so writes a copy.
    async fn write_own_copies(
        &self,
        again: Again,
        is_behind: impl Fn(&str, &str, &str) -> bool,
    ) -> Result<Rewritten, CallError> {
        let mut done = Rewritten { is_alone: true, ..Rewritten::default() };
        let mut after = String::new();
        loop {
            let now_ms = self.now_ms();
            let page = self.rewards().reserved(None, again.after_ms(), &after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(done) };
            after.clone_from(&last.order.key);
            let is_due = |one: &&ReservedOrder| {
                let order = &one.order;
                let is_behind = is_behind(&order.activity, &order.scene, &order.bonus_type);
                let late_ms = if is_behind { again.after_ms() } else { 0 };
                let age_ms = u64::try_from(now_ms.saturating_sub(order.created_ms)).unwrap_or(0);
                again.is_due(age_ms.saturating_sub(late_ms))
            };
            let due: Vec<Bytes> = page.iter().filter(is_due).map(|one| event_of(&one.order)).collect();
            if !due.is_empty() {
                let taken = self.queue().enqueue(&due, true).await;
                let written = taken.iter().filter(|answer| answer.is_ok()).count() as u64;
                done.written += written;
                done.failed += due.len() as u64 - written;
            }
        }
    }

    fn now_ms(&self) -> i64 {
        self.rewards().inner.clock.wall_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_due_once_each_time_its_age_doubles() {
        let again = Again { after_ms: 100, every_ms: 10, ..Again::default() };
        // Looks at each 10 ms of its age, from an uneven start.
        let due: Vec<u64> =
            (0..).map(|look| 7 + look * 10).take(100).filter(|age| again.is_due(*age)).collect();
        assert_eq!(due, [107, 207, 407, 807]);
        assert!(!again.is_due(0) && !again.is_due(99));
        assert!(Again { after_ms: 0, every_ms: 0, ..again }.is_due(1));
        assert!(!Again::default().is_due(u64::MAX));
    }

    /// A model: the ages at which an order is due are `after_ms` and its doublings, and the next one is the first of them that
    /// is still to come.
    #[test]
    fn the_next_time_is_the_first_doubling_that_is_to_come() {
        for after_ms in [1_u64, 7, 100, 86_400_000] {
            let again = Again { after_ms, ..Again::default() };
            let ages: Vec<u64> = (0..20).map(|doublings| after_ms << doublings).collect();
            let probes = ages.iter().flat_map(|age| [age.saturating_sub(1), *age, age + 1]);
            for age in probes.filter(|age| age < ages.last().unwrap_or(&0)) {
                let model = ages.iter().copied().find(|due| *due > age).map(signed);
                let next = again.next_write_ms(5_000, 5_000 + signed(age));
                assert_eq!(Some(next - 5_000), model, "after {after_ms}, at {age}");
            }
        }
        let again = Again::default();
        assert_eq!(again.next_write_ms(10, 0), 600_010, "its process's clock was ahead");
        assert_eq!(again.next_write_ms(0, i64::MAX), i64::MAX);
        assert_eq!(Again { after_ms: 0, ..again }.next_write_ms(0, 0), 1);
    }
}
