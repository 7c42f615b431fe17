//! The state that the handles and threads of an open broker share, and the handle that ends its writer.

use super::options::EmbeddedOptions;
use super::storage::Storage;
use super::topic::Topic;
use super::write_queue::WriteQueue;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use windfall_contract::broker::OpenError;

/// Shared by a broker's handles and threads.
pub(super) struct BrokerState {
    /// The directory, for messages.
    pub(super) place: String,
    pub(super) options: EmbeddedOptions,
    pub(super) storage: Storage,
    pub(super) topics: RwLock<BTreeMap<String, Arc<Topic>>>,
    pub(super) write_queue: WriteQueue,
    /// Numbers reader threads.
    pub(super) readers: AtomicUsize,
}

/// A broker that is open, held by each of its handles. When the last one goes, the writer stops, after everything
/// taken is written.
pub(super) struct OpenBroker {
    pub(super) state: Arc<BrokerState>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl BrokerState {
    pub(super) fn topic(&self, name: &str) -> Result<Arc<Topic>, OpenError> {
        self.topics.read().get(name).cloned().ok_or_else(|| {
            OpenError::Absent(format!("{} has no topic {name:?}; create it with ensure_topic", self.place))
        })
    }
}

impl OpenBroker {
    /// Takes over the writer's thread.
    pub(super) fn new(state: Arc<BrokerState>, writer: JoinHandle<()>) -> Arc<Self> {
        Arc::new(Self { state, writer: Mutex::new(Some(writer)) })
    }
}

impl Drop for OpenBroker {
    fn drop(&mut self) {
        self.state.write_queue.stop();
        // The last handle may belong to a sink, which the writer drops: it then ends by itself.
        if let Some(writer) = self.writer.lock().take()
            && writer.thread().id() != std::thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(place = %self.state.place, "the queue writer thread panicked");
        }
    }
}
