//! A store of due tasks that takes all of them, and fires none.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use windfall_contract::due::*;

#[derive(Default)]
pub(crate) struct FakeSlots {
    /// Whether each task that is added waits already.
    pub knows_all: Mutex<bool>,
    pub added: Mutex<Vec<NewRecord>>,
    pub cancelled: Mutex<Vec<Change>>,
}

fn nobody<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("no test needs it".into()))
}

const ID: TaskId = TaskId { shard: Shard(0), slot: SlotMinute(0), index: 0 };

#[async_trait]
impl SlotStore for FakeSlots {
    fn shards(&self) -> u16 {
        16
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        Ok(u16::try_from(name.len()).unwrap())
    }

    async fn target(&self, _: u16, _: &str) -> Result<u16, StoreError> {
        Ok(1)
    }

    async fn names(&self, _: Route) -> Result<Option<(String, String)>, StoreError> {
        nobody()
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        Ok(vec![NameKept::Same; known.len()])
    }

    async fn add(&self, _: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        self.added.lock().extend(batch.iter().cloned());
        let knows_all = *self.knows_all.lock();
        let added = |_| if knows_all { Added::Exists(ID) } else { Added::Stored(ID) };
        Ok(batch.iter().map(added).collect())
    }

    async fn load(&self, _: Shard, _: &LoadBatch) -> Result<Loaded, StoreError> {
        nobody()
    }

    async fn queue_id(&self, _: Option<u64>) -> Result<Option<u64>, StoreError> {
        nobody()
    }

    async fn add_once(&self, _: Shard, _: &[OnceRecord], _: u64) -> Result<OnceAnswers, StoreError> {
        nobody()
    }

    async fn cancel_once(&self, _: Shard, _: &[CancelOnce]) -> Result<Vec<CancelledOnce>, StoreError> {
        nobody()
    }

    async fn change(&self, _: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        self.cancelled.lock().extend(batch.iter().cloned());
        Ok(batch.iter().map(|_| Changed::Done(ID)).collect())
    }

    async fn get(&self, _: Shard, _: u16, _: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        nobody()
    }

    async fn list(&self, _: u16, _: Option<TaskId>, _: usize) -> Result<WaitingPage, StoreError> {
        nobody()
    }

    async fn counts(&self, _: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        Ok(BTreeMap::new())
    }

    async fn beat(&self, _: &str, _: u64) -> Result<Vec<String>, StoreError> {
        nobody()
    }

    async fn acquire(&self, _: Shard, _: &str, _: u64) -> Result<Result<Lease, HeldBy>, StoreError> {
        nobody()
    }

    async fn renew(&self, _: &Lease, _: u64) -> Result<(), LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn release(&self, _: &Lease) -> Result<(), LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn advance(&self, _: &Lease, _: u64, _: &[ReadFrom], _: usize) -> Result<Advanced, LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn state(&self, _: &Lease, _: SlotMinute) -> Result<SlotState, LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn finish(&self, _: &Lease, _: SlotMinute, _: &FinishBatch) -> Result<(), LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn drop_slot(&self, _: &Lease, _: SlotMinute, _: u32) -> Result<bool, LeaseError> {
        Err(LeaseError::Lost)
    }

    async fn dead(&self, _: u16, _: Option<TaskId>, _: usize) -> Result<Vec<DeadTask>, StoreError> {
        nobody()
    }

    async fn end_dead(&self, _: Shard, _: u16, _: &[TaskId], _: bool) -> Result<Vec<bool>, StoreError> {
        nobody()
    }
}
