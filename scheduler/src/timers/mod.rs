//! The API half.

use crate::options::TimersOptions;
use crate::stats::{TenantStats, TimersStats};
use crate::task::{AddError, DeadView, NewTask, TaskView, TimersError};
use crate::tenants::Tenants;
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::due::{Added, Changed, Durability, Moved, SlotStore, TaskAt, TaskId};

/// Adds, moves, cancels and finds tasks. Clones share one.
#[derive(Clone)]
pub struct Timers(Arc<()>);

#[allow(unused_variables, clippy::todo, missing_docs)]
impl Timers {
    pub fn start(
        options: TimersOptions,
        tenants: Arc<Tenants>,
        store: Arc<dyn SlotStore>,
        clock: Clock,
    ) -> Self {
        todo!()
    }
    pub fn durability(&self) -> Durability {
        todo!()
    }
    pub async fn add(&self, tenant: &str, tasks: Vec<NewTask>) -> Vec<Result<Added, AddError>> {
        todo!()
    }
    pub async fn update(&self, tenant: &str, at: TaskAt, to: Moved) -> Result<Changed, TimersError> {
        todo!()
    }
    pub async fn cancel(&self, tenant: &str, at: Vec<TaskAt>) -> Vec<Result<Changed, TimersError>> {
        todo!()
    }
    pub async fn get(&self, tenant: &str, at: TaskAt) -> Result<Option<TaskView>, TimersError> {
        todo!()
    }
    pub async fn list(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<(Vec<TaskView>, Option<TaskId>), TimersError> {
        todo!()
    }
    pub async fn dead(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadView>, TimersError> {
        todo!()
    }
    pub async fn end_dead(
        &self,
        tenant: &str,
        ids: Vec<TaskId>,
        again: bool,
    ) -> Result<Vec<bool>, TimersError> {
        todo!()
    }
    pub fn stats(&self) -> TimersStats {
        todo!()
    }
    pub fn tenants(&self) -> Vec<TenantStats> {
        todo!()
    }
    pub async fn close(&self) {
        todo!()
    }
}
