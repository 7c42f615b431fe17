//! The token store: files or Redis.

#[cfg(not(feature = "redis"))]
use super::Absent;
use super::{Driver, Reach};
use crate::place;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use windfall_contract::tokens::TokenStore;
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
#[cfg(feature = "redis")]
use windfall_store::redis::{RedisOptions, RedisStore};

#[cfg(not(feature = "redis"))]
type RedisOptions = Absent;

/// The store that keeps tokens.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TokensAt {
    /// Files in the data directory, for one process alone.
    #[default]
    Embedded,
    /// Redis, or Redis Cluster.
    Redis(Box<RedisOptions>),
}

impl TokensAt {
    /// The Redis at a URL, or the cluster at several with commas between; keys begin with `prefix`.
    pub fn redis(urls: &str, prefix: String, reach: &Reach) -> Self {
        #[cfg(feature = "redis")]
        let options = {
            let urls: Vec<&str> = urls.split(',').collect();
            let options = match urls[..] {
                [url] => RedisOptions::at(url),
                _ => RedisOptions::cluster(urls),
            };
            RedisOptions { prefix, tls: reach.tls.clone(), plaintext: reach.plaintext, ..options }
        };
        #[cfg(not(feature = "redis"))]
        let options = {
            let (_, _, _) = (urls, prefix, reach);
            Absent
        };
        Self::Redis(Box::new(options))
    }

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

    /// Whether other processes may write and remove tokens there.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Opens it.
    pub async fn open(&self, data: &Path) -> Result<Arc<dyn TokenStore>> {
        match self {
            Self::Embedded => {
                let store = EmbeddedStore::open(&place::tokens(data), &EmbeddedStoreOptions::default());
                Ok(store.context("the token store cannot be opened")?)
            }
            Self::Redis(options) => {
                open_redis(options).await.context("the token store in Redis cannot be opened")
            }
        }
    }

    /// Opens it, also where its server is away: it is connected to then when it is back.
    pub async fn open_or_wait(&self, data: &Path) -> Result<Arc<dyn TokenStore>> {
        match (self, self.open(data).await) {
            (Self::Redis(options), Err(error)) if super::may_pass(&error) => {
                connect_redis(options).context("the token store in Redis cannot be opened")
            }
            (_, opened) => opened,
        }
    }
}

#[cfg(feature = "redis")]
fn connect_redis(options: &RedisOptions) -> Result<Arc<dyn TokenStore>> {
    Ok(RedisStore::open_in_background(options.clone())?)
}

#[cfg(not(feature = "redis"))]
fn connect_redis(_: &RedisOptions) -> Result<Arc<dyn TokenStore>> {
    Driver::Redis.absent()
}

#[cfg(feature = "redis")]
async fn open_redis(options: &RedisOptions) -> Result<Arc<dyn TokenStore>> {
    Ok(RedisStore::open(options.clone()).await?)
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "the driver's own is async")]
async fn open_redis(_: &RedisOptions) -> Result<Arc<dyn TokenStore>> {
    Driver::Redis.absent()
}
