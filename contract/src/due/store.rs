//! What a slot store offers, and what callers may rely on. The conformance suite checks each sentence.

use super::{
    CancelOnce, CancelledOnce, DueRecord, OnceAnswers, OnceRecord, Route, Shard, SlotMinute, TaskId, TaskKey,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;

/// A task to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    /// Unix milliseconds. What lies below the shard's watermark is stored at the watermark and fires at once.
    pub due_ms: u64,
    /// Whose it is, and where it goes.
    pub route: Route,
    /// The caller's own key; the task must be added to the key's shard ([`TaskKey::shard`]).
    pub key: Option<TaskKey>,
    /// What the target gets, at most [`PAYLOAD_MAX_BYTES`](super::PAYLOAD_MAX_BYTES).
    pub payload: Bytes,
}

/// A task that the far tier hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarRecord {
    /// The id under which its caller knows it ([`TaskId::is_far`]).
    pub id: TaskId,
    /// Unix milliseconds, as in [`NewRecord::due_ms`].
    pub due_ms: u64,
    /// Whose it is, and where it goes.
    pub route: Route,
    /// What the target gets, at most [`PAYLOAD_MAX_BYTES`](super::PAYLOAD_MAX_BYTES).
    pub payload: Bytes,
}

/// Tasks of one shard that the far tier hands over in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBatch {
    /// Names the log of the far tier. A shard remembers the last batch of each log.
    pub log: u64,
    /// Grows with each batch of the log in the shard, and is below 2^53.
    pub sequence: u64,
    /// The batch of the log that the shard must have last, 0 for none: so a batch that arrives late is not stored behind
    /// one that another sender has stored meanwhile. `None`: any earlier one.
    pub follows: Option<u64>,
    /// The tasks that are handed over together.
    pub records: Vec<FarRecord>,
}

/// What became of a batch that the far tier handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It is stored.
    Stored,
    /// It was stored before, and is passed over now.
    Before,
    /// The shard has this batch of the log last, 0 for none: a later one, or another one than that which the batch
    /// follows. Nothing was stored.
    Other(u64),
}

/// What became of a task that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is stored under this id.
    Stored(TaskId),
    /// The tenant has a waiting task of this key, or one that fires and is the same: due time asked, target and payload
    /// are equal, so this is its add once more. Nothing was stored. A task of this key that fires and is another one
    /// keeps nobody away: the new one is stored, and the key leads to it.
    Exists(TaskId),
}

/// How a caller names a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAt {
    /// By its id. The id that a task had before it was moved leads to it as long as that slot is there.
    Id(TaskId),
    /// By the key that the caller gave it.
    Key(TaskKey),
}

/// What is to become of a waiting task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Only this tenant's task is changed.
    pub tenant: u16,
    /// The task that is changed.
    pub at: TaskAt,
    /// `None` cancels it; else it gets what is given here, in one step, and keeps the rest.
    pub to: Option<Moved>,
}

/// What a task gets when it is moved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// A new due time.
    pub due_ms: Option<u64>,
    /// A new payload.
    pub payload: Option<Bytes>,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is done: cancelled under this id, or stored under this one from now on.
    Done(TaskId),
    /// It had been cancelled before.
    Cancelled,
    /// Its time has come, by the watermark or by the store's clock: it fires, or has fired.
    Firing,
    /// The tenant has no such task: it never had, or it is over and gone.
    Unknown,
}

/// How a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It waits, and can be changed.
    Waiting,
    /// Its time has come: it fires, or has fired.
    Firing,
    /// It was cancelled.
    Cancelled,
}

/// A task as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it lies now.
    pub id: TaskId,
    /// How it is.
    pub state: Waiting,
    /// What it is.
    pub record: DueRecord,
}

/// A part of a tenant's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitingPage {
    /// Waiting tasks, in the order of their ids.
    pub tasks: Vec<Found>,
    /// Where to go on; `None` at the end. A page may be empty and not the last one.
    pub next: Option<TaskId>,
}

/// The right to fire a shard's tasks. Every call that changes what a dispatcher owns is held against its epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Which shard.
    pub shard: Shard,
    /// Grows whenever the shard is acquired.
    pub epoch: u64,
}

/// Another instance has the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    /// The instance that has the shard.
    pub instance: String,
    /// How long it may keep it without a renewal, by the store's clock.
    pub left_ms: u64,
}

/// From where a dispatcher reads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFrom {
    /// Which slot.
    pub slot: SlotMinute,
    /// The entry that it has not read yet.
    pub next_index: u32,
}

/// What [`SlotStore::advance`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Advanced {
    /// The shard's watermark: the store's clock, or what it had been before where the clock went back. Tasks up to it
    /// cannot be cancelled or moved any more.
    pub watermark_ms: u64,
    /// The shard's slots that begin before `watermark_ms + ahead_ms`, with the number of their entries, oldest first.
    pub slots: Vec<(SlotMinute, u32)>,
    /// The entries that were asked for, as far as `max_bytes` goes: slot, index of the first one, entries.
    pub entries: Vec<(SlotMinute, u32, Vec<Bytes>)>,
}

/// What a dispatcher noted of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotState {
    /// One bit per entry, the first one being the highest bit of the first byte: it is over. It may be shorter than the
    /// slot.
    pub done: Bytes,
    /// How often tasks were tried in vain, by index.
    pub attempts: BTreeMap<u32, u32>,
}

/// A task that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadTask {
    /// The id under which its caller knows it.
    pub id: TaskId,
    /// When it was due, in Unix milliseconds.
    pub due_ms: u64,
    /// When it was given up, by the store's clock.
    pub died_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// What its target said last.
    pub reason: String,
    /// What it is.
    pub record: DueRecord,
}

/// What a dispatcher has finished in a slot, to be noted in one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FinishBatch {
    /// Grows with each batch of a lease. A batch that is sent again after a lost answer is passed over.
    pub sequence: u64,
    /// Bytes of [`SlotState::done`], each part with its first byte's place.
    pub done: Vec<(u32, Bytes)>,
    /// Keys that are free again where they still lead to the entry of this index: tenant, key, index.
    pub keys: Vec<(u16, TaskKey, u32)>,
    /// How many tasks of a tenant wait no more.
    pub over: BTreeMap<u16, u32>,
    /// How often tasks were tried in vain so far, by index.
    pub attempts: BTreeMap<u32, u32>,
    /// Tasks that are given up; they stay until they are sent again or deleted.
    pub dead: Vec<DeadTask>,
}

/// By which numbers a caller knows a tenant, and perhaps a target of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownName {
    /// The tenant's number and its name.
    pub tenant: (u16, String),
    /// The number and the name of a target of this tenant; `None`: the tenant alone is meant.
    pub target: Option<(u16, String)>,
}

/// What a store means by the numbers that a caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKept {
    /// The same as the caller.
    Same,
    /// The same from now on: it had lost a number or a name, and nobody had taken it since.
    PutBack,
    /// The numbers lead to these names, so that what is stored under them goes to the right target; but a name has another
    /// number by now, by which its tasks are added and found from now on.
    Moved,
    /// Another name has one of the numbers. Nothing was put back that would contradict it.
    Taken,
}

/// What an Ok of a store survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of the machine: it is synced before Ok.
    Machine,
    /// The end of the process; up to a second of what was acknowledged goes with the machine.
    EverySecond,
    /// The end of the process; what the system has not written yet goes with the machine.
    Process,
}

/// The store did not answer, or not in time: a change may be done or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Try again in a moment.
    #[error("the slot store is unavailable: {0}")]
    Unavailable(String),
    /// It holds what cannot be, or is set so that it cannot keep tasks; trying again does not help.
    #[error("the slot store cannot be used: {0}")]
    Unusable(String),
}

/// A call under a lease failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Another instance has the shard, or may have it, or the store has lost what its owner was told. Nothing was
    /// changed. Stop firing, acquire the shard anew, and read everything again.
    #[error("the lease of the shard is lost")]
    Lost,
    /// The store has no answer; the call may be repeated.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Keeps due tasks by shard and minute. Its clock is the only one that decides what is due (I10). Any number of threads
/// may call it. A call that is dropped before it is ready may be done or not.
#[async_trait]
pub trait SlotStore: Send + Sync {
    /// The number of shards, 16 to 1,024; fixed when the store is made.
    fn shards(&self) -> u16;

    /// What an Ok survives.
    fn durability(&self) -> Durability;

    /// The number of a tenant; a new name gets a new one.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unusable`] where 65,535 names are taken.
    async fn tenant(&self, name: &str) -> Result<u16, StoreError>;

    /// The number of a tenant's target; a new name gets a new one.
    ///
    /// # Errors
    /// [`StoreError`], as above.
    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError>;

    /// The names behind a route, as far as they are known.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError>;

    /// Puts names back that the store has lost, under the numbers by which a caller knows them, and answers what it means by
    /// these numbers: one answer for each, in order. A number that is put back is given to no other name later. Who is first
    /// has it: what another name has by now is changed by nothing. Of a target whose tenant's number is
    /// [`Taken`](NameKept::Taken), nothing is put back.
    ///
    /// # Errors
    /// [`StoreError`]; it may be repeated.
    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError>;

    /// Stores tasks of one shard, all in one step: one answer for each, in order. Tasks with equal keys in one batch:
    /// the first one is stored.
    ///
    /// # Errors
    /// [`StoreError`]: all or none of them are stored. Only tasks with keys may be added again without a doubt.
    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError>;

    /// Stores tasks that the far tier hands over, all in one step. From then on the id of each leads to it as if it had
    /// been moved from there, unless the minute of that id was over already. The shard's last batch of the same log is
    /// passed over when it is sent again, however long ago it was, and whatever became of its tasks; so is an earlier one,
    /// with another answer. A batch without tasks is answered alike and changes nothing: it asks how far the log has come.
    ///
    /// # Errors
    /// [`StoreError`]; the batch may be sent again as it is.
    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError>;

    /// The store's own name for the queue of its adds. Where it has none, `fresh` becomes it, and stays it for ever; `None`
    /// where it has none and none is given.
    ///
    /// # Errors
    /// [`StoreError`]; it may be repeated.
    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError>;

    /// Stores tasks of one shard whose adds came by a queue, all in one step, each key once: while a task that came so waits
    /// or fires, and until `keys_kept_ms` after it has fired, was given up or cancelled, however that was, each further add of
    /// its key is dropped. An add that was written longer than `keys_kept_ms` ago, and that finds no task and no mark of its
    /// key, is [`TooOld`](super::AddedOnce::TooOld); after a call with a longer time than the one before, so is an add whose
    /// mark may have ended by the shorter one. A part of the marks whose time is over by more than
    /// [`KEY_MARGIN_MS`](super::KEY_MARGIN_MS) is deleted. A task of this key that was added otherwise keeps the add away, as
    /// in [`add`](Self::add). An empty batch stores nothing, deletes marks, and answers the run.
    ///
    /// # Errors
    /// [`StoreError`]: all or none of them are stored. The batch may be sent again as it is.
    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError>;

    /// Cancels waiting tasks by their keys, all in one step: one answer for each, in order. Each key is marked as used, also
    /// where no add of it has come yet; such a mark counts as a waiting task of its tenant until an add of the key comes or
    /// the mark is deleted.
    ///
    /// # Errors
    /// [`StoreError`]: all or none of it is done. It may be repeated.
    async fn cancel_once(&self, shard: Shard, batch: &[CancelOnce])
    -> Result<Vec<CancelledOnce>, StoreError>;

    /// Cancels or moves waiting tasks of one shard, all in one step: one answer for each, in order. A task that is moved
    /// stays in its shard, keeps its key, and takes its first id along.
    ///
    /// # Errors
    /// [`StoreError`]: all or none of it is done. It may be repeated.
    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError>;

    /// Finds tasks of one shard: one answer for each, in order; `None` where the tenant has none.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError>;

    /// A tenant's waiting tasks behind `after`, at most `limit`; looks at 10,000 entries at most.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list(&self, tenant: u16, after: Option<TaskId>, limit: usize)
    -> Result<WaitingPage, StoreError>;

    /// A tenant's waiting tasks of a far tier in front of the store that are not near yet, behind `after`, at most `limit`:
    /// by hour, shard and minute. A store without a far tier has none.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list_far(
        &self,
        _tenant: u16,
        _after: Option<TaskId>,
        _limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        Ok(WaitingPage::default())
    }

    /// How many tasks wait in a shard, by tenant. Tasks count until they are over.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError>;

    /// Says that an instance lives, for `ttl_ms` of the store's clock, and returns the living ones, in order.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError>;

    /// Takes the lease of a shard where nobody has it. An instance that has it already gets it anew, with a new epoch.
    /// A lease that would end later than `ttl_ms` from now, because the clock went back, counts as ending then.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError>;

    /// Keeps a lease for `ttl_ms` from now. One that has run out, and that nobody else has taken, is kept as well.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError>;

    /// Gives a lease back; somebody else may have it at once.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn release(&self, lease: &Lease) -> Result<(), LeaseError>;

    /// Moves the shard's watermark on to the store's clock, and reads slots from where the dispatcher stands. What was
    /// read is read as it was at the moment of the watermark or later: a dispatcher that has read every entry of a slot
    /// that [`Advanced::slots`] counts knows of every end that reached a task up to the watermark.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError>;

    /// What earlier owners noted of a slot.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError>;

    /// Notes what is finished in a slot, in one step.
    ///
    /// # Errors
    /// [`LeaseError`]; the batch may be sent again. One that reaches beyond the entries of its slot is
    /// [`LeaseError::Lost`].
    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError>;

    /// Deletes a slot of which every entry is over. One at or above the watermark's minute stays, and so does one that
    /// has more than `entries`; returns whether it is gone.
    ///
    /// # Errors
    /// [`LeaseError`]; it may be repeated.
    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError>;

    /// A tenant's tasks that were given up, in the order of their ids, behind `after`, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError>;

    /// Sends tasks that were given up again (`true`), due at once, under the id that their caller knows, or deletes them
    /// (`false`). Returns for each whether it was there. They are of one shard, that of their ids.
    ///
    /// # Errors
    /// [`StoreError`]: all or none of it is done. It may be repeated.
    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError>;
}
