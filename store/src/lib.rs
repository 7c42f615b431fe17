//! Token store: what users hold as proof of a reward that has not been credited yet.
//!
//! A token is kept from the moment its order number is sent until its reward is credited, under its user. The
//! store is a weak dependency (I8): sending and crediting go on without it, so an error here says nothing about a
//! token (I7), and nobody waits for it for long.
//!
//! - [`contract`](windfall_contract::tokens): what every backend offers.
//! - [`embedded`]: a backend on files inside the process.
//! - `redis`, with the feature of that name: a backend on Redis and Redis Cluster.
//! - [`write_behind`]: a bounded table in front of a backend, in which a credit cancels a token before it is written.
//! - [`switchable`]: a decorator that is down on demand, for the demo and tests.
//!
//! It does not seal, open or judge tokens (`windfall-token` does), and it is no ledger: losing it loses no money.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use windfall_contract::tokens::{NEVER, TokenKey, TokenPut, TokenStore};
//! use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = EmbeddedStore::open(dir.path(), &EmbeddedStoreOptions::default())?;
//! let put = TokenPut { user_id: 7, name: "rain-7-1".into(), token: "AQAB".into(), expires_at_ms: NEVER };
//! store.put(&[put]).await?;
//! assert_eq!(store.list(7, None, 10).await?.len(), 1);
//!
//! // Credited: the token goes.
//! let key = TokenKey { user_id: 7, name: "rain-7-1".into() };
//! store.remove(&[key.clone()]).await?;
//! assert_eq!(store.get(&[key]).await?, vec![None]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod embedded;
mod packing;
#[cfg(feature = "redis")]
pub mod redis;
pub mod switchable;
pub mod write_behind;
