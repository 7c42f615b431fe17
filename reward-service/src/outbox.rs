//! Writes the events of reserved orders again that have not come, so that no order stays reserved because a process
//! died, a broker lost a record, or the caller did not ask again.
//! The order store is the outbox: it has every field of an event that decides its grant. An extra copy credits nothing
//! twice (I1). Copies are kept few by writing an order's event when the order is `after_ms` old, then at twice, four
//! times and eight times that age, and so on.

use crate::async_grant::AsyncGrants;
use crate::handle::CallError;
use bytes::Bytes;
use windfall_ledger::ReservedOrder;
use windfall_proto::event::EventRef;

/// The number of orders that are read at a time.
const PAGE: u32 = 1_000;

/// When orders are written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// The age of an order at the first time. Longer than events wait in their queue as a rule: 1 ms to a day; the
    /// default is 600,000 ms.
    pub after_ms: u64,
    /// The time between two looks, 1 ms to an hour; the default is 10,000 ms. Two looks that are further apart leave
    /// out what was due in between until its age has doubled.
    pub every_ms: u64,
}

impl Default for Again {
    fn default() -> Self {
        Self { after_ms: 600_000, every_ms: 10_000 }
    }
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewritten {
    /// Orders that are reserved for at least `after_ms`.
    pub waiting: u64,
    /// The part of these orders whose events were written again.
    pub written: u64,
    /// The part of these orders that no queue took; they are due again when their age has doubled.
    pub failed: u64,
}

impl Again {
    /// Whether an order of this age is due in the look that ends a period.
    fn is_due(self, age_ms: u64) -> bool {
        let (after, every) = (self.after_ms.clamp(1, 86_400_000), self.every_ms.clamp(1, 3_600_000));
        let Some(doublings) = (age_ms / after).checked_ilog2() else { return false };
        // No more than the age, so it does not overflow.
        age_ms - (after << doublings) < every
    }
}

impl AsyncGrants {
    /// Looks once. If it is cancelled, the events that it has written stay written.
    ///
    /// # Errors
    /// [`CallError`]: look again later.
    pub async fn write_again(&self, again: Again) -> Result<Rewritten, CallError> {
        let mut done = Rewritten::default();
        let mut after = String::new();
        loop {
            let now_ms = self.rewards().inner.clock.wall_ms();
            let page = self.rewards().reserved(again.after_ms, &after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(done) };
            after.clone_from(&last.order.key);
            done.waiting += page.len() as u64;
            let age =
                |one: &ReservedOrder| u64::try_from(now_ms.saturating_sub(one.order.created_ms)).unwrap_or(0);
            let due: Vec<Bytes> = page.iter().filter(|one| again.is_due(age(one))).map(event).collect();
            if !due.is_empty() {
                let taken = self.queue().enqueue(&due, true).await;
                let written = taken.iter().filter(|answer| answer.is_ok()).count() as u64;
                done.written += written;
                done.failed += due.len() as u64 - written;
            }
        }
    }
}

/// The event of a reserved order, with every field that decides its grant.
fn event(reserved: &ReservedOrder) -> Bytes {
    let order = &reserved.order;
    let mut bytes = Vec::new();
    let event = EventRef {
        trade_no: &order.trade_no,
        user_id: order.user_id,
        activity: &order.activity,
        scene: &order.scene,
        bonus_type: &order.bonus_type,
        amount: order.amount,
        award_time_ms: order.created_ms,
        first_sent_ms: order.created_ms,
        ..EventRef::default()
    };
    event.encode([], &mut bytes);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_due_once_each_time_its_age_doubles() {
        let again = Again { after_ms: 100, every_ms: 10 };
        // Looks at each 10 ms of its age, from an uneven start.
        let due: Vec<u64> =
            (0..).map(|look| 7 + look * 10).take(100).filter(|age| again.is_due(*age)).collect();
        assert_eq!(due, [107, 207, 407, 807]);
        assert!(!again.is_due(0) && !again.is_due(99));
        assert!(Again { after_ms: 0, every_ms: 0 }.is_due(1));
        assert!(!Again::default().is_due(u64::MAX));
    }
}
