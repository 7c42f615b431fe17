//! What the end-to-end tests share: the binary `windfall`, built once, and runs of it with time-outs.
//!
//! Most tests use nothing of the workspace but the binary: what they show is what an operator sees. They live in
//! `tests/`: `demo` (the whole way, its report and exit codes), `crash` (kill -9 at seeded moments), `sabotage`
//! (a broken promise must be noticed), `bad_input` (a clear error, and nothing changed), `services` and `services_grpc`
//! (every call and every error, by HTTP and by the gRPC clients), `timers_to_jobs` (timers that go to a task queue, in a
//! process that is killed), `far_jobs` and `far_tier` (jobs of a task queue that wait as timers, for seconds and for hours, in
//! processes that are killed) and `attacks` (who must get nothing, within bounded memory). The attacks of those without a key
//! ([`keyless`]) are also made on a server of `edge` alone, by its own test `bounds`.
//!
//! Those named `real_…` need real servers: `real_demo` and `real_bad_input` drive the binary, `real_churn` (processes
//! that consume join, leave and are killed) and `real_failover` (the master broker is frozen) put the crates together
//! themselves, to see each event; `real_timers` has two schedulers on one Redis, which are killed, frozen and restarted;
//! `real_far_jobs` has far jobs of three processes on one Redis; `real_race` has withdrawals race with the queue while processes are killed, and
//! `real_openapi` holds the HTTP API against its own document; `real_task_queue` drives task queues by a client that was
//! written for lmstfy, and by curl.
//!
//! ```no_run
//! use windfall_tests::{Run, plain, scratch};
//!
//! let dir = scratch();
//! let data = dir.path().join("data");
//! let ended = Run::new(plain()).args(["demo", "--calm", "--json", "--rewards", "1000", "--data"]).arg(&data).end();
//! assert_eq!(ended.code, Some(0), "{ended}");
//! assert_eq!(ended.json()["total"]["lost"], 0);
//! ```

mod ahead;
mod binary;
pub mod frames;
mod ground;
pub mod keyless;
mod memory;
mod money;
mod mount;
pub mod raw;
mod receiver;
mod run;
mod seed;
mod service;

pub use ahead::ahead;
pub use binary::{plain, sabotaged, servers_program, shipped};
pub use ground::{Ground, sign};
pub use memory::Memory;
pub use money::{AboutMoney, MONEY};
pub use mount::Mount;
pub use receiver::{Deliveries, receiver};
pub use run::{Ended, Run, Running};
pub use seed::Seed;
pub use service::{Answer, Caller, Service};

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Unix milliseconds.
///
/// # Panics
/// If the clock is before 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    since.as_millis().try_into().expect("a time")
}

/// An empty directory that goes with the test.
///
/// # Panics
/// If the system gives none.
pub fn scratch() -> TempDir {
    TempDir::with_prefix("windfall-test-").expect("a temporary directory")
}

/// The figures of a report that must be zero.
pub const ERRORS: [&str; 4] = ["lost", "double", "mismatched", "budget_over"];

/// A figure of the report, by its path: `total.lost`.
///
/// # Panics
/// If the report has no such number.
pub fn figure(report: &Value, path: &str) -> u64 {
    let value = path.split('.').fold(report, |value, key| &value[key]);
    value.as_u64().unwrap_or_else(|| panic!("the report has no number {path}: {report:#}"))
}

/// Demands that a report is clean: `ok`, no error in any type, every reward accounted for, all samples agree.
///
/// # Panics
/// If it is not; the message has the report.
pub fn assert_clean(report: &Value, why: &str) {
    let _about = AboutMoney;
    assert_eq!(report["ok"], true, "{why}: {report:#}");
    assert_eq!(report["findings"], serde_json::json!([]), "{why}: {report:#}");
    for error in ERRORS {
        assert_eq!(figure(report, &format!("total.{error}")), 0, "{why}, {error}: {report:#}");
    }
    let by_type = report["by_type"].as_object().unwrap_or_else(|| panic!("{why}: by_type: {report:#}"));
    for (name, figures) in by_type {
        for error in ERRORS {
            assert_eq!(figure(figures, error), 0, "{why}, {name} {error}: {report:#}");
        }
    }
    let arrived = figure(report, "total.credited") + figure(report, "total.archived");
    let sent = figure(report, "total.sent");
    let perhaps = figure(report, "total.unanswered");
    assert!(
        (sent..=sent + perhaps).contains(&arrived),
        "{why}: {arrived} arrived of {sent} sent: {report:#}"
    );
    for sample in report["samples"].as_array().unwrap_or_else(|| panic!("{why}: samples: {report:#}")) {
        assert_eq!(sample["disagreements"], serde_json::json!([]), "{why}: {sample:#}");
    }
}

/// Every file below a directory with its bytes, to see that nothing changed. Lock files are left out.
///
/// # Panics
/// If one cannot be read.
pub fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
            let path = entry.path();
            let locks = path.extension().is_some_and(|extension| extension == "lock");
            if path.is_dir() {
                open.push(path);
            } else if !locks {
                let bytes =
                    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}
