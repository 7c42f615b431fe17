//! Whether the time of an occurrence has come, and how late it may be, where clocks are set.
//!
//! The scheduler has seen its time come by the clock of its own store, which never goes back: once that was ahead, everything that
//! is added fires at once until real time has caught up. And the clock of the store of entries, by which occurrences are decided,
//! may be set ahead: what is due in between is late by that clock alone, and counts as missed by no strategy.

use crate::runs::{MISFIRE_MS, Now};
use crate::store_clock::Ahead;

/// An occurrence is decided so long before its time at most: the clocks of two servers differ a little.
const EARLY_MS: u64 = 2_000;
/// The scheduler tries an occurrence again and again that comes within this time. A later one costs nothing until the look for
/// overdue ones finds it.
const RETRIED_MS: u64 = 30_000;
/// A clock that is set ahead by more than this was far behind, or this machine was asleep: that is an outage, and the misfire
/// strategy decides. With up to two hours a job of each second catches up with 7,200 occurrences.
const AHEAD_MAX_MS: u64 = 7_200_000;

/// The clock of a shard's store of entries at one moment, as occurrences go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueClock {
    /// The time, late by at most the slack.
    pub now_ms: u64,
    pub slack_ms: u64,
    /// By how much it was set ahead.
    pub ahead: Option<Ahead>,
}

/// What is done about an occurrence that has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is decided.
    Now,
    /// The scheduler fires it again in a moment.
    Soon,
    /// It is taken from the scheduler, which fires it too early. Its job's state says that it comes next, so that the look for
    /// overdue ones adds it again in its time.
    Far,
}

impl DueClock {
    /// What is done now about an occurrence that is due then.
    pub fn turn(&self, due_ms: u64) -> Turn {
        // A wrong time is put right soon, mostly: as long as it is new, the clock goes on as it was.
        let doubted_ms =
            self.ahead.filter(|ahead| ahead.is_new && ahead.ms > MISFIRE_MS).map(|ahead| ahead.ms);
        let now_ms = self.now_ms.saturating_sub(doubted_ms.unwrap_or(0));
        let latest_ms = now_ms.saturating_add(self.slack_ms).saturating_add(EARLY_MS);
        match due_ms.saturating_sub(latest_ms) {
            0 => Turn::Now,
            _ if doubted_ms.is_some() => Turn::Soon,
            1..=RETRIED_MS => Turn::Soon,
            _ => Turn::Far,
        }
    }

    /// The time at which occurrences are decided, and by how much they may be late.
    pub fn now(&self) -> Now {
        Now { ms: self.now_ms, misfire_ms: MISFIRE_MS.saturating_add(self.ahead_ms()) }
    }

    /// How late an occurrence is, apart from what is due to the clock.
    pub fn late_ms(&self, due_ms: u64) -> u64 {
        self.now_ms.saturating_sub(due_ms).saturating_sub(self.ahead_ms())
    }

    fn ahead_ms(&self) -> u64 {
        self.ahead.map(|ahead| ahead.ms).filter(|ms| *ms <= AHEAD_MAX_MS).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occurrence_is_not_decided_long_before_its_time() {
        let clock = DueClock { now_ms: 1_000_000, slack_ms: 40, ahead: None };
        for (due_ms, turn) in [
            (0, Turn::Now),
            (1_002_040, Turn::Now),
            (1_002_041, Turn::Soon),
            (1_032_040, Turn::Soon),
            (1_032_041, Turn::Far),
            (u64::MAX, Turn::Far),
        ] {
            assert_eq!(clock.turn(due_ms), turn, "{due_ms}");
        }
    }

    #[test]
    fn a_clock_that_was_set_ahead_goes_on_as_it_was_for_a_moment_and_then_makes_nothing_missed() {
        let set = |ms, is_new| DueClock { now_ms: 9_000_000, slack_ms: 0, ahead: Some(Ahead { ms, is_new }) };
        let new = set(3_600_000, true);
        assert_eq!(
            (new.turn(5_402_000), new.turn(5_402_001), new.turn(u64::MAX)),
            (Turn::Now, Turn::Soon, Turn::Soon)
        );
        assert_eq!(new.now(), Now { ms: 9_000_000, misfire_ms: 3_615_000 });
        let old = set(3_600_000, false);
        assert_eq!((old.turn(9_002_000), old.turn(u64::MAX)), (Turn::Now, Turn::Far));
        assert_eq!(old.now(), new.now());
        assert_eq!((old.late_ms(5_000_000), old.late_ms(6_000_000)), (400_000, 0));
        assert_eq!(set(10_000, true).turn(9_002_000), Turn::Now, "so little makes nothing missed");
        let outage = set(AHEAD_MAX_MS + 1, false);
        assert_eq!((outage.now().misfire_ms, outage.late_ms(0)), (MISFIRE_MS, 9_000_000));
    }
}
