//! Points at which a test ends the far tier as if its process had died there. They have an effect in tests alone.

/// A step of a task's way through the far tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailPoint {
    /// Tasks are in the log, and their caller has no answer.
    Appended,
    /// A new part of the log has begun, and no segment has the tasks before it.
    Sealed,
    /// A segment is written, and no manifest names it.
    SegmentWritten,
    /// The manifest is written, and what it replaces is still there.
    ManifestWritten,
    /// Merged segments are written, and no manifest names them.
    Merged,
    /// An hour is closed.
    Closed,
    /// It is noted that a batch is about to be loaded.
    Begun,
    /// A batch is near, and that is not noted.
    Loaded,
    /// It is noted that a batch is near.
    Ended,
    /// It is noted that an hour is over, and its segments are still there.
    HourOver,
}

#[cfg(test)]
impl FailPoint {
    pub const ALL: [Self; 10] = [
        Self::Appended,
        Self::Sealed,
        Self::SegmentWritten,
        Self::ManifestWritten,
        Self::Merged,
        Self::Closed,
        Self::Begun,
        Self::Loaded,
        Self::Ended,
        Self::HourOver,
    ];
}

/// What a test has armed.
#[derive(Default)]
pub(crate) struct FailPoints {
    #[cfg(test)]
    armed: parking_lot::Mutex<Armed>,
}

#[cfg(test)]
#[derive(Default)]
struct Armed {
    at: Option<(FailPoint, u32)>,
    is_dead: bool,
}

impl FailPoints {
    /// Whether the far tier is dead from here on.
    #[cfg(not(test))]
    pub fn is_dead_at(&self, _point: FailPoint) -> bool {
        false
    }

    #[cfg(test)]
    pub fn is_dead_at(&self, point: FailPoint) -> bool {
        let mut armed = self.armed.lock();
        if let Some((at, left)) = &mut armed.at
            && *at == point
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                (armed.at, armed.is_dead) = (None, true);
            }
        }
        armed.is_dead
    }

    /// The far tier dies when it reaches the point for the `nth` time.
    #[cfg(test)]
    pub fn die_at(&self, point: FailPoint, nth: u32) {
        self.armed.lock().at = Some((point, nth));
    }

    #[cfg(test)]
    pub fn is_dead(&self) -> bool {
        self.armed.lock().is_dead
    }
}
