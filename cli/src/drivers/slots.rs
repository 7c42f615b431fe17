//! The slot store of the scheduler: files or Redis.

#[cfg(not(feature = "redis"))]
use super::Absent;
#[cfg(feature = "redis")]
use super::Connect;
use super::{Driver, Slots};
use crate::place;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
#[cfg(feature = "redis")]
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_contract::Clock;
use windfall_contract::due::Durability;
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
#[cfg(feature = "redis")]
use windfall_slots::redis::{RedisSlots, RedisSlotsOptions};

#[cfg(not(feature = "redis"))]
type RedisSlotsOptions = Absent;

/// What keeps timers until their time.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SlotsAt {
    /// Files in the data directory, for one process alone.
    #[default]
    Embedded,
    /// Redis, or Redis Cluster, for any number of processes.
    Redis(Box<RedisSlotsOptions>),
}

/// What the Ok of a call survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityAt {
    /// The end of the process. In Redis, what the server is set to.
    #[default]
    Process,
    /// The end of the machine, for a disk sync that calls share. A Redis that is set to less is refused.
    Machine,
}

impl SlotsAt {
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

    /// Opens it with this number of shards, also where its server is away.
    pub async fn open(
        &self,
        data: &Path,
        shards: u16,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<Slots> {
        match self {
            Self::Embedded => {
                let durability = match durability {
                    DurabilityAt::Process => Durability::Process,
                    DurabilityAt::Machine => Durability::Machine,
                };
                let options = EmbeddedSlotsOptions { shards, durability, ..EmbeddedSlotsOptions::default() };
                let opened =
                    block_in_place(|| EmbeddedSlots::open(&place::slots(data), &options, clock.clone()));
                Ok(Slots {
                    store: opened.context("the slot store of the scheduler cannot be opened")?,
                    away: None,
                })
            }
            Self::Redis(options) => open_redis(options, shards, durability).await,
        }
    }
}

#[cfg(feature = "redis")]
const NOT_IN_REDIS: &str = "the slot store of the scheduler in Redis cannot be opened";

#[cfg(feature = "redis")]
async fn open_redis(options: &RedisSlotsOptions, shards: u16, durability: DurabilityAt) -> Result<Slots> {
    let needs_disk_sync = durability == DurabilityAt::Machine;
    let options = RedisSlotsOptions { shards, needs_disk_sync, ..options.clone() };
    let store = RedisSlots::open_later(options).context(NOT_IN_REDIS)?;
    let away: Option<Arc<dyn Connect>> = match store.connect().await {
        Ok(()) => None,
        Err(error) if error.may_pass() => Some(Arc::clone(&store) as _),
        Err(error) => return Err(error).context(NOT_IN_REDIS),
    };
    Ok(Slots { store, away })
}

#[cfg(feature = "redis")]
#[async_trait::async_trait]
impl Connect for RedisSlots {
    async fn connect(&self) -> Result<()> {
        Self::connect(self).await.context(NOT_IN_REDIS)
    }
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "the driver's own is async")]
async fn open_redis(_: &RedisSlotsOptions, _: u16, _: DurabilityAt) -> Result<Slots> {
    Driver::Redis.absent()
}
