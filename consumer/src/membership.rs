//! This consumer's part in the share of the fleet's limits: how many partitions it owns, of how many.

use crate::shared_limiter::{Member, SharedLimiter};
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_limiter::Now;

/// One consumer's entry with the process's limiter. It is withdrawn when this is dropped, also when the loop is
/// cancelled or panics: partitions that it no longer reads must not count.
#[derive(Debug)]
pub(crate) struct Membership {
    limiter: Arc<SharedLimiter>,
    member: Member,
    topic: Arc<str>,
    /// The number of the topic's partitions.
    of: u32,
    clock: Clock,
}

impl Membership {
    /// Joins the limiter; no partition is owned yet.
    pub fn join(limiter: Arc<SharedLimiter>, topic: Arc<str>, of: u32, clock: Clock) -> Self {
        let member = limiter.join();
        let new = Self { limiter, member, topic, of, clock };
        new.disown();
        new
    }

    /// Notes the number of the topic's partitions; returns whether that is a change.
    pub fn topic_has(&mut self, partitions: u32) -> bool {
        std::mem::replace(&mut self.of, partitions) != partitions
    }

    pub fn owns(&self, partitions: u32, now_ns: u64) {
        self.limiter.set_owned(self.member, &self.topic, partitions, self.of, Now(now_ns));
    }

    pub fn disown(&self) {
        self.owns(0, self.clock.monotonic_ns());
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.disown();
    }
}
