//! A scheduler that remembers what executors say.

use crate::xxl::{Admin, AdminError, Executor, RunResult};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Takes every registration and every result, and keeps them; or fails as it is told.
#[derive(Default)]
pub struct FakeAdmin {
    seen: Mutex<AdminSeen>,
    changed: Notify,
}

/// What executors have said.
#[derive(Debug, Clone, Default)]
pub struct AdminSeen {
    /// Each registration, repeated ones included.
    pub registered: Vec<Executor>,
    /// Each leave.
    pub removed: Vec<Executor>,
    /// Each result, repeated ones included.
    pub results: Vec<RunResult>,
    /// Calls that failed as they were told to.
    pub failed: u64,
    fail_next: u64,
}

impl FakeAdmin {
    /// The next so many calls fail, and are not kept.
    pub fn fail_next(&self, calls: u64) {
        self.seen.lock().fail_next = calls;
    }

    /// What was said until now.
    pub fn seen(&self) -> AdminSeen {
        self.seen.lock().clone()
    }

    /// Waits until `look` finds something. The caller sets the limit.
    pub async fn wait<T>(&self, look: impl Fn(&AdminSeen) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look(&self.seen.lock()) {
                return found;
            }
            changed.await;
        }
    }

    fn keep(&self, add: impl FnOnce(&mut AdminSeen)) -> Result<(), AdminError> {
        let mut seen = self.seen.lock();
        let kept = match seen.fail_next {
            0 => {
                add(&mut seen);
                Ok(())
            }
            left => {
                seen.fail_next = left - 1;
                seen.failed += 1;
                Err(AdminError::Unavailable("it was told to fail".into()))
            }
        };
        drop(seen);
        self.changed.notify_waiters();
        kept
    }
}

#[async_trait]
impl Admin for FakeAdmin {
    async fn register(&self, executor: Executor) -> Result<(), AdminError> {
        self.keep(|seen| seen.registered.push(executor))
    }

    async fn remove(&self, executor: Executor) -> Result<(), AdminError> {
        self.keep(|seen| seen.removed.push(executor))
    }

    async fn report(&self, results: Vec<RunResult>) -> Result<(), AdminError> {
        self.keep(|seen| seen.results.extend(results))
    }
}
