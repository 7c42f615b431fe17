//! Whether a topic can be read, and its offsets can be committed, as readiness shows it.

use super::Inner;
use super::options::TROUBLED_AFTER;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// One thing that is tried again and again.
pub(super) struct Health {
    name: String,
    failing_since: Option<Instant>,
    /// What readiness shows of it. Not known at first: whoever tried it before may have left a trouble.
    is_shown: Option<bool>,
}

impl Health {
    pub const fn new(name: String) -> Self {
        Self { name, failing_since: None, is_shown: None }
    }

    pub fn succeeded(&mut self, inner: &Inner) {
        self.failing_since = None;
        if self.is_shown != Some(false) {
            self.is_shown = Some(false);
            inner.is_troubled(&self.name, None);
        }
    }

    /// It is a trouble when it has failed for a while.
    pub fn failed(&mut self, inner: &Inner, what: &str, now: Instant) {
        let since = *self.failing_since.get_or_insert(now);
        if self.is_shown == Some(true) || now < since + TROUBLED_AFTER {
            return;
        }
        self.is_shown = Some(true);
        if inner.is_troubled(&self.name, Some(what.to_owned())) {
            tracing::warn!(what, "{} fails; it is tried again", self.name);
        }
    }
}

/// Partitions that cannot be read on, and from which offset. Each is said once, and is a trouble until it is read beyond, or
/// belongs to somebody else.
pub(super) struct DamagedPartitions {
    name: String,
    at: BTreeMap<u32, u64>,
}

impl DamagedPartitions {
    /// Forgets what an earlier reader has shown.
    pub fn new(name: String, inner: &Inner) -> Self {
        inner.is_troubled(&name, None);
        Self { name, at: BTreeMap::new() }
    }

    pub fn found(&mut self, inner: &Inner, partition: u32, offset: u64, what: &str) {
        if self.at.insert(partition, offset) == Some(offset) {
            return;
        }
        tracing::error!(
            partition,
            offset,
            what,
            "{}: what lies behind this offset cannot be read, and its timers do not fire",
            self.name
        );
        self.show(inner);
    }

    /// A record was read.
    pub fn read(&mut self, inner: &Inner, partition: u32, offset: u64) {
        if self.at.get(&partition).is_some_and(|damaged| offset > *damaged) {
            self.forget(inner, partition);
        }
    }

    pub fn forget(&mut self, inner: &Inner, partition: u32) {
        if self.at.remove(&partition).is_some() {
            self.show(inner);
        }
    }

    fn show(&self, inner: &Inner) {
        let first = self.at.first_key_value();
        let what = first.map(|(partition, offset)| format!("partition {partition} from offset {offset} on"));
        inner.is_troubled(&self.name, what);
    }
}
