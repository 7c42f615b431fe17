//! Where things are in a data directory, a demo's or a role's.

use std::path::{Path, PathBuf};

/// The key ring.
pub fn keys(data: &Path) -> PathBuf {
    data.join("keys.toml")
}

/// The signing keys of a try-out.
pub fn signing(data: &Path) -> PathBuf {
    data.join("signing.toml")
}

/// The live rules, in a directory of their own: it is watched, and the ledger next to them would wake it all
/// the time.
pub fn rules(data: &Path) -> PathBuf {
    data.join("rules").join("rules.toml")
}

/// The SDK's spool.
pub fn spool(data: &Path) -> PathBuf {
    data.join("spool")
}

/// An embedded broker.
pub fn broker(data: &Path, name: &str) -> PathBuf {
    data.join("brokers").join(name)
}

/// The token store.
pub fn tokens(data: &Path) -> PathBuf {
    data.join("tokens")
}

/// The timers.
pub fn slots(data: &Path) -> PathBuf {
    data.join("slots")
}

/// What a process notes of the queue of adds: the store's id, and records that were set aside.
pub fn add_queue(data: &Path) -> PathBuf {
    data.join("timers-queue")
}

/// The log of far timers.
pub fn far_log(data: &Path) -> PathBuf {
    data.join("far-log")
}

/// The segments of far timers.
pub fn far(data: &Path) -> PathBuf {
    data.join("far")
}

/// The ledger.
pub fn ledger(data: &Path) -> PathBuf {
    data.join("ledger.db")
}

/// The heads of the ledger's chain, outside the ledger.
pub fn ledger_anchor(data: &Path) -> PathBuf {
    data.join("ledger.anchor")
}

/// The ledger's mark, where its database is elsewhere.
pub fn ledger_mark(data: &Path) -> PathBuf {
    data.join("ledger-mark.json")
}

/// The salvage file: records that no queue would take.
pub fn salvage(data: &Path) -> PathBuf {
    data.join("salvage")
}

/// The last good rules, where etcd keeps them.
pub fn rules_copy(data: &Path) -> PathBuf {
    data.join("rules-copy.toml")
}

/// The files of a second process that joins.
pub fn guest(data: &Path) -> PathBuf {
    data.join("guest")
}

/// The book of the badge downstream.
pub fn badge_book(data: &Path) -> PathBuf {
    data.join("badge.book")
}

/// Cron and one-off jobs, their runs and their executors.
pub fn entries(data: &Path) -> PathBuf {
    data.join("cron-jobs")
}

/// The jobs of a pool of the task queue.
pub fn jobs(data: &Path, pool: &str) -> PathBuf {
    data.join("jobs").join(pool)
}
