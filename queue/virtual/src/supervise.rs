//! Runs the work of a thread again when it panics, and says how often that happened.

use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The number of panics in a row after which a thread counts as failing.
pub const PANICS_IN_A_ROW_MAX: u32 = 5;
/// The wait before the work runs again; it doubles with each panic in a row.
const BACKOFF_FIRST_MS: u64 = 20;
const BACKOFF_MAX_MS: u64 = 2_000;
/// A run that lasted this long ends a row of panics. It is measured in real time, whatever clock the work is given.
const HEALTHY_RUN: Duration = Duration::from_secs(30);
/// How soon a wait notices that the thread is to end.
const TICK_MS: u64 = 5;

/// The panics of one thread, and whether it still gets anything done.
#[derive(Debug, Default)]
pub struct ThreadHealth {
    panics: AtomicU64,
    in_a_row: AtomicU32,
    began: Mutex<Option<Instant>>,
}

impl ThreadHealth {
    /// Times that the thread's work panicked.
    pub fn panics(&self) -> u64 {
        self.panics.load(Relaxed)
    }

    /// Whether its work panicked [`PANICS_IN_A_ROW_MAX`] times in a row, and has not run for long since.
    pub fn is_failing(&self) -> bool {
        let runs_again = self.began.lock().is_some_and(|began| began.elapsed() >= HEALTHY_RUN);
        self.in_a_row.load(Relaxed) >= PANICS_IN_A_ROW_MAX && !runs_again
    }

    /// Runs `work` until it returns. If it panics, it runs again after a wait, unless `is_over` says that the thread is
    /// to end. What the work holds must survive that, as it is dropped by the panic.
    pub fn supervise(&self, name: &str, is_over: impl Fn() -> bool, mut work: impl FnMut()) {
        loop {
            let began = Instant::now();
            *self.began.lock() = Some(began);
            if catch_unwind(AssertUnwindSafe(&mut work)).is_ok() {
                return;
            }
            self.panics.fetch_add(1, Relaxed);
            if began.elapsed() >= HEALTHY_RUN {
                self.in_a_row.store(0, Relaxed);
            }
            let in_a_row = self.in_a_row.fetch_add(1, Relaxed) + 1;
            *self.began.lock() = None;
            tracing::error!(thread = name, in_a_row, "a thread panicked; it starts again");
            if in_a_row == PANICS_IN_A_ROW_MAX {
                tracing::error!(
                    thread = name,
                    "this thread panics again and again: restart the process, and report it"
                );
            }
            let mut left_ms = (BACKOFF_FIRST_MS << in_a_row.min(10)).min(BACKOFF_MAX_MS);
            while left_ms > 0 {
                if is_over() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(TICK_MS.min(left_ms)));
                left_ms = left_ms.saturating_sub(TICK_MS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_runs_again_and_work_that_always_does_is_called_failing() {
        let health = ThreadHealth::default();
        let mut runs = 0;
        health.supervise(
            "test",
            || false,
            || {
                runs += 1;
                assert!(runs > 2, "scripted");
            },
        );
        assert_eq!((runs, health.panics(), health.is_failing()), (3, 2, false));

        let health = ThreadHealth::default();
        let gives_up = || health.panics() >= u64::from(PANICS_IN_A_ROW_MAX);
        health.supervise("test", gives_up, || panic!("scripted"));
        assert!(health.is_failing());
    }
}
