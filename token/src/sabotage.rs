//! Switches that break the token check on purpose. Only with the cargo feature `sabotage`, which no release
//! build has: a test turns them on and demands that the end-to-end check reports the damage.

use std::sync::atomic::{AtomicBool, Ordering};

static SKIP_TOKEN_COMPARISON: AtomicBool = AtomicBool::new(false);

/// While on, a token is taken from whoever presents it and is not compared with the stored one. It holds for
/// the whole process.
pub fn skip_token_comparison(on: bool) {
    SKIP_TOKEN_COMPARISON.store(on, Ordering::SeqCst);
}

pub(crate) fn skips_token_comparison() -> bool {
    SKIP_TOKEN_COMPARISON.load(Ordering::SeqCst)
}
