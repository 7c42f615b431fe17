//! The types of the limiter's inputs: the caller's time, and this instance's share of the fleet's limits.

/// Nanoseconds of a monotonic clock since a start of the caller's choice (its own process's start, say). All calls to
/// one [`Limiter`](crate::Limiter) use the same start. It lasts for 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// The part of the fleet's limits that is this instance's: the partitions it owns ÷ all partitions.
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
    /// No share, so that nothing passes: an instance of a fleet has it before its first assignment.
    pub const NONE: Self = Self { owned: 0, of: 1 };

    /// The share of `owned` in `of` partitions; `None` where `of` is 0 or less than `owned`.
    pub const fn new(owned: u32, of: u32) -> Option<Self> {
        if of > 0 && owned <= of { Some(Self { owned, of }) } else { None }
    }

    /// The number of partitions that this instance owns.
    pub const fn owned(self) -> u32 {
        self.owned
    }

    /// The number of all partitions; at least 1.
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
