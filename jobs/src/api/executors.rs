//! Executors register, and are shown.

use super::{ExecutorView, Jobs, JobsError};
use crate::book::{change, executor_key, group, kept, put};
use crate::executors::Registered;
use windfall_contract::entries::{Expect, To};

const TENANT_MAX_BYTES: usize = 100;
const APP_MAX_BYTES: usize = 128;
const ADDRESS_MAX_BYTES: usize = 200;

impl Jobs {
    /// Takes an executor's heartbeat: it is there for [`executor_ttl_ms`](crate::JobsOptions::executor_ttl_ms) from now. Other
    /// processes see a new one within [`executors_every_ms`](crate::JobsOptions::executors_every_ms).
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn register(&self, tenant: &str, app: &str, address: &str) -> Result<(), JobsError> {
        check("tenant", tenant, TENANT_MAX_BYTES)?;
        check("app", app, APP_MAX_BYTES)?;
        check("address", address, ADDRESS_MAX_BYTES)?;
        let core = &self.0.core;
        let shard = core.book.shard_of_app(tenant, app);
        let key = executor_key(tenant, app, address);
        let known = core.book.read_one::<Registered>(shard, key.clone()).await?;
        let since_ms = known.map_or_else(|| core.clock.unix_ms(), |kept| kept.is.since_ms);
        let (tenant, app, address) = (tenant.to_owned(), app.to_owned(), address.to_owned());
        let registered = Registered { tenant, app, address, since_ms };
        let wake_ms = core.now_ms(shard).await?.saturating_add(core.options.executor_ttl_ms);
        let changes = vec![put(key, Expect::Anything, &registered, Some(wake_ms))];
        let applied = core.apply(shard, &[group(changes)]).await;
        core.heartbeats.answered(shard, applied.is_ok());
        applied.map(drop).map_err(JobsError::from)
    }

    /// An executor says that it goes.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn unregister(&self, tenant: &str, app: &str, address: &str) -> Result<(), JobsError> {
        check("app", app, APP_MAX_BYTES)?;
        check("address", address, ADDRESS_MAX_BYTES)?;
        let core = &self.0.core;
        let shard = core.book.shard_of_app(tenant, app);
        let gone = change(executor_key(tenant, app, address), Expect::Anything, To::Deleted);
        core.apply(shard, &[group(vec![gone])]).await?;
        Ok(())
    }

    /// The executors of an app, by address, at most 1,000.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn executors(&self, tenant: &str, app: &str) -> Result<Vec<ExecutorView>, JobsError> {
        check("app", app, APP_MAX_BYTES)?;
        let core = &self.0.core;
        let prefix = [b"e/", tenant.as_bytes(), b"\0", app.as_bytes(), b"\0"].concat();
        let page = core.book.scan(core.book.shard_of_app(tenant, app), &prefix, None, 1_000).await?;
        let mut views = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let Registered { app, address, since_ms, .. } = kept::<Registered>(entry)?.is;
            views.push(ExecutorView { app, address, since_ms, until_ms: entry.wake_ms });
        }
        Ok(views)
    }
}

fn check(field: &'static str, text: &str, max_bytes: usize) -> Result<(), JobsError> {
    if text.is_empty() || text.len() > max_bytes || text.contains('\0') {
        let what = format!("it has 1 to {max_bytes} bytes, and no zero byte");
        return Err(JobsError::WrongField { field, what });
    }
    Ok(())
}
