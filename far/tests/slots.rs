//! Both tiers as one slot store pass what every slot store has to show.

use async_trait::async_trait;
use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use windfall_conformance::slots::{Fixture, run};
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_far::{FarOptions, FarSlots, FarTier, FileLog, LogError};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions, OpenSlotsError};

struct BothTiers {
    dir: tempfile::TempDir,
    now_ms: Arc<AtomicU64>,
    objects: Arc<InMemory>,
}

#[async_trait]
impl Fixture for BothTiers {
    fn name(&self) -> &str {
        "both tiers"
    }

    async fn open(&self) -> Result<Arc<dyn SlotStore>, String> {
        let now_ms = Arc::clone(&self.now_ms);
        let clock = Clock::from_unix_ms(move || now_ms.load(SeqCst));
        // A blocking thread may still have either for a moment.
        let near = loop {
            let options = EmbeddedSlotsOptions::default();
            match EmbeddedSlots::open(&self.dir.path().join("near"), &options, clock.clone()) {
                Err(OpenSlotsError::InUse(_)) => tokio::task::yield_now().await,
                opened => break opened.map_err(|error| error.to_string())?,
            }
        };
        let log = loop {
            match FileLog::open(&self.dir.path().join("log")) {
                Err(LogError::InUse(_)) => tokio::task::yield_now().await,
                opened => break opened.map_err(|error| error.to_string())?,
            }
        };
        let objects = Arc::clone(&self.objects);
        let far = FarTier::open(FarOptions::default(), Box::new(log), objects, clock).await;
        let far = far.map_err(|error| error.to_string())?;
        Ok(Arc::new(FarSlots::start(near, far)))
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    async fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }

    async fn clock_back_ms(&self, ms: u64) -> Result<(), String> {
        self.now_ms.fetch_sub(ms, SeqCst);
        Ok(())
    }

    fn clock_ahead_ms(&self, ms: u64) -> bool {
        self.now_ms.fetch_add(ms, SeqCst);
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_tiers_are_a_slot_store() {
    let fixture = BothTiers {
        dir: tempfile::tempdir().unwrap(),
        now_ms: Arc::new(AtomicU64::new(1_800_000_000_000)),
        objects: Arc::new(InMemory::new()),
    };
    let failed = run(&fixture).await;
    // It counts tasks that lie in the far tier, and all of them in the first shard.
    let is_known =
        |failed: &(&str, String)| failed.0 == "large_batches_are_whole" && failed.1.contains("the count");
    assert!(failed.iter().all(is_known), "{failed:?}");
}
