//! Where a test may make the loop panic, by the bytes that it handles.

#[cfg(feature = "sabotage")]
pub(crate) use crate::sabotage::{Stage, handles};

/// Where the bytes of a record or of an event are handled.
#[cfg(not(feature = "sabotage"))]
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Arrival,
    Answer,
    WriteBack,
}

/// Does nothing, except under test.
#[cfg(not(feature = "sabotage"))]
#[inline]
pub(crate) const fn handles(_: Stage, _: &[u8]) {}
