//! The store of a task queue's pool: files or Redis.

#[cfg(not(feature = "redis"))]
use super::Absent;
use super::{Connect, Driver, DurabilityAt};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_contract::Clock;
use windfall_contract::due::Durability;
use windfall_contract::task_queue::{JobStore, QueueTokens};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
#[cfg(feature = "redis")]
use windfall_task_queue::redis::{RedisJobs, RedisJobsOptions};

#[cfg(not(feature = "redis"))]
type RedisJobsOptions = Absent;

/// What keeps the jobs of a pool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum JobsAt {
    /// Files in the data directory, for one process alone.
    #[default]
    Embedded,
    /// Redis, or Redis Cluster, for any number of processes.
    Redis(Box<RedisJobsOptions>),
}

/// A store of jobs.
pub struct OpenJobs {
    /// The jobs.
    pub store: Arc<dyn JobStore>,
    /// The tokens, which lie beside them.
    pub tokens: Arc<dyn QueueTokens>,
    /// What connects to its server, where that was away. Until then its calls are unavailable.
    pub away: Option<Arc<dyn Connect>>,
}

impl JobsAt {
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

    /// Whether several processes may use it.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Whether both are the same jobs. Files are of one pool each.
    pub fn is_same_store(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Redis(one), Self::Redis(two)) if is_same_redis(one, two))
    }

    /// How long one call may take, where a server is asked.
    pub fn call_timeout_ms(&self) -> Option<u64> {
        match self {
            Self::Embedded => None,
            Self::Redis(options) => call_timeout_of(options),
        }
    }

    /// Opens it, also where its server is away. `dir` and `durability` are of files.
    pub async fn open(&self, dir: &Path, durability: DurabilityAt, clock: &Clock) -> Result<OpenJobs> {
        match self {
            Self::Embedded => {
                let durability = match durability {
                    DurabilityAt::Process => Durability::Process,
                    DurabilityAt::Machine => Durability::Machine,
                };
                let options = EmbeddedJobsOptions { durability, ..EmbeddedJobsOptions::default() };
                let opened = block_in_place(|| EmbeddedJobs::open(dir, &options, clock.clone()));
                let store = opened.context("the store of the task queue's jobs cannot be opened")?;
                Ok(OpenJobs { store: Arc::clone(&store) as _, tokens: store, away: None })
            }
            Self::Redis(options) => open_redis(options).await,
        }
    }
}

#[cfg(feature = "redis")]
const NOT_IN_REDIS: &str = "the store of the task queue's jobs in Redis cannot be opened";

#[cfg(feature = "redis")]
fn is_same_redis(one: &RedisJobsOptions, two: &RedisJobsOptions) -> bool {
    one.is_same_store(two)
}

#[cfg(not(feature = "redis"))]
const fn is_same_redis(_: &RedisJobsOptions, _: &RedisJobsOptions) -> bool {
    false
}

#[cfg(feature = "redis")]
const fn call_timeout_of(options: &RedisJobsOptions) -> Option<u64> {
    Some(options.call_timeout_ms)
}

#[cfg(not(feature = "redis"))]
const fn call_timeout_of(_: &RedisJobsOptions) -> Option<u64> {
    None
}

#[cfg(feature = "redis")]
async fn open_redis(options: &RedisJobsOptions) -> Result<OpenJobs> {
    let store = RedisJobs::open_later(options.clone()).context(NOT_IN_REDIS)?;
    let away: Option<Arc<dyn Connect>> = match store.connect().await {
        Ok(()) => None,
        Err(error) if error.may_pass() => Some(Arc::clone(&store) as _),
        Err(error) => return Err(error).context(NOT_IN_REDIS),
    };
    Ok(OpenJobs { store: Arc::clone(&store) as _, tokens: store, away })
}

#[cfg(feature = "redis")]
#[async_trait::async_trait]
impl Connect for RedisJobs {
    async fn connect(&self) -> Result<()> {
        Self::connect(self).await.context(NOT_IN_REDIS)
    }
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "the driver's own is async")]
async fn open_redis(_: &RedisJobsOptions) -> Result<OpenJobs> {
    Driver::Redis.absent()
}
