//! Whether the time of an occurrence has come. The scheduler has seen it come by the clock of its own store, which never goes
//! back: once that was ahead, everything that is added fires at once until real time has caught up.

/// An occurrence is decided so long before its time at most: the clocks of two servers differ a little.
pub(crate) const EARLY_MS: u64 = 2_000;
/// The scheduler tries an occurrence again and again that comes within this time. A later one costs nothing until the look for
/// overdue ones finds it.
const RETRIED_MS: u64 = 30_000;

/// The clock of a shard's store of entries at one moment, as occurrences go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueClock {
    /// The time, late by at most the slack.
    pub now_ms: u64,
    pub slack_ms: u64,
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
    pub const fn turn(&self, due_ms: u64) -> Turn {
        let latest_ms = self.now_ms.saturating_add(self.slack_ms).saturating_add(EARLY_MS);
        match due_ms.saturating_sub(latest_ms) {
            0 => Turn::Now,
            1..=RETRIED_MS => Turn::Soon,
            _ => Turn::Far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occurrence_is_not_decided_long_before_its_time() {
        let clock = DueClock { now_ms: 1_000_000, slack_ms: 40 };
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
}
