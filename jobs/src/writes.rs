//! Whether the store takes changes, by shard. While it does not, leases are not renewed, and that they are over says nothing of
//! their owners.

use parking_lot::Mutex;
use windfall_contract::Clock;
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryError, EntryGroup, Expect, To};

/// How long leases that ended meanwhile are left to their owners, who renew them or write how their runs went.
pub(crate) const HELD_BACK_MS: u64 = 1_500;
/// A change that took so long to be answered has kept the renewals beside it waiting, too.
const SLOW_MS: u64 = 2_000;

#[derive(Clone, Copy, Default)]
struct Known {
    is_failing: bool,
    held_until_ns: u64,
}

pub(crate) struct Writes {
    clock: Clock,
    known: Vec<Mutex<Known>>,
}

impl Writes {
    pub fn new(clock: Clock, shards: usize) -> Self {
        Self { clock, known: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// A call was answered that was begun at `asked_ns` by the monotonic clock.
    pub fn answered(&self, shard: Shard, asked_ns: u64) {
        let Some(known) = self.known.get(usize::from(shard.0)) else { return };
        let (mut known, now_ns) = (known.lock(), self.clock.monotonic_ns());
        if known.is_failing || now_ns.saturating_sub(asked_ns) > SLOW_MS * 1_000_000 {
            known.held_until_ns = now_ns.saturating_add(HELD_BACK_MS * 1_000_000);
        }
        known.is_failing = false;
    }

    /// A call has failed. One with new entries says nothing: a store that is full refuses it, and renews leases all the same.
    pub fn failed(&self, shard: Shard, groups: &[EntryGroup], error: &EntryError) {
        let mut changes = groups.iter().flat_map(|group| &group.changes);
        let may_add = changes.any(|change| {
            matches!(change.to, To::Put { .. }) && !matches!(change.expect, Expect::Version(_))
        });
        let is_away = matches!(error, EntryError::Unavailable(_));
        if let Some(known) = self.known.get(usize::from(shard.0)).filter(|_| is_away && !may_add) {
            known.lock().is_failing = true;
        }
    }

    /// Whether the last call has failed: only another one tells whether the store takes changes again.
    pub fn are_failing(&self, shard: Shard) -> bool {
        self.known.get(usize::from(shard.0)).is_some_and(|known| known.lock().is_failing)
    }

    /// Whether leases that are over are left to their owners.
    pub fn hold_back(&self, shard: Shard) -> bool {
        let Some(known) = self.known.get(usize::from(shard.0)).map(|known| *known.lock()) else {
            return false;
        };
        known.is_failing || self.clock.monotonic_ns() < known.held_until_ns
    }
}
