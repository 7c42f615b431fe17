//! The store of cron and one-off jobs: files or Redis. (The jobs of task queues lie elsewhere: [`JobsAt`](super::JobsAt).)

#[cfg(not(feature = "redis"))]
use super::Absent;
#[cfg(feature = "redis")]
use super::Connect;
use super::{Driver, DurabilityAt, Entries};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
#[cfg(feature = "redis")]
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_contract::Clock;
use windfall_contract::due::Durability;
use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions};
#[cfg(feature = "redis")]
use windfall_jobs::store::redis::{RedisEntries, RedisEntriesOptions};

#[cfg(not(feature = "redis"))]
type RedisEntriesOptions = Absent;

/// What keeps jobs, their runs and their executors.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EntriesAt {
    /// Files in the data directory, for one process alone.
    #[default]
    Embedded,
    /// Redis, or Redis Cluster, for any number of processes.
    Redis(Box<RedisEntriesOptions>),
}

impl EntriesAt {
    /// Refuses what cannot be opened as it is asked for. Connects to nothing.
    pub fn check(&self) -> Result<()> {
        self.driver().map_or(Ok(()), Driver::check)?;
        #[cfg(feature = "redis")]
        if let Self::Redis(options) = self {
            options.check_address()?;
        }
        Ok(())
    }

    /// The driver that it needs.
    pub const fn driver(&self) -> Option<Driver> {
        match self {
            Self::Embedded => None,
            Self::Redis(_) => Some(Driver::Redis),
        }
    }

    /// Whether other processes may use it at the same time.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// How long one call may take, where a server is asked.
    pub fn call_timeout_ms(&self) -> Option<u64> {
        match self {
            Self::Embedded => None,
            Self::Redis(options) => call_timeout_of(options),
        }
    }

    /// Opens it in this directory or at its server, also where that is away.
    pub async fn open(
        &self,
        dir: &Path,
        shards: u16,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<Entries> {
        match self {
            Self::Embedded => {
                let durability = match durability {
                    DurabilityAt::Process => Durability::Process,
                    DurabilityAt::Machine => Durability::Machine,
                };
                let options =
                    EmbeddedEntriesOptions { shards, durability, ..EmbeddedEntriesOptions::default() };
                let opened = block_in_place(|| EmbeddedEntries::open(dir, &options, clock.clone()));
                Ok(Entries { store: opened.context("the store of jobs cannot be opened")?, away: None })
            }
            Self::Redis(options) => open_redis(options, shards, durability).await,
        }
    }
}

#[cfg(feature = "redis")]
const fn call_timeout_of(options: &RedisEntriesOptions) -> Option<u64> {
    Some(options.call_timeout_ms)
}

#[cfg(not(feature = "redis"))]
const fn call_timeout_of(_: &RedisEntriesOptions) -> Option<u64> {
    None
}

#[cfg(feature = "redis")]
const NOT_IN_REDIS: &str = "the store of jobs in Redis cannot be opened";

#[cfg(feature = "redis")]
async fn open_redis(options: &RedisEntriesOptions, shards: u16, durability: DurabilityAt) -> Result<Entries> {
    let needs_disk_sync = durability == DurabilityAt::Machine;
    let options = RedisEntriesOptions { shards, needs_disk_sync, ..options.clone() };
    let store = RedisEntries::open_later(options.for_jobs()).context(NOT_IN_REDIS)?;
    let away: Option<Arc<dyn Connect>> = match store.connect().await {
        Ok(()) => None,
        Err(error) if error.may_pass() => Some(Arc::clone(&store) as _),
        Err(error) => return Err(error).context(NOT_IN_REDIS),
    };
    Ok(Entries { store, away })
}

#[cfg(feature = "redis")]
#[async_trait::async_trait]
impl Connect for RedisEntries {
    async fn connect(&self) -> Result<()> {
        Self::connect(self).await.context(NOT_IN_REDIS)
    }
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "the driver's own is async")]
async fn open_redis(_: &RedisEntriesOptions, _: u16, _: DurabilityAt) -> Result<Entries> {
    Driver::Redis.absent()
}
