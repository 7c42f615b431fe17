//! A store that is open, also where its server is away.

use anyhow::Result;
use async_trait::async_trait;
use std::sync::Arc;
use windfall_contract::due::SlotStore;
use windfall_contract::entries::EntryStore;

/// A store, and what is left to do until it can be used.
pub struct Opened<S: ?Sized> {
    /// Takes the calls.
    pub store: Arc<S>,
    /// What connects to its server, where that was away. Until then its calls are unavailable.
    pub away: Option<Arc<dyn Connect>>,
}

/// The slot store of the scheduler.
pub type Slots = Opened<dyn SlotStore>;
/// The store of cron and one-off jobs.
pub type Entries = Opened<dyn EntryStore>;

/// A part whose server was away when the process started.
#[async_trait]
pub trait Connect: Send + Sync {
    /// Connects for good. Does nothing where it is connected.
    ///
    /// # Errors
    /// Those of opening the part; [`may_pass`](super::may_pass) says whether to try again.
    async fn connect(&self) -> Result<()>;
}
