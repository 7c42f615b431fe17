//! Runs a future whose panic is an answer and not the end of its task.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Waits for the future; a panic of it is returned as its message. What the future borrowed may be half changed then.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(message(&*panic))),
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
        let panicked = caught(async {
            tokio::task::yield_now().await;
            panic!("task {}", 3)
        });
        assert_eq!(panicked.await, Err::<(), _>("task 3".to_owned()));
    }
}
