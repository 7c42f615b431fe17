//! The numbers by which the store knows tenants and targets, asked for once.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use windfall_contract::due::{Route, SlotStore, StoreError};

/// A cache of numbers and names; they never change.
pub(crate) struct Names {
    store: Arc<dyn SlotStore>,
    tenants: RwLock<HashMap<String, u16>>,
    targets: RwLock<HashMap<(u16, String), u16>>,
    routes: RwLock<HashMap<Route, TenantAndTarget>>,
}

type TenantAndTarget = (Arc<str>, Arc<str>);

impl Names {
    pub fn new(store: Arc<dyn SlotStore>) -> Self {
        Self { store, tenants: RwLock::default(), targets: RwLock::default(), routes: RwLock::default() }
    }

    pub async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        if let Some(&known) = self.tenants.read().get(name) {
            return Ok(known);
        }
        let number = self.store.tenant(name).await?;
        self.tenants.write().insert(name.to_owned(), number);
        Ok(number)
    }

    pub async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        let key = (tenant, name.to_owned());
        if let Some(&known) = self.targets.read().get(&key) {
            return Ok(known);
        }
        let number = self.store.target(tenant, name).await?;
        self.targets.write().insert(key, number);
        Ok(number)
    }

    /// The names of a tenant and its target; `None` where the store does not know them.
    pub async fn route(&self, route: Route) -> Result<Option<TenantAndTarget>, StoreError> {
        if let Some(known) = self.routes.read().get(&route) {
            return Ok(Some(known.clone()));
        }
        let Some((tenant, target)) = self.store.names(route).await? else { return Ok(None) };
        let names: TenantAndTarget = (tenant.into(), target.into());
        self.routes.write().insert(route, names.clone());
        Ok(Some(names))
    }
}
