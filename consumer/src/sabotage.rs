//! Switches that break a promise on purpose, so that a test can show that the end-to-end check notices.
//! Only with the feature `sabotage`, which no release build has.

use std::sync::atomic::{AtomicBool, Ordering};

static EARLY_MARK: AtomicBool = AtomicBool::new(false);

/// Finishes every ticket at delivery, before the grant: breaks I3 for all consumers of the process.
pub fn early_mark(on: bool) {
    EARLY_MARK.store(on, Ordering::SeqCst);
}

pub(crate) fn is_early_mark() -> bool {
    EARLY_MARK.load(Ordering::SeqCst)
}
