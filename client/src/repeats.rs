//! Recognises what a scheduler has delivered twice.

use std::collections::{BTreeSet, HashMap};
use windfall_proto::v1::FiredTimer;

/// Ids that are kept at most, where nothing else is asked for: some 100 MB.
const IDS_MAX: usize = 1_000_000;
/// Ids are kept for so long, by their due times, where nothing else is asked for: an hour.
const WINDOW_MS: u64 = 3_600_000;

/// Drops timers that came before: a bounded window of ids, by due time.
///
/// A timer is delivered at least once; it comes twice where a process died, or an answer was lost, between its delivery
/// and the note that it was delivered. It then has the same id. Ask [`seen`](Self::seen) before the work, and say
/// [`done`](Self::done) behind it, in that order: an id that is noted before its work is work that is lost when the
/// process dies in between.
///
/// The window lives in memory, so it knows nothing of what an earlier process did; and two consumers of one topic have two
/// windows, which is right as long as a key's records go to one partition. Where twice is once too often whatever
/// happens, keep the id with the work in one transaction, under a unique index (docs/scheduler.md has the recipe).
///
/// ```
/// use windfall_client::{FiredIds, Seen};
/// use windfall_proto::v1::FiredTimer;
///
/// let mut ids = FiredIds::default();
/// let fired = FiredTimer { id: "0001-01c3a2f0-00000000".into(), due_ms: 1_795_345_200_000, ..Default::default() };
/// for delivery in 0..2 {
///     match ids.seen(&fired) {
///         Seen::Before => assert_eq!(delivery, 1),
///         Seen::Never | Seen::TooOldToSay => {
///             // The work.
///             ids.done(&fired);
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct FiredIds {
    window_ms: u64,
    ids_max: usize,
    due_of: HashMap<String, u64>,
    by_due: BTreeSet<(u64, String)>,
    /// What is due before it may have been forgotten.
    known_from_ms: u64,
}

/// Whether a timer came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It did not, since this window exists.
    Never,
    /// It did, and was done. Drop it.
    Before,
    /// It was due so long ago that the window may have forgotten it. Do it, unless another record says that it was done.
    TooOldToSay,
}

impl Default for FiredIds {
    fn default() -> Self {
        Self::new(WINDOW_MS, IDS_MAX)
    }
}

impl FiredIds {
    /// A window of `window_ms` behind the latest due time that was done, with at most `ids_max` ids, at least 1. Choose it
    /// longer than a timer's delivery may be late: behind an outage, a catch-up, a long retry.
    pub fn new(window_ms: u64, ids_max: usize) -> Self {
        let (due_of, by_due) = (HashMap::new(), BTreeSet::new());
        Self { window_ms, ids_max: ids_max.max(1), due_of, by_due, known_from_ms: 0 }
    }

    /// Whether this timer came before.
    pub fn seen(&self, fired: &FiredTimer) -> Seen {
        if self.due_of.contains_key(&fired.id) {
            Seen::Before
        } else if fired.due_ms < self.known_from_ms {
            Seen::TooOldToSay
        } else {
            Seen::Never
        }
    }

    /// Notes that the work of a timer is done: when the timer comes again, it was [`Seen::Before`].
    pub fn done(&mut self, fired: &FiredTimer) {
        // A timer that was sent again by hand may have another due time; its id is the same.
        if let Some(due_ms) = self.due_of.insert(fired.id.clone(), fired.due_ms) {
            self.by_due.remove(&(due_ms, fired.id.clone()));
        }
        self.by_due.insert((fired.due_ms, fired.id.clone()));
        let latest_ms = self.by_due.last().map_or(0, |(due_ms, _)| *due_ms);
        let from_ms = latest_ms.saturating_sub(self.window_ms);
        while let Some((due_ms, _)) = self.by_due.first()
            && (*due_ms < from_ms || self.by_due.len() > self.ids_max)
            && let Some((due_ms, id)) = self.by_due.pop_first()
        {
            self.due_of.remove(&id);
            self.known_from_ms = self.known_from_ms.max(due_ms + 1);
        }
    }

    /// The ids that it keeps.
    pub fn len(&self) -> usize {
        self.due_of.len()
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.due_of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(id: &str, due_ms: u64) -> FiredTimer {
        FiredTimer { id: id.into(), due_ms, ..FiredTimer::default() }
    }

    #[test]
    fn what_was_done_is_known_and_what_was_only_begun_is_not() {
        let mut ids = FiredIds::new(1_000, 10);
        let timer = fired("a", 5_000);
        assert_eq!(ids.seen(&timer), Seen::Never);
        assert_eq!(ids.seen(&timer), Seen::Never, "its work was not done: it comes again, and is done again");
        ids.done(&timer);
        assert_eq!(ids.seen(&timer), Seen::Before);
        assert_eq!(
            ids.seen(&FiredTimer { attempt: 2, ..timer }),
            Seen::Before,
            "another attempt is the same timer"
        );
        assert_eq!(ids.seen(&fired("b", 5_000)), Seen::Never);
    }

    #[test]
    fn what_lies_before_the_window_may_have_been_forgotten_and_is_not_called_new() {
        let mut ids = FiredIds::new(1_000, 10);
        ids.done(&fired("old", 1_000));
        ids.done(&fired("edge", 4_000));
        ids.done(&fired("new", 5_000));
        assert_eq!(ids.len(), 2);
        assert_eq!(ids.seen(&fired("old", 1_000)), Seen::TooOldToSay);
        assert_eq!(ids.seen(&fired("edge", 4_000)), Seen::Before);
        // Nothing that is due at 3,000 was forgotten.
        assert_eq!(ids.seen(&fired("late", 3_000)), Seen::Never);
        // A late one is kept no longer than its due time allows.
        ids.done(&fired("late", 3_000));
        assert_eq!(ids.seen(&fired("late", 3_000)), Seen::TooOldToSay);
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest_first() {
        let mut ids = FiredIds::new(u64::MAX, 3);
        for due_ms in [7, 3, 9, 5, 8] {
            ids.done(&fired(&due_ms.to_string(), due_ms));
            assert!(ids.len() <= 3);
        }
        let seen: Vec<_> = [3, 5, 7, 8, 9].map(|due_ms| ids.seen(&fired(&due_ms.to_string(), due_ms))).into();
        assert_eq!(seen, [Seen::TooOldToSay, Seen::TooOldToSay, Seen::Before, Seen::Before, Seen::Before]);
    }

    #[test]
    fn an_id_with_another_due_time_is_the_same_timer() {
        let mut ids = FiredIds::new(100, 10);
        ids.done(&fired("a", 1_000));
        ids.done(&fired("a", 1_050));
        assert_eq!(ids.len(), 1);
        ids.done(&fired("b", 1_120));
        assert_eq!(ids.seen(&fired("a", 1_000)), Seen::Before, "its newest due time keeps it");
    }
}
