//! Waits for a future on a plain thread, for a bounded time.
//! A runtime's `block_on` does not suit: it has no deadline of its own on another thread, and it panics where the
//! caller happens to be inside a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives `future` to its end, or returns `None` after `timeout`.
pub(crate) fn wait<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let started = Instant::now();
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Some(done);
        }
        let left = timeout.checked_sub(started.elapsed()).filter(|left| !left.is_zero())?;
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_the_future_does_or_when_the_time_is_up() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let other = std::thread::spawn(move || sender.send(7));
        assert_eq!(wait(Duration::from_secs(60), receiver), Some(Ok(7)));
        assert_eq!(other.join().unwrap(), Ok(()));
        assert_eq!(wait(Duration::from_millis(10), std::future::pending::<()>()), None);
    }
}
