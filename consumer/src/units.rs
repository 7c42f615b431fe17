//! Units of time.

/// The nanoseconds of a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;
