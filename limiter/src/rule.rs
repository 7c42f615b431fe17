//! What operators and the fleet say: limits, fuses, shares; and the caller's clock.

/// Nanoseconds of a monotonic clock since a start of the caller's choice (its own process's start, say). All
/// calls to one [`Limiter`](crate::Limiter) use the same start. Lasts 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// A token bucket: at most `rate_per_s · Δ + burst` events in any Δ seconds.
///
/// Whoever builds one from a document validates it there; a figure beyond its range counts as the end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Events a second: 0 to [`Limit::RATE_PER_S_MAX`]; 0 admits nothing.
    pub rate_per_s: u64,
    /// Events that may pass at once after a pause: 1 to [`Limit::BURST_MAX`]. A fleet's limit wants at least one
    /// a partition (see the crate's page).
    pub burst: u32,
}

impl Limit {
    /// The highest rate, events a second.
    pub const RATE_PER_S_MAX: u64 = 100_000_000;
    /// The highest burst, events.
    pub const BURST_MAX: u32 = 10_000_000;
}

/// An operator's switch on a bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Flowing.
    #[default]
    Closed,
    /// Grants nothing: the lane holds, and requeues with delay before it blocks another type.
    Pause,
    /// Grants nothing: the lane requeues with delay at once.
    Divert,
}

/// The limit, fuse and rank of one bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeRule {
    /// Its own bucket.
    pub limit: Limit,
    /// The operator's switch.
    pub fuse: Fuse,
    /// Who asks first where the global bucket is short; 0 before 1. Kept for the caller, who orders its lanes.
    pub priority: u8,
}

/// What part of the fleet's limits is this instance's: the partitions it owns ÷ all partitions.
///
/// An instance that loses a partition calls [`set_share`](crate::Limiter::set_share) before the next owner takes
/// it; then the fleet's sum never passes the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    owned: u32,
    of: u32,
}

impl Share {
    /// The whole limit: one instance alone.
    pub const ALL: Self = Self { owned: 1, of: 1 };
    /// Nothing passes: what an instance of a fleet has before its first assignment.
    pub const NONE: Self = Self { owned: 0, of: 1 };

    /// `None` where there are no partitions, or fewer than are owned.
    pub const fn new(owned: u32, of: u32) -> Option<Self> {
        if of > 0 && owned <= of { Some(Self { owned, of }) } else { None }
    }

    /// Partitions that this instance owns.
    pub const fn owned(self) -> u32 {
        self.owned
    }

    /// Partitions there are; at least 1.
    pub const fn of(self) -> u32 {
        self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_or_of_more_than_all_cannot_be_made() {
        assert_eq!(Share::new(0, 0), None);
        assert_eq!(Share::new(1, 0), None);
        assert_eq!(Share::new(5, 4), None);
        let quarter = Share::new(1, 4).unwrap();
        assert_eq!((quarter.owned(), quarter.of()), (1, 4));
        assert!(Share::new(u32::MAX, u32::MAX).is_some());
    }
}
