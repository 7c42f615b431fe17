//! Reads who is registered, again and again, each shard by itself: one that does not answer keeps no news of others away.

use crate::book::kept;
use crate::core::Core;
use crate::executors::Registered;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_contract::due::Shard;
use windfall_contract::entries::EntryError;

/// Reads the executors of each shard again and again. Ends when it is dropped.
pub(crate) async fn read_executors(core: Arc<Core>) {
    let mut shards = JoinSet::new();
    for shard in core.book.shards() {
        shards.spawn(read_shard(Arc::clone(&core), shard));
    }
    while let Some(ended) = shards.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "executors of a shard are not read any more by this process");
        }
    }
}

async fn read_shard(core: Arc<Core>, shard: Shard) {
    let every = Duration::from_millis(core.options.executors_every_ms);
    loop {
        match AssertUnwindSafe(executors_of(&core, shard)).catch_unwind().await {
            Ok(Ok(found)) => {
                core.executors.replace(shard, found);
                core.heartbeats.read(shard);
                core.stats.executors.set(u64::try_from(core.executors.len()).unwrap_or(u64::MAX));
            }
            Ok(Err(error)) => core.store_failed("executors cannot be read now", &error),
            Err(_) => {
                core.stats.panics.add(1);
                tracing::error!(shard = shard.0, "a look for executors has panicked");
            }
        }
        tokio::time::sleep(every).await;
    }
}

async fn executors_of(core: &Core, shard: Shard) -> Result<Vec<Registered>, EntryError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = core.book.scan(shard, b"e/", after.as_ref(), 1_000).await?;
        if page.entries.is_empty() && page.next.is_none() {
            return Ok(found);
        }
        // Those that are silent may still be there until somebody forgets them.
        let now_ms = core.now_ms(shard).await?;
        let has_jumped = core.store_clocks.has_jumped(shard, core.options.executor_ttl_ms);
        for entry in &page.entries {
            if has_jumped || entry.wake_ms.is_none_or(|wake_ms| wake_ms > now_ms) {
                match kept::<Registered>(entry) {
                    Ok(registered) => found.push(registered.is),
                    Err(error) => core.unreadable(&error),
                }
            }
        }
        after = match page.next {
            Some(next) => Some(next),
            None => return Ok(found),
        };
    }
}
