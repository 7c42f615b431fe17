//! The time from the send of a reward to its credit, as a histogram.
//!
//! An order counts once, in the process whose transaction has credited it, when that is durable: not where it was credited
//! before. The beginning is what its event says ([`creditable_from_ms`]); an event that says nothing of it does not count.
//! A transaction whose outcome nobody knows, or whose process dies before it counts, leaves its orders out.

use windfall_proto::event::creditable_from_ms;

/// Upper bounds of the buckets, in ms; one more bucket holds what took longer. They reach from a millisecond to a day,
/// because the backlog of a festival takes hours to drain.
pub const SEND_TO_CREDIT_BOUNDS_MS: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000,
    1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000,
];

/// A longer time counts as this one, 30 days, in the sum. An event whose sender has a wrong clock would else decide it.
const SUMMED_MAX_MS: u64 = 2_592_000_000;

/// A histogram of times from send to credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendToCredit {
    /// The orders in each bucket, not cumulated; the bounds are [`SEND_TO_CREDIT_BOUNDS_MS`].
    pub buckets: [u64; SEND_TO_CREDIT_BOUNDS_MS.len() + 1],
    /// The sum of all times, in ms.
    pub sum_ms: u64,
}

impl SendToCredit {
    /// Those of events from these moments on that were credited at `now_ms`. A moment that is still to come, by a clock that
    /// is ahead, counts as now.
    pub(crate) fn of(from_ms: &[i64], now_ms: i64) -> Self {
        let mut all = Self::default();
        for from_ms in from_ms {
            let took_ms = u64::try_from(now_ms.saturating_sub(*from_ms)).unwrap_or(0);
            let bucket = SEND_TO_CREDIT_BOUNDS_MS.partition_point(|bound| *bound < took_ms);
            all.buckets[bucket] += 1;
            all.sum_ms += took_ms.min(SUMMED_MAX_MS);
        }
        all
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.buckets.iter_mut().zip(more.buckets).for_each(|(own, more)| *own += more);
        self.sum_ms += more.sum_ms;
    }

    /// The orders in all buckets.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// What has come since an earlier reading of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let new = |at: usize| self.buckets[at].saturating_sub(earlier.buckets[at]);
        Self { buckets: std::array::from_fn(new), sum_ms: self.sum_ms.saturating_sub(earlier.sum_ms) }
    }

    /// The time that 99 of 100 orders did not exceed, in ms, by linear interpolation in its bucket as Prometheus does it;
    /// `None` where nothing was counted. Beyond the last bound it is one more than that bound.
    pub fn p99_ms(&self) -> Option<u64> {
        let count = self.count();
        let rank = count - count / 100;
        let (mut below, mut lower) = (0, 0);
        for (upper, own) in SEND_TO_CREDIT_BOUNDS_MS.into_iter().zip(self.buckets) {
            if own > 0 && below + own >= rank {
                let part = u128::from(upper - lower) * u128::from(rank - below) / u128::from(own);
                return Some(u64::try_from(part).map_or(upper, |part| lower + part));
            }
            (below, lower) = (below + own, upper);
        }
        (count > 0).then_some(lower + 1)
    }
}

/// Adds the moment from which on this event counts, where it says one.
pub(crate) fn note(event: &[u8], from_ms: &mut Vec<i64>) {
    // What has no such field, or another one in its place, was no sender's of ours.
    from_ms.extend(creditable_from_ms(event).ok().filter(|ms| *ms > 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_800_000_000_000;

    fn of(took_ms: &[i64]) -> SendToCredit {
        let from_ms: Vec<i64> = took_ms.iter().map(|took_ms| NOW_MS - took_ms).collect();
        SendToCredit::of(&from_ms, NOW_MS)
    }

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        assert!(SEND_TO_CREDIT_BOUNDS_MS.is_sorted());
        let found = of(&[0, 1, 2, 3, 86_400_000, 86_400_001]);
        let mut buckets = [0; SEND_TO_CREDIT_BOUNDS_MS.len() + 1];
        (buckets[0], buckets[1], buckets[2], buckets[21], buckets[22]) = (2, 1, 1, 1, 1);
        assert_eq!(found, SendToCredit { buckets, sum_ms: 172_800_007 });
        assert_eq!(found.count(), 6);
    }

    /// The clock of a sender was ahead, or is wrong by years.
    #[test]
    fn a_wrong_clock_counts_as_now_and_does_not_decide_the_sum() {
        assert_eq!(of(&[-5_000, -1]), of(&[0, 0]));
        let found = SendToCredit::of(&[1, i64::MIN], NOW_MS);
        assert_eq!((found.buckets[22], found.sum_ms), (2, 2 * SUMMED_MAX_MS));
    }

    #[test]
    fn p99_is_what_one_of_a_hundred_exceeds() {
        assert_eq!(SendToCredit::default().p99_ms(), None);
        // One of a hundred is the hundredth part that may take longer; two are more.
        let mut took_ms = vec![10; 99];
        took_ms.push(4_000);
        assert_eq!(of(&took_ms).p99_ms(), Some(10));
        took_ms[0] = 4_000;
        assert_eq!(of(&took_ms).p99_ms(), Some(3_500), "half of the bucket from 2 to 5 s");
        assert_eq!(of(&[4_000]).p99_ms(), Some(5_000), "the bucket is all that is known of one");
        assert_eq!(of(&[90_000_000]).p99_ms(), Some(86_400_001));
    }

    #[test]
    fn what_has_come_since_is_told_from_what_was_there() {
        let before = of(&[4_000; 7]);
        let mut after = before;
        after.add(&of(&[10, 20]));
        assert_eq!(after.since(&before), of(&[10, 20]));
        assert_eq!(before.since(&after).count(), 0, "another histogram");
    }

    #[test]
    fn an_event_without_a_time_does_not_count() {
        use windfall_proto::event::{EventRef, put_not_before};
        let moments = |first_sent_ms: i64, not_before_ms: i64| {
            let (mut bytes, mut from_ms) = (Vec::new(), Vec::new());
            EventRef { first_sent_ms, award_time_ms: 9, ..EventRef::default() }.encode([], &mut bytes);
            put_not_before(&mut bytes, not_before_ms);
            note(&bytes, &mut from_ms);
            from_ms
        };
        assert!(moments(0, 0).is_empty() && moments(-1, 0).is_empty());
        assert_eq!(moments(7, 0), [7]);
        assert_eq!(moments(7, 5), [7]);
        assert_eq!(moments(7, 9), [9], "its sender did not want it before");
    }
}
