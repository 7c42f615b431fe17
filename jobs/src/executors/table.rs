//! Who is registered, as this process read it a moment ago.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

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

type Addresses = Arc<[Arc<str>]>;

/// The addresses of each app, sorted.
#[derive(Debug, Default)]
pub(crate) struct ExecutorTable(Mutex<Option<Arc<BTreeMap<App, Addresses>>>>);

impl ExecutorTable {
    /// The addresses of an app; `None` before they were read.
    pub fn of(&self, app: &App) -> Option<Addresses> {
        let apps = self.0.lock().clone()?;
        Some(apps.get(app).cloned().unwrap_or_default())
    }

    /// Takes what was read over. An app whose executors are the same keeps its list, so that whoever compares lists by
    /// their place finds it the same.
    pub fn replace(&self, read: Vec<Registered>) {
        let before = self.0.lock().clone().unwrap_or_default();
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
        *self.0.lock() = Some(apps);
    }
}
