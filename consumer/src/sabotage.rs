//! Switches that break a promise on purpose, so that a test can show that the end-to-end check notices.
//! Only with the feature `sabotage`, which no release build has.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

static PANICS: RwLock<Vec<(Stage, Vec<u8>)>> = RwLock::new(Vec::new());
static EARLY_MARK: AtomicBool = AtomicBool::new(false);
static EARLY_COPY: AtomicBool = AtomicBool::new(false);
static UNSYNCED_SALVAGE: AtomicBool = AtomicBool::new(false);

/// Finishes every ticket at delivery, before the grant: breaks I3 for all consumers of the process.
pub fn early_mark(on: bool) {
    EARLY_MARK.store(on, Ordering::SeqCst);
}

pub(crate) fn is_early_mark() -> bool {
    EARLY_MARK.load(Ordering::SeqCst)
}

/// Finishes a record when its copy is on its way to a queue, before the copy is acknowledged: breaks I3 for all
/// consumers of the process.
pub fn early_copy(on: bool) {
    EARLY_COPY.store(on, Ordering::SeqCst);
}

pub(crate) fn is_early_copy() -> bool {
    EARLY_COPY.load(Ordering::SeqCst)
}

/// Leaves out the sync behind each write to the salvage file, so that the end of the machine loses what was reported
/// as stored: breaks I2 for all consumers of the process.
pub fn skip_salvage_sync(on: bool) {
    UNSYNCED_SALVAGE.store(on, Ordering::SeqCst);
}

pub(crate) fn skips_salvage_sync() -> bool {
    UNSYNCED_SALVAGE.load(Ordering::SeqCst)
}

/// Where in a consumer's loop the bytes of a record or of an event are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A record is taken in.
    Arrival,
    /// The answer to an event's grant is taken in.
    Answer,
    /// An event is written back to a queue.
    WriteBack,
}

/// From now on every loop of the process panics at this stage on bytes that contain `marker`.
pub fn panic_at(stage: Stage, marker: &str) {
    PANICS.write().push((stage, marker.as_bytes().to_vec()));
}

/// Panics if a test wants it.
pub(crate) fn handles(stage: Stage, bytes: &[u8]) {
    let is_wanted = |(at, marker): &(Stage, Vec<u8>)| {
        *at == stage && bytes.windows(marker.len()).any(|window| window == marker)
    };
    let is_wanted = PANICS.read().iter().any(is_wanted);
    assert!(!is_wanted, "a test wants a panic at the stage {stage:?}");
}
