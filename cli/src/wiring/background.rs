//! Tasks that work beside the calls.

use tokio::task::{AbortHandle, JoinHandle};

/// A task with a name, which ends when this is dropped. It must not end before.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    task: JoinHandle<()>,
}

impl Background {
    /// Starts it.
    pub fn spawn(name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { name, task: tokio::spawn(work) }
    }

    /// Its name, and what tells whether it has ended.
    pub fn watch(&self) -> (&'static str, AbortHandle) {
        (self.name, self.task.abort_handle())
    }

    /// Ends it, and waits until it has let go of what it held.
    pub async fn end(mut self) {
        self.task.abort();
        match (&mut self.task).await {
            Err(error) if error.is_panic() => {
                tracing::error!(task = self.name, "a background task had panicked")
            }
            _ => {}
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.task.abort();
    }
}
