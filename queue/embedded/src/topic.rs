//! A topic's state in memory: the ends of its partitions, and its groups.

use super::group::Group;
use super::storage::Extent;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::broker::Lag;

/// The number of a topic's partitions at most.
pub(super) const MAX_PARTITIONS: u32 = 1024;

/// One topic.
pub(super) struct Topic {
    pub(super) id: u32,
    pub(super) partitions: RwLock<Vec<Arc<Partition>>>,
    pub(super) groups: Mutex<BTreeMap<String, Arc<Group>>>,
}

/// One partition's extent, as readers see it.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) low: AtomicU64,
    pub(super) end: AtomicU64,
}

impl Partition {
    pub(super) fn new(extent: Extent) -> Arc<Self> {
        Arc::new(Self { low: AtomicU64::new(extent.low), end: AtomicU64::new(extent.end) })
    }
}

impl Topic {
    pub(super) fn count(&self) -> usize {
        self.partitions.read().len()
    }

    pub(super) fn partition(&self, partition: u32) -> Option<Arc<Partition>> {
        self.partitions.read().get(usize::try_from(partition).ok()?).cloned()
    }

    /// The offset after the last record that may be read.
    pub(super) fn end(&self, partition: u32) -> u64 {
        self.partition(partition).map_or(0, |partition| partition.end.load(Ordering::Acquire))
    }

    pub(super) fn ends(&self) -> Vec<u64> {
        self.partitions.read().iter().map(|partition| partition.end.load(Ordering::Acquire)).collect()
    }

    pub(super) fn lows(&self) -> Vec<u64> {
        self.partitions.read().iter().map(|partition| partition.low.load(Ordering::Acquire)).collect()
    }

    pub(super) fn lag(&self, group: &str) -> Lag {
        let group = self.groups.lock().get(group).cloned();
        let committed = group.map_or_else(|| self.lows(), |group| group.committed());
        Lag { end: self.ends().iter().sum(), committed: committed.iter().sum() }
    }

    pub(super) fn wake_readers(&self) {
        for group in self.groups.lock().values() {
            group.wake_readers();
        }
    }
}
