//! What the client remembers of each executor: how many calls it has, and by which path it takes runs.

use super::address::ExecutorAddress;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// The path of runs: `/run` in all released jars, `/trigger` in what comes after 3.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPath {
    Run,
    Trigger,
}

impl RunPath {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Run => "/run",
            Self::Trigger => "/trigger",
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Run => Self::Trigger,
            Self::Trigger => Self::Run,
        }
    }
}

/// One executor.
pub(super) struct Peer {
    pub(super) places: Semaphore,
    takes_trigger: AtomicBool,
}

impl Peer {
    pub(super) fn run_path(&self) -> RunPath {
        if self.takes_trigger.load(Relaxed) { RunPath::Trigger } else { RunPath::Run }
    }

    /// Remembers the path that this executor knows.
    pub(super) fn takes(&self, path: RunPath) {
        self.takes_trigger.store(path == RunPath::Trigger, Relaxed);
    }
}

/// All executors that were called.
pub(super) struct Peers {
    known: Mutex<HashMap<ExecutorAddress, Arc<Peer>>>,
    executors_max: usize,
    calls_each_max: usize,
}

impl Peers {
    pub(super) fn new(executors_max: usize, calls_each_max: usize) -> Self {
        Self { known: Mutex::default(), executors_max, calls_each_max }
    }

    /// The executor of this address; None where too many have calls at the same time.
    pub(super) fn of(&self, address: &ExecutorAddress) -> Option<Arc<Peer>> {
        let mut known = self.known.lock();
        if let Some(peer) = known.get(address) {
            return Some(Arc::clone(peer));
        }
        if known.len() >= self.executors_max {
            // Those without a call: they are asked for their path again.
            known.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if known.len() >= self.executors_max {
            return None;
        }
        let places = Semaphore::new(self.calls_each_max);
        let peer = Arc::new(Peer { places, takes_trigger: AtomicBool::new(false) });
        known.insert(address.clone(), Arc::clone(&peer));
        Some(peer)
    }

    pub(super) fn forget(&self, address: &ExecutorAddress) {
        self.known.lock().remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executors_that_are_remembered_are_bounded() {
        let address = |port: u16| ExecutorAddress::parse(&format!("http://10.0.0.1:{port}")).unwrap();
        let peers = Peers::new(2, 1);
        let first = peers.of(&address(1)).unwrap();
        first.takes(RunPath::Trigger);
        peers.of(&address(2)).unwrap();
        // The second has no call any more, and makes room.
        let third = peers.of(&address(3)).unwrap();
        assert!(peers.of(&address(4)).is_none());
        assert_eq!(peers.of(&address(1)).unwrap().run_path(), RunPath::Trigger);
        drop(third);
        assert!(peers.of(&address(4)).is_some());
        peers.forget(&address(1));
        assert_eq!(peers.of(&address(1)).unwrap().run_path(), RunPath::Run);
    }
}
