//! Who is registered, as this process read it a moment ago.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::due::Shard;

/// An app of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct App {
    pub tenant: String,
    pub app: String,
}

/// What is kept of an executor. Its entry's time to wake is when it is gone without another heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registered {
    pub tenant: String,
    pub app: String,
    pub address: String,
    /// When it came, in Unix milliseconds by the clock of the process that took its heartbeat.
    pub since_ms: u64,
}

pub(crate) type Addresses = Arc<[Arc<str>]>;
type Apps = Arc<BTreeMap<App, Addresses>>;

/// The addresses of each app, sorted, by the shard in which the app lies.
#[derive(Debug, Default)]
pub(crate) struct ExecutorTable(Mutex<BTreeMap<Shard, Apps>>);

impl ExecutorTable {
    /// The addresses of an app of this shard; `None` before the shard was read.
    pub fn of(&self, shard: Shard, app: &App) -> Option<Addresses> {
        let apps = self.0.lock().get(&shard).cloned()?;
        Some(apps.get(app).cloned().unwrap_or_default())
    }

    /// Takes over what was read of a shard. An app whose executors are the same keeps its list, so that whoever compares lists
    /// by their place finds it the same.
    pub fn replace(&self, shard: Shard, read: Vec<Registered>) {
        let before = self.0.lock().get(&shard).cloned().unwrap_or_default();
        let mut sorted: BTreeMap<App, Vec<Arc<str>>> = BTreeMap::new();
        for Registered { tenant, app, address, .. } in read {
            sorted.entry(App { tenant, app }).or_default().push(address.into());
        }
        let apps = sorted.into_iter().map(|(app, mut addresses)| {
            addresses.sort_unstable();
            addresses.dedup();
            let same = before.get(&app).filter(|list| ***list == *addresses).cloned();
            (app, same.unwrap_or_else(|| addresses.into()))
        });
        let apps = Arc::new(apps.collect());
        self.0.lock().insert(shard, apps);
    }

    /// How many executors there are.
    pub fn len(&self) -> usize {
        self.0.lock().values().flat_map(|apps| apps.values()).map(|addresses| addresses.len()).sum()
    }
}
