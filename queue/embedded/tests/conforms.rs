//! The embedded broker: the contract, and what it promises beyond.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_conformance::broker::Fixture;
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue_faulty::Faulty;

struct Embedded {
    dir: tempfile::TempDir,
    faulty: bool,
    crashes: AtomicUsize,
}

impl Embedded {
    fn new(faulty: bool) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), faulty, crashes: AtomicUsize::new(0) }
    }

    fn at(&self, dir: &Path) -> Result<Arc<dyn Broker>, OpenError> {
        let broker = EmbeddedBroker::open(dir, &EmbeddedOptions::default())?;
        Ok(if self.faulty { Faulty::new(broker, 1) } else { broker })
    }

    fn main(&self) -> PathBuf {
        self.dir.path().join("main")
    }
}

#[async_trait]
impl Fixture for Embedded {
    fn name(&self) -> &str {
        if self.faulty { "faulty over embedded" } else { "embedded" }
    }

    async fn open(&self) -> Result<Arc<dyn Broker>, OpenError> {
        self.at(&self.main())
    }

    /// What `kill -9` leaves is what the files hold now: a copy of them is opened.
    async fn crashed(&self, _: &dyn Broker) -> Result<Option<Arc<dyn Broker>>, OpenError> {
        let number = self.crashes.fetch_add(1, Ordering::Relaxed);
        let dir = self.dir.path().join(format!("crash-{number}"));
        copy(&self.main(), &dir);
        self.at(&dir).map(Some)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_conforms() {
    let failed = windfall_conformance::broker::run(&Embedded::new(false)).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faulty_without_faults_conforms() {
    let failed = windfall_conformance::broker::run(&Embedded::new(true)).await;
    assert!(failed.is_empty(), "{failed:#?}");
}
