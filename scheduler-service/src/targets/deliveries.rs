//! Waits for what becomes of a batch of records: a producer reports each of them by its tag, from a thread of its own.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;
use windfall_contract::broker::{Delivery, DeliverySink, Tag};

/// The batches whose records are in flight.
#[derive(Default)]
pub(super) struct Deliveries {
    next_tag: AtomicU64,
    /// By their first tag.
    batches: Mutex<BTreeMap<u64, Arc<Batch>>>,
    stored: AtomicU64,
}

/// What is known of a batch.
struct Batch {
    reported: Mutex<Reported>,
    all: Notify,
}

struct Reported {
    outcomes: Vec<Option<Delivery>>,
    missing: usize,
}

/// A batch in flight. Dropped, it waits no more; what is reported later is passed over.
pub(super) struct InFlight<'a> {
    deliveries: &'a Deliveries,
    first_tag: u64,
    batch: Arc<Batch>,
}

impl Deliveries {
    /// Makes room for the outcomes of so many records.
    pub(super) fn begin(&self, records: usize) -> InFlight<'_> {
        let reported = Mutex::new(Reported { outcomes: vec![None; records], missing: records });
        let batch = Arc::new(Batch { reported, all: Notify::new() });
        // A batch has a tag at least, so that no two begin with the same.
        let tags = u64::try_from(records).unwrap_or(u64::MAX).max(1);
        let first_tag = self.next_tag.fetch_add(tags, Relaxed);
        self.batches.lock().insert(first_tag, Arc::clone(&batch));
        InFlight { deliveries: self, first_tag, batch }
    }

    /// Records that were reported as stored since it was made.
    pub(super) fn stored(&self) -> u64 {
        self.stored.load(Relaxed)
    }
}

impl DeliverySink for Deliveries {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        if delivery == Delivery::Stored {
            self.stored.fetch_add(1, Relaxed);
        }
        let found =
            self.batches.lock().range(..=tag.0).next_back().map(|(first, of)| (*first, Arc::clone(of)));
        if let Some((first_tag, batch)) = found {
            batch.report(tag.0 - first_tag, delivery);
        }
    }
}

impl Batch {
    fn report(&self, nth: u64, delivery: Delivery) {
        let mut reported = self.reported.lock();
        let Some(outcome) = usize::try_from(nth).ok().and_then(|nth| reported.outcomes.get_mut(nth)) else {
            return;
        };
        if outcome.replace(delivery).is_none() {
            reported.missing -= 1;
        }
        if reported.missing == 0 {
            self.all.notify_one();
        }
    }
}

impl InFlight<'_> {
    /// The tag of a record of this batch.
    pub(super) fn tag(&self, nth: usize) -> Tag {
        Tag(self.first_tag + u64::try_from(nth).unwrap_or(u64::MAX >> 1))
    }

    /// A record is not on its way: nothing will be reported of it.
    pub(super) fn not_sent(&self, nth: usize) {
        self.batch.report(u64::try_from(nth).unwrap_or(u64::MAX), Delivery::Failed("it was not sent".into()));
    }

    /// Waits until every record was reported.
    pub(super) async fn all(&self) {
        // A notification that came first is kept for us.
        while self.batch.reported.lock().missing > 0 {
            self.batch.all.notified().await;
        }
    }

    /// What was reported so far, in order.
    pub(super) fn take(self) -> Vec<Option<Delivery>> {
        std::mem::take(&mut self.batch.reported.lock().outcomes)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.deliveries.batches.lock().remove(&self.first_tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_batch_gets_its_own_reports_in_any_order_and_late_ones_go_nowhere() {
        let deliveries = Deliveries::default();
        let (one, two) = (deliveries.begin(2), deliveries.begin(1));
        let late = one.tag(0);
        deliveries.delivered(two.tag(0), Delivery::Unknown("lost".into()));
        deliveries.delivered(one.tag(1), Delivery::Stored);
        two.all().await;
        assert_eq!(two.take(), [Some(Delivery::Unknown("lost".into()))]);
        assert_eq!(one.take(), [None, Some(Delivery::Stored)]);
        deliveries.delivered(late, Delivery::Stored);
        assert!(deliveries.batches.lock().is_empty());
        assert_eq!(deliveries.stored(), 2);
        deliveries.begin(0).all().await;
    }
}
