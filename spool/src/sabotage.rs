//! For one test: does the end-to-end check notice a spool that keeps nothing? A default build has no such switch.

use std::sync::atomic::{AtomicBool, Ordering};

static SKIPS_SPOOL: AtomicBool = AtomicBool::new(false);

/// Makes every [`Spool::open`](crate::Spool::open) from now on give plain memory, so that a kill loses events.
pub fn skip_spool(on: bool) {
    SKIPS_SPOOL.store(on, Ordering::Relaxed);
}

pub(crate) fn skips_spool() -> bool {
    SKIPS_SPOOL.load(Ordering::Relaxed)
}
