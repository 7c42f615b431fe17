//! Whether the broker still counts this consumer as alive.
//!
//! An instance that was stopped past its session time-out may have lost its partitions without knowing. It admits
//! nothing before it has polled again, or the fleet's limit would be spent twice (I5). The wall clock is a second
//! witness: the monotonic one stands still while a machine sleeps.

use crate::units::NS_PER_MS;
use std::time::Duration;

/// The time of the last sign of life, and whether that is too long ago.
#[derive(Debug)]
pub(crate) struct Liveness {
    session_timeout_ms: u64,
    /// When the last poll that succeeded had begun, by the monotonic clock and by the wall clock.
    polled: Option<(u64, i64)>,
    is_frozen: bool,
}

/// A change of the session that [`Liveness::look`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionChange {
    /// The session is over: nothing may be admitted. Before the first poll it has not begun.
    Frozen {
        /// Whether it had begun, so that this is worth a report.
        had_begun: bool,
    },
    /// The consumer has polled again.
    Thawed,
}

impl Liveness {
    pub fn new(session_timeout_ms: u64) -> Self {
        Self { session_timeout_ms, polled: None, is_frozen: false }
    }

    /// Notes that a poll which began at this time has succeeded.
    pub fn polled(&mut self, began_ns: u64, began_wall_ms: i64) {
        self.polled = Some((began_ns, began_wall_ms));
    }

    /// Looks at the clocks; returns what has changed since the last look.
    pub fn look(&mut self, now_ns: u64, wall_ms: i64) -> Option<SessionChange> {
        let limit_ms = self.session_timeout_ms;
        let is_frozen = self.polled.is_none_or(|(polled_ns, polled_wall_ms)| {
            let since_ms = wall_ms.saturating_sub(polled_wall_ms);
            now_ns.saturating_sub(polled_ns) > limit_ms.saturating_mul(NS_PER_MS)
                || u64::try_from(since_ms).is_ok_and(|since_ms| since_ms > limit_ms)
        });
        if std::mem::replace(&mut self.is_frozen, is_frozen) == is_frozen {
            return None;
        }
        Some(match is_frozen {
            true => SessionChange::Frozen { had_begun: self.polled.is_some() },
            false => SessionChange::Thawed,
        })
    }

    /// Whether the session was over at the last look.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Whether it is time to poll for a sign of life alone.
    pub fn needs_a_beat(&self, now_ns: u64) -> bool {
        self.polled.is_none_or(|(polled_ns, _)| now_ns.saturating_sub(polled_ns) >= self.beat_ns())
    }

    /// How often a sign of life is given, and so the longest that one turn with the broker should take.
    pub fn beat(&self) -> Duration {
        Duration::from_nanos(self.beat_ns())
    }

    fn beat_ns(&self) -> u64 {
        self.session_timeout_ms.saturating_mul(NS_PER_MS) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000 * NS_PER_MS;

    #[test]
    fn the_session_is_over_when_either_clock_says_so_and_begins_anew_with_a_poll() {
        let mut liveness = Liveness::new(1_000);
        assert_eq!(liveness.look(0, 0), Some(SessionChange::Frozen { had_begun: false }));
        liveness.polled(0, 0);
        assert_eq!(liveness.look(SECOND_NS, 1_000), Some(SessionChange::Thawed));
        assert_eq!(liveness.look(SECOND_NS, 1_000), None);
        assert_eq!(liveness.look(SECOND_NS + 1, 1_000), Some(SessionChange::Frozen { had_begun: true }));
        liveness.polled(2 * SECOND_NS, 2_000);
        assert_eq!(liveness.look(2 * SECOND_NS, 2_000), Some(SessionChange::Thawed));
        // The machine slept: its monotonic clock stood still meanwhile.
        assert_eq!(liveness.look(2 * SECOND_NS, 3_001), Some(SessionChange::Frozen { had_begun: true }));
        assert!(liveness.is_frozen());
    }

    #[test]
    fn a_sign_of_life_is_due_four_times_in_a_session() {
        let mut liveness = Liveness::new(1_000);
        assert!(liveness.needs_a_beat(0), "before the first poll");
        liveness.polled(0, 0);
        assert!(!liveness.needs_a_beat(SECOND_NS / 4 - 1));
        assert!(liveness.needs_a_beat(SECOND_NS / 4));
    }
}
