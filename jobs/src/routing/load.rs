//! How busy each executor is, as far as this process knows.
//!
//! `least_loaded` draws two executors at random and takes the one with the lower load ("the power of two choices",
//! Mitzenmacher, 2001). Compared with the lowest of all, it costs the same for any number of executors, and many schedulers
//! that see the same figures do not all run to the same executor.
//!
//! The load is `answer time × (in flight + 1)`, as in Finagle's and linkerd's balancers ("peak EWMA"):
//! - The answer time is an average that forgets with a time constant of [`MEMORY_MS`]. An answer that is slower than the
//!   average counts in full at once, a faster one by and by.
//! - Without news, the average decays as well, so that an executor that was slow is tried again.
//! - A failure counts as an answer after [`FAILURE_MS`]: an executor that refuses at once must not look like the fastest.
//! - While runs are in flight, the answer time is at least the time since the last sign of life. So an executor that hangs is
//!   avoided, more and more, until its runs are reported as failed.
//! - An executor without a measurement counts as quick, but two choices give it at most twice the share of another.
//!
//! What an answer is, is the caller's choice: the executor's acknowledgement, or the end of the run. It must be the same for
//! all executors that are compared, and each run that is sent must be reported once, as answered or as failed.

use super::generations::Cost;

/// How long a measurement keeps about a third of its weight.
pub const MEMORY_MS: u64 = 10_000;
/// The answer time that a failure counts as.
pub const FAILURE_MS: u64 = 5_000;

/// The measurements of one executor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    average_ms: f64,
    averaged_ms: u64,
    in_flight: u32,
    /// When it last answered, failed or got a run while it had none.
    alive_ms: u64,
}

impl Load {
    pub(super) fn sent(&mut self, now_ms: u64) {
        if self.in_flight == 0 {
            self.alive_ms = now_ms;
        }
        self.in_flight = self.in_flight.saturating_add(1);
    }

    pub(super) fn done(&mut self, took_ms: u64, now_ms: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.alive_ms = self.alive_ms.max(now_ms);
        let took_ms = to_f64(took_ms);
        let decayed_ms = self.decayed_ms(now_ms);
        self.average_ms = if took_ms > self.average_ms {
            took_ms
        } else {
            // What the old average has lost, the new measurement gains.
            decayed_ms + took_ms * (1.0 - self.weight(now_ms))
        };
        self.averaged_ms = self.averaged_ms.max(now_ms);
    }

    /// What the load is compared by; lower is better.
    pub(super) fn score(&self, now_ms: u64) -> f64 {
        let silent_ms = if self.in_flight == 0 { 0 } else { now_ms.saturating_sub(self.alive_ms) };
        // Never 0, so that runs in flight always count.
        self.decayed_ms(now_ms).max(to_f64(silent_ms)).max(1.0) * (f64::from(self.in_flight) + 1.0)
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn decayed_ms(&self, now_ms: u64) -> f64 {
        self.average_ms * self.weight(now_ms)
    }

    /// How much of the average is left.
    fn weight(&self, now_ms: u64) -> f64 {
        (-to_f64(now_ms.saturating_sub(self.averaged_ms)) / to_f64(MEMORY_MS)).exp()
    }
}

impl Cost for Load {
    fn cost(&self) -> usize {
        1
    }
}

/// Milliseconds, up to 49 days.
fn to_f64(ms: u64) -> f64 {
    f64::from(u32::try_from(ms).unwrap_or(u32::MAX))
}
