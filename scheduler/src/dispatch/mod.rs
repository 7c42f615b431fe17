//! The firing half.

use crate::options::DispatchOptions;
use crate::stats::DispatchStats;
use crate::tenants::Tenants;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::{SlotStore, Target};

/// Fires the tasks of the shards that it owns. Dropped without [`drain`](Self::drain) it stops at once, as if its
/// process had died.
pub struct Dispatcher(Arc<DispatchStats>);

/// What a drain left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Tasks that had been handed over and are not noted as over: the next owner hands them over again.
    pub unnoted_tasks: u64,
    /// Shards whose lease could not be given back; others get them when it has run out.
    pub unreleased_shards: u64,
}

#[allow(unused_variables, clippy::todo, missing_docs)]
impl Dispatcher {
    pub fn start(
        options: DispatchOptions,
        tenants: Arc<Tenants>,
        store: Arc<dyn SlotStore>,
        targets: BTreeMap<(String, String), Arc<dyn Target>>,
        instance: String,
        clock: Clock,
    ) -> Self {
        todo!()
    }
    pub async fn drain(self, deadline: Duration) -> Drained {
        todo!()
    }
    pub fn stats(&self) -> Arc<DispatchStats> {
        Arc::clone(&self.0)
    }
    pub fn check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        || todo!()
    }
}
