//! The driver's own threads: its network work goes on whatever the caller's threads do.

use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use windfall_contract::broker::OpenError;

/// A tokio runtime that may be dropped on any thread, also on an async one.
pub(super) struct Engine {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Engine {
    pub(super) fn start(threads: usize) -> Result<Self, OpenError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("windfall-rocketmq")
            .enable_all()
            .build()
            .map_err(|error| OpenError::Io {
                place: "threads of the RocketMQ driver".into(),
                what: error.to_string(),
            })?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// Runs a task and blocks until it ends, also on an async thread.
    pub(super) fn block_on<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, OpenError>> + Send + 'static,
    ) -> Result<T, OpenError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        drop(self.spawn(async move {
            // Nobody listens only if the caller's thread died.
            sender.send(task.await).ok();
        }));
        receiver
            .recv()
            .unwrap_or_else(|_| Err(OpenError::Unavailable("the RocketMQ driver has stopped".into())))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting here would panic on an async thread.
            runtime.shutdown_background();
        }
    }
}
