//! Runs a future and returns its panic as a value, so that its task does not end.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// The message of a panic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it panicked: {0}")]
pub(crate) struct Panicked(pub String);

/// Waits for the future; a panic of it is returned. What the future borrowed may be half changed then.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(Panicked(message(&*panic)))),
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer_with_its_message() {
        assert_eq!(caught(async { 7 }).await, Ok(7));
        let formatted = caught(async { panic!("record {}", 3) }).await;
        assert_eq!(formatted, Err::<(), _>(Panicked("record 3".into())));
        let late = caught(async {
            tokio::task::yield_now().await;
            panic!("late")
        });
        assert_eq!(late.await, Err::<(), _>(Panicked("late".into())));
    }
}
