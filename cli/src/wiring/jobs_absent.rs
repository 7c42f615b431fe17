//! Stands for `jobs.rs` in a binary that was built without the roles: it runs no jobs, so nothing of these types can be made.

use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::Target;
use windfall_contract::entries::EntryStore;
use windfall_scheduler::Timers;

/// How jobs would be run.
#[derive(Clone)]
pub enum JobsPart {}

/// Jobs that would run.
pub enum RunningJobs {}

impl RunningJobs {
    pub fn start(
        part: JobsPart,
        _: Arc<dyn EntryStore>,
        _: Timers,
        _: BTreeMap<(String, String), Arc<dyn Target>>,
        _: &Clock,
    ) -> Result<Self> {
        match part {}
    }

    pub async fn listen(&mut self) -> Result<()> {
        match *self {}
    }

    pub fn targets(&self) -> BTreeMap<(String, String), Arc<dyn Target>> {
        match *self {}
    }

    pub fn store(&self) -> &Arc<dyn EntryStore> {
        match *self {}
    }

    pub async fn close(self, _: Duration) {
        match self {}
    }
}
