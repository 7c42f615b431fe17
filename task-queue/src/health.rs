//! Which shards of a store answer: those that do not are passed over as long as another one does, so that one server that
//! is away holds up no queue that has jobs elsewhere. Whoever tends to leases asks every shard all the time, and notes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use windfall_contract::due::Shard;

/// The shards of a store.
pub(crate) struct Health {
    /// By shard, whether it did not answer last.
    away: Vec<AtomicBool>,
}

impl Health {
    pub(crate) fn new(shards: u16) -> Arc<Self> {
        Arc::new(Self { away: (0..shards.max(1)).map(|_| AtomicBool::new(false)).collect() })
    }

    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.away.len()).unwrap_or(u16::MAX)
    }

    /// What a shard has just shown.
    pub(crate) fn note(&self, shard: Shard, is_well: bool) {
        if let Some(away) = self.away.get(usize::from(shard.0)) {
            away.store(!is_well, Relaxed);
        }
    }

    pub(crate) fn is_well(&self, shard: Shard) -> bool {
        self.away.get(usize::from(shard.0)).is_none_or(|away| !away.load(Relaxed))
    }

    /// Whether any shard answers.
    pub(crate) fn is_any_well(&self) -> bool {
        self.away.iter().any(|away| !away.load(Relaxed))
    }
}
