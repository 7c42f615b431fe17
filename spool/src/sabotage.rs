//! Switches for tests: whether the end-to-end check notices a spool that keeps nothing, and which callers a slow disk
//! stops. A default build has no such switches.

use parking_lot::RwLock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type SyncHook = Arc<dyn Fn(u32) -> io::Result<()> + Send + Sync>;

static SKIPS_SPOOL: AtomicBool = AtomicBool::new(false);
static SYNC_HOOK: RwLock<Option<SyncHook>> = RwLock::new(None);

/// Calls `hook` with the slot's number before each sync of this process from now on. The hook may delay a
/// sync or make it fail.
pub fn on_sync(hook: impl Fn(u32) -> io::Result<()> + Send + Sync + 'static) {
    *SYNC_HOOK.write() = Some(Arc::new(hook));
}

pub(crate) fn before_sync(slot: u32) -> io::Result<()> {
    let hook = SYNC_HOOK.read().clone();
    hook.map_or(Ok(()), |hook| hook(slot))
}

/// Makes every [`Spool::open`](crate::Spool::open) from now on give plain memory, so that a kill loses events.
pub fn skip_spool(on: bool) {
    SKIPS_SPOOL.store(on, Ordering::Relaxed);
}

pub(crate) fn skips_spool() -> bool {
    SKIPS_SPOOL.load(Ordering::Relaxed)
}
